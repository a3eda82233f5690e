"""What the two small networks learn of digit scenes, with all data in one place.

    python tests/benchmarks/scenes.py [--epochs 9] [--seeds 1]

Adam with a one-cycle rate, batches of 32, one CPU thread. Seconds are CPU seconds of training
(``time.process_time``), so that a shared machine does not matter; evaluation is not in them. Fails
unless the detector reaches a mAP@0.5 of 0.9 and a mAP@0.5:0.95 of 0.6, and the FCN a mIoU of 0.85,
each within 90 of these seconds."""

import argparse
import sys
import time

import torch

import fedlearn as fl

BATCH, LIMIT = 32, 90
RATES = {"detection": 5e-3, "segmentation": 1e-2}
AIMS = {"detection": {"accuracy": 0.9, "map_50_95": 0.6}, "segmentation": {"accuracy": 0.85}}


def train(task, epochs, rate):
    """CPU seconds of training, and the network."""
    net = fl.initial_network(fl.methods.fedavg(), task).train()
    n = task.sizes[0]
    steps = epochs * -(-n // BATCH)
    adam = torch.optim.Adam(net.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, rate, steps)
    began = time.process_time()
    for epoch in range(epochs):
        g = fl.rng.generator(task.seed, "epoch", epoch)
        x, y = task.epoch(0, torch.randperm(n, generator=g), g)
        x = x.contiguous(memory_format=torch.channels_last)
        for images, targets in zip(x.split(BATCH), y.split(BATCH), strict=True):
            adam.zero_grad()
            task.loss(net(images), targets).backward()
            adam.step()
            schedule.step()
    return time.process_time() - began, net


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--task", choices=RATES, action="append")
    args = parser.parse_args()
    torch.set_num_threads(1)
    missed = []
    for kind in args.task or RATES:
        for seed in range(args.seeds):
            task = getattr(fl.tasks, kind)(clients=1, seed=seed, device="cpu")
            seconds, net = train(task, args.epochs, RATES[kind])
            found = task.evaluate(net)
            numbers = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            size = fl.models.parameter_count(net)
            print(f"{kind}, seed {seed}: {size} parameters, {seconds:.0f} s, {numbers}", flush=True)
            short = [name for name, aim in AIMS[kind].items() if not found[name] >= aim]
            missed += [f"{kind} {seed}: {name}" for name in short]
            missed += [f"{kind} {seed}: seconds"] * (seconds > LIMIT)
    if missed:
        sys.exit(f"Missed: {', '.join(missed)}.")


if __name__ == "__main__":
    main()

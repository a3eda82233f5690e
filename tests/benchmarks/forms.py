"""What does a round of FedRepOpt cost beside its rivals? Whole rounds, messages included, of the
four forms of a network.

    python tests/benchmarks/forms.py                      # about three minutes on two CPU cores
    python tests/benchmarks/forms.py --quick              # one small network, two repeats
    python tests/benchmarks/forms.py --device cuda --out data/results/forms_cuda.json

Two clients, one local epoch. The forms take turns, 7 (B1), 14 (0.5x) or 42 times; medians of ratios
to "inf" in the same turn, and the seconds of "inf".
"""

import argparse
import json
import os
import platform
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median

import torch

import fedlearn as fl
from fedlearn import models
from fedlearn.round import one_round

sys.path.insert(0, str(Path(__file__).parent))
from common import random_task  # noqa: E402

# label -> network, image shape, samples a client, batch size, how often the repeats: short rounds
# need more
NETWORKS = {
    "RepVGG, digits": ("digits_repvgg", (1, 8, 8), 320, 32, 6),
    "RepGhost, digits": ("digits_repghost", (1, 8, 8), 320, 32, 6),
    "RepGhostNet 0.5x, 64x64": ("repghost_05", (3, 64, 64), 64, 32, 2),
    "RepVGG-B1, 64x64": ("repvgg_b1", (3, 64, 64), 32, 32, 1),
}
FORMS = ("tr", "inf", "csla", "repopt")


def rounds(method, task, batch_size):
    """A function that plays the next round and says how long it took."""
    settings, t = fl.Settings(batch_size=batch_size, evaluate_every=10**9), 0
    server, clients = method.server_side(task, settings), fl.clients(method, task, settings)
    state, heard = server.start(), {}

    def play():
        nonlocal t, state
        t += 1
        began = time.perf_counter()
        state, _ = one_round(server, clients, t, state, heard)
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        return time.perf_counter() - began

    play()  # warms up, and brings the constants
    return play


def measure(networks, repeats, device):
    rows = {}
    for label, (network, shape, samples, batch_size, often) in networks.items():
        task = random_task(network, shape, 2, samples, device)
        played = {
            form: rounds(fl.methods.fed_repopt(0.01, form, None), task, batch_size)
            for form in FORMS
        }
        turns = [{form: play() for form, play in played.items()} for _ in range(repeats * often)]
        rows[label] = {form: median(turn[form] / turn["inf"] for turn in turns) for form in FORMS}
        rows[label] |= {
            "seconds of inf": median(turn["inf"] for turn in turns),
            "parameters": models.parameter_count(task.network()),
        }
        print(label, {name: round(value, 3) for name, value in rows[label].items()}, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="one small network, two repeats")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
    networks = dict(list(NETWORKS.items())[:1]) if args.quick else NETWORKS
    repeats = 2 if args.quick else args.repeats
    torch.set_num_threads(1)
    rows = measure(networks, repeats, args.device)
    if args.out:
        settings = {
            "date": date.today().isoformat(),
            "repeats": repeats,
            "threads": 1,
            "cores": os.cpu_count(),
            "device": args.device,
            "machine": platform.machine(),
            "torch": torch.__version__,
        }
        Path(args.out).write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

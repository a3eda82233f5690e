"""How much memory a round of FedGKT takes when the feature maps of 50,000 images lie on disk.

    python tests/benchmarks/store.py [--images 50000] [--out data/results/store_cpu.json]

Images are random and coloured, the edge network is ResNet-8, the server's a linear layer on pooled
maps: what is measured is memory, the highest resident set of the process ("peak"), mapped pages
included. The maps take 3.3 GB; the second line keeps them in memory instead.
"""

import argparse
import dataclasses
import json
import multiprocessing
import platform
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

import torch
from common import peak_memory
from torch import nn

import fedlearn as fl


def small_server(shape, classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape[0], classes))


def coloured(images, clients):
    """The digits task with random 32x32 colour images in place of its own."""
    task, draw = fl.tasks.classification("digits", clients), torch.Generator().manual_seed(0)
    x = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8, generator=draw)
    y = torch.arange(images) % 10
    split = dataclasses.replace(
        task.split, indices=[torch.arange(k, images, clients).numpy() for k in range(clients)]
    )
    source = dataclasses.replace(task.source, mean=(128.0,) * 3, std=(64.0,) * 3)
    return dataclasses.replace(
        task, train=(x, y), test=(x[:100], y[:100]), split=split, source=source
    )


def measure(images, clients, limit):
    task = coloured(images, clients)
    method = fl.methods.fed_gkt(
        edge="resnet8", server=small_server, server_epochs=1, memory_limit=limit
    )
    before = peak_memory()
    history = fl.run(method, task, 1, batch_size=256, progress=False)
    row = {"before_MB": before, "peak_MB": peak_memory(), "seconds": float(history.seconds[0])}
    return row | {"bytes_up": int(history.bytes_up[0])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--out")
    args = parser.parse_args()
    rows, spawn = {}, multiprocessing.get_context("spawn")
    for label, limit in (("on disk", 1e9), ("in memory", 1e12)):  # each in a process of its own
        with ProcessPoolExecutor(1, spawn, torch.set_num_threads, (2,)) as pool:
            rows[label] = pool.submit(measure, args.images, args.clients, limit).result()
        print(label, rows[label])
    if args.out:
        settings = {"date": str(date.today()), "images": args.images, "clients": args.clients}
        settings |= {"torch": torch.__version__, "machine": platform.machine()}
        content = json.dumps({"settings": settings, "rows": rows}, indent=1)
        Path(args.out).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()

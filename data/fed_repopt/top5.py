"""Top-1 and top-5 accuracy of Table 1's four forms on CIFAR-100, whose search is on CIFAR-10.

    python data/fed_repopt/top5.py        (half an hour -> data/fed_repopt/top5.json)

The stored runs of fed_repopt_table1 count a network's first answer alone. Each is made again
here, at the rate that its trials on validation images chose, and the last network is asked for
its first and its first five answers to the test images.
"""

from dataclasses import asdict

import torch
from torch import nn

import fedlearn as fl
from fedlearn.book.grids import keep
from fedlearn.data import data_path
from fedlearn.lab import recipes


def shares(net: nn.Module, task: fl.tasks.Task) -> dict[str, float]:
    """The shares of test images whose class is the network's first answer, or one of five."""
    net.eval()
    right = []
    with torch.no_grad():
        for logits, y in task.tested(net):
            right.append(logits.topk(5).indices == y[:, None])
    right = torch.cat(right).double()
    return {"top-1": float(right[:, 0].mean()), "top-5": float(right.sum(1).mean())}


def row(run: recipes.Run, stored: dict) -> dict:
    """A run, made again."""
    e = run.experiment
    lr = stored["meta"]["options"]["lr"]
    options = {"lr": lr}
    if run.search:
        options["scales"] = recipes.search(run)
    task = e.make_task()
    history = fl.run(
        run.method(**options), task, e.rounds, threads=e.threads, **asdict(e.settings)
    )
    its = {"row": run.label, "partition": e.partition, "seed": e.seed, "lr": lr}
    return its | shares(history.network(), task)


def main() -> None:
    runs = recipes.runs("fed_repopt_table1", "small", data=["cifar100"])
    lines = recipes.stored(runs)
    rows = []
    for run in runs:
        rows.append(row(run, lines[run.key]))
        print(*rows[-1].values(), flush=True)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    keep(
        data_path("fed_repopt", "top5.json"),
        columns,
        "python data/fed_repopt/top5.py",
        seeds=sorted(set(columns["seed"])),
    )


if __name__ == "__main__":
    main()

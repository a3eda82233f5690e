"""Top-1 and top-5 accuracy of Table 1's forms of RepVGG on CIFAR-100.

    python data/fed_repopt/top5.py [ROW ...]        (an hour -> data/fed_repopt/top5.json)

Calls for single rows end one after another: each adds its rows to the file.

Stored runs count a network's first answer alone. So the runs of ``fed_repopt_table1`` at the
scale small are made here on CIFAR-100, with scales that are searched on CIFAR-10. Rates are
chosen as in the recipes: the best of three on validation images, and of the next ones while the
best lies at an end. CSLA is left out: it is RepOpt's training.
"""

import json
import sys
from dataclasses import asdict, replace
from functools import cache

import torch
from torch import nn

import fedlearn as fl
from fedlearn.book.grids import keep
from fedlearn.data import data_path
from fedlearn.errors import pick
from fedlearn.lab import recipes

FORMS = ["RepVGG Tr", "RepVGG Inf", "RepVGG RepOpt"]
FIRST = (0.03, 0.1, 0.3)


def on_cifar100(run: recipes.Run) -> recipes.Run:
    """A run of the recipe with its two sets exchanged."""
    return replace(
        run,
        experiment=replace(run.experiment, dataset="cifar100"),
        search=run.search and run.search | {"dataset": "cifar10"},
        trials=tuple(on_cifar100(trial) for trial in run.trials),
    )


def trained(run: recipes.Run, lr: float) -> tuple[fl.History, fl.tasks.Task]:
    e = run.experiment
    options = {"lr": lr}
    if run.search:
        options["scales"] = recipes.search(run)
    task = e.make_task()
    settings = asdict(e.settings) | {"threads": e.threads}
    return fl.run(run.method(**options), task, e.rounds, **settings), task


@cache
def tried(label: str, partition: str, lr: float) -> float:
    """The last quarter of a trial, on validation images."""
    [run] = chosen(label, partition)
    trials = {trial.experiment.options["lr"]: trial for trial in run.trials}
    history, _ = trained(trials[lr], lr)
    print(label, partition, lr, history.late_accuracy(), flush=True)
    return history.late_accuracy()


def best_rate(run: recipes.Run) -> float:
    """The rate of the best trial."""
    values = sorted(trial.experiment.options["lr"] for trial in run.trials)
    asked = [values.index(lr) for lr in FIRST]
    while True:
        of = {i: tried(run.label, run.experiment.partition, values[i]) for i in asked}
        best = max(of, key=of.__getitem__)
        beside = {best - 1, best + 1} & {*range(len(values))} - {*asked}
        if not beside:
            return values[best]
        asked += sorted(beside)


def shares(net: nn.Module, task: fl.tasks.Task) -> tuple[float, float]:
    """The shares of test images whose class is the first answer, and one of five."""
    with torch.no_grad():
        pairs = [(logits.topk(5).indices, y) for logits, y in task.tested(net.eval())]
    right = torch.cat([five == y[:, None] for five, y in pairs]).double()
    return float(right[:, 0].mean()), float(right.sum(1).mean())


def chosen(label: str, partition: str | None = None) -> list[recipes.Run]:
    runs = recipes.runs("fed_repopt_table1", "small", row=[label], seed=[0])
    runs = [on_cifar100(run) for run in runs]
    return [run for run in runs if partition in (None, run.experiment.partition)]


def main(labels: list[str]) -> None:
    for label in labels:
        pick(label, dict.fromkeys(FORMS), "row")
    path = data_path("fed_repopt", "top5.json")
    rows = []
    for label in labels:
        for run in chosen(label):
            lr = best_rate(run)
            history, task = trained(run, lr)
            first, five = shares(history.network(), task)
            row = {"row": label, "split": run.experiment.partition, "lr": lr}
            rows.append(row | {"top-1": first, "top-5": five})
            print(*rows[-1].values(), flush=True)
    names = list(rows[0])
    if path.exists():  # the rows of earlier calls
        columns = json.loads(path.read_text(encoding="utf-8"))["columns"]
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            if row["row"] not in labels:
                rows.append(row)
    rows.sort(key=lambda row: (row["split"], FORMS.index(row["row"])))
    columns = {name: [row[name] for row in rows] for name in names}
    keep(path, columns, "python data/fed_repopt/top5.py", seed=0)


if __name__ == "__main__":
    main(sys.argv[1:] or FORMS)

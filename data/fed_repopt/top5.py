"""Top-1 and top-5 accuracy of Table 1's forms of RepVGG on CIFAR-100.

    python data/fed_repopt/top5.py        (an hour -> data/fed_repopt/top5.json)

Stored runs count a network's first answer alone. So the runs of ``fed_repopt_table1`` at the
scale small are made here on CIFAR-100, with scales that are searched on CIFAR-10. Rates are
chosen as in the recipes: the best of three on validation images, and of the next ones while the
best lies at an end. CSLA is left out: it is RepOpt's training.
"""

import math
from dataclasses import asdict, replace

import torch
from torch import nn

import fedlearn as fl
from fedlearn.book.grids import keep
from fedlearn.data import data_path
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


def best_rate(run: recipes.Run) -> float:
    """The rate of the best trial."""
    trials = {trial.experiment.options["lr"]: trial for trial in run.trials}
    values = sorted(trials)
    accuracy: dict[float, float] = {}
    asked = set(FIRST)
    while asked:
        for lr in sorted(asked):
            history, _ = trained(trials[lr], lr)
            accuracy[lr] = history.late_accuracy() if history.evaluated else math.nan
            print(run.label, run.experiment.partition, lr, accuracy[lr], flush=True)
        best = values.index(recipes.best(accuracy))
        asked = {*values[max(best - 1, 0) : best + 2]} - accuracy.keys()
    return values[best]


def shares(net: nn.Module, task: fl.tasks.Task) -> tuple[float, float]:
    """The shares of test images whose class is the first answer, and one of five."""
    with torch.no_grad():
        pairs = [(logits.topk(5).indices, y) for logits, y in task.tested(net.eval())]
    right = torch.cat([five == y[:, None] for five, y in pairs]).double()
    return float(right[:, 0].mean()), float(right.sum(1).mean())


def main() -> None:
    rows = []
    for run in recipes.runs("fed_repopt_table1", "small", row=FORMS, seed=[0]):
        run = on_cifar100(run)
        lr = best_rate(run)
        history, task = trained(run, lr)
        first, five = shares(history.network(), task)
        row = {"row": run.label, "split": run.experiment.partition, "lr": lr}
        rows.append(row | {"top-1": first, "top-5": five})
        print(*rows[-1].values(), flush=True)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    path = data_path("fed_repopt", "top5.json")
    keep(path, columns, "python data/fed_repopt/top5.py", seed=0)


if __name__ == "__main__":
    main()

"""What single chapters show of time, lies and last bits: each part makes a file of data/results.

    python tests/benchmarks/costs.py steps    # a local step of each two-stream method, FedAvg = 1
    python tests/benchmarks/costs.py forms    # a round of FedRepOpt's four forms, Inf = 1
    python tests/benchmarks/costs.py liars    # accuracy with 0 to 4 liars of ten, 40 minutes
    python tests/benchmarks/costs.py bits     # the same run with two threads, and stacked
    python tests/benchmarks/costs.py repeats  # stored runs of another processor, 15 minutes
    ... --quick                               # the smallest case, two repeats
    ... --out FILE                            # write it

Methods and forms take turns; medians of ratios within a turn, one thread.
"""

import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import fedlearn as fl
from fedlearn.core import local
from fedlearn.lab import recipes
from fedlearn.models import state_of
from fedlearn.parts import Clipped, Context, Krum, Median, TrimmedMean

sys.path.insert(0, str(Path(__file__).parent))
from common import federation, program, random_task, ratios  # noqa: E402

# ---- a local step --------------------------------------------------------------------------------

NETWORKS = {  # label -> network, image shape, samples, batch size
    "digits CNN, 8x8": ("digits_cnn", (1, 8, 8), 320, 16),
    "McMahan CNN, 28x28": ("mcmahan_cnn", (1, 28, 28), 256, 32),
    "CIFAR CNN, 32x32 colour": ("cifar_cnn", (3, 32, 32), 256, 128),
}
METHODS = {"FedAvg": fl.methods.fedavg(), "FedMMD": fl.methods.fedmmd()}
METHODS["L2"] = fl.methods.fedmmd(distance="l2", lam=0.001)
for operator in ("single", "multi", "conv"):
    METHODS[f"FedFusion, {operator}"] = fl.methods.fedfusion(operator=operator)


def trainer(method, task, batch_size):
    """A function that trains once, from the same state -> seconds."""
    net = fl.initial_network(method, task)
    settings = fl.Settings(epochs=2, batch_size=batch_size)
    initial = {n: t.clone() for n, t in state_of(net).items()}

    def train():
        local.load(state_of(net), initial)
        began = time.perf_counter()
        local.train(
            net, method, Context(task, 1, 0, initial, initial, net=net), settings
        )
        return time.perf_counter() - began

    return train


def steps(quick):
    rows = {}
    for label, (network, shape, samples, batch) in list(NETWORKS.items())[
        : 1 if quick else None
    ]:
        task = random_task(network, shape, 1, samples)
        trainers = {n: trainer(m, task, batch) for n, m in METHODS.items()}
        rows[label] = ratios(trainers, "FedAvg", 2 if quick else 7)
    return {"rows": rows}


# ---- a round of FedRepOpt ------------------------------------------------------------------------

FORMS = "tr", "inf", "csla", "repopt"
FAMILIES = {  # label -> network, image shape, samples a client, batch size, turns
    "RepVGG, digits": ("digits_repvgg", (1, 8, 8), 320, 32, 42),
    "RepGhost, digits": ("digits_repghost", (1, 8, 8), 320, 32, 42),
    "RepGhostNet 0.5x, 64x64": ("repghost_05", (3, 64, 64), 64, 32, 14),
    "RepVGG-B1, 64x64": ("repvgg_b1", (3, 64, 64), 32, 32, 7),
}


def forms(quick):
    rows = {}
    for label, (network, shape, samples, batch, turns) in FAMILIES.items():
        task = random_task(network, shape, 2, samples)
        players = {}
        for form in FORMS:
            method = fl.methods.fed_repopt(0.01, form, None)
            *_, play = federation(method, task, batch_size=batch)
            players[form] = lambda play=play: play()["seconds"]
        rows[label] = ratios(players, "inf", 2 if quick else turns)
        if quick:
            break
    return {"rows": rows}


# ---- liars ---------------------------------------------------------------------------------------

SERVERS = {
    "Mean": fl.Mean(),
    "Clipped": Clipped(1.0),
    "TrimmedMean": TrimmedMean(0.3),
    "Median": Median(),
    "Krum": Krum(3),
    "Multi-Krum": Krum(3, keep=6),
}


FEDERATION = {"clients": 10, "partition": "dirichlet:0.5", "train": 600}
ROUNDS = 10
ATTACKS = {  # label -> lie, factor
    "flip": ("flip", 1.0),
    "flip ten times": ("flip", 10.0),
    "constant": ("constant", 1000.0),
    "inflate": ("inflate", 1000.0),
    "variance": ("variance", 30.0),
}


def liars(quick):
    """{lie: {server: a row for each number of liars}}, each with a list over seeds 0, 1, ...;
    clients 0, 1, ... are the liars."""
    counts = range(2 if quick else 5)
    seeds = range(1 if quick else 5)
    rows = {}
    with ProcessPoolExecutor(1 if quick else 2, get_context("spawn")) as pool:
        cases = [*product(SERVERS, ATTACKS, counts, seeds)]
        runs = [pool.submit(liars_run, *case, quick) for case in cases]
        for (server, lie, count, _), run in zip(cases, runs, strict=True):
            servers = rows.setdefault(lie, {}).setdefault(server, {})
            row = servers.setdefault(count, {"liars": count})
            for column, value in run.result().items():
                row.setdefault(column, []).append(value)
    for servers in rows.values():
        for server, columns in servers.items():
            servers[server] = [*columns.values()]
    settings = FEDERATION | {
        "rounds": ROUNDS,
        "epochs": 2,
        "servers": {name: repr(server) for name, server in SERVERS.items()},
        "factors": {lie: factor for lie, (_, factor) in ATTACKS.items()},
    }
    return {"rows": rows, "settings": settings}


def liars_run(server, lie, count, seed, quick):
    """One run -> its accuracy, rounds that were not taken, and answers of liars and of
    honest clients that were refused."""
    from fedlearn.book.liars import lying

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # what they say is in the row
    task = fl.tasks.classification("digits", **FEDERATION, seed=seed)
    method = lying(
        fl.methods.fedavg().but(server=SERVERS[server]), range(count), *ATTACKS[lie]
    )
    options = {"epochs": 2, "evaluate_every": ROUNDS, "engine": "stacked", "threads": 1}
    history = fl.run(method, task, 2 if quick else ROUNDS, progress=False, **options)
    return {
        "accuracy": history.final["accuracy"],
        "untaken": sum(row["untaken"] is not None for row in history.rows),
        "refused": sum(k < count for row in history.rows for k in row["refused"]),
        "honest_refused": sum(
            k >= count for row in history.rows for k in row["refused"]
        ),
    }


# ---- last bits -----------------------------------------------------------------------------------

WAYS = {"two threads": {"threads": 2}, "stacked": {"engine": "stacked"}}
REPEATS = 22


def bits(quick):
    """The largest difference of a number of the state after three rounds, from that with one thread
    and one client at a time."""
    rows = []
    networks = ("digits_cnn", "digits_repvgg")
    names = ("fedavg", "rpn", "dgc", "stc")
    cases = [*product(networks, names, range(3))]
    for network, name, seed in cases[: 1 if quick else None]:
        case = {"network": network, "method": name, "seed": seed}
        e = fl.Experiment(
            **case, train=600, rounds=3, clients=10, partition="dirichlet:0.5"
        )
        options = {"threads": 1, "engine": "sequential", "progress": False}
        run = partial(fl.run, e.make_method(), e.make_task(), e.rounds)
        plain = run(**options).state
        for way, changed in WAYS.items():
            other = run(**options | changed).state
            gap = max(float((other[n] - w).abs().max()) for n, w in plain.items())
            rows.append(case | {"way": way, "gap": gap})
    return {"rows": rows}


def repeats(quick):
    """Stored runs on digits of other processors, made here: their late accuracies, and by how much
    a single test differs."""
    here = recipes.hardware("cpu")
    digits = [
        run
        for run in recipes.runs()
        if run.experiment.task == "classification" and not run.searches
    ]
    lines = recipes.stored(digits)
    foreign = {}
    for run in digits:
        line = lines.get(run.key)
        if line and line["meta"]["provenance"]["hardware"] != here:
            foreign[run.key] = run, line
    ordered = [foreign[key] for key in sorted(foreign)]
    rows = []
    for run, line in ordered[:: len(ordered) // REPEATS][: 1 if quick else REPEATS]:
        with TemporaryDirectory() as folder:
            trained = recipes.train(run, Path(folder) / "a.checkpoint", False)
        new = fl.History.from_dict(trained)
        old = fl.History.from_dict(line)
        pairs = zip(old.evaluated, new.evaluated, strict=True)
        e = run.experiment
        rows.append(
            {
                "run": f"{run.label} {e.dataset} {e.partition} {e.seed}",
                "file": run.folder,
                "hardware": line["meta"]["provenance"]["hardware"],
                "stored": old.late_accuracy(),
                "here": new.late_accuracy(),
                "single": max(abs(a["accuracy"] - b["accuracy"]) for a, b in pairs),
            }
        )
    return {"rows": rows}


PARTS = {part.__name__: part for part in (steps, forms, liars, bits, repeats)}

if __name__ == "__main__":
    program(PARTS, __doc__)

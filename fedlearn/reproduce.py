"""The papers' comparisons as recipes: which methods, on which task, how long. ``fedlearn reproduce`` runs them."""

import json
from pathlib import Path

from . import methods, round, tasks
from .data.sources import data_path
from .errors import pick
from .files import write_text
from .history import History
from .parts import SGD, Adam

CIFAR = {"dataset": "cifar10", "network": "resnet18"}
DIGITS = {"dataset": "digits", "network": "digits_resnet"}


def _fed_kgf(base_kernels, lr, kgf_lr, pm_lr):
    """The eight rows of Table 1 of the Fed-KGF paper, its text's other compressors behind them."""
    kgf = dict(lr=kgf_lr, base_kernels=base_kernels)
    return {
        "Fed-KGF": methods.fed_kgf(**kgf),
        "Fed-KGF without MU": methods.fed_kgf(**kgf, groups=1),
        "FedCAMS": methods.fedcams(lr, server_lr=0.3),
        "SmartIdx": methods.smartidx(lr),
        "DGC": methods.dgc(lr),
        "FedPM": methods.fedpm(pm_lr),
        "FedCOM": methods.fedcomgate(lr),
        "FedAvg": methods.fedavg(lr),
    }


def _others(lr):
    return {
        "QSGD": methods.qsgd(lr),
        "signSGD": methods.signsgd(lr, server_lr=0.003),
        "STC": methods.stc(lr),
        "RPN": methods.rpn(lr),
    }


def _two_streams(lr, l2, **options):
    """The FedMMD and FedFusion paper's methods; its Figure 4 and Table 1."""
    return {
        "FedAvg": methods.fedavg(lr).but(optimizer=SGD(lr, **options)),
        "L2": methods.fedmmd(lr, l2, "l2", **options),
        "FedMMD": methods.fedmmd(lr, 0.1, **options),
        "FedFusion+Single": methods.fedfusion(lr, "single", **options),
        "FedFusion+Multi": methods.fedfusion(lr, "multi", **options),
        "FedFusion+Conv": methods.fedfusion(lr, "conv", **options),
    }


def _distilled(*labels, **options):
    """FedGKT with both distillations, one, or none: Table 2 of its paper."""
    without = {
        "FedGKT": [],
        "only S->E": ["kd_to_server"],
        "only E->S": ["kd_to_client"],
        "none": ["kd_to_server", "kd_to_client"],
    }
    return {
        label: methods.fed_gkt(**options, **dict.fromkeys(without[label], False))
        for label in labels or without
    }


def _forms(network, lr, note="", **options):
    """The four networks of the FedRepOpt paper's tables; its Table 2 with ``momentum``."""
    labels = {"tr": "Tr", "inf": "Inf", "csla": "CSLA", "repopt": "RepOpt"}
    family = "RepVGG" if "vgg" in network else "RepGhost"
    return {
        f"{family} {label}{note}": methods.fed_repopt(lr, form, network, **options)
        for form, label in labels.items()
    }


def _each(partitions, data, how, rows):
    """The same comparison on several partitions."""
    return [(data | {"partition": partition}, how, rows) for partition in partitions]


MNIST = {"dataset": "mnist", "network": "mcmahan_cnn"}
CIFAR_CNN = {"dataset": "cifar10", "network": "cifar_cnn"}
PAIR, MANY = {"clients": 2, "partition": "classes"}, {"clients": 100, "partition": "shards:2"}
QUICK = {"rounds": 20, "batch_size": 16, "engine": "stacked"}

GKT = {"dataset": "cifar10", "network": "resnet56", "clients": 16, "augment": ("crop", "flip")}
PAIR_56 = {"edge": "resnet8", "server": "resnet55", "memory_limit": 8e9}
PAPER = {"rounds": 200, "batch_size": 256, "evaluate_every": 5}

# paper -> scale -> name of the results, seeds, and the settings: task, keywords of a run, rows
RECIPES = {
    "fed_kgf": {
        "quick": (
            "fed_kgf_digits",
            (0, 1, 2),
            _each(
                ("iid", "main_class:0.8"),
                DIGITS,
                QUICK,
                {**_fed_kgf(4, 0.1, 0.3, 0.3), **_others(0.1)},
            ),
        ),
        # batch size and learning rate are ours: the paper names neither
        "full": (
            "fed_kgf_full",
            (0,),
            _each(
                ("iid", "main_class:0.8"),
                CIFAR,
                {"rounds": 400, "batch_size": 64, "evaluate_every": 5},
                _fed_kgf(16, 0.1, 0.1, 0.1),
            ),
        ),
    },
    "fed_mmd_fusion": {
        "quick": (
            "fed_mmd_fusion_digits",
            (0, 1, 2),
            [
                (
                    {"clients": 2, "partition": "classes"},
                    QUICK | {"epochs": 2},
                    _two_streams(0.1, 0.01),
                ),
                (
                    {"clients": 20, "partition": "shards:2"},
                    QUICK | {"epochs": 2, "participation": 0.25},
                    _two_streams(0.1, 0.01),
                ),
                (
                    {"clients": 10, "partition": "permuted"},
                    QUICK | {"epochs": 2, "rounds": 40},
                    _two_streams(0.1, 0.01),
                ),
                (
                    {"clients": 10, "partition": "iid"},
                    QUICK | {"epochs": 2},
                    _two_streams(0.1, 0.01),
                ),
            ],
        ),
        # learning rates and decays: sections 4.2 and 4.3; what section 4 leaves open is ours: 10 permuted clients, E = 2, rounds
        "full": (
            "fed_mmd_fusion_full",
            (0,),
            [
                (
                    MNIST | PAIR,
                    {"rounds": 100, "batch_size": 128, "epochs": 2},
                    _two_streams(0.003, 0.001, decay=0.985),
                ),
                (
                    MNIST | MANY,
                    {"rounds": 300, "batch_size": 10, "epochs": 2, "participation": 0.1},
                    _two_streams(0.003, 0.001, decay=0.985),
                ),
                (
                    MNIST | {"partition": "permuted"},
                    {"rounds": 300, "batch_size": 64, "epochs": 2},
                    _two_streams(0.002, 0.001, decay=0.99),
                ),
                (
                    CIFAR_CNN | PAIR,
                    {"rounds": 400, "batch_size": 128, "epochs": 2},
                    _two_streams(0.002, 0.01),
                ),
                (
                    CIFAR_CNN | {"clients": 2, "partition": "iid"},
                    {"rounds": 400, "batch_size": 128, "epochs": 2},
                    _two_streams(0.002, 0.01),
                ),
            ],
        ),
    },
    "fed_gkt": {
        "quick": (
            "fed_gkt_digits",
            (0, 1, 2),
            [
                *_each(
                    ("iid", "dirichlet:0.5"),
                    DIGITS,
                    QUICK,
                    {**_distilled(), "FedAvg": methods.fedavg(0.1)},
                ),
                *_each(
                    ("iid", "dirichlet:0.5"),
                    DIGITS,
                    QUICK | {"participation": 0.5},
                    {"FedGKT, asynchronous": methods.fed_gkt(asynchronous=True)},
                ),
                (
                    DIGITS | {"clients": 1, "partition": "iid"},
                    QUICK,
                    {"centralised, large": methods.fedavg(0.1)},
                ),
                (
                    DIGITS | {"clients": 1, "partition": "iid", "network": "digits_edge"},
                    QUICK,
                    {"centralised, small": methods.fedavg(0.1)},
                ),
            ],
        ),
        # Table 10 (batch, epochs, optimisers); the repaired Table 6; all feature maps of CIFAR-10 fit on a large GPU
        "full": (
            "fed_gkt_full",
            (0,),
            [
                (
                    GKT | {"partition": "iid"},
                    PAPER,
                    _distilled("FedGKT", "only S->E", **PAIR_56, server_epochs=20),
                ),
                (
                    GKT | {"partition": "table:fedgkt_table6"},
                    PAPER,
                    _distilled(
                        "FedGKT",
                        "only S->E",
                        **PAIR_56,
                        server_epochs=40,
                        lr=0.005,
                        optimizer="sgd",
                    ),
                ),
                *_each(
                    ("iid", "table:fedgkt_table6"),
                    GKT,
                    PAPER | {"epochs": 20, "batch_size": 64},
                    {"FedAvg": methods.fedavg().but(optimizer=Adam(0.001, weight_decay=1e-4))},
                ),
            ],
        ),
    },
    "fed_repopt": {
        "quick": (
            "fed_repopt_digits",
            (0, 1, 2),
            _each(
                ("iid", "dirichlet:0.1"),
                {},
                QUICK,
                {
                    **_forms("digits_repvgg", 0.1),
                    **_forms("digits_repghost", 0.1),
                    **_forms("digits_repvgg", 0.1, ", momentum 0.9", momentum=0.9),
                },
            ),
        ),
        # the authors' program: rate, batch, decay; Tiny ImageNet is not among our data sets: CIFAR-100, whose images are smaller
        "full": (
            "fed_repopt_full",
            (0,),
            _each(
                ("dirichlet:0.1", "iid"),
                {"dataset": "cifar100", "network": "repvgg_b1", "augment": ("crop", "flip")},
                {"rounds": 240, "batch_size": 32, "evaluate_every": 5},
                {
                    **_forms("repvgg_b1", 0.01, weight_decay=4e-5),
                    **_forms("repghost_05", 0.01, weight_decay=4e-5),
                },
            ),
        ),
    },
    "rpn": {
        "quick": (
            "rpn_digits",
            (0, 1, 2),
            _each(
                ("dirichlet:0.5",), {}, QUICK, {"FedAvg": methods.fedavg(), "RPN": methods.rpn()}
            ),
        ),
        "full": (
            "rpn_mnist",
            (0,),
            _each(
                ("table:rpn_table4",),
                {"dataset": "mnist", "network": "rpn_cnn"},
                {"rounds": 10, "batch_size": 64},
                {"FedAvg": methods.fedavg(), "RPN": methods.rpn()},
            ),
        ),
    },
}


def jobs(
    paper,
    scale="quick",
    only=(),
    seeds=None,
    rounds=None,
    train=None,
    test=None,
    split=None,
    device="cpu",
):
    """The runs of a recipe, one after the other: (label, method, task, keywords of ``round.run``)."""
    scales = pick(paper, RECIPES, "paper with a recipe")
    _, its_seeds, settings = pick(scale, scales, "scale")
    for label in only:
        pick(label, {label: 1 for *_, rows in settings for label in rows}, "row")
    for partition in split or ():
        pick(partition, {data["partition"]: 1 for data, *_ in settings}, "partition of this recipe")
    for data, how, rows in settings:
        how = how | ({} if rounds is None else {"rounds": rounds})
        if str(device).startswith("cuda"):
            how = {"engine": "auto", "precision": "bf16"} | how
        for seed in its_seeds if seeds is None else seeds:
            if split and data["partition"] not in split:
                continue
            task = tasks.classification(**data, seed=seed, train=train, test=test, device=device)
            for label, method in rows.items():
                if not only or label in only:
                    yield label, method, task, how


def _where(history):
    meta = history.meta
    settings = [
        meta["settings"][name] for name in ("batch_size", "epochs", "participation", "precision")
    ]
    return [meta.get("label"), len(history), meta["parts"], meta["task"], *settings]


def _text(history):
    """JSON with one line a round."""
    data = history.to_dict()
    rows, data["rows"] = ",\n".join(map(json.dumps, data["rows"])), []
    return json.dumps(data, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n]')


def reproduce(
    paper, scale="quick", out=None, provenance=None, report=print, progress=None, **choice
):
    """Run what ``jobs`` lists and is not yet in the file ``out``, which is written after each run. A run that was
    stopped goes on from its last round. Returns the path."""
    name = pick(scale, pick(paper, RECIPES, "paper with a recipe"), "scale")[0]
    if out is None and (
        smaller := [o for o in ("rounds", "train", "test", "split") if choice.get(o) is not None]
    ):
        raise ValueError(
            f"With {', '.join(smaller)} of your own, name a file of your own, too (--out FILE)."
        )
    path = Path(out or data_path("results", f"{name}.json"))
    done = (
        [History.from_dict(d) for d in json.loads(path.read_text(encoding="utf-8"))]
        if path.exists()
        else []
    )
    for label, method, task, how in jobs(paper, scale, **choice):
        settings = [
            how["batch_size"],
            how.get("epochs", 1),
            how.get("participation", 1.0),
            how.get("precision", "float32"),
        ]
        where = [label, how["rounds"], method.parts(), task.describe(), *settings]
        if json.loads(json.dumps(where)) in map(_where, done):
            report(f"{label}, {task.partition}, seed {task.seed}: there already")
            continue
        slug = "".join(
            c if c.isalnum() else "-" for c in f"{label} {task.partition} {task.seed}".lower()
        )
        checkpoint = path.with_suffix(f".{slug}.checkpoint")
        history = round.run(method, task, **how, checkpoint=checkpoint, progress=progress)
        history.meta |= {"label": label, "provenance": provenance or {}}
        done.append(history)
        text = "[\n" + ",\n".join(map(_text, done)) + "\n]\n"
        write_text(path, text)
        checkpoint.unlink(missing_ok=True)
        final = history.final["accuracy"]
        report(
            f"{label}, {task.partition}, seed {task.seed}: accuracy {final:.4f} after {len(history)} rounds"
        )
    return path

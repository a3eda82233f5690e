"""The papers' tables and figures as lists of runs (``data/recipes.yaml``): which methods, on which
task, how long, at one of three scales. ``fedlearn.reproduce`` runs them."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from typing import Any

from . import methods, parts
from .arguments import checked, short
from .core import Method
from .data.sources import SETS, Known, data_path
from .errors import pick
from .experiment import Experiment
from .files import read_yaml
from .results import Line, hash_of, place_of
from .seeing.published import MASKS
from .seeing.published import SETS as PICTURES
from .seeing.scenes import SIDE
from .settings import held_out, kept
from .tasks.base import find_device
from .tasks.kinds import NETWORK

ALL = read_yaml(data_path("recipes.yaml"))
WITHOUT: dict[str, dict[str, str]] = ALL["_without"]  # of a paper, what has no recipe: why
RECIPES = {name: recipe for name, recipe in ALL.items() if not name.startswith("_")}
PAPERS = {recipe["paper"]: None for recipe in RECIPES.values()}
SCALES = ("quick", "small", "full")
# Where a run is computed, and in what arithmetic, is no part of what it is.
MACHINE = ("device", "threads", "precision")
FIELDS = {f.name for f in fields(Experiment)} - {"partition"}
SEARCHED = {"dataset", "train", "seed"}  # the data of a search
APART = 1000  # added to a recipe's first seed: the seed of the tries, which competes with none
MORE = 3  # values, at most, that are tried beyond each end of those that are listed


def whole_set(task: str, dataset: str) -> Known:
    """The size of the data set that a task means by a name, before it is there."""
    name, _, size = dataset.partition(":")
    if task == "classification":
        return SETS[dataset]
    masks = task == "segmentation"  # with the background
    if name == "digits":
        return Known(10 + masks, (1, SIDE, SIDE), 2000, 300)
    whole = PICTURES[name]
    counts = MASKS if masks else (whole.train, whole.test)
    return Known(whole.classes + masks, (3, int(size or 160), int(size or 160)), *counts)


@dataclass(frozen=True)
class Run:
    """One run, a line in the file ``folder`` of stored runs. ``but`` replaces parts of the method.
    ``tries``: short runs on validation images with values of the option ``tuned``, the best of
    which is taken. ``turn`` orders runs by worth. ``newcomers``: epochs of later clients.
    ``command``: the words that make it again. ``search`` finds FedRepOpt's scales, ``spec`` are the
    data and settings of one that is a search itself."""

    folder: str
    label: str
    experiment: Experiment
    engine: str = "sequential"
    but: dict[str, Any] = field(default_factory=dict)
    search: "Run | None" = None
    spec: dict[str, Any] = field(default_factory=dict)
    tuned: str = ""
    tries: tuple["Run", ...] = ()
    turn: tuple[int, ...] = ()
    newcomers: int = 0
    short: bool = False  # a try of others
    command: tuple[str, ...] = ()

    @property
    def stated(self) -> Line:
        """What its packed line states: all that is not as by default, but for the machine."""
        e, tune = self.experiment, {}
        if self.spec:
            return {"method": "search", "network": e.network} | self.spec
        if self.tries:
            first, row = self.tries[0].experiment, self.tries[0].row
            tune = {n: getattr(first, n) for n in ("rounds", "seed", "validation")}
            tune[self.tuned] = self.values
            tune |= {} if row == self.label else {"as": row}
        more = {"label": self.label, "but": self.but, "newcomers": self.newcomers, "tune": tune}
        more |= {"scales": self.search.stated if self.search else {}, "short": self.short}
        plain, default = asdict(e), asdict(Experiment())
        plain = {n: v for n, v in plain.items() if n not in MACHINE and v != default[n]}
        return plain | {name: value for name, value in more.items() if value}

    @cached_property
    def key(self) -> tuple[str, str]:
        """The file of stored runs and the hash by which the run is known there."""
        return self.folder, hash_of(self.stated)

    @cached_property
    def place(self) -> tuple[str, str]:
        """As ``key``, but the same for the run whose option was chosen in another way."""
        return self.folder, place_of(self.stated)

    @property
    def row(self) -> str:
        """The label of the row that it is a run or a try of."""
        return self.label.rpartition(", ")[0] if self.short else self.label

    @property
    def values(self) -> list[Any]:
        """Those of the option that are tried in any case."""
        return [t.experiment.options[self.tuned] for t in self.tries]

    def trial(self, value: Any) -> "Run":
        """The try of another value."""
        one, e = self.tries[0], self.tries[0].experiment
        e = replace(e, options=e.options | {self.tuned: value})
        return replace(one, label=f"{one.row}, {self.tuned} {value}", experiment=e)

    @property
    def name(self) -> str:
        """Label, task, data set, partition and seed."""
        e = self.experiment
        task = "" if e.task == "classification" else e.task
        return " ".join(f"{self.label} {task} {e.dataset} {e.partition} {e.seed}".split())

    @property
    def images(self) -> tuple[int, int]:
        """How many are trained on, and tested on."""
        e, whole = self.experiment, whole_set(self.experiment.task, self.experiment.dataset)
        return e.train or whole.train, e.test or whole.test

    @property
    def datasets(self) -> list[tuple[str, str, int, int]]:
        """Task and data set, and how many images it trains and is tested on; its search's, too."""
        e = self.experiment
        return [(e.task, e.dataset, *self.images), *(self.search.datasets if self.search else [])]

    def method(self, **more: Any) -> Method:
        """The method with its options, of which ``more`` replaces any."""
        e = self.experiment
        method = replace(e, options=e.options | more).make_method()
        return method.but(**{part: named(value) for part, value in self.but.items()})

    def options(self, **more: Any) -> dict[str, Any]:
        """The method's name and all its options, as the history has them; infinity is a text."""
        e = self.experiment
        known = inspect.signature(methods.METHODS[e.method]).parameters
        options = {name: p.default for name, p in known.items()} | e.options | {"method": e.method}
        scales = self.search.spec if self.search else {}
        options |= {n: v for n, v in {"but": self.but, "scales": scales}.items() if v}
        return {n: "inf" if v == float("inf") else v for n, v in (options | more).items()}


def best(accuracies: Mapping[Any, float]) -> Any:
    """The value with the highest accuracy, of equal ones the smallest."""
    known = {value: a for value, a in accuracies.items() if not math.isnan(a)}
    if not known:
        raise ValueError(f"None of {short([*accuracies])}, which were tried, gave an accuracy.")
    return max(sorted(known), key=lambda value: known[value])


def wider(option: str, listed: list[Any], accuracies: Mapping[Any, float]) -> Any:
    """The value to be tried next, beyond the end at which the best of all lies; None if it lies
    between others, or ``MORE`` were tried there. Rates go up and down in steps of 1, 3, 10, other
    numbers by the ratio of the last two.

    >>> wider("lr", [0.03, 0.1, 0.3], {0.03: 0.2, 0.1: 0.3, 0.3: 0.4})
    1.0
    """
    tried = sorted(accuracies)
    if len(tried) < 2 or all(map(math.isnan, accuracies.values())):
        return None
    for up, (end, inner) in enumerate((tried[:2], tried[:-3:-1])):
        beyond = sum(v > max(listed) if up else v < min(listed) for v in tried)
        if best(accuracies) == end and beyond < MORE:
            if option.endswith("lr"):
                step = round(2 * math.log10(end)) + (1 if up else -1)
                return float(f"{(1, 3)[step % 2]}e{step // 2}")
            return float(f"{end * end / inner:.6g}")
    return None


def named(value: Any) -> Any:
    """The part that a row names, {"Adam": {"lr": 0.01}}; another value as it is."""
    if not isinstance(value, dict):
        return value
    [(name, options)] = value.items()
    return getattr(parts, name)(**{option: named(v) for option, v in options.items()})


def chosen(recipe: str | None, scale: str) -> dict[str, Line]:
    """The recipe of that name, those of that paper, or all, that have runs at a scale."""
    pick(scale, dict.fromkeys(SCALES), "scale")
    if recipe is not None:
        pick(recipe, PAPERS | dict.fromkeys(RECIPES), "paper or recipe")
    recipes = {n: r for n, r in RECIPES.items() if recipe in (None, n, r["paper"])}
    if why := recipes.get(recipe or "", {}).get("without", {}).get(scale):
        raise ValueError(f"{recipe} has no runs of scale {scale}: {why}.")
    return {name: r for name, r in recipes.items() if scale in r}


def results_folder(name: str, scale: str) -> str:
    """The folder in data/results of the runs of a paper at a scale: "rpn_digits", "rpn_full"."""
    return f"{name}_{'digits' if scale == 'quick' else scale}"


@checked
def runs(
    recipe: str | None = None,
    scale: str = "quick",
    only: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    rounds: int | None = None,
    train: int | None = None,
    test: int | None = None,
    split: tuple[str, ...] = (),
    device: str = "cpu",
) -> list[Run]:
    """The runs of a recipe, of a paper's recipes, or of all, each once, the most valuable first.
    ``only`` are labels of rows and ``split`` partitions; numbers replace those of the recipe."""
    if not device.startswith("cuda"):
        device = str(find_device(device))
    # the lower scales are the same runs on a GPU
    precision = "bf16" if device.startswith("cuda") and scale == "full" else "float32"
    numbers = {"rounds": rounds, "train": train, "test": test}
    replaced: Line = {n: v for n, v in numbers.items() if v is not None}
    typed = tuple(word for n, v in replaced.items() for word in (f"--{n}", str(v)))
    replaced |= {"device": device, "precision": precision}
    by_key, rows, partitions = dict[tuple[str, str], Run](), Line(), Line()
    for number, (name, paper) in enumerate(chosen(recipe, scale).items()):
        folder = results_folder(paper.get("folder") or paper["paper"], scale)
        command = ("fedlearn", "reproduce", name, "--scale", scale, *typed)
        listed = paper[scale]["seeds"]
        for block in paper[scale]["runs"]:
            rows |= labelled(block)
            partitions |= dict.fromkeys(block["partition"])
            for partition, seed, label in product(
                [p for p in block["partition"] if not split or p in split],
                seeds or block.get("seeds", listed),
                [label for label in labelled(block) if not only or label in only],
            ):
                rank = listed.index(seed) if seed in listed else len(listed)
                turn = rank, block.get("turn", 0), number
                stated = {"partition": partition, "seed": seed} | replaced
                place = {"folder": folder, "turn": turn, "command": command}
                run = run_of(block, label, stated, APART + listed[0], place)
                by_key.setdefault(run.key, run)
    for label in only:
        pick(label, rows, "row")
    for partition in split:
        pick(partition, partitions, "partition of this recipe")
    if not by_key and (only or split):
        raise ValueError(f"No run is of both {', '.join(only)} and {', '.join(split)}.")
    return sorted(by_key.values(), key=lambda run: run.turn)


def run_of(block: Line, label: str, stated: Line, apart: int, place: Line) -> Run:
    """The run of a block's row; ``apart`` is the seed of its tries."""
    row = pick(label, labelled(block), "row")
    options = {n: v for n, v in row.items() if n not in ("method", "but", "scales", "tune")}
    known = inspect.signature(methods.METHODS[row["method"]]).parameters
    options = {n: v for n, v in block.get("all", {}).items() if n in known} | options
    states = {"dataset": "digits"} | {n: v for n, v in block.items() if n in FIELDS} | stated
    if states.get("task", "classification") == "classification":
        states.setdefault("network", NETWORK.get(states["dataset"], "cifar_cnn"))
    e, search = Experiment(method=row["method"], options=options, **states), None
    again = "--only", label, "--partition", e.partition, "--seed", str(e.seed)
    whole = whole_set(e.task, e.dataset)
    kept(e.dataset, whole.train, "train", e.train)
    kept(e.dataset, whole.test, "test", e.test)
    if spec := row.get("scales"):
        data: Line = {n: spec[n] for n in SEARCHED & spec.keys()}
        data |= {"network": options["network"], "device": e.device, "clients": 1}
        search = Run(place["folder"], f"search {options['network']}", Experiment(**data), spec=spec)
    run = Run(
        label=label,
        experiment=e,
        engine=block.get("engine", "auto" if e.device.startswith("cuda") else "sequential"),
        but=row.get("but", {}),
        search=search,
        newcomers=block.get("newcomers", 0),
        **place | {"command": (*place["command"], *again)},
    )
    tune = block.get("tune")
    if not tune:
        return run
    [(option, values)] = row.get("tune", tune["options"]).items()
    if unknown := {*tune} - {"rounds", "options"}:
        raise ValueError(f"A tune has rounds and options, not {', '.join(sorted(unknown))}.")
    if option == "as":  # the choice of another row
        other = run_of(block, values + block.get("suffix", ""), stated, apart, place)
        return replace(run, tuned=other.tuned, tries=other.tries)
    pick(option, known, f"option of {row['method']}")
    if not isinstance(values, list) or not values:
        raise ValueError(f"The best {option} is chosen among a list of values, not {values!r}.")
    held_out(e.dataset, run.images[0])
    rounds = min(e.rounds, max(tune.get("rounds", 1), math.ceil(e.rounds / 4)))
    e = replace(e, seed=apart, rounds=rounds, test=None, validation=True)
    one = replace(run, short=True, tuned=option, experiment=e, label=f"{label}, ")
    run = replace(run, tuned=option, tries=(one,))
    return replace(run, tries=tuple(map(run.trial, values)))


def labelled(block: Line) -> Line:
    """The rows of a block, their labels with its suffix."""
    return {label + block.get("suffix", ""): row for label, row in block["rows"].items()}

"""The papers' tables and figures as lists of runs (``data/recipes.yaml``): which methods, on which
task, how long, at one of three scales. ``fedlearn.reproduce`` runs them."""

import inspect
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import Any

from . import methods
from .arguments import checked
from .data.published import known as whole_set
from .data.sources import data_path
from .errors import pick
from .experiment import Experiment
from .files import read_yaml
from .method import Method
from .parts import SGD, Adam, Continued, TaskNetwork
from .results import Line, hash_of
from .settings import kept
from .tasks.base import find_device
from .tasks.kinds import NETWORK

PARTS = {part.__name__: part for part in (SGD, Adam, Continued, TaskNetwork)}  # rows name them
ALL = read_yaml(data_path("recipes.yaml"))
WITHOUT: dict[str, dict[str, str]] = ALL["_without"]  # of a paper, what has no recipe: why
RECIPES = {name: recipe for name, recipe in ALL.items() if not name.startswith("_")}
PAPERS = {recipe["paper"]: None for recipe in RECIPES.values()}
SCALES = ("quick", "small", "full")
# Where a run is computed, and in what arithmetic, is no part of what it is.
MACHINE = ("device", "threads", "precision")
FIELDS = {f.name for f in fields(Experiment)} - {"partition"}


@dataclass(frozen=True)
class Search:
    """The server's own search for FedRepOpt's scales, ``spec`` its data and settings."""

    folder: str
    network: str
    spec: dict[str, Any]
    device: str

    @property
    def stated(self) -> dict[str, Any]:
        """What its line in the packed file states of it."""
        return {"method": "search", "network": self.network} | self.spec

    @cached_property
    def key(self) -> tuple[str, str]:
        """The file of stored runs and the hash by which the search is known there."""
        return self.folder, hash_of(self.stated)

    @property
    def name(self) -> str:
        return f"search {self.network}"

    @property
    def datasets(self) -> list[tuple[str, str, int, int]]:
        """Task and data set, and how many images it trains and is tested on."""
        name = self.spec["dataset"]
        whole = whole_set("classification", name)
        return [("classification", name, self.spec.get("train") or whole.train, whole.test)]


@dataclass(frozen=True)
class Run:
    """One run, which has one line in the file ``folder`` of stored runs.

    ``but`` replaces parts of the method; ``search`` is the server's own search for FedRepOpt's
    scales. ``tries`` are short runs with several values of the option ``tuned``; the best of them
    is taken. ``turn`` orders runs by how much they are worth. ``newcomers``: for so many epochs
    clients that arrive afterwards train (``fedlearn.newcomers``).
    """

    folder: str
    label: str
    experiment: Experiment
    engine: str
    but: dict[str, Any]
    search: Search | None = None
    tuned: str = ""
    tries: tuple["Run", ...] = ()
    turn: tuple[int, ...] = ()
    newcomers: int = 0
    short: bool = False  # a try of others

    @property
    def stated(self) -> dict[str, Any]:
        """What its line in the packed file states, which is all that is not as by default, but for
        the machine that it is computed on."""
        e, tune = self.experiment, {}
        if self.tries:
            first = self.tries[0].experiment
            tune = {n: getattr(first, n) for n in ("rounds", "train", "seed")}
            tune[self.tuned] = [t.experiment.options[self.tuned] for t in self.tries]
        more = {"label": self.label, "but": self.but, "newcomers": self.newcomers, "tune": tune}
        more |= {"scales": self.search.stated if self.search else {}, "short": self.short}
        plain, default = asdict(e), asdict(Experiment())
        plain = {n: v for n, v in plain.items() if n not in MACHINE and v != default[n]}
        return plain | {name: value for name, value in more.items() if value}

    @cached_property
    def key(self) -> tuple[str, str]:
        """The file of stored runs and the hash by which the run is known there."""
        return self.folder, hash_of(self.stated)

    @property
    def name(self) -> str:
        """Label, task, data set, partition and seed."""
        e = self.experiment
        task = "" if e.task == "classification" else e.task
        return " ".join(f"{self.label} {task} {e.dataset} {e.partition} {e.seed}".split())

    @property
    def needs(self) -> tuple["Run | Search", ...]:
        """What has to be done before it."""
        return (*self.tries, *([self.search] if self.search else ()))

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
        """The method's name and all its options, defaults too, as the history has them: JSON knows
        no infinity, so that is a text."""
        e = self.experiment
        known = inspect.signature(methods.METHODS[e.method]).parameters
        options = {name: p.default for name, p in known.items()} | e.options | {"method": e.method}
        scales = self.search.spec if self.search else {}
        options |= {n: v for n, v in {"but": self.but, "scales": scales}.items() if v}
        return {n: "inf" if v == float("inf") else v for n, v in (options | more).items()}


def named(value: Any) -> Any:
    """The part that a row names, {"Continued": {"of": {"Adam": {"lr": 0.01}}}}; another value as it
    is."""
    if not isinstance(value, dict):
        return value
    [(name, options)] = value.items()
    return PARTS[name](**{option: named(v) for option, v in options.items()})


def chosen(recipe: str | None, scale: str) -> dict[str, Line]:
    """The recipe of that name, or those of the paper of that name, or all, that have runs at a
    scale."""
    pick(scale, dict.fromkeys(SCALES), "scale")
    if recipe is not None:
        pick(recipe, PAPERS | dict.fromkeys(RECIPES), "paper or recipe")
    recipes = {n: r for n, r in RECIPES.items() if recipe in (None, n, r["paper"])}
    if why := recipes.get(recipe or "", {}).get("without", {}).get(scale):
        raise ValueError(f"{recipe} has no runs of scale {scale}: {why}.")
    pick(scale, {s: 1 for s in SCALES for r in recipes.values() if s in r}, f"scale of {recipe}")
    return {name: r for name, r in recipes.items() if scale in r}


def results_folder(name: str, scale: str) -> str:
    """The folder in data/results of the runs of a paper at a scale: "rpn_digits", "rpn_small"."""
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
    """The runs of a recipe, of all recipes of a paper, or of all, most valuable first: the first
    seed of all comes before the second of any. What two recipes share is there once.

    ``only`` are labels of rows and ``split`` partitions; numbers replace those of the recipe.
    ``ValueError`` for a choice that no run has, or that none can be made with. What a GPU would do
    can be asked where there is none."""
    if not device.startswith("cuda"):
        device = str(find_device(device))
    # the lower scales are the same runs on a GPU
    precision = "bf16" if device.startswith("cuda") and scale == "full" else "float32"
    numbers = {"rounds": rounds, "train": train, "test": test}
    replaced = {n: v for n, v in numbers.items() if v is not None}
    machine = {"device": device, "precision": precision}
    blocks = [
        (number, paper, block, labelled(block))
        for number, paper in enumerate(chosen(recipe, scale).values())
        for block in paper[scale]["runs"]
    ]
    for label in only:
        pick(label, dict.fromkeys(label for *_, rows in blocks for label in rows), "row")
    for partition in split:
        allowed = dict.fromkeys(p for *_, block, _ in blocks for p in block["partition"])
        pick(partition, allowed, "partition of this recipe")
    by_key: dict[tuple[str, str], Run] = {}
    for number, paper, block, rows in blocks:
        folder = results_folder(paper.get("folder") or paper["paper"], scale)
        listed = paper[scale]["seeds"]
        for partition, seed, label in product(
            [p for p in block["partition"] if not split or p in split],
            seeds or block.get("seeds", listed),
            [label for label in rows if not only or label in only],
        ):
            rank = listed.index(seed) if seed in listed else len(listed)
            place: Line = {"folder": folder, "turn": (rank, block.get("turn", 0), number)}
            stated = {"partition": partition, "seed": seed} | machine | replaced
            run = run_of(block, label, rows[label], stated, listed[0], place)
            by_key.setdefault(run.key, run)
    if not by_key:
        raise ValueError(f"No run is of both {', '.join(only)} and {', '.join(split)}.")
    return sorted(by_key.values(), key=lambda run: run.turn)


def run_of(block: Line, label: str, row: Line, stated: Line, first: int, place: Line) -> Run:
    """The run of a block's row; ``first`` is the seed of its tries."""
    options = {n: v for n, v in row.items() if n not in ("method", "but", "scales", "tune")}
    known = inspect.signature(methods.METHODS[row["method"]]).parameters
    options = {n: v for n, v in block.get("all", {}).items() if n in known} | options
    states = {"dataset": "digits"} | {n: v for n, v in block.items() if n in FIELDS} | stated
    if states.get("task", "classification") == "classification":
        states.setdefault("network", NETWORK.get(states["dataset"], "cifar_cnn"))
    e = Experiment(method=row["method"], options=options, **states)
    whole = whole_set(e.task, e.dataset)
    kept(e.dataset, whole.train, "train", e.train)
    kept(e.dataset, whole.test, "test", e.test)
    search = None
    if "scales" in row:
        search = Search(place["folder"], e.options["network"], row["scales"], e.device)
    run = Run(
        label=label,
        experiment=e,
        engine=block.get("engine", "auto" if e.device.startswith("cuda") else "sequential"),
        but=row.get("but", {}),
        search=search,
        newcomers=block.get("newcomers", 0),
        **place,
    )
    tune = block.get("tune")
    if not tune:
        return run
    [(option, values)] = row.get("tune", tune["options"]).items()
    tried = {"seed": first, "rounds": min(e.rounds, tune["rounds"])}
    tried["train"] = max(1, int(run.images[0] * tune["share"]))
    tries = (
        replace(
            run,
            short=True,
            label=f"{label}, {option} {value}",
            experiment=replace(e, **tried, options=e.options | {option: value}),
        )
        for value in values
    )
    return replace(run, tuned=option, tries=tuple(tries))


def labelled(block: Line) -> Line:
    """The rows of a block, their labels with its suffix."""
    return {label + block.get("suffix", ""): row for label, row in block["rows"].items()}


def every() -> list[Run | Search]:
    """All that is stored: the runs of all scales and what each needs before it, in the order of the
    recipes, seed after seed, each once."""
    scales = [scale for scale in SCALES if any(scale in r for r in RECIPES.values())]
    listed = [run for scale in scales for run in runs(None, scale)]
    return list({r.key: r for run in listed for r in (*run.needs, run)}.values())

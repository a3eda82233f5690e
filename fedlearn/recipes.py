"""The papers' tables and figures as lists of runs (``data/recipes.yaml``): which methods, on which
task, how long, at one of three scales. ``fedlearn.reproduce`` runs them."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import yaml

from . import methods
from .arguments import checked, short
from .data.published import known as known_of
from .data.sources import data_path
from .errors import pick
from .experiment import Experiment
from .method import Method
from .parts import SGD, Adam, Continued, TaskNetwork
from .results import hash_of
from .settings import kept
from .tasks.base import find_device
from .tasks.classification import NETWORK

PARTS = {  # that a row can name
    "SGD": SGD,
    "Adam": Adam,
    "Continued": Continued,
    "TaskNetwork": TaskNetwork,
}
ALL = yaml.safe_load(data_path("recipes.yaml").read_text(encoding="utf-8"))
WITHOUT: dict[str, dict[str, str]] = ALL["_without"]  # of a paper, what has no recipe: why
RECIPES = {name: recipe for name, recipe in ALL.items() if not name.startswith("_")}
PAPERS = {recipe["paper"]: None for recipe in RECIPES.values()}
SCALES = ("quick", "small", "full")
# What a block of runs states besides the fields of an experiment.
NOT_FIELDS = {
    *("partition", "rows", "all", "tune", "turn", "seeds", "engine", "suffix", "newcomers")
}
# Where a run is computed, and in what arithmetic, is no part of what it is.
MACHINE = ("device", "threads", "precision")


@dataclass(frozen=True)
class Search:
    """The server's own search for FedRepOpt's scales, ``spec`` its data and settings."""

    folder: str
    network: str
    spec: dict[str, Any]
    device: str

    @cached_property
    def stated(self) -> dict[str, Any]:
        """What its line in the packed file states of it."""
        return {"method": "search", "network": self.network} | self.spec

    @cached_property
    def key(self) -> str:
        return hash_of(self.stated)

    @property
    def name(self) -> str:
        return f"search {self.network}"

    @property
    def datasets(self) -> list[tuple[str, str, int, int]]:
        """Task and data set, and how many images it trains and is tested on."""
        name = self.spec["dataset"]
        whole = known_of("classification", name)
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
    turn: tuple[int, ...] = field(default=(), compare=False)
    newcomers: int = 0
    short: bool = False  # a try of others

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def stated(self) -> dict[str, Any]:
        """What its line in the packed file states, which is all that is not as by default, but for
        the machine that it is computed on."""
        e, tune = self.experiment, {}
        if self.tries:
            first = self.tries[0].experiment
            values = [t.experiment.options[self.tuned] for t in self.tries]
            tune = {n: getattr(first, n) for n in ("rounds", "train", "seed")}
            tune[self.tuned] = values
        more = {"label": self.label, "but": self.but, "newcomers": self.newcomers, "tune": tune}
        more |= {"scales": self.search.stated if self.search else {}, "short": self.short}
        plain = {
            f.name: getattr(e, f.name)
            for f in fields(e)
            if f.name not in MACHINE and getattr(e, f.name) != default_of(f)
        }
        return plain | {name: value for name, value in more.items() if value}

    @cached_property
    def key(self) -> str:
        """The hash by which the run is known."""
        return hash_of(self.stated)

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
        e, whole = self.experiment, known_of(self.experiment.task, self.experiment.dataset)
        return e.train or whole.train, e.test or whole.test

    @property
    def datasets(self) -> list[tuple[str, str, int, int]]:
        """Task and data set, and how many images it trains and is tested on; its search's, too."""
        e = self.experiment
        own = [(e.task, e.dataset, *self.images)]
        return own + (self.search.datasets if self.search else [])

    def method(self, **more: Any) -> Method:
        """The method with its options, of which ``more`` replaces any."""
        e = self.experiment
        made = replace(e, options=e.options | more).make_method()
        return made.but(**{part: named(value) for part, value in self.but.items()})

    def options(self, **more: Any) -> dict[str, Any]:
        """The method's name and all its options, defaults too, as the history has them: JSON knows
        no infinity, so that is a text."""
        e = self.experiment
        known = inspect.signature(methods.METHODS[e.method]).parameters
        its = {name: p.default for name, p in known.items()} | e.options | {"method": e.method}
        scales = self.search.spec if self.search else {}
        its |= {n: v for n, v in {"but": self.but, "scales": scales}.items() if v}
        return {n: "inf" if v == float("inf") else v for n, v in (its | more).items()}


def file_name(text: str) -> str:
    """A name in words that files can have."""
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in text.lower()).split())


def default_of(f: Any) -> Any:
    """Of a field of a dataclass."""
    return f.default if f.default_factory is MISSING else f.default_factory()


def named(value: Any) -> Any:
    """The part that a row names, {"Continued": {"of": {"Adam": {"lr": 0.01}}}}; another value as it
    is."""
    if not isinstance(value, dict):
        return value
    [(name, options)] = value.items()
    return PARTS[name](**{option: named(its) for option, its in options.items()})


def chosen(recipe: str | None, scale: str) -> list[str]:
    """The names of the recipes that are meant by a name of one, or of a paper, or by none."""
    pick(scale, dict.fromkeys(SCALES), "scale")
    if recipe is not None:
        pick(recipe, PAPERS | dict.fromkeys(RECIPES), "paper or recipe")
    of = {n: r for n, r in RECIPES.items() if recipe in (None, n, r["paper"])}
    if why := of.get(recipe, {}).get("without", {}).get(scale):
        raise ValueError(f"{recipe} has no runs of scale {scale}: {why}.")
    pick(scale, {s: 1 for s in SCALES for r in of.values() if s in r}, f"scale of {recipe}")
    return [name for name, r in of.items() if scale in r]


def results_folder(name: str, scale: str) -> str:
    """The folder in data/results of the runs of a paper at a scale: "rpn_digits", "rpn_small"."""
    return f"{name}_{'digits' if scale == 'quick' else scale}"


@checked
def runs(
    recipe: str | None = None,
    scale: str = "quick",
    only: tuple[str, ...] = (),
    seeds: tuple[int, ...] | None = None,
    rounds: int | None = None,
    train: int | None = None,
    test: int | None = None,
    split: tuple[str, ...] | None = None,
    device: str = "cpu",
) -> list[Run]:
    """The runs of a recipe, of all recipes of a paper, or of all, most valuable first: the first
    seed of all comes before the second of any. What two recipes share is there once.

    ``ValueError`` for a choice that no run has, or that none can be made with. What a GPU would do
    can be asked where there is none."""
    for name, several in (("only", only), ("split", split or ()), ("seeds", seeds or ())):
        if not isinstance(several, tuple | list):
            raise ValueError(f"{name} must be a list, not {short(several)}.")
    if not re.fullmatch(r"cuda(:\d+)?", device):
        device = str(find_device(device))
    own = {"rounds": rounds, "train": train, "test": test, "device": device}
    own = {name: value for name, value in own.items() if value is not None}
    gpu = device.startswith("cuda")
    blocks = [
        (number, RECIPES[name], RECIPES[name][scale], block | {"rows": labelled(block)})
        for number, name in enumerate(chosen(recipe, scale))
        for block in RECIPES[name][scale]["runs"]
    ]
    for label in only:
        pick(label, {label: 1 for *_, block in blocks for label in block["rows"]}, "row")
    for its in split or ():
        allowed = {its: 1 for *_, block in blocks for its in block["partition"]}
        pick(its, allowed, "partition of this recipe")
    found: dict[str, Run] = {}
    for number, of_paper, its, block in blocks:
        # the lower scales are the same runs on a GPU
        precision = "bf16" if gpu and scale == "full" else "float32"
        fields = {"dataset": "digits", "precision": precision}
        fields |= {name: block[name] for name in block.keys() - NOT_FIELDS} | own
        if fields.get("task", "classification") == "classification":
            fields.setdefault("network", NETWORK.get(fields["dataset"], "cifar_cnn"))
        engine = block.get("engine", "auto" if gpu else "sequential")
        folder = results_folder(of_paper.get("folder", of_paper["paper"]), scale)
        rank = {seed: i for i, seed in enumerate(its["seeds"])}
        of = [
            (partition, seed, label)
            for partition in block["partition"]
            for seed in (seeds or block.get("seeds", its["seeds"]))
            for label in block["rows"]
            if (not only or label in only) and (not split or partition in split)
        ]
        for partition, seed, label in of:
            row = dict(block["rows"][label])
            method, but, search = row.pop("method"), row.pop("but", {}), row.pop("scales", None)
            tune = block.get("tune", {}) | {"option": row.pop("tune", None)}
            known = inspect.signature(methods.METHODS[method]).parameters
            shared = {n: v for n, v in block.get("all", {}).items() if n in known}
            how: dict[str, Any] = fields | {"partition": partition, "seed": seed}
            experiment = Experiment(method=method, options=shared | row, **how)
            whole = known_of(experiment.task, experiment.dataset)
            kept(experiment.dataset, whole.train, "train", experiment.train)
            kept(experiment.dataset, whole.test, "test", experiment.test)
            turn = rank.get(seed, len(rank)), block.get("turn", 0), number
            searched = search and Search(folder, experiment.options["network"], search, device)
            more = {"turn": turn, "newcomers": block.get("newcomers", 0)}
            run = Run(folder, label, experiment, engine, but, searched, **more)
            if "rounds" in tune:
                run = tried(run, tune, its["seeds"][0])
            found.setdefault(run.folder + run.key, run)
    if not found:
        rows, partitions_of = ", ".join(only), ", ".join(split or ())
        raise ValueError(f"No run has a row of {rows} and a partition of {partitions_of}.")
    return sorted(found.values(), key=lambda run: run.turn)


def labelled(block: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a block, their labels with its suffix."""
    return {label + block.get("suffix", ""): row for label, row in block["rows"].items()}


def tried(run: Run, tune: Mapping[str, Any], seed: int) -> Run:
    """The run with its tries: ``tune`` has rounds, a share of the images, and for an option the
    values, of the row or of all."""
    [(option, values)] = (tune["option"] or tune["options"]).items()
    e = run.experiment
    rounds, images = min(e.rounds, tune["rounds"]), max(1, int(run.images[0] * tune["share"]))
    tries = [
        replace(
            run,
            short=True,
            label=f"{run.label}, {option} {value}",
            experiment=replace(
                e, seed=seed, rounds=rounds, train=images, options=e.options | {option: value}
            ),
        )
        for value in values
    ]
    return replace(run, tuned=option, tries=tuple(tries))


def every(recipe: str | None = None) -> list[Run | Search]:
    """All that is stored of a recipe, of a paper or of all: the runs at all scales, what each needs
    before it; in the order of the recipes, seed after seed, each once."""
    of = {n: r for n, r in RECIPES.items() if recipe in (None, n, r["paper"])}
    listed = [run for s in SCALES if any(s in r for r in of.values()) for run in runs(recipe, s)]
    return list({(r.folder, r.key): r for run in listed for r in (*run.needs, run)}.values())

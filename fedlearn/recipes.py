"""The papers' tables and figures as lists of runs (``data/recipes.yaml``): which methods, on which
task, how long, at one of three scales. ``fedlearn.reproduce`` runs them."""

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import yaml

from . import methods
from .data import partition as partitions
from .data.sources import SETS, data_path
from .errors import pick
from .history import History
from .method import Method
from .parts import SGD, Adam, TaskNetwork
from .settings import Settings, whole_number
from .tasks.classification import NETWORK

PARTS = {"SGD": SGD, "Adam": Adam, "TaskNetwork": TaskNetwork}  # that a row can name
_ALL = yaml.safe_load(data_path("recipes.yaml").read_text(encoding="utf-8"))
RECIPES = {name: recipe for name, recipe in _ALL.items() if not name.startswith("_")}
PAPERS = {recipe["paper"]: None for recipe in RECIPES.values()}
SCALES = ("quick", "small", "full")
SETTINGS = {f.name for f in fields(Settings)}
HOW = {"rounds", "engine", "threads", *SETTINGS}  # what else a run states is its task
NOT_TASK = HOW | {"partition", "rows", "all", "tune", "turn", "seeds"}


def options(row: Mapping[str, Any], shared: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """All options of the method of a row: its own, those of the ``shared`` that it knows, and its
    defaults; ``more`` replaces any."""
    known = inspect.signature(pick(row["method"], methods.METHODS, "method")).parameters
    found = {name: p.default for name, p in known.items()}
    return found | {name: v for name, v in shared.items() if name in known} | dict(row) | more


def make(row: Mapping[str, Any], shared: Mapping[str, Any], **more: Any) -> Method:
    """The method with these options, and with the parts that the row replaces."""
    its = options(row, shared, **more)
    made = methods.get(its.pop("method"), **{n: v for n, v in its.items() if n != "but"})
    for part, value in its.get("but", {}).items():
        for name, of in value.items():
            made = made.but(**{part: PARTS[name](**of)})
    return made


@dataclass(frozen=True)
class Run:
    """One run, which has one file: what is run on what, and how.

    ``tries`` are short runs with several values of the option ``tuned``; the best of them is
    taken. ``turn`` orders runs by how much they are worth.
    """

    folder: str  # below data/results
    label: str
    row: dict[str, Any]
    shared: dict[str, Any]
    data: dict[str, Any]  # keywords of tasks.classification
    how: dict[str, Any]  # keywords of fl.run
    tuned: str = ""
    tries: tuple["Run", ...] = ()
    turn: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Of its file: label, data set, partition and seed."""
        data = self.data
        text = f"{self.label} {data.get('dataset', 'digits')} {data['partition']} {data['seed']}"
        text = "".join(c if c.isalnum() or c == "." else "-" for c in text.lower())
        return "-".join(filter(None, text.split("-")))

    @property
    def settings(self) -> dict[str, Any]:
        """How clients train, as a history has it."""
        return asdict(Settings(**{n: v for n, v in self.how.items() if n in SETTINGS}))

    @property
    def same(self) -> tuple:
        """What makes it another run, as the recipe has it."""
        short = [run.same for run in self.tries]
        return self.label, self.row, self.shared, self.data, self.how, short

    def options(self, value: Any = None) -> dict[str, Any]:
        """All options of its method; of the tuned one ``value``. As JSON knows no infinity, it is
        a text here."""
        its = options(self.row, self.shared, **({self.tuned: value} if self.tries else {}))
        return {name: "inf" if v == float("inf") else v for name, v in its.items()}

    def differences(self, history: History) -> list[str]:
        """In what a stored run is not this one. An option that its method did not have at the time
        is no difference; the tuned one is the run's own."""
        meta, data, found = history.meta, self.data, []
        task: dict[str, Any] = {"dataset": "digits", "clients": 10, "augment": ()} | data
        task["network"] = task.get("network") or NETWORK.get(task["dataset"], "cifar_cnn")
        task["partition"] = repr(partitions.parse(task["partition"]))
        known = SETS[task["dataset"]]
        task["train"], task["test"] = data["train"] or known.train, data["test"] or known.test
        task["augment"] = list(task["augment"])
        if meta.get("label") != self.label:
            found.append("label")
        if len(history) != self.how["rounds"]:
            found.append("rounds")
        found += [name for name, v in meta["task"].items() if v != task[name]]
        found += [name for name, v in self.settings.items() if meta["settings"].get(name, v) != v]
        own = self.options()
        tuned = self.tuned if self.tries else None
        return found + [n for n, v in meta.get("options", {}).items() if n != tuned and v != own[n]]


def chosen(recipe: str | None, scale: str) -> list[str]:
    """The names of the recipes that are meant by a name of one, or of a paper, or by none."""
    pick(scale, dict.fromkeys(SCALES), "scale")
    if recipe is not None and recipe in RECIPES:
        pick(scale, {s: 1 for s in SCALES if s in RECIPES[recipe]}, f"scale of {recipe}")
        return [recipe]
    if recipe is not None:
        pick(recipe, PAPERS | dict.fromkeys(RECIPES), "paper or recipe")
    of = {n: r for n, r in RECIPES.items() if recipe in (None, r["paper"])}
    names = [name for name, r in of.items() if scale in r]
    if not names:
        allowed = {s: 1 for s in SCALES for r in of.values() if s in r}
        pick(scale, allowed, f"scale of {recipe}")
    return names


def folder(paper: str, scale: str) -> str:
    """Where the runs of a paper at a scale are, below data/results."""
    return f"{paper}_{'digits' if scale == 'quick' else scale}"


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
    seed of all comes before the second of any. What two recipes share is there once."""
    if rounds is not None:
        whole_number("rounds", rounds)
    own = {n: v for n, v in {"train": train, "test": test}.items() if v is not None}
    found: dict[tuple[str, str], Run] = {}
    blocks = [
        (number, RECIPES[name]["paper"], RECIPES[name][scale], block)
        for number, name in enumerate(chosen(recipe, scale))
        for block in RECIPES[name][scale]["runs"]
    ]
    labels = {label: 1 for *_, block in blocks for label in block["rows"]}
    for label in only:
        pick(label, labels, "row")
    splits = {its: 1 for *_, block in blocks for its in block["partition"]}
    for its in split or ():
        pick(its, splits, "partition of this recipe")
    for number, paper, its, block in blocks:
        how = {n: block[n] for n in block.keys() & HOW}
        how |= {} if rounds is None else {"rounds": rounds}
        if str(device).startswith("cuda"):
            how = {"engine": "auto", "precision": "bf16"} | how
        data = {n: block[n] for n in block.keys() - NOT_TASK}
        data = {"train": None, "test": None} | data | own | {"device": str(device)}
        rank = {seed: i for i, seed in enumerate(its["seeds"])}
        for partition in block["partition"]:
            for seed in block.get("seeds", its["seeds"]) if seeds is None else seeds:
                for label, row in block["rows"].items():
                    if (only and label not in only) or (split and partition not in split):
                        continue
                    row = dict(row)
                    tune = block.get("tune", {}) | {"option": row.pop("tune", None)}
                    run = Run(
                        folder(paper, scale),
                        label,
                        row,
                        block.get("all", {}),
                        data | {"partition": partition, "seed": seed},
                        how,
                        turn=(rank.get(seed, len(rank)), block.get("turn", 0), number),
                    )
                    if "rounds" in tune:
                        run = tried(run, tune, its["seeds"][0])
                    before = found.setdefault((run.folder, run.name), run)
                    if before.same != run.same:
                        raise ValueError(f"{run.folder}/{run.name} stands for two different runs.")
    return sorted(found.values(), key=lambda run: run.turn)


def tried(run: Run, tune: Mapping[str, Any], seed: int) -> Run:
    """The run with its tries: ``tune`` has rounds, a share of the images, and for an option the
    values, of the row or of all."""
    [(option, values)] = (tune["option"] or tune["options"]).items()
    count = run.data["train"] or SETS[run.data.get("dataset", "digits")].train
    data = run.data | {"seed": seed, "train": max(1, int(count * tune["share"]))}
    short = replace(
        run,
        folder=f"{run.folder}/tune",
        data=data,
        how=run.how | {"rounds": min(run.how["rounds"], tune["rounds"])},
    )
    tries = [
        replace(short, label=f"{run.label}, {option} {value}", row=run.row | {option: value})
        for value in values
    ]
    return replace(run, tuned=option, tries=tuple(tries))


def order(results: str) -> dict[str, int]:
    """The names of the runs in a folder below data/results, and where each stands in the recipes,
    seed after seed."""
    names: list[str] = []
    for paper in PAPERS:
        for scale in SCALES:
            base = folder(paper, scale)
            if results in (base, f"{base}/tune") and any(
                scale in r for r in RECIPES.values() if r["paper"] == paper
            ):
                of = runs(paper, scale)
                names += [t.name for run in of for t in run.tries or (run,)]
                names += [run.name for run in of]
    return {name: i for i, name in enumerate(dict.fromkeys(names))}

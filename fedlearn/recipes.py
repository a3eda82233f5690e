"""The papers' tables and figures as lists of runs (``data/recipes.yaml``): which methods, on which
task, how long, at one of three scales. ``fedlearn.reproduce`` runs them."""

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeGuard

import yaml

from . import methods
from .arguments import LARGEST, checked, is_whole, short
from .data import partition as partitions
from .data.published import known as known_of
from .data.sources import data_path
from .errors import pick
from .history import History
from .method import Method
from .parts import SGD, Adam, Continued, TaskNetwork
from .round import BYTES
from .settings import Experiment, Settings, kept
from .tasks import Classification, Detection, Segmentation
from .tasks.base import find_device
from .tasks.classification import NETWORK

PARTS = {  # that a row can name
    "SGD": SGD,
    "Adam": Adam,
    "Continued": Continued,
    "TaskNetwork": TaskNetwork,
}
ALL = yaml.safe_load(data_path("recipes.yaml").read_text(encoding="utf-8"))
SPEEDS: dict[str, float] = ALL["_speeds"]  # in 10^9 multiply-adds a second
WITHOUT: dict[str, dict[str, str]] = ALL["_without"]  # of a paper, what has no recipe: why
RECIPES = {name: recipe for name, recipe in ALL.items() if not name.startswith("_")}
PAPERS = {recipe["paper"]: None for recipe in RECIPES.values()}
SCALES = ("quick", "small", "full")
KINDS = {kind.__name__.lower(): kind for kind in (Classification, Detection, Segmentation)}
# What a block of runs states besides the fields of an experiment.
NOT_FIELDS = {
    *("partition", "rows", "all", "tune", "turn", "seeds", "engine", "suffix", "newcomers")
}
# What the file of a run states of its task and settings, always.
STATED = (
    *("label", "method", "task", "dataset", "clients", "partition", "seed", "network", "augment"),
    *("train", "test", "rounds", *(f.name for f in fields(Settings))),
)
FOUND = re.compile(r"scales=(None|Scales\(digest='\w+'\))")


@dataclass(frozen=True)
class Run:
    """One run, which has one file.

    ``but`` replaces parts of the method; ``search`` is the data of the server's own search for
    FedRepOpt's scales. ``tries`` are short runs with several values of the option ``tuned``; the
    best of them is taken. ``turn`` orders runs by how much they are worth; ``groups`` are the
    comparisons that it belongs to: what recipe, turn, data set, split and seed it shares.
    ``newcomers``: for so many epochs clients that arrive afterwards train (``fedlearn.newcomers``).
    """

    folder: str  # below data/results
    label: str
    experiment: Experiment
    engine: str
    but: dict[str, Any]
    search: dict[str, Any] | None
    tuned: str = ""
    tries: tuple["Run", ...] = ()
    turn: tuple[int, ...] = field(default=(), compare=False)
    groups: tuple[tuple, ...] = field(default=(), compare=False)
    newcomers: int = 0

    def __hash__(self) -> int:
        return hash((self.folder, self.name))

    @property
    def name(self) -> str:
        """The name of its file, made of label, task, data set, partition and seed."""
        e = self.experiment
        task = "" if e.task == "classification" else e.task
        text = f"{self.label} {task} {e.dataset} {e.partition} {e.seed}".lower()
        return "-".join("".join(c if c.isalnum() or c == "." else " " for c in text).split())

    @property
    def where(self) -> str:
        """Folder and name."""
        return f"{self.folder}/{self.name}"

    @property
    def images(self) -> tuple[int, int]:
        """How many are trained on, and tested on."""
        e, whole = self.experiment, known_of(self.experiment.task, self.experiment.dataset)
        return e.train or whole.train, e.test or whole.test

    @property
    def searched(self) -> str:
        """The file of the scales that its search finds, below data/results, named by all that they
        depend on; empty without a search."""
        if not self.search:
            return ""
        words = [f"{k}-{v}" for k, v in sorted(self.search.items())]
        folder = self.folder.removesuffix("/tune")
        return f"{folder}/search/{'-'.join([self.experiment.options['network'], *words])}.json"

    def method(self, **more: Any) -> Method:
        """The method with its options, of which ``more`` replaces any."""
        e = self.experiment
        made = replace(e, options=e.options | more).make_method()
        return made.but(**{part: named(value) for part, value in self.but.items()})

    def options(self, **more: Any) -> dict[str, Any]:
        """The method's name and all its options, defaults too, as the run's file has them: JSON
        knows no infinity, so that is a text."""
        e = self.experiment
        known = inspect.signature(methods.METHODS[e.method]).parameters
        its = {name: p.default for name, p in known.items()} | e.options | {"method": e.method}
        its |= {n: v for n, v in {"but": self.but, "scales": self.search}.items() if v}
        return {n: "inf" if v == float("inf") else v for n, v in (its | more).items()}

    def differences(self, history: History) -> list[str]:
        """In what a stored run is not this one.

        The tuned option is the run's own, one of the values that are tried. At full scale the
        arithmetic is the device's (bfloat16 on a GPU), and either will do."""
        e, meta, (train, test) = self.experiment, history.meta, self.images
        its = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(e).items()}
        its |= {"label": self.label} | KINDS[e.task].about
        if (e.task, e.dataset) != ("classification", "digits"):
            its["dataset"] = e.dataset.replace("digits", "digit_scenes")
        its |= {"partition": repr(partitions.parse(e.partition)), "train": train, "test": test}
        stored = {"task": "classification", "metrics": []} | meta.get("task", {})
        stored.pop("note", None)  # on the copy of the data set that was at hand
        stored |= meta.get("settings", {})
        stored |= {"label": meta.get("label"), "method": history.method, "rounds": len(history)}
        if self.folder.split("/")[0].endswith("_full"):  # begun on a GPU or not, it is this run
            its["precision"] = stored.get("precision", e.precision)
        names = (*STATED, *KINDS[e.task].about, *stored)
        found = [n for n in names if n not in its or stored.get(n, its) != its[n]]
        options = meta.get("options", {})
        for name, value in self.options().items():
            tried = [t.experiment.options[name] for t in self.tries] if name == self.tuned else ()
            right = name in options and options[name] in (tried or [value])
            found += [name] * (not right)
        found += [n for n in options if n not in self.options()]
        found += ["newcomers"] * (self.newcomers > 0 and "newcomers" not in meta)
        if not found:  # with other options, parts are others, too
            own = self.method(**{n: options[n] for n in [self.tuned] if n}).parts()
            parts = meta.get("parts", {})
            found += [
                name
                for name in {**own, **parts}
                if self._plain(parts.get(name)) != self._plain(own.get(name))
            ]
        try:
            taken(meta.get("provenance", {}))
        except ValueError:
            found.append("provenance")
        return list(dict.fromkeys(found + self._wrong_rows(history)))

    def _plain(self, part: Any) -> str:
        """A part's description without the scales that a search has found."""
        return FOUND.sub("scales=None", str(part)) if self.search else str(part)

    def _wrong_rows(self, history: History) -> list[str]:
        """The columns that are not as a run leaves them: bytes are whole numbers, clients as many
        as are drawn; in the rounds that are evaluated a metric from 0 to 1, NaN only where the loss
        shows that training diverged, None only where clients were asked and none could be
        evaluated."""
        e, wrong = self.experiment, []
        count = e.drawn(int(e.clients))
        for row in history.rows:
            accuracy, loss, seconds = (row.get(n) for n in ("accuracy", "loss", "seconds"))
            wrong += [] if _number(seconds) and 0 <= seconds < math.inf else ["seconds"]
            sent = [n for n in row if n.startswith("bytes_") and n not in BYTES]
            wrong += [n for n in (*BYTES, *sent) if not _whole(row.get(n))]
            who: Any = row.get("clients")
            known = isinstance(who, list) and all(_whole(k) and k < int(e.clients) for k in who)
            wrong += [] if known and len({*who}) == len(who) == count else ["clients"]
            wrong += [] if "refused" in row else ["refused"]
            looked = row["round"] % e.evaluate_every == 0 or row["round"] == e.rounds
            if not looked or (accuracy is None and row.get("unevaluated")):
                wrong += [n for n in ("accuracy", "loss") if row.get(n, n) is not None]
                continue
            wrong += [] if _number(loss) else ["loss"]
            diverged = _number(loss) and not math.isfinite(loss) and accuracy != accuracy
            right = _number(accuracy) and (0 <= accuracy <= 1 or diverged)
            wrong += [] if right else ["accuracy"]
        return wrong


def taken(provenance: Mapping[str, Any]) -> float:
    """The seconds that a file says its run took, 0 if it does not; ``ValueError`` for what is no
    length of time."""
    seconds = provenance.get("seconds", 0)
    try:
        if 0 <= float(seconds) < math.inf:
            return float(seconds)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{short(seconds)} is no number of seconds")


def _whole(value: Any) -> TypeGuard[int]:
    return is_whole(value) and 0 <= value <= LARGEST


def named(value: Any) -> Any:
    """The part that a row names, {"Continued": {"of": {"Adam": {"lr": 0.01}}}}; another value as it
    is."""
    if not isinstance(value, dict):
        return value
    [(name, options)] = value.items()
    return PARTS[name](**{option: named(its) for option, its in options.items()})


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, float) or (is_whole(value) and abs(value) <= LARGEST)


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
    found: dict[tuple[str, str], Run] = {}
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
            group = turn, experiment.task, experiment.dataset, partition, seed
            more = {"turn": turn, "groups": (group,), "newcomers": block.get("newcomers", 0)}
            run = Run(folder, label, experiment, engine, but, search, **more)
            if "rounds" in tune:
                run = tried(run, tune, its["seeds"][0])
            before = found.setdefault((folder, run.name), run)
            if before != run:
                raise ValueError(f"{folder}/{run.name} stands for two different runs.")
            if group not in before.groups:
                found[folder, run.name] = replace(before, groups=(*before.groups, group))
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
            folder=f"{run.folder}/tune",
            label=f"{run.label}, {option} {value}",
            experiment=replace(
                e, seed=seed, rounds=rounds, train=images, options=e.options | {option: value}
            ),
        )
        for value in values
    ]
    return replace(run, tuned=option, tries=tuple(tries))


def order(folder: str) -> dict[str, int]:
    """The names of the runs in a folder below data/results, and where each stands in the recipes,
    seed after seed."""
    every = [r for scale in SCALES for run in runs(None, scale) for r in (*run.tries, run)]
    names = dict.fromkeys(r.name for r in every if r.folder == folder)
    return {name: i for i, name in enumerate(names)}

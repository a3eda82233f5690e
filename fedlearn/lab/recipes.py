"""Recipes: the papers' tables and figures as lists of runs (``data/<chapter>/recipes.yaml``), at
one of three scales. ``reproduce`` does those that are not stored."""

import inspect
import math
import os
import platform
import re
import shlex
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import parts
from ..core import Method
from ..core import run as federate
from ..data import data_path
from ..data.images import SETS
from ..errors import DataError, check_whole, error_text, extra, pick
from ..files import read_yaml, to_json, write_text
from ..history import History
from ..methods import METHODS, fed_repopt_search
from ..models.repopt import Scales
from ..seeing.published import MASKS
from ..seeing.published import SETS as PICTURES
from ..tasks import find_device
from . import results
from .experiment import Experiment
from .results import Line

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

FILES = [data_path("recipes.yaml"), *sorted(data_path().glob("*/recipes.yaml"))]
ALL = read_yaml(*FILES)  # one text: the first file has anchors of the others
# paper -> what has no recipe: why
WITHOUT: dict[str, dict[str, str]] = {
    name[1:]: reasons for name, reasons in ALL.items() if name.startswith("_")
}
RECIPES = {name: recipe for name, recipe in ALL.items() if not name.startswith("_")}
PAPERS = {recipe["paper"]: None for recipe in RECIPES.values()}
SCALES = ("quick", "small", "full")
MACHINE = ("device", "threads", "precision")  # no part of what a run is
SEARCHED = ("dataset", "train", "seed")  # the data of a search
NETWORKS = {  # of recipes that name none; else cifar_cnn
    "digits": "digits_cnn",
    "mnist": "mcmahan_cnn",
    "fashion_mnist": "mcmahan_cnn",
}
TRIAL_SEED = 1000  # added to a recipe's first seed: that of trials, and of no run
Key = tuple[str, str]  # a file of stored runs, and the hash of an experiment


@dataclass(frozen=True)
class Run:
    """A run of a recipe, or what it needs: a trial that chooses an option, a search for
    scales.

    ``folder`` names the file of stored runs. ``but`` replaces parts of the method.
    ``search`` has the data and settings of the server's search for FedRepOpt's scales.
    ``trials`` are short runs on validation images with values of the option ``tuned``,
    of which the best is taken. ``command`` are the words that make the run again."""

    folder: str
    label: str
    experiment: Experiment
    kind: str = "run"
    engine: str = "sequential"
    but: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    tuned: str = ""
    trials: tuple["Run", ...] = ()
    command: tuple[str, ...] = ()

    @property
    def stated(self) -> Line:
        """The experiment of its stored line: everything but defaults and the
        machine."""
        e = self.experiment
        if self.kind == "search":
            return {"method": "search", "network": e.network, **self.search}
        default = asdict(Experiment())
        values = {
            n: v for n, v in asdict(e).items() if n not in MACHINE and v != default[n]
        }
        values |= {"label": self.label, "but": self.but, "short": self.kind == "trial"}
        for search in self.searches:
            values["scales"] = search.stated
        return {
            name: value for name, value in values.items() if value or name in default
        }

    @cached_property
    def key(self) -> Key:
        """The file of stored runs, and the hash of the experiment."""
        return self.folder, results.hash_of(self.stated)

    @property
    def name(self) -> str:
        """Label, task, data set, partition and seed."""
        e = self.experiment
        task = "" if e.task == "classification" else e.task
        return " ".join(
            f"{self.label} {task} {e.dataset} {e.partition} {e.seed}".split()
        )

    @property
    def dataset(self) -> str:
        """Task and data set."""
        return f"{self.experiment.task} {self.experiment.dataset}"

    @property
    def searches(self) -> list["Run"]:
        """The search that finds the run's scales, if it needs one."""
        if not self.search or self.kind == "search":
            return []
        network = self.experiment.options["network"]
        data = {n: v for n, v in self.search.items() if n in SEARCHED}
        device = self.experiment.device
        e = Experiment(
            method="fed_repopt", network=network, clients=1, device=device, **data
        )
        title = f"search {network}"
        return [
            Run(
                self.folder,
                title,
                e,
                "search",
                search=self.search,
                command=self.command,
            )
        ]

    def method(self, **options: Any) -> Method:
        """The method; ``options`` replace its own."""
        e = self.experiment
        method = replace(e, options=e.options | options).make_method()
        return method.but(**{name: part(value) for name, value in self.but.items()})


def part(value: Any) -> Any:
    """The part that a row names, {"Adam": {"lr": 0.01}}; another value as it is."""
    if not isinstance(value, dict):
        return value
    [(name, options)] = value.items()
    return getattr(parts, name)(**{option: part(v) for option, v in options.items()})


# ---- which runs ----------------------------------------------------------------------


def results_folder(name: str, scale: str) -> str:
    """The name of the stored runs of a paper at a scale: "rpn_digits", "rpn_full"."""
    return f"{name}_{'digits' if scale == 'quick' else scale}"


def chosen(recipe: str | None, scale: str) -> dict[str, Line]:
    """The recipe of that name, those of that paper, or all, with runs at a scale."""
    pick(scale, dict.fromkeys(SCALES), "scale")
    if recipe is not None:
        pick(recipe, PAPERS | dict.fromkeys(RECIPES), "paper or recipe")
    if recipe in RECIPES and scale not in RECIPES[recipe]:
        why = RECIPES[recipe]["without"][scale]
        raise ValueError(f"{recipe} has no runs of scale {scale}: {why}.")
    named = {n: r for n, r in RECIPES.items() if recipe in (None, n, r["paper"])}
    return {name: r for name, r in named.items() if scale in r}


def runs(
    recipe: str | None = None,
    scale: str = "quick",
    only: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    split: tuple[str, ...] = (),
    device: str = "cpu",
    **numbers: int | None,
) -> list[Run]:
    """The runs of a recipe, of a paper's recipes, or of all, each once.

    ``only`` are labels of rows and ``split`` partitions; ``numbers`` (rounds, train,
    test) replace those of the recipe."""
    replaced: Line = {n: v for n, v in numbers.items() if v is not None}
    words = [word for n, v in replaced.items() for word in (f"--{n}", str(v))]
    replaced["device"] = (
        device if device.startswith("cuda") else str(find_device(device))
    )
    if replaced["device"].startswith("cuda") and scale == "full":
        replaced["precision"] = "bf16"
    listed: dict[Key, Run] = {}
    labels: Line = {}
    partitions: Line = {}
    for name, paper in chosen(recipe, scale).items():
        folder = results_folder(str(paper.get("folder", paper["paper"])), scale)
        command = ("fedlearn", "reproduce", name, "--scale", scale, *words)
        first = paper[scale]["seeds"][0]
        for block in paper[scale]["runs"]:
            labels |= rows_of(block)
            partitions |= dict.fromkeys(block["partition"])
            several = seeds or block.get("seeds", paper[scale]["seeds"])
            for seed, partition, label in product(
                several, block["partition"], rows_of(block)
            ):
                if label in (only or labels) and partition in (split or partitions):
                    values = replaced | {"partition": partition, "seed": seed}
                    run = run_of(folder, command, block, label, values, first)
                    listed.setdefault(run.key, run)
    for label in only:
        pick(label, labels, "row")
    for partition in split:
        pick(partition, partitions, "partition of this recipe")
    if not listed and only:
        raise ValueError(f"No run is of both {', '.join(only)} and {', '.join(split)}.")
    return list(listed.values())


def rows_of(block: Line) -> Line:
    """The rows of a block, their labels with its suffix."""
    return {
        label + block.get("suffix", ""): row for label, row in block["rows"].items()
    }


def run_of(
    folder: str,
    command: tuple[str, ...],
    block: Line,
    label: str,
    values: Line,
    first: int,
) -> Run:
    """The run of a block's row; ``first`` is the recipe's first seed."""
    row = pick(label, rows_of(block), "row")
    signature = inspect.signature(METHODS[row["method"]]).parameters
    options = {n: v for n, v in block.get("all", {}).items() if n in signature}
    options |= {
        n: v for n, v in row.items() if n not in ("method", "but", "scales", "tune")
    }
    names = {f.name for f in fields(Experiment)} - {"partition"}
    values = {n: v for n, v in block.items() if n in names} | values
    if values.get("task", "classification") == "classification":
        values.setdefault(
            "network", NETWORKS.get(values.get("dataset", "digits"), "cifar_cnn")
        )
    e = Experiment(method=row["method"], options=options, **values)
    run = Run(
        folder,
        label,
        e,
        engine=block.get(
            "engine", "auto" if e.device.startswith("cuda") else "sequential"
        ),
        but=row.get("but", {}),
        search=row.get("scales", {}),
        command=(
            *command,
            "--only",
            label,
            "--partition",
            e.partition,
            "--seed",
            str(e.seed),
        ),
    )
    tune = block.get("tune")
    if not tune:
        return run
    [(option, candidates)] = row.get("tune", tune["options"]).items()
    if option == "as":  # the choice of another row
        label = candidates + block.get("suffix", "")
        other = run_of(folder, command, block, label, values, first)
        return replace(run, tuned=other.tuned, trials=other.trials)
    pick(option, signature, f"option of {e.method}")
    if not isinstance(candidates, list) or not candidates:
        raise ValueError(
            f"The best {option} is chosen among a list, not {candidates!r}."
        )
    rounds = min(e.rounds, max(tune.get("rounds", 1), math.ceil(e.rounds / 4)))
    e = replace(e, seed=TRIAL_SEED + first, rounds=rounds, test=None, validation=True)
    trials = []
    for value in candidates:
        title = f"{label}, {option} {value}"
        trial = replace(e, options=e.options | {option: value})
        trials.append(
            replace(run, label=title, experiment=trial, kind="trial", tuned=option)
        )
    return replace(run, tuned=option, trials=tuple(trials))


def with_needs(runs: Iterable[Run]) -> dict[Key, Run]:
    """Searches, trials and runs by their keys, each after what it needs."""
    runs = list(runs)
    trials = [trial for run in runs for trial in run.trials]
    searches = [search for run in (*trials, *runs) for search in run.searches]
    return {run.key: run for run in (*searches, *trials, *runs)}


# ---- doing them ----------------------------------------------------------------------


def stored(runs: Iterable[Run]) -> dict[Key, Line]:
    """The stored lines of these runs' files. Lines of uncommitted code do not count,
    nor those with an option that was chosen on test images."""
    lines = {}
    for name in dict.fromkeys(run.folder for run in runs):
        for line in results.packed(name):
            on_test = "tuned" in line["meta"] and "chosen_on" not in line["meta"]
            if results.committed(line) and not on_test:
                lines[name, line["hash"]] = line
        for line in results.recent(name).values():
            lines[name, line["hash"]] = line
    return lines


def make(run: Run, origin: dict[str, str], progress: bool | None = None) -> Line:
    """Do one run, from its checkpoint if there is one -> the line that its file
    holds."""
    folder, name = run.key
    path = results.RECENT / folder / f"{name}.json"
    checkpoint = path.with_suffix(".checkpoint")
    began = time.monotonic()
    do = search if run.kind == "search" else train
    line = do(run, checkpoint, progress)
    # a run that was stopped has the seconds of its rounds, without evaluation
    seconds = max(
        time.monotonic() - began, sum(row["seconds"] for row in line.get("rows", ()))
    )
    line["meta"]["provenance"] = origin | {
        "command": shlex.join(run.command),
        "hardware": hardware(run.experiment.device),
        "seconds": f"{seconds:.1f}",
    }
    line = {"hash": name, "experiment": run.stated, **line}
    write_text(path, to_json(line) + "\n")
    checkpoint.unlink(missing_ok=True)
    return line


def train(run: Run, checkpoint: Path, progress: bool | None = None) -> Line:
    """The history of a run, with the best value of its trials and the scales of its
    search."""
    e = run.experiment
    lines = stored([run])
    for need in (*run.searches, *run.trials):
        if need.key not in lines:
            raise ValueError(f"{need.name}, which it needs, is not there.")
    options = {}
    about: Line = {"label": run.label}
    if run.trials:
        accuracy = {}
        for trial in run.trials:
            history = History.from_dict(lines[trial.key])
            value = trial.experiment.options[run.tuned]
            accuracy[value] = history.late_accuracy() if history.evaluated else math.nan
        options[run.tuned] = best(accuracy)
        about |= {"tuned": {run.tuned: accuracy}, "chosen_on": "validation"}
    about["options"] = {"method": e.method, **e.options, **options}
    for one in run.searches:
        scales = lines[one.key]["scales"]
        options["scales"] = Scales(
            {name: torch.tensor(v) for name, v in scales.items()}
        )
    method = run.method(**options)
    task = e.make_task()
    how = asdict(e.settings) | {
        "engine": run.engine,
        "threads": e.threads,
        "progress": progress,
    }
    history = federate(method, task, e.rounds, checkpoint=checkpoint, **how)
    if task.source.note:
        about["note"] = task.source.note
    history.meta |= about
    return history.to_dict()


def best(accuracy: dict[Any, float]) -> Any:
    """The value with the highest accuracy, of equal ones the smallest."""
    finite = {value: a for value, a in sorted(accuracy.items()) if not math.isnan(a)}
    if not finite:
        raise ValueError(
            f"No trial of {', '.join(map(str, accuracy))} gave an accuracy."
        )
    return max(finite, key=finite.__getitem__)


def search(run: Run, checkpoint: Path, progress: bool | None = None) -> Line:
    """The scales that the server's search finds."""
    e = run.experiment
    task = e.make_task()
    how = {n: v for n, v in run.search.items() if n not in SEARCHED}
    scales = fed_repopt_search.repopt_search(
        task, network=e.network, checkpoint=checkpoint, **how
    )
    note = {"note": task.source.note} if task.source.note else {}
    return {"meta": note, "scales": {n: t.tolist() for n, t in scales.of.items()}}


def hardware(device: str) -> str:
    """The name of the processor or GPU, and the number of cores."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    names = re.findall(r"model name\s*: (.*)", text)
    return f"{(*names, platform.machine())[0]}, {os.cpu_count()} cores"


def attempt(run: Run, origin: dict[str, str], progress: bool | None) -> str:
    """Do a run and print what it reached -> the reason if it fails."""
    try:
        line = make(run, origin, progress)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        print(f"{run.folder}, {run.name}: {error_text(error)}", flush=True)
        return error_text(error)
    tests = [
        row["accuracy"] for row in line.get("rows", ()) if row["accuracy"] is not None
    ]
    print(f"{run.folder}, {run.name}: last test {tests[-1:]}", flush=True)
    return ""


def reproduce(
    recipe: str | None = None,
    scale: str = "quick",
    jobs: int = 1,
    progress: bool | None = None,
    **choice: Any,
) -> "pandas.DataFrame":
    """Do what ``runs`` lists and is not stored: searches, then trials, then the runs ->
    the summary of the stored runs. ``ValueError`` at the end if one failed."""
    with extra("plot"):
        import pandas  # noqa: F401  before hours of runs, not after
    with extra("lab"):
        from joblib import Parallel, delayed

    check_whole("jobs", jobs)
    listed = runs(recipe, scale, **choice)
    lines = stored(listed)
    todo = with_needs(run for run in listed if run.key not in lines)
    absent = lacking(todo.values())
    how = results.provenance(), progress if jobs == 1 else False
    reasons = list(absent.values())
    try:
        for kind in ("search", "trial", "run"):
            stage = [
                run
                for key, run in todo.items()
                if run.kind == kind and key not in lines and run.dataset not in absent
            ]
            reasons += Parallel(jobs)(delayed(attempt)(run, *how) for run in stage)
    except KeyboardInterrupt:
        print("Stopped. What is finished is kept; the same command goes on from there.")
        raise
    failed = [reason for reason in reasons if reason]
    if failed:
        raise ValueError(f"Not all was done, first because: {failed[0]}")
    lines = stored(listed)
    histories: dict[str, list[History]] = {}
    for run in listed:
        name = run.name.rpartition(" ")[0]  # without the seed
        histories.setdefault(name, []).append(History.from_dict(lines[run.key]))
    return results.summary(histories)


def whole_set(e: Experiment) -> int:
    """The number of training images of the whole data set."""
    if e.task == "segmentation":
        return MASKS[0]
    sets = SETS if e.task == "classification" else PICTURES
    return sets[e.dataset.partition(":")[0]].train


def lacking(runs: Iterable[Run]) -> dict[str, str]:
    """Data set -> why it cannot be had. Those that can be fetched are fetched. A part
    of a data set is not enough for a run of the whole."""
    reasons = {}
    for run in {run.dataset: run for run in runs}.values():
        e = run.experiment
        try:
            samples = sum(e.make_task().sizes)
            if e.train is None and samples < whole_set(e):
                raise DataError(
                    f"{e.dataset} has {samples} training images here, a part of it."
                )
        except DataError as error:
            reasons[run.dataset] = str(error)
            print(f"left out: {error}", flush=True)
    return reasons


def plan(
    recipe: str | None = None, scale: str = "quick", **choice: Any
) -> "pandas.DataFrame":
    """A row for each run that ``reproduce`` would do or find, and for each trial and
    search: ``kind``, ``file``, ``name``, ``data``, ``stored``, and ``hours`` of what is
    stored."""
    with extra("plot"):
        import pandas

    listed = with_needs(runs(recipe, scale, **choice))
    lines = stored(listed.values())
    rows = []
    for key, run in listed.items():
        origin = lines[key]["meta"]["provenance"] if key in lines else {}
        row = {
            "kind": run.kind,
            "file": run.folder,
            "name": run.name,
            "data": run.experiment.dataset,
            "stored": key in lines,
        }
        rows.append({**row, "hours": float(origin.get("seconds", math.nan)) / 3600})
    return pandas.DataFrame(rows)


def pack() -> list[str]:
    """Move finished runs of ``runs/`` into the packed files -> a line a file.

    A run replaces that of the same experiment; others are added at the end. Runs of
    uncommitted code are refused. Files of other runs than the recipes' stay."""
    listed = {key for scale in SCALES for key in with_needs(runs(None, scale))}
    report = []
    for name in sorted({folder for folder, _ in listed}):
        new = {
            p: x for p, x in results.recent(name).items() if (name, x["hash"]) in listed
        }
        for path, line in new.items():
            if not results.committed(line):
                raise ValueError(
                    f"{path} is of uncommitted code: commit, remove it, run again."
                )
        if new:
            lines = {
                line["hash"]: line for line in [*results.packed(name), *new.values()]
            }
            results.write(results.packed_file(name), lines.values())
            report.append(f"{name}: {len(new)} runs packed")
        for path in new:
            path.unlink()
    return report

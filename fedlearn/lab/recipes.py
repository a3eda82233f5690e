"""Recipes: the papers' tables and figures as lists of runs
(``data/<chapter>/recipes.yaml``), at one of three scales. ``reproduce`` does those that
are not stored."""

import math
import os
import platform
import re
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
from ..errors import check_whole, extra, pick
from ..files import read_yaml, to_json, write_text
from ..history import History
from ..methods.fed_repopt_search import repopt_search
from ..models.repopt import Scales
from ..tasks import find_device
from . import results
from .experiment import Experiment
from .results import Line

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

FILES = [data_path("recipes.yaml"), *sorted(data_path().glob("*/recipes.yaml"))]
ALL = read_yaml(*FILES)  # one text: the first file has anchors of the others
# paper -> a table or figure without a recipe -> the reason
WITHOUT: dict[str, dict[str, str]] = {
    name[1:]: reasons for name, reasons in ALL.items() if name.startswith("_")
}
RECIPES = {name: recipe for name, recipe in ALL.items() if not name.startswith("_")}
PAPERS = {recipe["paper"]: None for recipe in RECIPES.values()}
SCALES = ("quick", "small", "full")
MACHINE = ("device", "threads", "precision")  # fields that do not change the key
SEARCHED = ("dataset", "train", "seed")  # the data of a search
# The seed of a recipe's trials is this number plus the recipe's first seed. No run has it.
TRIAL_SEED = 1000
ROW = ("method", "but", "scales", "tune")  # entries of a row that are no options
Key = tuple[str, str]  # a file of stored runs, and the hash of an experiment


@dataclass(frozen=True)
class Run:
    """A run of a recipe, or a trial that a run needs.

    Parameters
    ----------
    folder : str
        The name of the file of stored runs.
    label : str
        The name of the row in the recipe.
    experiment : Experiment
        The run in plain values.
    kind : str
        "run" or "trial".
    engine : str
        Where clients train.
    but : dict
        Parts of the method that are replaced.
    search : dict
        Data and settings of the server's search for FedRepOpt's scales.
    tuned : str
        The option that is chosen by trials.
    trials : tuple of Run
        Short runs on validation images, a value of the option each.
    """

    folder: str
    label: str
    experiment: Experiment
    kind: str = "run"
    engine: str = "sequential"
    but: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    tuned: str = ""
    trials: tuple["Run", ...] = ()

    @property
    def entry(self) -> Line:
        """The experiment of the stored line, without defaults and the machine."""
        default = asdict(Experiment())
        line = {}
        for name, value in asdict(self.experiment).items():
            if name not in MACHINE and value != default[name]:
                line[name] = value
        line["label"] = self.label
        if self.but:
            line["but"] = self.but
        if self.kind == "trial":
            line["short"] = True
        if self.search:
            network = self.experiment.options["network"]
            line["scales"] = {"method": "search", "network": network, **self.search}
        return line

    @cached_property
    def key(self) -> Key:
        """The file of stored runs, and the hash of the experiment."""
        return self.folder, results.hash_of(self.entry)

    @property
    def row(self) -> Line:
        """What a table shows of the run."""
        e = self.experiment
        return {
            "kind": self.kind,
            "file": self.folder,
            "row": self.label,
            "task": e.task,
            "data": e.dataset,
            "partition": e.partition,
            "seed": e.seed,
        }

    def method(self, **options: Any) -> Method:
        """The method; ``options`` replace its own."""
        e = self.experiment
        method = replace(e, options=e.options | options).make_method()
        return method.but(**{name: part(value) for name, value in self.but.items()})


def part(value: Any) -> Any:
    """The part of {"Adam": {"lr": 0.01}}; a plain value stays as it is."""
    if not isinstance(value, dict):
        return value
    [(name, options)] = value.items()
    return getattr(parts, name)(**{option: part(v) for option, v in options.items()})


# ---- the list of runs ----------------------------------------------------------------


def results_folder(name: str, scale: str) -> str:
    """The name of the stored runs of a paper at a scale: "rpn_digits", "rpn_full"."""
    return f"{name}_{'digits' if scale == 'quick' else scale}"


def runs(
    recipe: str | None = None,
    scale: str = "quick",
    device: str = "cpu",
    **choice: Iterable[Any],
) -> list[Run]:
    """The runs of a recipe, of a paper's recipes, or of all, each once.

    ``choice`` selects some of them, such as ``row=["FedAvg"], seed=[0]``.
    """
    pick(scale, dict.fromkeys(SCALES), "scale")
    if recipe is not None:
        pick(recipe, PAPERS | RECIPES, "paper or recipe")
    listed: dict[Key, Run] = {}
    for name, entry in RECIPES.items():
        if recipe not in (None, name, entry["paper"]) or scale not in entry:
            continue
        common = {
            "folder": results_folder(entry.get("folder", entry["paper"]), scale),
            "first": entry[scale]["seeds"][0],
            "device": str(find_device(device)),
        }
        for block in entry[scale]["runs"]:
            for run in runs_of(block | common, entry[scale]["seeds"]):
                listed.setdefault(run.key, run)
    if not listed:
        raise ValueError(f"{recipe} has no runs of scale {scale}.")
    return select(list(listed.values()), **choice)


def select(runs: list[Run], **choices: Iterable[Any]) -> list[Run]:
    """The runs that have, in each column of ``Run.row``, one of the values chosen."""
    for column, values in choices.items():
        present = {run.row[column]: None for run in runs}
        for value in values:
            pick(value, present, column)
        if values:
            runs = [run for run in runs if run.row[column] in values]
    return runs


def runs_of(block: Line, seeds: list[int]) -> list[Run]:
    """The runs of a block: a seed, a partition and a row each."""
    suffix = block.get("suffix", "")
    rows = {label + suffix: row for label, row in block["rows"].items()}
    block = block | {"rows": rows}
    choices = product(block.get("seeds", seeds), block["partition"], rows)
    return [run_of(block, label, split, seed) for seed, split, label in choices]


def run_of(block: Line, label: str, partition: str, seed: int) -> Run:
    """The run of a row."""
    row = block["rows"][label]
    options = block.get("all", {}) | {n: v for n, v in row.items() if n not in ROW}
    names = {f.name for f in fields(Experiment)}
    values = {n: v for n, v in block.items() if n in names}
    values |= {"method": row["method"], "options": options}
    values |= {"partition": partition, "seed": seed}
    on_gpu = block["device"].startswith("cuda")
    run = Run(
        block["folder"],
        label,
        Experiment(**values),
        engine=block.get("engine", "auto" if on_gpu else "sequential"),
        but=row.get("but", {}),
        search=row.get("scales", {}),
    )
    return with_trials(run, block) if block.get("tune") else run


def with_trials(run: Run, block: Line) -> Run:
    """The run, and a trial for each value of the option that is tuned."""
    tune = block["tune"]
    e = run.experiment
    [(option, values)] = block["rows"][run.label].get("tune", tune["options"]).items()
    if option == "as":  # the choice of another row
        label = values + block.get("suffix", "")
        other = run_of(block, label, e.partition, e.seed)
        return replace(run, tuned=other.tuned, trials=other.trials)
    rounds = max(tune.get("rounds", 1), math.ceil(e.rounds / 4))
    e = replace(
        e,
        seed=TRIAL_SEED + block["first"],
        rounds=min(e.rounds, rounds),
        test=None,
        validation=True,
    )
    run = replace(run, tuned=option)
    trials = []
    for value in values:
        trial = replace(e, options=e.options | {option: value})
        label = f"{run.label}, {option} {value}"
        trials.append(replace(run, label=label, experiment=trial, kind="trial"))
    return replace(run, trials=tuple(trials))


def trials_first(runs: list[Run]) -> dict[Key, Run]:
    """Trials and runs by their keys, each after those that it needs."""
    trials = [trial for run in runs for trial in run.trials]
    return {run.key: run for run in (*trials, *runs)}


def stored(runs: Iterable[Run]) -> dict[Key, Line]:
    """The stored lines of these runs' files."""
    lines = {}
    for name in dict.fromkeys(run.folder for run in runs):
        for line in (*results.packed(name), *results.recent(name).values()):
            lines[name, line["hash"]] = line
    return lines


def plan(
    recipe: str | None = None, scale: str = "quick", **choice: Any
) -> "pandas.DataFrame":
    """A row for each run that ``reproduce`` would do or find, and for each trial: the
    columns of ``Run.row``, ``stored``, and ``hours`` of what is stored."""
    with extra("plot"):
        import pandas

    listed = trials_first(runs(recipe, scale, **choice))
    lines = stored(listed.values())
    rows = []
    for key, run in listed.items():
        origin = lines[key]["meta"]["provenance"] if key in lines else {}
        hours = float(origin.get("seconds", math.nan)) / 3600
        rows.append({**run.row, "stored": key in lines, "hours": hours})
    return pandas.DataFrame(rows)


# ---- doing them ----------------------------------------------------------------------


def make(run: Run, origin: dict[str, str], progress: bool | None = None) -> None:
    """Do one run, from its checkpoint if there is one, and write its line to a file."""
    folder, name = run.key
    path = results.RECENT / folder / f"{name}.json"
    checkpoint = path.with_suffix(".checkpoint")
    began = time.monotonic()
    line = train(run, checkpoint, progress)
    seconds = time.monotonic() - began
    line["meta"]["provenance"] = origin | {
        "hardware": hardware(run.experiment.device),
        "seconds": f"{seconds:.1f}",
    }
    line = {"hash": name, "experiment": run.entry, **line}
    write_text(path, to_json(line) + "\n")
    checkpoint.unlink(missing_ok=True)
    print(f"{folder}, {run.label}: done in {seconds:.1f} s", flush=True)


def train(run: Run, checkpoint: Path, progress: bool | None = None) -> Line:
    """The history of a run, with the best value of its trials and the scales of its
    search."""
    e = run.experiment
    options: Line = {}
    meta: Line = {"label": run.label}
    if run.trials:
        lines = stored([run])
        accuracy = {}
        for trial in run.trials:
            history = History.from_dict(lines[trial.key])
            value = trial.experiment.options[run.tuned]
            accuracy[value] = history.late_accuracy() if history.evaluated else math.nan
        options[run.tuned] = best(accuracy)
        meta |= {"tuned": {run.tuned: accuracy}, "chosen_on": "validation"}
    meta["options"] = {"method": e.method, **e.options, **options}
    if run.search:
        options["scales"] = search(run)
    task = e.make_task()
    history = federate(
        run.method(**options),
        task,
        e.rounds,
        engine=run.engine,
        threads=e.threads,
        checkpoint=checkpoint,
        progress=progress,
        **asdict(e.settings),
    )
    history.meta |= meta
    return history.to_dict()


def best(accuracy: dict[Any, float]) -> Any:
    """The value with the highest accuracy, of equal ones the smallest."""
    finite = {value: a for value, a in sorted(accuracy.items()) if not math.isnan(a)}
    if not finite:
        raise ValueError(
            f"No trial of {', '.join(map(str, accuracy))} gave an accuracy."
        )
    return max(finite, key=finite.__getitem__)


def search(run: Run) -> Scales:
    """The scales that the server's search finds, or found: its checkpoint stays."""
    entry = run.entry["scales"]
    options = dict(run.search)
    data = {name: options.pop(name) for name in SEARCHED if name in options}
    network = entry["network"]
    device = run.experiment.device
    e = Experiment(network=network, clients=1, device=device, **data)
    path = results.RECENT / run.folder / f"{results.hash_of(entry)}.search"
    return repopt_search(e.make_task(), network=network, checkpoint=path, **options)


def hardware(device: str) -> str:
    """The name of the processor or GPU, and the number of cores."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    names = re.findall(r"model name\s*: (.*)", text)
    return f"{(*names, platform.machine())[0]}, {os.cpu_count()} cores"


def reproduce(
    recipe: str | None = None,
    scale: str = "quick",
    jobs: int = 1,
    progress: bool | None = None,
    **choice: Any,
) -> "pandas.DataFrame":
    """Do the runs that ``runs`` lists and nobody stored, their trials first. Return the
    summary of the stored runs.

    An error ends it, and so does Ctrl-C; the same call goes on from there."""
    with extra("lab"):
        from joblib import Parallel, delayed

    check_whole("jobs", jobs)
    listed = runs(recipe, scale, **choice)
    lines = stored(listed)
    todo = trials_first([run for run in listed if run.key not in lines])
    todo = {key: run for key, run in todo.items() if key not in lines}
    for run in {run.row["data"]: run for run in todo.values()}.values():
        run.experiment.make_task()  # data are fetched once, before several processes
    origin = results.provenance()
    for kind in ("trial", "run"):
        Parallel(jobs)(
            delayed(make)(run, origin, progress if jobs == 1 else False)
            for run in todo.values()
            if run.kind == kind
        )
    lines = stored(listed)
    histories: dict[str, list[History]] = {}
    for run in listed:
        values = [run.row[name] for name in ("row", "task", "data", "partition")]
        history = History.from_dict(lines[run.key])
        histories.setdefault(" ".join(values), []).append(history)
    return results.summary(histories)


def pack() -> list[str]:
    """Move finished runs of ``runs/`` into the packed files; return a line a file.

    A run replaces that of the same experiment; others are added at the end. Runs of
    uncommitted code are refused.
    """
    report = []
    for folder in sorted(results.RECENT.glob("*")):
        new = results.recent(folder.name)
        for path, line in new.items():
            if not results.committed(line):
                raise ValueError(
                    f"{path} is of uncommitted code: commit, remove it, run again."
                )
        if new:
            lines = [*results.packed(folder.name), *new.values()]
            by_hash = {line["hash"]: line for line in lines}
            results.write(results.packed_file(folder.name), by_hash.values())
            report.append(f"{folder.name}: {len(new)} runs packed")
        for path in new:
            path.unlink()
    return report

"""Recipes: the papers' tables and figures as lists of runs
(``data/<chapter>/recipes.yaml``), at one of three scales. ``reproduce`` does those that
are not stored."""

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
from ..errors import check_whole, extra, pick
from ..files import read_yaml, to_json, write_text
from ..history import History
from ..methods import METHODS, fed_repopt_search
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
NETWORKS = {  # of recipes that name none; else cifar_cnn
    "digits": "digits_cnn",
    "mnist": "mcmahan_cnn",
    "fashion_mnist": "mcmahan_cnn",
}
# The seed of a recipe's trials is this number plus the recipe's first seed. No run has it.
TRIAL_SEED = 1000
ROW = ("method", "but", "scales", "tune")  # entries of a row that are no options
Key = tuple[str, str]  # a file of stored runs, and the hash of an experiment


@dataclass(frozen=True)
class Run:
    """A run of a recipe, or a trial or search that a run needs.

    Parameters
    ----------
    folder : str
        The name of the file of stored runs.
    label : str
        The name of the row in the recipe.
    experiment : Experiment
        The run in plain values.
    kind : str
        "run", "trial" or "search".
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
    command : tuple of str
        The words that repeat the run.
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
    command: tuple[str, ...] = ()

    @property
    def entry(self) -> Line:
        """The experiment of the stored line, without defaults and the machine."""
        if self.kind == "search":
            network = self.experiment.network
            return {"method": "search", "network": network, **self.search}
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
        for search in self.searches:
            line["scales"] = search.entry
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

    @property
    def searches(self) -> list["Run"]:
        """The search that finds the run's scales, if it needs one."""
        if not self.search or self.kind == "search":
            return []
        network = self.experiment.options["network"]
        e = Experiment(
            method="fed_repopt",
            network=network,
            clients=1,
            device=self.experiment.device,
            **{n: v for n, v in self.search.items() if n in SEARCHED},
        )
        search = Run(self.folder, f"search {network}", e, "search")
        return [replace(search, search=self.search, command=self.command)]

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
    only: Iterable[str] = (),
    seeds: Iterable[int] = (),
    split: Iterable[str] = (),
    device: str = "cpu",
) -> list[Run]:
    """The runs of a recipe, of a paper's recipes, or of all, each once.

    ``only`` (labels of rows), ``seeds`` and ``split`` (partitions) select some of them.
    """
    pick(scale, dict.fromkeys(SCALES), "scale")
    if recipe is not None:
        pick(recipe, PAPERS | RECIPES, "paper or recipe")
    device = device if device.startswith("cuda") else str(find_device(device))
    machine = {"device": device}
    if device.startswith("cuda") and scale == "full":
        machine["precision"] = "bf16"
    listed: dict[Key, Run] = {}
    reasons = []
    for name, entry in RECIPES.items():
        if recipe not in (None, name, entry["paper"]):
            continue
        if scale not in entry:
            reasons.append(entry["without"][scale])
            continue
        common = {
            "folder": results_folder(entry.get("folder", entry["paper"]), scale),
            "command": ("fedlearn", "reproduce", name, "--scale", scale),
            "first": entry[scale]["seeds"][0],
        }
        for block in entry[scale]["runs"]:
            for run in runs_of(block | machine | common, entry[scale]["seeds"]):
                listed.setdefault(run.key, run)
    if not listed:
        why = "; ".join(reasons)
        raise ValueError(f"{recipe} has no runs of scale {scale}: {why}.")
    return select(list(listed.values()), row=only, partition=split, seed=seeds)


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
    signature = inspect.signature(METHODS[row["method"]]).parameters
    options = {n: v for n, v in block.get("all", {}).items() if n in signature}
    for name, value in row.items():
        if name not in ROW:
            options[name] = value
    names = {f.name for f in fields(Experiment)}
    values = {n: v for n, v in block.items() if n in names}
    values |= {"method": row["method"], "options": options}
    values |= {"partition": partition, "seed": seed}
    if "task" not in values:
        dataset = values.get("dataset", "digits")
        values.setdefault("network", NETWORKS.get(dataset, "cifar_cnn"))
    words = ("--only", label, "--partition", partition, "--seed", str(seed))
    on_gpu = block["device"].startswith("cuda")
    run = Run(
        block["folder"],
        label,
        Experiment(**values),
        engine=block.get("engine", "auto" if on_gpu else "sequential"),
        but=row.get("but", {}),
        search=row.get("scales", {}),
        command=(*block["command"], *words),
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


def with_needs(runs: Iterable[Run]) -> dict[Key, Run]:
    """Searches, trials and runs by their keys, each after those that it needs."""
    runs = list(runs)
    trials = [trial for run in runs for trial in run.trials]
    searches = [search for run in (*trials, *runs) for search in run.searches]
    return {run.key: run for run in (*searches, *trials, *runs)}


def stored(runs: Iterable[Run]) -> dict[Key, Line]:
    """The stored lines of these runs' files.

    Packed lines do not count if their code was not committed, or if an option was
    chosen on test images.
    """
    lines = {}
    for name in dict.fromkeys(run.folder for run in runs):
        for line in results.packed(name):
            on_test = "tuned" in line["meta"] and "chosen_on" not in line["meta"]
            if results.committed(line) and not on_test:
                lines[name, line["hash"]] = line
        for line in results.recent(name).values():
            lines[name, line["hash"]] = line
    return lines


def plan(
    recipe: str | None = None, scale: str = "quick", **choice: Any
) -> "pandas.DataFrame":
    """A row for each run that ``reproduce`` would do or find, and for each trial and
    search: the columns of ``Run.row``, ``stored``, and ``hours`` of what is stored."""
    with extra("plot"):
        import pandas

    listed = with_needs(runs(recipe, scale, **choice))
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
    do = search if run.kind == "search" else train
    line = do(run, checkpoint, progress)
    seconds = time.monotonic() - began
    line["meta"]["provenance"] = origin | {
        "command": shlex.join(run.command),
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
    lines = stored([run])
    options = {}
    meta: Line = {"label": run.label}
    if run.trials:
        accuracy = {}
        for trial in run.trials:
            history = History.from_dict(lines[trial.key])
            value = trial.experiment.options[run.tuned]
            accuracy[value] = history.late_accuracy() if history.evaluated else math.nan
        options[run.tuned] = best(accuracy)
        meta |= {"tuned": {run.tuned: accuracy}, "chosen_on": "validation"}
    meta["options"] = {"method": e.method, **e.options, **options}
    for need in run.searches:
        scales = lines[need.key]["scales"]
        tensors = {name: torch.tensor(values) for name, values in scales.items()}
        options["scales"] = Scales(tensors)
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
    if task.source.note:
        meta["note"] = task.source.note
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


def search(run: Run, checkpoint: Path, progress: bool | None = None) -> Line:
    """The scales that the server's search finds."""
    task = run.experiment.make_task()
    scales = fed_repopt_search.repopt_search(
        task,
        network=run.experiment.network,
        checkpoint=checkpoint,
        **{n: v for n, v in run.search.items() if n not in SEARCHED},
    )
    note = {"note": task.source.note} if task.source.note else {}
    return {"meta": note, "scales": {n: t.tolist() for n, t in scales.tensors.items()}}


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
    """Do the runs that ``runs`` lists and nobody stored: searches, then trials, then
    the runs. Return the summary of the stored runs.

    An error ends it, and so does Ctrl-C; the same call goes on from there."""
    with extra("plot"):
        import pandas  # noqa: F401  before hours of runs, not after
    with extra("lab"):
        from joblib import Parallel, delayed

    check_whole("jobs", jobs)
    listed = runs(recipe, scale, **choice)
    lines = stored(listed)
    todo = with_needs(run for run in listed if run.key not in lines)
    todo = {key: run for key, run in todo.items() if key not in lines}
    for run in {run.row["data"]: run for run in todo.values()}.values():
        run.experiment.make_task()  # data are fetched once, before several processes
    origin = results.provenance()
    for kind in ("search", "trial", "run"):
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

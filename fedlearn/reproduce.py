"""Do the runs of the recipes (``recipes.py``) that are not stored, each into a file of its own in
``runs/`` below the working directory; ``fedlearn pack`` puts them beside the book's."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from . import checkpoint, newcomers, recipes, results, round
from .arguments import checked
from .data import published, sources
from .errors import DataError, pick, said
from .experiment import Experiment
from .files import write_text
from .history import History
from .methods import fed_repopt_search
from .models.repopt import Scales
from .recipes import Run, Search
from .report import spread
from .results import Line
from .settings import whole_number
from .tasks.base import find_device

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

LIKE = (  # runs take equally long that share all of these, or else all of those
    ("label", "method", "dataset", "network", "partition", "clients", "epochs", "rounds", "train"),
    ("method", "dataset", "network", "rounds", "train"),
)


def say(line: str) -> None:
    """Print at once: who looks at a file that this is written to sees how far it is."""
    print(line, flush=True)


# ---- what is there -------------------------------------------------------------------------------


def stored(runs: Iterable[Run], root: Path | None = results.RECENT) -> dict[tuple[str, str], Line]:
    """What is stored in the files of these runs, by file and key; without ``root``, packed."""
    found = {}
    for name in dict.fromkeys(run.folder for run in runs):
        lines = (*results.packed(name), *(results.recent(name, root).values() if root else ()))
        found |= {(name, line["hash"]): line for line in lines}
    return found


def absent(task: str, name: str, train: int, test: int) -> str:
    """What somebody has to bring so that so many images are on this machine; empty if nothing."""
    its = sources.missing([name])
    if its and (sources.offline() or not sources.about(name).torchvision):
        return its[0]
    try:
        there = published.there(task, name)
    except DataError as error:
        return f"{str(error).rstrip('.')} (the whole is {sources.origin(name)})"
    if there is None or (train <= there[0] and test <= there[1]):
        return ""
    return (
        f"{name} has {there[0]} of {train} images to train and {there[1]} of {test} to test here: "
        f"the whole is {sources.origin(name)}"
    )


def fetch(task: str, name: str, train: int, test: int) -> str:
    """Load a data set; what is wrong with it, if anything is."""
    try:
        if name not in sources.SETS:
            sources.found(name)
            return ""
        its, known = sources.load(name), published.known(task, name)
        here, whole = (len(its.train_y), len(its.test_y)), (known.train, known.test)
        if here == whole or published.there(task, name):  # a part may be enough
            return ""
        return f"the copy of {name} at {sources.found(name)} has {here} images, not {whole}"
    except DataError as error:
        return str(error)


def hours(run: Run | Search, lines: Iterable[Line]) -> float | None:
    """About how long a run takes: the median of those stored that are most like it, if any is."""
    for names in LIKE:
        own = [run.stated.get(n) for n in names]
        like = [x for x in lines if [x["experiment"].get(n) for n in names] == own]
        if like:
            return median(map(seconds, like)) / 3600
    return None


def seconds(line: Line) -> float:
    """What a stored run took."""
    return float(line["meta"].get("provenance", {}).get("seconds", 0.0))


# ---- running -------------------------------------------------------------------------------------


def do(
    run: Run | Search,
    provenance: Mapping[str, str] | None = None,
    progress: bool | None = None,
    root: Path = results.RECENT,
) -> Line:
    """One run, which goes on from its checkpoint if there is one -> what its file now holds. Its
    tries and its search are stored."""
    path = root / run.folder / f"{recipes.file_name(run.name)}-{run.key[:8]}.json"
    going, began = path.with_suffix(".checkpoint"), time.monotonic()
    if isinstance(run, Search):
        made, device = search(run, going), run.device
    else:
        made, device = train(run, going, progress, root), run.experiment.device
    # those of a run that was stopped are those of its rounds, without their evaluation
    took = max(time.monotonic() - began, made.pop("seconds"))
    here = {"date": time.strftime("%Y-%m-%d"), "hardware": hardware(device)}
    made["meta"]["provenance"] = {**(provenance or {}), **here, "seconds": f"{took:.1f}"}
    line = {"hash": run.key, "experiment": run.stated, **made}
    write_text(path, json.dumps(line) + "\n")
    going.unlink(missing_ok=True)
    return line


def train(run: Run, going: Path, progress: bool | None, root: Path) -> Line:
    """The history of a run."""
    e, there = run.experiment, stored([run], root)
    tuned, best = {}, {}
    if run.tries:
        tried = {
            t.experiment.options[run.tuned]: reached(there[t.folder, t.key]) for t in run.tries
        }
        if all(map(math.isnan, tried.values())):
            raise ValueError(f"no value of {run.tuned} that was tried gave an accuracy.")
        # what diverged has NaN
        best = {run.tuned: max(tried, key=lambda v: (tried[v] == tried[v], tried[v]))}
        tuned = {"tuned": {run.tuned: tried}}
    scales = {}
    if run.search:
        found = there[run.folder, run.search.key]["scales"]
        scales = {"scales": Scales({name: torch.tensor(its) for name, its in found.items()})}
    method, task = run.method(**best, **scales), e.make_task()
    how = asdict(e.settings) | {"engine": run.engine, "threads": e.threads, "progress": progress}
    history = round.run(method, task, e.rounds, checkpoint=going, **how)
    if run.newcomers:
        its = newcomers.newcomers(method, e, history.state or {}, task.sizes[0], run.newcomers)
        history.meta["newcomers"] = its
    history.meta |= {"label": run.label, "options": run.options(**best), **tuned}
    history.meta |= {"note": task.source.note} if task.source.note else {}
    return history.to_dict() | {"seconds": float(history.seconds.sum())}


def search(run: Search, going: Path) -> Line:
    """The scales that the server's search finds."""
    spec = dict(run.spec)
    data = {k: spec.pop(k) for k in ("dataset", "train", "seed") if k in spec}
    task = Experiment(**data, clients=1, network=run.network, device=run.device).make_task()
    found = fed_repopt_search.search(task, network=run.network, checkpoint=going, **spec)
    note = {"note": task.source.note} if task.source.note else {}
    took = float(checkpoint.history(going).seconds.sum())
    return {"meta": note, "scales": {n: t.tolist() for n, t in found.of.items()}, "seconds": took}


def reached(line: Line) -> float:
    """The last accuracy, NaN if none could be measured."""
    seen = [row["accuracy"] for row in line["rows"] if row["accuracy"] is not None]
    return seen[-1] if seen else float("nan")


def hardware(device: str) -> str:
    """The processor's name, or the GPU's, and how many cores there are."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    import platform

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [x.split(": ")[1] for x in lines if x.startswith("model name")]
    return f"{(*names, platform.machine())[0]}, {os.cpu_count()} cores"


def attempt(run: Run | Search, *how: Any) -> tuple[Run | Search, str, bool]:
    """The run, what came of it, and whether it is stored now."""
    try:
        line = do(run, *how)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        return run, said(error), False
    what = f"accuracy {reached(line):.4f}" if "rows" in line else "scales found"
    return run, f"{what} after {seconds(line):.0f} s", True


@checked
def reproduce(
    recipe: str | None = None,
    scale: str = "quick",
    jobs: int = 1,
    provenance: dict[str, str] | None = None,
    progress: bool | None = None,
    report: Callable[[str], object] = say,
    **choice: Any,
) -> "pandas.DataFrame":
    """Do what ``recipes.runs`` lists and is not stored, so many ``jobs`` at a time, the most
    valuable first -> the table of what is stored.

    A run that was stopped goes on from its last round. What waits for data is left out; a run that
    fails does not keep the others from being done, and ``ValueError`` at the end names it. Before
    anything runs: ``DataError`` if no run has its data.
    """
    from joblib import Parallel, delayed

    whole_number("jobs", jobs)
    find_device(choice.get("device", "cpu"))
    runs, root = recipes.runs(recipe, scale, **choice), results.RECENT.absolute()
    todo = [r for r in runs if (r.folder, r.key) not in stored(runs)]
    without: dict[str, str] = {}
    for look in (absent, fetch):  # nothing is fetched for what waits for other data
        todo = [r for r in todo if not {d[1] for d in r.datasets} & without.keys()]
        of = dict.fromkeys(data for run in todo for data in run.datasets)
        without |= {data[1]: why for data in of if (why := look(*data))}
    todo = [r for r in todo if not {d[1] for d in r.datasets} & without.keys()]
    if without and not todo:
        raise DataError(f"No data set of these runs is here: {'; '.join(without.values())}.")
    for why in without.values():
        report(f"left out, missing: {why}")
    failed: dict[tuple[str, str], str] = {}
    how = provenance, progress if jobs == 1 else False, root
    pool = Parallel(jobs, return_as="generator_unordered")
    try:
        for _, group in groupby(todo, key=lambda run: run.turn):
            mains = list(group)
            before = {(r.folder, r.key): r for run in mains for r in run.needs}
            lacking = before.keys() - stored(mains).keys()
            for batch in ([r for key, r in before.items() if key in lacking], mains):
                left = [r for r in batch if isinstance(r, Search) or not _failed(r, failed)]
                for run, what, done in pool(delayed(attempt)(r, *how) for r in left):
                    report(f"{run.folder}, {run.name}: {what}")
                    if not done:
                        failed[run.folder, run.key] = run.name
    except KeyboardInterrupt:
        report("Stopped. What is finished is kept; the same command goes on from there.")
        raise
    if failed:
        raise ValueError(f"Not done, for the reasons above: {', '.join(failed.values())}.")
    return table(runs)


def _failed(run: Run, failed: dict[tuple[str, str], str]) -> bool:
    """Whether what it needs has failed; it then has, too."""
    if any((r.folder, r.key) in failed for r in run.needs):
        failed[run.folder, run.key] = run.name
        return True
    return False


# ---- what is stored, and what is to do -----------------------------------------------------------


def table(runs: list[Run]) -> "pandas.DataFrame":
    """Of each row of recipes that is stored: seeds, accuracy at the end and on average of the last
    five tests, megabytes of all clients."""
    import pandas

    there = stored(runs)
    lines = {run: there[run.folder, run.key] for run in runs if (run.folder, run.key) in there}
    made, rounds = results.tables([History.from_dict(line) for line in lines.values()])
    if made.empty:
        return pandas.DataFrame()
    for way in ("up", "down"):
        made[f"MB {way}"] = rounds.groupby("run")[f"bytes_{way}"].sum() / 1e6
    of = made.groupby(["task", "dataset", "partition", "label"], sort=False)
    found = of[["accuracy", "late"]].agg(lambda values: spread(list(values)))
    means = of[["MB up", "MB down"]].mean().round(2)
    return found.assign(seeds=of.size(), rounds=of["rounds"].first()).join(means)


@checked
def plan(recipe: str | None = None, scale: str = "quick", **choice: Any) -> str:
    """What ``reproduce`` would do: a line a run with its hours, as measured or about as long as
    runs like it took, with its short runs and search; the sums; data sets that are missing."""
    runs = recipes.runs(recipe, scale, **choice)
    there, lines, counted, sums = stored(runs), [], set(), {"stored": 0.0, "to do": 0.0}
    unknown, todo = 0, []
    for run in runs:
        state = "stored" if (run.folder, run.key) in there else "to do"
        todo += [run] * (state == "to do")
        took = spent(run, there, counted)
        unknown += took is None
        sums[state] += took or 0.0
        lines.append(
            f"{state:<8}{'unknown' if took is None else f'{took:.2f}':>8}  {run.folder}, {run.name}"
        )
    names = dict.fromkeys(data[1] for run in todo for data in run.datasets)
    brought = [absent(*data) for run in todo for data in run.datasets]
    gone = dict.fromkeys([*filter(None, brought), *sources.missing(names)])
    lines.append(
        f"{len(runs)} runs, {len(runs) - len(todo)} stored ({sums['stored']:.1f} hours), "
        f"{len(todo)} to do: about {sums['to do']:.1f} hours of one process"
        + (f", and {unknown} of which nobody knows." if unknown else ".")
    )
    lines += [f"missing: {line}" for line in gone]
    lines += [f"note: {n} here is {its}" for n in names if (its := sources.note(n))]
    return "\n".join(["state      hours  run", *lines])


def spent(run: Run, there: Mapping[tuple[str, str], Line], counted: set[Any]) -> float | None:
    """Hours of a run and what it needs, but for what is ``counted``: of what is stored, or about as
    many as what is not will take; ``None`` if that is unknown."""
    sums = 0.0
    for r in (*run.needs, run):
        key = r.folder, r.key
        if key in counted:
            continue
        counted.add(key)
        took = seconds(there[key]) / 3600 if key in there else hours(r, there.values())
        if took is None:
            return None
        sums += took
    return sums


def status(paper: str) -> "pandas.DataFrame":
    """A row for each table or figure of a paper that shows accuracies and each scale: its runs, how
    many are stored, the hours that they took, about how many the others take (NaN: unknown), and
    the command. Where there are no runs, it says why in place of the command; what has no recipe
    has the scale "none"."""
    import pandas

    pick(paper, recipes.PAPERS, "paper")
    nothing, found = (0, 0, 0.0, 0.0), []
    for name, its in recipes.RECIPES.items():
        for scale in recipes.SCALES if its["paper"] == paper else ():
            if scale not in its:
                found.append([its["shows"], scale, *nothing, f"not run: {its['without'][scale]}"])
                continue
            runs = recipes.runs(name, scale)
            there, counted = stored(runs, None), set[Any]()
            done = [(run.folder, run.key) in there for run in runs]
            took = [spent(run, there, counted) for run in runs]
            sums = [
                sum(
                    math.nan if h is None else h
                    for h, d in zip(took, done, strict=True)
                    if d == own
                )
                for own in (True, False)
            ]
            command = f"fedlearn reproduce {name} --scale {scale}"
            found.append([its["shows"], scale, len(runs), sum(done), *sums, command])
    for shows, why in recipes.WITHOUT.get(paper, {}).items():
        found.append([shows, "none", *nothing, f"no recipe: {why}"])
    columns = "table or figure,scale,runs,stored,hours spent,hours to go,command".split(",")
    return pandas.DataFrame(found, columns=columns).set_index(columns[:2])


# ---- packing -------------------------------------------------------------------------------------


def pack(names: tuple[str, ...] = (), root: Path = results.RECENT) -> list[str]:
    """Move the finished runs of recipes or papers, by default of all, from ``root`` into the packed
    files of the checkout, in the order of the recipes -> a line for each file.

    Runs of other rounds or images than a recipe's stay where they are. ``ValueError``, and nothing
    is packed, for a run of code that was not committed, or that is packed already."""
    if not (results.data_path().parent / "pyproject.toml").exists():
        raise ValueError("Runs are packed into a checkout of the book, and this is none.")
    for name in names:
        pick(name, recipes.PAPERS | dict.fromkeys(recipes.RECIPES), "paper or recipe")
    wanted = {(r.folder, r.key) for name in names or [None] for r in recipes.every(name)}
    order = {(r.folder, r.key): k for k, r in enumerate(recipes.every())}
    moved: dict[str, dict[Path, Line]] = {}
    for name in sorted({folder for folder, _ in wanted}):
        there = {line["hash"] for line in results.packed(name)}
        for path, line in results.recent(name, root).items():
            if (name, line["hash"]) not in wanted:
                continue
            commit = line["meta"].get("provenance", {}).get("commit", "unknown")
            if commit in ("unknown", "not a checkout") or commit.endswith("-dirty"):
                raise ValueError(
                    f"{path} is of code that was not committed (commit {commit}): commit it, "
                    "remove the file and run it again."
                )
            if line["hash"] in there:
                raise ValueError(f"{path} is packed already: remove the file.")
            there.add(line["hash"])
            moved.setdefault(name, {})[path] = line
    for name, its in moved.items():
        keyed = {(name, line["hash"]): line for line in (*results.packed(name), *its.values())}
        ordered = sorted(keyed, key=lambda key: (order.get(key, len(order)), key))
        results.write(
            results.data_path("results", name + results.PACKED), map(keyed.__getitem__, ordered)
        )
        for path in its:
            path.unlink()
    return [f"{name}: {len(its)} runs packed" for name, its in moved.items()]

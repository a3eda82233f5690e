"""Do the runs of the recipes (``recipes.py``) that are not stored, each into a file of its own in
``runs/`` below the working directory; ``fedlearn pack`` puts them beside the book's."""

import math
import os
import platform
import re
import shlex
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import date
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from . import recipes, results
from .arguments import checked
from .core import Method, State, Tensors, federation, local
from .data import sources
from .errors import DataError, error_text, extra, pick
from .experiment import Experiment
from .files import to_json, write_text
from .history import MEASURES, History
from .methods import fed_repopt_search
from .models.repopt import Scales
from .recipes import Run
from .results import Line
from .settings import whole_number
from .tasks.base import find_device

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

Key = tuple[str, str]  # of a run: its file and its hash
NEWCOMERS = 3
LIKE = (  # an image takes equally long in runs that share all of these, or else all of those
    ("label", "method", "dataset", "network", "partition", "clients", "epochs"),
    ("method", "dataset", "network"),
)


def stored(runs: Iterable[Run], root: Path | None = results.RECENT) -> dict[Key, Line]:
    """What is stored of these runs, but for packed ones of uncommitted code."""
    return {
        (name, line["hash"]): line
        for name in dict.fromkeys(run.folder for run in runs)
        for lines in (
            filter(committed, results.packed(name)),
            results.recent(name, root).values() if root else (),
        )
        for line in lines
    }


def committed(line: Line) -> bool:
    """Whether a run's code can be found again by its commit."""
    commit = line["meta"].get("provenance", {}).get("commit", "not a checkout")
    return commit != "not a checkout" and not commit.endswith("-dirty")


def accuracies(tries: Iterable[Run], lines: dict[Key, Line]) -> dict[Any, float]:
    """Value -> late accuracy on the validation images; NaN if none could be measured."""
    runs = {t.experiment.options[t.tuned]: History.from_dict(lines[t.key]) for t in tries}
    return {value: h.late_accuracy() if h.evaluated else math.nan for value, h in runs.items()}


def needed(run: Run, lines: dict[Key, Line]) -> list[Run]:
    """What has to be done before a run: its searches and tries, as far as ``lines`` tell."""
    tries = list(run.tries)
    while tries and all(t.key in lines for t in tries):
        value = recipes.wider(run.tuned, run.values, accuracies(tries, lines))
        if value is None:
            break
        tries.append(run.trial(value))
    searches = {r.search.key: r.search for r in (*tries, run) if r.search}
    return [*searches.values(), *tries]


def count_pictures(name: str) -> tuple[int, int] | None:
    """How many pictures of a set of ``LISTINGS`` are here, to train and to test."""
    if name not in sources.LISTINGS or not sources.available(name):
        return None
    place = sources.locate(name)
    try:
        return sources.count_listed(name, place)
    except (OSError, ValueError) as error:
        raise DataError(f"{place} is no {name} that can be read ({error}).") from None


def lacking(task: str, name: str, train: int, test: int, load: bool = False) -> str:
    """Why so many images of a data set cannot be had; with ``load`` it is fetched and counted."""
    try:
        missing = sources.missing([name])
        if missing and (sources.offline() or not sources.about(name).torchvision):
            return missing[0]
        part = count_pictures(name)
        if part and (train > part[0] or test > part[1]):
            counts = f"{part[0]} of {train} images to train and {part[1]} of {test} to test"
            return f"{name} has {counts} here: the whole is {sources.origin(name)}"
        if load and name in sources.SETS and not part:  # of some, a part is enough
            data, known = sources.load(name), recipes.whole_set("classification", name)
            here, whole = (len(data.train_y), len(data.test_y)), (known.train, known.test)
            place = f"the copy of {name} at {sources.locate(name)}"
            return "" if here == whole else f"{place} has {here} images, not {whole}"
    except DataError as error:
        return str(error)
    return ""


def do(
    run: Run,
    provenance: dict[str, str] | None = None,
    progress: bool | None = None,
    root: Path = results.RECENT,
) -> Line:
    """One run, from its checkpoint if there is one -> what its file now holds."""
    folder, name = run.key
    path = root / folder / f"{name}.json"
    saved, began = path.with_suffix(".checkpoint"), time.monotonic()
    line = search(run, saved) if run.spec else train(run, saved, progress, root).to_dict()
    # those of a run that was stopped are those of its rounds, without their evaluation
    took = max(time.monotonic() - began, sum(row["seconds"] for row in line.get("rows", ())))
    here = {"date": date.today().isoformat(), "hardware": hardware(run.experiment.device)}
    if run.command:  # not what happened to be typed for many runs
        here["command"] = shlex.join(run.command)
    line["meta"]["provenance"] = {**(provenance or {}), **here, "seconds": f"{took:.1f}"}
    line = {"hash": name, "experiment": run.stated, **line}
    write_text(path, to_json(line) + "\n")
    saved.unlink(missing_ok=True)
    return line


def train(run: Run, saved: Path, progress: bool | None, root: Path) -> History:
    """The history of a run, with the best value of its tries and the scales of its search."""
    e, lines, better = run.experiment, stored([run], root), {}
    needs = needed(run, lines)
    if lost := [need.name for need in needs if need.key not in lines]:
        raise ValueError(f"It needs {', '.join(lost)}, which failed.")
    if tried := accuracies((need for need in needs if need.short), lines):
        better = {run.tuned: recipes.best(tried)}
    scales = {}
    if run.search:
        values = lines[run.search.key]["scales"]
        scales = {"scales": Scales({name: torch.tensor(v) for name, v in values.items()})}
    method, task = run.method(**better, **scales), e.make_task()
    how = asdict(e.settings) | {"engine": run.engine, "threads": e.threads, "progress": progress}
    history = federation.run(method, task, e.rounds, checkpoint=saved, **how)
    if run.newcomers:
        new = newcomers(method, e, history.state or {}, task.sizes[0], run.newcomers)
        history.meta["newcomers"] = new
    history.meta |= {"label": run.label, "options": run.options(**better)}
    history.meta |= {"tuned": {run.tuned: tried}, "chosen_on": "validation"} if tried else {}
    history.meta |= {"note": task.source.note} if task.source.note else {}
    return history


def newcomers(
    method: Method, experiment: Experiment, weights: Tensors, images: int, epochs: int
) -> list[list[float]]:
    """Clients that arrive after the training, which left these ``weights`` (Figure 6 of FedFusion):
    each one's test accuracy before it trains alone and after 1, 2, ..., ``epochs`` epochs on so
    many new ``images``, at the rate of a first round."""

    def accuracy(task: Any, n: int) -> float:
        settings = replace(experiment.settings, participation=1.0, epochs=max(n, 1))
        server, state = method.server_side(task, settings), State(weights)
        threads = experiment.threads or local.good_threads(server.net, task, settings.batch_size)
        with local.threads(threads, settings.precision):
            if n:
                state, _ = federation.one_round(
                    server, federation.clients(method, task, settings), 1, state, {}
                )
            return server.evaluate(1, state, None)["accuracy"]

    curves = []
    for k in range(NEWCOMERS):
        seed = experiment.seed + 1000 * (k + 1)  # the recipes' own seeds are small numbers
        task = replace(experiment, clients=1, train=images, seed=seed).make_task()
        # each from the start: the longer begins as the shorter does
        curves.append([accuracy(task, n) for n in range(epochs + 1)])
    return curves


def search(run: Run, saved: Path) -> Line:
    """The scales that the server's search finds."""
    e, task = run.experiment, run.experiment.make_task()
    how = {n: v for n, v in run.spec.items() if n not in recipes.SEARCHED}
    scales = fed_repopt_search.search(task, network=e.network, checkpoint=saved, **how)
    note = {"note": task.source.note} if task.source.note else {}
    return {"meta": note, "scales": {n: t.tolist() for n, t in scales.of.items()}}


def hardware(device: str) -> str:
    """The processor's name, or the GPU's, and how many cores there are."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8") if info.exists() else ""
    names = re.findall(r"model name\s*: (.*)", lines)
    return f"{(*names, platform.machine())[0]}, {os.cpu_count()} cores"


def attempt(runs: list[Run], failed: dict[Key, str], *how: Any) -> dict[Key, str]:
    """Do runs, and before each what it needs, unless that is stored or failed, and say what came
    of it -> what failed, by its name."""
    failed = dict(failed)
    for run in runs:
        while True:  # tries show what else is to be tried
            lines = stored([run], how[-1])
            todo = [r for r in (*needed(run, lines), run) if r.key not in {*lines, *failed}]
            if not todo:
                break
            one = todo[0]
            try:
                line = do(one, *how)
                tests = [a for row in line.get("rows", ()) if (a := row["accuracy"]) is not None]
                outcome = f"last test {tests[-1]:.4f}" if tests else "done"
                outcome += f" after {_seconds(line):.0f} s"
            except (ValueError, RuntimeError, OSError, MemoryError) as error:
                outcome, failed[one.key] = error_text(error), one.name
            print(f"{one.folder}, {one.name}: {outcome}", flush=True)
    return failed


@checked
def reproduce(
    recipe: str | None = None,
    scale: str = "quick",
    jobs: int = 1,
    progress: bool | None = None,
    **choice: Any,
) -> "pandas.DataFrame":
    """Do what ``recipes.runs`` lists and is not stored, the most valuable first -> the table of
    what is. Runs whose data is missing are left out; a run that fails is named at the end."""
    from joblib import Parallel, delayed

    with extra("plot"):
        import pandas  # noqa: F401  what the table needs is said before hours of runs
    whole_number("jobs", jobs)
    find_device(choice.get("device", "cpu"))
    runs = recipes.runs(recipe, scale, **choice)
    finished, without = stored(runs), dict[str, str]()
    todo = [run for run in runs if run.key not in finished]
    for load in (False, True):  # nothing is fetched for what waits for other data
        data = dict.fromkeys(data for run in todo for data in run.datasets)
        without |= {d[1]: why for d in data if (why := lacking(*d, load))}
        todo = [run for run in todo if not {d[1] for d in run.datasets} & without.keys()]
    if without and not todo:
        raise DataError(f"No data set of these runs is here: {'; '.join(without.values())}.")
    for why in without.values():
        print(f"left out, missing: {why}", flush=True)
    failed, pool = dict[Key, str](), Parallel(jobs)
    how = results.provenance(), progress if jobs == 1 else False, results.RECENT.absolute()
    try:
        for _, mains in groupby(todo, key=lambda run: run.turn):
            shared: dict[Key, list[Run]] = {}  # those that need the same are one task
            for run in mains:
                shared.setdefault((*needed(run, {}), run)[0].key, []).append(run)
            for more in pool(delayed(attempt)(its, failed, *how) for its in shared.values()):
                failed |= more
    except KeyboardInterrupt:
        print("Stopped. What is finished is kept; the same command goes on from there.")
        raise
    if failed:
        raise ValueError(f"Not done, for the reasons above: {', '.join(failed.values())}.")
    return table(runs)


def table(runs: list[Run]) -> "pandas.DataFrame":
    """Of each stored row: seeds, accuracies, megabytes, images that an option was chosen on."""
    lines = stored(runs)
    histories = [History.from_dict(lines[run.key]) for run in runs if run.key in lines]
    frame, rounds = results.tables(histories)
    if frame.empty:
        return frame
    for way in ("up", "down"):
        frame[f"MB {way}"] = rounds.groupby("run")[f"bytes_{way}"].sum() / 1e6
    rows = frame.groupby(["task", "dataset", "partition", "label"], sort=False)
    reached = rows[list(MEASURES)].agg(lambda values: results.spread(list(values)))
    means = rows[["MB up", "MB down"]].mean().round(2)
    more = {"seeds": rows.size()} | {n: rows[n].first() for n in ("rounds", "chosen on")}
    return reached.assign(**more).join(means)


def listing(runs: Iterable[Run], lines: dict[Key, Line]) -> "pandas.DataFrame":
    """A row a run: ``file``, ``name``, ``stored``, and ``hours`` of it and of what it needs that no
    run above counted; NaN if nobody knows."""
    with extra("plot"):
        import pandas

    rows, counted = [], set[Key]()
    for run in runs:
        parts = [r for r in (*needed(run, lines), run) if r.key not in counted]
        took = sum(_seconds(lines[r.key]) if r.key in lines else _like(r, lines) for r in parts)
        rows.append([run.folder, run.name, run.key in lines, took / 3600])
        counted |= {r.key for r in parts}
    return pandas.DataFrame(rows, columns=["file", "name", "stored", "hours"])


def _like(run: Run, lines: dict[Key, Line]) -> float:
    """Seconds: the median of the most similar stored runs in proportion to its images, or NaN."""
    stated = run.stated | ({"label": run.row} if run.short else {})
    for names in LIKE:
        alike = [
            x for x in lines.values() if all(x["experiment"].get(n) == stated.get(n) for n in names)
        ]
        if alike:
            return median(_seconds(x) / _work(x["experiment"]) for x in alike) * _work(stated)
    return math.nan


def _work(stated: dict[str, Any]) -> int:
    """Images of all rounds."""
    task, name = (stated.get(n, getattr(Experiment, n)) for n in ("task", "dataset"))
    images = stated.get("train") or recipes.whole_set(task, name).train
    return int(stated.get("rounds", Experiment.rounds) * images)


def _seconds(line: Line) -> float:
    return float(line["meta"].get("provenance", {}).get("seconds", 0.0))


@checked
def plan(recipe: str | None = None, scale: str = "quick", **choice: Any) -> str:
    """What ``reproduce`` would do: runs with hours, as measured or about, and missing data sets."""
    runs = recipes.runs(recipe, scale, **choice)
    finished, lines = stored(runs), ["state      hours  run"]
    rows = listing(runs, finished)
    for row in rows.itertuples():
        took = "unknown" if math.isnan(row.hours) else f"{row.hours:.2f}"
        lines.append(f"{'stored' if row.stored else 'to do':<8}{took:>8}  {row.file}, {row.name}")
    done, unknown = rows["stored"], rows["hours"].isna().sum()
    spent, left = (rows["hours"][which].sum() for which in (done, ~done))
    lines.append(
        f"{len(rows)} runs, {done.sum()} stored ({spent:.1f} hours), {(~done).sum()} to do: about "
        f"{left:.1f} hours of one process"
        + f", and {unknown} of which nobody knows"
        * bool(unknown)
    )
    data = dict.fromkeys(d for run in runs if run.key not in finished for d in run.datasets)
    names = dict.fromkeys(name for _, name, *_ in data)
    missing = [*filter(None, (lacking(*d) for d in data)), *sources.missing(names)]
    lines += [f"missing: {why}" for why in dict.fromkeys(missing)]
    lines += [f"note: {n} here is {note}" for n in names if (note := sources.note(n))]
    return "\n".join(lines)


def status(paper: str) -> "pandas.DataFrame":
    """A row for each table or figure of a paper and each scale: runs, how many are stored, hours
    spent and to go (NaN: unknown), and the command, or why there are no runs."""
    with extra("plot"):
        import pandas

    pick(paper, recipes.PAPERS, "paper")
    nothing, rows = (0, 0, 0.0, 0.0), []
    for name, recipe in recipes.RECIPES.items():
        for scale in recipes.SCALES if recipe["paper"] == paper else ():
            counts, command = nothing, f"fedlearn reproduce {name} --scale {scale}"
            if scale in recipe:
                runs = recipes.runs(name, scale)
                each = listing(runs, stored(runs, None))
                done, hours = each["stored"], each["hours"]
                spent, left = (hours[which].sum(skipna=False) for which in (done, ~done))
                counts = len(each), done.sum(), spent, left
            else:
                command = f"not run: {recipe['without'][scale]}"
            rows.append([recipe["shows"], scale, *counts, command])
    for shows, why in recipes.WITHOUT.get(paper, {}).items():
        rows.append([shows, "none", *nothing, f"no recipe: {why}"])
    columns = "table or figure,scale,runs,stored,hours spent,hours to go,command".split(",")
    return pandas.DataFrame(rows, columns=columns).set_index(columns[:2])


def order() -> dict[Key, int]:
    """The place of each run that the recipes state, by its key, and by that of other choices."""
    every = [run for scale in recipes.SCALES for run in recipes.runs(None, scale)]
    lines = stored(every)
    known = dict.fromkeys(r.key for run in every for r in (*needed(run, lines), run))
    places = {key: number for number, key in enumerate(known)}
    return {run.place: places[run.key] for run in every} | places


def place_in(places: dict[Key, int], name: str, line: Line) -> int:
    """Where a line is in its file."""
    keys = (name, line["hash"]), (name, results.place_of(line["experiment"]))
    return next((places[key] for key in keys if key in places), len(places))


def pack() -> list[str]:
    """Move finished runs of ``runs/`` into the packed files, in the order of the recipes -> a line
    a file. They replace runs of the same row; of uncommitted code or packed ones nothing is
    moved."""
    if not (results.data_path().parent / "pyproject.toml").exists():
        raise ValueError("Runs are packed into a checkout of the book, and this is none.")
    places, moved = order(), dict[str, tuple[dict[Path, Line], list[Line]]]()
    for name in sorted({folder for folder, _ in places}):
        recent = {p: x for p, x in results.recent(name).items() if (name, x["hash"]) in places}
        if not recent:
            continue
        file = results.packed_file(name)
        lines = results.read(file, cut=False) if file.exists() else []  # a cut line would be lost
        hashes = [line["hash"] for line in lines if committed(line)]
        for path, line in recent.items():
            if not committed(line):
                raise ValueError(
                    f"{path} is of code that was not committed: commit, remove the file, run again."
                )
            if line["hash"] in hashes:
                raise ValueError(f"{path} is packed already: remove the file.")
        moved[name] = recent, lines
    for name, (recent, lines) in moved.items():
        new = {results.place_of(x["experiment"]) for x in recent.values()}
        old = [x for x in lines if results.place_of(x["experiment"]) not in new]
        known = [x for x in old if (name, x["hash"]) in places]
        if not any(results.is_whole(x) for x in old if x not in known):
            old = known  # what stale tries chose is not there any more
        every = sorted(
            [*old, *recent.values()], key=lambda x: (place_in(places, name, x), x["hash"])
        )
        results.write(results.packed_file(name), every)
        for path in recent:
            path.unlink()
    return [f"{name}: {len(recent)} runs packed" for name, (recent, _) in moved.items()]

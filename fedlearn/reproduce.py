"""Do the runs of the recipes (``recipes.py``): one file each, several processes side by side.

A run is claimed while it goes on, so that another process leaves it alone; its rounds are in a
checkpoint beside its file; the file is written in one step, and the checkpoint goes last.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import costs, newcomers, recipes, round
from .arguments import checked, short
from .data import published, sources
from .errors import DataError, pick, said
from .files import LOOK, check_writable, claim, write_text
from .history import History
from .recipes import Run
from .store import WAIT, Store, folder_of, origin, others, reached, text
from .tasks.base import find_device

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

NOTHING = 0, 0, 0.0, 0.0  # runs, of them stored, hours spent and to go


def needed(store: Store, runs: list[Run]) -> list[str]:
    """The data sets that runs need, and those of their searches that are not done."""
    names = [r.experiment.dataset for r in runs]
    names += [r.search["dataset"] for r in runs if r.search and store.searched(r) is None]
    return list(dict.fromkeys(names))


def fetch(names: list[str]) -> dict[str, str]:
    """Load the data sets -> those that cannot be had, or are no copies of what was published, and
    why."""
    found = {}
    for name in names:
        try:
            if name not in sources.SETS:
                sources.found(name)
                continue
            its, known = sources.load(name), published.known("classification", name)
            here, whole = (len(its.train_y), len(its.test_y)), (known.train, known.test)
            more = here[0] > whole[0] or here[1] > whole[1]
            # runs may need no more than the part of such a set that is there
            if here != whole and (more or not published.there("classification", name)):
                where = sources.origin(name, not sources.about(name).torchvision)
                found[name] = (
                    f"The copy of {name} at {sources.found(name)} has {here[0]} images to train "
                    f"and {here[1]} to test; published are {whole[0]} and {whole[1]}: replace or "
                    f"remove it; the whole is {where}."
                )
        except DataError as error:
            found[name] = str(error)
    return found


def in_part(runs: list[Run]) -> dict[str, set[Run]]:
    """The data sets of which less is on this machine than runs train or test on, or a damaged copy,
    a line each, and these runs."""
    found: dict[str, set[Run]] = {}
    kinds: dict[tuple, set[Run]] = {}
    for run in runs:
        kinds.setdefault((run.experiment.task, run.experiment.dataset), set()).add(run)
    for (task, dataset), of in kinds.items():
        try:
            there = published.there(task, dataset)
        except DataError as error:
            line = f"{str(error).rstrip('.')} (the whole is {sources.origin(dataset)})"
            found.setdefault(line, set()).update(of)
            continue
        less = {r for r in of if there and (r.images[0] > there[0] or r.images[1] > there[1])}
        if there and less:
            train, test = (max(r.images[i] for r in less) for i in (0, 1))
            line = (
                f"{dataset} has {there[0]} of {train} images to train and {there[1]} of {test} to "
                f"test here: the whole is {sources.origin(dataset)}"
            )
            found[line] = less
    return found


def waiting(store: Store, runs: list[Run]) -> dict[str, set[Run]]:
    """The runs that wait for data that somebody has to bring, by a line on what is missing."""
    found: dict[str, set[Run]] = {}
    for name in by_hand(needed(store, runs)):
        for line in sources.missing([name]):  # one for all sizes of its pictures
            found.setdefault(line, set()).update(r for r in runs if name in needed(store, [r]))
    return found | in_part(runs)


def by_hand(names: list[str]) -> list[str]:
    """Those of the data sets that this machine cannot download."""
    return [n for n in names if sources.offline() or not sources.about(n).torchvision]


def do(store: Store, run: Run, provenance: dict[str, str], progress: bool | None) -> History:
    """One run whose tries are stored, from its checkpoint if there is one."""
    e, tuned = run.experiment, store.tuned(run)
    # the largest number; what diverged has NaN
    best = {o: max(of, key=lambda v: (of[v] == of[v], of[v])) for o, of in tuned.items()}
    for option, of in tuned.items():
        if all(map(math.isnan, of.values())):
            raise ValueError(f"no value of {option} that was tried gave an accuracy.")
    scales = {"scales": store.scales(run, provenance)} if run.search else {}
    method = run.method(**best, **scales)
    task, began, path = e.make_task(), time.monotonic(), store.checkpoint(run)
    how = asdict(e.settings) | {"engine": run.engine, "threads": e.threads, "progress": progress}
    history = round.run(method, task, e.rounds, checkpoint=path, **how)
    if run.newcomers:
        its = newcomers.newcomers(method, e, history.state or {}, task.sizes[0], run.newcomers)
        history.meta["newcomers"] = its
    # the seconds of a run that was stopped are those of its rounds, without their evaluation
    seconds = max(time.monotonic() - began, float(history.seconds.sum()))
    history.meta |= {"label": run.label, "options": run.options(**best)}
    history.meta |= {"tuned": tuned} if tuned else {}
    history.meta |= {"note": task.source.note} if task.source.note else {}
    history.meta["provenance"] = origin(provenance, e.device, seconds)
    write_text(store.path(run), text(history))
    path.unlink(missing_ok=True)
    return history


def say(line: str) -> None:
    """Print at once: who looks at a file that this is written to sees how far it is."""
    print(line, flush=True)


@checked
def reproduce(
    recipe: str | None = None,
    scale: str = "quick",
    out: str | Path | None = None,
    hours: float | None = None,
    provenance: dict[str, str] | None = None,
    report: Callable[[str], object] = say,
    progress: bool | None = None,
    **choice: Any,
) -> Path:
    """Do what ``recipes.runs`` lists and is not yet stored below ``out``.

    A run that was stopped goes on from its last round; one that another process is working on is
    left to it. ``hours`` is the time there is: what would not be done by then is not begun.
    Returns the folder. A run that fails does not keep the others from being done; what failed is
    reported, and ``ValueError`` at the end names the runs. Before anything runs: ``ValueError`` for
    a file that holds something else, ``OSError`` where none can be written, ``DataError`` for data
    that are not here, or in part.
    """
    if not callable(report):
        raise ValueError(f"report must be a function of a line, not {short(report)}.")
    provenance = {} if provenance is None else provenance
    if not isinstance(provenance, dict) or not all(
        isinstance(its, str) for its in provenance.values()
    ):
        raise ValueError(f"provenance must be a dict of texts, not {short(provenance)}.")
    find_device(choice.get("device", "cpu"))
    hours = costs.time_there_is(hours)
    store, runs = Store(folder_of(out, choice)), recipes.runs(recipe, scale, **choice)
    for sentence in others(store, runs).values():
        raise ValueError(sentence)
    for run in runs:
        store.searched(run)  # refuses a file that holds no scales
        for its in (*run.tries, run):
            store.tidy(its)
    todo = list(filter(store.lacks, runs))
    if not todo:
        report("All there already.")
        return store.root
    for run in todo:
        searched = [store.root / run.searched] if run.search else []
        for path in (*map(store.path, (*run.tries, run)), *searched):
            check_writable(path)
    estimate = costs.Estimate(store.get, runs, store.searched)
    wait = waiting(store, todo)
    ready = [r for r in todo if not any(r in of for of in wait.values())]
    # nothing is downloaded for no run
    failed = {} if ready else fetch(by_hand(needed(store, costs.fitting(todo, estimate, hours))))
    asked: set[str] = set()
    # without the runs of what cannot be had others fit into the hours
    while names := {*needed(store, costs.fitting(ready, estimate, hours))} - asked:
        asked |= names
        failed |= fetch(sorted(names))
        ready = [r for r in ready if not failed.keys() & needed(store, [r])]
    if not ready and (failed or wait):
        lines = [*failed.values()] or [f"{line}." for line in wait]
        absent = sources.missing(failed)
        raise DataError((f"Missing: {'; '.join(absent)}. " if len(absent) > 1 else "") + lines[0])
    for line in (*wait, *failed.values()):  # what waits for data need not keep the others
        report(f"left out, missing: {line}")
    todo = ready
    limit = float("inf") if hours is None else time.monotonic() + 3600 * hours
    try:
        _do_all(store, todo, estimate, limit, report, provenance, progress)
    except KeyboardInterrupt:
        report("Stopped. What is finished is kept; the same command goes on from there.")
        raise
    return store.root


def _do_all(
    store: Store,
    todo: list[Run],
    estimate: costs.Estimate,
    limit: float,
    report: Callable[[str], object],
    provenance: dict[str, str],
    progress: bool | None,
) -> None:
    """What can be begun before the clock shows ``limit``, beside other processes."""
    failed: dict[Run, None] = {}
    awaited: set[str] = set()
    queue = [(r, main) for main in todo for r in (*main.tries, main)]
    while queue := _left(store, queue, failed, report):
        to_go = [m for m in todo if not failed.keys() & {m, *m.tries}]
        to_go = [m for m in to_go if store.lacks(m) and not store.busy(m)]
        hours = None if math.isinf(limit) else max(0.0, (limit - time.monotonic()) / 3600)
        fits = {r: i for i, r in enumerate(costs.fitting(to_go, estimate, hours))}
        now = sorted((q for q in queue if q[1] in fits), key=lambda q: fits[q[1]])
        now = [
            (run, main)
            for run, main in now
            if not any(map(store.lacks, run.tries)) and not store.awaited(run)
        ]
        for run, _ in now:
            try:
                with claim(store.path(run, ".claim")) as mine:
                    if not mine or not store.lacks(run):
                        continue
                    if sentence := store.other(run):  # which another process has written since
                        raise ValueError(sentence)
                    history = do(store, run, provenance, progress)
                    if store.lacks(run):
                        raise ValueError(
                            store.other(run) or "its file is not there after it was written."
                        )
                what = f"accuracy {reached(history):.4f} after {len(history)} rounds"
            except (ValueError, RuntimeError, OSError, MemoryError) as error:
                failed[run], what = None, said(error)
            report(f"{run.where}: {what}")
            break
        else:
            others = {name for run, main in queue if main in fits for name in store.awaited(run)}
            free = [run for run, _ in now if store.lacks(run) and not store.busy(run)]
            new = not all(store.lacks(run) for run, _ in queue)  # another process was faster
            if not others and not free and not new:
                break
            for name in sorted(others - awaited):
                report(f"{name}: waiting for another process")
            awaited |= others
            time.sleep(LOOK if free or new else WAIT)
    for run, main in _left(store, queue, failed, report):
        why = [f"left out, as {r.where} failed" for r in (*main.tries, main) if r in failed]
        why += ["does not fit into the hours"] * (not store.busy(run) and limit < math.inf)
        why += ["another process is at it"]
        report(f"{run.where}: {why[0]}")
    if failed:
        names = ", ".join(run.where for run in failed)
        raise ValueError(f"Not done, for the reasons above: {names}.")


def _left(
    store: Store,
    queue: list[tuple[Run, Run]],
    failed: dict[Run, None],
    report: Callable[[str], object],
) -> list[tuple[Run, Run]]:
    """What of the queue is not done. A run whose file or claim cannot be read any more has
    failed."""
    found = []
    for run, main in queue:
        if run in failed:
            continue
        try:
            lacks = store.lacks(run)
            store.busy(run)
            if not failed.keys() & {*run.tries}:
                store.awaited(run)
        except (ValueError, OSError) as error:
            failed[run] = None
            report(f"{run.where}: {error}")
            continue
        found += [(run, main)] * lacks
    return found


@checked
def plan(
    recipe: str | None = None,
    scale: str = "quick",
    out: str | Path | None = None,
    hours: float | None = None,
    **choice: Any,
) -> str:
    """What ``reproduce`` would do, and which data sets it would miss. "fits" is what it would begin
    with these ``hours``. ``ValueError`` for a file that is no history, or that holds no scales; one
    that holds another run is in a line of its own."""
    store, runs = Store(folder_of(out, choice)), recipes.runs(recipe, scale, **choice)
    other, todo = others(store, runs), list(filter(store.lacks, runs))
    wait, names = waiting(store, todo), needed(store, todo)
    fetched = [n for n in names if sources.about(n).torchvision]
    states = {r: "running" for r in todo if store.busy(r)}
    states |= dict.fromkeys((r for of in wait.values() for r in of), "no data")
    states |= dict.fromkeys(other, "another")

    absent = dict.fromkeys([*sources.missing(fetched), *wait])
    lines = [*(f"missing: {line}" for line in absent), *other.values()]
    lines += [f"note: {n} here is {its}" for n in names if (its := sources.note(n))]
    estimate = costs.Estimate(store.get, runs, store.searched)
    return "\n".join([costs.plan(runs, estimate, states, hours), *lines])


def status(paper: str) -> "pandas.DataFrame":
    """A row for each table or figure of a paper that shows accuracies and each scale: its runs, how
    many are stored, the hours that they took, the hours to go, and the command. The hours to go are
    one CPU core's; at full scale a GPU's. Where there are no runs, it says why in place of the
    command; what has no recipe has the scale "none"."""
    import pandas

    pick(paper, recipes.PAPERS, "paper")
    store, found = Store(sources.data_path("results")), []
    device = dict.fromkeys(recipes.SCALES, "cpu") | {"full": "cuda"}
    own = [recipe for recipe in recipes.RECIPES.values() if recipe["paper"] == paper]
    there = [s for s in recipes.SCALES if any(s in recipe for recipe in own)]
    every = {s: recipes.runs(paper, s, device=device[s]) for s in there}
    estimates = {s: costs.Estimate(store.get, runs, store.searched) for s, runs in every.items()}
    for name in recipes.RECIPES:
        of = recipes.RECIPES[name]
        for scale in recipes.SCALES if of["paper"] == paper else ():
            if scale not in of:
                found.append([of["shows"], scale, *NOTHING, f"not run: {of['without'][scale]}"])
                continue
            runs = recipes.runs(name, scale, device=device[scale])
            rows = pandas.DataFrame(costs.rows(runs, store.get, estimates[scale]))
            sums = rows["stored"].sum(), rows["spent"].sum(), rows["needed"].sum()
            command = f"fedlearn reproduce {name} --scale {scale}"
            found.append([of["shows"], scale, len(runs), *sums, command])
    for shows, why in recipes.WITHOUT.get(paper, {}).items():
        found.append([shows, "none", *NOTHING, f"no recipe: {why}"])
    columns = "table or figure,scale,runs,stored,hours spent,hours to go,command".split(",")
    return pandas.DataFrame(found, columns=columns).set_index(columns[:2])

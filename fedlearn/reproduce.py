"""Do the runs of the recipes (``recipes.py``): one file each, several processes side by side.

A run is claimed while it goes on, so that another process leaves it alone; its rounds are in a
checkpoint beside its file; the file is written in one step, and the checkpoint goes last.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import costs, methods, recipes, round
from .data import sources
from .errors import DataError, pick
from .files import claim, claimed, write_text
from .history import History
from .models.repopt import Scales
from .recipes import Run
from .settings import Experiment

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

WAIT = 5.0  # seconds between two looks at what another process does


def text(history: History) -> str:
    """JSON with one line a round."""
    data = history.to_dict()
    rows, data["rows"] = ",\n".join(map(json.dumps, data["rows"])), []
    return json.dumps(data, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n]') + "\n"


class Store:
    """The files below ``root``, one a run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, History] = {}

    def path(self, run: Run, suffix: str = ".json") -> Path:
        """The run's file, or one beside it."""
        return self.root / run.folder / (run.name + suffix)

    def get(self, run: Run) -> History | None:
        """The stored run, if there is one."""
        path = self.path(run)
        if path not in self._read and path.exists():
            self._read[path] = History.from_json(path)
        return self._read.get(path)

    def busy(self, run: Run) -> bool:
        """Whether a process is working on it."""
        return claimed(self.path(run, ".claim"))

    def tuned(self, run: Run) -> dict[str, dict[float, float]]:
        """The tuned option, if there is one, and for each value the accuracy that it reached."""
        if not run.tries:
            return {}
        tries = {t.experiment.options[run.tuned]: self.get(t) for t in run.tries}
        return {run.tuned: {v: h.final["accuracy"] for v, h in tries.items() if h}}

    def scales(self, run: Run) -> Scales:
        """FedRepOpt's scales, which a search on data of the server's finds; kept in a file that is
        named by all that they depend on."""
        spec, e = dict(run.search or {}), run.experiment
        network = e.options["network"]
        words = [network, *(f"{k}-{v}" for k, v in sorted(spec.items()))]
        folder = self.root / run.folder.removesuffix("/tune") / "search"
        path = folder / f"{'-'.join(words)}.json"
        if not path.exists():
            data = {k: spec.pop(k) for k in ("dataset", "train", "seed") if k in spec}
            task = Experiment(**data, clients=1, network=network, device=e.device).make_task()
            found = methods.search(task, network=network, **spec)
            values = {name: t.tolist() for name, t in found.of.items()}
            write_text(path, json.dumps(values, indent=1) + "\n")
        values = json.loads(path.read_text(encoding="utf-8"))
        return Scales({name: torch.tensor(v) for name, v in values.items()})

    def other(self, runs: list[Run]) -> list[str]:
        """That other runs are stored under their names, a sentence each."""
        every = [r for run in runs for r in (*run.tries, run)]
        differ = {r: r.differences(h) for r in every if (h := self.get(r))}
        return [
            f"{self.path(r)} holds another run: {', '.join(names)} differ. It stays as it is; "
            "move it away, or name another folder (--out)."
            for r, names in differ.items()
            if names
        ]


def needed(runs: list[Run]) -> list[str]:
    """The data sets that runs and their searches need."""
    names = [n for r in runs for n in (r.experiment.dataset, (r.search or {}).get("dataset")) if n]
    return list(dict.fromkeys(names))


def fetch(names: list[str]) -> None:
    """Load the data sets; if one cannot be had, ``DataError`` names all that are missing."""
    absent = sources.missing(names)
    try:
        for name in names:
            (sources.load if name in sources.SETS else sources.found)(name)
    except DataError as error:
        several = f"Missing: {'; '.join(absent)}. " if len(absent) > 1 else ""
        raise DataError(f"{several}{error}") from error


def do(store: Store, run: Run, provenance: dict[str, str], progress: bool | None) -> History:
    """One run whose tries are stored, from its checkpoint if there is one."""
    e, tuned = run.experiment, store.tuned(run)
    best = {option: max(of, key=lambda value: of[value]) for option, of in tuned.items()}
    method = run.method(**best, **({"scales": store.scales(run)} if run.search else {}))
    task, began, checkpoint = e.make_task(), time.time(), store.path(run, ".checkpoint")
    how = asdict(e.settings) | {"engine": run.engine, "threads": e.threads, "progress": progress}
    history = round.run(method, task, e.rounds, checkpoint=checkpoint, **how)
    # the seconds of a run that was stopped are those of its rounds, without their evaluation
    seconds = max(time.time() - began, float(history.seconds.sum()))
    history.meta |= {"label": run.label, "options": run.options(**best)}
    history.meta |= {"tuned": tuned} if tuned else {}
    history.meta |= {"note": task.source.note} if task.source.note else {}
    origin = {"date": time.strftime("%Y-%m-%d"), "hardware": hardware(e.device)}
    history.meta["provenance"] = provenance | origin | {"seconds": f"{seconds:.1f}"}
    write_text(store.path(run), text(history))
    checkpoint.unlink(missing_ok=True)
    return history


def hardware(device: str) -> str:
    """The processor's name, or the GPU's, and how many cores there are."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    import platform

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [x.split(": ")[1] for x in lines if x.startswith("model name")]
    return f"{(*names, platform.machine())[0]}, {os.cpu_count()} cores"


def reproduce(
    recipe: str | None = None,
    scale: str = "quick",
    out: str | Path | None = None,
    hours: float | None = None,
    provenance: dict[str, str] | None = None,
    report: Callable[[str], object] = print,
    progress: bool | None = None,
    **choice: Any,
) -> Path:
    """Do what ``recipes.runs`` lists and is not yet stored below ``out``.

    A run that was stopped goes on from its last round; one that another process is working on is
    left to it. ``hours`` is the time there is: what would not be done by then is not begun.
    Returns the folder. A run that fails does not keep the others from being done; ``ValueError``
    at the end names it.
    """
    hours = costs.time_there_is(hours)
    store, runs = Store(folder_of(out, choice)), recipes.runs(recipe, scale, **choice)
    for sentence in store.other(runs):
        raise ValueError(sentence)
    todo = [r for r in runs if not store.get(r)]
    if not todo:
        report("All there already.")
        return store.root
    if recipe not in recipes.RECIPES:  # of many, those that wait for data fetched by hand can wait
        names = [name for name in needed(todo) if not sources.about(name).torchvision]
        for line in sources.missing(names):
            report(f"left out, missing: {line}")
        absent = {name for name in names if not sources.available(name)}
        todo = [r for r in todo if not absent & {*needed([r])}] or todo
    fetch(needed(todo))
    limit = float("inf") if hours is None else time.time() + 3600 * hours
    estimate = costs.Estimate(store.get, runs)
    failed: dict[Run, str] = {}
    queue = [(r, main) for main in todo for r in (*main.tries, main)]
    while queue:
        for run, main in queue:
            takes = sum(estimate.of(r)[0] for r in {run, main})
            if not all(map(store.get, run.tries)) or time.time() + takes > limit:
                continue
            with claim(store.path(run, ".claim")) as mine:
                if not mine or store.get(run):
                    continue
                what = f"{run.folder}/{run.name}"
                try:
                    history = do(store, run, provenance or {}, progress)
                    reached = f"accuracy {history.final['accuracy']:.4f}"
                    report(f"{what}: {reached} after {len(history)} rounds")
                except (ValueError, RuntimeError) as error:
                    failed[run] = f"{what}: {error}"
                    report(failed[run])
            break
        else:
            if not any(store.busy(t) for run, _ in queue for t in run.tries if not store.get(t)):
                break
            time.sleep(WAIT)  # another process is about to finish what is needed here
        queue = [(r, main) for r, main in queue if not store.get(r) and r not in failed]
    if failed:
        raise ValueError("Not done: " + "; ".join(failed.values()))
    for run, _ in queue:
        left = "another process is at it" if store.busy(run) else "does not fit into the hours"
        report(f"{run.folder}/{run.name}: {left}")
    return store.root


def plan(
    recipe: str | None = None,
    scale: str = "quick",
    out: str | Path | None = None,
    hours: float | None = None,
    **choice: Any,
) -> str:
    """What ``reproduce`` would do, and which data sets it would miss."""
    store, runs = Store(folder_of(out, choice)), recipes.runs(recipe, scale, **choice)
    absent = sources.missing(needed([r for r in runs if not store.get(r)]))
    lines = [*(f"missing: {line}" for line in absent), *store.other(runs)]
    return "\n".join([costs.plan(runs, store.get, store.busy, hours), *lines])


def status(paper: str) -> "pandas.DataFrame":
    """A row for each table or figure of a paper and each scale at which it can be reproduced: its
    runs, how many are stored, the hours that they took, the hours to go, and the command. The hours
    to go are one CPU core's; at full scale a GPU's."""
    import pandas

    pick(paper, recipes.PAPERS, "paper")
    store, found = Store(sources.data_path("results")), []
    device = dict.fromkeys(recipes.SCALES, "cpu") | {"full": "cuda"}
    every = {s: recipes.runs(paper, s, device=device[s]) for s in recipes.SCALES}
    estimates = {s: costs.Estimate(store.get, runs) for s, runs in every.items()}
    for name in recipes.RECIPES:
        of = recipes.RECIPES[name]
        for scale in (s for s in recipes.SCALES if s in of and of["paper"] == paper):
            runs = recipes.runs(name, scale, device=device[scale])
            rows = pandas.DataFrame(costs.rows(runs, store.get, estimates[scale]))
            sums = rows["stored"].sum(), rows["spent"].sum(), rows["needed"].sum()
            command = f"fedlearn reproduce {name} --scale {scale}"
            found.append([of["shows"], scale, len(runs), *sums, command])
    columns = "table or figure,scale,runs,stored,hours spent,hours to go,command".split(",")
    return pandas.DataFrame(found, columns=columns).set_index(columns[:2])


def folder_of(out: str | Path | None, choice: dict[str, Any]) -> Path:
    """Where runs are kept; ``ValueError`` for a file, and for the book's folder if the choice makes
    other runs of those that the book shows."""
    own = [o for o in ("rounds", "train", "test") if choice.get(o) is not None]
    if out is None and own:
        raise ValueError(
            f"With {', '.join(own)} of your own, name a folder of your own, too (--out FOLDER)."
        )
    root = Path(out or sources.data_path("results"))
    if root.is_file() or root.suffix == ".json":
        raise ValueError(f"{root} is a file; --out names a folder, in which each run has a file.")
    return root

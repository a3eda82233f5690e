"""Do the runs of the recipes (``recipes.py``): one file each, several processes side by side.

A run is claimed while it goes on, so that another process leaves it alone; its rounds are in a
checkpoint beside its file; the file is written in one step, and the checkpoint goes last.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch

from . import costs, methods, recipes, round, tasks
from .data import sources
from .errors import DataError
from .files import write_text
from .history import History
from .method import Method
from .models.repopt import Scales
from .recipes import Run

WAIT = 5.0  # seconds between two looks at what another process does


def text(history: History) -> str:
    """JSON with one line a round."""
    data = history.to_dict()
    rows, data["rows"] = ",\n".join(map(json.dumps, data["rows"])), []
    return json.dumps(data, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n]') + "\n"


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Whether ``path`` is now this process's; it is until the block ends, or the process does.

    The claim is a lock of the operating system on a file with the number of the process, so that
    none is left by one that died.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            yield False  # it was given back and removed just now
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield True
        finally:
            path.unlink()


def busy(path: Path) -> bool:
    """Whether a process has claimed ``path``."""
    import fcntl

    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


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
            self._read[path] = History.from_dict(json.loads(path.read_text(encoding="utf-8")))
        return self._read.get(path)

    def busy(self, run: Run) -> bool:
        """Whether a process is working on it."""
        return busy(self.path(run, ".claim"))

    def best(self, run: Run) -> dict[str, float] | None:
        """For each value of the tuned option the accuracy that it reached; ``None`` as long as one
        is missing."""
        tries = {t.row[run.tuned]: self.get(t) for t in run.tries}
        if not all(tries.values()):
            return None
        return {value: h.final["accuracy"] for value, h in tries.items() if h}

    def scales(self, run: Run) -> Path | None:
        """Where the scales of FedRepOpt are kept that a search on data of the server's finds,
        named by all that it depends on; ``None`` for a run that needs none."""
        spec = run.row.get("scales")
        if spec is None:
            return None
        words = [run.row["network"], *(f"{k} {v}" for k, v in sorted(spec.items()))]
        name = "-".join(map(str, words)).replace(" ", "-")
        return self.root / run.folder.removesuffix("/tune") / "search" / f"{name}.json"

    def search(self, run: Run, device: str) -> Scales:
        """Those scales, searched for if they are not there."""
        path, spec = self.scales(run), dict(run.row["scales"])
        assert path is not None
        if not path.exists():
            data = {k: spec.pop(k) for k in ("dataset", "train") if k in spec}
            task = tasks.classification(
                **data, clients=1, seed=0, network=run.row["network"], device=device
            )
            found = methods.search(task, network=run.row["network"], **spec)
            values = {name: t.tolist() for name, t in found.of.items()}
            write_text(path, json.dumps(values, indent=1) + "\n")
        values = json.loads(path.read_text(encoding="utf-8"))
        return Scales({name: torch.tensor(v) for name, v in values.items()})

    def method(self, run: Run, device: str) -> tuple[Method, dict[str, Any]]:
        """The method of a run, whose tries are stored, and its options as the run's file has
        them."""
        best = self.best(run) if run.tries else {}
        more: dict[str, Any] = {run.tuned: max(best, key=best.__getitem__)} if best else {}
        value = next(iter(more.values()), None)
        if self.scales(run) is not None:
            more["scales"] = self.search(run, device)
        return recipes.make(run.row, run.shared, **more), run.options(value)

    def other(self, run: Run) -> str:
        """That another run is stored under its name, as a sentence; empty if none is."""
        history = self.get(run)
        differ = run.differences(history) if history else []
        if not differ:
            return ""
        return (
            f"{self.path(run)} holds another run: {', '.join(differ)} differ. It stays as it is; "
            "move it away, or name another folder (--out)."
        )


def _sets(runs: list[Run]) -> list[str]:
    """The data sets that runs and their searches need."""
    places = [d for run in runs for d in (run.data, run.row.get("scales") or run.data)]
    return list(dict.fromkeys(d.get("dataset", "digits") for d in places))


def fetched(runs: list[Run]) -> None:
    """Load every data set that the runs need; ``DataError`` names all that cannot be had."""
    names = _sets(runs)
    absent = sources.missing(names)
    problems = []
    for name in names:
        try:
            sources.load(name)
        except DataError as error:
            problems.append(str(error))
    if problems:
        several = f"Missing: {'; '.join(absent)}. " if len(absent) > 1 else ""
        raise DataError(several + problems[0])


def do(store: Store, run: Run, provenance: dict[str, str], progress: bool | None) -> History:
    """One run, from its checkpoint if there is one."""
    device = run.data["device"]
    (method, options), began = store.method(run, device), time.time()
    task = tasks.classification(**run.data)
    checkpoint = store.path(run, ".checkpoint")
    history = round.run(method, task, **run.how, checkpoint=checkpoint, progress=progress)
    # the seconds of a run that was stopped are those of its rounds, without their evaluation
    seconds = max(time.time() - began, float(history.seconds.sum()))
    origin = {"hardware": hardware(device), "seconds": f"{seconds:.1f}"}
    history.meta |= {"label": run.label, "options": options}
    if run.tries:
        history.meta["tuned"] = {run.tuned: store.best(run)}
    today = {"date": date.today().isoformat()}
    history.meta["provenance"] = provenance | today | origin
    write_text(store.path(run), text(history))
    checkpoint.unlink(missing_ok=True)
    return history


def hardware(device: str) -> str:
    """The processor's name, or the GPU's, and how many cores there are."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    import platform

    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        name = next((x.split(": ")[1] for x in lines if x.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores"


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
    store, todo = Store(folder_of(out, choice)), recipes.runs(recipe, scale, **choice)
    for sentence in filter(None, map(store.other, [t for r in todo for t in (*r.tries, r)])):
        raise ValueError(sentence)
    todo = [r for r in todo if store.get(r) is None]
    if not todo:
        report("All there already.")
        return store.root
    fetched(todo)
    limit = None if hours is None else time.time() + 3600 * hours
    estimate = costs.Estimate(store.get, recipes.runs(recipe, scale, **choice))
    failed: dict[str, str] = {}
    queue = [(r, main) for main in todo for r in (*main.tries, main)]
    while True:
        queue = [(r, main) for r, main in queue if store.get(r) is None and r.name not in failed]
        begun = False
        for run, main in queue:
            need = estimate.seconds(run) + (0 if run is main else estimate.seconds(main))
            ready = all(store.get(t) for t in run.tries)
            if not ready or (limit and time.time() + need > limit):
                continue
            with claim(store.path(run, ".claim")) as mine:
                if not mine or store.get(run):
                    continue
                begun = True
                what = f"{run.folder}/{run.name}"
                try:
                    history = do(store, run, provenance or {}, progress)
                    reached = f"accuracy {history.final['accuracy']:.4f}"
                    report(f"{what}: {reached} after {len(history)} rounds")
                except (ValueError, RuntimeError) as error:
                    failed[run.name] = f"{what}: {error}"
                    report(failed[run.name])
            break
        if begun:
            continue
        if any(store.busy(t) for run, _ in queue for t in run.tries if store.get(t) is None):
            time.sleep(WAIT)  # another process is about to finish what is needed here
            continue
        break
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
    store, todo = Store(folder_of(out, choice)), recipes.runs(recipe, scale, **choice)
    others = list(filter(None, map(store.other, [t for r in todo for t in (*r.tries, r)])))
    absent = sources.missing(_sets([r for r in todo if store.get(r) is None]))
    lines = [f"missing: {line}" for line in absent]
    return "\n".join([costs.plan(todo, store.get, store.busy, hours), *lines, *others])


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

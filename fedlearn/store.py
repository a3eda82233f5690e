"""The files of the recipes' runs: which are there, whose they are, and who is working on them."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from . import checkpoint, methods, models, recipes
from .data import published, sources
from .files import claim, claimed, write_text
from .history import History
from .models.repopt import Scales
from .recipes import Run
from .settings import Experiment

WAIT = 5.0  # seconds between two looks at what another process does


def folder_of(out: str | Path | None, choice: dict[str, Any]) -> Path:
    """Where runs are kept; ``ValueError`` for a file, and for the book's folder if the choice makes
    other runs of those that the book shows."""
    if not isinstance(out, str | Path | None) or out == "":
        raise ValueError(f"out must be a folder's name, or None, not {out!r}.")
    book = sources.data_path("results")
    root = book if out is None else Path(out)
    own = [o for o in ("rounds", "train", "test") if choice.get(o) is not None]
    if own and os.path.realpath(root) == os.path.realpath(book):
        raise ValueError(
            f"With {', '.join(own)} of your own, name a folder of your own, too (--out FOLDER)."
        )
    if root.is_symlink() and not root.exists():
        raise ValueError(f"{root} is a link to what is not there; --out names a folder.")
    if root.is_file() or root.suffix == ".json":
        what = "is a file" if root.is_file() else "is a file's name"
        raise ValueError(f"{root} {what}; --out names a folder, in which each run has a file.")
    return root


class Store:
    """The files below ``root``, one a run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, tuple[History, list[str]]] = {}  # and in what it is another run
        self._searches: dict[Path, tuple[Scales, float]] = {}

    def path(self, run: Run, suffix: str = ".json") -> Path:
        """The run's file, or one beside it."""
        return self.root / run.folder / (run.name + suffix)

    def checkpoint(self, run: Run) -> Path:
        """Where its rounds are while it goes on."""
        return self.path(run, f".{run.experiment.rounds}.checkpoint")

    def get(self, run: Run) -> History | None:
        """The stored run, if there is one; another's file is not this run's."""
        its, names = self._there(run)
        return None if names else its

    def other(self, run: Run) -> str:
        """A sentence if another run is stored under the name of this one, else nothing."""
        _, names = self._there(run)
        if not names:
            return ""
        return (
            f"{self.path(run)} holds another run: {', '.join(names)} differ. It stays as it is; "
            "move it away, or name another folder (--out)."
        )

    def _there(self, run: Run) -> tuple[History | None, list[str]]:
        path = self.path(run)
        if path not in self._read and path.is_file():  # written by now, perhaps by another process
            history = History.from_json(path)
            self._read[path] = history, run.differences(history)
        return self._read.get(path, (None, []))

    def busy(self, run: Run) -> bool:
        """Whether a process is working on it."""
        return claimed(self.path(run, ".claim"))

    def tidy(self, run: Run) -> None:
        """Remove the checkpoints of what is stored: they stay where a process ended after it had
        written the file."""
        pairs = [(self.path(run), self.checkpoint(run))]
        if run.search:
            path = self.root / run.searched
            pairs.append((path, path.with_suffix(".checkpoint")))
        for path, left in pairs:
            if path.exists() and left.exists():
                with claim(path.with_suffix(".claim")) as mine:
                    if mine:
                        left.unlink(missing_ok=True)

    def awaited(self, run: Run) -> list[str]:
        """What the run needs and another process is working on: tries, a search."""
        names = [t.where for t in filter(self.lacks, run.tries) if self.busy(t)]
        search = (self.root / run.searched).with_suffix(".claim") if run.search else None
        if search and self.searched(run) is None and claimed(search):
            names.append(run.searched)
        return names

    def tuned(self, run: Run) -> dict[str, dict[float, float]]:
        """The tuned option, if there is one, and for each value the accuracy that it reached."""
        if not run.tries:
            return {}
        tries = {t.experiment.options[run.tuned]: self.get(t) for t in run.tries}
        return {run.tuned: {v: reached(h) for v, h in tries.items() if h is not None}}

    def scales(self, run: Run, provenance: Mapping[str, str] | None = None) -> Scales:
        """FedRepOpt's scales, which a search on data of the server's finds; kept in a file that is
        named by all that they depend on."""
        spec, e = dict(run.search or {}), run.experiment
        network, path = e.options["network"], self.root / run.searched
        while not path.exists():
            with claim(path.with_suffix(".claim")) as mine:
                if mine and not path.exists():
                    data = {k: spec.pop(k) for k in ("dataset", "train", "seed") if k in spec}
                    its = Experiment(**data, clients=1, network=network, device=e.device)
                    spec |= {"network": network, "checkpoint": path.with_suffix(".checkpoint")}
                    began = time.monotonic()
                    task = its.make_task()
                    found = methods.search(task, **spec)
                    before = checkpoint.history(spec["checkpoint"])
                    seconds = max(time.monotonic() - began, float(before.seconds.sum()))
                    values = {name: t.tolist() for name, t in found.of.items()}
                    whence = origin(provenance, e.device, seconds)
                    about = {"note": task.source.note} if task.source.note else {}
                    about |= {"provenance": whence, "scales": values}
                    write_text(path, json.dumps(about, indent=1) + "\n")
                    spec["checkpoint"].unlink()
            if not path.exists():
                time.sleep(WAIT)  # another process is at it
        return self._search(run)[0]

    def searched(self, run: Run) -> float | None:
        """The seconds in which the run's scales were found, 0 if their file does not say; ``None``
        if they are not there, or it has no search. ``ValueError`` for a file that holds none."""
        there = run.search and (self.root / run.searched).exists()
        return self._search(run)[1] if there else None

    def _search(self, run: Run) -> tuple[Scales, float]:
        """What is in the file of a search; the first such files hold the scales alone."""
        path, e = self.root / run.searched, run.experiment
        if path not in self._searches:
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                of = data.get("scales", data)
                kind = torch.float32
                scales = Scales({name: torch.tensor(its, dtype=kind) for name, its in of.items()})
                with torch.device("meta"):  # shapes alone
                    net = models.NETWORKS[e.options["network"]](
                        published.known(e.task, e.dataset).shape, 2
                    )
                    scales.put_into(models.reparam.reform(net, "csla"))
                seconds = recipes.taken(data.get("provenance", {}))
            except (
                OSError,
                ValueError,
                TypeError,
                AttributeError,
                RuntimeError,
                OverflowError,
            ) as error:
                raise ValueError(
                    f"{path} holds no scales of a search that its recipe can use ({error}): move "
                    "it away, and they are searched again."
                ) from None
            self._searches[path] = scales, seconds
        return self._searches[path]

    def lacks(self, run: Run) -> bool:
        """Whether the run is not stored."""
        return self.get(run) is None


def others(store: Store, runs: list[Run]) -> dict[Run, str]:
    """Those, and their tries, under whose names other runs are stored, a sentence each."""
    every = dict.fromkeys(r for run in runs for r in (*run.tries, run))
    return {r: sentence for r in every if (sentence := store.other(r))}


def reached(history: History) -> float:
    """The last accuracy, NaN if none could be measured."""
    seen = [row["accuracy"] for row in history.rows if row["accuracy"] is not None]
    return seen[-1] if seen else float("nan")


def text(history: History) -> str:
    """JSON with one line a round."""
    data = history.to_dict()
    rows, data["rows"] = ",\n".join(map(json.dumps, data["rows"])), []
    return json.dumps(data, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n]') + "\n"


def origin(provenance: Mapping[str, str] | None, device: str, seconds: float) -> dict[str, str]:
    """What a file says of how it was made: command and commit, as given, date, machine, seconds."""
    here = {"date": time.strftime("%Y-%m-%d"), "hardware": hardware(device)}
    return {**(provenance or {}), **here, "seconds": f"{seconds:.1f}"}


def hardware(device: str) -> str:
    """The processor's name, or the GPU's, and how many cores there are."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    import platform

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [x.split(": ")[1] for x in lines if x.startswith("model name")]
    return f"{(*names, platform.machine())[0]}, {os.cpu_count()} cores"

"""What stored runs say: result files and grids, read into groups of runs that differ in their seed
alone. The leaderboard shows them, and ``advise`` looks for those nearest to a question."""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import LARGEST, short
from .data import partition as partitions
from .data.sources import SETS, data_path
from .errors import pick
from .history import History
from .options import words
from .settings import Settings

if TYPE_CHECKING:
    from .recipes import Run  # which reads the recipes: only where files are read


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _amount(value: Any) -> bool:
    return _is(Real)(value) and 0 <= value <= LARGEST


def _count(value: Any) -> bool:
    return _is(int)(value) and 1 <= value <= LARGEST


def _accuracy(value: Any) -> bool:
    return value is None or (_amount(value) and value <= 1 + 1e-9)  # a mean may be rounded up


def _several(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is(int), value))


# what is read of a run's file, by where it is: what must be there, and what it is if it is there
MUST: dict[str, dict[str, Callable[[Any], bool]]] = {
    "meta": {"task": _is(dict), "settings": _is(dict)},
    "task": {"dataset": _is(str), "clients": _count, "partition": _is(str)}
    | {"network": _is(str), "train": _count},
    "a round": dict.fromkeys(("bytes_up", "bytes_down", "seconds"), _amount)
    | {"accuracy": _accuracy, "clients": _several},
}
MAY: dict[str, dict[str, Callable[[Any], bool]]] = {
    "meta": {"label": _is(str)},
    "task": {"seed": _is(int), "accuracy": _is(str)},
    "options": {"method": _is(str)},
    "provenance": {"command": _is(str)},
}
LEFT_OUT = {"tune", "search"}  # folders of short runs that chose an option


@dataclass(frozen=True)
class Group:
    """Runs of one method on one task, a seed each.

    ``files`` are named as people type them. ``options`` are the method's, ``None`` if the files do
    not say them; ``method`` is then what the method calls itself. ``timed`` says whether the
    seconds of the rounds are stored.
    """

    label: str
    method: str
    options: dict[str, Any] | None
    runs: tuple[History, ...]
    files: tuple[str, ...]
    command: str
    timed: bool = True

    @property
    def task(self) -> dict[str, Any]:
        """The task as the first run's file states it; data set, clients, network, images."""
        return self.runs[0].meta["task"]

    @property
    def split(self) -> str:
        """The partition as ``--partition`` takes it."""
        return split_text(self.task["partition"])

    @property
    def seeds(self) -> list[int]:
        """The runs' seeds."""
        return [h.meta["task"].get("seed", 0) for h in self.runs]

    @property
    def curve(self) -> np.ndarray:
        """Mean accuracy of the seeds after each round, NaN where none was measured."""
        return np.mean([np.array(h.accuracy, float) for h in self.runs], 0)

    @property
    def finals(self) -> np.ndarray:
        """The last accuracy of each run."""
        return np.array([h.final["accuracy"] for h in self.runs])


@lru_cache
def split_text(shown: str) -> str:
    """The partition that is shown so in a history, as it is typed: "Dirichlet(alpha=0.5,
    min_samples=1)" is "dirichlet:0.5". What cannot be typed stays as it is."""
    names = {make.__name__: name for name, (make, *_) in partitions.PARTS.items()}
    found = re.match(r"(\w+)\((?:\w+='?([^',)]+))?", shown)
    if not found or found[1] not in names:
        return shown
    text = ":".join(filter(None, (names[found[1]], found[2])))
    with suppress(ValueError):  # a table that is not here
        if repr(partitions.parse(text)) == shown:
            return text
    return shown


def histories(path: Path) -> list[History]:
    """The runs in a file; ``ValueError`` if there are none that this version can read."""
    if not path.is_file():  # a folder of that name, or a link to nothing
        raise ValueError(f"{path} is no result of fedlearn: it is no file.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no result of fedlearn: it is not JSON.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    runs = data if isinstance(data, list) else [data]
    if not runs or not all(
        isinstance(r, dict) and {"method", "meta", "rows"} <= {*r} for r in runs
    ):
        raise ValueError(f"{path} is no result of fedlearn: it holds no run.")
    try:
        made = [History.from_dict(run) for run in runs]
        wrong = next((sentence for h in made for sentence in _wrong(h)), None)
    except (ValueError, TypeError, AttributeError) as error:
        wrong = str(error)
    except KeyError as error:
        wrong = f"no {error.args[0]}"
    if wrong:
        raise ValueError(f"{path} is a result of another version of fedlearn: {wrong}.")
    if not all(any(r["accuracy"] is not None for r in h.rows) for h in made):
        raise ValueError(f"{path} holds a run without an evaluated round.")
    return made


def _wrong(history: History) -> Iterator[str]:
    """What a history should have and has not, and what is not what it should be. Each check relies
    on those before it, so that only the first sentence may be asked for."""
    meta = history.meta
    if not isinstance(history.method, str) or not isinstance(meta, dict):
        yield f"method and meta are {short(history.method)} and {short(meta)}"
        return
    yield from _unlike("meta", meta)
    yield from _unlike("task", meta["task"])
    for name in ("options", "provenance"):
        yield from _unlike(name, meta.get(name, {}))
    plain = _is(str, int, float, bool, type(None))
    yield from (
        f"{k} is {short(v)} in settings" for k, v in meta["settings"].items() if not plain(v)
    )
    try:
        known = meta["settings"].keys() & {f.name for f in fields(Settings)}
        Settings(**{k: meta["settings"][k] for k in known})
    except ValueError as error:
        yield str(error).rstrip(".")
    for row in history.rows:
        yield from _unlike("a round", row)


def _unlike(where: str, its: Mapping[str, Any]) -> Iterator[str]:
    must = MUST.get(where, {})
    for name, fits in (must | MAY.get(where, {})).items():
        if name in its and not fits(its[name]):
            yield f"{name} is {short(its[name])} in {where}"
        elif name in must and name not in its:
            yield f"no {name} in {where}"


def paths(places: str | Path | Iterable[str | Path]) -> list[Path]:
    """One file or folder, or several, as a list; ``ValueError`` for what names none."""
    try:
        return [Path(p) for p in ([places] if isinstance(places, str | Path) else places)]
    except TypeError:
        raise ValueError(
            f"Results are named by a path or a list of paths, not {short(places)}."
        ) from None


def files(places: str | Path | Iterable[str | Path]) -> Iterator[tuple[Path, bool]]:
    """The JSON files of folders and files, each once, and whether it was named itself;
    ``ValueError`` for a place that is not there and a folder without one."""
    seen: set[str] = set()
    for place in paths(places):
        if not place.exists():
            raise ValueError(f"There is no file or folder {place}.")
        named = place.is_file()
        found = [place] if named else sorted(place.rglob("*.json"))
        found = [p for p in found if named or not LEFT_OUT & {*p.relative_to(place).parts}]
        if not found:
            raise ValueError(f"There is no result in the folder {place}: no .json file.")
        for path in found:
            if (real := os.path.realpath(path)) not in seen:  # which a link in a circle has, too
                seen.add(real)
                yield path, named


def read(places: str | Path | Iterable[str | Path]) -> tuple[list[Group], list[str]]:
    """The groups in a folder or file or several, and a sentence for each file of a folder that was
    left out.

    ``ValueError`` for a named file that is no result, and if there is no run at all.
    """
    groups: dict[tuple, list[tuple[History, Path]]] = {}
    left: list[str] = []
    for path, named in files(places):
        try:
            found = histories(path)
        except ValueError as error:
            if named:
                raise
            left.append(str(error))
            continue
        for h in found:
            m = h.meta
            task = {k: v for k, v in m["task"].items() if k != "seed"}
            same = [task, m["settings"], m.get("parts"), m.get("options"), m.get("label"), h.method]
            key: tuple[Any, ...] = (
                path.parent,
                json.dumps(same, sort_keys=True, default=str),
                len(h),
            )
            while any(h.meta["task"] == o.meta["task"] for o, _ in groups.get(key, [])):
                key += ("again",)  # the same seed twice: a run of its own
            groups.setdefault(key, []).append((h, path))
    if not groups:
        raise ValueError(" ".join(["There is no run in these files.", *left[:3]]))
    return [_group(runs) for runs in groups.values()], left


def _group(runs: list[tuple[History, Path]]) -> Group:
    first, path = runs[0]
    stated = [(h, p, _recipe_run(h, p)) for h, p in runs]
    own = dict(first.meta.get("options") or {})
    run = stated[0][2]
    if run:
        e = run.experiment
        chosen = {run.tuned: own[run.tuned]} if run.tuned in own else {}
        label, method = run.label, e.method
        options = None if run.but or run.search else e.options | chosen
    else:
        label = first.meta.get("label") or first.method
        method, options = own.pop("method", first.method), own if "options" in first.meta else None
    names = dict.fromkeys(_named(p) for _, p in runs)
    made = tuple(h for h, _ in runs)
    return Group(label, method, options, made, tuple(names), _command(stated))


def _command(stated: list[tuple[History, Path, "Run | None"]]) -> str:
    """What to type to get the runs again."""
    history, path, run = stated[0]
    if run is None:
        said = dict.fromkeys(h.meta.get("provenance", {}).get("command", "") for h, *_ in stated)
        return "; ".join(filter(None, said))
    place, scale = recipe_files()[path.parent.name, run.name][1:]
    line = ["fedlearn", "reproduce", place, *(["--scale", scale] * (scale != "quick"))]
    line += ["--only", run.label, "--partition", run.experiment.partition]
    for h, *_ in stated:
        line += ["--seed", str(h.meta["task"]["seed"])]
    return shlex.join([*line, "--out", "again"])


@lru_cache
def recipe_files() -> dict[tuple[str, str], tuple["Run", str, str]]:
    """Folder and name of every recipe's file: the run, the first table that has it, the scale."""
    from . import recipes

    found: dict[tuple[str, str], tuple[Run, str, str]] = {}
    for name, recipe in recipes.RECIPES.items():
        for scale in recipes.SCALES:
            for run in recipes.runs(name, scale) if scale in recipe else ():
                found.setdefault((run.folder, run.name), (run, name, scale))
    return found


def _recipe_run(history: History, path: Path) -> "Run | None":
    """The recipe's run that this is, if it is one."""
    run, *_ = recipe_files().get((path.parent.name, path.stem), (None,))
    return run if run and not run.differences(history) else None


def _named(path: Path) -> str:
    """A file's name as people type it; those of the book from the checkout on."""
    book, whole = data_path("results").resolve(), path.resolve()
    inside = whole.is_relative_to(book)
    return f"data/results/{whole.relative_to(book).as_posix()}" if inside else path.as_posix()


def grids() -> list[Group]:
    """The runs of the grids behind the book's explorers, but for those of methods and networks that
    only their chapter has. A grid does not say how long its rounds took."""
    from .lab import grids as stored

    found: list[Group] = []
    for path in sorted(data_path("grids").glob("*.json")):
        columns = json.loads(path.read_text(encoding="utf-8")).get("columns", {})
        if "line" not in columns:  # of no explorer of runs
            continue
        columns = {c: columns.get(c, [None] * len(columns["line"])) for c in stored.COLUMNS}
        rows: dict[tuple, list[dict[str, Any]]] = {}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            rows.setdefault(tuple(row[k] for k in stored.RUN), []).append(row)
        groups: dict[tuple, list[tuple[Any, History]]] = {}
        for where, e in stored.experiments(path.stem):
            if where in rows and e.dataset in SETS and ":" not in f"{e.method}{e.network}":
                key = tuple(v for k, v in zip(stored.RUN, where, strict=True) if k != "seed")
                groups.setdefault(key, []).append((e, _unrolled(e, rows[where])))
        for runs in groups.values():
            name = f"data/grids/{path.name}"
            found.append(_stated(runs, runs[0][0].label, name, timed=False))
    return found


def _unrolled(e: Any, rows: list[dict[str, Any]]) -> History:
    """The rows of a grid, which are for one client, as a history of all."""
    many = list(range(e.clients))
    made = [
        {"round": r["round"], "accuracy": r["accuracy"], "seconds": 0.0, "clients": many}
        | {f"bytes_{way}": r[way] * e.clients for way in ("up", "down")}
        for r in rows
    ]
    return History(e.method, _about(e), made)


def _about(e: Any) -> dict[str, Any]:
    """What the file of an experiment's run says of it. The network is the one that clients train,
    which methods with networks of their own name among their options."""
    task = {k: getattr(e, k) for k in ("dataset", "clients", "seed")}
    task["network"] = e.options.get("network", e.options.get("edge", e.network))
    task["partition"] = repr(partitions.parse(e.partition))
    task["train"] = e.train or SETS[e.dataset].train
    return {"task": task, "settings": vars(e.settings)}


def contests() -> list[Group]:
    """The whole runs of the chapter in which all methods compete after the same tuning. A label
    says how many more runs diverged."""
    from .lab import contest, shootout

    found, keys = [], ["task", "split", "clients", "method"]
    lost = Counter(tuple(r[k] for k in keys) for r in contest.failed() if not r["short"])
    for where, of in contest.entries().groupby(keys, sort=False):
        runs = []
        for run in of.itertuples():
            e = shootout.experiment(*where, run.value, run.seed, False)  # type: ignore
            runs.append((e, History(e.method, _about(e), contest.history(run).rows)))
        label = where[-1] + (f" ({lost[where]} more diverged)" if lost[where] else "")
        found.append(_stated(runs, label, "data/grids/shootout.json", timed=True))
    return found


def _stated(runs: list[tuple[Any, History]], label: str, name: str, timed: bool) -> Group:
    """The runs of experiments that differ in their seed, kept in a grid's file."""
    e = runs[0][0]
    options = e.options | ({} if e.lr is None else {"lr": e.lr})
    command = shlex.join(["fedlearn", "run", *map(str, words(e))])
    return Group(label, e.method, options, tuple(h for _, h in runs), (name,), command, timed)


def network_sizes(name: str, dataset: str | None) -> tuple[int, int]:
    """Parameters and multiply-adds of a network of the package, for the images of a data set, by
    default digits."""
    from .models import NETWORKS

    pick(name, NETWORKS, "network")
    return _sizes(name, dataset or "digits")


@lru_cache
def _sizes(name: str, dataset: str) -> tuple[int, int]:
    from . import models

    known = SETS[dataset]
    net = models.NETWORKS[name](known.shape, known.classes)
    return models.parameter_count(net), models.multiply_adds(net, known.shape)

"""The papers' comparisons (``data/recipes.yaml``): which methods, on which task, how long.

``fedlearn reproduce`` runs them.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml

from . import methods, round, tasks
from .data.sources import data_path
from .errors import pick
from .files import write_text
from .history import History
from .method import Method
from .parts import SGD, Adam
from .settings import Settings

PARTS = {"SGD": SGD, "Adam": Adam}  # that a row can name
RECIPES = yaml.safe_load(data_path("recipes.yaml").read_text(encoding="utf-8"))
SETTINGS = {f.name for f in fields(Settings)}
HOW = {"rounds", "engine", *SETTINGS}  # what else a run states is its task


def make(row: dict[str, Any], shared: dict[str, Any]) -> Method:
    """The method of a row, with those of the ``shared`` options that it knows."""
    options = dict(row)
    function, parts = pick(options.pop("method"), methods.METHODS, "method"), options.pop("but", {})
    known = inspect.signature(function).parameters
    made = function(**{name: v for name, v in shared.items() if name in known} | options)
    for part, value in parts.items():
        for name, its in value.items():
            made = made.but(**{part: PARTS[name](**its)})
    return made


def jobs(
    paper: str,
    scale: str = "quick",
    only: tuple[str, ...] = (),
    seeds: tuple[int, ...] | None = None,
    rounds: int | None = None,
    train: int | None = None,
    test: int | None = None,
    split: tuple[str, ...] | None = None,
    device: str = "cpu",
) -> Iterator[tuple[str, Method, tasks.Classification, dict[str, Any]]]:
    """The runs of a recipe, one after the other: (label, method, task, keywords of ``fl.run``)."""
    recipe = pick(scale, pick(paper, RECIPES, "paper with a recipe"), "scale")
    runs = [(run, partition) for run in recipe["runs"] for partition in run["partition"]]
    for label in only:
        pick(label, {label: 1 for run, _ in runs for label in run["rows"]}, "row")
    for partition in split or ():
        pick(partition, {its: 1 for _, its in runs}, "partition of this recipe")
    for run, partition in runs:
        if split and partition not in split:
            continue
        how = {name: run[name] for name in run.keys() & HOW}
        how |= {} if rounds is None else {"rounds": rounds}
        if str(device).startswith("cuda"):
            how = {"engine": "auto", "precision": "bf16"} | how
        data = {name: run[name] for name in run.keys() - HOW - {"partition", "rows", "all"}}
        data |= {"partition": partition, "train": train, "test": test, "device": device}
        for seed in recipe["seeds"] if seeds is None else seeds:
            task = tasks.classification(**data, seed=seed)
            for label, row in run["rows"].items():
                if not only or label in only:
                    yield label, make(row, run.get("all", {})), task, how


def _about(label: str | None, rounds: int, meta: dict[str, Any]) -> list[Any]:
    """What makes a run another one."""
    names = ("batch_size", "epochs", "participation", "precision")
    return [label, rounds, meta["parts"], meta["task"], *(meta["settings"][n] for n in names)]


def _text(history: History) -> str:
    """JSON with one line a round."""
    data = history.to_dict()
    rows, data["rows"] = ",\n".join(map(json.dumps, data["rows"])), []
    return json.dumps(data, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n]')


def reproduce(
    paper: str,
    scale: str = "quick",
    out: str | Path | None = None,
    provenance: dict[str, str] | None = None,
    report: Callable[[str], object] = print,
    progress: bool | None = None,
    **choice: Any,
) -> Path:
    """Run what ``jobs`` lists and is not yet in the file ``out``, which is written after each run.

    A run that was stopped goes on from its last round. Returns the path.
    """
    name = pick(scale, pick(paper, RECIPES, "paper with a recipe"), "scale")["results"]
    own = [o for o in ("rounds", "train", "test", "split") if choice.get(o) is not None]
    if out is None and own:
        raise ValueError(
            f"With {', '.join(own)} of your own, name a file of your own, too (--out FILE)."
        )
    path = Path(out or data_path("results", f"{name}.json"))
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    done = [History.from_dict(data) for data in stored]
    for label, method, task, how in jobs(paper, scale, **choice):
        what = f"{label}, {task.partition}, seed {task.seed}"
        settings = asdict(Settings(**{n: v for n, v in how.items() if n in SETTINGS}))
        meta = {"parts": method.parts(), "task": task.describe(), "settings": settings}
        about = json.loads(json.dumps(_about(label, how["rounds"], meta)))
        if about in [_about(h.meta.get("label"), len(h), h.meta) for h in done]:
            report(f"{what}: there already")
            continue
        slug = f"{label} {task.partition} {task.seed}".lower()
        slug = "".join(c if c.isalnum() else "-" for c in slug)
        checkpoint = path.with_suffix(f".{slug}.checkpoint")
        history = round.run(method, task, **how, checkpoint=checkpoint, progress=progress)
        history.meta |= {"label": label, "provenance": provenance or {}}
        done.append(history)
        write_text(path, "[\n" + ",\n".join(map(_text, done)) + "\n]\n")
        checkpoint.unlink(missing_ok=True)
        accuracy = history.final["accuracy"]
        report(f"{what}: accuracy {accuracy:.4f} after {len(history)} rounds")
    return path

"""A question about a federation on a link, and how far stored runs are from it."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import link as links
from .data.sources import SETS
from .evidence import Group, network_sizes
from .models import NETWORKS

KIND, UNLIKE = 3.0, 6.0  # the distance of another kind of split, and of iid from any other
CLIMB = 0.05  # evidence is too short in which FedAvg gains more than that in its last fifth


@dataclass(frozen=True)
class Question:
    """What is asked about. ``network`` is a name, or "" if only its size is known."""

    network: str
    parameters: int
    clients: int
    partition: str
    dataset: str | None
    link: Mapping[str, Any]
    loss: float

    def __str__(self) -> str:
        name = f"{self.network}, {self.parameters:,}" if self.network else f"{self.parameters:,}"
        data = f" of {self.dataset}" if self.dataset else ""
        return (
            f"{name} parameters, {self.clients} clients, split {self.partition}{data}; "
            f"{links.described(self.link)}"
        )


@dataclass(frozen=True)
class Block:
    """Runs of several methods on one task under the same settings, FedAvg among them; how far they
    are from the question, as a number and in words."""

    groups: tuple[Group, ...]
    average: Group
    distance: float
    words: str

    def __str__(self) -> str:
        g = self.average
        files = dict.fromkeys(f for o in self.groups for f in o.files)
        if g.timed and len(files) > 1:
            files = dict.fromkeys(str(Path(f).parent) for f in files)
        where = ", ".join(files)
        return (
            f"{where}: {g.task['dataset']}, {g.task['network']}, {g.task['clients']} clients, "
            f"{g.split}, {len(g.runs[0])} rounds, {len(g.runs)} seeds. {self.words}"
        )


def size_of(network: Any, dataset: str | None) -> tuple[str, int]:
    """Name and number of parameters of what ``advise`` is asked about; a number has no name."""
    found = re.fullmatch(r"\s*([-+]?[\d.]+(?:e\d+)?)\s*([kMG]?)\s*", str(network).replace(",", ""))
    if not found:
        return str(network), network_sizes(str(network), dataset)[0]
    try:
        count = float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[found[2]]
    except ValueError:
        count = 0.0
    if not 1 <= count < 1e13:
        raise ValueError(f"A network has a number of parameters such as 1.2M, not {network!r}.")
    return "", round(count)


def blocks(question: Question, groups: Iterable[Group]) -> list[Block]:
    """The groups by task and settings, nearest first: those with another method beside FedAvg,
    which is no longer climbing at the end."""
    by: dict[tuple[Any, ...], list[Group]] = {}
    for g in groups:
        task = g.task
        if g.options is None or task["dataset"] not in SETS or task.get("network") not in NETWORKS:
            continue
        if task.get("augment"):
            continue
        settings = tuple(sorted((k, v) for k, v in g.runs[0].meta["settings"].items()))
        what = tuple(task[k] for k in ("dataset", "network", "clients", "partition", "train"))
        by.setdefault((what, settings, len(g.runs[0]), g.timed), []).append(g)
    made = []
    for of in by.values():
        averages = [g for g in of if g.method == "fedavg"]
        if not averages or len({g.method for g in of}) == 1:
            continue
        best = max(averages, key=lambda g: float(g.finals.mean()))
        before = best.curve[: math.ceil(0.8 * len(best.curve))]
        if np.nanmax(before) >= float(best.finals.mean()) - CLIMB:
            made.append(Block(tuple(of), best, *distance(question, best)))
    return sorted(made, key=lambda block: block.distance)


def distance(question: Question, group: Group) -> tuple[float, str]:
    """How far a group's task is from the question, and the same in words.

    Each factor of 2 in clients, images and a split's argument counts 1, in the network's parameters
    a half, since bytes are carried over; another network 1, another data set 2, another kind of
    split 3 (6 if one of them is iid), and a half if the seconds of computing are not stored.
    """
    task, far, said = group.task, 0.0, []
    kind, _, argument = question.partition.partition(":")
    its_kind, _, its_argument = group.split.partition(":")
    if group.split == question.partition:
        said.append("the same split")
    else:
        near = kind == its_kind and kind != "table" and argument and its_argument
        apart = UNLIKE if "iid" in (kind, its_kind) else KIND
        far += abs(math.log2(float(argument) / float(its_argument))) if near else apart
        said.append(f"the split is {group.split}, not {question.partition}")
    known, size = SETS[task["dataset"]], network_sizes(task["network"], task["dataset"])[0]
    for what, there, asked, weight in (
        ("clients", task["clients"], question.clients, 1.0),
        ("parameters", size, question.parameters, 0.5),
    ):
        far += weight * abs(math.log2(there / asked))
        same = "the same number of" if there == asked else f"{there / asked:.2g} times as many"
        said.append(f"{same} {what}")
    if question.network != task["network"]:
        far += 1
        said.append(
            f"network {task['network']}" + f", not {question.network}" * bool(question.network)
        )
    if question.dataset not in (None, task["dataset"]):
        far += 2
        said.append(f"data {task['dataset']}, not {question.dataset}")
    if task["train"] != known.train:
        far += abs(math.log2(task["train"] / known.train))
        said.append(f"{task['train']:,} of the {known.train:,} images")
    if not group.timed:
        far += 0.5
        said.append("seconds of computing are not stored, and counted as 0")
    return far, f"How far: {', '.join(said)} (distance {far:.1f})."

"""What to send on your link: the stored runs nearest to a question, and three candidates.

Every method is judged in the evidence that is nearest to the question and has FedAvg beside it: how
much accuracy it loses there, and in how many rounds it comes near FedAvg. Its bytes are those of
the network that is asked about, its time is ``link.time``. Nothing is interpolated; what is scaled
says so.
"""

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from . import link as links
from .arguments import checked, short
from .averaging import Averaging
from .data import partition as partitions
from .data.sources import SETS, available, data_path
from .errors import pick
from .evidence import Group, contests, grids, network_sizes, paths, read
from .history import History
from .nearest import Block, Question, blocks, size_of
from .options import words
from .report import spread
from .settings import Experiment, Settings, whole_number

CHEAP = 2_000_000  # parameters of the largest network whose messages are counted
CLIENTS, IMAGES = 10, 20  # in the rounds in which messages are counted: of each client so many
NEAR = 3.0  # evidence that is so much further than the nearest is only asked if that lacks three
CANDIDATES = 3
COUNTED = 5  # of the methods that are best when bytes are scaled, so many are counted


@dataclass(frozen=True)
class Candidate:
    """A method for the question.

    ``rounds`` is when the mean of its seeds is first at most so far below FedAvg as allowed
    (``None``: never, then the numbers are of all rounds), ``again`` the last round after it in
    which it is further below (``None``: none), ``up`` and ``down`` megabytes of all clients and
    ``seconds`` on the link until ``rounds``, ``ratio`` its seconds over FedAvg's in the same
    evidence, ``loss`` the accuracy below FedAvg's at the end, a seed each.
    """

    group: Group
    block: Block
    rounds: int | None
    again: int | None
    up: float
    down: float
    seconds: float
    ratio: float
    loss: tuple[float, ...]
    how: str
    command: str

    @property
    def fell(self) -> bool:
        """Whether it falls further below FedAvg again than allowed."""
        return self.again is not None

    @property
    def lines(self) -> list[str]:
        """Its numbers in words."""
        n, g = len(self.group.runs[0]), self.group
        when = f"round {self.rounds}" if self.rounds else f"not there within {n} rounds"
        when += f" (further below again, the last time in round {self.again} of {n})" * self.fell
        plain = links.said(self.seconds / self.ratio)
        lost = float(np.mean(self.loss))
        side = spread([v if lost >= 0 else -v for v in self.loss])
        side += " below FedAvg" if lost >= 0 else " above FedAvg"
        return [
            f"{g.label}: {links.said(self.seconds)}, {when}; FedAvg there: {plain}",
            f"bytes     {self.up:.3g} MB up, {self.down:.3g} MB down by all clients; {self.how}",
            f"accuracy  {spread([float(a) for a in g.finals])} after {n} rounds, {side}; "
            "measured in the evidence, not for your question",
            f"command   {self.command}",
        ]


@dataclass(frozen=True)
class Advice:
    """The answer: ``candidates``, best first, and FedAvg beside them; shown as text or HTML."""

    question: Question
    candidates: tuple[Candidate, ...]

    @property
    def blocks(self) -> list[Block]:
        """The evidence behind the candidates, each once."""
        return list({id(c.block): c.block for c in self.candidates}.values())

    def __str__(self) -> str:
        found = [f"Asked: {self.question}.", self._wanted(), ""]
        for k, c in enumerate(self.candidates, 1):
            first, *rest = c.lines
            found += [f"{k}. {first}", *(f"   {line}" for line in rest)]
            found += [f"   evidence  [{self.blocks.index(c.block) + 1}]", ""]
        found += [f"[{k}] {block}" for k, block in enumerate(self.blocks, 1)]
        return "\n".join([*found, *self._warning()])

    __repr__ = __str__

    def _warning(self) -> list[str]:
        """What to say if no evidence is of the very task."""
        tried = "try the commands before you trust an accuracy."
        if not self.blocks:
            return []
        if min(b.distance for b in self.blocks) > 0:
            return [f"None of this evidence is of your task: {tried}"]
        return [] if self.question.dataset else [f"You named no data set: {tried}"]

    def _wanted(self) -> str:
        return (
            f"Time and bytes are until a method is first at most {self.question.loss:g} below "
            "FedAvg's last accuracy in its evidence; the order is by time over FedAvg's there."
        )

    def _repr_html_(self) -> str:
        """The same as a table."""
        heads = ("method", "time", "of FedAvg's", "rounds", "MB up", "MB down", "accuracy",
                 "FedAvg's less", "bytes are", "evidence", "command")  # fmt: skip
        rows = [
            (
                *(c.group.label, links.said(c.seconds), f"{c.ratio:.2g}"),
                f"{c.rounds or 'not there'}" + f" (further below in {c.again})" * c.fell,
                *(f"{c.up:.3g}", f"{c.down:.3g}"),
                *(spread([float(a) for a in c.group.finals]), spread(c.loss), c.how),
                *(f"[{self.blocks.index(c.block) + 1}]", c.command),
            )
            for c in self.candidates
        ]
        head = "".join(f"<th>{h}</th>" for h in heads)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(str(v))}</td>' for v in row)}</tr>" for row in rows
        )
        notes = "".join(f"<li>{escape(str(b))}</li>" for b in self.blocks)
        after = "".join(f"<p>{escape(line)}</p>" for line in self._warning())
        return (
            f"<p>{escape(str(self.question))}. {escape(self._wanted())}</p>"
            f"<table><tr>{head}</tr>{body}</table><ol>{notes}</ol>{after}"
        )


@checked
def advise(
    network: Any,
    clients: int = 10,
    link: Any = "3G",
    partition: str = "iid",
    dataset: str | None = None,
    loss: float = 0.02,
    results: str | Path | Iterable[str | Path] = (),
) -> Advice:
    """Three methods for a federation on a link, from the stored runs nearest to it.

    ``network`` is a name in ``fedlearn.models.NETWORKS`` or a number of parameters, also as
    "1.2M"; ``link`` a name in ``link.PRESETS`` or the arguments of ``link.time`` as a dictionary;
    ``partition`` a text such as "dirichlet:0.5". ``ValueError`` for what cannot be, such as more
    clients than images to split. ``loss`` is how far below FedAvg's last
    accuracy a method may be when it is first counted as there; the answer says if it falls further
    below again. ``results`` is a file or folder of your own runs beside the book's, or several.
    """
    whole_number("clients", clients)
    if not 0 <= loss < 1:
        raise ValueError(f"loss is an accuracy from 0 to below 1, not {short(loss)}.")
    its = links.stated(link)
    partitions.parse(partition)
    known = SETS if dataset is None else {dataset: pick(dataset, SETS, "data set")}
    largest = max(known, key=lambda name: known[name].train)
    if clients > (most := known[largest].train):
        raise ValueError(
            f"{largest} has {most:,} training images, too few for {short(clients)} clients: "
            "use fewer clients."
        )
    if dataset is not None and (why := unsplit(dataset, partition, clients)):
        raise ValueError(why)
    name, parameters = size_of(network, dataset)
    question = Question(name, parameters, clients, partition, dataset, its, loss)
    groups = read([data_path("results"), *paths(results)])[0] + contests() + grids()
    return Advice(question, tuple(candidates(question, blocks(question, groups))[:CANDIDATES]))


@lru_cache
def unsplit(dataset: str, partition: str, clients: int) -> str:
    """Why the training images of a data set cannot be split so, or "" if they can."""
    known, split = SETS[dataset], partitions.parse(partition)
    if split.by != "labels":
        return f"The split {partition} goes by the objects in an image, and {dataset} has one."
    labels, rng = np.arange(known.train) % known.classes, np.random.default_rng(0)
    try:
        split(labels, clients, rng, pixels=1)  # whose order nobody asks
    except ValueError as error:
        return str(error)
    return ""


def candidates(question: Question, of: list[Block]) -> list[Candidate]:
    """For every method the best of its variants in its nearest evidence; those that come near
    FedAvg by their time over FedAvg's, then the others by what they lose. All are compared with
    scaled bytes first, the best of them then with counted ones. Evidence is left out whose data
    cannot be split as asked: its commands could not run; ``ValueError`` if no other is there."""
    found: dict[str, Candidate] = {}
    nearest, reasons = math.inf, {}
    for block in of:
        there = sum(c.rounds is not None for c in found.values())
        if there >= CANDIDATES and block.distance > nearest + NEAR:
            break
        data = question.dataset or block.average.task["dataset"]
        if why := unsplit(data, question.partition, question.clients):
            reasons[data] = why
            continue
        nearest = min(nearest, block.distance)
        before = set(found)
        for g in block.groups:
            if g.method in before:
                continue
            made = judged(question, block, g)
            if made and (g.method not in found or _order(made) < _order(found[g.method])):
                found[g.method] = made
    if reasons and nearest == math.inf:
        scarce = "classes" if question.partition == "classes" else "train"  # owned whole, or shared
        raise ValueError(reasons[max(reasons, key=lambda data: getattr(SETS[data], scarce))])
    best = sorted(found.values(), key=_order)[:COUNTED]
    again = [judged(question, c.block, c.group, count=True) for c in best]
    return sorted((c for c in again if c), key=_order)


def _order(c: Candidate) -> tuple[bool, float, float]:
    by = c.ratio if c.rounds else float(np.mean(c.loss))
    return c.rounds is None, by, c.block.distance


def judged(question: Question, block: Block, group: Group, count: bool = False) -> Candidate | None:
    """What a group's method would be for the question; ``None`` for a method of another round than
    averaging on another network, whose bytes cannot be told."""
    asked = carried(question, group, count)
    plain = asked if group is block.average else carried(question, block.average, count)
    if asked is None or plain is None:
        return None
    (histories, how), (averages, _) = asked, plain
    aim = float(block.average.finals.mean()) - question.loss
    last, base = _first(group.curve, aim), _first(block.average.curve, aim)
    n = last or len(group.runs[0])
    below = n + 1 + np.flatnonzero(group.curve[n:] < aim - 1e-9)
    again = int(below[-1]) if len(below) else None
    seconds = _seconds(histories, question.link, n)
    up, down = (
        float(np.mean([getattr(h, f"bytes_{way}")[:n].sum() for h in histories])) / 1e6
        for way in ("up", "down")
    )
    finals = dict(zip(block.average.seeds, block.average.finals, strict=True))
    mean = float(block.average.finals.mean())
    loss = [float(finals.get(s, mean) - a) for s, a in zip(group.seeds, group.finals, strict=True)]
    ratio = seconds / _seconds(averages, question.link, base or n)
    line = ["fedlearn", "run", *map(str, words(_experiment(question, group)))]
    return Candidate(
        group, block, last, again, up, down, seconds, ratio, tuple(loss), how, shlex.join(line)
    )


def _first(curve: np.ndarray, aim: float) -> int | None:
    there = np.flatnonzero(curve >= aim - 1e-9)
    return int(there[0]) + 1 if len(there) else None


def _seconds(histories: list[History], link: Mapping[str, Any], rounds: int) -> float:
    return float(np.mean([links.time(h, **link)[rounds - 1] for h in histories]))


def _experiment(question: Question, group: Group) -> Experiment:
    """The run that the question asks of a group's method, under the evidence's settings."""
    known = {f.name for f in fields(Settings)}
    settings = {k: v for k, v in group.runs[0].meta["settings"].items() if k in known}
    return Experiment(
        method=group.method,
        options={k: math.inf if v == "inf" else v for k, v in (group.options or {}).items()},
        dataset=question.dataset or group.task["dataset"],
        clients=question.clients,
        partition=question.partition,
        network=question.network or "mine.py:network",
        rounds=len(group.runs[0]),
        **settings,
    )


def carried(
    question: Question, group: Group, count: bool = False
) -> tuple[list[History], str] | None:
    """A group's histories with the bytes and the computing of the question, and how they came
    about: as measured, counted in real messages (with ``count``, where that is cheap), or scaled.
    """
    e, task = _experiment(question, group), group.task
    size, work = network_sizes(task["network"], task["dataset"])
    same = (e.dataset, question.network) == (task["dataset"], task["network"])
    if not isinstance(e.make_method(), Averaging):  # its bytes go with images and with its networks
        if not same or question.clients != task["clients"]:
            return None
    cheap = question.parameters <= CHEAP and available(e.dataset)
    up = down = times = question.parameters / size
    how = f"scaled by {times:.2g}, the ratio of parameters"
    if same:
        up, down, how = 1.0, 1.0, "as measured there with this network"
    elif count and question.network and cheap and len(group.runs[0]) > 1:
        sent, row = counted(e.to_json()), group.runs[0].rows[1]
        many = len(row["clients"])
        up, down = sent[0] * many / row["bytes_up"], sent[1] * many / row["bytes_down"]
        how = (
            "counted in real messages of a second round, other rounds in the evidence's proportion"
        )
    more = network_sizes(question.network, e.dataset)[1] / work if question.network else times
    images = SETS[e.dataset].train if question.dataset else task["train"]
    more *= images / task["train"] * task["clients"] / question.clients
    if group.timed and not math.isclose(more, 1):
        how += f"; computing scaled by {more:.2g}"
    many = round(e.participation * question.clients) or 1
    return [_scaled(h, up, down, more, many) for h in group.runs], how


@lru_cache
def counted(experiment: str) -> tuple[float, float]:
    """Bytes of one client's messages, up and down, in the second round of a run that is made. Their
    size hardly depends on images, split and number of clients: a few are enough."""
    from .round import run

    e = Experiment.from_json(experiment)
    few = min(int(e.clients), CLIENTS)
    e = replace(e, clients=few, partition="iid", train=IMAGES * few, test=IMAGES)
    how = asdict(e.settings) | {"evaluate_every": 2}
    row = run(e.make_method(), e.make_task(), 2, **how, threads=1, progress=False).rows[1]
    return tuple(row[f"bytes_{way}"] / len(row["clients"]) for way in ("up", "down"))  # type: ignore


def _scaled(history: History, up: float, down: float, computing: float, many: int) -> History:
    """The history with so many clients, and with each one's bytes and seconds times these."""
    rows = []
    for row in history.rows:
        each = many / max(1, len(row["clients"]))
        changed = {"bytes_up": up, "bytes_down": down, "seconds": computing}
        own = {k: row[k] * v * each for k, v in changed.items()}
        rows.append(row | own | {"clients": range(many)})
    return History(history.method, history.meta, rows)

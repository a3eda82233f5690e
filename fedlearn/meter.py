"""What did it send? The bytes of a training loop or a Flower app that is not ours, and what each of
our coders would have made of the same messages.

A plain loop makes two calls, a Flower app wraps its strategy::

    meter = fl.meter.Meter()                             strategy = meter.strategy(FedAvg())
    meter.received(net.state_dict(), client)             strategy.start(grid, arrays)
    meter.sent(net.state_dict(), client)                 print(meter)
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import link as links
from . import wire
from .arguments import checked, is_whole, short
from .core import Downlink, Lossy, Tensors, Update, Uplink
from .core.federation import buffer_bytes
from .costs import Cost, counted, priced
from .errors import Diverged, WireError, pick

ALL: dict[str, wire.Coder] = {
    "dense": wire.Dense(),
    "float16": wire.Dense(16),
    "pooled (RPN)": wire.Pooled(),
    "top 1/32, float32": wire.TopK(1 / 32),
    "top 1/32, float16": wire.TopK(1 / 32, "float16"),
    "top 1/32, signs (STC)": wire.TopK(1 / 32, "sign"),
    "top 1/1000, float32": wire.TopK(1 / 1000),
    "SmartIdx, 1/32": wire.SmartIdx(1 / 32),
    "scaled signs": wire.Signs(),
    "uniform, 8 bits": wire.Uniform(8),
    "uniform, 5 bits": wire.Uniform(5),
    "QSGD, 127 levels": wire.QSGD(),
    "QSGD, 127 levels, entropy": wire.QSGD(entropy=True),
    "QSGD, 7 levels, entropy": wire.QSGD(7, entropy=True),
    "natural": wire.Natural(),
    "TernGrad": wire.TernGrad(),
    "DRIVE (EDEN, 1 bit)": wire.EDEN(1),
    "EDEN, 4 bits": wire.EDEN(4),
    "random 1/32": wire.RandomK(1 / 32),
    "PowerSGD, rank 2": wire.LowRank(2),
    "count sketch, 1/2": wire.CountSketch(1 / 2),
    "zipped floats": wire.Zipped(),
}
SENT = "as sent"
BUFFERS = "running_mean", "running_var"  # how the names of batch statistics end
State = Mapping[str, Any]


def equal(one: Tensors, other: Tensors) -> bool:
    """Whether two states hold the same."""
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


class Meter:
    """Counts what crosses, and what each coder would send in its place.

    Up, a coder gets the change since what this client received last, without error feedback; down,
    the change since what it received before, and the first time the whole state as float32.
    Biases, batch statistics and the like travel as float32 beside it, as in the book's methods;
    whole numbers, such as ``num_batches_tracked``, count only in what was really sent.

    Parameters
    ----------
    name : str
        Of what is measured, for the table.
    coders : "all" or iterable of str, or mapping of str to Coder
        Some of ``fl.meter.ALL``, or coders of your own by any name.
    link : str
        A preset of ``fl.link``, for minutes and joules.
    seed : int
        Of coders that draw.

    Raises
    ------
    ValueError
        For a state that is no dictionary of tensors, has no floats or other shapes than before.

    Examples
    --------
    >>> import torch
    >>> import fedlearn as fl
    >>> net = torch.nn.Linear(1000, 10)
    >>> meter = fl.meter.Meter("linear", ["dense", "scaled signs"])
    >>> meter.received(net.state_dict())
    >>> _ = torch.nn.init.normal_(net.weight)
    >>> meter.sent(net.state_dict())
    >>> [(row["method"], row["up"]) for row in meter.cost.rows]
    [('as sent', 40040), ('dense', 40079), ('scaled signs', 1333)]
    """

    @checked
    def __init__(
        self, name: str = "your run", coders: Any = "all", link: str = "LTE", seed: int = 0
    ) -> None:
        pick(link, links.PRESETS, "link")
        if not isinstance(coders, Mapping):
            names = ALL if coders == "all" else [coders] if isinstance(coders, str) else coders
            coders = {n: pick(n, ALL, "coder") for n in names}
        self.name, self.link, self.seed = name, link, seed
        self.uplinks = {n: Uplink(Update(), Lossy(coder)) for n, coder in coders.items()}
        self.sums = {n: Counter[str]() for n in (SENT, *coders)}  # bytes, seconds, errors
        self.messages = {"up": Counter[Any](), "down": Counter[Any]()}  # by client
        self.beside = 0  # bytes of a Flower app's evaluation, and of messages without a model
        self.refused: dict[str, str] = {}  # coder -> why it could not code a message
        self.first: Tensors = {}  # each tensor as it was seen first
        self.states: dict[Any, Tensors] = {}  # client -> what it received last
        self.newest: Any = None  # what was received last, what before it, what coders made of it

    def received(self, state: State, client: Any = 0, size: int | None = None) -> None:
        """Note what a client got: a state dict. ``size``, if it is known: the bytes that crossed;
        otherwise those of the tensors."""
        new, before = self._floats(state), self.states.get(client)
        if self.newest and equal(new, self.newest[0]):
            new = self.newest[0]  # the same for many clients
        if not (self.newest and self.newest[0] is new and self.newest[1] is before):
            self.newest = new, before, self._coded("down", new, before)  # once for all of them
        self.states[client] = new
        self._note("down", client, state, size, self.newest[2])

    def sent(
        self, state: State, client: Any = 0, size: int | None = None, update: bool = False
    ) -> None:
        """Note what a client sent: its state dict after training, or with ``update`` (or if it has
        received nothing) what is to be added to the server's."""
        new = self._floats(state)
        start = None if update else self.states.get(client)
        self._note("up", client, state, size, self._coded("up", new, start or {}))

    def strategy(self, strategy: Any) -> Any:
        """A Flower strategy whose messages are counted, their records of numbers and texts
        included. It is the same object: the functions that make and take messages report here."""
        if not hasattr(strategy, "configure_train"):
            raise ValueError(
                "A strategy is one of flwr.serverapp.strategy, such as FedAvg(), not "
                f"{short(strategy)}."
            )

        def size(message: Any) -> int:
            return sum(record.count_bytes() for record in message.content.values())

        def beside(message: Any) -> None:
            self.beside += size(message)

        def note(way: Callable[..., None], client: str, message: Any) -> None:
            records = message.content.array_records
            state = {
                f"{key}.{name}" if len(records) > 1 else name: t
                for key, record in records.items()
                for name, t in record.to_torch_state_dict().items()
            }
            if state:
                way(state, getattr(message.metadata, client), size(message))
            else:
                beside(message)

        def watch(phase: str, out: Callable[[Any], None], back: Callable[[Any], None]) -> None:
            configure = getattr(strategy, f"configure_{phase}")
            aggregate = getattr(strategy, f"aggregate_{phase}")

            def configured(*args: Any, **named: Any) -> list:
                messages = list(configure(*args, **named))
                for message in messages:
                    out(message)
                return messages

            def aggregated(server_round: int, replies: Any) -> Any:
                replies = list(replies)
                for reply in replies:
                    if not reply.has_error():
                        back(reply)
                return aggregate(server_round, replies)

            setattr(strategy, f"configure_{phase}", configured)
            setattr(strategy, f"aggregate_{phase}", aggregated)

        down, up = (self.received, "dst_node_id"), (self.sent, "src_node_id")
        watch("train", partial(note, *down), partial(note, *up))
        watch("evaluate", beside, beside)
        return strategy

    @property
    def cost(self) -> Cost:
        """The table of what was counted so far, in bytes of a message, the mean of all. ``total``
        is their sum, ``error`` the squared error of uploads as a share of their energy."""
        if not self.first:
            raise ValueError("The meter has counted nothing: call received(state), sent(state).")
        messages = {way: self.messages[way].total() for way in ("up", "down")}
        clients = len(self.messages["up"].keys() | self.messages["down"].keys())
        rounds = max(max(counts.values(), default=0) for counts in self.messages.values())
        parameters = sum(t.numel() for n, t in self.first.items() if not n.endswith(BUFFERS))
        rows: list[dict[str, Any]] = []
        for name, sums in self.sums.items():
            row: dict[str, Any] = {"method": name} | dict.fromkeys(("bits", "bound", "code"))
            for way, count in messages.items():
                row[way] = round(sums[way] / count) if count else 0
                row[f"{way}_buffers"] = round(sums[f"{way}_buffers"] / count) if count else 0
            row["note"] = f"{self.beside:,} bytes more to evaluate" * bool(self.beside)
            if name != SENT:
                up = messages["up"] or 1
                row["bits"] = 8 * (row["up"] - row["up_buffers"]) / parameters
                row["code"] = sums["seconds"] / up
                row["error"] = sums["error"] / (sums["energy"] or 1)
                row["note"] = self.refused.get(name, "")
            rows.append(row | priced(row, rows[0] if rows else row, clients, rounds, self.link))
            rows[-1]["total"] = sums["up"] + sums["down"]
        about = {"name": self.name, "input": ""} | counted(self.first)
        return Cost(about, {"clients": clients, "rounds": rounds, "link": self.link}, rows)

    def __repr__(self) -> str:
        return repr(self.cost)

    def _repr_html_(self) -> str:
        return self.cost.to_html()

    def _floats(self, state: State) -> Tensors:
        """Copies of the floating-point tensors of a state, as float32 on the CPU."""
        kinds = Tensor | np.ndarray
        if not isinstance(state, Mapping) or any(not isinstance(t, kinds) for t in state.values()):
            raise ValueError(f"A state is a dictionary of tensors, not {short(state)}.")
        try:
            tensors = {n: torch.as_tensor(t) for n, t in state.items()}
        except TypeError as error:
            raise ValueError(f"A state is a dictionary of tensors of numbers ({error}).") from None
        floats = {n: t for n, t in tensors.items() if t.is_floating_point()}
        if not any(t.numel() for t in floats.values()):
            raise ValueError("The state has no parameters, that is no tensors of floats.")
        for n, t in floats.items():
            if t.is_meta or t.layout != torch.strided:
                raise ValueError(f"The tensor {n} must be dense and hold values.")
        new = {n: t.detach().to("cpu", torch.float32, copy=True) for n, t in floats.items()}
        for n, t in new.items():
            if t.shape != self.first.setdefault(n, t).shape:
                raise ValueError(f"The tensor {n} has another shape than in the state before.")
        return new

    def _coded(self, way: str, new: Tensors, start: Tensors | None) -> dict[str, dict[str, float]]:
        """What each coder makes of the change from ``start`` to ``new``, or if there is no start,
        of the state as it is: bytes, those of buffers, and of what goes up seconds, squared error
        and energy."""
        shapes = {n: tuple(t.shape) for n, t in new.items()}
        buffers = frozenset(n for n in new if n.endswith(BUFFERS))
        results: dict[str, dict[str, float]] = {}
        whole, plain = start is None, Downlink()
        start = {n: torch.zeros_like(t) for n, t in new.items()} | (start or {})
        draws: dict[str, Any] = {"round": self.messages["up"].total(), "client": 0}
        draws |= {"task": SimpleNamespace(seed=self.seed, device="cpu")}
        for name, uplink in self.uplinks.items():
            link, schema = plain if whole else uplink, wire.Schema(shapes, buffers, name)
            ctx: Any = SimpleNamespace(schema=schema, start=start, **draws)
            began = time.process_time()
            try:
                sections = link.encode(new, ctx)
                came = link.read(sections, ctx)
            except (Diverged, WireError) as error:
                self.refused[name] = f"a message counts as dense: {error}"
                sections, came = plain.encode(new, ctx), {}
            size = len(wire.pack(wire.Message(wire.UP, 0, 0, 0, sections), schema))
            spent = time.process_time() - began
            results[name] = {way: size, f"{way}_buffers": buffer_bytes(sections, schema)}
            if way == "up":
                true = {n: new[n] - start[n] for n in came}
                results[name] |= {
                    "seconds": spent,
                    "energy": sum(float(u.square().sum()) for u in true.values()),
                    "error": sum(float((came[n] - u).square().sum()) for n, u in true.items()),
                }
        return results

    def _note(
        self, way: str, client: Any, state: State, size: int | None, coded: dict[str, dict]
    ) -> None:
        """Count one message."""
        if size is not None and not (is_whole(size) and size >= 0):
            raise ValueError(f"size is a number of bytes, not {short(size)}.")
        sizes = {n: t.nbytes for n, t in state.items()}
        total = sum(sizes.values()) if size is None else size
        batch = sum(b for n, b in sizes.items() if n not in self.first or n.endswith(BUFFERS))
        self.messages[way][client] += 1
        for name, sums in ({SENT: {way: total, f"{way}_buffers": batch}} | coded).items():
            self.sums[name].update(sums)  # of a Counter: adds them

"""The fourth and fifth part: what bytes go up, and what bytes come down?

Both are a chain of small steps. A message is made forwards, from tensors to tensors, and by the
last step to bytes; it is undone backwards. When it is made, every step hears, also backwards, what
the receiver will decode: so error feedback is a step like any other.

    Uplink(Update(), Clip(1.0), Momentum(0.9), Feedback(), Lossy(TopK(1 / 1000)))        # DGC
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from .. import rng
from ..errors import WireError
from ..models import state_of
from ..wire import Coder, Dense, Schema
from .base import WORDS, Context, Part, Tensors

Sections = dict[str, Any]  # coded bytes by tensor name
DENSE = Dense()


class Step(Part):
    """One step of a chain. ``takes`` and ``makes`` are what goes in and what comes out (keys of
    ``WORDS``); None: anything, and the same."""

    takes: Any = None
    makes: Any = None
    stacks = False  # ``encode`` works as well on tensors with a client axis
    listens = False  # ``sent`` is to be called, for which the message is decoded at once
    personal = False  # ``decode`` looks at what this receiver keeps

    def __init_subclass__(cls) -> None:
        """Who replaces ``encode`` has to say anew that it stacks; who has ``sent`` will hear it."""
        if "encode" in vars(cls):
            cls.stacks = vars(cls).get("stacks", False)
        if "sent" in vars(cls):
            cls.listens = vars(cls).get("listens", True)

    def check(self, rest: "Sequence[Step]") -> None:
        """``ValueError`` if this step cannot work before the ``rest`` of its chain."""

    def validate(self, ctx: Context) -> None:
        """``ValueError`` for a task or settings that this step cannot work with."""

    def shapes(self, net: nn.Module) -> dict[str, tuple[int, ...]]:
        """Tensors that this step adds to the message, by name."""
        return {}

    def names(self, names: list[str], ctx: Context) -> list[str]:
        """Which of these tensors travel in the message at hand."""
        return names

    def group(self, ctx: Context) -> Hashable:
        """Clients of one group get the same message in a round (downlink)."""
        return None

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        """The sender's side. ``x`` and its tensors are not to be changed."""
        return x

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        """Afterwards: ``x`` is what ``encode`` returned, ``sent`` what the receiver will decode."""

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        """The receiver's side, the inverse of ``encode`` as far as there is one."""
        return x


@dataclass(frozen=True)
class Code(Step):
    """The last step of a chain: every tensor through one coder. (Bytes are made by the chain.)"""

    coder: Coder = DENSE

    def __post_init__(self) -> None:
        if not isinstance(self.coder, Coder):
            raise ValueError(f"{self.coder!r} is no coder (fedlearn.wire.Coder).")

    @property
    def takes(self) -> Any:
        return self.coder.takes

    @property
    def makes(self) -> Any:
        """As the coder says; of a sketch also which tensors come as one."""
        gives = self.coder.gives
        return (gives, self) if gives == "sketch" else gives

    def coder_for(self, name: str, ctx: Context) -> Coder:
        """Which coder this tensor goes through."""
        return self.coder


@dataclass(frozen=True)
class Lossy(Code):
    """Batch statistics and tensors of fewer than ``whole`` dimensions travel dense, all else
    through the coder."""

    whole: int = 2

    def coder_for(self, name: str, ctx: Context) -> Coder:
        small = len(ctx.schema.shapes[name]) < self.whole
        return DENSE if small or name in ctx.schema.buffers else self.coder


class Link(Part):
    """A chain of steps; the last is a ``Code``, by default dense float32."""

    begins = "state"  # what goes into the first step

    def __init__(self, *steps: Step) -> None:
        if not steps or not isinstance(steps[-1], Code):
            steps = (*steps, Code())
        kind = self.begins
        for step in steps:
            if not isinstance(step, Step) or (isinstance(step, Code) and step is not steps[-1]):
                raise ValueError(f"A link is steps, of which the last may be a Code, not {step!r}.")
            step.refuse_unknown(Code if isinstance(step, Code) else Step)
            if step.takes and step.takes != kind:
                what = step.coder if isinstance(step, Code) else step
                raise ValueError(f"{what!r} takes {WORDS[step.takes]}, but gets {WORDS[kind]}.")
            kind = step.makes or kind
        drops = [s for s in steps if type(s).names is not Step.names]
        adds = [s for s in steps if type(s).shapes is not Step.shapes]
        if drops and adds:
            raise ValueError(f"{drops[0]!r} leaves tensors out, but {adds[0]!r} needs all of them.")
        self.steps: tuple[Step, ...] = steps
        self.code: Code = steps[-1]  # type: ignore[assignment]
        for i, step in enumerate(steps[:-1]):
            looks, coder = step.listens or type(step).decode is not Step.decode, self.code.coder
            if looks and coder.gives == "sketch":
                raise ValueError(f"{step!r} needs what {coder!r} coded, which decodes to a table.")
            step.check(steps[i + 1 :])
        self.needs = frozenset[str]().union(*(step.needs for step in steps))
        self.gives = frozenset({kind}).union(*(step.gives for step in steps))
        self.personal = any(step.personal for step in steps)
        self.stacks = all(step.stacks for step in steps[:-1]) and not self.code.coder.shared
        self.listens = any(step.listens for step in steps)

    def __repr__(self) -> str:
        steps = self.steps[:-1] if self.code == Code() else self.steps
        return f"{type(self).__name__}({', '.join(map(repr, steps))})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def validate(self, ctx: Context) -> None:
        """``ValueError`` for a task or settings that a step cannot work with."""
        for step in self.steps:
            step.validate(ctx)

    def schema(self, net: nn.Module, task: Any) -> Schema:
        """What the receiver allows. Buffers are what gradients do not move: batch statistics and
        frozen parameters; and what a step adds."""
        shapes = {name: tuple(t.shape) for name, t in state_of(net).items()}
        buffers = shapes.keys() - {n for n, p in net.named_parameters() if p.requires_grad}
        for step in self.steps:
            own = step.shapes(net)
            shapes, buffers = shapes | own, buffers | own.keys()
        return Schema(shapes, frozenset(buffers), repr(self))

    # ---- the sender's side ---------------------------------------------------------------------

    def compress(self, x: Tensors, ctx: Context) -> tuple[Sections, Tensors]:
        """Tensors -> sections, and what the receiver will decode them to (before steps are undone).
        Steps read and write what they remember in ``ctx.memory``."""
        return self._encode(x, ctx, True)

    def _encode(self, x: Tensors, ctx: Context, listens: bool) -> tuple[Sections, Tensors]:
        dense = {name for name in ctx.schema.shapes if self.code.coder_for(name, ctx) == DENSE}
        ctx = replace(ctx, lossy=frozenset(ctx.schema.shapes.keys() - dense))
        passed = []
        for step in self.steps:
            x = step.encode(x, ctx)
            passed.append(x)
        rows = {name: t[None] for name, t in x.items()}
        sections, sent = self._pack(rows, ctx, [self._generator(ctx)])[0], {}
        if listens:
            sent = {n: t.to(x[n].device) for n, t in self.unpack(sections, ctx).items()}
            for step, x in reversed(list(zip(self.steps, passed, strict=True))):
                step.sent(x, sent, ctx)
        return sections, sent

    def _generator(self, ctx: Context) -> torch.Generator:
        return ctx.generator("coder")

    def _sender(self, ctx: Context) -> int:
        """Who draws, for the name of a generator: a client, or -1 for the server."""
        return ctx.client

    def _drawn(self, coder: Coder, names: list[str], ctx: Context) -> list[torch.Generator] | None:
        """For a ``shared`` coder a generator for each tensor, which both sides derive."""
        if not coder.shared:
            return None
        who = ctx.task.seed, "shared coder", ctx.round, self._sender(ctx)
        return [rng.generator(*who, name) for name in names]

    def _pack(self, rows: Tensors, ctx: Context, generators: list) -> list[Sections]:
        """Tensors [clients, ...] -> for each client a dict of sections."""
        coded: list[Sections] = [{} for _ in generators]
        for coder, names in self._by_coder(rows, ctx):
            sections = coder.encode_rows(
                [rows[name] for name in names], generators, self._drawn(coder, names, ctx)
            )
            for own, row in zip(coded, sections, strict=True):
                own.update(zip(names, row, strict=True))
        return coded

    # ---- the receiver's side -------------------------------------------------------------------

    def unpack(self, sections: Sections, ctx: Context) -> Tensors:
        """Sections -> the tensors that the sender's coders saw, as far as they keep them."""
        tensors: Tensors = {}
        for coder, names in self._by_coder(sections, ctx):
            shapes = [ctx.schema.shapes[name] for name in names]
            decoded = coder.decode_all(
                [sections[name] for name in names], shapes, self._drawn(coder, names, ctx)
            )
            tensors.update(zip(names, decoded, strict=True))
        return tensors

    def undo(self, x: Tensors, ctx: Context) -> Tensors:
        """What ``unpack`` gave -> what the sender began with."""
        for step in reversed(self.steps):
            x = step.decode(x, ctx)
        return x

    def at(self, round: int, name: str, section: Any, ctx: Context) -> torch.Tensor:
        """One tensor that the server coded in that round."""
        return self.unpack({name: section}, replace(ctx, round=round, client=-1))[name]

    def expected(self, ctx: Context) -> list[str]:
        """The names of the tensors that this message must have."""
        names = list(ctx.schema.shapes)
        for step in self.steps:
            names = step.names(names, ctx)
        return names

    def _by_coder(self, names: Iterable[str], ctx: Context) -> Iterable[tuple[Coder, list[str]]]:
        groups: dict[Coder, list[str]] = {}
        for name in names:
            groups.setdefault(self.code.coder_for(name, ctx), []).append(name)
        return groups.items()


class Uplink(Link):
    """What a client sends. With ``Uplink()`` that is the update, dense."""

    begins = "trained"

    def __init__(self, *steps: Step) -> None:
        super().__init__(*(steps or (Update(),)))
        if not any(step.makes for step in self.steps[:-1]):
            raise ValueError(f"{self!r} must begin with what becomes of the weights: Update().")
        if "update" in self.gives and not self.code.coder.sparse:  # its signs are votes
            self.gives |= {"votes"}
        own = type(self)  # one that replaces only ``encode`` is obeyed
        self.stacks &= own.encode is Uplink.encode or own.encode_rows is not Uplink.encode_rows

    def encode(self, trained: Tensors, ctx: Context) -> Sections:
        """What was trained -> sections."""
        return self._encode(trained, ctx, self.listens)[0]

    def encode_rows(self, trained: Tensors, ctx: Context) -> list[Sections]:
        """``encode`` for stacked clients, if the chain ``stacks``: [clients, ...] -> a dict of
        sections for each."""
        for step in self.steps:
            trained = step.encode(trained, ctx)
        return self._pack(trained, ctx, self._generator(ctx))

    def decode(self, sections: Sections, ctx: Context) -> Tensors:
        """Sections -> update (or votes, or mask) by name; ``WireError`` unless just the tensors
        came that this client was to send."""
        if sections.keys() != set(self.expected(ctx)):
            raise WireError(
                f"Client {ctx.client} did not send the tensors that it has to in this round (the "
                "whole update, or its modules); one whose training diverged sends nothing."
            )
        return self.undo(self.unpack(sections, ctx), ctx)


class Downlink(Link):
    """What a client gets. With ``Downlink()`` that is the global model, dense."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(*steps)
        if "state" not in self.gives:
            raise ValueError(
                f"{self!r} must bring the client the server's state, which no votes, masks or "
                "sketches are."
            )

    def group(self, ctx: Context) -> Hashable:
        """All clients of a group get the same sections in a round, which are coded once."""
        return tuple(step.group(ctx) for step in self.steps)

    def encode(self, state: Tensors, ctx: Context) -> Sections:
        """The global state -> sections for the client of ``ctx`` and its group."""
        return self._encode(state, ctx, self.listens)[0]

    def undo(self, x: Tensors, ctx: Context) -> Tensors:
        own = replace(ctx, memory=dict(ctx.memory))
        state = super().undo({n: t.to(ctx.task.device) for n, t in x.items()}, own)
        if state.keys() != ctx.initial.keys():
            raise WireError("The server's message does not hold the whole model.")
        ctx.memory.update(own.memory)  # of a message that is refused nothing is kept
        return {n: state[n] for n in ctx.initial}

    def _generator(self, ctx: Context) -> torch.Generator:
        return rng.generator(ctx.task.seed, "coder", ctx.round, -1)  # the same for all clients

    def _sender(self, ctx: Context) -> int:
        return -1


@dataclass(frozen=True)
class Update(Step):
    """u = w - w_t: what local training changed."""

    takes, makes, stacks = "trained", "update", True

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        """The differences are written at once into the buffer that a dense coder sends: new memory
        is dear."""
        rows = len(ctx.client) if isinstance(ctx.client, list) else 1
        tensors = list(x.values())
        sizes = [t.numel() // rows for t in tensors]
        buffer = torch.empty(rows, sum(sizes), device=tensors[0].device)
        parts = zip(buffer.split(sizes, 1), tensors, strict=True)
        updates = [
            part.reshape(t.shape) if rows == 1 else part.unflatten(1, t.shape[1:])
            for part, t in parts
        ]
        for name, update in zip(x, updates, strict=True):
            torch.sub(x[name], ctx.start[name], out=update)
        return dict(zip(x, updates, strict=True))

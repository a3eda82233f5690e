"""What bytes go up, and what bytes come down? Both are a chain of small steps.

A message is made forwards, from tensors to tensors, and at the end to bytes; it is undone
backwards. When it was made, every step hears, also backwards, what the receiver will decode: so
error feedback is a step like any other.

    Uplink(Update(), Clip(1.0), Momentum(0.9), Feedback(), Lossy(TopK(1 / 1000)))        # DGC
"""

import struct
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from . import rng
from .arguments import short
from .context import Context, Part, Tensors, in_words, provides
from .errors import Diverged, WireError
from .models import state_of
from .wire import Coder, Dense, LowRank, Schema, Sketches, Votes, coders
from .wire.lowrank import power_step

Sections = dict[str, Any]  # coded bytes by tensor name
DENSE = Dense()


class Weights:
    """What the server keeps, and a downlink brings."""

    words, giver = "the server's state", "downlink"


class Trained:
    """What local training made of the weights."""

    words, giver = "what was trained", "uplink"


# Where changes are to be had by a step that gets weights.
CHANGES: dict[Any, str] = {
    Trained: "Update() comes before it",
    Weights: "what changes comes down as steps, with downlink=Replay(link), server=KeptSteps(link) "
    "and a link such as Uplink(Update(), Feedback(), Lossy(TopK(1 / 32)))",
}


class Step(Part):
    """One step of a chain. ``takes`` and ``makes`` are the classes of what goes in and what comes
    out, such as ``Trained``, ``Update`` or one of your own; None: anything, and the same.
    ``refuses``: weights (keys of ``CHANGES``) on which a step that is made for changes would train
    to nothing."""

    giver = "uplink"
    takes: Any = None
    makes: Any = None
    refuses: Any = frozenset()

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        """The sender's side. ``x`` and its tensors are not to be changed."""
        return x

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        """Afterwards: ``x`` is what ``encode`` returned, ``sent`` what the receiver will decode."""

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        """The receiver's side, the inverse of ``encode`` as far as there is one."""
        return x

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


@dataclass(frozen=True)
class Code(Step):
    """The last step of a chain: every tensor through one coder. (Bytes are made by the chain.)"""

    coder: Coder = DENSE

    def __post_init__(self) -> None:
        if not isinstance(self.coder, Coder):
            raise ValueError(f"{self.coder!r} is no coder (fedlearn.wire.Coder).")

    @property
    def takes(self) -> Any:  # type: ignore[override]
        return self.coder.takes

    @property
    def makes(self) -> Any:  # type: ignore[override]
        return self.coder.makes

    @property
    def refuses(self) -> Any:  # type: ignore[override]
        """A model of which most entries are zero, or those of M^0, is another model."""
        return frozenset({Weights} if self.coder.sparse else ())

    def coder_for(self, name: str, ctx: Context) -> Coder:
        """Which coder this tensor goes through."""
        return self.coder


@dataclass(frozen=True)
class Lossy(Code):
    """Batch statistics and tensors of fewer than ``whole`` dimensions travel dense, all else
    through the coder."""

    words = "tensors coded by"

    whole: int = 2

    def coder_for(self, name: str, ctx: Context) -> Coder:
        small = len(ctx.schema.shapes[name]) < self.whole
        return DENSE if small or name in ctx.schema.buffers else self.coder


class Link(Part):
    """A chain of steps; the last is a ``Code``, by default dense float32."""

    begins: type = Weights  # what goes into the first step

    def __init__(self, *steps: Step) -> None:
        if not steps or not isinstance(steps[-1], Code):
            steps = (*steps, Code())
        kind = self.begins
        for step in steps:
            if not isinstance(step, Step) or (isinstance(step, Code) and step is not steps[-1]):
                raise ValueError(f"A link is steps, of which the last may be a Code, not {step!r}.")
            step.refuse_unknown(Code if isinstance(step, Code) else Step)
            what = step.coder if isinstance(step, Code) else step
            if step.takes and not provides([kind], step.takes):
                raise ValueError(
                    f"{what!r} takes {in_words(step.takes)}, but gets {in_words(kind)}."
                )
            if kind in step.refuses:
                raise ValueError(
                    f"{what!r} takes changes, but gets {in_words(kind)}: {CHANGES[kind]}."
                )
            kind = step.makes or kind
        drops = [s for s in steps if type(s).names is not Step.names]
        adds = [s for s in steps if type(s).shapes is not Step.shapes]
        if drops and adds:
            raise ValueError(f"{drops[0]!r} leaves tensors out, but {adds[0]!r} needs all of them.")
        self.steps, self.makes = steps, kind
        self.code: Code = steps[-1]  # type: ignore[assignment]
        self.hears = [type(step).sent is not Step.sent for step in steps]
        for i, step in enumerate(steps[:-1]):
            looks, coder = self.hears[i] or type(step).decode is not Step.decode, self.code.coder
            if looks and coder.makes is Sketches:
                raise ValueError(f"{step!r} needs what {coder!r} coded, which decodes to a table.")
            step.check(steps[i + 1 :])
        self.needs = frozenset[Any]().union(*(step.needs for step in steps))

    def given(self) -> set[Any]:
        passing = [step for step in self.steps[:-1] if not step.makes]
        return {self.makes, self.code}.union(*(step.given() for step in passing))

    def says(self) -> str:
        return in_words(self.makes)

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

    def schema(self, net: nn.Module) -> Schema:
        """What the receiver allows. Buffers are what gradients do not move: batch statistics and
        frozen parameters; and what a step adds."""
        shapes = {name: tuple(t.shape) for name, t in state_of(net).items()}
        buffers = shapes.keys() - {n for n, p in net.named_parameters() if p.requires_grad}
        for step in self.steps:
            own = step.shapes(net)
            shapes, buffers = shapes | own, buffers | own.keys()
        return Schema(shapes, frozenset(buffers), repr(self))

    # ---- the sender ------------------------------------------------------------------------------

    def encode(self, x: Tensors, ctx: Context) -> Sections:
        """Tensors -> sections. Steps read and write what they remember in ``ctx.memory``."""
        return self.compress(x, ctx)[0]

    def compress(self, x: Tensors, ctx: Context, hear: bool = False) -> tuple[Sections, Tensors]:
        """The same, and what the receiver will decode the sections to, before steps are undone; {}
        if nobody wants to know, no step and no caller."""
        shapes = ctx.schema.shapes
        dense = {name for name in shapes if self.code.coder_for(name, ctx) == DENSE}
        ctx = replace(ctx, lossy=frozenset(shapes.keys() - dense))
        passed = []
        for step in self.steps:
            x = step.encode(x, ctx)
            passed.append(x)
        sections = self.write(x, ctx)
        if not hear and not any(self.hears):
            return sections, {}
        sent = {n: t.to(x[n].device) for n, t in self.read(sections, ctx).items()}
        for step, x in reversed(list(zip(self.steps, passed, strict=True))):
            step.sent(x, sent, ctx)
        return sections, sent

    def write(self, x: Tensors, ctx: Context) -> Sections:
        """Each tensor through its coder."""
        sections: Sections = {}
        for coder, names in self._by_coder(x, ctx):
            if type(coder) is Dense:  # all of them at once
                coded = coders.write_floats([x[n] for n in names], coder.dtype)
                sections.update(zip(names, coded, strict=True))
                continue
            own = (self._generator(ctx),) if coder.stochastic else ()
            for n, drawn in zip(names, self._shared(coder, names, ctx), strict=True):
                sections[n] = coder.encode(x[n], *own, *drawn)
        return sections

    def _generator(self, ctx: Context) -> torch.Generator:
        return ctx.generator("coder")

    def _sender(self, ctx: Context) -> int:
        """Who draws, for the name of a generator: a client, or -1 for the server."""
        return ctx.client

    def _shared(self, coder: Coder, names: list[str], ctx: Context) -> list[tuple]:
        """For a ``shared`` coder a generator for each tensor, which both sides derive."""
        if not coder.shared:
            return [()] * len(names)
        who = ctx.task.seed, "shared coder", ctx.round, self._sender(ctx)
        return [(rng.generator(*who, name),) for name in names]

    def _by_coder(self, names: Iterable[str], ctx: Context) -> Iterable[tuple[Coder, list[str]]]:
        groups: dict[Coder, list[str]] = {}
        for name in names:
            groups.setdefault(self.code.coder_for(name, ctx), []).append(name)
        return groups.items()

    # ---- the receiver ----------------------------------------------------------------------------

    def read(self, sections: Sections, ctx: Context) -> Tensors:
        """Sections -> the tensors that the sender's coders saw, as far as they keep them."""
        x: Tensors = {}
        for coder, names in self._by_coder(sections, ctx):
            its, shapes = [sections[n] for n in names], [ctx.schema.shapes[n] for n in names]
            if type(coder) is Dense:
                x.update(zip(names, coders.read_floats(its, shapes, coder.dtype), strict=True))
                continue
            drawn = self._shared(coder, names, ctx)
            for n, section, shape, own in zip(names, its, shapes, drawn, strict=True):
                x[n] = coder.decode(section, shape, *own)
        return x

    def undo(self, x: Tensors, ctx: Context) -> Tensors:
        """What ``read`` gave -> what the sender began with."""
        for step in reversed(self.steps):
            x = step.decode(x, ctx)
        return x

    def at(self, round: int, name: str, section: Any, ctx: Context) -> torch.Tensor:
        """One tensor that the server coded in that round."""
        return self.read({name: section}, replace(ctx, round=round, client=-1))[name]

    def expected(self, ctx: Context) -> list[str]:
        """The names of the tensors that this message must have."""
        names = list(ctx.schema.shapes)
        for step in self.steps:
            names = step.names(names, ctx)
        return names


class Uplink(Link):
    """What a client sends. With ``Uplink()`` that is the update, dense."""

    begins = Trained

    def __init__(self, *steps: Step) -> None:
        super().__init__(*(steps or (Update(),)))
        if not any(step.makes for step in self.steps[:-1]):
            raise ValueError(f"{self!r} must begin with what becomes of the weights: Update().")

    def given(self) -> set[Any]:
        dense = provides([self.makes], Update) and not self.code.coder.sparse
        return super().given() | ({Votes} if dense else set())  # an update's signs are votes

    def decode(self, sections: Sections, ctx: Context) -> Tensors:
        """Sections -> update (or votes, or mask) by name; ``WireError`` unless just the tensors
        came that this client was to send."""
        if sections.keys() != set(self.expected(ctx)):
            raise WireError(
                f"Client {ctx.client} did not send the tensors that it has to in this round (the "
                "whole update, or its modules); one whose training diverged sends nothing."
            )
        return self.undo(self.read(sections, ctx), ctx)


class Downlink(Link):
    """What a client gets. With ``Downlink()`` that is the global model, dense."""

    giver = "downlink"

    def __init__(self, *steps: Step) -> None:
        super().__init__(*steps)
        if not provides([self.makes], Weights):
            raise ValueError(
                f"{self!r} must bring the client the server's state, which no votes, masks or "
                "sketches are."
            )

    def group(self, ctx: Context) -> Hashable:
        """All clients of a group get the same sections in a round, which are coded once."""
        return tuple(step.group(ctx) for step in self.steps)

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


# ---- steps that more than one method uses --------------------------------------------------------


@dataclass(frozen=True)
class Update(Step):
    """u = w - w_t: what local training changed."""

    words = "updates of the weights"
    takes = Trained

    # a class below this one makes updates of a kind of its own
    makes = property(type, doc="The class of what comes out.")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        return {n: (w - ctx.start[n]).contiguous() for n, w in x.items()}


@dataclass(frozen=True)
class Feedback(Step):
    """Error feedback: what the coder lost is kept and added to the next update. It sends C(u + e)
    and keeps e <- u + e - C(u + e); of what it does not send at all it keeps everything.

    The sender does not learn whether its upload was refused: then what it held is lost.
    """

    refuses = frozenset({Trained})

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        errors = {n: ctx.memory[f"error/{n}"] for n in x if f"error/{n}" in ctx.memory}
        return {n: t + errors[n] if n in errors else t for n, t in x.items()}

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in x.keys() - ctx.schema.buffers:
            if n not in sent:
                ctx.memory[f"error/{n}"] = x[n].clone()
            elif n in ctx.lossy or f"error/{n}" in ctx.memory:
                ctx.memory[f"error/{n}"] = x[n] - sent[n]


@dataclass(frozen=True)
class Residual(Step):
    """What has changed since M^0, which both sides hold."""

    takes = Weights

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        return {n: t - ctx.initial[n] for n, t in x.items()}

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        return {n: ctx.initial[n] + t for n, t in x.items()}


@dataclass(frozen=True)
class Clip(Step):
    """g <- g min(1, norm / (sqrt(N) ||g||)) over all tensors that are coded with loss; N is the
    number of clients in the round (DGC, section 3.2)."""

    refuses = frozenset({Trained, Weights})

    norm: float = float("inf")

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ValueError(f"A norm to clip to is above 0, not {self.norm!r}.")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        lossy = [n for n in x if n in ctx.lossy]
        norm = torch.stack(torch._foreach_norm([x[n] for n in lossy])).norm() if lossy else 0
        limit = self.norm / len(ctx.participants) ** 0.5
        factor = min(1.0, limit / max(float(norm), 1e-30))
        return {n: t * factor if n in lossy else t for n, t in x.items()}


@dataclass(frozen=True)
class Momentum(Step):
    """u <- m u + g, and u <- 0 where an entry was sent (DGC, sections 3.2 and 3.3). What travels
    whole anyway, biases and normalisation, has the same momentum and is never set to zero: as in
    the authors' program, where SGD's momentum does not know what is compressed."""

    refuses = frozenset({Trained, Weights})

    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"Momentum is at least 0 and below 1, not {self.momentum!r}.")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        own = x.keys() - ctx.schema.buffers
        u = {n: self.momentum * ctx.memory.get(f"u/{n}", 0) + x[n] for n in x if n in own}
        if not all(torch.isfinite(t).all() for t in u.values()):  # or u would stay so for ever
            raise Diverged(f"The update of client {ctx.client} is NaN or infinite.")
        ctx.memory.update({f"u/{n}": t for n, t in u.items()})
        return x | u

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in sent:
            if n in ctx.lossy:
                ctx.memory[f"u/{n}"] = x[n] * (sent[n] == 0)


@dataclass(frozen=True)
class WarmStart(Step):
    """Before ``Lossy(LowRank(rank))``: one step of subspace iteration from the Q of the last round,
    which this side keeps (PowerSGD, section 4.2). The matrix of rank ``rank`` that it makes goes
    through the coder unchanged, up to rounding. No other step may come between; ``Feedback`` comes
    before."""

    rank: int = 2

    def __post_init__(self) -> None:
        LowRank(self.rank)

    def check(self, rest: Sequence[Step]) -> None:
        coder = rest[0].coder if isinstance(rest[0], Code) else None
        if not isinstance(coder, LowRank) or coder.rank != self.rank:
            raise ValueError(
                f"{self!r} comes just before Lossy({LowRank(self.rank)!r}), not {rest[0]!r}."
            )

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        coder, low = LowRank(self.rank), {}
        for n in x.keys() & ctx.lossy:
            sizes = coder.factors(x[n].shape)
            if not sizes:
                continue
            M = x[n].cpu().double().reshape(sizes)
            if not torch.isfinite(M).all():  # or Q would stay so for ever
                raise Diverged(f"The update of client {ctx.client} is NaN or infinite.")
            first = rng.generator(ctx.task.seed, "low rank", n)
            new = torch.randn(sizes[1], self.rank, generator=first)
            P, Q = power_step(M, ctx.memory.get(f"Q/{n}", new).cpu().double())
            ctx.memory[f"Q/{n}"] = Q.float()
            low[n] = (P @ Q.T).to(x[n]).reshape(x[n].shape)
        return x | low


# ---- compressed both ways ------------------------------------------------------------------------

_NUMBER = struct.Struct("<I")


@dataclass(frozen=True)
class Steps:
    """What a server gives that keeps its steps, coded by ``link``."""

    words, giver = "a server that keeps its steps (KeptSteps),", "server"

    link: Uplink

    def __repr__(self) -> str:
        return f"coded by {self.link!r}"


def last_known(ctx: Context, client: int) -> int:
    """The round whose model this client has: that before the last one it answered."""
    return max(ctx.last_seen.get(client, 0) - 1, 0)


class Replay(Downlink):
    """All steps that a client may not have heard. A section is a one, the round after which the
    steps begin, and the step of each round behind its length (0: there was none); or a zero and the
    whole tensor. The client keeps the model that it adds them to and its round, so that a step that
    comes twice counts once and a missing one is noticed."""

    def __init__(self, link: Uplink) -> None:
        if not isinstance(link, Uplink):
            raise ValueError(f"The server's steps travel through an Uplink, not {short(link)}.")
        super().__init__()
        self.link, self.needs = link, frozenset({Steps(link)})

    def __repr__(self) -> str:
        return f"Replay({self.link!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replay) and self.link == other.link

    def __hash__(self) -> int:
        return hash(self.link)

    def group(self, ctx: Context) -> Hashable:
        return last_known(ctx, ctx.client)

    def encode(self, state: Tensors, ctx: Context) -> Sections:
        memory, since = ctx.memory, last_known(ctx, ctx.client)
        sections: Sections = {}
        for n, w in state.items():
            there = [memory.get(f"step/{n}/{t}") for t in range(since + 1, ctx.round)]
            steps = [b"" if s is None else s.cpu().numpy().tobytes() for s in there]
            parts = [_NUMBER.pack(len(s)) + s for s in steps]
            replay = b"\1" + _NUMBER.pack(since) + b"".join(parts)
            known = since + 1 >= int(memory.get(f"from/{n}", 1))
            whole = not known or len(replay) >= 4 * w.numel() + 1
            sections[n] = b"\0" + bytes(DENSE.encode(w)) if whole else replay
        return sections

    def read(self, sections: Sections, ctx: Context) -> Any:
        return sections  # what they mean depends on the model that the client keeps

    def undo(self, x: Any, ctx: Context) -> Tensors:
        if x.keys() != ctx.initial.keys():
            raise WireError("The server's message does not hold the whole model.")
        model = {n: self._rebuild(n, bytes(data), ctx) for n, data in x.items()}
        ctx.memory.update({f"model/{n}": w for n, w in model.items()})
        ctx.memory["heard"] = torch.tensor(ctx.round - 1)
        return model

    def _rebuild(self, n: str, data: bytes, ctx: Context) -> torch.Tensor:
        w, heard = ctx.memory.get(f"model/{n}", ctx.initial[n]), int(ctx.memory.get("heard", 0))
        if data[:1] == b"\0":
            return DENSE.decode(data[1:], ctx.schema.shapes[n]).to(w.device)
        if data[:1] != b"\1" or len(data) < 5:
            raise WireError(f"The section of {n} is neither steps nor a tensor.")
        (round,), at = _NUMBER.unpack_from(data, 1), 5
        if round > heard:
            raise WireError(
                f"The steps of {n} begin after round {round}, this client knows the model of round "
                f"{heard}."
            )
        while at < len(data):
            length = _NUMBER.unpack_from(data, at)[0] if at + 4 <= len(data) else len(data)
            end, round = at + 4 + length, round + 1
            if end > len(data) or round >= ctx.round:
                raise WireError(f"The section of {n} ends inside a step or holds too many.")
            if round > heard and length:
                step = self.link.at(round, n, data[at + 4 : end], ctx)
                w = w + step.to(w.device)
            at = end
        if round < ctx.round - 1:
            raise WireError(f"The section of {n} ends before the model of round {ctx.round - 1}.")
        return w

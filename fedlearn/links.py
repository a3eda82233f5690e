"""What bytes go up, and what bytes come down? Both are a chain of small steps.

A message is made forwards, from tensors to tensors, and at the end to bytes; it is undone
backwards. When it was made, every step is told, also backwards, what the receiver will decode: so
error feedback is a step like any other.

    Uplink(Update(), Clip(1.0), Momentum(0.9), Feedback(), Lossy(TopK(1 / 1000)))        # DGC
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn

from . import rng
from .arguments import BelowOne, Range
from .context import Context, Part, Tensors, label
from .errors import Diverged, WireError
from .models import state_of
from .wire import Coder, Dense, LowRank, Schema, SharedRandomness, Sparse, Stochastic, Votes, coders
from .wire.sparse import power_step

Sections = dict[str, Any]  # coded bytes by tensor name
DENSE = Dense()


class Weights:
    """What the server keeps, and a downlink brings."""


class Trained:
    """What local training made of the weights."""


class Step(Part):
    """One step of a chain. ``takes`` (one or several) and ``makes`` are the classes of what goes in
    and comes out, such as ``Trained``, ``Update`` or one of your own; None: anything, and the
    same."""

    takes: Any = None
    makes: Any = None

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

    def coder_for(self, name: str, ctx: Context) -> Coder:
        """Which coder this tensor goes through; the same for all clients of a round."""
        return self.coder


@dataclass(frozen=True)
class Lossy(Code):
    """Batch statistics and tensors below ``whole`` dimensions travel dense."""

    whole: int = 2

    def coder_for(self, name: str, ctx: Context) -> Coder:
        small = len(ctx.schema.shapes[name]) < self.whole
        return DENSE if small or name in ctx.schema.buffers else self.coder


class Link(Part):
    """A chain of steps; the last is a ``Code``, by default dense float32."""

    begins: type = Weights  # what goes into the first step
    broadcast = False  # one message for many: coders draw as the server, client -1

    def __init__(self, *steps: Step) -> None:
        if not steps or not isinstance(steps[-1], Code):
            steps = (*steps, Code())
        kind = self.begins
        for step in steps:
            if not isinstance(step, Step):
                raise ValueError(f"A link is steps, of which the last may be a Code, not {step!r}.")
            if isinstance(step, Code) and step is not steps[-1]:
                after = steps[steps.index(step) + 1]
                raise ValueError(f"{step!r} makes bytes, so it is the last: {after!r} goes before.")
            step.refuse_unknown(Code if isinstance(step, Code) else Step)
            part: Any = step.coder if isinstance(step, Code) else step
            if kind is Weights and isinstance(part, Sparse):  # most entries zero: another model
                raise ValueError(
                    f"{part!r} takes changes, but gets Weights: downlink=Replay(link), "
                    "server=KeptSteps(link) bring those of the server down, with the same link as "
                    "uplink."
                )
            if part.takes and not issubclass(kind, part.takes):
                takes = part.takes if isinstance(part.takes, tuple) else (part.takes,)
                raise ValueError(
                    f"{part!r} takes {' or '.join(map(label, takes))}, but gets {label(kind)}."
                )
            kind = part.makes or kind
        for i, step in enumerate(steps[:-1], 1):
            step.check(steps[i:])
        self.steps, self.makes = steps, kind
        self.shown: tuple[Any, ...] = steps[:-1] if steps[-1] == Code() else steps
        self.code: Code = steps[-1]  # type: ignore[assignment]
        self.needs = frozenset[Any]().union(*(step.needs for step in steps))
        self.told, self.drops, adds = map(self._with, ("sent", "names", "shapes"))
        if self.drops and adds:
            raise ValueError(f"{self.drops[0]!r} leaves out tensors that {adds[0]!r} needs.")
        self._choice: Any = (None, 0, {}, frozenset())  # schema, round, what ``coders`` returns

    def _with(self, method: str) -> list[Step]:
        """The steps that have this method of their own."""
        return [s for s in self.steps if getattr(type(s), method) is not getattr(Step, method)]

    def given(self) -> set[Any]:
        passing = [step for step in self.steps[:-1] if not step.makes]
        return {self.makes, self.code}.union(*(step.given() for step in passing))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.shown))})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.shown == other.shown

    def __hash__(self) -> int:
        return hash(self.shown)

    def validate(self, ctx: Context) -> None:
        """``ValueError`` for a task or settings that a step cannot work with."""
        for step in self.steps:
            step.validate(ctx)

    def schema(self, net: nn.Module) -> Schema:
        """What the receiver allows. Buffers are what no gradient moves, and what a step adds."""
        shapes = {name: tuple(t.shape) for name, t in state_of(net).items()}
        buffers = shapes.keys() - {n for n, p in net.named_parameters() if p.requires_grad}
        for step in self.steps:
            added = step.shapes(net)
            shapes, buffers = shapes | added, buffers | added.keys()
        return Schema(shapes, frozenset(buffers), repr(self))

    def coders(self, ctx: Context) -> tuple[dict[Coder, list[str]], frozenset[str]]:
        """The tensors that go through each coder in this round, and the lossy ones."""
        if self._choice[0] is not ctx.schema or self._choice[1] != ctx.round:
            names: dict[Coder, list[str]] = {}
            for name in ctx.schema.shapes:
                names.setdefault(self.code.coder_for(name, ctx), []).append(name)
            lossy = frozenset(ctx.schema.shapes) - frozenset(names.get(DENSE, ()))
            self._choice = ctx.schema, ctx.round, names, lossy
        return self._choice[2:]

    def encode(self, x: Tensors, ctx: Context) -> Sections:
        """The sender: tensors -> sections. What steps remember is in ``ctx.memory``."""
        chosen, ctx.lossy = self.coders(ctx)
        passed = []
        for step in self.steps[:-1]:
            x = step.encode(x, ctx)
            passed.append((step, x))
        if unknown := x.keys() - ctx.schema.shapes.keys():
            raise ValueError(f"Not in the schema: {', '.join(sorted(unknown))}.")
        sections: Sections = {}
        for coder, names in chosen.items():
            names = [n for n in names if n in x]
            if type(coder) is Dense:  # all of them at once
                coded = coders.write_floats([x[n] for n in names], coder.dtype)
                sections |= zip(names, coded, strict=True)
                continue
            draws = [self._draws("coder", ctx)] if isinstance(coder, Stochastic) else []
            for n in names:
                sections[n] = coder.encode(x[n], *draws, *self._shared(coder, n, ctx))
        if self.told:
            sent = {n: t.to(x[n].device) for n, t in self.read(sections, ctx).items()}
            for step, x in reversed(passed):
                step.sent(x, sent, ctx)
        return sections

    def read(self, sections: Sections, ctx: Context) -> Tensors:
        """The receiver: sections -> tensors, up to what the sender's coders lose."""
        x: Tensors = {}
        for coder, names in self.coders(ctx)[0].items():
            names = [n for n in names if n in sections]
            shapes = [ctx.schema.shapes[n] for n in names]
            if type(coder) is Dense:
                floats = coders.read_floats([sections[n] for n in names], shapes, coder.dtype)
                x |= zip(names, floats, strict=True)
                continue
            for n, shape in zip(names, shapes, strict=True):
                x[n] = coder.decode(sections[n], shape, *self._shared(coder, n, ctx))
        return x

    def undo(self, x: Tensors, ctx: Context) -> Tensors:
        """What ``read`` gave -> what the sender began with."""
        for step in reversed(self.steps[:-1]):
            x = step.decode(x, ctx)
        return x

    def _draws(self, purpose: str, ctx: Context, *names: str) -> torch.Generator:
        sender = -1 if self.broadcast else ctx.client
        return rng.generator(ctx.task.seed, purpose, ctx.round, sender, *names)

    def _shared(self, coder: Coder, name: str, ctx: Context) -> list[torch.Generator]:
        """The generator that both sides derive for a tensor, if its coder wants one."""
        wanted = isinstance(coder, SharedRandomness)
        return [self._draws("shared coder", ctx, name)] if wanted else []


class Uplink(Link):
    """What a client sends: what was trained goes through ``steps``, one after the other.

    Parameters
    ----------
    *steps : Step
        Such as ``Update()``, ``Feedback()``; the last may be a ``Code``, such as ``Lossy(coder)``,
        and is by default dense float32. Without steps it is ``Uplink(Update())``, the dense update.

    Raises
    ------
    ValueError
        If a step cannot take what the one before it makes.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.Uplink(fl.parts.Update(), fl.parts.Feedback(), fl.parts.Lossy(fl.wire.Signs()))
    Uplink(Update(), Feedback(), Lossy(coder=Signs(scaled=True), whole=2))
    """

    begins = Trained

    def __init__(self, *steps: Step) -> None:
        super().__init__(*(steps or (Update(),)))
        if not any(step.makes for step in self.steps[:-1]):
            raise ValueError(f"{self!r} must begin with what becomes of the weights: Update().")

    def given(self) -> set[Any]:
        dense = issubclass(self.makes, Update) and not isinstance(self.code.coder, Sparse)
        return super().given() | ({Votes} if dense else set())  # an update's signs are votes

    def expected(self, ctx: Context) -> list[str]:
        """The names of the tensors that this message must have."""
        names = list(ctx.schema.shapes)
        for step in self.drops:
            names = step.names(names, ctx)
        return names

    def decode(self, sections: Sections, ctx: Context) -> Tensors:
        """Sections -> update (or votes, or mask), if just what was expected came."""
        if sections.keys() != set(self.expected(ctx)):
            raise WireError(f"Client {ctx.client} diverged, or did not send just what it has to.")
        return self.undo(self.read(sections, ctx), ctx)


class Downlink(Link):
    """What a client gets: the server's state goes through ``steps``, once for all of a ``group``.

    Parameters
    ----------
    *steps : Step
        As for ``Uplink``; by default none, and the global model travels as dense float32.

    Raises
    ------
    ValueError
        If a step cannot take what the one before it makes, or no state comes out at the end.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.Downlink(fl.parts.Residual(), fl.parts.Code(fl.wire.Pooled()))
    Downlink(Residual(), Code(coder=Pooled(bits=32, threshold=0.0)))
    """

    broadcast = True

    def __init__(self, *steps: Step) -> None:
        super().__init__(*steps)
        if not issubclass(self.makes, Weights):
            raise ValueError(f"{self!r} must bring the server's state, not {label(self.makes)}.")

    def group(self, ctx: Context) -> Hashable:
        """All clients of a group get the same sections in a round, which are coded once."""
        return tuple(step.group(ctx) for step in self.steps[:-1])

    def read(self, sections: Sections, ctx: Context) -> Tensors:
        return {n: t.to(ctx.task.device) for n, t in super().read(sections, ctx).items()}

    def undo(self, x: Tensors, ctx: Context) -> Tensors:
        state = super().undo(x, ctx)
        if state.keys() != ctx.initial.keys():
            raise WireError("The server's message does not hold the whole model.")
        return {n: state[n] for n in ctx.initial}


@dataclass(frozen=True)
class Update(Step):
    """u = w - w_t: what local training changed."""

    takes = Trained

    # a class below this one makes updates of a kind of its own
    makes = property(type, doc="The class of what comes out.")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        trained = [w.contiguous() for w in x.values()]
        changes = torch._foreach_sub(trained, [ctx.start[n] for n in x]) if x else ()
        return dict(zip(x, changes, strict=True))


@dataclass(frozen=True)
class Feedback(Step):
    """Error feedback: sends C(u + e) and keeps e <- u + e - C(u + e), all of what is not sent."""

    takes = Update, Weights

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
    """g <- g min(1, norm / (sqrt(N) ||g||)) over what is coded with loss, N clients (DGC, 3.2)."""

    takes = Update

    norm: Annotated[float, Range("above 0", lambda x: x > 0)] = float("inf")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        lossy = [n for n in x if n in ctx.lossy]
        norm = torch.stack(torch._foreach_norm([x[n] for n in lossy])).norm() if lossy else 0
        limit = self.norm / len(ctx.participants) ** 0.5
        factor = min(1.0, limit / max(float(norm), 1e-30))
        return {n: t * factor if n in lossy else t for n, t in x.items()}


def _refuse_diverged(tensors: Iterable[torch.Tensor], ctx: Context) -> None:
    """What is NaN or infinite would stay so for ever in what is kept."""
    if not all(torch.isfinite(t).all() for t in tensors):
        raise Diverged(f"The update of client {ctx.client} is NaN or infinite.")


@dataclass(frozen=True)
class Momentum(Step):
    """u <- m u + g, and u <- 0 where an entry was sent (DGC, sections 3.2 and 3.3), but not of what
    travels whole, as in the authors' program."""

    takes = Update

    momentum: BelowOne = 0.9

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        moved = [n for n in x if n not in ctx.schema.buffers]
        u = {n: self.momentum * ctx.memory.get(f"u/{n}", 0) + x[n] for n in moved}
        _refuse_diverged(u.values(), ctx)
        ctx.memory.update({f"u/{n}": t for n, t in u.items()})
        return x | u

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in sent.keys() & ctx.lossy:
            ctx.memory[f"u/{n}"] = x[n] * (sent[n] == 0)


@dataclass(frozen=True)
class WarmStart(Step):
    """Just before ``Lossy(LowRank(rank))``: a step of subspace iteration from the last round's Q
    (PowerSGD, section 4.2); the coder keeps the matrix that it makes, up to rounding."""

    rank: int = 2

    def __post_init__(self) -> None:
        LowRank(self.rank)

    def check(self, rest: Sequence[Step]) -> None:
        coder = rest[0].coder if isinstance(rest[0], Code) else None
        if not isinstance(coder, LowRank) or coder.rank != self.rank:
            raise ValueError(f"{self!r} comes just before Lossy({LowRank(self.rank)!r}).")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        coder, low = LowRank(self.rank), {}
        for n in x.keys() & ctx.lossy:
            sizes = coder.factors(x[n].shape)
            if not sizes:
                continue
            _refuse_diverged([x[n]], ctx)
            first = rng.generator(ctx.task.seed, "low rank", n)
            new = torch.randn(sizes[1], self.rank, generator=first)
            Q = ctx.memory.get(f"Q/{n}", new).cpu().double()
            P, Q = power_step(x[n].cpu().double().reshape(sizes), Q)
            ctx.memory[f"Q/{n}"] = Q.float()
            low[n] = (P @ Q.T).to(x[n]).reshape(x[n].shape)
        return x | low

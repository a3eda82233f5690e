"""Which bytes go up, and which come down?

Both directions are a link: a chain of steps from tensors to tensors, and at its end a
coder that makes bytes of each tensor. The sender goes through the chain forwards, the
receiver backwards. When the message is made, every step is told what the receiver will
decode, so error feedback is a step like any other:

    Uplink(Update(), Momentum(0.9), Feedback(), Lossy(TopK(1 / 1000)))    # DGC
"""

from collections.abc import Hashable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .. import rng
from ..errors import WireError
from ..models import state_of
from ..wire import Coder, Dense, Schema, SharedRandomness, Sparse, Stochastic
from ..wire.dense import read_floats, write_floats
from .context import Context, Part, Tensors

Sections = dict[str, Any]  # coded bytes by the name of their tensor
DENSE = Dense()


class Weights:
    """What goes into a downlink: the global model."""


class Trained:
    """What goes into an uplink: the model after local training."""


class Step(Part):
    """One step of a link.

    ``takes`` and ``makes`` are classes that say what goes in and what comes out, such as
    ``Trained`` and ``Update``. With ``None`` a step takes anything, and its kind stays.
    """

    takes: Any = None
    makes: Any = None

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        """The sender's side; must not change ``x``."""
        return x

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        """Called afterwards, with what ``encode`` returned and what the receiver will decode."""

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        """The receiver's side: undoes ``encode``."""
        return x

    def shapes(self, net: nn.Module) -> dict[str, tuple[int, ...]]:
        """The tensors that this step adds to the message."""
        return {}

    def names(self, names: list[str], ctx: Context) -> list[str]:
        """Those of the tensors ``names`` that travel in this message."""
        return names

    def group(self, ctx: Context) -> Hashable:
        """Clients of one group get the same message in a round (downlink)."""
        return None


@dataclass(frozen=True)
class Code(Step):
    """The end of a link: every tensor goes through one coder."""

    coder: Coder = DENSE

    def coder_for(self, name: str, ctx: Context) -> Coder:
        """The coder of a tensor in a round, the same for all clients.

        ``ctx`` has the schema and the round alone, as the answer is cached for them.
        """
        return self.coder


@dataclass(frozen=True)
class Lossy(Code):
    """Batch statistics and tensors of fewer than ``whole`` dimensions travel dense."""

    whole: int = 2

    def coder_for(self, name: str, ctx: Context) -> Coder:
        small = len(ctx.schema.shapes[name]) < self.whole
        return DENSE if small or name in ctx.schema.buffers else self.coder


class Link(Part):
    """A chain of steps, of which the last is a ``Code``."""

    begins: type = Weights
    broadcast = False  # one message for many clients: coders draw as the server does

    def __init__(self, *steps: Step) -> None:
        if not steps or not isinstance(steps[-1], Code):
            steps = (*steps, Code())
        self.steps = steps
        self.code: Any = steps[-1]
        self.makes: type = self.begins
        for step in steps:
            part = self._checked(step)
            self.makes = part.makes or self.makes
        # whether a step is told what the receiver will decode
        self.reports = any(type(step).sent is not Step.sent for step in steps)
        # schema, round and result of the last call of ``_coders``
        self._last: tuple[Any, int, dict[Coder, list[str]]] = (None, 0, {})

    def _checked(self, step: Any) -> Any:
        """The step, or the coder in it, if it can take what the steps before it make."""
        if not isinstance(step, Step):
            raise ValueError(f"A link is made of steps, of which {step!r} is none.")
        if isinstance(step, Code) and step is not self.code:
            raise ValueError(f"{step!r} makes bytes, so it must be the last step.")
        part: Any = step.coder if isinstance(step, Code) else step
        if part.takes and not issubclass(self.makes, part.takes):
            classes = part.takes if isinstance(part.takes, tuple) else (part.takes,)
            names = " or ".join(c.__name__ for c in classes)
            raise ValueError(f"{part!r} takes {names}, but gets {self.makes.__name__}.")
        if self.makes is Weights and isinstance(part, Sparse):
            raise ValueError(
                f"{part!r} sends changes, but a downlink begins with the whole model: "
                "see fl.parts.Replay and fl.parts.KeptSteps."
            )
        return part

    def __repr__(self) -> str:
        steps = self.steps[:-1] if self.code == Code() else self.steps
        return f"{type(self).__name__}({', '.join(map(repr, steps))})"

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def schema(self, net: nn.Module) -> Schema:
        """What a message may hold.

        Buffers are the tensors that no gradient moves, and those that a step adds.
        """
        shapes = {name: tuple(t.shape) for name, t in state_of(net).items()}
        trained = {name for name, p in net.named_parameters() if p.requires_grad}
        buffers = shapes.keys() - trained
        for step in self.steps:
            added = step.shapes(net)
            shapes.update(added)
            buffers |= added.keys()
        return Schema(shapes, frozenset(buffers), repr(self))

    def encode(self, x: Tensors, ctx: Context) -> Sections:
        """The sender: tensors -> coded sections."""
        coders = self._coders(ctx)
        ctx.lossy = frozenset(ctx.schema.shapes) - frozenset(coders.get(DENSE, ()))
        outputs = []
        for step in self.steps[:-1]:
            x = step.encode(x, ctx)
            outputs.append(x)
        unknown = x.keys() - ctx.schema.shapes.keys()
        if unknown:
            raise ValueError(f"Not in the schema of {self!r}: {sorted(unknown)}.")
        sections = self._sections(x, coders, ctx)
        if self.reports:
            decoded = self.read(sections, ctx)
            sent = {name: t.to(x[name].device) for name, t in decoded.items()}
            for step, output in zip(self.steps[-2::-1], outputs[::-1], strict=True):
                step.sent(output, sent, ctx)
        return sections

    def _sections(
        self, x: Tensors, coders: dict[Coder, list[str]], ctx: Context
    ) -> Sections:
        """Each tensor through its coder."""
        sections: Sections = {}
        for coder, names in coders.items():
            names = [name for name in names if name in x]
            if type(coder) is Dense:  # all tensors at once
                coded = write_floats([x[name] for name in names], coder.dtype)
                sections.update(zip(names, coded, strict=True))
                continue
            draws = []
            if isinstance(coder, Stochastic):
                draws = [self._generator("coder", ctx)]
            for name in names:
                shared = self._shared(coder, name, ctx)
                sections[name] = coder.encode(x[name], *draws, *shared)
        return sections

    def read(self, sections: Sections, ctx: Context) -> Tensors:
        """The receiver: sections -> tensors, as far as the coders kept them."""
        x: Tensors = {}
        for coder, names in self._coders(ctx).items():
            names = [name for name in names if name in sections]
            shapes = [ctx.schema.shapes[name] for name in names]
            if type(coder) is Dense:
                coded = [sections[name] for name in names]
                tensors = read_floats(coded, shapes, coder.dtype)
                x.update(zip(names, tensors, strict=True))
                continue
            for name, shape in zip(names, shapes, strict=True):
                shared = self._shared(coder, name, ctx)
                x[name] = coder.decode(sections[name], shape, *shared)
        return x

    def undo(self, x: Tensors, ctx: Context) -> Tensors:
        """The tensors that ``read`` returned -> those with which the sender began."""
        for step in reversed(self.steps[:-1]):
            x = step.decode(x, ctx)
        return x

    def _coders(self, ctx: Context) -> dict[Coder, list[str]]:
        """The names of the tensors that go through each coder."""
        schema, t, names = self._last
        if ctx.round != t or ctx.schema != schema:
            names = {}
            view = SimpleNamespace(schema=ctx.schema, round=ctx.round)
            for name in ctx.schema.shapes:
                names.setdefault(self.code.coder_for(name, view), []).append(name)
            self._last = (ctx.schema, ctx.round, names)
        return names

    def _generator(self, purpose: str, ctx: Context, *names: str) -> torch.Generator:
        sender = -1 if self.broadcast else ctx.client
        return rng.generator(ctx.task.seed, purpose, ctx.round, sender, *names)

    def _shared(self, coder: Coder, name: str, ctx: Context) -> list[torch.Generator]:
        """The generator that both sides derive, for a coder that wants one."""
        if isinstance(coder, SharedRandomness):
            return [self._generator("shared coder", ctx, name)]
        return []


class Uplink(Link):
    """What a client sends: the trained model goes through the steps.

    Parameters
    ----------
    *steps : Step
        Such as ``Update()`` and ``Feedback()``. The last may be a ``Code``, such as
        ``Lossy(coder)``, and is by default dense float32. Without steps the link is
        ``Uplink(Update())``, the dense update.

    Raises
    ------
    ValueError
        If a step cannot take what the step before it makes.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.Uplink(fl.parts.Update(), fl.parts.Feedback(), fl.parts.Lossy(fl.wire.Signs()))
    Uplink(Update(), Feedback(), Lossy(coder=Signs(scaled=True), whole=2))
    """

    begins = Trained

    def __init__(self, *steps: Step) -> None:
        super().__init__(*(steps or (Update(),)))
        if self.makes is Trained:
            raise ValueError(f"{self!r} must begin with a step such as Update().")

    def expected(self, ctx: Context) -> list[str]:
        """The names of the tensors that this client's message must hold."""
        names = list(ctx.schema.shapes)
        for step in self.steps:
            names = step.names(names, ctx)
        return names

    def decode(self, sections: Sections, ctx: Context) -> Tensors:
        """Sections -> update, if exactly the expected tensors have come."""
        if sections.keys() != set(self.expected(ctx)):
            raise WireError(
                f"Client {ctx.client} diverged, or its message is not the expected one."
            )
        return self.undo(self.read(sections, ctx), ctx)


class Downlink(Link):
    """What a client receives, coded once for all clients of a ``group``.

    Parameters
    ----------
    *steps : Step
        As for ``Uplink``; by default none, and the global model travels as dense float32.

    Raises
    ------
    ValueError
        If a step cannot take what the step before it makes.

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
            raise ValueError(
                f"{self!r} must bring the model, not {self.makes.__name__}."
            )

    def group(self, ctx: Context) -> Hashable:
        """Clients of one group get the same message."""
        return tuple(step.group(ctx) for step in self.steps)

    def read(self, sections: Sections, ctx: Context) -> Tensors:
        device = ctx.task.device
        return {name: t.to(device) for name, t in super().read(sections, ctx).items()}

    def undo(self, x: Tensors, ctx: Context) -> Tensors:
        """The tensors that ``read`` returned -> the global model."""
        state = super().undo(x, ctx)
        if state.keys() != ctx.initial.keys():
            raise WireError("The server's message does not hold the whole model.")
        return {name: state[name] for name in ctx.initial}


@dataclass(frozen=True)
class Update(Step):
    """u = w - w_t: what local training changed."""

    takes = Trained
    makes = property(type, doc="The class of this step, so that subclasses differ.")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        if not x:
            return {}
        trained = [w.contiguous() for w in x.values()]
        changes = torch._foreach_sub(trained, [ctx.start[name] for name in x])
        return dict(zip(x, changes, strict=True))


@dataclass(frozen=True)
class Feedback(Step):
    """Error feedback: sends C(u + e) and keeps the error, e <- u + e - C(u + e)."""

    takes = (Update, Weights)

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        e = ctx.memory
        return {
            n: t + e[f"error/{n}"] if f"error/{n}" in e else t for n, t in x.items()
        }

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        e = ctx.memory
        for name in x.keys() - ctx.schema.buffers:
            if name not in sent:  # left out of this message: all of it is error
                e[f"error/{name}"] = x[name].clone()
            elif name in ctx.lossy or f"error/{name}" in e:
                e[f"error/{name}"] = x[name] - sent[name]

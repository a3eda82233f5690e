"""A method is a record of six parts. The defaults of the six are federated averaging.

| part        | question                                          | protocol (arguments are explained at ``Context``)       |
|-------------|---------------------------------------------------|---------------------------------------------------------|
| `model`     | what network does the client train?               | ``build(task) -> torch.nn.Module``                      |
| `objective` | what does local training minimise?                | ``begin(net, ctx) -> loss(net, batch)``                 |
| `optimizer` | how is a local step taken?                        | ``init(params, ctx) -> state``; ``step(params, grads, state)`` |
| `uplink`    | what bytes go up?                                 | ``encode(trained, ctx)``; ``decode(sections, ctx)``     |
| `downlink`  | what bytes come down?                             | ``encode(state, ctx)``; ``decode(sections, ctx)``       |
| `server`    | how do uploads become the next global state?      | ``aggregate(state, arrivals, ctx) -> state``            |

A *state* is a dict of tensors by name: the parameters of the network and its floating-point buffers.

More hooks are looked for and may be missing: ``check(ctx)`` of uplink and server before a run; ``model.refresh(net, task,
round)`` before training and evaluation; ``downlink.personal``, true if every client gets a message of its own;
``downlink.extra(ctx)``, sections for one client beside those for all, which ``downlink.take(sections, ctx)`` takes out there,
and ``downlink.arrived(ctx)``, told of every upload that came;
``server.strict``, true if ``aggregate`` is to be called even when nothing came; ``server.initial(ctx)``, the global state if it
is not M^0; ``server.evaluate(state, memories, ctx)`` if the global model is not the network with that state (``memories`` is
what each client keeps, by client), and with it ``server.looks_at(ctx)``, the entries of a memory that it needs, name -> shape.

When all clients of a round train at once (``stacked.py``), parameters are [clients, ...], images [clients, batch, ...] and
the loss is [clients]. So losses are averaged over the batch axis only, dimensions are counted from the end, optimisers
work entry by entry, and lists in an optimiser's state hold one tensor for each parameter. What else is in that state must
not change between steps.
"""

from collections import namedtuple
from dataclasses import dataclass, field, fields, replace

import torch
import torch.nn.functional as F

from . import rng
from .errors import WireError, pick
from .models import state_of
from .settings import Settings, whole_number  # noqa: F401  others take them from here
from .wire import Dense, Schema

Batch = namedtuple("Batch", "x y index")  # images, labels, positions in the client's own data
Arrival = namedtuple(
    "Arrival", "client samples update buffers"
)  # decoded from one client; buffers in bytes


@dataclass
class Context:
    """What a part may know while it works for one client in one round, or for several clients stacked: then ``client``,
    ``memory`` and what ``generator`` returns are lists, and the tensors of ``start`` are [clients, ...]."""

    task: object
    round: int  # 1, 2, ...
    client: int = -1  # -1: the server itself
    initial: dict = None  # M^0, built on both sides from the shared seed, never sent
    start: dict = None  # the state that the downlink brought and local training starts from; shared, not to be changed
    memory: dict = field(
        default_factory=dict
    )  # tensors that this client (or the server) keeps between rounds
    schema: Schema = None  # of the message at hand
    settings: object = None  # ``Settings``, which both sides know
    participants: tuple = ()  # the clients of this round, ascending
    net: object = None  # this side's network; at a client, while its upload is encoded, it holds what was trained
    samples: int = 0  # n_k in the head of the upload at hand

    def generator(self, purpose):
        """The generator for this purpose, round and client."""
        if isinstance(self.client, list):
            return [rng.generator(self.task.seed, purpose, self.round, k) for k in self.client]
        return rng.generator(self.task.seed, purpose, self.round, self.client)

    def narrow(self, first, last):
        """The same for some of the stacked clients; tensors are views."""
        start = {name: t[first:last] for name, t in self.start.items()}
        return replace(
            self, client=self.client[first:last], memory=self.memory[first:last], start=start
        )


@dataclass(frozen=True)
class TaskNetwork:
    """The network that the task names."""

    def build(self, task):
        return task.network()


@dataclass(frozen=True)
class TaskLoss:
    """The task's own loss, for classification the mean cross-entropy of the batch."""

    recordable = True  # see ``local.local_step``

    def begin(self, net, ctx):
        loss = ctx.task.loss
        return lambda net, batch: loss(net(batch.x), batch.y)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, the same arithmetic as ``torch.optim.SGD``. ``decay`` multiplies the rate each round.

    Written with torch's list operations, so that importing torch's compiler, as ``torch.optim`` does, is not needed.
    """

    recordable = True

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0

    def __post_init__(self):
        if (
            not self.lr > 0
            or not 0 <= self.momentum < 1
            or not self.weight_decay >= 0
            or not 0 < self.decay <= 1
        ):
            raise ValueError(
                f"SGD needs lr > 0, 0 <= momentum < 1, weight_decay >= 0 and 0 < decay <= 1, not {self}."
            )

    def init(self, params, ctx):
        velocity = [torch.zeros_like(p) for p in params] if self.momentum else None
        return {"lr": self.lr * self.decay ** (ctx.round - 1), "velocity": velocity}

    def step(self, params, grads, state):
        if self.weight_decay:
            grads = torch._foreach_add(grads, params, alpha=self.weight_decay)
        if self.momentum:
            torch._foreach_mul_(state["velocity"], self.momentum)
            torch._foreach_add_(state["velocity"], grads)
            grads = state["velocity"]
        torch._foreach_add_(params, grads, alpha=-state["lr"])


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba (2015), Algorithm 1: the same arithmetic as ``torch.optim.Adam``. At clients it starts anew every round.
    ``decoupled`` takes the weight decay out of the moments: ``torch.optim.AdamW`` (Loshchilov and Hutter, 2019)."""

    recordable = True

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self):
        fine = (
            self.lr > 0
            and 0 <= self.beta1 < 1
            and 0 <= self.beta2 < 1
            and self.eps > 0
            and self.weight_decay >= 0
        )
        if not fine:
            raise ValueError(
                f"Adam needs lr > 0, 0 <= beta1, beta2 < 1, eps > 0 and weight_decay >= 0, not {self}."
            )

    def init(self, params, ctx):
        # 1 - beta^t, grown like the moments themselves: m <- beta m + (1 - beta) g with g = 1
        ones = [p.new_zeros(p.shape[:1] + (1,) * (p.dim() - 1)) for p in params]
        zeros = [torch.zeros_like(p) for p in params]
        return {
            "m": zeros,
            "v": list(map(torch.clone, zeros)),
            "c1": ones,
            "c2": list(map(torch.clone, ones)),
        }

    def step(self, params, grads, state):
        if self.decoupled:
            torch._foreach_mul_(params, 1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            grads = torch._foreach_add(grads, params, alpha=self.weight_decay)
        torch._foreach_add_(params, self.direction(grads, state), alpha=-self.lr)

    def direction(self, grads, state):
        """m / (sqrt(v) + eps), both moments corrected for their start."""
        for name, beta, g in (
            ("m", self.beta1, grads),
            ("v", self.beta2, torch._foreach_mul(grads, grads)),
        ):
            torch._foreach_mul_(state[name], beta)
            torch._foreach_add_(state[name], g, alpha=1 - beta)
        for name, beta in (("c1", self.beta1), ("c2", self.beta2)):
            torch._foreach_mul_(state[name], beta)
            torch._foreach_add_(state[name], 1 - beta)
        root = torch._foreach_sqrt(torch._foreach_div(state["v"], state["c2"]))
        torch._foreach_add_(root, self.eps)
        return torch._foreach_div(torch._foreach_div(state["m"], state["c1"]), root)


def list_form(part, one, many):
    """The method ``many`` of a part, which does for a list what ``one`` does for one; ``None`` if it has none, or if a class
    further down has replaced ``one`` and left ``many`` behind."""
    for cls in type(part).__mro__:
        if many in vars(cls):
            return getattr(part, many)
        if one in vars(cls):
            return None
    return None


@dataclass(frozen=True)
class Link:
    """One direction of the wire: every tensor of the state goes through a coder into a section of the message."""

    coder: object = Dense()

    def schema(self, net, task):
        """What the receiver allows. Buffers are what gradients do not move: batch statistics and frozen parameters."""
        state = state_of(net)
        buffers = state.keys() - {name for name, p in net.named_parameters() if p.requires_grad}
        return Schema(
            {name: tuple(t.shape) for name, t in state.items()}, frozenset(buffers), repr(self)
        )

    def coder_for(self, name, schema):
        return self.coder

    def pack(self, tensors, schema, generator=None):
        """Tensors by name -> bytes by name. Coders that draw random numbers take them from ``generator``."""
        return self.pack_rows({name: t[None] for name, t in tensors.items()}, schema, [generator])[
            0
        ]

    def pack_rows(self, tensors, schema, generators):
        """The same for several clients, whose tensors are stacked: a generator and a dict for each."""
        coded = [{} for _ in generators]
        for coder, names in self._by_coder(tensors, schema):
            chosen = [tensors[name] for name in names]
            many = list_form(coder, "encode", "encode_rows")
            if many:
                rows = many(chosen)
            else:
                draws = [(g,) if getattr(coder, "stochastic", False) else () for g in generators]
                rows = [
                    [coder.encode(t, *g) for t in row]
                    for g, row in zip(draws, zip(*chosen, strict=True), strict=True)
                ]
            for sections, row in zip(coded, rows, strict=True):
                sections.update(zip(names, row, strict=True))
        return coded

    def unpack(self, sections, schema):
        """The inverse of ``pack``."""
        tensors = {}
        for coder, names in self._by_coder(sections, schema):
            chosen, shapes = (
                [sections[name] for name in names],
                [schema.shapes[name] for name in names],
            )
            many = list_form(coder, "decode", "decode_all") or (
                lambda data, shapes, coder=coder: map(coder.decode, data, shapes)
            )
            tensors.update(zip(names, many(chosen, shapes), strict=True))
        return tensors

    def _by_coder(self, names, schema):
        groups = {}
        for name in names:
            coder = self.coder_for(name, schema)
            groups.setdefault(id(coder), (coder, []))[1].append(name)
        return groups.values()


@dataclass(frozen=True)
class Uplink(Link):
    """The update: what local training changed."""

    def encode(self, trained, ctx):
        return self.pack(self._update(trained, ctx), ctx.schema, ctx.generator("coder"))

    def encode_rows(self, trained, ctx):
        """``encode`` for stacked clients: [clients, ...] -> a dict of sections for each."""
        return self.pack_rows(self._update(trained, ctx), ctx.schema, ctx.generator("coder"))

    def _update(self, trained, ctx):
        """What has changed, written at once into the buffer that a dense coder sends: new memory is dear."""
        rows = len(ctx.client) if isinstance(ctx.client, list) else 1
        buffer = torch.empty(
            rows,
            sum(t.numel() for t in trained.values()) // rows,
            device=next(iter(trained.values())).device,
        )
        parts = buffer.split([t.numel() // rows for t in trained.values()], 1)
        updates = [
            part.reshape(t.shape) if rows == 1 else part.unflatten(1, t.shape[1:])
            for part, t in zip(parts, trained.values(), strict=True)
        ]
        torch._foreach_copy_(updates, list(trained.values()))
        torch._foreach_sub_(updates, [ctx.start[name] for name in trained])
        return dict(zip(trained, updates, strict=True))

    def decode(self, sections, ctx):
        if len(sections) != len(ctx.schema.shapes):
            raise WireError(
                f"Client {ctx.client} did not send the whole update; one whose training diverged sends nothing."
            )
        return self.unpack(sections, ctx.schema)


_WHOLE = Dense()


@dataclass(frozen=True)
class Compressed(Uplink):
    """The update through a lossy coder.

    With ``feedback`` (error feedback) what the coder lost is kept and added to the sender's next update: it sends
    C(u + e) and keeps e <- u + e - C(u + e). Batch statistics and tensors of fewer than ``whole`` dimensions travel dense.
    The sender does not learn whether its upload was refused: then what it held is lost.
    """

    feedback: bool = True
    whole: int = 2

    def coder_for(self, name, schema):
        return (
            _WHOLE
            if name in schema.buffers or len(schema.shapes[name]) < self.whole
            else self.coder
        )

    def encode(self, trained, ctx):
        return self.compress(self._update(trained, ctx), ctx)[0]

    def compress(self, update, ctx):
        """Update by name -> sections, and what they decode to; the errors are read from and written to ``ctx.memory``."""
        lossy = [name for name in update if self.coder_for(name, ctx.schema) is not _WHOLE]
        for name in lossy if self.feedback else ():
            update[name] += ctx.memory.get(f"error/{name}", 0)
        sections = self.pack(update, ctx.schema, ctx.generator("coder"))
        sent = {
            name: t.to(update[name].device) for name, t in self.unpack(sections, ctx.schema).items()
        }
        for name in lossy if self.feedback else ():
            ctx.memory[f"error/{name}"] = update[name] - sent[name]
        return sections, sent


@dataclass(frozen=True)
class Downlink(Link):
    """The global model, or with ``residual`` what has changed in it since M^0, which both sides hold.

    Every client of a round gets the same sections, unless the class says ``personal = True``.
    """

    personal = False

    residual: bool = False

    def encode(self, state, ctx):
        tensors = {n: t - ctx.initial[n] for n, t in state.items()} if self.residual else state
        return self.pack(tensors, ctx.schema, ctx.generator("coder"))

    def decode(self, sections, ctx):
        if sections.keys() != ctx.initial.keys():
            raise WireError("The server's message does not hold the whole model.")
        tensors = {
            n: t.to(ctx.initial[n].device) for n, t in self.unpack(sections, ctx.schema).items()
        }
        return {n: ctx.initial[n] + t for n, t in tensors.items()} if self.residual else tensors


@dataclass(frozen=True)
class Mean:
    """w <- w + sum_k p_k u_k for each tensor, over the clients that sent that tensor.

    ``by="samples"`` weighs by n_k (McMahan et al., 2017, Algorithm 1), ``by="clients"`` counts every client once.
    """

    by: str = "samples"

    def __post_init__(self):
        pick(self.by, {"samples": 1, "clients": 1}, "weighting")

    def aggregate(self, state, arrivals, ctx):
        weights = [a.samples if self.by == "samples" else 1 for a in arrivals]
        totals = {
            name: sum(n for n, a in zip(weights, arrivals, strict=True) if name in a.update)
            for name in state
        }
        new = {name: w.clone() for name, w in state.items()}
        for n, a in zip(weights, arrivals, strict=True):
            for total in {
                totals[name] for name in a.update
            }:  # tensors that the same clients sent, in one go
                names = [name for name in a.update if totals[name] == total]
                updates = [a.update[name].to(new[name].device) for name in names]
                torch._foreach_add_([new[name] for name in names], updates, alpha=n / total)
        return new


@dataclass(frozen=True)
class Method:
    """Six parts and a name. ``but`` replaces parts: ``rpn().but(server=Mean("samples"))``."""

    name: str = "fedavg"
    model: object = TaskNetwork()
    objective: object = TaskLoss()
    optimizer: object = SGD()
    uplink: object = Uplink()
    downlink: object = Downlink()
    server: object = Mean()

    def but(self, **parts):
        names = [f.name for f in fields(self)]
        for part, value in parts.items():
            pick(part, dict.fromkeys(names), "part of a method")
            wanted = PROTOCOL.get(part, ())
            missing = [m for m in wanted if not callable(getattr(value, m, None))]
            if missing:
                raise ValueError(
                    f"{value!r} cannot be a method's {part}: it has no {' and no '.join(missing)}."
                )
        return replace(self, **parts)

    def parts(self):
        """The six parts as text, for tables, histories and checkpoints."""
        return {f.name: repr(getattr(self, f.name)) for f in fields(self) if f.name != "name"}


PROTOCOL = {
    "model": ("build",),
    "objective": ("begin",),
    "optimizer": ("init", "step"),
    "uplink": ("schema", "encode", "decode"),
    "downlink": ("schema", "encode", "decode"),
    "server": ("aggregate",),
}


def cross_entropy(logits, y):
    """Mean over the batch, separately for each leading client: logits [..., batch, classes], y [..., batch] -> [...]."""
    return F.cross_entropy(logits.movedim(-1, 1), y, reduction="none").mean(-1)

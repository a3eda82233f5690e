"""FedGKT: He, Annavaram and Avestimehr, "Group Knowledge Transfer", NeurIPS 2020, Algorithm 1. Knowledge travels, not weights.

    client k:  minimise  CE(z_k, y) + alpha T^2 KL(p_s || p_k)  over its edge network W_e, W_c                 Eq. (7)
    up:        H = f_e(x), z_k = f_c(H), y and the index of each of its images; in evaluation mode, not augmented
    server:    minimise  CE(z_s, y) + alpha T^2 KL(p_k || p_s)  over W_s, z_s = f_s(H), for E_s epochs          Eq. (6)
    down:      z_s of the client's own images

p = softmax(z / T); the teacher's p is a constant; none in round 1. Only the owner of an image has a z_k for it, so the sum over
k in Eq. (6) has one term. The final model of client k is its extractor f_e and the server's f_s. T = 3 and alpha = 1 are those
of the authors' program; the paper gives no values. Global state: W_s. An edge network never leaves its client.
"""

import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from .. import local, rng
from ..errors import Diverged, WireError, pick
from ..method import SGD, Adam, Method, TaskLoss, whole_number
from ..models import Network, state_of
from ..wire import Dense
from .features import Features, Knowledge, stored


def distillation(teacher, student, T=3.0):
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over the batch: logits [..., n, C] twice -> [...]."""
    log_p, log_q = F.log_softmax(teacher / T, -1), F.log_softmax(student / T, -1)
    return T**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1)


@dataclass(frozen=True, repr=False)
class Named:
    """The network of that name, or made by that function, whatever the task's own is; for inputs of another shape if given."""

    network: object
    shape: tuple = None

    def __repr__(self):  # a function by its name: its address would be another one tomorrow
        name = self.network if isinstance(self.network, str | None) else self.network.__name__
        return f"{type(self).__name__}({name!r}{f', {self.shape}' if self.shape else ''})"

    def build(self, task):
        return task.network(self.network, self.shape)


@dataclass(frozen=True, repr=False)
class Edge(Named):
    """An edge network, which must be split into the extractor f_e and the classifier f_c."""

    def build(self, task):
        net = super().build(task)
        if not isinstance(net, Network):
            raise ValueError(
                f"An edge network is split into extractor and classifier (models.Network), unlike this {type(net).__name__}."
            )
        return net


@dataclass(frozen=True)
class Distilled:
    """The task's loss plus the distillation from the server's logits of the client's images, once there are some."""

    recordable = True

    T: float = 3.0
    alpha: float = 1.0

    def __post_init__(self):
        if not 0 < self.T < math.inf or not 0 <= self.alpha < math.inf:
            raise ValueError(
                f"Distillation needs a temperature T > 0 and a weight alpha >= 0, both finite, not {self}."
            )

    def begin(self, net, ctx):
        J, many = ctx.task.loss, isinstance(ctx.client, list)
        z_s = [memory.get("z_s") for memory in (ctx.memory if many else [ctx.memory])]
        known = next((z for z in z_s if z is not None), None)
        if known is None or not self.alpha:
            return TaskLoss().begin(net, ctx)
        weight = self.alpha * torch.tensor(
            [z is not None for z in z_s], dtype=known.dtype, device=known.device
        )
        table = pad_sequence(
            [known[:1] * 0 if z is None else z for z in z_s], batch_first=True
        )  # [clients, n, C]
        who = torch.arange(len(z_s), device=known.device)[:, None]
        if not many:
            weight, table, who = weight[0], table[0], None

        def loss(net, batch):
            z_k, index = net(batch.x), batch.index.clamp(max=table.shape[-2] - 1)
            teacher = table[index] if who is None else table[who, index]
            return J(z_k, batch.y) + weight * distillation(teacher, z_k, self.T)

        return loss


@dataclass(frozen=True)
class Transfer:
    """Trains f_s on what the clients sent, client by client and batch by batch. Synchronous: on the uploads of this round,
    of which none may be missing. Asynchronous: on the last upload of every client that has ever sent one.

    The learning rate is cut to a tenth when the accuracy on the clients' images has not risen for ``patience`` rounds.
    """

    network: Named = Named("digits_server")
    optimizer: object = Adam()
    epochs: int = 4
    T: float = 3.0
    alpha: float = 1.0
    back: bool = True  # whether z_s is kept for the clients
    asynchronous: bool = False
    patience: int = 10
    memory_limit: float = field(default=1e9, repr=False)  # see ``Features``

    def __post_init__(self):
        whole_number("server_epochs", self.epochs)
        whole_number("patience", self.patience)

    def check(self, ctx):
        if not self.asynchronous and len(ctx.participants) < ctx.task.clients:
            raise ValueError(
                "Synchronous FedGKT needs every client in every round: participation=1, or asynchronous=True."
            )
        shapes = ctx.schema.shapes
        with torch.no_grad():
            z_s = self.f_s(ctx).eval()(torch.zeros(1, *shapes["features"], device=ctx.task.device))
        if tuple(z_s.shape[1:]) != shapes["logits"]:
            raise ValueError(
                f"The server's network gives {list(z_s.shape[1:])} logits an image, the edge network {list(shapes['logits'])}."
            )

    @property
    def strict(self):
        return not self.asynchronous

    def f_s(self, ctx, state=None):
        """The server's network, with the weights that the task's seed gives it or those of ``state``."""
        net = local.initial_network(
            Method(model=replace(self.network, shape=ctx.schema.shapes["features"])), ctx.task
        )
        if state:
            local.load(state_of(net), state)
        return net

    def initial(self, ctx):
        return state_of(self.f_s(ctx))

    def aggregate(self, state, arrivals, ctx):
        task, memory = ctx.task, ctx.memory
        missing = sorted(set(range(task.clients)) - {a.client for a in arrivals})
        if missing and not self.asynchronous:
            raise WireError(
                f"Synchronous FedGKT cannot go on: in round {ctx.round} nothing usable came from clients {missing}."
            )
        memory.update({f"{name} {a.client}": t for a in arrivals for name, t in a.update.items()})
        memory.update(
            {
                name: stored(t, ctx, self.memory_limit)
                for name, t in memory.items()
                if name.startswith("features ")
            }
        )
        clients = [k for k in range(task.clients) if f"features {k}" in memory]
        f_s = self.f_s(ctx, state)
        self.train(f_s, clients, ctx)
        self.answer(f_s.eval(), clients, ctx)
        if not self.asynchronous:
            for name in [
                name for name in memory if name.split()[0] in ("features", "labels", "logits")
            ]:
                del memory[name]
        return state_of(f_s)

    def train(self, f_s, clients, ctx):
        """Eq. (8): E_s epochs with every H and z_k fixed."""
        memory, J, params = ctx.memory, ctx.task.loss, local.trainable(f_s)

        def loss(net, batch):  # z_k stands in for the index
            z_s = net(batch.x)
            return J(z_s, batch.y) + (
                self.alpha * distillation(batch.index, z_s, self.T) if self.alpha else 0
            )

        part = replace(
            self.optimizer,
            lr=self.optimizer.lr * 0.1 ** int(memory.get("plateau", torch.zeros(3))[2]),
        )
        own = part.init(params, ctx)  # goes on from the last round
        own |= {
            key: [memory.get(f"{key} {i}", t) for i, t in enumerate(ts)]
            for key, ts in own.items()
            if isinstance(ts, list)
        }
        shuffle, sizes = (
            ctx.generator("server shuffle"),
            {k: len(memory[f"labels {k}"]) for k in clients},
        )
        steps = self.epochs * sum(sizes.values()) // ctx.settings.batch_size
        step = local.local_step(
            f_s, Method(optimizer=part), loss, own, ctx.settings, ctx.task.device, steps
        )
        with (
            torch.enable_grad(),
            rng.scope(ctx.task.seed, "server dropout", ctx.round, device=ctx.task.device),
        ):
            for _ in range(self.epochs):
                for k in (clients[i] for i in torch.randperm(len(clients), generator=shuffle)):
                    for rows in (
                        torch.randperm(sizes[k], generator=shuffle)
                        .to(ctx.task.device)
                        .split(ctx.settings.batch_size)
                    ):
                        y = memory[f"labels {k}"][rows]
                        step(
                            maps(ctx, k, rows), y, memory[f"logits {k}"][rows] if self.alpha else y
                        )
        memory.update(
            {
                f"{key} {i}": t
                for key, ts in own.items()
                if isinstance(ts, list)
                for i, t in enumerate(ts)
            }
        )

    def answer(self, f_s, clients, ctx):
        """z_s of every image that is stored, in evaluation mode; and whether the accuracy on them has risen."""
        memory, right, answers = ctx.memory, 0, {}
        for k in clients:
            y = memory[f"labels {k}"]
            z_s = torch.cat(
                [
                    f_s(maps(ctx, k, rows))
                    for rows in torch.arange(len(y), device=y.device).split(512)
                ]
            )
            right += (z_s.argmax(1) == y).sum()
            answers[f"z_s {k}"] = z_s
        if not all(torch.isfinite(z_s).all() for z_s in answers.values()):
            raise Diverged(
                f"The training of the server's network diverged in round {ctx.round}: try a smaller server_lr."
            )
        memory.update(answers if self.back else {})
        accuracy = float(right / sum(len(memory[f"labels {k}"]) for k in clients))
        best, waited, cuts = memory.get("plateau", torch.zeros(3)).tolist()
        waited = 0 if accuracy > best else waited + 1
        cut = waited > self.patience
        memory["plateau"] = torch.tensor([max(best, accuracy), 0 if cut else waited, cuts + cut])

    def looks_at(self, ctx):
        """Of what a client keeps, its edge network."""
        return {f"edge/{name}": tuple(t.shape) for name, t in ctx.initial.items()}

    def evaluate(self, state, memories, ctx):
        """Mean over the clients of the test accuracy and loss of f_s on top of their own f_e (paper, section 3.2)."""
        f_s, results = self.f_s(ctx, state), []
        for k in range(ctx.task.clients):
            kept = memories.get(k, {})
            local.load(
                state_of(ctx.net),
                {name: kept.get(f"edge/{name}", t) for name, t in ctx.initial.items()},
            )
            results.append(ctx.task.evaluate(nn.Sequential(ctx.net.extractor, f_s), client=k))
        return {name: sum(r[name] for r in results) / len(results) for name in results[0]}


def maps(ctx, k, rows):
    """H of some of the client's images."""
    H = ctx.memory[f"features {k}"][rows].to(ctx.task.device)
    return H.contiguous(memory_format=torch.channels_last) if H.dim() == 4 else H


OPTIMIZERS = {"adam": lambda lr: Adam(lr, weight_decay=1e-4), "sgd": lambda lr: SGD(lr, 0.9)}


def fed_gkt(
    lr=0.001,
    edge="digits_edge",
    server="digits_server",
    server_epochs=4,
    optimizer="adam",
    server_lr=None,
    T=3.0,
    alpha=1.0,
    kd_to_client=True,
    kd_to_server=True,
    asynchronous=False,
    bits=32,
    memory_limit=1e9,
):
    """``edge`` and ``server`` name two networks that fit together: "resnet8" and "resnet55" are the paper's. ``optimizer``:
    "adam" (weight decay 0.0001) or "sgd" (momentum 0.9), on both sides (Tables 10 to 12). ``kd_to_client`` and ``kd_to_server``
    switch the two distillations (Table 2). ``bits`` a float on the wire: 32 or 16. ``memory_limit``: see ``Features``."""
    make, on_server = pick(optimizer, OPTIMIZERS, "optimizer"), alpha if kd_to_server else 0.0
    return Method(
        "fed_gkt",
        model=Edge(edge),
        objective=Distilled(T, alpha if kd_to_client else 0.0),
        optimizer=make(lr),
        uplink=Features(Dense(bits), kd_to_server, memory_limit),
        downlink=Knowledge(Dense(bits)),
        server=Transfer(
            Named(server),
            make(lr if server_lr is None else server_lr),
            server_epochs,
            T,
            on_server,
            kd_to_client,
            asynchronous,
            memory_limit=memory_limit,
        ),
    )

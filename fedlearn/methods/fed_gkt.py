"""FedGKT: He, Annavaram and Avestimehr, "Group Knowledge Transfer", NeurIPS 2020, Algorithm 1. Knowledge travels, not weights.

    client k:  minimise  CE(z_k, y) + alpha T^2 KL(p_s || p_k)  over its edge network W_e, W_c                 Eq. (7)
    up:        H = f_e(x), z_k = f_c(H), y and the index of each of its images; in evaluation mode, not augmented
    server:    minimise  CE(z_s, y) + alpha T^2 KL(p_k || p_s)  over W_s, z_s = f_s(H), for E_s epochs          Eq. (6)
    down:      z_s of the client's own images

p = softmax(z / T); the teacher's p is a constant; none in round 1. Only the owner of an image has a z_k for it, so the sum over
k in Eq. (6) has one term. The final model of client k is its extractor f_e and the server's f_s. T = 3 and alpha = 1 are those
of the authors' program; the paper gives no values. Global state: W_s. An edge network leaves its client
only for evaluation, which asks for it; those bytes have a column of their own.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from .. import rng, training
from ..errors import Diverged, WireError, pick
from ..method import EVALUATE, TRAIN, Method, ServerSide, Trainee
from ..models import state_of
from ..parts import (
    SGD,
    Adam,
    Batch,
    Context,
    Edge,
    Named,
    Objective,
    Optimizer,
    State,
    TaskLoss,
    Tensors,
)
from ..parts.base import Loss
from ..settings import Settings, whole_number
from ..wire import DOWN, UP, Message, pack, unpack
from .features import Letters, stored


def distillation(teacher: torch.Tensor, student: torch.Tensor, T: float = 3.0) -> torch.Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over the batch: logits [..., n, C]
    twice -> [...]."""
    log_p, log_q = F.log_softmax(teacher / T, -1), F.log_softmax(student / T, -1)
    return T**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1)


@dataclass(frozen=True)
class Distilled(Objective):
    """The task's loss plus the distillation from the server's logits of the client's images, once there
    are some."""

    recordable = True

    T: float = 3.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.T < math.inf or not 0 <= self.alpha < math.inf:
            raise ValueError(
                "Distillation needs a temperature T > 0 and a weight alpha >= 0, both finite, not "
                f"{self}."
            )

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        J, many = ctx.task.loss, isinstance(ctx.client, list)
        z_s = [memory.get("z_s") for memory in (ctx.memory if many else [ctx.memory])]
        known = next((z for z in z_s if z is not None), None)
        if known is None or not self.alpha:
            return TaskLoss().begin(net, ctx)
        there = torch.tensor([z is not None for z in z_s], dtype=known.dtype, device=known.device)
        weight = self.alpha * there
        filled = [known[:1] * 0 if z is None else z for z in z_s]
        table = pad_sequence(filled, batch_first=True)  # [clients, n, C]
        who = torch.arange(len(z_s), device=known.device)[:, None]
        if not many:
            weight, table, who = weight[0], table[0], None

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
            z_k, index = net(batch.x), batch.index.clamp(max=table.shape[-2] - 1)
            teacher = table[index] if who is None else table[who, index]
            return J(z_k, batch.y) + weight * distillation(teacher, z_k, self.T)

        return loss


class Server(ServerSide):
    """Trains f_s on what the clients sent, client by client and batch by batch."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        if not method.asynchronous and len(self.participants(1)) < task.clients:
            raise ValueError(
                "Synchronous FedGKT needs every client in every round: participation=1, or "
                "asynchronous=True."
            )
        self.letters = Letters(method, task, self.net)
        shapes = self.letters.up.shapes
        self.f_s = training.new_network(replace(method.network, shape=shapes["features"]), task)
        with torch.no_grad():
            z_s = self.f_s.eval()(torch.zeros(1, *shapes["features"], device=task.device))
        if tuple(z_s.shape[1:]) != shapes["logits"]:
            raise ValueError(
                f"The server's network gives {list(z_s.shape[1:])} logits an image, the edge network "
                f"{list(shapes['logits'])}."
            )
        self.weights = {name: t.clone() for name, t in state_of(self.f_s).items()}

    def start(self) -> State:
        return State(dict(self.weights))

    def longest(self) -> int:
        return max(self.letters.up.limit, self.letters.edge.limit)

    def round(self, t: int, state: State, ask: Any) -> State:
        method, letters, memory = self.method, self.letters, dict(state.memory)

        def send(k: int) -> bytes:
            return letters.knowledge(t, k, memory.get(f"z_s {k}"))

        came = dict(
            ask(self.participants(t), send, lambda k, data: letters.read(t, k, data), TRAIN)
        )
        missing = sorted(set(range(self.task.clients)) - came.keys())
        if missing and not method.asynchronous:
            raise WireError(
                f"Synchronous FedGKT cannot go on: in round {t} nothing usable came from clients "
                f"{missing}."
            )
        if not came:
            return state
        for k, tensors in came.items():
            memory.update({f"{name} {k}": x for name, x in tensors.items()})
        for name in [name for name in memory if name.startswith("features ")]:
            memory[name] = stored(memory[name], self.task, method.memory_limit)
        clients = [k for k in range(self.task.clients) if f"features {k}" in memory]
        training.load(state_of(self.f_s), state.weights)
        self.train(t, clients, memory)
        self.answer(t, clients, memory)
        if not method.asynchronous:
            for name in [n for n in memory if n.split()[0] in ("features", "labels", "logits")]:
                del memory[name]
        return State({name: w.clone() for name, w in state_of(self.f_s).items()}, memory)

    def train(self, t: int, clients: list[int], memory: Tensors) -> None:
        """Eq. (8): E_s epochs with every H and z_k fixed."""
        method, task, f_s, J = self.method, self.task, self.f_s.train(), self.task.loss

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:  # z_k stands in for the index
            z_s = net(batch.x)
            if not method.alpha:
                return J(z_s, batch.y)
            return J(z_s, batch.y) + method.alpha * distillation(batch.index, z_s, method.T)

        ctx, B = self.context(t, -1, self.letters.up, memory), self.settings.batch_size
        cuts = int(memory.get("plateau", torch.zeros(3))[2])
        part = replace(method.server_optimizer, lr=method.server_optimizer.lr * 0.1**cuts)
        own = part.init(training.trainable(f_s), ctx)
        lists = {key: ts for key, ts in own.items() if isinstance(ts, list)}
        for key, ts in lists.items():  # goes on from the last round
            own[key] = [memory.get(f"{key} {i}", x).clone() for i, x in enumerate(ts)]
        shuffle, sizes = (
            ctx.generator("server shuffle"),
            {k: len(memory[f"labels {k}"]) for k in clients},
        )
        steps = method.server_epochs * sum(sizes.values()) // B
        step = training.local_step(
            f_s, Method(optimizer=part), loss, own, self.settings, task.device, steps
        )
        with torch.enable_grad(), rng.scope(task.seed, "server dropout", t, device=task.device):
            for _ in range(method.server_epochs):
                for k in (clients[i] for i in torch.randperm(len(clients), generator=shuffle)):
                    order = torch.randperm(sizes[k], generator=shuffle).to(task.device)
                    for rows in order.split(B):
                        y = memory[f"labels {k}"][rows]
                        z_k = memory[f"logits {k}"][rows] if method.alpha else y
                        step(self._maps(memory, k, rows), y, z_k)
        memory.update({f"{key} {i}": x for key in lists for i, x in enumerate(own[key])})

    @torch.no_grad()
    def answer(self, t: int, clients: list[int], memory: Tensors) -> None:
        """z_s of every image that is stored, in evaluation mode; and whether the accuracy on them has
        risen."""
        f_s, right, answers = self.f_s.eval(), 0, {}
        for k in clients:
            y = memory[f"labels {k}"]
            rows = torch.arange(len(y), device=y.device).split(512)
            z_s = torch.cat([f_s(self._maps(memory, k, r)) for r in rows])
            right += (z_s.argmax(1) == y).sum()
            answers[f"z_s {k}"] = z_s
        if not all(torch.isfinite(z_s).all() for z_s in answers.values()):
            raise Diverged(
                f"The training of the server's network diverged in round {t}: try a smaller server_lr."
            )
        memory.update(answers if self.method.answers else {})
        accuracy = float(right / sum(len(memory[f"labels {k}"]) for k in clients))
        best, waited, cuts = memory.get("plateau", torch.zeros(3)).tolist()
        waited = 0 if accuracy > best else waited + 1
        cut = waited > self.method.patience
        memory["plateau"] = torch.tensor([max(best, accuracy), 0 if cut else waited, cuts + cut])

    def _maps(self, memory: Tensors, k: int, rows: torch.Tensor) -> torch.Tensor:
        """H of some of the client's images."""
        H = memory[f"features {k}"][rows].to(self.task.device)
        return H.contiguous(memory_format=torch.channels_last) if H.dim() == 4 else H

    def evaluate(self, t: int, state: State, ask: Any) -> dict[str, Any]:
        """Mean of the test accuracy and loss of f_s on top of the clients' own f_e (paper, section
        3.2), over the clients that show theirs."""
        training.load(state_of(self.f_s), state.weights)
        letters, results = self.letters, []
        shown = ask(
            range(self.task.clients),
            lambda k: letters.knowledge(t, k, None),
            lambda k, data: letters.read_edge(t, k, data),
            EVALUATE,
        )
        for k, edge in shown:
            training.load(self.tensors, self.initial | edge)
            net = nn.Sequential(self.net.extractor, self.f_s)
            results.append(self.task.evaluate(net, client=k))
        if not results:
            return {"accuracy": None, "loss": None}
        return {name: sum(r[name] for r in results) / len(results) for name in results[0]}


class Client(Trainee):
    """Trains its edge network, which it keeps, and sends what it knows of its images."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self.letters = Letters(method, task, self.net)

    def answer(self, t: int, client: int, what: str, data: bytes, memory: Tensors) -> bytes:
        if what == EVALUATE:
            unpack(data, self.letters.down, kind=DOWN, round=t, client=client)
            edge = {n: memory[f"edge/{n}"] for n in self.initial if f"edge/{n}" in memory}
            return self.letters.show_edge(t, client, edge)
        return self.train(t, client, data, memory)

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        """The server's logits; training goes on from the client's own edge network."""
        z_s = self.letters.read_knowledge(t, client, data)
        if z_s is not None:
            memory["z_s"] = z_s
        start = {name: memory.get(f"edge/{name}", w) for name, w in self.initial.items()}
        return self.context(t, client, self.letters.down, memory, start=start)

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        try:
            sections = self.letters.write(self.net, ctx.client, self.settings.batch_size)
            if not all(torch.isfinite(w).all() for w in trained.values()):
                raise Diverged(f"The training of client {ctx.client} diverged.")
            ctx.memory.update({f"edge/{name}": w.clone() for name, w in trained.items()})
        except Diverged:  # it goes on from its last edge network
            sections = {}
        samples = self.task.sizes[ctx.client]
        return pack(Message(UP, ctx.round, ctx.client, samples, sections), self.letters.up)


@dataclass(frozen=True)
class GroupTransfer(Method):
    """FedGKT as a record. Synchronous: the server trains on the uploads of this round, of which none may
    be missing. Asynchronous: on the last upload of every client that has ever sent one.

    The server's learning rate is cut to a tenth when the accuracy on the clients' images has not risen
    for ``patience`` rounds.
    """

    name: str = "fed_gkt"
    model: Edge = Edge("digits_edge")
    objective: Objective = Distilled()
    network: Named = Named("digits_server")
    server_optimizer: Any = Adam()
    server_epochs: int = 4
    T: float = 3.0
    alpha: float = 1.0
    answers: bool = True  # whether z_s is kept for the clients
    asynchronous: bool = False
    patience: int = 10
    bits: int = 32  # of a float on the wire
    memory_limit: float = field(default=1e9, repr=False)  # bytes; see ``features.stored``

    sides = (Server, Client)
    kinds: ClassVar[dict] = dict(Method.kinds) | {"network": Named, "server_optimizer": Optimizer}

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("server_epochs", self.server_epochs)
        whole_number("patience", self.patience)
        limit = self.memory_limit
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
            raise ValueError(f"memory_limit is a number of bytes, at least 0, not {limit!r}.")


OPTIMIZERS = {"adam": lambda lr: Adam(lr, weight_decay=1e-4), "sgd": lambda lr: SGD(lr, 0.9)}


def fed_gkt(
    lr: float = 0.001,
    edge: Any = "digits_edge",
    server: Any = "digits_server",
    server_epochs: int = 4,
    optimizer: str = "adam",
    server_lr: float | None = None,
    T: float = 3.0,
    alpha: float = 1.0,
    kd_to_client: bool = True,
    kd_to_server: bool = True,
    asynchronous: bool = False,
    bits: int = 32,
    memory_limit: float = 1e9,
) -> GroupTransfer:
    """``edge`` and ``server`` name two networks that fit together: "resnet8" and "resnet55" are the
    paper's. ``optimizer``: "adam" (weight decay 0.0001) or "sgd" (momentum 0.9), on both sides (Tables
    10 to 12). ``kd_to_client`` and ``kd_to_server`` switch the two distillations (Table 2). ``bits`` a
    float on the wire: 32 or 16. Feature maps of more than ``memory_limit`` bytes are kept on disk."""
    make = pick(optimizer, OPTIMIZERS, "optimizer")
    return GroupTransfer(
        model=Edge(edge),
        objective=Distilled(T, alpha if kd_to_client else 0.0),
        optimizer=make(lr),
        network=Named(server),
        server_optimizer=make(lr if server_lr is None else server_lr),
        server_epochs=server_epochs,
        T=T,
        alpha=alpha if kd_to_server else 0.0,
        answers=kd_to_client,
        asynchronous=asynchronous,
        bits=bits,
        memory_limit=memory_limit,
    )

"""FedGKT at the server: it trains f_s on what the clients know of their images (``fed_gkt.py``)."""

from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from .. import rng, training
from ..errors import Diverged, WireError
from ..method import TRAIN, Method, ServerSide
from ..models import state_of
from ..parts import Batch, State, Tensors, lasting, recalled
from ..settings import Settings
from ..wire import DOWN, UP, Dense
from .distillation import distillation
from .features import Letters, stored

SENT = ("features", "labels", "logits")  # of client k in the server's memory: "features k", ...
FAR = 1e3


def outlier(came: dict[int, Tensors]) -> int | None:
    """The client whose largest feature or logit is more than ``FAR`` times that of the median of
    the others, if there is one: finite, and yet too large to compute with."""
    sizes = {
        k: max(float(x.abs().max()) for name, x in tensors.items() if name != "labels")
        for k, tensors in came.items()
    }
    largest = max(sizes, key=lambda k: sizes[k])
    others = [size for k, size in sizes.items() if k != largest]
    return largest if others and sizes[largest] > FAR * median(others) else None


class Server(ServerSide):
    """Its memory holds what client k has sent, z_s of its images ("z_s k"), f_s's optimiser, and
    "plateau": the highest accuracy so far on the clients' images, for how many rounds it has not
    risen, and how often the learning rate was cut."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        if not method.asynchronous and len(self.participants(1)) < task.clients:
            raise ValueError(
                "Synchronous FedGKT needs every client in every round: participation=1, or "
                "asynchronous=True."
            )
        self.letters = Letters(method, task, self.net)
        maps, classes = self.letters.maps, self.letters.classes
        self.f_s = training.new_network(replace(method.network, shape=maps), task)
        with torch.no_grad():
            z_s = self.f_s.eval()(torch.zeros(1, *maps, device=task.device))
        if tuple(z_s.shape[1:]) != (classes,):
            raise ValueError(
                f"The server's network gives {list(z_s.shape[1:])} logits an image, the edge "
                f"network {[classes]}."
            )
        self.tensors_s = state_of(self.f_s)  # the network's own
        self.first = {name: w.clone() for name, w in self.tensors_s.items()}

    def start(self) -> State:
        return State(dict(self.first))

    def longest(self) -> int:
        largest = max(range(self.task.clients), key=lambda k: self.task.sizes[k])
        return max(letter.schema.limit for letter in (self.letters.up(largest), self.letters.edge))

    def round(self, t: int, state: State, ask: Any) -> State:
        letters, asynchronous = self.letters, self.method.asynchronous

        def write(k: int) -> bytes:
            z_s = state.memory.get(f"z_s {k}")
            return letters.down(k).write(DOWN, t, k, {} if z_s is None else {"z_s": z_s})

        def read(k: int, data: bytes) -> Tensors:
            return letters.read_knowledge(t, k, data)

        came = dict(ask(self.participants(t), write, read, TRAIN))
        missing = sorted(set(range(self.task.clients)) - came.keys())
        if missing and not asynchronous:
            raise WireError(
                f"Synchronous FedGKT cannot go on: in round {t} nothing usable came from clients "
                f"{missing}."
            )
        while came:
            memory = dict(state.memory)
            for k, tensors in came.items():
                memory |= {f"{name} {k}": x for name, x in tensors.items()}
            for name in [name for name in memory if name.startswith("features ")]:
                memory[name] = stored(memory[name], self.task, self.method.memory_limit)
            clients = [k for k in range(self.task.clients) if f"features {k}" in memory]
            training.load(self.tensors_s, state.weights)
            try:
                self.train(t, clients, memory)
                self.teach(t, clients, memory)
            except Diverged:
                blamed = outlier(came)
                if blamed is None:
                    raise
                del came[blamed]
                ask.row["refused"][blamed] = (
                    f"What client {blamed} sent is {FAR:g} times as large as what others sent, and "
                    "the training of the server's network diverged with it."
                )
                continue
            if not asynchronous:
                memory = {name: x for name, x in memory.items() if name.split()[0] not in SENT}
            return State({name: w.clone() for name, w in self.tensors_s.items()}, memory)
        return state

    def judge(self, t: int, state: State, before: State, heard: Any) -> bool:
        """Also whether z_s can be sent: half precision may not hold it."""
        large = super().judge(t, state, before, heard)
        for name, z_s in state.memory.items():
            if name.startswith("z_s ") and self.letters.coder != Dense():
                self.letters.coder.encode(z_s)
        return large

    def train(self, t: int, clients: list[int], memory: Tensors) -> None:
        """Eq. (8): E_s epochs on Eq. (6), client by client and batch by batch, with every H and z_k
        fixed. The optimiser goes on from the last round."""
        method, task, f_s, J = self.method, self.task, self.f_s.train(), self.task.loss

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:  # z_k stands in for the index
            z_s = net(batch.x)
            if not method.alpha:
                return J(z_s, batch.y)
            return J(z_s, batch.y) + method.alpha * distillation(batch.index, z_s, method.T)

        ctx, B = self.context(t, -1, self.letters.edge.schema, memory), self.settings.batch_size
        ctx.net = f_s
        cuts = int(memory["plateau"][2]) if "plateau" in memory else 0
        part = replace(method.server_optimizer, lr=method.server_optimizer.lr * 0.1**cuts)
        own = recalled(part.init(training.trainable(f_s), ctx), memory)
        shuffle, sizes = (
            ctx.generator("server shuffle"),
            {k: len(memory[f"labels {k}"]) for k in clients},
        )
        steps, training_of = method.server_epochs * sum(sizes.values()) // B, Method(optimizer=part)
        step = training.local_step(f_s, training_of, loss, own, self.settings, task.device, steps)
        with torch.enable_grad(), rng.scope(task.seed, "server dropout", t, device=task.device):
            for _ in range(method.server_epochs):
                for k in (clients[i] for i in torch.randperm(len(clients), generator=shuffle)):
                    order = torch.randperm(sizes[k], generator=shuffle).to(task.device)
                    for rows in order.split(B):
                        y = memory[f"labels {k}"][rows]
                        z_k = memory[f"logits {k}"][rows] if method.alpha else y
                        step(self._maps(memory, k, rows), y, z_k)
        memory |= lasting(own)

    @torch.no_grad()
    def teach(self, t: int, clients: list[int], memory: Tensors) -> None:
        """z_s of every image that is stored, in evaluation mode; and whether the accuracy on them
        has risen."""
        f_s, right, z_s = self.f_s.eval(), 0, {}
        for k in clients:
            y = memory[f"labels {k}"]
            rows = torch.arange(len(y), device=y.device).split(512)
            z_s[f"z_s {k}"] = torch.cat([f_s(self._maps(memory, k, r)) for r in rows])
            right += (z_s[f"z_s {k}"].argmax(1) == y).sum()
        if not all(torch.isfinite(x).all() for x in (*z_s.values(), *self.tensors_s.values())):
            raise Diverged(
                f"The training of the server's network diverged in round {t}: try a smaller "
                "server_lr."
            )
        memory |= z_s if self.method.answers else {}
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
        """Mean of the test accuracy and loss of f_s on top of the clients' own f_e (section 3.2),
        over the clients that show theirs."""
        letters, n = self.letters, self.task.sizes
        training.load(self.tensors_s, state.weights)
        self.method.model.refresh(self.net, self.task, t)

        def network(k: int, data: bytes) -> nn.Module:
            own = letters.edge.read(UP, t, k, data, samples=n[k])
            training.load(self.tensors, self.initial | own)
            return nn.Sequential(self.net.extractor, self.f_s)

        return self.evaluate_each(ask, lambda k: letters.down(k).write(DOWN, t, k, {}), network)

"""FedGKT: He, Annavaram and Avestimehr, "Group Knowledge Transfer", NeurIPS 2020, Algorithm 1:
knowledge travels, not weights.

    client k:  minimise  CE(z_k, y) + alpha T^2 KL(p_s || p_k)  over its W_e and W_c       Eq. (7)
    up:        H = f_e(x), z_k = f_c(H), y and the index of each of its images
    server:    minimise  CE(z_s, y) + alpha T^2 KL(p_k || p_s)  over W_s,  z_s = f_s(H)    Eq. (6)
    down:      z_s of the client's own images

A client's edge network is f_e, with weights W_e, and f_c behind it. After E local epochs it sends
what it computes in evaluation mode and without augmentation. The server trains E_s epochs.

p = softmax(z / T); the teacher's p is a constant; none in round 1. Only the owner of an image has a
z_k for it, so the sum over k in Eq. (6) has one term. The final model of client k is its extractor
f_e and the server's f_s. T = 3 and alpha = 1 are those of the authors' program; the paper gives no
values. The global model is W_s. An edge network leaves its client only for evaluation, which asks
for it; those bytes have a column of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from .. import rng
from ..core import (
    SGD,
    Adam,
    Batch,
    Context,
    Loss,
    Method,
    Named,
    Objective,
    State,
    TaskLoss,
    Tensors,
    local,
)
from ..core.context import batches
from ..errors import Diverged, WireError, check_number, check_whole, pick
from ..models import evaluating, state_of
from ..wire import DOWN, UP, Coder, Dense, FixedMessage, Schema, Whole
from .base import Continued
from .edge import Edge, EdgeSide, PersonalClient, PersonalServer, output

UPLOAD = ("features", "labels", "logits")  # H, y and z_k in the server's memory


def distillation(
    teacher: torch.Tensor, student: torch.Tensor, T: float = 3.0
) -> torch.Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over n: [..., n, C] -> [...]."""
    log_p = F.log_softmax(teacher / T, -1)
    log_q = F.log_softmax(student / T, -1)
    return T**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1)


@dataclass(frozen=True)
class Distilled(Objective):
    """The task's loss plus ``alpha`` times the distillation from the server's logits, Eq. (7).

    The client keeps these as ``z_s`` [n_k, C]; without them the loss is the task's alone.
    """

    T: float = 3.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_number("T", self.T, above=0)
        check_number("alpha", self.alpha, least=0)

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        alone = not isinstance(ctx.client, list)
        memories = [ctx.memory] if alone else ctx.memory
        logits = [memory.get("z_s") for memory in memories]
        first = next((z for z in logits if z is not None), None)
        if first is None or not self.alpha:
            return TaskLoss().begin(net, ctx)
        J = ctx.task.loss
        tables = [first[:1] * 0 if z is None else z for z in logits]
        z_s = pad_sequence(tables, batch_first=True)  # [clients, n, C]
        alpha = self.alpha * first.new_tensor([z is not None for z in logits])
        clients = torch.arange(len(logits), device=first.device)[:, None]
        if alone:
            alpha = alpha[0]
            clients = clients[0, 0]

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
            z_k = net(batch.x)
            index = batch.index.clamp(max=z_s.shape[1] - 1)
            D = distillation(z_s[clients, index], z_k, self.T)
            return J(z_k, batch.y) + alpha * D

        return loss


class Messages(EdgeSide):
    """A side that knows a round's two messages."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.classes = output(self.net, self.task.shape).shape[1]
        self.floats = Dense(self.method.bits)

    def _message(self, device: Any, shapes: dict[str, tuple[int, ...]]) -> FixedMessage:
        coders: dict[str, Coder] = dict.fromkeys(shapes, self.floats)
        coders |= {"index": Whole(4), "labels": Whole(2)}
        schema = Schema(shapes, coder=f"fed_gkt {self.floats}")
        return FixedMessage(schema, coders, device=device)

    def upload_of(self, k: int) -> FixedMessage:
        """Client k's images: their index, label, H and, if the server learns from them, z_k."""
        n = self.task.sizes[k]
        shapes = {"index": (n,), "labels": (n,), "features": (n, *self.maps)}
        if self.method.alpha:
            shapes["logits"] = (n, self.classes)
        return self._message("cpu", shapes)

    def question(self, k: int) -> FixedMessage:
        """The server's logits z_s for client k's images."""
        shape = (self.task.sizes[k], self.classes)
        return self._message(self.task.device, {"z_s": shape})


class Server(Messages, PersonalServer):
    """Trains f_s on the clients' features.

    Its memory holds for each client "features k", "labels k", "logits k" and "z_s k"; the
    state of the optimiser; and "plateau": the highest accuracy on the clients' images, the
    rounds without a rise, and the cuts of the rate.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.f_s = self.server_network()
        self.W_s = state_of(self.f_s)  # the network's own tensors
        self.first = {name: w.clone() for name, w in self.W_s.items()}

    def validate(self) -> None:
        absent = len(self.participants(1)) < self.task.clients
        if absent and not self.method.asynchronous:
            raise ValueError("FedGKT needs participation=1, or asynchronous=True.")
        logits = list(output(self.f_s, self.maps).shape[1:])
        if logits != [self.classes]:
            raise ValueError(
                f"The server's network gives {logits} logits, not {[self.classes]}."
            )

    def start(self) -> State:
        return State(dict(self.first))

    def round(self, t: int, state: State, ask: Any) -> State:
        def write(k: int) -> bytes:
            name = f"z_s {k}"
            memory = state.memory
            z_s = {"z_s": memory[name]} if name in memory else {}
            return self.question(k).write(DOWN, t, k, z_s)

        uploads = dict(ask(self.participants(t), write, partial(self.read, t)))
        missing = sorted(set(range(self.task.clients)) - uploads.keys())
        if missing and not self.method.asynchronous:
            raise WireError(
                f"FedGKT cannot go on: in round {t} nothing came from {missing}."
            )
        return self.learn(t, state, uploads) if uploads else state

    def read(self, t: int, k: int, data: bytes) -> Tensors:
        """bytes -> features, labels and logits in the client's own order."""
        n = self.task.sizes[k]
        tensors = self.upload_of(k).read(UP, t, k, data, samples=n)
        if not tensors:
            raise WireError(f"Client {k} sent nothing, as one whose training diverged.")
        index = tensors.pop("index")
        if not torch.equal(index.sort().values, torch.arange(n)):
            raise WireError(f"Client {k} must send each of its {n} images once.")
        if tensors["labels"].max() >= self.classes:
            raise WireError(f"Client {k} sent a label above {self.classes - 1}.")
        return {name: x[index.argsort()] for name, x in tensors.items()}

    def learn(self, t: int, state: State, uploads: dict[int, Tensors]) -> State:
        """The state after training on the new features, and on the last of absent clients."""
        memory = dict(state.memory)
        for k, tensors in uploads.items():
            memory.update({f"{name} {k}": x for name, x in tensors.items()})
        clients = [k for k in range(self.task.clients) if f"features {k}" in memory]
        local.load(self.W_s, state.weights)
        self.train(t, clients, memory)
        self.teach(t, clients, memory)
        if not self.method.asynchronous:
            for name in list(memory):
                if name.startswith(UPLOAD):
                    del memory[name]
        return State({name: w.clone() for name, w in self.W_s.items()}, memory)

    def train(self, t: int, clients: list[int], memory: Tensors) -> None:
        """E_s epochs on Eq. (6), client by client, each H and z_k fixed."""
        method = self.method
        task = self.task
        f_s = self.f_s.train()

        def loss(H: torch.Tensor, y: torch.Tensor, z_k: Any) -> torch.Tensor:
            z_s = f_s(H)
            D = 0 if z_k is None else distillation(z_k, z_s, method.T)
            return task.loss(z_s, y) + method.alpha * D

        J_s = local.in_precision(loss, task, self.settings)
        ctx = Context(task, t, memory=memory, net=f_s)
        cuts = int(memory["plateau"][2]) if "plateau" in memory else 0
        rate = method.server_optimizer.lr * 0.1**cuts
        optimizer = replace(method.server_optimizer, lr=rate)
        W_s = local.trainable(f_s)
        optimizer_state = Continued(optimizer).init(W_s, ctx)
        shuffle = ctx.generator("server shuffle")
        dropout = rng.scope(task.seed, "server dropout", t, device=task.device)
        with torch.enable_grad(), dropout:
            for _ in range(method.server_epochs):
                for i in torch.randperm(len(clients), generator=shuffle):
                    k = clients[i]
                    order = torch.randperm(task.sizes[k], generator=shuffle)
                    B = self.settings.batch_size
                    for start, end in batches(len(order), B, f_s):
                        rows = order[start:end]
                        batch = [self._rows(f"{n} {k}", rows, memory) for n in UPLOAD]
                        local.step(J_s(*batch), W_s, optimizer, optimizer_state)

    @torch.no_grad()
    def teach(self, t: int, clients: list[int], memory: Tensors) -> None:
        """z_s of every stored image, and the plateau; ``Diverged`` if z_s cannot be sent."""
        f_s = self.f_s.eval()
        right = 0
        images = 0
        for k in clients:
            outputs = []
            for rows in torch.arange(self.task.sizes[k]).split(512):
                outputs.append(f_s(self._rows(f"features {k}", rows, memory)))
            z_s = torch.cat(outputs)
            if not torch.isfinite(z_s).all():
                raise Diverged(
                    f"The server's network diverged in round {t}: lower server_lr."
                )
            self.floats.encode(z_s)  # refuses what has no half precision
            if self.method.answers:
                memory[f"z_s {k}"] = z_s
            y = memory[f"labels {k}"].to(z_s.device)
            right += int((z_s.argmax(1) == y).sum())
            images += len(y)
        best, waited, cuts = memory.get("plateau", torch.zeros(3)).tolist()
        accuracy = float(torch.tensor(right) / images)
        waited = 0 if accuracy > best else waited + 1
        if waited > self.method.patience:
            waited = 0
            cuts += 1
        memory["plateau"] = torch.tensor([max(best, accuracy), waited, cuts])

    def _rows(self, name: str, rows: torch.Tensor, memory: Tensors) -> Any:
        """Some rows of a tensor on the task's device; None if the server has no such tensor."""
        if name not in memory:
            return None
        x = memory[name]
        x = x[rows.to(x.device)].to(self.task.device)
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x

    def complete(self, net: nn.Module) -> nn.Module:
        """f_s on top of a client's f_e (section 3.2)."""
        return nn.Sequential(net.extractor, self.f_s)

    def evaluate(self, t: int, state: State, ask: Any) -> dict[str, Any]:
        local.load(self.W_s, state.weights)
        return super().evaluate(t, state, ask)


class Client(Messages, PersonalClient):
    """Trains and keeps its edge network, and ``z_s``; sends what it knows of its images."""

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        memory |= self.question(client).read(DOWN, t, client, data)
        return self.training(t, client, memory)

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        """H and z_k of the client's images; nothing, if its training diverged."""
        local.load(self.tensors, trained)
        k = ctx.client
        n = self.task.sizes[k]
        message = self.upload_of(k)
        tensors = self.knowledge(k)
        sent: Tensors = {}
        if all(t.isfinite().all() for t in (*tensors.values(), *trained.values())):
            self.keep(trained, ctx)
            tensors["index"] = torch.arange(n)
            tensors["labels"] = self.task.train[1][self.task.owned[k]]
            sent = {name: tensors[name] for name in message.schema.shapes}
        try:
            return message.write(UP, ctx.round, k, sent, n)
        except Diverged:  # too large for half precision
            return message.write(UP, ctx.round, k, {}, n)

    def knowledge(self, k: int) -> Tensors:
        """H and z_k of its images, in evaluation mode."""
        net = self.net
        task = self.task
        H = []
        z_k = []
        with evaluating(net), torch.no_grad():
            for rows in task.owned[k].to(task.device).split(self.settings.batch_size):
                H.append(net.extractor(task.inputs(task.train[0][rows], k)))
                z_k.append(net.classifier(H[-1]))
        return {"features": torch.cat(H), "logits": torch.cat(z_k)}


@dataclass(frozen=True)
class GroupTransfer(Method):
    """The parts of FedGKT.

    Synchronous: the server trains on the uploads of this round, of which none may be missing.
    Asynchronous: on the last upload of each client. The server's rate is cut to a tenth when the
    accuracy on the clients' images has not risen for ``patience`` rounds.
    """

    name: str = "fed_gkt"
    model: Edge = Edge("digits_edge")
    objective: Objective = Distilled()
    network: Named = Named("digits_server")
    server_optimizer: Any = Adam()
    server_epochs: int = 4
    T: float = 3.0
    alpha: float = 1.0
    answers: bool = True  # whether z_s is sent to the clients
    asynchronous: bool = False
    patience: int = 10
    bits: int = 32

    server_class = Server
    client_class = Client

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("server_epochs", self.server_epochs)
        check_whole("patience", self.patience)
        Distilled(self.T, self.alpha)  # refuses other values
        Dense(self.bits)


OPTIMIZERS: dict[str, Callable[[float], SGD | Adam]] = {
    "adam": lambda lr: Adam(lr, weight_decay=1e-4),
    "sgd": lambda lr: SGD(lr, 0.9),
    "amsgrad": lambda lr: Adam(lr, weight_decay=1e-4, amsgrad=True),
    "nesterov": lambda lr: SGD(lr, 0.9, weight_decay=5e-4, nesterov=True),
}


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
    keep: bool = False,
) -> GroupTransfer:
    """FedGKT, He, Annavaram and Avestimehr (2020), Algorithm 1 and Eqs. (6) and (7).

    Parameters
    ----------
    lr, server_lr : float
        Rates at clients and server, above 0; ``server_lr`` None: the same.
    edge, server : str, function (shape, classes) -> module, or None
        Two networks that fit together; the paper's are "resnet8" and "resnet55"; None: the task's.
    server_epochs : int
        E_s, at least 1.
    optimizer : {"adam", "sgd", "amsgrad", "nesterov"}
        Of both sides; the first two are those of Tables 10 to 12, the others the authors'.
    T, alpha : float
        Temperature, above 0, and weight of the distillation, at least 0.
    kd_to_client, kd_to_server : bool
        The two distillations, as in Table 2.
    asynchronous : bool
        Go on without clients that are absent; see ``GroupTransfer``.
    bits : {32, 16}
        Of a float on the wire.
    keep : bool
        A client's optimiser goes on where it stopped.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * logits are matched by image, authors': by batch number while batches are shuffled; not
      measured: theirs is a fault, and no option
    * z_s in evaluation mode at the end, authors': while the last epoch trains; not measured: no
      option, theirs are of a network that changes meanwhile
    * Adam and SGD, anew each round at clients, authors': AMSGrad and Nesterov, going on: "AMSGrad",
      "keep", "AMSGrad, keep"
    * extractors begin at random, authors': as those of a trained ResNet-56; not measured: none is
      at hand
    * rate cut by accuracy on the clients' images, authors': on the test set; not measured: it would
      be tuned on what tests it
    * CE + alpha T^2 KL as at the authors' clients, Eqs. (6) and (7): plain KL, none with alpha = 1,
      T = 1; authors' server: alpha CE + T^2 KL, alike with alpha = 1
    * the server learns from z_k, too, as in Eq. (6), authors': if told to; 98.21 %, without 98.35
      (IID, recipe fed_gkt_table2)
    * the server shuffles all images, authors': batches as they came; not measured: no option
    * H and z_k of images as they are, authors' loader augments them; none without augmentation
    * lr 0.001 with ``sgd``, too, Tables 10 to 12: 0.005; not measured: lr is an option
    """
    make = pick(optimizer, OPTIMIZERS, "optimizer")
    return GroupTransfer(
        model=Edge(edge),
        objective=Distilled(T, alpha if kd_to_client else 0.0),
        optimizer=Continued(make(lr)) if keep else make(lr),
        network=Named(server),
        server_optimizer=make(lr if server_lr is None else server_lr),
        server_epochs=server_epochs,
        T=T,
        alpha=alpha if kd_to_server else 0.0,
        answers=kd_to_client,
        asynchronous=asynchronous,
        bits=bits,
    )

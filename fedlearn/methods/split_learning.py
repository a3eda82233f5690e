"""Split learning: Gupta and Raskar, "Distributed learning of deep neural network over multiple agents", 2018, Algorithm 1.

    the clients in turn, batch by batch:   client -> server   H = f_e(x) and the labels
                                           server             a step of W_s on CE(f_s(H), y)
                                           server -> client   dCE / dH, with which the client takes a step of W_e
    from client to client:                 W_e, by way of the server

It is no round of six parts, since every step needs two messages. So it has a loop of its own, on the same wire.
"""

import time

import torch
from torch import nn

from .. import local, rng
from ..federation import blank_row, describe, good_threads
from ..history import History
from ..method import SGD, Context, Link, Method, Settings, whole_number
from ..models import state_of
from ..wire import DOWN, UP, Message, Schema, pack, unpack
from .fed_gkt import Edge, Named


class Wire:
    """Sends tensors as messages and counts their bytes."""

    def __init__(self, row):
        self.row, self.link = row, Link()

    def send(self, kind, client, tensors, samples=0, handover=False):
        """What the receiver holds."""
        schema = Schema(
            {name: tuple(t.shape) for name, t in tensors.items()}, frozenset(), "split learning"
        )
        data = pack(
            Message(kind, self.row["round"], client, samples, self.link.pack(tensors, schema)),
            schema,
        )
        for key in ("bytes_up" if kind == UP else "bytes_down", *["bytes_handover"] * handover):
            self.row[key] += len(data)
        message = unpack(data, schema, kind=kind, round=self.row["round"], client=client)
        received = self.link.unpack(message.sections, schema)
        return {name: t.to(tensors[name].device) for name, t in received.items()}


def split_learning(
    task, rounds=20, edge="digits_edge", server="digits_server", lr=0.1, epochs=1, batch_size=32
):
    """Train the extractor of ``edge`` with ``server`` on top, and return the ``History``. In a round every client has its turn
    of ``epochs`` local epochs. SGD on both sides. Rows have one entry more, ``bytes_handover``: the share of the bytes that the
    extractor's weights took on their way from client to client."""
    whole_number("rounds", rounds)
    method, settings = (
        Method("split_learning", Edge(edge), optimizer=SGD(lr)),
        Settings(epochs=epochs, batch_size=batch_size),
    )
    f_e = local.initial_network(method, task).extractor
    with torch.no_grad():
        shape = f_e.eval()(torch.zeros(1, *task.shape, device=task.device)).shape[1:]
    f_s = local.initial_network(method.but(model=Named(server, tuple(shape))), task)
    threads = good_threads(nn.Sequential(f_e, f_s), task, batch_size)
    parts = {
        "model": repr(method.model),
        "optimizer": repr(method.optimizer),
        "server": repr(Named(server)),
    }
    history = History(method.name, describe(method, task, settings, threads) | {"parts": parts})
    with local.threads(threads):
        for t in range(1, rounds + 1):
            began, row = (
                time.perf_counter(),
                blank_row(t, range(task.clients)) | {"bytes_handover": 0},
            )
            for k in range(task.clients):
                turn(f_e, f_s, k, task, method, settings, Wire(row))
            row["seconds"] = time.perf_counter() - began
            history.rows.append(row | task.evaluate(nn.Sequential(f_e, f_s)))
    history.state = {f"edge.{n}": w for n, w in state_of(f_e).items()} | {
        f"server.{n}": w for n, w in state_of(f_s).items()
    }
    return history


def turn(f_e, f_s, k, task, method, settings, wire):
    """The turn of client k."""
    J, B, t = task.loss, settings.batch_size, wire.row["round"]
    W_e, W_s = local.trainable(f_e), local.trainable(f_s)
    f_e.train(), f_s.train()
    local.load(state_of(f_e), wire.send(DOWN, k, state_of(f_e), handover=True))
    ctx = Context(task, t, k)
    state_e, state_s = (method.optimizer.init(W, ctx) for W in (W_e, W_s))
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    with rng.scope(task.seed, "dropout", t, k, device=task.device):
        for _ in range(settings.epochs):
            x, y = task.epoch(k, torch.randperm(task.sizes[k], generator=shuffle), augment)
            for at in range(0, len(y), B):
                H = f_e(x[at : at + B])
                arrived = wire.send(UP, k, {"H": H.detach(), "y": y[at : at + B]}, len(H))
                H_s = arrived["H"].requires_grad_()
                *grads_s, dH = torch.autograd.grad(J(f_s(H_s), arrived["y"].long()), [*W_s, H_s])
                grads_e = torch.autograd.grad(H, W_e, wire.send(DOWN, k, {"dH": dH})["dH"])
                with torch.no_grad():
                    method.optimizer.step(W_s, grads_s, state_s)
                    method.optimizer.step(W_e, grads_e, state_e)
    local.load(state_of(f_e), wire.send(UP, k, state_of(f_e), task.sizes[k], handover=True))

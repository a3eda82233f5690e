"""The messages of FedGKT: feature maps up, logits down, and where the server keeps what came."""

import math
import tempfile
from dataclasses import dataclass, field

import numpy as np
import torch

from ..errors import Diverged, WireError
from ..method import Link
from ..wire import Schema


class OnDisk:
    """A tensor [n, ...] in a temporary file, which is mapped only while rows of it are read."""

    def __init__(self, tensor):
        self.shape, self.file = tensor.shape, tempfile.TemporaryFile()
        self.file.write(tensor.numpy().data)
        self.file.flush()

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        return torch.from_numpy(
            np.memmap(self.file, np.float32, "r", shape=tuple(self.shape))[rows.cpu().numpy()]
        )

    def clone(self, **ignored):
        """All of it in memory, for a checkpoint."""
        return self[torch.arange(len(self))]


def stored(H, ctx, limit):
    """H of one client as the server keeps it: on disk if those of all clients would take more than ``limit`` bytes."""
    large = 4 * sum(ctx.task.sizes) * H.shape[1:].numel() > limit
    return H if isinstance(H, OnDisk) else OnDisk(H.cpu()) if large else H.to(ctx.task.device)


@dataclass(frozen=True)
class Features(Link):
    """What a client knows of each of its images. ``logits``: whether z_k travels, which only the server's distillation needs.

    The server holds H of all clients on the task's device, or on disk if that would take more than ``memory_limit`` bytes.
    """

    logits: bool = True
    memory_limit: float = field(default=1e9, repr=False)

    def __post_init__(self):
        if (
            isinstance(self.memory_limit, bool)
            or not isinstance(self.memory_limit, (int, float))
            or not self.memory_limit >= 0
        ):
            raise ValueError(
                f"memory_limit is a number of bytes, at least 0, not {self.memory_limit!r}."
            )

    def schema(self, net, task):
        with torch.no_grad():
            H = net.extractor.eval()(torch.zeros(1, *task.shape, device=task.device))
            z_k = net.classifier.eval()(H)
        net.train()
        shapes = {
            "index": (),
            "labels": (),
            "features": tuple(H.shape[1:]),
            "logits": tuple(z_k.shape[1:]),
        }
        return Schema(shapes, frozenset(), repr(self), max(task.sizes))

    def encode(self, trained, ctx):
        task, k, net = ctx.task, ctx.client, ctx.net.eval()
        images, n = task.owned[k].to(task.device), task.sizes[k]
        tensors = {
            name: torch.empty(n, *ctx.schema.shapes[name])
            for name in ("features", "logits")[: 1 + self.logits]
        }
        for rows in torch.arange(n, device=task.device).split(ctx.settings.batch_size):
            H = net.extractor(task.inputs(task.train[0][images[rows]], k))
            for name, t in zip(tensors, (H, net.classifier(H)), strict=False):
                tensors[name][rows[0] : rows[-1] + 1] = t.cpu()
        if not all(torch.isfinite(t).all() for t in [*trained.values(), *tensors.values()]):
            raise Diverged(
                f"The training of client {k} diverged."
            )  # it goes on from its last edge network
        ctx.memory.update({f"edge/{name}": t.clone() for name, t in trained.items()})
        labels = task.train[1][images].cpu().numpy().astype("<u2")
        whole = {"index": np.arange(n, dtype="<u4").data, "labels": labels.data}
        return {name: memoryview(data).cast("B") for name, data in whole.items()} | self.pack(
            tensors, ctx.schema
        )

    def decode(self, sections, ctx):
        k, n, shapes = ctx.client, ctx.samples, ctx.schema.shapes
        if list(sections) != list(shapes)[: 3 + self.logits]:
            raise WireError(
                f"Client {k} did not send index, labels, features{' and logits' * self.logits}; one whose training diverged sends nothing."
            )
        if n != ctx.task.sizes[k]:
            raise WireError(f"Client {k} has {ctx.task.sizes[k]} images, and sent {n}.")
        for name, width in (("index", 4), ("labels", 2)):
            if len(sections[name]) != n * width:
                raise WireError(
                    f"Client {k} says that it has {n} images, but sent {len(sections[name]) / width:g} entries of {name}."
                )
        index, labels = (
            np.frombuffer(sections["index"], "<u4"),
            np.frombuffer(sections["labels"], "<u2"),
        )
        if not np.array_equal(np.sort(index), np.arange(n)):
            raise WireError(
                f"Client {k} must send each of its {n} images once; some are missing, foreign or come twice."
            )
        if labels.max() >= shapes["logits"][0]:
            raise WireError(
                f"Client {k} sent the label {labels.max()}; there are {shapes['logits'][0]} classes."
            )
        update = {
            name: self.coder.decode(sections[name], (n, *shapes[name]))
            for name in list(sections)[2:]
        }
        update["labels"] = torch.from_numpy(labels.astype(np.int64))
        order = torch.from_numpy(np.argsort(index))
        if not torch.equal(order, torch.arange(n)):
            update = {name: t[order] for name, t in update.items()}
        return {
            n: stored(t, ctx, self.memory_limit if n == "features" else math.inf)
            for n, t in update.items()
        }


@dataclass(frozen=True)
class Knowledge(Link):
    """The server's logits of the client's images; the client goes on from its own edge network."""

    personal = True

    def schema(self, net, task):
        own = Features().schema(net, task)
        return Schema({"z_s": own.shapes["logits"]}, frozenset(), repr(self), own.rows)

    def encode(self, state, ctx):
        z_s = ctx.memory.get(f"z_s {ctx.client}")
        return {} if z_s is None else self.pack({"z_s": z_s}, ctx.schema)

    def decode(self, sections, ctx):
        if sections:
            shape = ctx.task.sizes[ctx.client], *ctx.schema.shapes["z_s"]
            ctx.memory["z_s"] = self.coder.decode(sections["z_s"], shape).to(ctx.task.device)
        return {name: ctx.memory.get(f"edge/{name}", t) for name, t in ctx.initial.items()}

"""The messages of FedGKT: feature maps up, logits down, and where the server keeps what came."""

import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import Diverged, WireError
from ..models import state_of
from ..parts import Tensors
from ..wire import UP, Coder, Dense, Letter, Schema, Whole


class OnDisk:
    """A tensor [n, ...] in a temporary file, which is mapped only while rows of it are read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.file = tensor.shape, tempfile.TemporaryFile()
        self.file.write(tensor.numpy().data)
        self.file.flush()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        shape = tuple(self.shape)
        return torch.from_numpy(
            np.memmap(self.file, np.float32, "r", shape=shape)[rows.cpu().numpy()]
        )

    def clone(self, **ignored: Any) -> torch.Tensor:
        """All of it in memory, for a checkpoint."""
        return self[torch.arange(len(self))]


def stored(H: Any, task: Any, limit: float) -> Any:
    """H of one client as the server keeps it: on the task's device, or on disk if those of all
    clients would take more than ``limit`` bytes."""
    if isinstance(H, OnDisk):
        return H
    large = 4 * sum(task.sizes) * H.shape[1:].numel() > limit
    return OnDisk(H.cpu()) if large else H.to(task.device)


class Letters:
    """The three letters of FedGKT, written on one side and read on the other.

    ``up``: the index and label [n_k] of each of client k's images, its features H and, only if the
    server's distillation needs them, its logits z_k. ``down``: the server's logits of these images;
    nothing before there are any, and to ask for the edge network. ``edge``: this network, for
    evaluation; nothing as long as it is the one that the seed gives."""

    def __init__(self, method: Any, task: Any, net: nn.Module) -> None:
        self.task, self.coder, self.logits = task, Dense(method.bits), bool(method.alpha)
        with torch.no_grad():
            H = net.extractor.eval()(torch.zeros(1, *task.shape, device=task.device))
            z_k = net.classifier.eval()(H)
        net.train()
        self.maps, self.classes = tuple(H.shape[1:]), z_k.shape[1]  # of one image
        shapes = {name: tuple(t.shape) for name, t in state_of(net).items()}
        self.edge = Letter(Schema(shapes, frozenset(), "fed_gkt edge"), device=task.device)

    def up(self, k: int) -> Letter:
        """What client k knows of its images."""
        n = self.task.sizes[k]
        shapes: dict[str, tuple[int, ...]] = {"index": (n,), "labels": (n,)}
        shapes["features"] = (n, *self.maps)
        if self.logits:
            shapes["logits"] = (n, self.classes)
        coders: dict[str, Coder] = {"index": Whole(4), "labels": Whole(2)}
        coders |= {"features": self.coder, "logits": self.coder}
        return Letter(Schema(shapes, frozenset(), f"fed_gkt {self.coder}"), coders)

    def down(self, k: int) -> Letter:
        """What the server knows of client k's images."""
        schema = Schema(
            {"z_s": (self.task.sizes[k], self.classes)}, frozenset(), f"fed_gkt {self.coder}"
        )
        return Letter(schema, {"z_s": self.coder}, device=self.task.device)

    def knowledge(self, net: nn.Module, k: int, batch_size: int) -> Tensors:
        """What ``up`` holds, computed in evaluation mode; ``Diverged`` if it is not finite."""
        task, images, n = self.task, self.task.owned[k].to(self.task.device), self.task.sizes[k]
        letter = self.up(k)
        tensors = {name: torch.empty(s) for name, s in list(letter.schema.shapes.items())[2:]}
        net.eval()
        with torch.no_grad():
            for rows in torch.arange(n, device=task.device).split(batch_size):
                H = net.extractor(task.inputs(task.train[0][images[rows]], k))
                for t, part in zip(tensors.values(), (H, net.classifier(H)), strict=False):
                    t[rows[0] : rows[-1] + 1] = part.cpu()
        if not all(torch.isfinite(t).all() for t in tensors.values()):
            raise Diverged(f"The training of client {k} diverged.")
        return {"index": torch.arange(n), "labels": task.train[1][images]} | tensors

    def read_knowledge(self, t: int, k: int, data: bytes) -> Tensors:
        """bytes -> features, labels and logits in the client's own order; ``WireError`` for
        anything that is not client ``k``'s knowledge of all its images."""
        n, letter, device = self.task.sizes[k], self.up(k), self.task.device
        tensors = letter.read(UP, t, k, data, samples=n)
        if not tensors:
            raise WireError(
                f"Client {k} did not send {', '.join(letter.schema.shapes)}; one whose training "
                "diverged sends nothing."
            )
        index, labels, order = tensors.pop("index"), tensors["labels"], torch.arange(n)
        if not torch.equal(index.sort().values, order):
            raise WireError(
                f"Client {k} must send each of its {n} images once; some are missing, foreign or "
                "come twice."
            )
        if labels.max() >= self.classes:
            raise WireError(
                f"Client {k} sent the label {labels.max()}; there are {self.classes} classes."
            )
        if not torch.equal(index, order):  # a copy only if it must be
            tensors = {name: x[index.argsort()] for name, x in tensors.items()}
        return {name: x if name == "features" else x.to(device) for name, x in tensors.items()}

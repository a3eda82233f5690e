"""The messages of FedGKT: feature maps up, logits down, and where the server keeps what came."""

import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import Diverged, WireError
from ..parts import Tensors
from ..wire import DOWN, UP, Dense, Message, Schema, pack, unpack


class OnDisk:
    """A tensor [n, ...] in a temporary file, which is mapped only while rows of it are read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.file = tensor.shape, tempfile.TemporaryFile()
        self.file.write(tensor.numpy().data)
        self.file.flush()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(
            np.memmap(self.file, np.float32, "r", shape=tuple(self.shape))[rows.cpu().numpy()]
        )

    def clone(self, **ignored: Any) -> torch.Tensor:
        """All of it in memory, for a checkpoint."""
        return self[torch.arange(len(self))]


def stored(H: Any, task: Any, limit: float) -> Any:
    """H of one client as the server keeps it: on the task's device, or on disk if those of all clients
    would take more than ``limit`` bytes."""
    if isinstance(H, OnDisk):
        return H
    large = 4 * sum(task.sizes) * H.shape[1:].numel() > limit
    return OnDisk(H.cpu()) if large else H.to(task.device)


class Letters:
    """The four messages of FedGKT, written on one side and read on the other."""

    def __init__(self, method: Any, task: Any, net: nn.Module) -> None:
        self.task, self.coder, self.logits = task, Dense(method.bits), bool(method.alpha)
        with torch.no_grad():
            H = net.extractor.eval()(torch.zeros(1, *task.shape, device=task.device))
            z_k = net.classifier.eval()(H)
        net.train()
        features, logits = tuple(H.shape[1:]), tuple(z_k.shape[1:])
        shapes = {"index": (), "labels": (), "features": features, "logits": logits}
        weights = {n: tuple(t.shape) for n, t in net.state_dict().items() if t.is_floating_point()}
        about, rows = f"fed_gkt {self.coder} {self.logits}", max(task.sizes)
        self.up = Schema(shapes, frozenset(), about, rows)
        self.down = Schema({"z_s": logits}, frozenset(), about, rows)
        self.edge = Schema(weights, frozenset(), f"{about} edge")

    # ---- up: what a client knows of each of its images -----------------------------------------

    def write(self, net: nn.Module, k: int, batch_size: int) -> dict[str, Any]:
        """index, labels, H and z_k of client ``k`` as sections; ``Diverged`` if they are not finite.
        z_k travels only if the server's distillation needs it."""
        task, images, n = self.task, self.task.owned[k].to(self.task.device), self.task.sizes[k]
        names = ("features", "logits")[: 1 + self.logits]
        tensors = {name: torch.empty(n, *self.up.shapes[name]) for name in names}
        net.eval()
        with torch.no_grad():
            for rows in torch.arange(n, device=task.device).split(batch_size):
                H = net.extractor(task.inputs(task.train[0][images[rows]], k))
                for t, part in zip(tensors.values(), (H, net.classifier(H)), strict=False):
                    t[rows[0] : rows[-1] + 1] = part.cpu()
        if not all(torch.isfinite(t).all() for t in tensors.values()):
            raise Diverged(f"The training of client {k} diverged.")
        labels = task.train[1][images].cpu().numpy().astype("<u2")
        whole = {"index": np.arange(n, dtype="<u4").data, "labels": labels.data}
        sections: dict[str, Any] = {
            name: memoryview(data).cast("B") for name, data in whole.items()
        }
        coded = self.coder.encode_rows([t[None] for t in tensors.values()], [None])[0]
        return sections | dict(zip(tensors, coded, strict=True))

    def read(self, t: int, k: int, data: bytes) -> Tensors:
        """bytes -> features, labels and logits in the client's own order; ``WireError`` for anything
        that is not client ``k``'s knowledge of all its images."""
        message = unpack(data, self.up, kind=UP, round=t, client=k)
        sections, n, shapes = message.sections, message.samples, self.up.shapes
        if list(sections) != list(shapes)[: 3 + self.logits]:
            raise WireError(
                f"Client {k} did not send index, labels, features{' and logits' * self.logits}; one "
                "whose training diverged sends nothing."
            )
        if n != self.task.sizes[k]:
            raise WireError(f"Client {k} has {self.task.sizes[k]} images, and sent {n}.")
        for name, width in (("index", 4), ("labels", 2)):
            if len(sections[name]) != n * width:
                raise WireError(
                    f"Client {k} says that it has {n} images, but sent "
                    f"{len(sections[name]) / width:g} entries of {name}."
                )
        index = np.frombuffer(sections["index"], "<u4")
        labels = np.frombuffer(sections["labels"], "<u2")
        if not np.array_equal(np.sort(index), np.arange(n)):
            raise WireError(
                f"Client {k} must send each of its {n} images once; some are missing, foreign or come "
                "twice."
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
            update = {name: x[order] for name, x in update.items()}
        device = self.task.device
        return {name: x if name == "features" else x.to(device) for name, x in update.items()}

    # ---- down: the server's logits of the client's images --------------------------------------

    def knowledge(self, t: int, k: int, z_s: torch.Tensor | None) -> bytes:
        """The server's logits, or a message without any: in round 1, and to ask for the edge network."""
        sections = {} if z_s is None else {"z_s": self.coder.encode(z_s)}
        return pack(Message(DOWN, t, k, 0, sections), self.down)

    def read_knowledge(self, t: int, k: int, data: bytes) -> torch.Tensor | None:
        """bytes -> z_s [n_k, classes], if it came."""
        sections = unpack(data, self.down, kind=DOWN, round=t, client=k).sections
        if not sections:
            return None
        shape = self.task.sizes[k], *self.down.shapes["z_s"]
        return self.coder.decode(sections["z_s"], shape).to(self.task.device)

    # ---- evaluation: the edge network ----------------------------------------------------------

    def show_edge(self, t: int, k: int, edge: Tensors) -> bytes:
        """The client's edge network; nothing if it has not trained yet."""
        coded = Dense().encode_rows([w[None] for w in edge.values()], [None])[0] if edge else []
        sections = dict(zip(edge, coded, strict=True))
        return pack(Message(UP, t, k, self.task.sizes[k], sections), self.edge)

    def read_edge(self, t: int, k: int, data: bytes) -> Tensors:
        """bytes -> the tensors of the edge network; none if it is as it was at the start."""
        sections = unpack(data, self.edge, kind=UP, round=t, client=k).sections
        if sections and sections.keys() != self.edge.shapes.keys():
            raise WireError(f"Client {k} did not show its whole edge network.")
        shapes = [self.edge.shapes[name] for name in sections]
        tensors = Dense().decode_all(list(sections.values()), shapes) if sections else []
        return {n: w.to(self.task.device) for n, w in zip(sections, tensors, strict=True)}

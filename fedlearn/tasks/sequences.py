"""Sequences of tokens, such as the characters of a text: to each position belongs a label, mostly
the token that comes next."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import models
from ..data import arrays, forms
from ..data.arrays import PADDING
from ..data.sources import Source, data_path
from ..errors import DataError, pick
from .base import Task
from .kinds import arguments_of
from .metrics import ByClient

TEXT = "text", "sentence", "content"  # columns that hold it unless another is named


class Sequences(Task):
    """Token ids int64 [n, length], which are left as they are; y int64 [n, length] or [n]."""

    default_data = "shakespeare"
    networks = models.SEQUENCES
    batch = 128
    about = {"task": "sequences"}

    @staticmethod
    def find_source(dataset: Any, users: Any = None) -> Source:
        if isinstance(dataset, str) and dataset == Sequences.default_data:
            return texts_of(data_path("romeo_and_juliet.csv"), "text", "speaker", dataset)
        if table := forms.table_of(dataset):
            return texts_of(*table, users)
        named = isinstance(dataset, Mapping)
        texts = list(dataset.values()) if named else dataset
        if isinstance(texts, list) and all(isinstance(t, str) for t in texts):
            return arrays.from_texts(texts, dataset if named else users)
        if isinstance(dataset, str | Path) and str(dataset).endswith(".txt"):
            path = Path(dataset).expanduser()
            if not path.is_file():
                raise DataError(f"There is no file {path.absolute()}.")
            return arrays.from_texts(path.read_text(encoding="utf-8"), name=path.stem)
        if isinstance(dataset, str) and not (Path(dataset).suffix or "/" in dataset[:256]):
            if not Path(dataset[:256]).exists():
                pick(dataset, {Sequences.default_data: None}, "text (your own come as a list)")
        row = list | np.ndarray | Tensor
        rows = isinstance(dataset, list) and isinstance(dataset[0], row)
        if hasattr(dataset, "shape") or (rows and not forms.by_client(dataset)):
            return arrays.from_tokens(dataset, users=None if isinstance(users, str) else users)
        source = forms.read(dataset, users, arrays.from_tokens)
        if source.train_x.dim() != 2:
            raise ValueError(f"{source.name} has no sequences of token ids.")
        return source

    @classmethod
    def default_network(cls, source: Source) -> str:
        if source.train_y.dim() == 1 or int(source.train_x.max()) >= source.classes:
            raise ValueError(
                "Labels that are not the next token need a network of yours: network=(a function "
                "(shape, classes) -> module)."
            )
        return super().default_network(source)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, the mean of a sequence's labels, then of the batch: scores [..., batch,
        length, classes], y [..., batch, length] -> [...]."""
        each = F.cross_entropy(
            outputs.flatten(0, -2), y.flatten(), ignore_index=PADDING, reduction="none"
        ).view(y.shape)
        if self.source.train_y.dim() == 2:
            each = each.sum(-1) / (y != PADDING).sum(-1).clamp(min=1)
        return each.mean(-1)

    def inputs(self, x: Tensor, client: int | None = None) -> Tensor:
        return x

    def classes(self, y: Tensor) -> Tensor:
        return y[y != PADDING]

    def check_outputs(self, name: str, outputs: Any, y: Tensor) -> None:
        super().check_outputs(name, outputs.movedim(-1, 1) if y.dim() == 2 else outputs, y)

    def score(self, net: nn.Module, client: int | None, predictions: ByClient) -> dict[str, float]:
        """Accuracy, loss and perplexity of all labels of the test set."""
        right, total, count, predicted = 0, 0.0, 0, []
        for scores, y in self.tested(net):
            best, real = scores.argmax(-1), y != PADDING
            right += int((best == y)[real].sum())
            total += float(F.cross_entropy(scores[real], y[real], reduction="sum"))
            count += int(real.sum())
            predicted.append(best.cpu())
        if self.metrics:
            predictions[client] = torch.cat(predicted)
        loss = total / count
        perplexity = math.exp(min(loss, 80.0))  # a float32 holds no more
        return {"accuracy": right / count, "loss": loss, "perplexity": perplexity}


def texts_of(table: Any, text: str | None, user: Any, name: str = "") -> Source:
    """The column of texts of a table, by the column of users if there is one."""
    frame, text, user, title = forms.columns_of(table, text, user, TEXT)
    if not all(isinstance(t, str) for t in frame[text]):
        raise ValueError(f"The column {text!r} of {title} has no texts: name the one that has.")
    users = frame[user] if isinstance(user, str) else user
    return arrays.from_texts(frame[text], users, name=name or title)


@arguments_of(Task.make)
def sequences(**arguments: Any) -> Sequences:
    """Sequences of tokens with a label for each position, by default the next token.

    Parameters
    ----------
    dataset
        "shakespeare", Romeo and Juliet by its 13 main speakers, or your own: texts (a list, a
        dictionary by their authors, a ``.txt`` file, a table with a column "text"), whose
        characters are tokens; token ids [n, length] or [n, length] and labels of their positions;
        LEAF's Shakespeare; or what ``fl.data.from_texts`` and ``from_tokens`` make of them.
    clients
        As of ``classification``; "users" are speakers.
    network
        A name in ``fl.models.SEQUENCES``, or a function ``(shape, classes) -> module`` that gives
        scores [batch, length, classes].
    partition, seed, train, test, device, metrics, validation
        As of ``classification``; shares go by users.

    Examples
    --------
    >>> task = sequences("shakespeare", clients="users")
    >>> task.clients, task.shape, task.source.classes
    (13, (80,), 61)
    """
    return Sequences.make(**arguments)

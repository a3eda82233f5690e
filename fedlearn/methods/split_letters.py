"""The messages of split learning."""

from typing import Any

import torch
from torch import nn

from ..models import state_of
from ..settings import Settings
from ..wire import Letter, Schema

Slice = tuple[int, int, int]  # of a client's turn, one step: epoch, first sample, end


class Letters:
    """The three messages: the extractor's weights, feature maps with labels, and a gradient."""

    def __init__(self, task: Any, f_e: nn.Module, settings: Settings) -> None:
        if settings.precision == "bf16":
            raise ValueError("Split learning trains in float32 or tf32, not in bf16.")
        self.task, self.settings = task, settings
        with torch.no_grad():
            self.maps = tuple(f_e.eval()(torch.zeros(1, *task.shape, device=task.device)).shape[1:])
        self.weights = self._letter({name: tuple(w.shape) for name, w in state_of(f_e).items()})

    def _letter(self, shapes: dict[str, tuple[int, ...]]) -> Letter:
        return Letter(Schema(shapes, coder="split learning"), whole=True, device=self.task.device)

    def steps(self, k: int) -> list[Slice]:
        """The steps of a client's turn."""
        n, E, B = self.task.sizes[k], self.settings.epochs, self.settings.batch_size
        return [(epoch, at, min(at + B, n)) for epoch in range(E) for at in range(0, n, B)]

    def features(self, step: Slice) -> Letter:
        """H and y of the batch of a step."""
        return self._letter({"H": (step[2] - step[1], *self.maps), "y": (step[2] - step[1],)})

    def gradient(self, step: Slice) -> Letter:
        """dCE / dH of that batch."""
        return self._letter({"dH": (step[2] - step[1], *self.maps)})

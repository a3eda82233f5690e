"""The plain network of RepVGG's small relative, and FedRepOpt with one of its two rules alone, so
that the grid of fed_repopt.yaml can state them line by line.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

import fedlearn as fl
from fedlearn.core import Averaging
from fedlearn.methods.fed_repopt import Form
from fedlearn.models import digits_repvgg
from fedlearn.models.reparam import blocks

NETWORK = "digits_repvgg"


def plain(in_shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> nn.Module:
    """One 3 x 3 kernel a block, what the paper calls Inf."""
    return digits_repvgg(in_shape, classes, form="inf")


@dataclass(frozen=True)
class FreshKernels(Form):
    """RepOpt's network with its constants, but with kernels that are drawn as in Inf."""

    def build(self, task: Any) -> nn.Module:
        net = super().build(task)
        for block in blocks(net).values():
            block.conv3.reset_parameters()
        return net


def form(
    lr: float = 0.1, form: str = "repopt", start: bool = True, multiplier: bool = True
) -> Averaging:
    """A form of ``NETWORK``; "repopt" without one of its two rules if wanted: kernels that start as
    the sum of three branches, and multiplied gradients."""
    method = fl.methods.fed_repopt(lr, form, NETWORK)
    if not start:
        method = method.but(model=FreshKernels("repopt", NETWORK))
    return method if multiplier else method.but(optimizer=fl.SGD(lr))

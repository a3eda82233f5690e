"""Layers whose weights are computed or drawn, among them those of Fed-KGF.

Fed-KGF (``methods.fed_kgf``) learns only some kernels of a convolution and computes the
others from them.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .. import rng
from ..errors import check_whole

ALPHA = (1e-5, 0.1)
BETA = (2.0, 10.0)
COPIES = "generated", "trained", "frozen"


class Drawing:
    """A layer that draws random numbers on the CPU in training: the same for every device.

    A stacked layer has a generator for each client. Otherwise the layer uses torch's
    global generator, which ``rng.scope`` seeds.
    """

    generators: list = []

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers from [0, 1), of the shape and on the device of ``like``."""
        if not self.generators:
            return torch.rand(like.shape).to(like.device)
        draws = [torch.rand(like.shape[1:], generator=g) for g in self.generators]
        return torch.stack(draws).to(like.device)


def computed(mixin: type, kind: type[nn.Module]) -> type:
    """A class of layers whose ``weight`` (or ``bias``) is a property of ``mixin``.

    The properties count dimensions from the end. So the stacked form of the layer
    computes the weights of all clients.
    """
    name = f"{mixin.__name__}{kind.__name__}"
    return type(name, (mixin, kind), {"computed_by": (mixin, kind)})


class Generated(Drawing):
    """A convolution with the parameter ``base``, w [m, in, k, k].

    Its ``weight`` [out, in, k, k] is w followed by the generated kernels, of which the
    i-th comes from base kernel i mod m. ``fixed`` replaces the generated kernels: a buffer
    of random kernels, or a parameter for local training, which no state contains.
    """

    every_call = False  # whether each use of the weight draws alpha and beta anew
    calls = 0  # in evaluation mode, since the last ``draw``
    fixed: Tensor | None

    @property
    def weight(self) -> Tensor:
        if self.fixed is not None and (self.training or not self.fixed.requires_grad):
            return torch.cat([self.base, self.fixed], -4)
        alpha = self.alpha
        beta = self.beta
        if self.every_call:
            alpha, beta = self.fresh()
        return torch.cat([self.base, self.generated(alpha, beta)], -4)

    def generated(self, alpha: Tensor | None, beta: Tensor) -> Tensor:
        """Eq. (2) for all copies of w."""
        w = self.base.detach() if self.detach else self.base
        count = beta.shape[-4]
        blocks = -(-count // w.shape[-4])
        copies = torch.cat([w] * blocks, -4).narrow(-4, 0, count)
        kernels = copies.abs() ** beta
        if self.alpha is not None:
            kernels = kernels + alpha
        return copies.sign() * kernels if self.sign else kernels

    def draw(self, seed: int, name: str, round: int) -> None:
        """New alpha and beta: every party draws the same."""
        self.place = (seed, "kernel generation", name, round)
        self.calls = 0
        generator = rng.generator(*self.place)
        shape = self.beta.shape[-4:]  # one draw for all clients of a stack
        alpha, beta = [
            within(torch.rand(shape, generator=generator), limits)
            for limits in (ALPHA, BETA)
        ]
        self.beta.copy_(beta)
        if self.alpha is not None:
            self.alpha.copy_(alpha)

    def fresh(self) -> list[Tensor]:
        """(alpha, beta) for this call alone; each client draws its own in training."""
        if self.training:
            alpha = self.uniform(self.beta)
            beta = self.uniform(self.beta)
        else:  # the server does not have the draws of clients
            self.calls += 1
            generator = rng.generator(*self.place, self.calls)
            draws = torch.rand((2, *self.beta.shape), generator=generator)
            alpha, beta = draws.to(self.beta.device)
        return [within(alpha, ALPHA), within(beta, BETA)]

    @torch.no_grad()
    def discard(self) -> None:
        """Replace the trained copies by generated kernels."""
        self.fixed.copy_(self.generated(self.alpha, self.beta))

    def _save_to_state_dict(
        self, destination: dict, prefix: str, *options: Any
    ) -> None:
        super()._save_to_state_dict(destination, prefix, *options)  # type: ignore[misc]
        destination.pop(f"{prefix}fixed", None)


_CONVOLUTION = computed(Generated, nn.Conv2d)


def within(uniform: Tensor, limits: tuple[float, float]) -> Tensor:
    """Numbers from 0 to 1 -> numbers between two limits."""
    low, high = limits
    return uniform * (high - low) + low


def represent(
    net: nn.Module,
    base_kernels: int = 16,
    seed: int = 0,
    sign: bool = True,
    alpha: bool = True,
    detach: bool = False,
    every_call: bool = False,
    copies: str = "generated",
) -> nn.Module:
    """A copy of a network in which convolutions learn at most ``base_kernels`` kernels.

    The other options are those of ``methods.fed_kgf``.
    """
    check_whole("base_kernels", base_kernels)
    net = copy.deepcopy(net)
    layers = {}
    for name, layer in net.named_modules():
        large = type(layer) is nn.Conv2d and layer.out_channels > base_kernels
        if large and layer.weight.requires_grad:
            layers[name] = layer
    if not layers:
        raise ValueError(
            f"No convolution has more than {base_kernels} kernels: choose fewer "
            "base_kernels."
        )
    if len({id(layer.weight) for layer in layers.values()}) < len(layers):
        raise ValueError("Convolutions that share a weight have no generated kernels.")
    for name, layer in layers.items():
        weight = layer.weight.detach()
        replaced = weight[base_kernels:]
        layer.__class__ = _CONVOLUTION
        layer.sign = sign
        layer.detach = detach
        layer.every_call = every_call
        base = nn.Parameter(weight[:base_kernels].clone())
        # the order of parameters decides the modules that Fed-KGF uploads
        layer._parameters = {"base": base, "bias": layer._parameters["bias"]}
        fixed = None if copies == "generated" else replaced.clone()
        if copies == "trained":
            layer.register_parameter("fixed", nn.Parameter(fixed))
        else:
            layer.register_buffer("fixed", fixed, persistent=False)
        # no state contains alpha and beta: they are never sent
        first = torch.empty_like(replaced) if alpha else None
        layer.register_buffer("alpha", first, persistent=False)
        layer.register_buffer("beta", torch.empty_like(replaced), persistent=False)
        layer.draw(seed, name, 0)
    return net

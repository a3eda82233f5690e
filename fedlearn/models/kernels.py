"""Layers whose weights are computed or drawn, and not simply there; and of these
convolutions of which only some kernels are learned and the others computed from them,
as in Fed-KGF (``methods.fed_kgf``)."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import rng
from ..errors import check_whole

ALPHA, BETA = (1e-5, 0.1), (2.0, 10.0)
COPIES = "generated", "trained", "frozen"


class Drawing:
    """A layer that draws at random while it trains, on the CPU: the same numbers for
    every device. Stacked, it has a generator for each client; otherwise it uses torch's
    global one, which is seeded by name (``rng.scope``)."""

    generators: list = []

    def uniform(self, like: Tensor, *front: int) -> Tensor:
        """Numbers from [0, 1) of shape [*front, *like.shape], where ``like`` is."""
        if not self.generators:
            return torch.rand((*front, *like.shape)).to(like.device)
        shape = (*front, *like.shape[1:])
        draws = [torch.rand(shape, generator=g) for g in self.generators]
        return torch.stack(draws, len(front)).to(like.device)


def computed(mixin: type, *kinds: type[nn.Module]) -> dict[type, type]:
    """For each kind of layer, a class whose ``weight`` (or ``bias``) is computed as the
    properties of ``mixin`` say. They count dimensions from the end, so that the stacked
    form (``stacked``) computes the weights of all clients."""
    name = mixin.__name__
    return {
        kind: type(
            f"{name}{kind.__name__}", (mixin, kind), {"computed_by": (mixin, kind)}
        )
        for kind in kinds
    }


class Generated(Drawing):
    """A convolution whose parameter ``base`` is w [m, in, k, k]; its ``weight`` [out,
    in, k, k] is w, then the generated kernels, of which the i-th comes from base kernel
    i mod m; or ``rest`` in their place: a buffer of random kernels, or a parameter for
    local training alone, which is in no state. Stacked, everything has a client axis in
    front."""

    every_call = False  # whether each use of the weight draws alpha and beta anew
    calls = 0  # in evaluation mode, since ``place`` was named
    rest: Tensor | None

    @property
    def weight(self) -> Tensor:
        if self.rest is not None and (self.training or not self.rest.requires_grad):
            return torch.cat([self.base, self.rest], -4)
        alpha, beta = self.fresh() if self.every_call else (self.alpha, self.beta)
        return torch.cat([self.base, self.generated(alpha, beta)], -4)

    def generated(self, alpha: Tensor | None, beta: Tensor) -> Tensor:
        w, count = self.base, beta.shape[-4]
        blocks = -(-count // w.shape[-4])
        copies = torch.cat([w.detach() if self.detach else w] * blocks, -4).narrow(
            -4, 0, count
        )
        generated = copies.abs() ** beta
        if self.alpha is not None:
            generated = generated + alpha
        if self.sign:
            generated = copies.sign() * generated
        return generated

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, *how: Any
    ) -> None:
        super()._save_to_state_dict(destination, prefix, *how)  # type: ignore[misc]
        destination.pop(f"{prefix}rest", None)

    def _load_from_state_dict(self, state: Any, prefix: str, *how: Any) -> None:
        super()._load_from_state_dict(state, prefix, *how)  # type: ignore[misc]
        missing = how[2]
        missing[:] = [name for name in missing if name != f"{prefix}rest"]

    def fresh(self) -> list[Tensor]:
        """(alpha, beta) for this call alone: while it trains, a client's own."""
        if self.training:
            return within(self.uniform(self.beta, 2))
        self.calls += 1  # the server has no client's draws, and can do no better
        generator = rng.generator(*self.place, self.calls)
        uniform = torch.rand((2, *self.beta.shape), generator=generator)
        return within(uniform.to(self.beta.device))


_CONVOLUTION = computed(Generated, nn.Conv2d)[nn.Conv2d]


def within(uniform: Any) -> list[Tensor]:
    """Numbers from 0 to 1, twice -> (alpha, beta) in ``ALPHA`` and ``BETA``."""
    return [
        u * (high - low) + low
        for u, (low, high) in zip(uniform, (ALPHA, BETA), strict=True)
    ]


def draw(shape: Sequence[int], seed: int, layer: str, round: int = 0) -> list[Tensor]:
    """(alpha, beta) of a layer: every party draws the same."""
    generator = rng.generator(seed, "kernel generation", layer, round)
    return within([torch.rand(shape, generator=generator) for _ in range(2)])


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
    """A copy of any network in which each convolution with more than ``base_kernels``
    output channels learns only so many. ``sign``, ``alpha``: parts of Eq. (2) that may
    be left out; ``detach`` cuts the gradient of the copies off; ``every_call``: see
    ``Generated``; ``copies``: what is in place of the others, one of ``COPIES``."""
    check_whole("base_kernels", base_kernels)
    net = copy.deepcopy(net)
    convolutions = [(n, m) for n, m in net.named_modules() if type(m) is nn.Conv2d]
    layers = [
        (n, m)
        for n, m in convolutions
        if m.out_channels > base_kernels and m.weight.requires_grad
    ]
    if not layers:
        raise ValueError(
            f"No convolution has more than {base_kernels} kernels: choose fewer "
            "base_kernels."
        )
    if len({id(layer.weight) for _, layer in layers}) < len(layers):
        raise ValueError("Convolutions that share a weight have no generated kernels.")
    for name, layer in layers:
        weight = layer.weight.detach()
        layer.__class__, layer.sign, layer.detach = _CONVOLUTION, sign, detach
        layer.every_call, layer.place = every_call, (seed, "kernel generation", name, 0)
        trained = layer._parameters["weight"].requires_grad
        base = nn.Parameter(weight[:base_kernels].clone(), trained)
        # base stands first, as the weight did: order is what modules go by
        layer._parameters = {"base": base, "bias": layer._parameters["bias"]}
        rest = weight[base_kernels:].clone() if copies != "generated" else None
        if copies == "trained":
            layer.register_parameter("rest", nn.Parameter(rest, trained))
        else:
            layer.register_buffer("rest", rest, persistent=False)
        drawn = draw((layer.out_channels - base_kernels, *weight.shape[1:]), seed, name)
        for key, t in zip(("alpha", "beta"), drawn, strict=True):
            kept = t.to(weight) if key == "beta" or alpha else None
            layer.register_buffer(
                key, kept, persistent=False
            )  # no part of the state: never sent
    return net


def write_out(net: nn.Module) -> nn.Module:
    """A copy with plain convolutions: the same function in evaluation mode."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        if type(layer) is _CONVOLUTION:
            weight, bias = (
                layer.eval().weight.detach().clone(),
                layer._parameters["bias"],
            )
            layer.__class__ = nn.Conv2d
            layer._parameters = {"weight": nn.Parameter(weight), "bias": bias}
            layer._buffers.clear()
            layer._non_persistent_buffers_set.clear()
    return net

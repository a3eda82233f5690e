"""Layers with a client axis: the networks of many clients as one network.

Every parameter and buffer of a stacked network is [clients, ...], every activation [clients,
batch, ...]. In memory the batch comes before the clients: then [clients, batch, channels, h, w]
is, without a copy, the [batch, clients*channels, h, w] on which one grouped convolution, one
pooling or one normalisation serves all clients at once. A network may consist of the layers of
``FORMS``, of layers without parameters that work entry by entry, and of modules that call such
layers. Modules of other kinds work if their ``forward`` expects the client axis, that is, counts
dimensions from the end."""

import copy
from functools import cache, lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..models import Network
from ..models.computed import Drawing


def merge(x: torch.Tensor) -> torch.Tensor:
    """[clients, batch, channels, ...] -> [batch, clients*channels, ...]."""
    return x.transpose(0, 1).flatten(1, 2)


def split(x: torch.Tensor, clients: int) -> torch.Tensor:
    """The inverse of ``merge``."""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


def _flat(t):
    return None if t is None else t.flatten(0, 1)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """[batch, clients, channels, height, width] in the order batch, height, width, clients,
    channels: on a CPU, convolution, pooling and normalisation of many small groups of channels
    then run over all clients' channels at once."""
    return x.flatten(1, 2).contiguous(memory_format=torch.channels_last).unflatten(1, x.shape[1:3])


class Conv2d(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias, groups = _flat(self.weight), _flat(self.bias), len(x) * self.groups
        return split(
            F.conv2d(merge(x), weight, bias, self.stride, self.padding, self.dilation, groups),
            len(x),
        )


class _Ragged(torch.autograd.Function):
    """Batch normalisation over some of the rows: x [batch, channels, ...], ``real`` [batch,
    channels, 1...] is one where a row counts and zero elsewhere, n [channels] the entries that
    count. No gradient may come from the other rows; none goes to them."""

    @staticmethod
    def forward(ctx, x, weight, bias, real, n, eps):
        axes, wide = [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))
        mean = (x * real).sum(axes) / n
        var = ((x - mean.view(wide)) * real).square_().sum(axes) / n
        scale = mean.new_ones(mean.shape) if weight is None else weight
        ctx.save_for_backward(x, scale, real, n, mean, var)  # kept on ctx, outputs are never freed
        ctx.mark_non_differentiable(mean, var)
        ctx.eps, ctx.wide = eps, wide
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var

    @staticmethod
    def backward(ctx, g, *_):
        x, weight, real, n, mean, var = ctx.saved_tensors
        dx, dw, db = torch.ops.aten.native_batch_norm_backward(
            g, x, weight, mean, var, None, None, False, ctx.eps, [True] * 3
        )  # as if the statistics were constants
        invstd = (var + ctx.eps).rsqrt()
        slope, scale = dw * invstd, weight * invstd / n
        at_zero, slope = (
            (scale * (db - mean * slope)).view(ctx.wide),
            (scale * slope).view(ctx.wide),
        )
        dx -= torch.addcmul(at_zero, x, slope) * real
        own = [
            t if need else None for t, need in zip((dw, db), ctx.needs_input_grad[1:3], strict=True)
        ]
        return dx, *own, None, None, None


@lru_cache(64)
def _counting(
    rows: tuple[int, ...], shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``real`` and ``n`` of ``_Ragged`` where of each client's ``shape`` [batch, channels, ...] so
    many rows count: the same in every round."""
    batch, channels, *image = shape
    each = torch.tensor(rows, device=device).repeat_interleave(channels)
    real = torch.arange(batch, device=device)[:, None] < each
    return real.to(dtype).view(*real.shape, *[1] * len(image)), (each * prod(image)).to(dtype)


class _Norm:
    """Batch normalisation: the statistics of each client's own batch."""

    rows: tuple[int, ...] = ()  # see ``pad``

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, var = _flat(self.running_mean), _flat(self.running_var)
        use_batch = self.training or mean is None
        if self.rows and use_batch:
            return self._some(x, mean, var)
        y = F.batch_norm(
            merge(x),
            mean,
            var,
            _flat(self.weight),
            _flat(self.bias),
            use_batch,
            self.momentum,
            self.eps,
        )
        return split(y, len(x))

    def _some(self, x, mean, var):
        if min(self.rows) * x[0, 0, 0].numel() < 2:
            raise ValueError("Expected more than 1 value per channel when training.")
        real, n = _counting(self.rows, x.shape[1:], x.dtype, x.device)
        y, new_mean, new_var = _Ragged.apply(
            merge(x), _flat(self.weight), _flat(self.bias), real, n, self.eps
        )
        if mean is not None:
            with torch.no_grad():
                mean.lerp_(new_mean, self.momentum)
                var.lerp_(new_var * (n / (n - 1)), self.momentum)
        return split(y, len(x))


class BatchNorm1d(_Norm, nn.BatchNorm1d):
    pass


class BatchNorm2d(_Norm, nn.BatchNorm2d):
    pass


class GroupNorm(nn.GroupNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = len(x) * self.num_groups
        return split(
            F.group_norm(merge(x), groups, _flat(self.weight), _flat(self.bias), self.eps), len(x)
        )


class Linear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.transpose(1, 2), self.bias  # looked at once: may be drawn
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None], x, weight)


class _Pool:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return split(super().forward(merge(x)), len(x))


class MaxPool2d(_Pool, nn.MaxPool2d):
    pass


class AvgPool2d(_Pool, nn.AvgPool2d):
    pass


class AdaptiveAvgPool2d(_Pool, nn.AdaptiveAvgPool2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.output_size in (
            1,
            (1, 1),
        ):  # the same mean, but its gradient lies in memory in the order of ``x``
            return split(F.avg_pool2d(merge(x), x.shape[-2:]), len(x))
        return super().forward(x)


class Upsample(_Pool, nn.Upsample):
    pass


class Flatten(nn.Flatten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = (d + 1 if d >= 0 else d for d in (self.start_dim, self.end_dim))
        return x.flatten(first, last)


class Dropout(Drawing, nn.Dropout):
    """Draws each client's mask from that client's own generator, the numbers that sequential
    training draws."""

    layout = torch.contiguous_format  # see ``stack``
    rows: tuple[int, ...] = ()  # see ``pad``

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return x
        if x.is_cuda:  # one launch for all, and nothing that a CUDA graph could not record
            return super().forward(x)
        layout = (
            self.layout if x.dim() == 5 else torch.contiguous_format
        )  # as in sequential training
        masks = torch.zeros(x.shape)
        rows = self.rows or [x.shape[1]] * len(x)
        for mask, n, g in zip(masks, rows, self.generators, strict=True):
            draw = torch.empty((n, *x.shape[2:]), memory_format=layout)
            mask[:n] = draw.bernoulli_(1 - self.p, generator=g)
        return x * masks.to(x).div_(1 - self.p)


FORMS = {
    getattr(nn, kind.__name__): kind
    for kind in (
        Conv2d,
        BatchNorm1d,
        BatchNorm2d,
        GroupNorm,
        Linear,
        MaxPool2d,
        AvgPool2d,
        AdaptiveAvgPool2d,
        Upsample,
        Flatten,
        Dropout,
    )
}


@cache
def form(kind: type[nn.Module]) -> type[nn.Module]:
    """The stacked form of a kind of layer; of a kind that has none, itself."""
    if "computed_by" in vars(kind):  # see ``models.computed``
        mixin, plain = vars(kind)["computed_by"]
        return type(f"Stacked{kind.__name__}", (mixin, FORMS[plain]), {})
    return FORMS.get(kind, kind)


def stack(net: nn.Module, clients: int) -> nn.Module:
    """A copy of ``net`` for that many clients: each layer in its stacked form, each tensor
    repeated along a new axis 0."""
    memo = {}
    for t in net.parameters():
        memo[id(t)] = nn.Parameter(t.detach().expand(clients, *t.shape).clone(), t.requires_grad)
    for t in net.buffers():
        if t.is_floating_point():
            memo[id(t)] = t.detach().expand(clients, *t.shape).clone()
    stacked = copy.deepcopy(net, memo)
    for module in stacked.modules():
        module.__class__ = form(type(module))
        if isinstance(module, Dropout):
            module.layout = layout(net)
    return stacked


def layout(net: nn.Module) -> torch.memory_format:
    """How a network's kernels and images lie in memory. The book's own networks have channels
    last, which makes convolution and pooling up to a third faster on a CPU; another network's
    ``forward`` may count on torch's default."""
    return torch.channels_last if isinstance(net, Network) else torch.contiguous_format


def seed_dropout(net: nn.Module, ctx: Any) -> None:
    """Give the layers that draw at random, if there are any, the clients' generators: all share
    one for each client."""
    layers = [module for module in net.modules() if isinstance(module, Drawing)]
    generators = ctx.generator("dropout") if layers else None
    for layer in layers:
        layer.generators = generators


def pad(net: nn.Module, rows: tuple[int, ...]) -> None:
    """Of each client's batch only so many rows count, all of them if ``rows`` is empty: for layers
    that draw for a row, or whose statistics are those of all."""
    for module in net.modules():
        if isinstance(module, (_Norm, Dropout)):
            module.rows = rows


def narrow(net: nn.Module, first: int, last: int, memo: dict | None = None) -> nn.Module:
    """The same stacked network for clients ``first`` to ``last - 1``: its tensors are views."""
    memo = {} if memo is None else memo

    def part(t, kind):
        if t is None or not t.is_floating_point():
            return t
        if id(t) not in memo:
            memo[id(t)] = kind(t.detach()[first:last], t.requires_grad)
        return memo[id(t)]

    new = net.__class__.__new__(net.__class__)
    new.__dict__ |= net.__dict__ | {  # not one by one: Module looks long at what it is given
        "_parameters": {n: part(t, nn.Parameter) for n, t in net._parameters.items()},
        "_buffers": {n: part(t, lambda view, grad: view) for n, t in net._buffers.items()},
        "_modules": {
            n: child and narrow(child, first, last, memo) for n, child in net._modules.items()
        },
    }
    if isinstance(net, Drawing):
        new.generators = net.generators[first:last]
    return new

"""Chapter 4, RPN: the explorer of a pooled kernel, and the checks of the exercises."""

from typing import Any

import torch

from ..wire import Pooled
from .check import compared, drawn, number

OWN = [1.3, -0.4, -1.1, 0.6, -1.2, 0.9, -0.7, 1.4, -0.8]  # sums to zero: no common push
SHADES = 11  # of a colour map, between which Vega mixes


def pooled_kernel() -> dict[str, Any]:
    """RPN's pooling of one 3 x 3 residual, r = c * common + (1 - c) * own, under a slider for c."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    from ..plot import SIGNED
    from .vega import kernel_panels, slider

    scale = (9 / sum(x * x for x in OWN)) ** 0.5  # both parts have the same energy
    return kernel_panels(
        ["residual", "pooled: one number", "lost"],
        "[c + (1 - c) * datum.own, c, (1 - c) * datum.own][datum.panel]",
        ["'kept: ' + format(c * c / (c * c + (1 - c) * (1 - c)), '.0%') + ' of the energy'"],
        [slider("c", "share of the common push", 0.3, 0, 1, 0.02)],
        {
            "interpolate": "rgb",
            "domain": np.linspace(-2, 2, SHADES).round(1).tolist(),
            "range": [to_hex(c) for c in colormaps[SIGNED](np.linspace(0, 1, SHADES))],
        },
        entries=[round(x * scale, 4) for x in OWN],
    )


# ---- exercises -----------------------------------------------------------------------------------


def pooling(answer: Any) -> str | None:
    """(pool, unpool): pool [out, in, k, k] -> [out, in]; unpool (means, k) -> [out, in, k, k], in
    memory of its own."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(callable(f) for f in answer):
        return "two functions are asked for: pass the pair (pool, unpool)"
    pool, unpool = answer
    for k in (3, 5, 1):
        w = drawn(4, 2, k, k, seed=7)
        before, mean = w.clone(), w.mean((2, 3))
        means = pool(w)
        if not torch.equal(w, before):
            return "pool changes the tensor that it is given"
        if tuple(means.shape) != (4, 2):
            return (
                f"pool turns {[4, 2, k, k]} into {list(means.shape)}; "
                "the mean runs over the last two axes only"
            )
        wrong = {"pool returns the sum of a kernel, not its mean": w.sum((2, 3))}
        if reason := compared(means, mean, wrong, "pool does not return each kernel's mean"):
            return reason
        back = unpool(mean, k)
        if tuple(back.shape) != (4, 2, k, k):
            return (
                f"unpool returns the shape {list(back.shape)} "
                f"for means of shape {[4, 2]} and k = {k}"
            )
        whole = mean[:, :, None, None].expand_as(back)
        shared = "unpool shares the mean out over the positions; every position gets the whole mean"
        otherwise = "unpool does not put the kernel's mean into each of its positions"
        if reason := compared(back, whole, {shared: whole / k**2}, otherwise):
            return reason
        if back.untyped_storage().nbytes() < back.numel() * back.element_size():
            return (
                "the positions of a kernel share one number in memory, "
                "so writing to one writes to all"
            )
    return None


KERNELS, TOTAL = 3 * 64 + 64 * 64, 1_756_426  # the CIFAR network of the FedMMD and FedFusion paper
payload = number(  # the numbers that RPN sends for models.cifar_cnn
    TOTAL - 24 * KERNELS,
    {
        TOTAL: "that is the dense message; the kernels have to be pooled",
        TOTAL - 25 * KERNELS: "each pooled kernel still sends one number, its mean",
        TOTAL - 24 * KERNELS - 128: "the biases of the convolutions are sent, too",
        TOTAL // 25: "only kernels are pooled; the dense layers travel whole",
        24 * KERNELS: "that is what pooling saves; how much is left?",
        4 * (TOTAL - 24 * KERNELS): "that is the number of bytes; the question is for numbers",
    },
)


def scaled(coder: Any) -> str | None:
    """A coder like ``Pooled`` that decodes to k times the mean."""
    if isinstance(coder, type) or not all(
        callable(getattr(coder, m, None)) for m in ("encode", "decode")
    ):
        return (
            "a coder is asked for, an object with encode and decode: pass Scaled(), with brackets"
        )
    for shape in ((4, 2, 3, 3), (2, 3, 5, 5), (3, 2, 1, 1), (6, 5), (6,)):
        w = drawn(*shape, seed=7)
        data, right = coder.encode(w), Pooled().encode(w)
        if len(data) != len(right):
            return (
                f"it sends {len(data)} bytes for a tensor of shape {list(shape)}, "
                f"RPN sends {len(right)}"
            )
        got = coder.decode(data, shape)
        if tuple(got.shape) != shape:
            return f"decode returns the shape {list(got.shape)} for {list(shape)}"
        plain = Pooled().decode(right, shape)
        k = shape[-1] if len(shape) > 2 else 1
        wrong = {"the means are not scaled": plain}
        wrong |= {"the factor is k * k; the norm asks for k": k * k * plain}
        otherwise = f"decoding a {k} x {k} kernel does not give {k} times its mean"
        if k == 1:
            wrong, otherwise = (
                {},
                f"a tensor of shape {list(shape)} has to come back as it was sent",
            )
        if reason := compared(got, k * plain, wrong, otherwise, 1e-5):
            return reason
    return None


EXERCISES = {"rpn-pool": pooling, "rpn-payload": payload, "rpn-scaled": scaled}

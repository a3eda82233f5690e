"""Chapter 8, FedRepOpt: its figure, and the checks of its exercises."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from . import check
from .check import Function, Reasons, compared, number, varied

if TYPE_CHECKING:
    from .show import Shown  # pictures take long to load, and a check needs none


def grown(
    number: str, start: torch.Tensor, models: Mapping[str, torch.Tensor]
) -> "Shown":
    """Seven kernels of a layer, each from a channel to itself, and what a model
    changed of them."""
    from .pictures import kernel_rows
    from .show import figure

    def diagonal(w: torch.Tensor) -> torch.Tensor:
        return torch.stack([w[i, i : i + 1] for i in range(7)]).cpu()

    changed = {label: diagonal(w - start) for label, w in models.items()}
    return figure(
        number,
        kernel_rows({"start": diagonal(start)} | changed, apart=["start"]),
        caption="""Seven kernels of the second block, each from a channel to itself: the
        start, and what all rounds together have changed of it. Violet is negative,
        orange positive; the two lower rows share a scale.""",
        alt="""Three rows of seven squares of three by three cells. In the first row
        only the middle of each square is dark. The second and the third row have shades
        in all cells, often the darkest in the middle, and are equal to each other.""",
    )


# ---- exercises -----------------------------------------------------------------------


drawn = partial(check.drawn, dtype=torch.float64)


def each(s: torch.Tensor) -> torch.Tensor:
    """[out] -> [out, 1, 1, 1], one factor for each kernel of an output channel."""
    return s[:, None, None, None]


def fold(answer: Function) -> Reasons:
    """fold(W [out, in, 3, 3], b, gamma, beta, mean, var [out], eps) -> W, b of the one
    convolution, in evaluation mode."""
    W = drawn(3, 3, 3, 3)
    b, gamma, beta, mean = drawn(4, 3, seed=1)
    var = drawn(3, seed=2).square() + 0.5
    eps = 0.1
    kernel, bias = answer(W, b, gamma, beta, mean, var, eps)
    if kernel.shape != W.shape or bias.shape != b.shape:
        yield f"it returns the shapes {list(kernel.shape)} and {list(bias.shape)}"
    factor = gamma / (var + eps).sqrt()
    last = "the factor belongs to the output channel, the first axis, not to the last"
    factors = {
        "the kernel is divided by the variance, not by its square root": (
            gamma / (var + eps)
        ),
        "eps is missing under the root": gamma / var.sqrt(),
        "eps stands under the root": gamma / (var.sqrt() + eps),
        "gamma is missing": 1 / (var + eps).sqrt(),
    }
    kernels = {reason: each(wrong) * W for reason, wrong in factors.items()}
    kernels[last] = factor * W
    biases = {
        "the convolution's own bias b is missing": beta - factor * mean,
        "normalisation scales the convolution's bias, too": beta + b - factor * mean,
        "beta is added behind the scaling, and b before it": b + factor * (beta - mean),
        "beta is missing": factor * (b - mean),
        "the running mean is missing": beta + factor * b,
        "the running mean is subtracted": beta + factor * (b + mean),
    }
    otherwise = "the kernel is not the one that does both"
    yield compared(kernel, each(factor) * W, kernels, otherwise)
    otherwise = "the kernel is right, but the bias is not"
    yield compared(bias, beta + factor * (b - mean), biases, otherwise)


def middle(value: torch.Tensor | float, outputs: int, inputs: int) -> torch.Tensor:
    """[out, in] or a number in the middle of 3 x 3 kernels."""
    value = torch.as_tensor(value, dtype=torch.float64).expand(outputs, inputs)
    return F.pad(value[:, :, None, None], [1] * 4)


def depthwise(answer: Function) -> Reasons:
    """answer(s [C]) -> the multiplier [C, 1, 3, 3]."""
    s = drawn(4, seed=3)
    M = answer(s.clone())
    before = each(s**2).expand(4, 1, 3, 3)
    if M.shape != before.shape:
        yield (
            f"it returns the shape {list(M.shape)} for 4 channels; "
            "a multiplier has the shape of the kernel, [4, 1, 3, 3]"
        )
    one = middle(1, 4, 1)
    square = middle(s[:, None] ** 2, 4, 1)
    first = middle(torch.tensor([[1.0], [0], [0], [0]]), 4, 1)
    once = "s acts twice: on the gradient and on what the kernel contributes"
    for power in (each(s), each(s.abs())):
        yield compared(M, power.expand(4, 1, 3, 3) + one, {}, once) is None and once
    wrong = {
        "the branch with t is missing: it is trained as well": before,
        "a depth-wise block has no 1 x 1 branch": before + one + square,
        "a depth-wise block has no 1 x 1 branch, but it has the one with t": (
            before + square
        ),
        "every channel is its own input: the 1 is there for all of them, "
        "not for the first only": before + first,
        "the copy of the input acts on the middle of the kernel only "
        "(expand shares one number, repeat copies it)": before + 1,
        "in the middle the 1 is added to s squared; it does not replace it": (
            before + one - square
        ),
    }
    yield compared(M, before + one, wrong, "the values are not those of the derivation")


def adam(answer: Function) -> Reasons:
    """answer(u [out, in, 3, 3], s3, s1 [out], copies, lr) -> what one step of Adam on
    the branches changes in W'."""
    s3, s1 = drawn(2, 3, seed=4).abs() + 0.2
    for inputs, copies in ((3, True), (3, False), (2, False)):
        u = drawn(3, inputs, 3, 3, seed=5)
        lr = 0.5
        before = u.clone()
        got = answer(u, s3, s1, copies, lr)
        yield not torch.equal(u, before) and "it changes u, which it is given"
        if got.shape != u.shape:
            yield (
                f"it returns the shape {list(got.shape)} for u of shape {list(u.shape)}"
            )
        unit = middle(torch.eye(3, inputs), 3, inputs)
        one = unit * copies
        outer = each(s3).expand(u.shape)
        inner = middle(s1[:, None], 3, inputs)
        factors = {
            "that is the step of a plain kernel: each branch takes one, "
            "and they add up": 1,
            "Adam divides the factor in the gradient out, so each s acts only once": (
                outer**2 + inner**2 + one
            ),
            "the branch that copies its input moves, too": outer + inner,
            "the other two branches move, too": outer,
            "the 1 x 1 branch is missing": outer + one,
            "the 1 x 1 branch acts on the middle of the kernel only": (
                outer + each(s1) + one
            ),
            "the copy of the input leads from a channel to itself only,"
            " and only where the block has that branch": (
                outer + inner + middle(1, 3, inputs)
            ),
            "not every block has the branch that copies its input": (
                outer + inner + unit
            ),
        }
        right = -lr * (outer + inner + one) * u
        wrong = {
            "a step goes against the gradient: the sign is missing": -right,
            "the learning rate is missing": right / lr,
            **{reason: -lr * factor * u for reason, factor in factors.items()},
        }
        otherwise = (
            "the values are not those of three branches that each take a step of Adam"
        )
        yield compared(got, right, wrong, otherwise)


BLOCKS = range(2, 30)


@varied(
    blocks_of_128=(4, BLOCKS),
    blocks_of_256=(6, BLOCKS),
    blocks_of_512=(16, BLOCKS),
    channels_of_the_last=(2048, range(1000, 4000)),
)
def constants(
    blocks_of_128: int,
    blocks_of_256: int,
    blocks_of_512: int,
    channels_of_the_last: int,
) -> Any:
    """Of RepVGG-B1's blocks; the first of each stage does not copy its input."""
    blocks = {128: blocks_of_128, 256: blocks_of_256, 512: blocks_of_512}
    last = channels_of_the_last
    channels = 64 + sum(c * n for c, n in blocks.items()) + last
    copied = sum(c * (n - 1) for c, n in blocks.items())
    copy = "the scale of the copy is trained, so it is no constant"
    return number(
        2 * channels,
        {
            channels: "each output channel has two constants, one for either branch",
            2 * (2 + sum(blocks.values())): (
                "each output channel of a block has its own constants"
            ),
            2 * (channels - 64): "the first block has constants, too",
            2 * (64 + sum(blocks) + last): (
                "a stage has several blocks, each with its own"
            ),
            3 * channels: copy,
            2 * channels + copied: copy,
            8 * channels: "those are bytes; the question is for numbers",
        },
    )


EXERCISES = {
    "fed_repopt-constants": constants,
    "fed_repopt-depthwise": depthwise,
    "fed_repopt-fold": fold,
    "fed_repopt-adam": adam,
}

"""Chapter 4, RPN: its explorers, its figures, and the checks of its exercises."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core import Tensors
from ..wire import Pooled
from .check import Reasons, compared, drawn, labelled, number, pair, varied
from .drawings import drawing

if TYPE_CHECKING:
    from .show import Shown  # pictures take long to load, and a check needs none


# ---- one kernel, round after round ---------------------------------------------------

TARGETS = [  # an edge that is bright on average, a line, a spot, all bright
    [1.4, 0.4, -0.6, 1.4, 0.4, -0.6, 1.4, 0.4, -0.6],
    [-0.5, 1, -0.5, -0.5, 1, -0.5, -0.5, 1, -0.5],
    [-0.25, -0.25, -0.25, -0.25, 2, -0.25, -0.25, -0.25, -0.25],
    [1, 1, 1, 1, 1, 1, 1, 1, 1],
]
# sums to zero, as random kernels nearly do
START = [0.3, -0.4, 0.1, 0.5, -0.2, -0.6, 0.2, 0.4, -0.3]
NIGHTS = 20
STEP = 0.15  # of the way to the client's target, which training goes in a night


def nights(target: np.ndarray) -> list[list[list[float]]]:
    """[round][panel][cell]: the target, and the kernel if all, the mean, or the largest
    entry of what training changed is sent; what is not sent is remembered."""
    whole = np.array(START)
    pooled = np.array(START)
    sparse = np.array(START)
    memory = np.zeros(9)
    rows = []
    for _ in range(NIGHTS + 1):
        rows.append([x.round(3).tolist() for x in (target, whole, pooled, sparse)])
        whole = whole + STEP * (target - whole)
        pooled = pooled + (STEP * (target - pooled)).mean()
        memory = memory + STEP * (target - sparse)
        largest = np.abs(memory).argmax()
        sparse[largest] += memory[largest]
        memory[largest] = 0.0
    return rows


def watch_kernel() -> dict[str, Any]:
    """One kernel, round after round: sent whole, as its mean, entry by entry."""
    targets = np.array(TARGETS)
    return drawing("rpn/kernel", nights=[nights(target) for target in targets])


# ---- figures of the lesson -----------------------------------------------------------


def seven_kernels(number: str, start: Tensors, residual: Tensors, name: str) -> "Shown":
    """Seven kernels of a layer: what a client started from, changed, says of it, and
    loses."""
    from .pictures import kernel_rows
    from .show import figure

    change = residual[name].cpu()
    largest = change[:, 0].flatten(1).norm(dim=1).argsort(descending=True)[:7]
    change = change[largest]
    means = change.mean((2, 3), keepdim=True).expand_as(change)
    rows = {
        "start": start[name].cpu()[largest],
        "changed": change,
        "heard": means,
        "lost": change - means,
    }
    return figure(
        number,
        kernel_rows(rows, apart=["start"]),
        caption="""Seven 3 x 3 kernels of the first layer: start, change of one night,
        what the others hear of it, and what is lost. Violet is negative, orange
        positive; the three lower rows share a scale.""",
        alt="""Four rows of seven squares of three by three cells. Start and change vary
        from cell to cell. What is heard has one even shade a square. What is lost
        varies about as much as the change.""",
    )


def frozen(
    number: str, start: Tensors, residual: Tensors, after: Tensors, name: str
) -> "Shown":
    """The shapes of seven kernels of a layer, each less its mean: at the start, and what
    a client's night and rounds of RPN change of them."""
    from .pictures import kernel_rows
    from .show import figure

    kernels = {
        "start": start[name],
        "changed by one night": residual[name],
        "changed by RPN": after[name] - start[name],
    }
    shapes = {
        label: (w - w.mean((2, 3), keepdim=True))[:7] for label, w in kernels.items()
    }
    return figure(
        number,
        kernel_rows(shapes, apart=["start"]),
        caption="""Shapes of seven kernels of the first layer, each kernel less its
        mean: at the start, and what one client's night and all rounds of RPN change of
        it. Violet is negative, orange positive; the lower rows share a scale.""",
        alt="""Three rows of seven squares of three by three cells. The first two have
        many shades. The third is blank.""",
    )


# ---- exercises -----------------------------------------------------------------------


def pooling(answer: Any) -> Reasons:
    """(pool, unpool): pool [out, in, k, k] -> [out, in]; unpool (means, k) -> [out, in,
    k, k], in memory of its own."""
    yield pair(answer, "(pool, unpool)")
    pool, unpool = answer
    for k in (3, 5, 1):
        w = drawn(4, 2, k, k, seed=7)
        before = w.clone()
        mean = w.mean((2, 3))
        means = pool(w)
        yield not torch.equal(w, before) and "pool changes the tensor that it is given"
        if tuple(means.shape) != (4, 2):
            yield (
                f"pool turns {[4, 2, k, k]} into {list(means.shape)}; "
                "the mean runs over the last two axes only"
            )
        wrong = {"pool returns the sum of a kernel, not its mean": w.sum((2, 3))}
        yield compared(means, mean, wrong, "pool does not return each kernel's mean")
        back = unpool(mean, k)
        if tuple(back.shape) != (4, 2, k, k):
            yield (
                f"unpool returns the shape {list(back.shape)} "
                f"for means of shape {[4, 2]} and k = {k}"
            )
        whole = mean[:, :, None, None].expand_as(back)
        shared = (
            "unpool shares the mean out over the positions; every position "
            "gets the whole mean"
        )
        otherwise = "unpool does not put the kernel's mean into each of its positions"
        yield compared(back, whole, {shared: whole / k**2}, otherwise)
        if back.untyped_storage().nbytes() < back.numel() * back.element_size():
            yield (
                "the positions of a kernel share one number in memory, "
                "so writing to one writes to all"
            )


def layers(numbers: int, first: int, second: int) -> Any:
    """The numbers of a network with two convolutions, all and their channels, vary."""
    channels = range(16, 100)
    return varied(
        numbers_in_all=(numbers, range(1_000_000, 2_000_000)),
        channels_of_first=(first, channels),
        channels_of_second=(second, channels),
    )


def pooled(total: int, inputs: int, first: int, second: int, cells: int) -> Any:
    """A test for the numbers that RPN sends, of ``total``: two convolutions with kernels
    of so many ``cells``."""
    kernels = inputs * first + first * second
    sent = total - (cells - 1) * kernels
    return number(
        sent,
        {
            total: "that is the dense message; the kernels have to be pooled",
            total - cells * kernels: (
                "each pooled kernel still sends one number, its mean"
            ),
            kernels: "those are the kernels; all else of the network travels, too",
            (cells - 1) * kernels: "that is what pooling saves, and not what is left",
            total - (cells - 1) * first * second: "the first layer has kernels, too",
            sent - first - second: "the biases of the convolutions are sent, too",
            total // cells: "only kernels are pooled; the dense layers travel whole",
            4 * sent: "that is the number of bytes; the question is for numbers",
        },
    )


@layers(1_199_882, 32, 64)
def numbers(
    numbers_in_all: int, channels_of_first: int, channels_of_second: int
) -> Any:
    """That RPN sends for the paper's MNIST network: convolutions of 3 x 3."""
    return pooled(numbers_in_all, 1, channels_of_first, channels_of_second, 9)


@layers(1_756_426, 64, 64)
def payload(
    numbers_in_all: int, channels_of_first: int, channels_of_second: int
) -> Any:
    """The numbers that RPN sends for models.cifar_cnn: convolutions of 5 x 5."""
    return pooled(numbers_in_all, 3, channels_of_first, channels_of_second, 25)


def scaled(coder: Any) -> Reasons:
    """A coder like ``Pooled`` that decodes to k times the mean."""
    methods = (getattr(coder, name, None) for name in ("encode", "decode"))
    if isinstance(coder, type) or not all(map(callable, methods)):
        yield (
            "a coder is asked for, an object with encode and decode: pass "
            "Scaled(), with brackets"
        )
    for shape in ((4, 2, 3, 3), (2, 3, 5, 5), (3, 2, 1, 1), (6, 5), (6,)):
        w = drawn(*shape, seed=7)
        data = coder.encode(w)
        right = Pooled().encode(w)
        if len(data) != len(right):
            yield (
                f"it sends {len(data)} bytes for a tensor of shape {list(shape)}, "
                f"RPN sends {len(right)}"
            )
        got = coder.decode(data, shape)
        if tuple(got.shape) != shape:
            yield f"decode returns the shape {list(got.shape)} for {list(shape)}"
        plain = Pooled().decode(right, shape)
        k = shape[-1] if len(shape) > 2 else 1
        wrong = {"the means are not scaled": plain}
        wrong |= {"the factor is k * k; the norm asks for k": k * k * plain}
        otherwise = f"decoding a {k} x {k} kernel does not give {k} times its mean"
        if k == 1:
            wrong = {}
            otherwise = (
                f"a tensor of shape {list(shape)} has to come back as it was sent"
            )
        yield compared(got, k * plain, wrong, otherwise, 1e-5)


def partly(answer: Any) -> Reasons:
    """{label: method}, of which each pools some layers only."""
    example = '{"the last": fl.methods.rpn(share=0.34)}'
    call = "fl.methods.rpn(share=...)"
    yield labelled(answer, example, call, ("rpn",), "the question is about rpn")
    for label, method in answer.items():
        if "share=1.0" in method.parts()["uplink"]:
            yield f"{label} pools all layers: give it a share below 1"


EXERCISES = {
    "rpn-numbers": numbers,
    "rpn-noise": number(1 / 25, {1 / 9: "that is a kernel of 3 x 3"}, 0.01),
    "rpn-pool": pooling,
    "rpn-share": partly,
    "rpn-payload": payload,
    "rpn-scaled": scaled,
}

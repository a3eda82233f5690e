"""Chapter 4, RPN: its explorers, its figures, and the checks of its exercises."""

from typing import TYPE_CHECKING, Any

import torch

from ..core import Tensors
from ..wire import Pooled
from .check import Reasons, compared, drawn, labelled, number, varied

if TYPE_CHECKING:
    from .show import Chart, Shown  # pictures take long to load, and a check needs none


# ---- one kernel, round after round ---------------------------------------------------

WANTED: dict[str, list[float]] = {
    "an edge": [1.4, 0.4, -0.6, 1.4, 0.4, -0.6, 1.4, 0.4, -0.6],  # bright on average
    "a line": [-0.5, 1, -0.5, -0.5, 1, -0.5, -0.5, 1, -0.5],
    "a spot": [-0.25, -0.25, -0.25, -0.25, 2, -0.25, -0.25, -0.25, -0.25],
    "all bright": [1, 1, 1, 1, 1, 1, 1, 1, 1],
}
BORN = [
    0.3,
    -0.4,
    0.1,
    0.5,
    -0.2,
    -0.6,
    0.2,
    0.4,
    -0.3,
]  # sums to zero, as random ones nearly do
# training takes a kernel so much of the way to what the client wants
NIGHTS = 20
STEP = 0.15


def nights(wanted: list[float]) -> list[list[list[float]]]:
    """[round][panel][cell]: what the client wants, and the kernel if all, the mean, or
    the largest entry (the rest being remembered) of what training changed is sent."""
    import numpy as np

    target = np.array(wanted, float)
    whole, pooled, sparse = (np.array(BORN) for _ in range(3))
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


def watch_kernel(number: str) -> "Chart":
    """One kernel under a slider for the round: sent whole, as its mean, entry by
    entry."""
    from .show import chart
    from .vega import choice, kernel_panels, slider

    panels = kernel_panels(
        ["wanted", "everything", "RPN", "STC"],
        "nights[indexof(shapes, wanted)][round][datum.panel][datum.v * 3 + datum.u]",
        [
            slider("round", "round", 0, 0, NIGHTS, 1),
            choice("wanted", "the client wants", list(WANTED)),
            {"name": "nights", "value": [nights(wanted) for wanted in WANTED.values()]},
            {"name": "shapes", "value": list(WANTED)},
        ],
    )
    return chart(
        number,
        panels,
        caption="""One kernel, round after round. *Everything* sends nine numbers. *RPN*
        sends their mean. *STC*, a rival from the chapter on the wire, sends one entry
        and remembers the rest. Orange is positive, violet negative.""",
        alt="""Four squares of three by three cells: what the client wants, and what
        arrives if everything, the mean, or the largest entry is sent. As the round
        moves from 0 to 20, the square of everything becomes the wanted shape. The
        square of RPN becomes brighter as a whole if an edge or all bright is wanted,
        does not move for a line or a spot, and always keeps its first pattern. The
        square of STC comes close to the wanted shape, cell by cell.""",
    )


# ---- figures of the lesson -----------------------------------------------------------


def seven_kernels(number: str, start: Tensors, residual: Tensors, name: str) -> "Shown":
    """Seven kernels of a layer: what a client started from, changed, says of it, and
    loses."""
    from .pictures import kernel_rows
    from .show import figure

    full = residual[name].cpu()
    flat = full.mean((2, 3), keepdim=True).expand_as(full)
    largest = full[:, 0].flatten(1).norm(dim=1).argsort(descending=True)[:7]
    rows = {
        "start": start[name].cpu(),
        "changed": full,
        "heard": flat,
        "lost": full - flat,
    }
    return figure(
        number,
        kernel_rows({k: w[largest] for k, w in rows.items()}, apart=["start"]),
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
    """The shapes of seven kernels of a layer, each less its mean: at the start, after a
    client's night, and after rounds of RPN."""
    from .pictures import kernel_rows
    from .show import figure

    kernels = {"start": start[name], "one client, alone": start[name] + residual[name]}
    kernels["RPN, last round"] = after[name]
    shapes = {
        k: (w - w.mean((2, 3), keepdim=True)).cpu()[:7] for k, w in kernels.items()
    }
    return figure(
        number,
        kernel_rows(shapes),
        caption="""Shapes of seven kernels of the first layer, that is, each kernel less
        its mean: at the start, after one client's night, and after RPN's last round.
        Violet is negative, orange positive.""",
        alt="""Three rows of seven squares. The second row differs a little from the
        first; the third is the first row again.""",
    )


# ---- exercises -----------------------------------------------------------------------


def pooling(answer: Any) -> Reasons:
    """(pool, unpool): pool [out, in, k, k] -> [out, in]; unpool (means, k) -> [out, in,
    k, k], in memory of its own."""
    if (
        not isinstance(answer, tuple)
        or len(answer) != 2
        or not all(callable(f) for f in answer)
    ):
        yield "two functions are asked for: pass the pair (pool, unpool)"
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


@layers(1_199_882, 32, 64)
def numbers(
    numbers_in_all: int, channels_of_first: int, channels_of_second: int
) -> Any:
    """That RPN sends for the paper's MNIST network: the channels of two
    convolutions, 3 x 3."""
    first = channels_of_first
    second = channels_of_second
    total = numbers_in_all
    kernels = first + first * second
    return number(
        total - 8 * kernels,
        {
            total: "that is the dense message; the kernels have to be pooled",
            total - 9 * kernels: "each pooled kernel still sends one number, its mean",
            kernels: "those are the kernels; all else of the network travels, too",
            8 * kernels: "that is what pooling saves; how much is left?",
            total - 8 * first * second: "the first layer has kernels, too",
            4 * (total - 8 * kernels): "those are bytes; the question is for numbers",
        },
    )


@layers(1_756_426, 64, 64)
def payload(
    numbers_in_all: int, channels_of_first: int, channels_of_second: int
) -> Any:
    """The numbers that RPN sends for models.cifar_cnn: convolutions of 5 x 5."""
    first = channels_of_first
    second = channels_of_second
    total = numbers_in_all
    kernels = 3 * first + first * second
    return number(
        total - 24 * kernels,
        {
            total: "that is the dense message; the kernels have to be pooled",
            total - 25 * kernels: "each pooled kernel still sends one number, its mean",
            total
            - 24 * kernels
            - first
            - second: "the biases of the convolutions are sent, too",
            total // 25: "only kernels are pooled; the dense layers travel whole",
            24 * kernels: "that is what pooling saves; how much is left?",
            4
            * (
                total - 24 * kernels
            ): "that is the number of bytes; the question is for numbers",
        },
    )


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
    "rpn-pool": pooling,
    "rpn-share": partly,
    "rpn-payload": payload,
    "rpn-scaled": scaled,
}

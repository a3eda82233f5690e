"""Exercises of the chapter on seeing."""

from collections.abc import Sequence
from typing import Any

import torch

from . import Function, number

BOXES = (  # two boxes, their IoU, and what a wrong answer has not seen
    ((0, 0, 10, 10), (0, 0, 10, 10), 1.0, "a box and itself overlap wholly: 1"),
    ((2, 3, 6, 7), (4, 3, 8, 7), 1 / 3, "of the union the part that both have counts once"),
    ((0, 0, 10, 10), (5, 0, 15, 10), 1 / 3, "of the union the part that both have counts once"),
    ((0, 0, 10, 10), (2, 4, 7, 8), 0.2, "a box inside another is all of the overlap"),
    ((0, 0, 4, 4), (4, 0, 8, 4), 0.0, "boxes that only touch share no area"),
    ((0, 0, 4, 4), (6, 6, 9, 9), 0.0, "boxes apart overlap by nothing, however far apart they are"),
    ((0, 0, 4, 4), (6, 0, 9, 4), 0.0, "boxes apart overlap by nothing, however far apart they are"),
    ((2, 0, 10, 4), (0, 1, 8, 5), 18 / 46, "the overlap begins at the larger of two left edges"),
)


def shared(a: Sequence[int], b: Sequence[int], areas: Sequence[int] = ()) -> float:
    """IoU of two boxes; their areas, if they are taken to be others."""
    areas = areas or [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (a, b)]
    sides = [max(0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
    both = sides[0] * sides[1]
    return both / (sum(areas) - both)


def misread(a: Sequence[int], b: Sequence[int]) -> list[tuple[float, str]]:
    """What other meanings of x2, y2 give, and what to say to it."""
    corner = "x2, y2 is a corner, not a width and height"
    sized, other = ((x, y, x + w, y + h) for x, y, w, h in (a, b))
    longer, last = ((x1, y1, x2 + 1, y2 + 1) for x1, y1, x2, y2 in (a, b))
    return [
        (shared(sized, other), corner),
        (shared(a, b, (a[2] * a[3], b[2] * b[3])), corner),
        (shared(longer, last), "edges lie between pixels: no + 1"),
    ]


def overlap(answer: Function) -> str | None:
    """answer(a, b) -> intersection over union of two boxes x1, y1, x2, y2."""
    for a, b, want, reason in BOXES:
        for one, other in ((a, b), (b, a)):
            got = float(answer(one, other))
            if abs(got - want) > 1e-6:
                for value, why in misread(one, other):
                    if abs(got - value) < 1e-6:
                        return why
                return f"{reason} ({got:.3g} for {one} and {other})"
    return None


LISTS = (  # which predictions are right, best first; how many objects there are; what it is about
    ((1, 1, 1), 3, "all found and nothing else is a precision of 1 at every recall"),
    ((1, 1), 4, "recall is a share of the objects, and half of them were never found"),
    ((0, 1), 1, "a wrong prediction in front of a right one halves the precision"),
    ((1, 0, 0, 1), 2, "the best precision at this recall or beyond counts"),
    ((0, 1, 1, 1), 3, "the best precision at this recall or beyond counts"),
    ((0, 0), 3, "nothing found is 0"),
)


def precision_of(right: tuple[int, ...], objects: int) -> float:
    """Average precision at the 101 recalls 0, 0.01, ..., 1."""
    hits, points = 0, []
    for k, one in enumerate(right, 1):
        hits += one
        points.append((hits / objects, hits / k))
    ends = [k / 100 for k in range(101)]
    return sum(max((p for r, p in points if r >= end - 1e-12), default=0.0) for end in ends) / 101


def area(answer: Function) -> str | None:
    """answer(right, objects) -> average precision of predictions, best first."""
    for right, objects, reason in LISTS:
        got = float(answer(torch.tensor(right), objects))
        if abs(got - precision_of(right, objects)) > 0.011:  # a sum or an integral
            return f"{reason} ({got:.3g} for {list(right)} of {objects} objects)"
    return None


KERNELS = 16 + 16 * 32 + 32 * 64 + 64 * 64 + 64 * 64  # 3 x 3
TOTAL, LAST = 98_367, 64 * 15  # the scene detector
payload = number(
    TOTAL - 8 * KERNELS,
    wrong={
        TOTAL: "that is the dense message; the kernels have to be pooled",
        TOTAL - 9 * KERNELS: "each pooled kernel still sends one number, its mean",
        TOTAL - 8 * (KERNELS + LAST): "the last convolution is 1 x 1: pooling saves nothing there",
        8 * KERNELS: "that is what pooling saves; how much is left?",
        KERNELS: "kernels are not all: batch normalisation and the last convolution travel, too",
        KERNELS + LAST: "batch normalisation and the last convolution's biases travel, too",
        4 * (TOTAL - 8 * KERNELS): "that is the number of bytes; the question is for numbers",
    },
)


def flipped(answer: Any) -> str | None:
    """answer(boxes) -> the boxes [k, 4] in the picture of width 64 seen in a mirror."""
    boxes = torch.tensor([[0.0, 2.0, 10.0, 12.0], [30.0, 5.0, 64.0, 60.0], [22.0, 1.0, 42.0, 3.0]])
    before = boxes.clone()
    got = answer(boxes)
    if not torch.equal(boxes, before):
        return "the boxes that came in are changed"
    if tuple(got.shape) != (3, 4):
        return f"boxes of shape [3, 4] come out as {list(got.shape)}"
    want = torch.stack([64 - before[:, 2], before[:, 1], 64 - before[:, 0], before[:, 3]], 1)
    if torch.allclose(got, want):
        return None
    if (got[:, 2] < got[:, 0]).any():
        return "x1 and x2 change places as well: a mirror turns left edges into right ones"
    if torch.allclose(got, want - torch.tensor([1.0, 0, 1, 0])):
        return "edges lie between pixels: the mirror image of x is 64 - x, not 63 - x"
    if torch.allclose(got[:, [0, 2]], before[:, [0, 2]]):
        return "it is x that the mirror changes, and y that stays"
    return "the mirror image of (x1, y1, x2, y2) is not that"


EXERCISES = {
    "seeing-iou": overlap,
    "seeing-ap": area,
    "seeing-payload": payload,
    "seeing-mirror": flipped,
}

"""Chapter 10, seeing: what stored runs reached, its figures, and the checks of its exercises."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .boxes import Rows, scenes, seen
from .check import Function, Reasons, compared, generator, number, varied
from .grids import chapter_file

if TYPE_CHECKING:
    from .show import Shown

# ---- stored runs ---------------------------------------------------------------------------------


def learned(task: str) -> Rows:
    """A row a method of the stored runs on real pictures, in the last quarter of their rounds and
    in brackets in the last test: the mean over all classes, over those that are frequent; how far
    this is from FedAvg's in the last quarter, in how many seeds it is below, and what crosses."""
    from ..lab.results import paired
    from .claims import both, by_label, reached

    runs, rows = by_label("seeing_small", task=task), []
    column, frequent = chapter_file("seeing")["real"]["frequent"][task]

    def often(label: str, only_last: bool = False) -> dict[int, float]:
        """By seed, the mean over the frequent classes."""
        values: dict[int, float] = {}
        for h in runs[label]:
            tests = [h.final] if only_last else h.late
            marks = [[row[column][k] for k in frequent] for row in tests]
            values[h.meta["task"]["seed"]] = float(np.mean(marks))
        return values

    for label, histories in runs.items():
        last, late = often(label, only_last=True), often(label)
        row = {"method": label, "all classes": reached(histories)}
        row |= {"frequent": both([*last.values()], [*late.values()]), "to FedAvg": "", "below": ""}
        if label != "FedAvg":
            gap = paired(late, often("FedAvg"))
            row["to FedAvg"] = f"{gap.mean:+.3f}"
            row["below"] = f"{gap.seeds - gap.wins} of {gap.seeds}"
        count = len(histories[0].rows[0]["clients"])  # one holder of all sends to nobody
        for way in ("up", "down"):
            sent = np.mean([getattr(h, f"bytes_{way}").mean() for h in histories]) / count / 1e3
            row[way] = f"{sent:.1f}" if count > 1 else ""
        rows.append(row)
    return rows


# ---- figures -------------------------------------------------------------------------------------


def answering(number: str, task: Any) -> "Shown":
    """Three scenes with their boxes and cells, and below them the same with their masks."""
    from ..seeing import digit_scenes
    from .show import figure

    x, y = (part[:3].cpu() for part in task.train)
    panels: Rows = [
        {"image": image, "truth": rows[rows[:, 4] >= 0], "cells": 8, "title": "boxes"}
        for image, rows in zip(x, y, strict=True)
    ]
    every = digit_scenes("masks")
    for image in x:  # the same scene in the other source
        [k] = (every.train_x == image).flatten(1).all(1).nonzero()[0].tolist()
        panels.append({"image": image, "mask": every.train_y[k], "title": "mask"})
    return figure(
        number,
        scenes(panels),
        caption="""Three scenes with their boxes and the 64 cells, and below the same with their
        masks, a colour for each digit.""",
        alt="""Three dark pictures with bright digits of different sizes and faint strokes, a dashed
        box close around each digit and a grid of eight by eight cells; below, the digits' pixels
        are coloured.""",
    )


def found_boxes(number: str, task: Any, detections: Sequence[dict[str, torch.Tensor]]) -> "Shown":
    """Six test scenes with the true boxes and those that were found."""
    from .show import figure

    x, y = (part.cpu() for part in task.test)
    panels = []
    for k, hits in enumerate(detections[:6]):
        boxes = torch.cat([hits["boxes"], hits["labels"][:, None]], 1)[hits["scores"] > 0.3].cpu()
        panels.append({"image": x[k], "truth": y[k][y[k, :, 4] >= 0], "boxes": boxes})
    return figure(
        number,
        scenes(panels),
        caption="""Six scenes that nobody trained on. Dashed: true boxes; orange: boxes with a score
        above 0.3, and the digit that is read.""",
        alt="""Six scenes. Orange boxes with a digit stand near most of the dashed true boxes; some
        digits are missed, some boxes are loose, some digits are wrong.""",
    )


def real_masks(number: str) -> "Shown":
    """Masks of photographs: the true ones, and what stored runs drew."""
    from ..seeing.published import VOC
    from .show import figure

    runs, names = seen()["real"], dict(enumerate(VOC, 1))
    panels: Rows = []
    for k, truth in enumerate(runs[0]["truth"]):
        panels.append({"mask": truth, "names": names, "title": "people drew"})
        panels += [{"mask": r["drawn"][k], "names": names, "title": r["label"]} for r in runs]
    return figure(
        number,
        scenes(panels, columns=len(runs) + 1),
        caption="""Three photographs of VOC that nobody trained on, drawn as their masks, with the
        names of the classes that fill two hundredths of a picture. Grey: borders, which do not
        count. Stored runs with seed 0, after twelve rounds.""",
        alt="""Rows of coloured shapes. On the left what people drew; beside it the same shapes as
        the methods see them, with blocky outlines. All find the sheep; the horse under its rider
        is hardly seen, and dog and cat are mixed up.""",
    )


# ---- exercises -----------------------------------------------------------------------------------

EACH, APART = "of the union the part that both have counts once", "boxes apart overlap by nothing"
PAIRS = (  # two boxes, and what a wrong answer has not seen
    ((0, 0, 10, 10), (0, 0, 10, 10), "a box and itself overlap wholly: 1"),
    ((2, 3, 6, 7), (4, 3, 8, 7), EACH),
    ((0, 0, 10, 10), (5, 0, 15, 10), EACH),
    ((0, 0, 10, 10), (2, 4, 7, 8), "a box inside another is all of the overlap"),
    ((0, 0, 4, 4), (4, 0, 8, 4), "boxes that only touch share no area"),
    ((0, 0, 4, 4), (6, 6, 9, 9), f"{APART}, however far apart they are"),
    ((0, 0, 4, 4), (6, 0, 9, 4), f"{APART}, however far apart they are"),
    ((2, 0, 10, 4), (0, 1, 8, 5), "the overlap begins at the larger of two left edges"),
)


def overlap(answer: Function) -> Reasons:
    """answer(a, b) -> intersection over union of two boxes x1, y1, x2, y2."""

    # within the check, as ``area`` has its own: a function of the package would be an answer
    def iou(a: Sequence[int], b: Sequence[int], areas: Sequence[int] = ()) -> float:
        areas = areas or [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (a, b)]
        sides = [max(0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
        both = sides[0] * sides[1]
        return both / (sum(areas) - both)

    corners = torch.randint(0, 9, (12, 2, 2), generator=generator(3))
    sizes = torch.randint(1, 9, (12, 2, 2), generator=generator(4))
    others = torch.cat([corners, corners + sizes], 2).tolist()
    for a, b, reason in (*PAIRS, *((tuple(a), tuple(b), EACH) for a, b in others)):
        for one, other in ((a, b), (b, a)):
            got = float(answer(one, other))
            if abs(got - iou(a, b)) <= 1e-6:
                continue
            corner = "x2, y2 is a corner, not a width and height"
            sized = [(x, y, x + w, y + h) for x, y, w, h in (one, other)]
            longer = [(x1, y1, x2 + 1, y2 + 1) for x1, y1, x2, y2 in (one, other)]
            misread = (
                (iou(*sized), corner),
                (iou(a, b, (a[2] * a[3], b[2] * b[3])), corner),
                (iou(*longer), "edges lie between pixels: no + 1"),
            )
            yield from (why for value, why in misread if abs(got - value) < 1e-6)
            yield f"{reason} ({got:.3g} for {one} and {other})"


BEYOND = "the best precision at this recall or beyond counts"
LISTS = (  # which predictions are right, best first; how many objects there are; what it is about
    ((1, 1, 1), 3, "all found and nothing else is a precision of 1 at every recall"),
    ((1, 1), 4, "recall is a share of the objects, and half of them were never found"),
    ((0, 1), 1, "a wrong prediction in front of a right one halves the precision"),
    ((1, 0, 0, 1), 2, BEYOND),
    ((0, 1, 1, 1), 3, BEYOND),
    ((0, 0), 3, "nothing found is 0"),
)


def area(answer: Function) -> Reasons:
    """answer(right, objects) -> average precision of predictions, best first."""

    def precision(right: Sequence[int], objects: int) -> float:
        hits, points = 0, []
        for k, one in enumerate(right, 1):
            hits += one
            points.append((hits / objects, hits / k))
        ends = [k / 100 for k in range(101)]
        return sum(max((p for r, p in points if r >= e - 1e-12), default=0.0) for e in ends) / 101

    others = torch.randint(0, 2, (6, 7), generator=generator(5)).tolist()
    for right, objects, reason in (*LISTS, *((row, sum(row) + 1, BEYOND) for row in others)):
        got = float(answer(torch.tensor(right), objects))
        if not abs(got - precision(right, objects)) <= 0.011:  # a sum or an integral
            yield f"{reason} ({got:.3g} for {list(right)} of {objects} objects)"


@varied(
    numbers_in_all=(98_367, range(150_000, 300_000)),
    channels_of_first=(16, range(8, 33)),
    channels_of_second=(32, range(16, 49)),
)
def payload(numbers_in_all: int, channels_of_first: int, channels_of_second: int) -> Any:
    """The numbers that RPN sends for the scene detector, without batch statistics."""
    first, second = channels_of_first, channels_of_second
    total, last = numbers_in_all, 64 * 15
    kernels = first + first * second + second * 64 + 2 * 64 * 64  # 3 x 3
    return number(
        total - 8 * kernels,
        {
            total: "that is the dense message; the kernels have to be pooled",
            total - 9 * kernels: "each pooled kernel still sends one number, its mean",
            total - 8 * (kernels + last): "the last convolution is 1 x 1: pooling saves nothing"
            " there",
            8 * kernels: "that is what pooling saves; how much is left?",
            kernels: "kernels are not all: batch normalisation and the last convolution travel,"
            " too",
            kernels + last: "batch normalisation and the last convolution's biases travel, too",
            4 * (total - 8 * kernels): "that is the number of bytes; the question is for numbers",
        },
    )


def flipped(answer: Any) -> Reasons:
    """answer(boxes) -> the boxes [k, 4] in the picture of width 64 seen in a mirror."""
    boxes = torch.tensor([[0.0, 2.0, 10.0, 12.0], [30.0, 5.0, 64.0, 60.0], [22.0, 1.0, 42.0, 3.0]])
    before = boxes.clone()
    got = answer(boxes)
    yield not torch.equal(boxes, before) and "the boxes that came in are changed"
    if tuple(got.shape) != (3, 4):
        yield f"boxes of shape [3, 4] come out as {list(got.shape)}"
    if (got[:, 2] < got[:, 0]).any():
        yield "x1 and x2 change places as well: a mirror turns left edges into right ones"
    if torch.allclose(got[:, [0, 2]], before[:, [0, 2]]):
        yield "it is x that the mirror changes, and y that stays"
    x1, y1, x2, y2 = before.unbind(1)
    right = torch.stack([64 - x2, y1, 64 - x1, y2], 1)
    pixels = "edges lie between pixels: the mirror image of x is 64 - x, not 63 - x"
    wrong = {pixels: right - torch.tensor([1.0, 0, 1, 0])}
    yield compared(got, right, wrong, "the mirror image of (x1, y1, x2, y2) is not that")


EXERCISES = {
    "seeing-iou": overlap,
    "seeing-ap": area,
    "seeing-payload": payload,
    "seeing-mirror": flipped,
}

"""Chapter 10, seeing: pictures with boxes and masks, stored runs, and the checks of its
exercises.

``data/seeing/drawn.py`` stores what networks drew while they learned.
"""

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import decompress

import numpy as np
import torch

from ..data.sources import data_path
from ..seeing.scenes import SIDE
from .check import Function, Reasons, compared, generator, number, varied
from .grids import chapter_file

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .show import Shown

Rows = list[dict[str, Any]]
ROUNDS = ("clients", "pooled", "round", "map", "up")  # mAP@0.5; bytes of one client up
BOXES = ("clients", "pooled", "round", "scene", "x1", "y1", "x2", "y2", "kind", "score")
TRUE = {"fill": None, "strokeWidth": 2, "stroke": "#ffffff", "strokeDash": [3, 3]}
DRAWN = {"fill": None, "strokeWidth": 2.5}


@lru_cache(1)
def seen() -> dict[str, Any]:
    """What networks drew, masks as tensors; and the scenes of ``pictures``: ``images``,
    ``objects`` (true boxes) and ``masks``."""
    from ..seeing import detection, segmentation

    stored = json.loads(data_path("seeing", "grid.json").read_text(encoding="utf-8"))
    for picture in stored["pictures"]:
        if picture["task"] == "segmentation":
            drawn = picture["drawn"]
            picture["drawn"] = {t: [mask_of(text) for text in drawn[t]] for t in drawn}
    for run in stored["real"]:
        run |= {
            kind: [mask_of(text) for text in run[kind]] for kind in ("drawn", "truth")
        }
    spec = chapter_file("seeing")["pictures"]
    options = {
        "clients": 2,
        "train": 2,
        "test": spec["shared"]["test"],
        "device": "cpu",
    }
    x, boxes = (part[spec["scenes"]] for part in detection("digits", **options).test)
    masks = segmentation("digits", **options).test[1][spec["scenes"]]
    objects = [rows[rows[:, 4] >= 0].tolist() for rows in boxes]
    return stored | {"images": x, "masks": masks, "objects": objects}


def mask_of(text: str) -> torch.Tensor:
    """The classes of a square picture's pixels from the text in the file."""
    pixels = np.frombuffer(decompress(b64decode(text)), np.uint8).astype(int)
    return torch.from_numpy(pixels.reshape(2 * (round(len(pixels) ** 0.5),)))


def pooled_layers() -> "pandas.DataFrame":
    """The grid without its boxes: a row for each number of clients and of pooled
    layers, round."""
    import pandas

    return pandas.DataFrame(seen()["rounds"], columns=ROUNDS)


def scenes(panels: Sequence[Mapping[str, Any]], columns: int = 3) -> "Figure":
    """Pictures side by side, ``columns`` to a row. A panel has a ``title`` and may have
    ``image`` uint8 [1, 64, 64]; ``boxes`` (x1, y1, x2, y2, class, and a score or
    nothing) and ``truth``, white and dashed; ``mask``, the classes of its pixels in
    colours, 0 being none and 255 void;
    ``cells``, that many to a side; ``names``, which are written where a mask has most
    of one."""
    import matplotlib.pyplot as plt
    from matplotlib import colormaps

    from .vega import AMBER, GREY

    rows = -(-len(panels) // columns)
    width = min(1.65 * columns, 4.95)
    size = width, rows * (width / columns + 0.2)
    figure, every = plt.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False
    )
    for ax, panel in zip(every.flat, panels, strict=False):
        ax.set_title(panel.get("title", ""), fontsize=9)
        if "image" in panel:
            ax.imshow(
                np.asarray(panel["image"].cpu())[0],
                cmap="gray",
                extent=(0, SIDE, SIDE, 0),
            )
        if "mask" in panel:
            kinds = np.asarray(panel["mask"]).astype(int)
            shades = colormaps["tab10"](3 * kinds % 10)  # neighbours differ
            shades[kinds == 255] = (0.5, 0.5, 0.5, 0.35)
            shades[kinds == 0, 3] = 0
            ax.imshow(shades, extent=(0, SIDE, SIDE, 0), interpolation="nearest")
        for kind, name in panel.get("names", {}).items():
            v, u = (kinds == kind).nonzero()
            if len(u) > 0.02 * kinds.size:
                look = {"ha": "center", "va": "center", "fontsize": 9, "color": "white"}
                spot = {
                    "boxstyle": "square,pad=0.1",
                    "facecolor": "#222222",
                    "edgecolor": "none",
                }
                x, y = (float(np.median(at) + 0.5) * SIDE / len(kinds) for at in (u, v))
                place = np.clip(x, 14, SIDE - 14), np.clip(y, 6, SIDE - 6)
                ax.text(*place, name, bbox=spot, **look)
        for k in range(1, panel.get("cells", 0)):
            for line in (ax.axhline, ax.axvline):
                line(k * SIDE / panel["cells"], color=GREY, linewidth=0.6)
        for box in panel.get("truth", ()):
            outline(ax, box, edgecolor="white", linestyle=(0, (2, 2)))
        for box in panel.get("boxes", ()):
            outline(ax, box, edgecolor=AMBER)
            # the class, inside the picture
            x = float(box[0])
            y = max(float(box[1]), 9.0)
            ax.text(x, y, str(int(box[4])), color=AMBER, fontsize=9, va="bottom")
    for ax in every.flat:
        ax.set(xlim=(0, SIDE), ylim=(SIDE, 0), xticks=[], yticks=[])
    for ax in every.flat[len(panels) :]:
        ax.set_visible(False)
    return figure


def outline(ax: "Axes", box: Sequence[float], **look: Any) -> None:
    """A box as a rectangle."""
    from matplotlib.patches import Rectangle

    x1, y1, x2, y2 = (float(v) for v in box[:4])
    ax.add_patch(
        Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, linewidth=1.2, **look)
    )


# ---- boxes that move -----------------------------------------------------------------


def as_url(image: torch.Tensor) -> str:
    """An image uint8 [1, height, width] as a PNG in the text of an address."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[0].cpu().numpy()).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(file.getvalue()).decode()


def board(wide: float, high: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two axes without marks, in pixels of a scene: to the right and down."""
    ends = [0, wide], [high, -7]
    across, down = (
        {"axis": None, "scale": {"domain": end, "nice": False}} for end in ends
    )
    return across, down


def scene_chart(
    params: Rows, layers: list[Any], wide: dict, high: dict, unit: float
) -> dict:
    """The chart, a pixel of a scene being ``unit`` pixels both ways: scenes stay
    square."""
    from .vega import layered

    sides = (
        abs(end - start) * unit
        for start, end in (a["scale"]["domain"] for a in (wide, high))
    )
    width, height = map(round, sides)
    config = {"view": {"stroke": None}, "font": "sans-serif"}
    chart = layered(height, params, layers, width=width, config=config)
    del chart["autosize"]
    return chart


def pictures_at(images: Rows, size: float, wide: dict, high: dict) -> Any:
    """A layer of scenes ``url`` at ``left`` and ``top``, ``size`` pixels to a side."""
    from .vega import alt

    look = {"width": size, "height": size, "align": "left", "baseline": "top"}
    chart = alt.Chart(alt.InlineData(values=images)).mark_image(**look, aria=False)
    return chart.encode(
        alt.X("left:Q", **wide), alt.Y("top:Q", **high), alt.Url("url:N")
    )


STEERED = 34  # a test scene with a single digit


def steer_box() -> dict[str, Any]:
    """One cell's box over a scene, under sliders for the cell and the four numbers of
    Eq. (10.1), and how much it overlaps with the true one, Eq. (10.2)."""
    from ..seeing import detection
    from .vega import AMBER, BOLD, GREY, ONE, alt, slider

    x, y = (
        part[STEERED] for part in detection("digits", 2, train=2, device="cpu").test
    )
    a, b, c, d = y[0, :4].tolist()
    wide, high = board(SIDE + 52, SIDE + 1)
    ends = {"x1": "8*column", "y1": "8*row", "x2": "8*column + 8", "y2": "8*row + 8"}
    cell = alt.Chart(ONE).transform_calculate(**ends)
    box = alt.Chart(ONE).transform_calculate(
        cx="8 * (column + 1 / (1 + exp(-ox)))",
        cy="8 * (row + 1 / (1 + exp(-oy)))",
        w="8 * exp(ow)",
        h="8 * exp(oh)",
        x1="datum.cx - datum.w / 2",
        y1="datum.cy - datum.h / 2",
        x2="datum.cx + datum.w / 2",
        y2="datum.cy + datum.h / 2",
        across=f"max(0, min(datum.x2, {c}) - max(datum.x1, {a}))",
        along=f"max(0, min(datum.y2, {d}) - max(datum.y1, {b}))",
        both="datum.across * datum.along",
        union=f"datum.w * datum.h + {(c - a) * (d - b)} - datum.both",
    )
    truth = alt.Chart(alt.InlineData(values=[{"x1": a, "y1": b, "x2": c, "y2": d}]))
    sides = alt.X("x1:Q", **wide), alt.X2("x2"), alt.Y("y1:Q", **high), alt.Y2("y2")
    grid = [{"x1": 8 * k, "y1": 8 * j} for k in range(8) for j in range(8)]
    expressions = {
        "centre": "format(datum.cx, '.0f') + ', ' + format(datum.cy, '.0f')",
        "sides": "format(datum.w, '.0f') + ' x ' + format(datum.h, '.0f')",
        "shared": "format(datum.both, '.0f')",
        "covered": "format(datum.union, '.0f')",
        "IoU": "format(datum.both / datum.union, '.2f')",
    }
    layers = [
        pictures_at([{"url": as_url(x), "left": 0, "top": 0}], 3.0 * SIDE, wide, high),
        alt.Chart(alt.InlineData(values=grid))
        .transform_calculate(x2="datum.x1 + 8", y2="datum.y1 + 8")
        .mark_rect(fill=None, stroke=GREY, strokeWidth=0.5, aria=False)
        .encode(*sides),
        cell.mark_rect(fill=AMBER, fillOpacity=0.35, stroke=None).encode(*sides),
        truth.mark_rect(**TRUE).encode(*sides),
        box.mark_rect(**DRAWN, stroke=AMBER, clip=True).encode(*sides),
    ]
    for k, (name, text) in enumerate(expressions.items()):
        at = {"x": alt.XDatum(SIDE + 4, **wide), "y": alt.YDatum(8 + 13 * k, **high)}
        words = box.transform_calculate(t=f"'{name} ' + {text}")
        layers.append(words.mark_text(**BOLD).encode(**at, text="t:N"))
    params = [
        slider("column", "cell, column j", 5, 0, 7, 1),
        slider("row", "cell, row i", 3, 0, 7, 1),
        slider("ox", "across, o_x", 0, -4, 4, 0.1),
        slider("oy", "down, o_y", 0, -4, 4, 0.1),
        slider("ow", "width, o_w", 0.5, -1, 2, 0.05),
        slider("oh", "height, o_h", 0.5, -1, 2, 0.05),
    ]
    return scene_chart(params, layers, wide, high, 3.0)


def moving_boxes(guess: float | None = None) -> dict[str, Any]:
    """Three test scenes with the boxes that a model draws, under sliders for clients,
    pooled layers and rounds; its mAP beside FedAvg's and the reader's guess."""
    from ..seeing import detection
    from .vega import AMBER, BOLD, ONE, WORDS, alt, slider

    stored = seen()
    spec = chapter_file("seeing")["grid"]
    gap = SIDE + 6
    last = spec["shared"]["rounds"]
    clients = spec["clients"]
    test = detection(
        "digits", 2, train=2, test=spec["shared"]["test"], device="cpu"
    ).test
    corners = [(0, 0), (gap, 0), (0, gap + 6), (gap, gap + 6)]
    across, along = ([corner[axis] for corner in corners] for axis in (0, 1))
    images = [
        {"url": as_url(test[0][k]), "left": a, "top": b, "t": f"scene {n + 1}"}
        for n, (k, (a, b)) in enumerate(zip(spec["scenes"], corners, strict=False))
    ]
    truth = [
        {"scene": scene, "x1": x1, "y1": y1, "x2": x2, "y2": y2}
        for scene, k in enumerate(spec["scenes"])
        for x1, y1, x2, y2, kind, _ in test[1][k].tolist()
        if kind >= 0
    ]
    wide, high = board(SIDE + gap, 2 * SIDE + 13)

    def table(kind: str, names: Sequence[str]) -> alt.Chart:
        rows = [names, *stored[kind]]
        text = "\n".join(",".join(map(str, row[: len(names)])) for row in rows)
        parse = {"type": "csv", "parse": dict.fromkeys(names, "number")}
        chosen = "datum.clients == clients && datum.round == round"
        return alt.Chart(alt.InlineData(values=text, format=parse)).transform_filter(
            chosen
        )

    def placed(chart: alt.Chart) -> alt.Chart:
        """Boxes in their scene's panel."""
        ends = {f"x{k}": f"{across}[datum.scene] + datum.x{k}" for k in (1, 2)}
        ends |= {f"y{k}": f"{along}[datum.scene] + datum.y{k}" for k in (1, 2)}
        return chart.transform_calculate(**ends)

    def words(line: int, chart: alt.Chart, text: str) -> alt.Chart:
        """A line of the fourth panel."""
        at = {
            "x": alt.XDatum(gap + 2, **wide),
            "y": alt.YDatum(gap + 18 + 13 * line, **high),
        }
        return (
            chart.transform_calculate(t=text).mark_text(**BOLD).encode(**at, text="t:N")
        )

    x1 = alt.X("x1:Q", **wide)
    y1 = alt.Y("y1:Q", **high)
    sides = x1, alt.X2("x2"), y1, alt.Y2("y2")
    shades = {"domain": [spec["score"], 0.6], "range": [0.35, 1], "clamp": True}
    predicted = placed(table("boxes", BOXES).transform_filter("datum.pooled == pooled"))
    true = placed(alt.Chart(alt.InlineData(values=truth)))
    reached = table("rounds", ROUNDS[:4])
    value = "format(datum.map, '.2f')"
    layers = [
        pictures_at(images, 2.4 * SIDE, wide, high),
        alt.Chart(alt.InlineData(values=images))
        .transform_calculate(y="datum.top - 1")
        .mark_text(**WORDS, baseline="bottom")
        .encode(alt.X("left:Q", **wide), alt.Y("y:Q", **high), text="t:N"),
        true.mark_rect(**TRUE).encode(*sides),
        predicted.mark_rect(**DRAWN, stroke=AMBER).encode(
            *(*sides, alt.StrokeOpacity("score:Q", scale=shades, legend=None)),
            tooltip=["kind:N", "score:N"],
        ),
        predicted.mark_text(
            align="left",
            baseline="bottom",
            fontSize=12,
            color=AMBER,
            fontWeight="bold",
            dy=-1,
        ).encode(
            x1, y1, alt.Opacity("score:Q", scale=shades, legend=None), text="kind:N"
        ),
        words(0, alt.Chart(ONE), "'mAP@0.5'"),
        words(
            1, reached.transform_filter("datum.pooled == 0"), f"'FedAvg: ' + {value}"
        ),
        words(
            2,
            reached.transform_filter("datum.pooled == pooled"),
            f"pooled + (pooled == 1 ? ' layer' : ' layers') + ' pooled: ' + {value}",
        ),
        words(3, alt.Chart(ONE), "'your guess: ' + format(guess, '.2f')"),
    ]
    params = [
        slider(
            "guess",
            "your guess, all five pooled",
            0.5 if guess is None else guess,
            0,
            1,
            0.01,
        ),
        slider("pooled", "3 x 3 layers that RPN pools", 0, 0, spec["pooled"][-1], 1),
        slider("round", "round", last, 1, last, 1),
        slider(
            "clients",
            "clients",
            clients[1],
            clients[0],
            clients[-1],
            clients[1] - clients[0],
        ),
    ]
    return scene_chart(params, layers, wide, high, 2.4)


# ---- stored runs ---------------------------------------------------------------------


def learned(task: str) -> Rows:
    """A row a method of the stored runs on real pictures, in the last quarter of their
    rounds and in brackets in the last test: the mean over all classes, over those that
    are frequent; how far this is from FedAvg's in the last quarter, in how many seeds
    it is below, and what crosses."""
    from ..lab.results import paired
    from .claims import by_label, reached, two_measures

    runs = by_label("seeing_small", task=task)
    rows = []
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
        last = often(label, only_last=True)
        late = often(label)
        row = {"method": label, "all classes": reached(histories)}
        row |= {
            "frequent": two_measures([*last.values()], [*late.values()]),
            "to FedAvg": "",
            "below": "",
        }
        if label != "FedAvg":
            gap = paired(late, often("FedAvg"))
            row["to FedAvg"] = f"{gap.mean:+.3f}"
            row["below"] = f"{gap.seeds - gap.wins} of {gap.seeds}"
        count = len(
            histories[0].rows[0]["clients"]
        )  # one holder of all sends to nobody
        for way in ("up", "down"):
            sent = (
                np.mean([getattr(h, f"bytes_{way}").mean() for h in histories])
                / count
                / 1e3
            )
            row[way] = f"{sent:.1f}" if count > 1 else ""
        rows.append(row)
    return rows


# ---- figures -------------------------------------------------------------------------


def answering(number: str, task: Any) -> "Shown":
    """Three scenes with their boxes and cells, and below them the same with their
    masks."""
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
        caption="""Three scenes with their boxes and the 64 cells, and below the same
        with their masks, a colour for each digit.""",
        alt="""Three dark pictures with bright digits of different sizes and faint
        strokes, a dashed box close around each digit and a grid of eight by eight
        cells; below, the digits' pixels are coloured.""",
    )


def found_boxes(
    number: str, task: Any, detections: Sequence[dict[str, torch.Tensor]]
) -> "Shown":
    """Six test scenes with the true boxes and those that were found."""
    from .show import figure

    x, y = (part.cpu() for part in task.test)
    panels = []
    for k, hits in enumerate(detections[:6]):
        boxes = torch.cat([hits["boxes"], hits["labels"][:, None]], 1)[
            hits["scores"] > 0.3
        ].cpu()
        panels.append({"image": x[k], "truth": y[k][y[k, :, 4] >= 0], "boxes": boxes})
    return figure(
        number,
        scenes(panels),
        caption="""Six scenes that nobody trained on. Dashed: true boxes; orange: boxes
        with a score above 0.3, and the digit that is read.""",
        alt="""Six scenes. Orange boxes with a digit stand near most of the dashed true
        boxes; some digits are missed, some boxes are loose, some digits are wrong.""",
    )


def real_masks(number: str) -> "Shown":
    """Masks of photographs: the true ones, and what stored runs drew."""
    from ..seeing.published import VOC
    from .show import figure

    runs = seen()["real"]
    names = dict(enumerate(VOC, 1))
    panels: Rows = []
    for k, truth in enumerate(runs[0]["truth"]):
        panels.append({"mask": truth, "names": names, "title": "people drew"})
        panels += [
            {"mask": r["drawn"][k], "names": names, "title": r["label"]} for r in runs
        ]
    return figure(
        number,
        scenes(panels, columns=len(runs) + 1),
        caption="""Three photographs of VOC that nobody trained on, drawn as their
        masks, with the names of the classes that fill two hundredths of a picture.
        Grey: borders, which do not count. Stored runs with seed 0, after twelve
        rounds.""",
        alt="""Rows of coloured shapes. On the left what people drew; beside it the same
        shapes as the methods see them, with blocky outlines. All find the sheep; the
        horse under its rider is hardly seen, and dog and cat are mixed up.""",
    )


# ---- exercises -----------------------------------------------------------------------

EACH = "of the union the part that both have counts once"
APART = "boxes apart overlap by nothing"
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

    # within the check, as ``area`` has its own: a function of the package would be an
    # answer
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
# which predictions are right, best first; how many objects there are; what it is about
LISTS = (
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
        hits = 0
        points = []
        for k, one in enumerate(right, 1):
            hits += one
            points.append((hits / objects, hits / k))
        ends = [k / 100 for k in range(101)]
        return (
            sum(
                max((p for r, p in points if r >= e - 1e-12), default=0.0) for e in ends
            )
            / 101
        )

    others = torch.randint(0, 2, (6, 7), generator=generator(5)).tolist()
    for right, objects, reason in (
        *LISTS,
        *((row, sum(row) + 1, BEYOND) for row in others),
    ):
        got = float(answer(torch.tensor(right), objects))
        if not abs(got - precision(right, objects)) <= 0.011:  # a sum or an integral
            yield f"{reason} ({got:.3g} for {list(right)} of {objects} objects)"


@varied(
    numbers_in_all=(98_367, range(150_000, 300_000)),
    channels_of_first=(16, range(8, 33)),
    channels_of_second=(32, range(16, 49)),
)
def payload(
    numbers_in_all: int, channels_of_first: int, channels_of_second: int
) -> Any:
    """The numbers that RPN sends for the scene detector, without batch statistics."""
    first = channels_of_first
    second = channels_of_second
    total = numbers_in_all
    last = 64 * 15
    kernels = first + first * second + second * 64 + 2 * 64 * 64  # 3 x 3
    return number(
        total - 8 * kernels,
        {
            total: "that is the dense message; the kernels have to be pooled",
            total - 9 * kernels: "each pooled kernel still sends one number, its mean",
            total
            - 8
            * (kernels + last): "the last convolution is 1 x 1: pooling saves nothing"
            " there",
            8 * kernels: "that is what pooling saves; how much is left?",
            kernels: "kernels are not all: batch normalisation and the last "
            "convolution travel,"
            " too",
            kernels
            + last: "batch normalisation and the last convolution's biases travel, too",
            4
            * (
                total - 8 * kernels
            ): "that is the number of bytes; the question is for numbers",
        },
    )


def flipped(answer: Any) -> Reasons:
    """answer(boxes) -> the boxes [k, 4] in the picture of width 64 seen in a mirror."""
    boxes = torch.tensor(
        [[0.0, 2.0, 10.0, 12.0], [30.0, 5.0, 64.0, 60.0], [22.0, 1.0, 42.0, 3.0]]
    )
    before = boxes.clone()
    got = answer(boxes)
    yield not torch.equal(boxes, before) and "the boxes that came in are changed"
    if tuple(got.shape) != (3, 4):
        yield f"boxes of shape [3, 4] come out as {list(got.shape)}"
    if (got[:, 2] < got[:, 0]).any():
        yield (
            "x1 and x2 change places as well: a mirror turns left edges into right ones"
        )
    if torch.allclose(got[:, [0, 2]], before[:, [0, 2]]):
        yield "it is x that the mirror changes, and y that stays"
    x1, y1, x2, y2 = before.unbind(1)
    right = torch.stack([64 - x2, y1, 64 - x1, y2], 1)
    pixels = "edges lie between pixels: the mirror image of x is 64 - x, not 63 - x"
    wrong = {pixels: right - torch.tensor([1.0, 0, 1, 0])}
    yield compared(
        got, right, wrong, "the mirror image of (x1, y1, x2, y2) is not that"
    )


EXERCISES = {
    "seeing-iou": overlap,
    "seeing-ap": area,
    "seeing-payload": payload,
    "seeing-mirror": flipped,
}

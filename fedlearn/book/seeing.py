"""Chapter 10, seeing: pictures with boxes and masks, stored runs, and the checks of its
exercises.

``data/seeing/drawn.py`` stores what networks drew while they learned.
"""

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import decompress

import numpy as np
import torch

from ..data import data_path
from ..errors import extra
from ..seeing import TASKS
from ..seeing.scenes import SIDE
from .check import Function, Reasons, compared, number, varied
from .grids import chapter_file

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .show import Shown

Rows = list[dict[str, Any]]
ROUNDS = ("clients", "pooled", "round", "map", "up")  # mAP@0.5; bytes of one client up
CORNERS = ("x1", "y1", "x2", "y2")
BOXES = ("clients", "pooled", "round", *CORNERS, "kind", "score")
SIDES = {
    "x": "x1:Q",
    "x2": "x2",
    "y": "y1:Q",
    "y2": "y2",
}
FRAME = (0, SIDE, SIDE, 0)
TRUE = {
    "fill": None,
    "strokeWidth": 2,
    "stroke": "#ffffff",
    "strokeDash": [3, 3],
}
DRAWN = {"fill": None, "strokeWidth": 2.5}
MARGIN = 7  # above a chart's scenes, in their pixels
STEERED = 34  # a test scene with a single digit


@lru_cache(1)
def seen() -> dict[str, Any]:
    """What networks drew, with masks as tensors, and the true ``masks`` of the scenes
    in ``pictures``."""
    stored = json.loads(data_path("seeing", "grid.json").read_text(encoding="utf-8"))
    for picture in stored["pictures"]:
        if picture["task"] == "segmentation":
            drawn = picture["drawn"]
            picture["drawn"] = {t: masks_of(texts) for t, texts in drawn.items()}
    for run in stored["real"]:
        run["drawn"] = masks_of(run["drawn"])
        run["truth"] = masks_of(run["truth"])
    spec = chapter_file("seeing")["pictures"]
    _, masks = scenes_of("segmentation", spec["shared"]["test"])
    stored["masks"] = masks[spec["scenes"]]
    return stored


def masks_of(texts: Iterable[str]) -> list[torch.Tensor]:
    """Square masks from their texts in the file."""
    masks = []
    for text in texts:
        values = np.frombuffer(decompress(b64decode(text)), np.uint8)
        pixels = values.astype(int)
        side = round(len(pixels) ** 0.5)
        masks.append(torch.from_numpy(pixels.reshape(side, side)))
    return masks


def scenes_of(task: str, count: int | None = None) -> tuple[torch.Tensor, ...]:
    """The scenes of the test set and their boxes or masks."""
    make: Any = TASKS[task]
    return make("digits", 2, train=2, test=count, device="cpu").test


def pooled_layers() -> "pandas.DataFrame":
    """The grid without its boxes: a row for each number of clients, number of pooled
    layers, and round."""
    import pandas

    return pandas.DataFrame(seen()["rounds"], columns=ROUNDS)


# ---- charts with sliders -------------------------------------------------------------


def as_url(image: torch.Tensor) -> str:
    """The data URL of an image uint8 [1, height, width]."""
    from PIL import Image

    file = io.BytesIO()
    picture = Image.fromarray(image[0].numpy())
    picture.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(file.getvalue()).decode()


def scene_chart(
    images: Rows,
    layers: list[Any],
    params: Rows,
    width: int,
    height: int,
    unit: float,
) -> dict[str, Any]:
    """The spec of a chart with axes in pixels of a scene, to the right and down. The
    ``layers`` are on top of ``images``, which have a url, left and top. A pixel of a
    scene is ``unit`` pixels of the screen in both directions."""
    import altair as alt

    from .vega import layered

    side = SIDE * unit
    look = {
        "width": side,
        "height": side,
        "align": "left",
        "baseline": "top",
        "aria": False,
    }
    across = alt.Scale(domain=[0, width], nice=False)
    down = alt.Scale(domain=[height, -MARGIN], nice=False)
    scenes = alt.Chart(alt.InlineData(values=images))
    scenes = scenes.mark_image(**look).encode(
        alt.X("left:Q", scale=across),
        alt.Y("top:Q", scale=down),
        alt.Url("url:N"),
    )
    context = {"top_level": False}
    with alt.data_transformers.enable(consolidate_datasets=False):
        marks = [
            layer.to_dict(validate=False, context=context)
            for layer in (scenes, *layers)
        ]
    chart = layered(
        round((height + MARGIN) * unit),
        params,
        marks,
        width=round(width * unit),
        config={
            "view": {"stroke": None},
            "font": "sans-serif",
            "axis": {"disable": True},
        },
    )
    del chart["autosize"]
    return chart


def steer_box() -> dict[str, Any]:
    """One cell's box over a scene, under sliders for the cell and the four numbers of
    Eq. (10.1), and how much it overlaps with the true one, Eq. (10.2)."""
    with extra("lesson"):
        import altair as alt  # takes long to load

    from .vega import AMBER, BOLD, GREY, slider

    images, objects = scenes_of("detection")
    a, b, c, d = objects[STEERED, 0, :4].tolist()
    truth = {"x1": a, "y1": b, "x2": c, "y2": d}
    grid = [{"x1": 8 * (k // 8), "y1": 8 * (k % 8)} for k in range(64)]
    once = alt.InlineData(values=[{}])
    cell = alt.Chart(once).transform_calculate(
        x1="8*column",
        y1="8*row",
        x2="8*column + 8",
        y2="8*row + 8",
    )
    box = alt.Chart(once).transform_calculate(
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
        shared="datum.across * datum.along",
        union=f"datum.w * datum.h + {(c - a) * (d - b)} - datum.shared",
        lines="""[
            'centre ' + format(datum.cx, '.0f') + ', ' + format(datum.cy, '.0f'),
            'sides ' + format(datum.w, '.0f') + ' x ' + format(datum.h, '.0f'),
            'shared ' + format(datum.shared, '.0f'),
            'covered ' + format(datum.union, '.0f'),
            'IoU ' + format(datum.shared / datum.union, '.2f')
        ]""",
    )
    layers = [
        alt.Chart(alt.InlineData(values=grid))
        .transform_calculate(x2="datum.x1 + 8", y2="datum.y1 + 8")
        .mark_rect(fill=None, stroke=GREY, strokeWidth=0.5, aria=False),
        cell.mark_rect(fill=AMBER, fillOpacity=0.35, stroke=None),
        alt.Chart(alt.InlineData(values=[truth])).mark_rect(**TRUE),
        box.mark_rect(**DRAWN, stroke=AMBER, clip=True),
    ]
    layers = [layer.encode(**SIDES) for layer in layers]
    words = box.mark_text(**BOLD, lineHeight=39).encode(
        x=alt.datum(SIDE + 4),
        y=alt.datum(8),
        text="lines:N",
    )
    params = [
        slider("column", "cell, column j", 5, 0, 7, 1),
        slider("row", "cell, row i", 3, 0, 7, 1),
        slider("ox", "across, o_x", 0, -4, 4, 0.1),
        slider("oy", "down, o_y", 0, -4, 4, 0.1),
        slider("ow", "width, o_w", 0.5, -1, 2, 0.05),
        slider("oh", "height, o_h", 0.5, -1, 2, 0.05),
    ]
    scene = {"url": as_url(images[STEERED]), "left": 0, "top": 0}
    return scene_chart([scene], [*layers, words], params, SIDE + 52, SIDE + 1, 3.0)


def csv_chart(names: Sequence[str], rows: Iterable[Sequence[float]]) -> Any:
    """A chart of rows of numbers, as CSV, which is much shorter than JSON."""
    import altair as alt

    lines = [",".join(map(str, row)) for row in (names, *rows)]
    parse = {"type": "csv", "parse": dict.fromkeys(names, "number")}
    data = alt.InlineData(values="\n".join(lines), format=parse)
    return alt.Chart(data)


def moving_boxes(guess: float | None = None) -> dict[str, Any]:
    """Three test scenes with the boxes that a model draws, under sliders for clients,
    pooled layers and rounds; its mAP beside FedAvg's and the reader's guess."""
    with extra("lesson"):
        import altair as alt

    from .vega import AMBER, BOLD, WORDS, slider

    spec = chapter_file("seeing")["grid"]
    test_x, test_y = scenes_of("detection", spec["shared"]["test"])
    gap = SIDE + 6
    places = [(0, 0), (gap, 0), (0, gap + 6)]

    def placed(scene: int, box: Sequence[float]) -> list[float]:
        """A box in its scene's panel."""
        starts = 2 * places[scene]
        return [round(v + start, 1) for v, start in zip(box, starts, strict=True)]

    images = []
    truth = []
    for scene, k in enumerate(spec["scenes"]):
        left, top = places[scene]
        image = {
            "url": as_url(test_x[k]),
            "left": left,
            "top": top,
            "title": f"scene {scene + 1}",
            "above": top - 1,
        }
        images.append(image)
        for *box, kind, _ in test_y[k].tolist():
            if kind >= 0:
                truth.append(placed(scene, box))
    boxes = []
    for *run, scene, x1, y1, x2, y2, kind, score in seen()["boxes"]:
        boxes.append([*run, *placed(scene, (x1, y1, x2, y2)), kind, score])
    rounds = pooled_layers().drop(columns="up")
    alone = rounds[rounds["pooled"] == 0].drop(columns="pooled")
    rounds = rounds.merge(alone, on=["clients", "round"], suffixes=("", "_fedavg"))
    chosen = "datum.clients == clients && datum.round == round"
    chosen += " && datum.pooled == pooled"
    predicted = csv_chart(BOXES, boxes).transform_filter(chosen)
    shades = alt.Scale(
        domain=[spec["score"], 0.6],
        range=[0.35, 1],
        clamp=True,
    )
    layers = [
        alt.Chart(alt.InlineData(values=images))
        .mark_text(**WORDS, baseline="bottom")
        .encode(x="left:Q", y="above:Q", text="title:N"),
        csv_chart(CORNERS, truth).mark_rect(**TRUE).encode(**SIDES),
        predicted.mark_rect(**DRAWN, stroke=AMBER).encode(
            **SIDES,
            strokeOpacity=alt.StrokeOpacity("score:Q", scale=shades, legend=None),
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
            x="x1:Q",
            y="y1:Q",
            opacity=alt.Opacity("score:Q", scale=shades, legend=None),
            text="kind:N",
        ),
        csv_chart(list(rounds), rounds.to_numpy())
        .transform_filter(chosen)
        .transform_calculate(
            lines="""[
                'mAP@0.5',
                'FedAvg: ' + format(datum.map_fedavg, '.2f'),
                pooled + (pooled == 1 ? ' layer' : ' layers') + ' pooled: '
                    + format(datum.map, '.2f'),
                'your guess: ' + format(guess, '.2f')
            ]"""
        )
        .mark_text(**BOLD, lineHeight=31.2)
        .encode(
            x=alt.datum(gap + 2),
            y=alt.datum(gap + 18),
            text="lines:N",
        ),
    ]
    first, second, *_, highest = spec["clients"]
    start = 0.5 if guess is None else guess
    last = spec["shared"]["rounds"]
    params = [
        slider("guess", "your guess, all five pooled", start, 0, 1, 0.01),
        slider("pooled", "3 x 3 layers that RPN pools", 0, 0, spec["pooled"][-1], 1),
        slider("round", "round", last, 1, last, 1),
        slider("clients", "clients", second, first, highest, second - first),
    ]
    return scene_chart(images, layers, params, SIDE + gap, 2 * SIDE + 13, 2.4)


# ---- stored runs ---------------------------------------------------------------------


def learned(task: str) -> Rows:
    """The stored runs on photographs, a row a method: the mean over all classes and
    over the frequent ones, in the last quarter of the rounds and in brackets in the
    last test; the difference from FedAvg over the frequent classes in the last quarter,
    the number of seeds in which it is negative, and the kB of a client in a round."""
    from ..lab.results import paired
    from .claims import by_label, reached, two_measures

    runs = by_label("seeing_small", task=task)
    column, frequent = chapter_file("seeing")["real"]["frequent"][task]

    def often(tests: Rows) -> float:
        """The mean over the frequent classes."""
        values = np.array([row[column] for row in tests], float)
        return float(values[:, frequent].mean())

    def by_seed(label: str) -> dict[int, float]:
        """The mean over the frequent classes in the last quarter, by seed."""
        values = {}
        for h in runs[label]:
            values[h.meta["task"]["seed"]] = often(h.late)
        return values

    rows = []
    for label, histories in runs.items():
        last = [often([h.final]) for h in histories]
        late = by_seed(label)
        gap = paired(late, by_seed("FedAvg"))
        count = len(histories[0].rows[0]["clients"])
        kilobytes = 1e3 * count
        up = np.mean([h.bytes_up.mean() for h in histories]) / kilobytes
        down = np.mean([h.bytes_down.mean() for h in histories]) / kilobytes
        row = {
            "method": label,
            "all classes": reached(histories),
            "frequent": two_measures(last, list(late.values())),
            "to FedAvg": f"{gap.mean:+.3f}",
            "below": f"{gap.seeds - gap.wins} of {gap.seeds}",
            "up": f"{up:.1f}",
            "down": f"{down:.1f}",
        }
        if label == "FedAvg":
            row |= {"to FedAvg": "", "below": ""}
        if count == 1:  # one holder of all sends to nobody
            row |= {"up": "", "down": ""}
        rows.append(row)
    return rows


# ---- figures -------------------------------------------------------------------------


def panels(titles: Sequence[str], columns: int) -> tuple["Figure", list["Axes"]]:
    """Axes in pixels of a scene, ``columns`` to a row."""
    import matplotlib.pyplot as plt

    rows = len(titles) // columns
    width = 4.95
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(width, rows * (width / columns + 0.2)),
        layout="constrained",
    )
    for ax, title in zip(axes.flat, titles, strict=True):
        ax.set_title(title, fontsize=9)
        ax.axis(FRAME)
        ax.set(xticks=[], yticks=[])
    return figure, list(axes.flat)


def draw_image(ax: "Axes", image: torch.Tensor) -> None:
    """A scene uint8 [1, 64, 64]."""
    ax.imshow(image[0], cmap="gray", extent=FRAME)


def class_color(kind: Any) -> Any:
    """The colours of ten classes in a mask; those of neighbours differ."""
    from matplotlib import colormaps

    return colormaps["tab10"](3 * kind % 10)


def draw_mask(ax: "Axes", mask: torch.Tensor) -> None:
    """A colour for each class, nothing for the background 0, grey for void 255."""
    kinds = np.asarray(mask).astype(int)
    shades = class_color(kinds)
    shades[kinds == 255] = (0.5, 0.5, 0.5, 0.35)
    shades[kinds == 0, 3] = 0
    ax.imshow(shades, extent=FRAME, interpolation="nearest")


def draw_boxes(ax: "Axes", boxes: torch.Tensor, **look: Any) -> None:
    """Boxes as rectangles."""
    from matplotlib.patches import Rectangle

    for x1, y1, x2, y2 in boxes[:, :4].tolist():
        box = Rectangle(
            (x1, y1),
            x2 - x1,
            y2 - y1,
            fill=False,
            linewidth=1.2,
            **look,
        )
        ax.add_patch(box)


def draw_truth(ax: "Axes", objects: torch.Tensor) -> None:
    """The true boxes, white and dashed."""
    boxes = objects[objects[:, 4] >= 0]
    draw_boxes(ax, boxes, edgecolor="white", linestyle=(0, (2, 2)))


def answering(number: str, task: Any) -> "Shown":
    """Three scenes with their boxes and cells, and below them the scenes with their
    masks."""
    from ..seeing import digit_scenes
    from .show import figure
    from .vega import GREY

    x, y = (part[:3].cpu() for part in task.train)
    masked = digit_scenes("masks")
    picture, axes = panels(["boxes"] * 3 + ["mask"] * 3, 3)
    for i, image in enumerate(x):
        draw_image(axes[i], image)
        draw_truth(axes[i], y[i])
        for k in range(1, 8):
            axes[i].axhline(8 * k, color=GREY, linewidth=0.6)
            axes[i].axvline(8 * k, color=GREY, linewidth=0.6)
        # the scene's position in the source with masks
        equal = (masked.train_x == image).flatten(1)
        k = int(equal.all(1).int().argmax())
        draw_image(axes[i + 3], image)
        draw_mask(axes[i + 3], masked.train_y[k])
    return figure(
        number,
        picture,
        caption="""Three scenes with their boxes and the 64 cells, and below the same
        with their masks, a colour for each digit.""",
        alt="""Three dark pictures with bright digits of different sizes and faint
        strokes, a dashed box close around each digit and a grid of eight by eight
        cells; below, the digits' pixels are coloured.""",
    )


def found_boxes(
    number: str, task: Any, detections: Sequence[dict[str, torch.Tensor]]
) -> "Shown":
    """Six test scenes with the true boxes and the detections."""
    from .show import figure
    from .vega import AMBER

    x, y = (part.cpu() for part in task.test)
    picture, axes = panels([""] * 6, 3)
    for i, ax in enumerate(axes):
        draw_image(ax, x[i])
        draw_truth(ax, y[i])
        strong = detections[i]["scores"] > 0.3
        boxes = detections[i]["boxes"][strong].cpu()
        kinds = detections[i]["labels"][strong].tolist()
        draw_boxes(ax, boxes, edgecolor=AMBER)
        for box, kind in zip(boxes.tolist(), kinds, strict=True):
            top = max(box[1], 9.0)  # the class stays inside the picture
            ax.text(
                box[0],
                top,
                kind,
                color=AMBER,
                fontsize=9,
                va="bottom",
            )
    return figure(
        number,
        picture,
        caption="""Six scenes that nobody trained on. Dashed: true boxes; orange: boxes
        with a score above 0.3, and the digit that is read.""",
        alt="""Six scenes. Orange boxes with a digit stand near most of the dashed true
        boxes; some digits are missed, some boxes are loose, some digits are wrong.""",
    )


def real_masks(number: str) -> "Shown":
    """Masks of photographs: the true masks, and those of stored runs."""
    from matplotlib.patches import Patch

    from ..seeing.published import VOC
    from .show import figure

    runs = seen()["real"]
    columns = {"people drew": runs[0]["truth"]}
    for run in runs:
        columns[run["label"]] = run["drawn"]
    rows = list(zip(*columns.values(), strict=True))
    picture, axes = panels(list(columns) * len(rows), len(columns))
    drawn = sorted({*np.unique(np.stack([*chain(*rows)]))} - {0, 255})
    place = np.arange(256)
    place[drawn] = range(1, len(drawn) + 1)
    for ax, mask in zip(axes, chain(*rows), strict=True):
        draw_mask(ax, place[np.asarray(mask)])
    for ax, (truth, *_) in zip(axes[:: len(columns)], rows, strict=True):
        kinds = [k for k in drawn if k in truth]
        ax.set_ylabel(", ".join(VOC[k - 1] for k in kinds), fontsize=9)
    classes = [Patch(color=class_color(place[k]), label=VOC[k - 1]) for k in drawn]
    picture.legend(
        handles=classes,
        loc="outside lower center",
        ncols=len(drawn),
        frameon=False,
        fontsize=9,
        handlelength=1,
        columnspacing=1,
    )
    return figure(
        number,
        picture,
        caption="""What people drew into three photographs of VOC that nobody trained
        on, and what networks drew; the photographs are not shown. Beside each
        row: what people drew. Grey is not judged: the outlines of things, and the
        padding beside or below a picture. Stored runs with seed 0, after twelve
        rounds.""",
        alt="""Rows of coloured shapes. On the left what people drew; beside it the same
        shapes as the methods see them, with blocky outlines. All find the sheep; the
        horse under its rider is hardly seen, and dog and cat are mixed up.""",
    )


# ---- exercises -----------------------------------------------------------------------

PAIRS = (  # of boxes: equal, overlapping, one inside, touching, apart
    ((0, 0, 10, 10), (0, 0, 10, 10)),
    ((2, 3, 6, 7), (4, 3, 8, 7)),
    ((0, 0, 10, 10), (5, 0, 15, 10)),
    ((0, 0, 10, 10), (2, 4, 7, 8)),
    ((0, 0, 4, 4), (4, 0, 8, 4)),
    ((0, 0, 4, 4), (6, 6, 9, 9)),
    ((0, 0, 4, 4), (6, 0, 9, 4)),
    ((2, 0, 10, 4), (0, 1, 8, 5)),
    ((3, 1, 9, 8), (5, 2, 12, 6)),
    ((1, 4, 8, 5), (6, 2, 7, 9)),
)


def overlap(answer: Function) -> Reasons:
    """answer(a, b) -> intersection over union of two boxes x1, y1, x2, y2."""

    # a closure, because a function of the package could be handed in as the answer
    def iou(pairs: torch.Tensor, least: int = 0, start: int = 1) -> torch.Tensor:
        low, high = pairs.chunk(2, 2)
        ends = high.amin(1) - low.amax(1)
        shared = ends.clamp(min=least).prod(1)
        areas = (high - start * low).prod(2)
        return shared / (areas.sum(1) - shared)

    pairs = torch.tensor(PAIRS)
    pairs = torch.cat([pairs, pairs.flip(1)])
    got = [float(answer(tuple(a), tuple(b))) for a, b in pairs.tolist()]
    right = iou(pairs)
    sized = pairs.clone()
    sized[..., 2:] += pairs[..., :2]
    corner = "x2, y2 is a corner, not a width and height"
    wrong = {
        "boxes apart overlap by nothing": iou(pairs, least=-99),
        "a box and itself overlap wholly: 1": right / (1 + right),
        "edges lie between pixels: no + 1": iou(pairs + torch.tensor([0, 0, 1, 1])),
        corner: iou(sized),
        f"x2 * y2 is no area: {corner}": iou(pairs, start=0),
    }
    otherwise = "of the union the part that both have counts once"
    yield compared(got, right, wrong, otherwise)


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

    def average(right: Sequence[int], objects: int) -> float:
        hits = np.cumsum(right)
        precision = hits / np.arange(1, len(right) + 1)
        heights = []
        for recall in np.linspace(0, objects, 101):
            heights.append(max(precision[hits >= recall - 1e-9], default=0.0))
        return float(np.mean(heights))

    for right, objects, reason in LISTS:
        got = float(answer(torch.tensor(right), objects))
        if not abs(got - average(right, objects)) <= 0.011:  # a sum or an integral
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
    sent = total - 8 * kernels
    wrong: dict[float, str] = {
        total: "that is the dense message; the kernels have to be pooled",
        total - 9 * kernels: "each pooled kernel still sends one number, its mean",
        sent - 8 * last: "the last convolution is 1 x 1: pooling saves nothing there",
        8 * kernels: "that is what pooling saves, and not what is left",
        kernels: "kernels are not all: batch normalisation and the last convolution "
        "travel, too",
        kernels + last: "batch normalisation and the last convolution's biases travel, "
        "too",
        4 * sent: "that is the number of bytes; the question is for numbers",
    }
    return number(sent, wrong)


def flipped(answer: Any) -> Reasons:
    """answer(boxes) -> the boxes [k, 4] in the picture of width 64 seen in a mirror."""
    boxes = torch.tensor(
        [
            [0.0, 2.0, 10.0, 12.0],
            [30.0, 5.0, 64.0, 60.0],
            [22.0, 1.0, 42.0, 3.0],
        ]
    )
    before = boxes.clone()
    got = answer(boxes)
    yield not torch.equal(boxes, before) and "the boxes that came in are changed"
    if got.shape != boxes.shape:
        yield f"boxes of shape [3, 4] come out as {list(got.shape)}"
    x1, y1, x2, y2 = before.unbind(1)
    right = torch.stack([64 - x2, y1, 64 - x1, y2], 1)
    pixels = "edges lie between pixels: the mirror image of x is 64 - x, not 63 - x"
    upside_down = torch.stack([x1, 64 - y2, x2, 64 - y1], 1)
    wrong = {
        "x1 and x2 change places as well": right[:, [2, 1, 0, 3]],
        "it is x that the mirror changes, and y that stays": upside_down,
        pixels: right - torch.tensor([1, 0, 1, 0]),
    }
    otherwise = "the mirror image of (x1, y1, x2, y2) is not that"
    yield compared(got, right, wrong, otherwise)


EXERCISES = {
    "seeing-iou": overlap,
    "seeing-ap": area,
    "seeing-payload": payload,
    "seeing-mirror": flipped,
}

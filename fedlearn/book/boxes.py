"""Figures of scenes with boxes and masks, and the explorer in which predicted boxes move."""

import io
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..data.scenes import SIDE
from ..plot import COLOURS
from .grids import chapter_file
from .seeing import BOXES, ROUNDS, seen
from .vega import GREY, slider

BOX = {"type": "rect", "fill": None, "strokeWidth": 2}


def scenes(panels: Sequence[Mapping[str, Any]], columns: int = 3) -> Figure:
    """Scenes side by side, ``columns`` to a row. A panel has ``image`` uint8 [1, 64, 64] and a
    ``title``; ``boxes`` (x1, y1, x2, y2, class, and a score or nothing) and ``truth``, white and
    dashed; ``mask``, the classes of its pixels in colours, 0 being none; ``cells``, that many to a
    side."""
    rows = -(-len(panels) // columns)
    figure, every = plt.subplots(
        rows, columns, figsize=(1.65 * columns, 1.85 * rows), layout="constrained", squeeze=False
    )
    for ax, its in zip(every.flat, panels, strict=False):
        ax.set_title(its.get("title", ""), fontsize=9)
        ax.imshow(np.asarray(its["image"].cpu())[0], cmap="gray", extent=(0, SIDE, SIDE, 0))
        if "mask" in its:
            kinds = np.asarray(its["mask"]).astype(int)
            shades = colormaps["tab10"](kinds - 1)
            shades[..., 3] = kinds > 0
            ax.imshow(shades, extent=(0, SIDE, SIDE, 0), interpolation="nearest")
        for k in range(1, its.get("cells", 0)):
            for line in (ax.axhline, ax.axvline):
                line(k * SIDE / its["cells"], color=GREY, linewidth=0.6)
        for box in its.get("truth", ()):
            frame(ax, box, edgecolor="white", linestyle=(0, (2, 2)))
        for box in its.get("boxes", ()):
            frame(ax, box, edgecolor=COLOURS[5])
            x, y = float(box[0]), max(float(box[1]), 9.0)  # the class, inside the picture
            ax.text(x, y, str(int(box[4])), color=COLOURS[5], fontsize=9, va="bottom")
    for ax in every.flat:
        ax.set(xlim=(0, SIDE), ylim=(SIDE, 0), xticks=[], yticks=[])
    for ax in every.flat[len(panels) :]:
        ax.set_visible(False)
    return figure


def frame(ax: Axes, box: Sequence[float], **look: Any) -> None:
    """A box as a rectangle."""
    x1, y1, x2, y2 = (float(v) for v in box[:4])
    ax.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, linewidth=1.2, **look))


def as_url(image: torch.Tensor) -> str:
    """An image uint8 [1, height, width] as a PNG in the text of an address."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[0].cpu().numpy()).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(file.getvalue()).decode()


def moving_boxes(guess: float | None = None) -> dict[str, Any]:
    """Three test scenes with the boxes that a model draws, and its mAP beside FedAvg's, under
    sliders for clients, pooled layers and rounds; the reader's guess is a line."""
    from ..tasks import detection

    its, spec = seen(), chapter_file("seeing")["grid"]
    shared, gap = spec["shared"], SIDE + 6
    test = detection("digits", clients=2, train=2, test=shared["test"], device="cpu").test
    corners = [(0, 0), (gap, 0), (0, gap + 6), (gap, gap + 6)]
    last = shared["rounds"]
    images = [
        {"url": as_url(test[0][k]), "left": left, "top": top}
        for k, (left, top) in zip(spec["scenes"], corners, strict=False)
    ]
    truth = [
        {"scene": scene, "x1": x1, "y1": y1, "x2": x2, "y2": y2}
        for scene, k in enumerate(spec["scenes"])
        for x1, y1, x2, y2, kind, _ in test[1][k].tolist()
        if kind >= 0
    ]
    columns = {"boxes": BOXES, "rounds": ROUNDS[:4]}
    tables = {
        kind: {
            "values": "\n".join(
                ",".join(map(str, row[: len(names)])) for row in [names, *its[kind]]
            ),
            "format": {"type": "csv", "parse": dict.fromkeys(names, "number")},
        }
        for kind, names in columns.items()
    }
    number = {"type": "quantitative"}
    # one unit is 2.4 pixels both ways, so that scenes stay square
    x = {**number, "scale": {"domain": [0, SIDE + gap], "nice": False}, "axis": None}
    y = {**number, "scale": {"domain": [2 * SIDE + 13, -7], "nice": False}, "axis": None}
    left, top = corners[3]
    places = [
        {"calculate": f"{corners_of(corners, 0)}[datum.scene] + datum.{a}", "as": a}
        for a in ("x1", "x2")
    ] + [
        {"calculate": f"{corners_of(corners, 1)}[datum.scene] + datum.{a}", "as": a}
        for a in ("y1", "y2")
    ]
    sides = {
        "x": {"field": "x1", **x},
        "x2": {"field": "x2"},
        "y": {"field": "y1", **y},
        "y2": {"field": "y2"},
    }
    here = {"filter": "datum.clients == clients && datum.round == round && datum.pooled == pooled"}
    shades = {"domain": [spec["score"], 0.6], "range": [0.35, 1], "clamp": True}
    certain = {"field": "score", **number, "scale": shades, "legend": None}
    words = {"type": "text", "align": "left", "baseline": "bottom", "fontSize": 12}
    at_curve = [
        {"calculate": f"{left} + {SIDE} * datum.round / {last}", "as": "x1"},
        {"calculate": f"{top} + {SIDE} * (1 - datum.map)", "as": "y1"},
    ]

    def curve(which: str, colour: str, dash: list[int], mark: str) -> list[dict[str, Any]]:
        """A line of the fourth panel, and its value in the round that is chosen."""
        lines = [{"filter": f"datum.clients == clients && {which}"}, *at_curve]
        place = {"x": {"field": "x1", **x}, "y": {"field": "y1", **y}}
        tip = [{"field": "round"}, {"field": "map", "title": "mAP@0.5"}]
        return [
            {
                "data": tables["rounds"],
                "transform": lines,
                "mark": {"type": "line", "color": colour, "strokeDash": dash, "strokeWidth": 2},
                "encoding": {**place, "order": {"field": "round", **number}},
            },
            {
                "data": tables["rounds"],
                "transform": [*lines, {"filter": "datum.round == round"}],
                "mark": {
                    "type": "point",
                    "shape": mark,
                    "filled": True,
                    "size": 70,
                    "color": colour,
                },
                "encoding": {**place, "tooltip": tip},
            },
        ]

    fixed = [
        {"t": "mAP@0.5 by round", "x": left, "y": top - 1, "c": GREY},
        {"t": "1", "x": left + 1, "y": top + 7, "c": GREY},
        *(
            {"t": f"scene {k + 1}", "x": a, "y": b - 1, "c": GREY}
            for k, (a, b) in enumerate(corners[:3])
        ),
    ]
    border = {"x1": left, "x2": left + SIDE, "y1": top, "y2": top + SIDE}
    clients = spec["clients"]
    step = clients[1] - clients[0]
    params = [
        slider("guess", "your guess, all five pooled", 0.5 if guess is None else guess, 0, 1, 0.01),
        slider("pooled", "3 x 3 layers that RPN pools", 0, 0, spec["pooled"][-1], 1),
        slider("round", "round", last, 1, last, 1),
        slider("clients", "clients", clients[1], clients[0], clients[-1], step),
    ]
    said = "'your guess ' + format(guess, '.2f')"
    text = {"x": {"field": "x", **x}, "y": {"field": "y", **y}, "text": {"field": "t"}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": round(2.4 * (SIDE + gap)),
        "height": round(2.4 * (2 * SIDE + 20)),
        "config": {"view": {"stroke": None}, "font": "sans-serif"},
        "params": params,
        "layer": [
            {
                "data": {"values": images},
                "mark": {
                    **{"type": "image", "align": "left", "baseline": "top", "aspect": False},
                    **{"smooth": False, "width": 2.4 * SIDE, "height": 2.4 * SIDE},
                },
                "encoding": {
                    "x": {"field": "left", **x},
                    "y": {"field": "top", **y},
                    "url": {"field": "url"},
                },
            },
            {
                "data": {"values": truth},
                "transform": places,
                "mark": {**BOX, "stroke": "#ffffff", "strokeDash": [3, 3]},
                "encoding": sides,
            },
            {
                "data": tables["boxes"],
                "transform": [here, *places],
                "mark": {**BOX, "stroke": COLOURS[5]},
                "encoding": {
                    **sides,
                    "strokeOpacity": certain,
                    "tooltip": [{"field": "kind"}, {"field": "score"}],
                },
            },
            {
                "data": tables["boxes"],
                "transform": [here, *places],
                "mark": {**words, "color": COLOURS[5], "fontWeight": "bold", "dy": -1},
                "encoding": {
                    **{k: sides[k] for k in "xy"},
                    "text": {"field": "kind"},
                    "opacity": certain,
                },
            },
            {
                "data": {"values": [border]},
                "mark": {"type": "rect", "fill": None, "stroke": GREY, "aria": False},
                "encoding": sides,
            },
            *curve("datum.pooled == 0", COLOURS[0], [5, 3], "circle"),
            *curve("datum.pooled == pooled", COLOURS[1], [1, 0], "square"),
            {
                "data": {"values": [border]},
                "transform": [{"calculate": f"{top} + {SIDE} * (1 - guess)", "as": "y1"}],
                "mark": {"type": "rule", "strokeDash": [2, 3], "color": GREY, "aria": False},
                "encoding": {k: sides[k] for k in ("x", "x2", "y")},
            },
            {"data": {"values": fixed}, "mark": {**words, "color": GREY}, "encoding": text},
            {
                "data": {"values": [{"x": left + 2}]},
                "transform": [
                    {"calculate": said, "as": "t"},
                    {"calculate": f"{top - 1} + {SIDE} * (1 - guess)", "as": "y"},
                ],
                "mark": {**words, "color": GREY},
                "encoding": text,
            },
        ],
    }


def corners_of(corners: Sequence[tuple[int, int]], axis: int) -> str:
    """One coordinate of all panels, as a Vega expression."""
    return json.dumps([corner[axis] for corner in corners])

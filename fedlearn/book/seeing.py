"""Chapter 10, seeing: runs that were made before, figures of scenes with boxes and masks, the
explorer in which predicted boxes move, and the checks of the exercises.

``python -m fedlearn.book.seeing`` makes a grid of short runs, whose boxes move under sliders, and a
few longer ones, which keep what they draw after some of their rounds, both as
``data/chapters/seeing.yaml`` states them, and keeps them in ``data/grids/seeing.json``. Runs that
the file has already are not repeated.
"""

import io
import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any
from zlib import compress, decompress

import numpy as np
import torch

from ..data.scenes import SIDE
from ..data.sources import data_path
from ..files import to_json, write_text
from ..history import History
from .check import Function, compared, number
from .grids import chapter_file, origin

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = list[Any]
# columns of the grid: mAP@0.5, and bytes of one client up in this round
ROUNDS = ("clients", "pooled", "round", "map", "up")
BOXES = ("clients", "pooled", "round", "scene", "x1", "y1", "x2", "y2", "kind", "score")

# ---- the stored runs -----------------------------------------------------------------------------


def confident(found: dict[str, torch.Tensor], least: float) -> list[Row]:
    """The boxes of an image that score more: four corners, class, score."""
    three = zip(*(found[name] for name in ("boxes", "labels", "scores")), strict=True)
    return [
        [*(round(float(v), 1) for v in box.clamp(0, SIDE)), int(kind), round(float(score), 2)]
        for box, kind, score in three
        if score > least
    ]


def trained(
    shared: dict[str, Any], spec: dict[str, Any], watch: Callable[..., None]
) -> tuple[Any, Any, History]:
    """One run with Adam: method, task, history. After each round ``watch(round, task, net)``."""
    from ..experiment import Experiment
    from ..local import initial_network
    from ..parts import Adam
    from ..round import run

    stated = {key: spec[key] for key in ("method", "options", "clients", "task") if key in spec}
    e = Experiment(**shared | stated, seed=0, device="cpu")
    task, method = e.make_task(), e.make_method().but(optimizer=Adam(spec["rate"]))
    net = initial_network(method, task).eval()

    def on_round(row: dict[str, Any], state: Any) -> None:
        net.load_state_dict(state.weights, strict=False)
        with torch.inference_mode():
            watch(row["round"], task, net)

    how: dict[str, Any] = {"engine": "stacked", "threads": 1, "progress": False}
    how |= {"batch_size": e.batch_size, "evaluate_every": spec.get("every", 1)}
    history = run(method, task, e.rounds, on_round=on_round, **how)
    return method, task, history


def of_grid(spec: dict[str, Any], clients: int, pooled: int) -> dict[str, list[Row]]:
    """The rows of a run of the grid: its rounds, and the boxes that it draws after each."""
    boxes: list[Row] = []

    def watch(t: int, task: Any, net: Any) -> None:
        for scene, found in enumerate(task.predict(net, task.test[0][spec["scenes"]])):
            boxes.extend([clients, pooled, t, scene, *b] for b in confident(found, spec["score"]))

    # the 1 x 1 convolution at the end counts as a layer, and pooling leaves it as it is
    method = {"method": "rpn", "options": {"share": (pooled + 1) / 6}} if pooled else {}
    stated = {"method": "fedavg", "clients": clients, "rate": spec["rate"]} | method
    _, _, history = trained(spec["shared"], stated, watch)
    rounds = [
        [clients, pooled, row["round"], round(row["accuracy"], 4), round(row["bytes_up"] / clients)]
        for row in history.rows
    ]
    return {"rounds": rounds, "boxes": boxes}


def of_picture(spec: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """What a longer run draws after the rounds that are asked for, and what it reached: as it is,
    and with its batch statistics measured anew."""
    from ..metrics import refit

    kept: dict[str, Any] = {}

    def watch(t: int, task: Any, net: Any) -> None:
        if t not in spec["rounds"]:
            return
        predicted = task.predict(net, task.test[0][spec["scenes"]])
        if stated["task"] == "detection":
            kept[str(t)] = [confident(found, spec["score"]) for found in predicted]
        else:
            masks = predicted.to(torch.uint8).numpy()
            kept[str(t)] = [b64encode(compress(mask.tobytes(), 9)).decode() for mask in masks]

    method, task, history = trained(spec["shared"], stated | {"every": 5}, watch)
    reached = {
        "as it is": round(history.final["accuracy"], 4),
        "measured anew": round(refit(method, task, history.state or {})["accuracy"], 4),
        "up": round(float(history.bytes_up.mean()) / task.clients),
    }
    return {key: stated[key] for key in ("task", "label", "rate")} | reached | {"drawn": kept}


def build() -> None:
    """Run what is missing, and write the file after each run."""
    path, spec = data_path("grids", "seeing.json"), chapter_file("seeing")
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows: dict[str, list[Any]] = {k: old.pop(k, []) for k in ("rounds", "boxes", "pictures")}
    cells = {tuple(row[:2]) for row in rows["rounds"]}
    pictures = {(row["task"], row["label"]) for row in rows["pictures"]}
    missing: list[tuple[Any, ...]] = [
        cell
        for cell in product(spec["grid"]["clients"], spec["grid"]["pooled"])
        if cell not in cells
    ]
    stated = spec["pictures"]["runs"]
    missing += [(run,) for run in stated if (run["task"], run["label"]) not in pictures]
    for run in missing:
        began = time.process_time()
        new: dict[str, list[Any]]
        if len(run) == 2:
            new = of_grid(spec["grid"], *run)
        else:
            new = {"pictures": [of_picture(spec["pictures"], *run)]}
        for kind, more in new.items():
            rows[kind] += more
        spent = round(old.get("cpu_seconds", 0) + time.process_time() - began, 1)
        old |= origin("python -m fedlearn.book.seeing") | {"cpu_seconds": spent}
        write_text(path, written(old, rows))
        print(len(rows["rounds"]), len(rows["boxes"]), len(rows["pictures"]), flush=True)


def written(about: dict[str, Any], rows: dict[str, list[Any]]) -> str:
    """The file's text: a line a row."""
    parts = [f"{to_json(k)}: {to_json(v)}" for k, v in about.items()]
    for kind, of_kind in rows.items():
        lines = ",\n".join(to_json(row, separators=(",", ":")) for row in of_kind)
        parts.append(f'"{kind}": [\n{lines}\n]')
    return "{" + ",\n".join(parts) + "}\n"


@lru_cache(1)
def seen() -> dict[str, Any]:
    """What ``build`` wrote, with the masks of the pictures as tensors; and the pictures' scenes:
    ``images``, ``objects`` (true boxes) and ``masks``."""
    from ..tasks import detection, segmentation

    path = data_path("grids", "seeing.json")
    if not path.exists():
        raise ValueError("There is no grid 'seeing' yet; python -m fedlearn.book.seeing")
    stored = json.loads(path.read_text(encoding="utf-8"))
    for picture in stored["pictures"]:
        if picture["task"] == "segmentation":
            drawn = picture["drawn"]
            picture["drawn"] = {t: [mask_of(text) for text in drawn[t]] for t in drawn}
    spec = chapter_file("seeing")["pictures"]
    options = {"clients": 2, "train": 2, "test": spec["shared"]["test"], "device": "cpu"}
    x, boxes = (part[spec["scenes"]] for part in detection("digits", **options).test)
    masks = segmentation("digits", **options).test[1][spec["scenes"]]
    objects = [rows[rows[:, 4] >= 0].tolist() for rows in boxes]
    return stored | {"images": x, "masks": masks, "objects": objects}


def mask_of(text: str) -> torch.Tensor:
    """The classes of a scene's pixels, [64, 64], from the text in the file."""
    pixels = np.frombuffer(decompress(b64decode(text)), np.uint8)
    return torch.from_numpy(pixels.astype(int).reshape(SIDE, SIDE))


def pooled_layers() -> "pandas.DataFrame":
    """The grid without its boxes: a row for each number of clients and of pooled layers, round."""
    import pandas

    return pandas.DataFrame(seen()["rounds"], columns=ROUNDS)


# ---- figures -------------------------------------------------------------------------------------


def scenes(panels: Sequence[Mapping[str, Any]], columns: int = 3) -> "Figure":
    """Scenes side by side, ``columns`` to a row. A panel has ``image`` uint8 [1, 64, 64] and a
    ``title``; ``boxes`` (x1, y1, x2, y2, class, and a score or nothing) and ``truth``, white and
    dashed; ``mask``, the classes of its pixels in colours, 0 being none; ``cells``, that many to a
    side."""
    import matplotlib.pyplot as plt
    from matplotlib import colormaps

    from .vega import AMBER, GREY

    rows = -(-len(panels) // columns)
    figure, every = plt.subplots(
        rows, columns, figsize=(1.65 * columns, 1.85 * rows), layout="constrained", squeeze=False
    )
    for ax, panel in zip(every.flat, panels, strict=False):
        ax.set_title(panel.get("title", ""), fontsize=9)
        ax.imshow(np.asarray(panel["image"].cpu())[0], cmap="gray", extent=(0, SIDE, SIDE, 0))
        if "mask" in panel:
            kinds = np.asarray(panel["mask"]).astype(int)
            shades = colormaps["tab10"](kinds - 1)
            shades[..., 3] = kinds > 0
            ax.imshow(shades, extent=(0, SIDE, SIDE, 0), interpolation="nearest")
        for k in range(1, panel.get("cells", 0)):
            for line in (ax.axhline, ax.axvline):
                line(k * SIDE / panel["cells"], color=GREY, linewidth=0.6)
        for box in panel.get("truth", ()):
            outline(ax, box, edgecolor="white", linestyle=(0, (2, 2)))
        for box in panel.get("boxes", ()):
            outline(ax, box, edgecolor=AMBER)
            x, y = float(box[0]), max(float(box[1]), 9.0)  # the class, inside the picture
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
    from .vega import AMBER, BLUE, DOTTED, GREY, ORANGE, WORDS, alt, layered, slider

    stored, spec = seen(), chapter_file("seeing")["grid"]
    gap, last, clients = SIDE + 6, spec["shared"]["rounds"], spec["clients"]
    test = detection("digits", clients=2, train=2, test=spec["shared"]["test"], device="cpu").test
    corners = [(0, 0), (gap, 0), (0, gap + 6), (gap, gap + 6)]
    left, top = corners[3]  # of the fourth panel, the curves
    images = [
        {"url": as_url(test[0][k]), "left": a, "top": b}
        for k, (a, b) in zip(spec["scenes"], corners, strict=False)
    ]
    truth = [
        {"scene": scene, "x1": x1, "y1": y1, "x2": x2, "y2": y2}
        for scene, k in enumerate(spec["scenes"])
        for x1, y1, x2, y2, kind, _ in test[1][k].tolist()
        if kind >= 0
    ]
    border = [{"x1": left, "x2": left + SIDE, "y1": top, "y2": top + SIDE}]
    fixed = [
        {"t": "mAP@0.5 by round", "x": left, "y": top - 1, "c": GREY},
        {"t": "1", "x": left + 1, "y": top + 7, "c": GREY},
    ]
    fixed += [
        {"t": f"scene {k + 1}", "x": a, "y": b - 1, "c": GREY}
        for k, (a, b) in enumerate(corners[:3])
    ]

    def table(kind: str, names: Sequence[str]) -> alt.Chart:
        rows = [names, *stored[kind]]
        text = "\n".join(",".join(map(str, row[: len(names)])) for row in rows)
        parse = {"type": "csv", "parse": dict.fromkeys(names, "number")}
        return alt.Chart(alt.InlineData(values=text, format=parse))

    def listed(rows: list[Any]) -> alt.Chart:
        return alt.Chart(alt.InlineData(values=rows))

    def placed(chart: alt.Chart) -> alt.Chart:
        """Boxes in their scene's panel."""
        across, along = ([corner[axis] for corner in corners] for axis in (0, 1))
        return chart.transform_calculate(
            x1=f"{across}[datum.scene] + datum.x1",
            x2=f"{across}[datum.scene] + datum.x2",
            y1=f"{along}[datum.scene] + datum.y1",
            y2=f"{along}[datum.scene] + datum.y2",
        )

    # one unit is 2.4 pixels both ways, so that scenes stay square
    wide = {"scale": {"domain": [0, SIDE + gap], "nice": False}, "axis": None}
    high = {"scale": {"domain": [2 * SIDE + 13, -7], "nice": False}, "axis": None}
    x1, y1 = alt.X("x1:Q", **wide), alt.Y("y1:Q", **high)
    sides = (x1, alt.X2("x2"), y1, alt.Y2("y2"))
    at = (alt.X("x:Q", **wide), alt.Y("y:Q", **high), alt.Text("t:N"))
    shades = {"domain": [spec["score"], 0.6], "range": [0.35, 1], "clamp": True}
    small = {"align": "left", "baseline": "bottom", "fontSize": 12}
    predicted = placed(
        table("boxes", BOXES).transform_filter(
            "datum.clients == clients && datum.round == round && datum.pooled == pooled"
        )
    )

    def curve(which: str, colour: str, dash: list[int], shape: str) -> list[alt.Chart]:
        """A line of the fourth panel, and its value in the round that is chosen."""
        line = (
            table("rounds", ROUNDS[:4])
            .transform_filter(f"datum.clients == clients && {which}")
            .transform_calculate(
                x1=f"{left} + {SIDE} * datum.round / {last}", y1=f"{top} + {SIDE} * (1 - datum.map)"
            )
        )
        tip = ["round:N", alt.Tooltip("map:N", title="mAP@0.5")]
        return [
            line.mark_line(color=colour, strokeDash=dash, strokeWidth=2).encode(
                x1, y1, order="round:Q"
            ),
            line.transform_filter("datum.round == round")
            .mark_point(shape=shape, filled=True, size=70, color=colour)
            .encode(x1, y1, tooltip=tip),
        ]

    size = 2.4 * SIDE
    layers = [
        listed(images)
        .mark_image(
            **{"align": "left", "baseline": "top", "aspect": False, "smooth": False},
            **{"width": size, "height": size},
        )
        .encode(alt.X("left:Q", **wide), alt.Y("top:Q", **high), alt.Url("url:N")),
        placed(listed(truth))
        .mark_rect(fill=None, strokeWidth=2, stroke="#ffffff", strokeDash=[3, 3])
        .encode(*sides),
        predicted.mark_rect(fill=None, strokeWidth=2, stroke=AMBER).encode(
            *(*sides, alt.StrokeOpacity("score:Q", scale=shades, legend=None)),
            tooltip=["kind:N", "score:N"],
        ),
        predicted.mark_text(**small, color=AMBER, fontWeight="bold", dy=-1).encode(
            x1, y1, alt.Opacity("score:Q", scale=shades, legend=None), text="kind:N"
        ),
        listed(border).mark_rect(fill=None, stroke=GREY, aria=False).encode(*sides),
        *curve("datum.pooled == 0", BLUE, [5, 3], "circle"),
        *curve("datum.pooled == pooled", ORANGE, [1, 0], "square"),
        listed(border)
        .transform_calculate(y1=f"{top} + {SIDE} * (1 - guess)")
        .mark_rule(**DOTTED)
        .encode(*sides[:3]),
        listed(fixed).mark_text(**WORDS, baseline="bottom").encode(*at),
        listed([{"x": left + 2}])
        .transform_calculate(
            t="'your guess ' + format(guess, '.2f')", y=f"{top - 1} + {SIDE} * (1 - guess)"
        )
        .mark_text(**WORDS, baseline="bottom")
        .encode(*at),
    ]
    params = [
        slider("guess", "your guess, all five pooled", 0.5 if guess is None else guess, 0, 1, 0.01),
        slider("pooled", "3 x 3 layers that RPN pools", 0, 0, spec["pooled"][-1], 1),
        slider("round", "round", last, 1, last, 1),
        slider("clients", "clients", clients[1], clients[0], clients[-1], clients[1] - clients[0]),
    ]
    config = {"view": {"stroke": None}, "font": "sans-serif"}
    height, width = round(2.4 * (2 * SIDE + 20)), round(2.4 * (SIDE + gap))
    chart = layered(height, params, layers, width=width, config=config)
    del chart["autosize"]
    return chart


# ---- exercises -----------------------------------------------------------------------------------

EACH, APART = "of the union the part that both have counts once", "boxes apart overlap by nothing"
PAIRS = (  # two boxes, their IoU, and what a wrong answer has not seen
    ((0, 0, 10, 10), (0, 0, 10, 10), 1.0, "a box and itself overlap wholly: 1"),
    ((2, 3, 6, 7), (4, 3, 8, 7), 1 / 3, EACH),
    ((0, 0, 10, 10), (5, 0, 15, 10), 1 / 3, EACH),
    ((0, 0, 10, 10), (2, 4, 7, 8), 0.2, "a box inside another is all of the overlap"),
    ((0, 0, 4, 4), (4, 0, 8, 4), 0.0, "boxes that only touch share no area"),
    ((0, 0, 4, 4), (6, 6, 9, 9), 0.0, f"{APART}, however far apart they are"),
    ((0, 0, 4, 4), (6, 0, 9, 4), 0.0, f"{APART}, however far apart they are"),
    ((2, 0, 10, 4), (0, 1, 8, 5), 18 / 46, "the overlap begins at the larger of two left edges"),
)


def iou(a: Sequence[int], b: Sequence[int], areas: Sequence[int] = ()) -> float:
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
        (iou(sized, other), corner),
        (iou(a, b, (a[2] * a[3], b[2] * b[3])), corner),
        (iou(longer, last), "edges lie between pixels: no + 1"),
    ]


def overlap(answer: Function) -> str | None:
    """answer(a, b) -> intersection over union of two boxes x1, y1, x2, y2."""
    for a, b, right, reason in PAIRS:
        for one, other in ((a, b), (b, a)):
            got = float(answer(one, other))
            if not abs(got - right) <= 1e-6:
                for value, why in misread(one, other):
                    if abs(got - value) < 1e-6:
                        return why
                return f"{reason} ({got:.3g} for {one} and {other})"
    return None


BEYOND = "the best precision at this recall or beyond counts"
LISTS = (  # which predictions are right, best first; how many objects there are; what it is about
    ((1, 1, 1), 3, "all found and nothing else is a precision of 1 at every recall"),
    ((1, 1), 4, "recall is a share of the objects, and half of them were never found"),
    ((0, 1), 1, "a wrong prediction in front of a right one halves the precision"),
    ((1, 0, 0, 1), 2, BEYOND),
    ((0, 1, 1, 1), 3, BEYOND),
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
        if not abs(got - precision_of(right, objects)) <= 0.011:  # a sum or an integral
            return f"{reason} ({got:.3g} for {list(right)} of {objects} objects)"
    return None


KERNELS = 16 + 16 * 32 + 32 * 64 + 64 * 64 + 64 * 64  # 3 x 3
TOTAL, LAST = 98_367, 64 * 15  # the scene detector
payload = number(
    TOTAL - 8 * KERNELS,
    {
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
    if (got[:, 2] < got[:, 0]).any():
        return "x1 and x2 change places as well: a mirror turns left edges into right ones"
    x1, y1, x2, y2 = before.unbind(1)
    right = torch.stack([64 - x2, y1, 64 - x1, y2], 1)
    pixels = "edges lie between pixels: the mirror image of x is 64 - x, not 63 - x"
    otherwise = "the mirror image of (x1, y1, x2, y2) is not that"
    if torch.allclose(got[:, [0, 2]], before[:, [0, 2]]):
        otherwise = "it is x that the mirror changes, and y that stays"
    return compared(got, right, {pixels: right - torch.tensor([1.0, 0, 1, 0])}, otherwise)


EXERCISES = {
    "seeing-iou": overlap,
    "seeing-ap": area,
    "seeing-payload": payload,
    "seeing-mirror": flipped,
}

if __name__ == "__main__":
    build()

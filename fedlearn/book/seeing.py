"""What the chapter on seeing shows of runs that were made before: a grid of short ones, whose boxes
move under sliders, and what a few longer ones draw after some of their rounds.

``python -m fedlearn.book.seeing`` makes both as ``data/chapters/seeing.yaml`` states them, and keeps
them in ``data/grids/seeing.json``. Runs that the file has already are not repeated.
"""

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any
from zlib import compress, decompress

import numpy as np
import torch

from ..data.scenes import SIDE
from ..data.sources import data_path
from ..files import write_text
from ..history import History
from .grids import chapter_file, origin

if TYPE_CHECKING:
    import pandas

Row = list[Any]
# columns of the grid: mAP@0.5, and bytes of one client up in this round
ROUNDS = ("clients", "pooled", "round", "map", "up")
BOXES = ("clients", "pooled", "round", "scene", "x1", "y1", "x2", "y2", "kind", "score")


def drawn(found: dict[str, torch.Tensor], least: float) -> list[Row]:
    """The boxes of an image that score more: four corners, class, score."""
    three = zip(*(found[name] for name in ("boxes", "labels", "scores")), strict=True)
    return [
        [*(round(float(v), 1) for v in box.clamp(0, SIDE)), int(kind), round(float(score), 2)]
        for box, kind, score in three
        if score > least
    ]


def trained(
    shared: dict[str, Any], its: dict[str, Any], watch: Callable[..., None]
) -> tuple[Any, Any, History]:
    """One run with Adam: method, task, history. After each round ``watch(round, task, net)``."""
    from ..experiment import Experiment
    from ..local import initial_network
    from ..parts import Adam
    from ..round import run

    own = {key: its[key] for key in ("method", "options", "clients", "task") if key in its}
    e = Experiment(**shared | own, seed=0, device="cpu")
    task, method = e.make_task(), e.make_method().but(optimizer=Adam(its["rate"]))
    net = initial_network(method, task).eval()

    def seen(row: dict[str, Any], state: Any) -> None:
        net.load_state_dict(state.weights, strict=False)
        with torch.inference_mode():
            watch(row["round"], task, net)

    how: dict[str, Any] = {"engine": "stacked", "threads": 1, "progress": False, "on_round": seen}
    how |= {"batch_size": e.batch_size, "evaluate_every": its.get("every", 1)}
    history = run(method, task, e.rounds, **how)
    return method, task, history


def of_grid(spec: dict[str, Any], clients: int, pooled: int) -> dict[str, list[Row]]:
    """The rows of a run of the grid: its rounds, and the boxes that it draws after each."""
    boxes: list[Row] = []

    def watch(t: int, task: Any, net: Any) -> None:
        for scene, found in enumerate(task.predict(net, task.test[0][spec["scenes"]])):
            boxes.extend([clients, pooled, t, scene, *b] for b in drawn(found, spec["score"]))

    # the 1 x 1 convolution at the end counts as a layer, and pooling leaves it as it is
    method = {"method": "rpn", "options": {"share": (pooled + 1) / 6}} if pooled else {}
    its = {"method": "fedavg", "clients": clients, "rate": spec["rate"]} | method
    _, _, history = trained(spec["shared"], its, watch)
    rounds = [
        [clients, pooled, row["round"], round(row["accuracy"], 4), round(row["bytes_up"] / clients)]
        for row in history.rows
    ]
    return {"rounds": rounds, "boxes": boxes}


def of_picture(spec: dict[str, Any], its: dict[str, Any]) -> dict[str, Any]:
    """What a longer run draws after the rounds that are asked for, and what it reached: as it is,
    and with its batch statistics measured anew."""
    from ..metrics import refit

    kept: dict[str, Any] = {}

    def watch(t: int, task: Any, net: Any) -> None:
        if t not in spec["rounds"]:
            return
        seen = task.predict(net, task.test[0][spec["scenes"]])
        if its["task"] == "detection":
            kept[str(t)] = [drawn(found, spec["score"]) for found in seen]
        else:
            masks = seen.to(torch.uint8).numpy()
            kept[str(t)] = [b64encode(compress(mask.tobytes(), 9)).decode() for mask in masks]

    method, task, history = trained(spec["shared"], its | {"every": 5}, watch)
    reached = {
        "as it is": round(history.final["accuracy"], 4),
        "measured anew": round(refit(method, task, history.state or {})["accuracy"], 4),
        "up": round(float(history.bytes_up.mean()) / task.clients),
    }
    return {key: its[key] for key in ("task", "label", "rate")} | reached | {"drawn": kept}


def build() -> None:
    """Run what is missing, and write the file after each run."""
    path, spec = data_path("grids", "seeing.json"), chapter_file("seeing")
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows: dict[str, list[Any]] = {k: old.pop(k, []) for k in ("rounds", "boxes", "pictures")}
    missing: list[Callable[[], dict[str, list[Any]]]] = []
    done = {tuple(row[:2]) for row in rows["rounds"]}
    for where in product(spec["grid"]["clients"], spec["grid"]["pooled"]):
        if where not in done:
            missing.append(lambda where=where: of_grid(spec["grid"], *where))  # type: ignore[misc]
    there = {(its["task"], its["label"]) for its in rows["pictures"]}
    for its in spec["pictures"]["runs"]:
        if (its["task"], its["label"]) not in there:
            missing.append(lambda its=its: {"pictures": [of_picture(spec["pictures"], its)]})  # type: ignore[misc]
    for make in missing:
        began = time.process_time()
        for kind, new in make().items():
            rows[kind] += new
        spent = round(old.get("cpu_seconds", 0) + time.process_time() - began, 1)
        old |= origin("python -m fedlearn.book.seeing") | {"cpu_seconds": spent}
        write_text(path, written(old, rows))
        print(len(rows["rounds"]), len(rows["boxes"]), len(rows["pictures"]), flush=True)


def written(about: dict[str, Any], rows: dict[str, list[Any]]) -> str:
    """The file's text: a line a row."""
    parts = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in about.items()]
    for kind, its in rows.items():
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in its)
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
    found = json.loads(path.read_text(encoding="utf-8"))
    for its in found["pictures"]:
        if its["task"] == "segmentation":
            its["drawn"] = {t: [mask_of(text) for text in its["drawn"][t]] for t in its["drawn"]}
    its = chapter_file("seeing")["pictures"]
    own = {"clients": 2, "train": 2, "test": its["shared"]["test"], "device": "cpu"}
    x, boxes = (part[its["scenes"]] for part in detection("digits", **own).test)
    found |= {"images": x, "masks": segmentation("digits", **own).test[1][its["scenes"]]}
    return found | {"objects": [rows[rows[:, 4] >= 0].tolist() for rows in boxes]}


def mask_of(text: str) -> torch.Tensor:
    """The classes of a scene's pixels, [64, 64], from the text in the file."""
    pixels = np.frombuffer(decompress(b64decode(text)), np.uint8)
    return torch.from_numpy(pixels.astype(int).reshape(SIDE, SIDE))


def pooled_layers() -> "pandas.DataFrame":
    """The grid without its boxes: a row for each number of clients and of pooled layers, round."""
    import pandas

    return pandas.DataFrame(seen()["rounds"], columns=ROUNDS)


if __name__ == "__main__":
    build()

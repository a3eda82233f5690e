"""What networks draw while they learn, for the chapter on seeing: boxes of a grid of short runs,
which move under its sliders; boxes and masks of a few longer ones; masks of real pictures.

    python data/seeing/drawn.py        (ten minutes -> data/seeing/grid.json)

``data/seeing/chapter.yaml`` states the runs. Those that the file has are not repeated. Runs on
real pictures need VOC and the trunk (``pip install 'fedlearn[trunk]'``).
"""

import json
from base64 import b64encode
from collections.abc import Callable
from itertools import product
from typing import Any
from zlib import compress

import torch

import fedlearn as fl
from fedlearn.book.grids import chapter_file, origin
from fedlearn.data import data_path
from fedlearn.files import to_json, write_text
from fedlearn.lab import recipes

Row = list[Any]
SPEC = chapter_file("seeing")


def confident(found: dict[str, torch.Tensor], least: float) -> list[Row]:
    """The boxes of a scene that score more: four corners, class, score."""
    three = zip(*(found[name] for name in ("boxes", "labels", "scores")), strict=True)
    return [
        [
            *(round(float(v), 1) for v in box.clamp(0, 64)),
            int(kind),
            round(float(score), 2),
        ]
        for box, kind, score in three
        if score > least
    ]


def text_of(mask: torch.Tensor) -> str:
    """A mask in the file: its bytes, packed."""
    return b64encode(compress(mask.to(torch.uint8).numpy().tobytes(), 9)).decode()


def trained(
    shared: dict[str, Any], spec: dict[str, Any], watch: Callable[..., None]
) -> tuple:
    """One run: method, task, history. After each round ``watch(round, task, net)``."""
    stated = {k: spec[k] for k in ("method", "options", "clients", "task") if k in spec}
    e = fl.Experiment(**shared | stated, seed=0, device="cpu")
    task, method = e.make_task(), e.make_method()
    if "rate" in spec:
        method = method.but(optimizer=fl.parts.Adam(spec["rate"]))
    net = fl.initial_network(method, task).eval()

    def on_round(row: dict[str, Any], state: Any) -> None:
        net.load_state_dict(state.weights, strict=False)
        with torch.inference_mode():
            watch(row["round"], task, net)

    how: dict[str, Any] = {
        "engine": "stacked" if "rate" in spec else "sequential",
        "threads": 1,
    }
    how |= {
        "batch_size": e.batch_size,
        "evaluate_every": spec.get("every", 1),
        "progress": False,
    }
    return method, task, fl.run(method, task, e.rounds, on_round=on_round, **how)


def of_grid(clients: int, pooled: int) -> dict[str, list[Row]]:
    """The rows of a run of the grid: its rounds, and the boxes that it draws after each."""
    spec, boxes = SPEC["grid"], list[Row]()

    def watch(t: int, task: Any, net: Any) -> None:
        for scene, found in enumerate(task.predict(net, task.test[0][spec["scenes"]])):
            boxes.extend(
                [clients, pooled, t, scene, *b] for b in confident(found, spec["score"])
            )

    # the 1 x 1 convolution at the end counts as a layer, and pooling leaves it as it is
    method = {"method": "rpn", "options": {"share": (pooled + 1) / 6}} if pooled else {}
    stated = {"method": "fedavg", "clients": clients, "rate": spec["rate"]} | method
    rounds = [
        [
            clients,
            pooled,
            row["round"],
            round(row["accuracy"], 4),
            round(row["bytes_up"] / clients),
        ]
        for row in trained(spec["shared"], stated, watch)[2].rows
    ]
    return {"rounds": rounds, "boxes": boxes}


def of_picture(stated: dict[str, Any]) -> dict[str, list[Any]]:
    """What a longer run draws after the rounds that are asked for, and what it reached: as it is,
    and with its batch statistics measured anew."""
    spec, kept = SPEC["pictures"], {}

    def watch(t: int, task: Any, net: Any) -> None:
        if t not in spec["rounds"]:
            return
        predicted = task.predict(net, task.test[0][spec["scenes"]])
        if stated["task"] == "detection":
            kept[str(t)] = [confident(found, spec["score"]) for found in predicted]
        else:
            kept[str(t)] = [text_of(mask) for mask in predicted]

    method, task, history = trained(spec["shared"], stated | {"every": 5}, watch)
    reached = {
        "as it is": round(history.final["accuracy"], 4),
        "measured anew": round(fl.refit(method, task, history.state)["accuracy"], 4),
        "up": round(float(history.bytes_up.mean()) / task.clients),
    }
    names = {key: stated[key] for key in ("task", "label", "rate")}
    return {"pictures": [names | reached | {"drawn": kept}]}


def of_real(label: str) -> dict[str, list[Any]]:
    """The masks that a run of the recipe draws at its end, for squares of 4 x 4 pixels, and the
    true ones."""
    spec = SPEC["real"]
    [run] = recipes.runs("rpn_segmentation", "small", only=(label,), seeds=(0,))
    [line] = [h for h in fl.results.load("seeing_small") if alike(h, label)]
    e, drawn = run.experiment, dict[str, list[str]]()

    def watch(t: int, task: Any, net: Any) -> None:
        if t == e.rounds:
            its = task.predict(net, task.test[0][spec["pictures"]])
            drawn["drawn"] = [text_of(mask[2::4, 2::4]) for mask in its]
            drawn["truth"] = [
                text_of(mask[2::4, 2::4]) for mask in task.test[1][spec["pictures"]]
            ]

    rate = {"lr": line.meta["options"]["lr"]}
    stated = {
        "method": e.method,
        "options": e.options | rate,
        "clients": e.clients,
        "every": 4,
    }
    names = "task dataset network partition train test rounds batch_size".split()
    history = trained({n: getattr(e, n) for n in names}, stated, watch)[2]
    miou = history.final["accuracy"]  # another processor has other last bits
    assert abs(miou - line.final["accuracy"]) < 0.01, (
        "the stored run does not come out again"
    )
    return {"real": [{"label": label, "miou": round(miou, 4)} | drawn]}


def alike(history: fl.History, label: str) -> bool:
    """Is it the stored run of this row, with the first seed, on masks?"""
    its = history.meta["task"]
    return (history.meta["label"], its["task"], its["seed"]) == (
        label,
        "segmentation",
        0,
    )


def build() -> None:
    """Run what is missing, and write the file after each run."""
    path = data_path("seeing", "grid.json")
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows = {k: old.get(k, []) for k in ("rounds", "boxes", "pictures", "real")}
    cells = {tuple(row[:2]) for row in rows["rounds"]}
    drawn = {(row["task"], row["label"]) for row in rows["pictures"]}
    real = {row["label"] for row in rows["real"]}
    grid, pictures = SPEC["grid"], SPEC["pictures"]["runs"]
    every = [(of_grid, cell) for cell in product(grid["clients"], grid["pooled"])]
    missing: list[tuple[Callable, tuple]] = [
        job for job in every if job[1] not in cells
    ]
    missing += [
        (of_picture, (r,)) for r in pictures if (r["task"], r["label"]) not in drawn
    ]
    missing += [
        (of_real, (label,)) for label in SPEC["real"]["labels"] if label not in real
    ]
    for make, arguments in missing:
        for kind, more in make(*arguments).items():
            rows[kind] += more
        about = origin("python data/seeing/drawn.py")
        write_text(path, written(about, rows))
        print({kind: len(its) for kind, its in rows.items()}, flush=True)


def written(about: dict[str, Any], rows: dict[str, list[Any]]) -> str:
    """The file's text: a line a row."""
    parts = [f"{to_json(k)}: {to_json(v)}" for k, v in about.items()]
    for kind, of_kind in rows.items():
        lines = ",\n".join(to_json(row, separators=(",", ":")) for row in of_kind)
        parts.append(f'"{kind}": [\n{lines}\n]')
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    build()

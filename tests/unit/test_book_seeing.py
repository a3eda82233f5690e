"""What the chapter on seeing shows: stored boxes and masks, figures of scenes, the explorer."""

import csv
import json
import sys

import pytest
import torch

import fedlearn as fl
from fedlearn.book import claims, seeing
from fedlearn.book.grids import chapter_file


def test_weak_boxes_are_not_kept_and_others_stay_in_the_picture():
    found = {
        "boxes": torch.tensor([[-3.0, 1.26, 70.0, 9.0], [0.0, 0.0, 5.0, 5.0]]),
        "labels": torch.tensor([7, 1]),
        "scores": torch.tensor([0.512, 0.1]),
    }
    assert seeing.confident(found, 0.1) == [[0.0, 1.3, 64.0, 9.0, 7, 0.51]]
    assert len(seeing.confident(found, 0.05)) == 2


SHARED = {"dataset": "digits", "network": "scene_detector", "train": 8, "test": 4, "rounds": 2}
GRID = {"shared": SHARED | {"task": "detection", "batch_size": 2}, "rate": 0.001, "scenes": [1, 2]}


@pytest.mark.parametrize("pooled, up", [(0, 98_367), (5, 12_223)])
def test_a_run_of_the_grid_keeps_a_row_a_round_and_boxes(pooled, up, monkeypatch):
    monkeypatch.setattr(sys.modules["fedlearn.tasks.detection"], "SCORE", 0.0)  # the module
    rows = seeing.of_grid(GRID | {"score": 0.0}, 2, pooled)
    assert [row[:3] for row in rows["rounds"]] == [[2, pooled, 1], [2, pooled, 2]]
    buffers = 2 * sum((16, 32, 64, 64, 64)) + 5  # and what batch normalisation counts
    assert 4 * up < rows["rounds"][0][4] < 4 * (up + buffers) + 3000
    assert {tuple(row[:4]) for row in rows["boxes"]} == {
        (2, pooled, t, scene) for t in (1, 2) for scene in (0, 1)
    }
    assert all(len(row) == len(seeing.BOXES) for row in rows["boxes"])


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_a_longer_run_keeps_what_it_draws_and_both_numbers(task):
    spec = {"rounds": [2], "scenes": [0, 3], "score": 0.0}
    spec["shared"] = {k: v for k, v in SHARED.items() if k != "network"} | {"clients": 2}
    its = {"task": task, "label": "RPN", "method": "rpn", "options": {}, "rate": 0.001}
    kept = seeing.of_picture(spec, its)
    assert set(kept["drawn"]) == {"2"} and len(kept["drawn"]["2"]) == 2
    assert 0 <= kept["as it is"] <= 1 and 0 <= kept["measured anew"] <= 1
    if task == "segmentation":
        mask = seeing.mask_of(kept["drawn"]["2"][0])
        assert mask.shape == (64, 64) and 0 <= int(mask.min()) <= int(mask.max()) <= 10


def test_the_file_is_json_with_a_line_a_row():
    text = seeing.written({"commit": "a"}, {"rounds": [[1, 2], [3, 4]], "boxes": []})
    assert json.loads(text) == {"commit": "a", "rounds": [[1, 2], [3, 4]], "boxes": []}
    assert "[1,2],\n[3,4]" in text


def test_the_stored_runs_are_those_that_the_chapter_states():
    spec, its = chapter_file("seeing"), fl.book.seen()
    runs = {tuple(row[:2]) for row in its["rounds"]}
    assert runs == {(c, p) for c in spec["grid"]["clients"] for p in spec["grid"]["pooled"]}
    frame = fl.book.pooled_layers()
    assert len(frame) == len(runs) * spec["grid"]["shared"]["rounds"]
    stated = [(r["task"], r["label"], r["rate"]) for r in spec["pictures"]["runs"]]
    assert sorted((p["task"], p["label"], p["rate"]) for p in its["pictures"]) == sorted(stated)
    for p in its["pictures"]:
        assert list(p["drawn"]) == [str(t) for t in spec["pictures"]["rounds"]]
    assert its["images"].shape[1:] == (1, 64, 64) and its["masks"].shape[1:] == (64, 64)
    assert all(row[4] in range(10) for rows in its["objects"] for row in rows)


def test_scenes_side_by_side():
    image = torch.zeros(1, 64, 64, dtype=torch.uint8)
    panels = [
        {"image": image, "title": "a", "truth": [[1, 2, 3, 9, 4]], "boxes": [[1, 2, 3, 9, 4, 0.9]]},
        {"image": image, "mask": torch.ones(64, 64), "cells": 8},
    ]
    figure = seeing.scenes(panels, columns=3)
    first, second, third = figure.axes
    assert len(first.patches) == 2 and [t.get_text() for t in first.texts] == ["4"]
    assert len(second.images) == 2 and len(second.lines) == 14
    assert first.get_title() == "a" and not third.get_visible()


def test_the_explorer_moves_boxes_and_has_five_positions_a_slider():
    spec = seeing.moving_boxes(0.25)
    assert spec["params"][0]["value"] == 0.25
    data = next(
        layer["data"]
        for layer in spec["layer"]
        if "format" in layer["data"] and "x2" in layer["data"]["format"]["parse"]
    )
    rows = list(csv.DictReader(data["values"].splitlines()))
    assert len(rows) == len(fl.book.seen()["boxes"]) and float(rows[0]["x2"]) <= 64
    shown = fl.book.chart("10.1", spec, caption="c", alt="a")  # refuses sliders of fewer positions
    assert shown.spec["description"] == "a"


def history(label, accuracy, **task):
    task = {"dataset": "digits", "clients": 2, "partition": "Iid()"} | task
    meta = {"label": label, "task": task}
    row = {"round": 1, "accuracy": accuracy, "loss": 1.0, "clients": [], "refused": {}}
    row |= dict.fromkeys(("bytes_up", "bytes_down", "seconds"), 1)
    return fl.History("fedavg", meta, [row])


def test_an_opening_table_tells_tasks_and_sets_apart():
    its = [
        history("FedAvg", 0.5, task="detection", dataset="voc:160"),
        history("FedAvg", 0.6, task="segmentation", dataset="voc:160"),
        history("FedAvg", 0.7, task="detection", dataset="coco:160"),
        history("FedAvg", 0.8),
    ]
    row = {"line": "FedAvg", "measure": "accuracy"}
    assert claims.measured(row, its) == [0.5, 0.6, 0.7, 0.8]
    where = {"task": ["detection"], "dataset": ["digit", "voc"]}
    assert claims.measured(row | {"where": where}, its) == [0.5]
    assert claims.printed("fed_kgf-table2-values", [1, 0]) == 0.363
    assert claims.printed("fed_kgf-table2-values", 0) == 0.384

"""Methods on detection and segmentation: stacked is sequential, every engine, the command line."""

import json

import numpy as np
import pytest
import torch
from test_stacked import trained_both_ways

import fedlearn as fl
from fedlearn import models
from fedlearn.lab import cli
from fedlearn.models import yolo

KINDS = {"detection": ("mAP@0.5", "map_50_95"), "segmentation": ("mIoU", "pixel_accuracy")}


@pytest.mark.parametrize("kind, spare", [("detection", 0), ("segmentation", 99)])  # 99: padded
def test_stacked_training_is_sequential_training(kind, spare):
    few = {"clients": 3, "partition": "dirichlet:0.5", "train": 14, "test": 4}
    task = getattr(fl.tasks, kind)(**few, augment=("crop", "flip", "scale"))
    settings = fl.Settings(epochs=2, batch_size=4)
    assert len(set(task.sizes)) > 1
    apart, moved = trained_both_ways(fl.methods.fedavg(0.05), task, settings, torch.float64, spare)
    assert apart <= 1e-9 and moved > 1e-3


def test_one_step_of_training_of_a_yolox():
    """Of one client, on two pictures of 64 pixels: bytes cross and the loss is a number."""
    x = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), np.uint8)
    objects = [[[4.0, 8, 40, 50, 0]], [[1.0, 1, 30, 30, 1], [20.0, 20, 60, 60, 0]]]
    source = fl.data.from_boxes(x[:2], objects, 2, (x[2:], objects[:1]))
    task = fl.tasks.detection(source, 1, network=lambda shape, n: yolo.yolox_s(shape, n, 4))
    history = fl.run(fl.methods.fedavg(1e-4), task, 1, batch_size=2)
    row, parameters = history.final, models.parameter_count(task.network())
    assert not row["refused"] and not row["untaken"] and 0 < row["loss"] < 1e5
    assert 4 * parameters < row["bytes_up"] < 4.3 * parameters
    before = fl.initial_network(fl.methods.fedavg(), task).state_dict()
    moved = [not torch.equal(before[n], t) for n, t in history.state.items() if t.dim() > 2]
    assert sum(moved) > 0.8 * len(moved), "all but heads of maps that no object takes"


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line(kind, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = f"run fedavg --task {kind} --dataset digits:0.2 --clients 2 --train 16 --test 4"
    more = "--partition objects --augment scale --rounds 1 --threads 1 --out - --no-progress"
    assert not cli.main([*words.split(), *more.split()])
    stored = json.loads(capsys.readouterr().out)
    task, row = stored["meta"]["task"], stored["rows"][0]
    assert (task["task"], task["dataset"]) == (kind, "digit_scenes:0.2")
    measure, other = KINDS[kind]
    assert task["accuracy"] == measure and 0 <= row["accuracy"] <= 1 and 0 <= row[other] <= 1
    assert row["loss"] > 0 and not row["refused"] and not row["untaken"]

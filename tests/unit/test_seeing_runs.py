"""Methods on detection and segmentation: stacked is sequential, every engine, the command line."""

import json
from dataclasses import replace

import pytest
import torch
from test_stacked import trained_both_ways

import fedlearn as fl
from fedlearn import cli
from fedlearn.runs import table

METHODS = {
    "fedavg": {},
    "rpn": {},
    "rpn_share": {"share": 0.5, "threshold": 0.01},
    "fed_kgf": {},
    "fed_kgf_whole": {"groups": 1},
    "stc": {},
    "signsgd": {},
    "dgc": {},
    "fedcams": {},
    "qsgd": {},
    "fedprox": {},
    "scaffold": {},
    "local": {},
}
FAST = ("rpn", "stc")
NAMES = [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in METHODS]
KINDS = ("detection", "segmentation")
MEASURES = {"detection": "mAP@0.5", "segmentation": "mIoU"}
BATCHES = [((), 0), pytest.param(("crop", "flip", "scale"), 99, marks=pytest.mark.slow)]


def method(name):
    known = next(m for m in sorted(fl.methods.METHODS, key=len, reverse=True) if name.startswith(m))
    return fl.methods.METHODS[known](**METHODS[name])


@pytest.fixture(scope="module", params=KINDS)
def task(request):
    return getattr(fl.tasks, request.param)(clients=3, train=24, test=8)


@pytest.mark.parametrize("augment, spare", BATCHES)  # 99: batches of other sizes, padded
@pytest.mark.parametrize("kind", KINDS)
def test_stacked_training_is_sequential_training(kind, spare, augment):
    few = {"clients": 3, "partition": "dirichlet:0.5", "train": 22, "test": 4}
    task = getattr(fl.tasks, kind)(**few, augment=augment)
    assert len(set(task.sizes)) > 1
    settings = fl.Settings(epochs=2, batch_size=4)
    apart, moved = trained_both_ways(fl.methods.fedavg(0.05), task, settings, torch.float64, spare)
    assert apart <= 1e-9 and moved > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_in_the_loop_and_stacked(task, name):
    one, other = (
        fl.run(method(name), task, 2, batch_size=4, engine=e, threads=1)
        for e in ("sequential", "stacked")
    )
    for mine, stacked in zip(one.rows, other.rows, strict=True):
        assert not mine["refused"] and not mine["untaken"]
        assert 0 <= mine["accuracy"] <= 1 and mine["loss"] > 0
        assert stacked["bytes_down_buffers"] == mine["bytes_down_buffers"]
        assert stacked["bytes_up"] == pytest.approx(mine["bytes_up"], rel=0.01)  # of sparse ones
    # afterwards a last bit that differs may be another sign, or another entry among the largest
    assert other.rows[0]["loss"] == pytest.approx(one.rows[0]["loss"], rel=0.05)
    about = one.meta["task"]
    assert about["accuracy"] == MEASURES[about["task"]] == one.measure
    assert fl.History.from_json(one.to_json()) == one
    assert one.measure in f"{one}{one._repr_html_()}" and one.measure in table({"x": [one]})
    assert fl.plot.compare(one).get_ylabel() == f"test {one.measure}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_learns(kind):
    """In a few steps of one client the loss on what it has seen falls."""
    task = getattr(fl.tasks, kind)(clients=1, train=16, test=4)
    history = fl.run(fl.methods.fedavg(0.1), replace(task, test=task.train), 8, batch_size=4)
    assert history.loss[-1] < 0.75 * history.loss[0]


def test_rpn_and_fed_kgf_send_less(task):
    names = ("fedavg", "rpn", "fed_kgf", "fed_kgf_whole")
    up = {name: fl.run(method(name), task, 1, batch_size=8).bytes_up[0] for name in names}
    assert up["rpn"] < up["fedavg"] / 6
    assert up["fed_kgf"] < up["fed_kgf_whole"] < up["fedavg"] / 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line(kind, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = f"run fedavg --task {kind} --dataset digits:0.2 --clients 2 --train 16 --test 4"
    more = "--partition objects --augment scale --rounds 1 --threads 1 --out - --no-progress"
    assert not cli.main([*words.split(), *more.split()])
    stored = json.loads(capsys.readouterr().out)
    assert stored["meta"]["task"]["task"] == kind
    assert stored["meta"]["task"]["dataset"] == "digit_scenes:0.2"
    extra = {"detection": "map_50_95", "segmentation": "pixel_accuracy"}[kind]
    assert 0 <= stored["rows"][0][extra] <= 1

"""What a GPU must do like a CPU. ``make gpu`` runs it on the device; FEDLEARN_TEST_DEVICE=cpu shows
that the tests themselves run."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.models import state_of
from fedlearn.tasks import find_device

if "FEDLEARN_TEST_DEVICE" not in os.environ and not torch.cuda.is_available():
    pytest.skip("no CUDA GPU here (make gpu)", allow_module_level=True)
DEVICE = os.environ.get("FEDLEARN_TEST_DEVICE", "cuda")
BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = [p for p in sorted(BOOK.rglob("*.ipynb")) if ".ipynb_" not in str(p)]

METHODS = sorted(fl.methods.METHODS)
STACKING = [name for name in METHODS if fl.methods.get(name).client_class.stacks]


def small(device, clients=4, **options):
    return fl.tasks.classification(
        "digits",
        clients,
        "dirichlet:0.5",
        train=240,
        test=100,
        device=device,
        **options,
    )


def test_auto_is_the_device_and_a_task_keeps_images_and_network_there():
    assert find_device("auto") == torch.device(DEVICE)
    task = small("auto")
    net = fl.initial_network(fl.methods.fedavg(), task)
    tensors = [*task.train, *task.test, *state_of(net).values(), task.statistics]
    assert {t.device.type for t in tensors} == {DEVICE}


@pytest.mark.parametrize(
    ("name", "engine"),
    [(n, "sequential") for n in METHODS] + [(n, "stacked") for n in STACKING],
)
def test_a_round_is_that_of_a_cpu(name, engine):
    """No answer refused, the messages as long, loss about the same."""
    local, remote = (
        fl.run(fl.methods.get(name), small(device), 2, engine=engine, progress=False)
        for device in (DEVICE, "cpu")
    )
    assert not any(row["refused"] or row["unevaluated"] for row in local.rows)
    assert local.meta["device"].startswith(DEVICE)
    assert local.bytes_down[0] == remote.bytes_down[0]
    assert local.bytes_up.sum() == pytest.approx(remote.bytes_up.sum(), rel=0.05)
    assert local.final["loss"] == pytest.approx(remote.final["loss"], rel=0.1)


@pytest.mark.parametrize("name", ["dgc", "fed_gkt"])
def test_a_run_goes_on_from_its_checkpoint(name, tmp_path):
    task = small(DEVICE)
    options = {"progress": False}
    whole = fl.run(name, task, 3, **options)
    fl.run(name, task, 2, checkpoint=tmp_path / "c", **options)
    again = fl.run(name, task, 3, checkpoint=tmp_path / "c", **options)
    assert len(again) == 3
    assert again.final["loss"] == pytest.approx(whole.final["loss"], rel=0.02)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_dropout_is_drawn_again_and_rough_arithmetic_is_near_the_exact_one(
    engine, precision
):
    def network(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))

    task = small(DEVICE, network=network)
    options = {"engine": engine, "progress": False}
    exact = fl.run("fedavg", task, 2, participation=0.5, **options)
    again = fl.run("fedavg", task, 2, participation=0.5, precision=precision, **options)
    near = 1e-3 if precision == "float32" else 0.15
    assert again.final["loss"] == pytest.approx(exact.final["loss"], rel=near)
    assert all(t.dtype == torch.float32 for t in again.state.values())


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_runs(path, monkeypatch):
    pytest.importorskip("IPython", reason="chapters need the book's packages")
    module = ModuleType("chapter")
    monkeypatch.setitem(sys.modules, "chapter", module)  # dataclasses look it up
    monkeypatch.chdir(path.parent)
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), vars(module))
        if "parameters" in cell["metadata"].get("tags", []):
            vars(module).update(scale="quick", device=DEVICE)

"""Flower's simulation: a method gives the history of one process, bit for bit. Ray starts twice:
once for all runs that share it, and once for a run from the command line."""

import os

import pytest
import ray
from torch import nn

import fedlearn as fl
from fedlearn.engines import flower
from fedlearn.lab import cli
from fedlearn.lab.experiment import Experiment

from .conftest import small

REST = [
    pytest.param(m, marks=pytest.mark.slow)
    for m in sorted(fl.methods.METHODS)
    if m != "rpn"
]
METHODS = ["rpn", *REST]


@pytest.fixture(scope="module")
def simulation():
    """One worker, whose start takes longer than what most runs do."""
    with flower.Simulation(cpus=1) as engine:
        yield engine
    assert not ray.is_initialized()


@pytest.mark.parametrize("name", METHODS)
def test_history_is_that_of_one_process(name, simulation, record):
    task = fl.tasks.classification("digits", 2, train=100, test=60)
    local = fl.run(name, task, 2, threads=1)
    remote = fl.run(name, task, 2, threads=1, engine=simulation)
    record(name, local, remote)
    assert remote == local
    assert remote.meta["engine"] == {"name": "flower", "flower": flower.require()}


@pytest.mark.slow
def test_a_network_from_a_file_which_no_worker_can_import(simulation, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from torch import nn\ndef net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    task = Experiment(network=f"{path}:net", clients=2, train=120, test=60).make_task()
    local = fl.run("fedavg", task, 2, threads=1)
    assert fl.run("fedavg", task, 2, threads=1, engine=simulation) == local


@pytest.mark.slow
def test_a_dead_worker_ends_the_run_with_its_finished_rounds(simulation, tmp_path):
    """Ray would hand all later messages to it, and each would fail. The next run starts anew."""
    parent = os.getpid()

    def network(shape, classes):
        net, calls = nn.Sequential(nn.Flatten(), nn.Linear(64, classes)), []

        def hook(*_):
            calls.append(1)
            if os.getpid() != parent and len(calls) > 6:
                os._exit(1)

        net.register_forward_pre_hook(hook)
        return net

    task = small(2, network=network)
    with pytest.raises(ConnectionError, match="worker"):
        fl.run(
            "fedavg", task, 5, threads=1, engine=simulation, checkpoint=tmp_path / "c"
        )
    assert (tmp_path / "c").exists()
    assert not fl.run("fedavg", small(2), 1, engine=simulation).rows[0]["refused"]
    simulation.stop()


@pytest.mark.slow
def test_command_line_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """Of two rounds in this process; with clients that keep something, half of them a round."""
    monkeypatch.chdir(tmp_path)
    common = "run stc --clients 4 --train 120 --test 60 --participation 0.5 --threads 1 --out h"
    common = f"{common} --checkpoint c --no-progress --rounds".split()
    task, options = small(), {"participation": 0.5, "threads": 1}
    fl.run("stc", task, 2, checkpoint="c", **options)
    assert not cli.main([*common, "4", "--engine", "flower"])
    assert fl.History.from_json(tmp_path / "h") == fl.run("stc", task, 4, **options)
    assert not ray.is_initialized()

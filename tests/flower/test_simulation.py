"""Flower's simulation: every method gives the history of one process, bit for bit. Real worker
processes, about 15 s a run."""

import os
import threading

import pytest
import ray
from torch import nn

import fedlearn as fl
from fedlearn import cli, flower
from fedlearn.settings import Experiment

from .conftest import MINE, small

METHODS = sorted(fl.methods.METHODS)


@pytest.fixture(scope="module")
def task():
    return fl.tasks.classification("digits", 2)


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    """One for all tests: starting it takes longer than what most of them do. One CPU, so one
    worker."""
    flower.start_ray(1)
    yield
    ray.shutdown()


@pytest.mark.parametrize("name", METHODS)
def test_history_is_that_of_one_process(name, task, record):
    method = fl.methods.get(name)
    here = fl.run(method, task, 3, threads=1)
    there = fl.run(method, task, 3, threads=1, engine="flower-sim")
    final = {
        "accuracy": here.final["accuracy"],
        "bytes_up": int(here.bytes_up.sum()),
        "bytes_down": int(here.bytes_down.sum()),
    }
    record(f"simulation_{name}", {"method": name, "equal": there == here, **final})
    assert there == here
    assert there.meta["engine"] == {"name": "flower-sim", "flower": flower.require()}


def test_a_method_and_a_network_from_a_file(tmp_path):
    """Which no worker can import."""
    (tmp_path / "mine.py").write_text(MINE)
    file = f"{tmp_path / 'mine.py'}"
    stated = Experiment(
        method=f"{file}:halved", network=f"{file}:net", clients=2, train=120, test=60
    )
    method, task = stated.make_method(), stated.make_task()
    here = fl.run(method, task, 2, threads=1)
    assert fl.run(method, task, 2, threads=1, engine="flower-sim") == here
    assert not any(row["refused"] for row in here.rows)


@pytest.mark.parametrize("kind, name", [("detection", "fed_kgf"), ("segmentation", "stc")])
def test_boxes_and_masks_too(kind, name):
    task = getattr(fl.tasks, kind)(clients=2, train=16, test=8)
    here = fl.run(name, task, 2, batch_size=4, threads=1)
    there = fl.run(name, task, 2, batch_size=4, threads=1, engine="flower-sim")
    assert there == here and there.loss[-1] > 0


def test_command_line_goes_on_from_its_checkpoint(tmp_path, capfd, monkeypatch):
    """Stopped after two of four rounds; with clients that keep something (STC), and half of them a
    round."""
    monkeypatch.chdir(tmp_path)
    common = [
        "run",
        "stc",
        "--clients",
        "4",
        "--train",
        "120",
        "--test",
        "60",
        "--participation",
        "0.5",
        "--threads",
        "1",
        "--out",
        "h.json",
    ]
    one_round, rounds = fl.round.one_round, []

    def stops(*args, **more):
        if len(rounds) == 2:
            raise KeyboardInterrupt
        rounds.append(args)
        return one_round(*args, **more)

    monkeypatch.setattr(fl.round, "one_round", stops)
    first = ["--rounds", "4", "--engine", "flower-sim", "--no-progress"]
    assert cli.main([*common, *first]) == 130
    monkeypatch.setattr(fl.round, "one_round", one_round)
    assert (tmp_path / "h.stc.checkpoint.clients").is_dir()
    flags = ["--rounds", "4", "--engine", "flower-sim", "--cpus-per-client", "0.5", "--no-progress"]
    assert not cli.main([*common, *flags])
    expected = fl.run(fl.methods.stc(), small(), 4, participation=0.5, threads=1)
    assert fl.History.from_json(tmp_path / "h.json") == expected
    assert [p.name for p in tmp_path.iterdir()] == [
        "h.json"
    ]  # the checkpoint and the clients' notes are gone
    assert "Going on from" in capfd.readouterr().err


def test_a_failing_client_is_named_and_the_log_is_quiet(capfd):
    """In the workers, and only there, the network stops working after a while."""
    parent = os.getpid()

    def network(shape, classes):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
        calls = []

        def hook(*_):
            calls.append(1)
            if len(calls) > 2 and os.getpid() != parent:
                raise MemoryError("no room")

        net.register_forward_pre_hook(hook)
        return net

    with pytest.warns(UserWarning, match="refused or missing"):
        history = fl.run(
            fl.methods.fedavg(), small(network=network), 2, threads=1, engine="flower-sim"
        )
    reasons = {why for row in history.rows for why in row["refused"].values()}
    assert reasons and all("no room" in why for why in reasons)
    out, err = capfd.readouterr()
    assert not out and "Traceback" not in err and "INFO" not in err


def test_a_dead_worker_ends_the_run_with_its_finished_rounds(tmp_path):
    """Ray would hand all later messages to it, and each would fail."""
    parent, died = os.getpid(), tmp_path / "died"

    def network(shape, classes):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
        calls = []

        def hook(*_):
            calls.append(1)
            if os.getpid() != parent and len(calls) > 6:
                died.touch()
                os._exit(1)

        net.register_forward_pre_hook(hook)
        return net

    job = flower.Job(fl.methods.fedavg(), small(network=network), 5, threads=1)
    with pytest.raises(ConnectionError, match="A worker process of the simulation has died"):
        flower.simulate(job, checkpoint=tmp_path / "c")
    assert died.exists() and (tmp_path / "c").exists()


def test_more_than_the_machine_has_is_said_in_one_sentence():
    with pytest.raises(
        ValueError, match=r"Ray has 1 CPUs and 0 GPUs; one client is to take 1 and 0.5"
    ):
        flower.simulate(flower.Job(fl.methods.fedavg(), small(), 1), gpus_per_client=0.5)


def test_a_simulation_starts_and_ends_its_own_ray_but_not_somebody_elses():
    job = flower.Job(fl.methods.fedavg(), small(), 1, threads=1)
    assert ray.is_initialized()
    here = flower.simulate(job)
    assert ray.is_initialized()
    ray.shutdown()
    assert flower.simulate(job) == here  # with all CPUs of the machine
    assert not ray.is_initialized() and threading.active_count() < 50
    flower.start_ray(1)

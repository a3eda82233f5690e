"""Bad input ends in one sentence: what was wrong and what is allowed. Nothing trains, nothing is
written, and no line of a traceback is seen."""

import inspect
import io
import random
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
import sklearn.metrics
import torch
from torch import nn

import fedlearn as fl
from fedlearn.errors import DataError
from fedlearn.lab import cli


class Began(Exception):
    """The input was taken, and the first round would begin."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the command lines below name."""
    path = tmp_path_factory.mktemp("here")
    (path / "binary.csv").write_bytes(b"\xff\xfe\x00" * 40)
    (path / "noise.npz").write_bytes(b"PK\x03\x04 no archive")
    (path / "leaf").mkdir()
    (path / "mine.py").write_text(
        "def needy(lr):\n    pass\n\ndef odd(confusion, clients):\n    1\n\n"
        "def nothing():\n    return 3\n\n"
        "def fine():\n"
        "    import numpy as np\n    import fedlearn as fl\n\n"
        "    y = np.arange(40)\n"
        "    return fl.data.arrays(np.eye(40), y % 2, users=y % 4)\n"
    )
    (path / "broken.py").write_text("x = 0\n1 / x\n")
    return path


def outcome_of(words):
    """What a command line prints to standard error, and its status; ``Began`` is status 0."""
    err = io.StringIO()
    with redirect_stderr(err), redirect_stdout(io.StringIO()):
        try:
            status = cli.main(words)
        except Began:
            status = 0
    return status, err.getvalue()


@pytest.fixture
def nothing_trains(monkeypatch, folder):
    def began(*args, **kwargs):
        raise Began

    monkeypatch.setattr("fedlearn.core.federation.one_round", began)
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.chdir(folder)


REFUSED = """
    rnu fedavg ~ 'run'
    run fedavg --patition iid ~ --patition
    run fedawg ~ Did you mean 'fedavg'
    run rpn --option shear=1 ~ Did you mean 'share'
    compare fedavg rpn --option shear=1 ~ option of fedavg 'shear'
    compare fedavg fedavg ~ of its own
    compare fedavg:lr=0.1 --lr 0.2 ~ lr is stated twice
    compare fedavg --jobs 0 ~ jobs
    cost mlp --input 4 --link 4G ~ LoRaWAN
    run fedavg --out leaf ~ leaf is a folder
    run fedavg --out . ~ . is a folder
    run fedavg --plot mine.py/x.png ~ mine.py is no folder
    run mine.py:need ~ Did you mean 'needy'
    run mine.py:nothing ~ not a fedlearn.Method
    run no.such:method ~ ModuleNotFoundError
    run broken.py:method ~ broken.py, line 2
    run mine.py:needy ~ argument: 'lr'
    run fedavg --device banana ~ device 'banana'
    run fedavg --threads 100000 ~ threads
    run fedavg --participation 1.1 ~ participation
    run fedavg --clients many ~ not 'many'
    run fedavg --clients 100000 ~ fewer clients
    run fedavg --train 99999999999999999999 ~ train of digits
    run fedavg --network os:system ~ 'os:system'
    run fedavg --metric mine.py:odd ~ one argument
    run fedavg --dataset mnits ~ Did you mean 'mnist'
    run fedavg --dataset nowhere/photos ~ fl.data.dataset
    run fedavg --dataset ./binary.csv ~ fl.data.table
    run fedavg --dataset leaf ~ fl.data.dataset
    run fedavg --dataset mine.py:nothing ~ maker
    run fedavg --dataset mine.py:needy ~ argument: 'lr'
    run fedavg --dataset mine.py:finer ~ Did you mean 'fine'
    run fedavg --dataset digits --clients word ~ users=
    run fedavg --dataset mine.py:fine --network mine.py:needy ~ cannot be built
    run fedavg --save model.pt ~ model.safetensors
    compare fedavg rpn --checkpoint c ~ single run
    cost mlp ~ --input
    run fedavg --checkpoint /dev/null ~ name a file
    run fedavg --dataset mine.py:fine --clients users --train 10 ~ neither partition nor train
    run fedavg --dataset mine.py:fine --network mcmahan_cnn ~ cannot be built
    run fedavg --checkpoint noise.npz ~ checkpoint
    check --paper none ~ paper
    reproduce nothing ~ nothing
    reproduce rpn --scale huge ~ scale 'huge'
    reproduce rpn --only FedProx ~ row 'FedProx'
    reproduce rpn --partition shards:2 ~ partition
    reproduce rpn --seed 11 ~ seed 11
    classroom nowhere there ~ nowhere
    classroom nowhere there --for moodle ~ moodle
"""
LINES = [line.strip().split("~ ") for line in REFUSED.strip().splitlines()]


@pytest.mark.parametrize(("line", "noun"), LINES)
def test_a_command_line_is_refused_in_one_sentence(nothing_trains, folder, line, noun):
    def files():
        return {
            p: p.stat().st_size
            for p in folder.rglob("*")
            if "__pycache__" not in p.parts
        }

    before = files()
    status, err = outcome_of(line.split())
    assert status == 2
    assert noun in err, err
    [error] = err.splitlines()
    assert error.startswith("fedlearn: ")
    assert len(error) < 800
    assert files() == before


VALUES = """
    abc nan inf -inf 0 -1 1 0.5 1e400 1e300 1e-300 3.5 99999999999999999999 True None '' [] (1,2)
    {'a':1} digits_cnn -0.0 conv 1e9
""".split()


def test_any_value_of_any_option_is_taken_or_refused_in_one_sentence(nothing_trains):
    lines = [
        f"run {name} --option {option}={value} --train 60 --test 20"
        for name, function in fl.methods.METHODS.items()
        for option in inspect.signature(function).parameters
        for value in VALUES
    ]
    outcomes = [outcome_of(line.split()) for line in random.Random(0).sample(lines, 60)]
    assert {status for status, _ in outcomes} == {0, 2}
    for status, err in outcomes:
        assert not status or (err.startswith("fedlearn: ") and err.count("\n") == 1), (
            err
        )


TASK = fl.tasks.classification("digits", 2, train=40, test=20)
HISTORY = fl.History("fedavg", {}, [{"round": 1, "accuracy": 0.5, "loss": 1.0}])


X = np.random.default_rng(0).random((40, 4))
Y = np.arange(40) % 3


def own_task(x=X, **options):
    """A task of data of one's own, with two clients."""
    return fl.tasks.classification(fl.data.arrays(x, Y), **{"clients": 2, **options})


def linear(outputs=3, inputs=4, **options):
    return lambda shape, classes: nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, outputs, **options)
    )


def then(function):
    """A network that makes something else of what a linear layer gives."""

    class Odd(nn.Sequential):
        def forward(self, x):
            return function(super().forward(x.flatten(1)))

    return lambda shape, classes: Odd(nn.Linear(4, classes))


NETWORKS = {
    "too few outputs": (linear(2), r"\[2, 3\]"),
    "other inputs": (linear(inputs=5), "batch"),
    "float64": (linear(dtype=torch.float64), "float32"),
    "lazy": (
        lambda shape, classes: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
        "lazy",
    ),
    "no parameters": (lambda shape, classes: nn.Flatten(), "parameters"),
    "a tuple": (then(lambda scores: (scores, 1)), "tuple"),
    "NaN": (then(lambda scores: scores * np.nan), "NaN"),
    "an error": (lambda shape, classes: {}[classes], "cannot be built"),
    "a number": (lambda shape, classes: 3, "Module"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_refused_when_the_task_is_built(name):
    network, noun = NETWORKS[name]
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=noun) as caught:
        own_task(network=network)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert torch.equal(torch.get_rng_state(), state)


CALLS = {
    "a file as a function": (
        lambda: fl.run("fedavg", TASK, on_round="log.csv"),
        "on_round",
    ),
    "a network from a file": (lambda: HISTORY.network(), "ended here"),
    "a partition's function": (
        lambda: own_task(partition=fl.partition.dirichlet),
        "call it",
    ),
    "a metric of sklearn": (
        lambda: own_task(metrics=sklearn.metrics.f1_score),
        "write a function",
    ),
    "a method's function": (lambda: fl.run(fl.methods.fedavg, TASK), r"fedavg\(\)"),
    "a task's name": (lambda: fl.run("fedavg", "digits"), "takes a task"),
    "engine": (lambda: fl.run("fedavg", TASK, engine=["stacked"]), "engine"),
    "seed": (lambda: fl.Experiment(seed=-1), "seed"),
    "a column": (lambda: fl.plot.compare(HISTORY, column="precision"), "column"),
    "half a seed": (lambda: fl.book.chapter(seed=0.5, clients=2), "seed"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_in_one_sentence(name, nothing_trains):
    call, noun = CALLS[name]
    with pytest.raises((ValueError, DataError), match=f"(?i){noun}") as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_an_option_of_a_method_is_not_one_of_a_run():
    with pytest.raises(TypeError, match=r"fedavg\(lr=...\)"):
        fl.run("fedavg", TASK, lr=0.1)
    with pytest.raises(TypeError, match="'epochs'"):
        fl.run("fedavg", TASK, epoch=2)

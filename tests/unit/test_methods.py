"""What all methods share: resuming, refused options, late clients."""

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.core import local

METHODS = sorted(fl.methods.METHODS)
QUICK = {
    "fed_gkt": {"asynchronous": True, "server_epochs": 1}
}  # it also does without clients


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, train=120, test=60)


@pytest.mark.parametrize("name", METHODS)
def test_two_runs_are_the_same_run_also_after_a_stop(name, task, tmp_path):
    method = fl.methods.get(name, **QUICK.get(name, {}))
    whole = fl.run(method, task, 3, participation=0.5)
    fl.run(method, task, 2, participation=0.5, checkpoint=tmp_path / "c")
    assert (
        fl.run(method, task, 3, participation=0.5, checkpoint=tmp_path / "c") == whole
    )
    assert not any(row["refused"] for row in whole.rows)


WRONG = [  # numbers out of range: test_options
    ("fedmmd", {"distance": "l1"}, "distance"),
    ("fed_kgf", {"base_kernels": 32}, "No convolution has more than 32 kernels"),
    ("fed_kgf", {"copies": "none"}, "copies"),
    ("fed_gkt", {"optimizer": "adm"}, "adam"),
    ("fed_gkt", {"edge": lambda shape, classes: nn.Flatten()}, "Flatten"),
    ("fed_repopt", {"network": None}, "multi-branch blocks"),
    ("fed_repopt", {"form": "search"}, "form"),
]


@pytest.mark.parametrize("name, options, noun", WRONG)
def test_options_that_cannot_be(name, options, noun, task, monkeypatch):
    monkeypatch.setattr(local, "train", lambda *args: pytest.fail("training began"))
    with pytest.raises(ValueError, match=noun) as error:
        fl.run(fl.methods.get(name, **options), task, 1)
    assert str(error.value).count("\n") == 0
    assert str(error.value).endswith(".")


def parties(name, task):
    """The server and the clients of a method, and its first state."""
    method = fl.methods.get(name)
    server = method.server_side(task)
    return server, fl.clients(method, task), server.start()


@pytest.mark.parametrize("name", ["stc", "signsgd"])
def test_late_clients_rebuild_the_server_model_exactly(name, task):
    server, clients, state = parties(name, task)
    last_seen = {}
    for t, present in {1: [0, 1], 2: [0], 3: [0, 1], 4: [0, 1, 2]}.items():
        arrivals = []
        for k in present:
            message = server.send(t, k, state, last_seen)[0]
            memory = clients.memories.setdefault(k, {})
            # and once more below: what comes twice counts once
            got = clients.side.download(t, k, message, memory).start
            assert all(torch.equal(got[n], w) for n, w in state.weights.items())
            arrivals.append(server.receive(t, k, clients.answer(t, k, message), state))
        last_seen |= dict.fromkeys(present, t)
        state = server.aggregate(t, state, arrivals, last_seen)
    with pytest.raises(fl.WireError, match="does not begin"):
        server.method.client_side(task).download(
            5, 0, server.send(5, 0, state, last_seen)[0], {}
        )


@pytest.mark.parametrize("name", ["stc", "signsgd"])
def test_steps_for_a_client_that_never_answers_do_not_grow(name, task):
    server, clients, state = parties(name, task)
    last_seen = {}
    for t in range(1, 60):
        message = server.send(t, 0, state, last_seen)[0]
        answer = server.receive(t, 0, clients.answer(t, 0, message), state)
        state = server.aggregate(t, state, [answer], last_seen)
        last_seen = {0: t}
    size = sum(len(x) for n, x in state.memory.items() if n.startswith("step/"))
    whole = sum(4 * w.numel() for w in state.weights.values())
    assert size < 2.1 * whole
    late = clients.side.download(60, 1, server.send(60, 1, state, last_seen)[0], {})
    assert all(torch.equal(late.start[n], w) for n, w in state.weights.items())

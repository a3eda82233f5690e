"""What all methods share: resuming, refused options, late clients."""

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.core import local
from fedlearn.parts import Arrival, Context
from fedlearn.wire import Schema

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


def test_masks_between_the_end_points():
    """theta is the mean of the masks, cut to 0.01 and 0.99."""
    masks = torch.tensor([[0.0, 0, 1, 1], [0.0, 1, 1, 1], [0.0, 0, 0, 1]])
    arrivals = [
        Arrival(k, 10**k, {"w": m, "b": m[:1] + k}) for k, m in enumerate(masks)
    ]
    ctx = Context(None, 1, schema=Schema({"w": (4,), "b": (1,)}, frozenset("b")))
    server = fl.methods.fedpm().server
    new = server.aggregate({"w": torch.zeros(4), "b": torch.ones(1)}, arrivals, ctx)
    expected = torch.tensor([0.01, 1 / 3, 2 / 3, 0.99])
    torch.testing.assert_close(new["w"].sigmoid(), expected)
    # statistics, by n_k
    torch.testing.assert_close(new["b"], torch.tensor([1 + 210 / 111]))


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
    assert str(error.value).count("\n") == 0 and str(error.value).endswith(".")


@pytest.mark.parametrize("name", ["stc", "signsgd"])
def test_late_clients_rebuild_the_server_model_exactly(name, task):
    method = fl.methods.get(name)
    server, clients = method.server_side(task), fl.clients(method, task)
    state, last_seen, sizes = server.start(), {}, {}
    for t, who in {1: [0, 1], 2: [0], 3: [0, 1], 4: [0, 1, 2]}.items():
        arrivals = []
        for k in who:
            message = server.send(t, k, state, last_seen)[0]
            sizes[t, k] = len(message)
            memory = clients.memories.setdefault(k, {})
            # and once more below: what comes twice counts once
            got = clients.side.download(t, k, message, memory).start
            assert all(torch.equal(got[n], w) for n, w in state.weights.items())
            arrivals.append(server.receive(t, k, clients.answer(t, k, message), state))
        last_seen |= dict.fromkeys(who, t)
        state = server.aggregate(t, state, arrivals, last_seen)
    # who missed round 2 hears two steps, the first round nothing
    assert sizes[3, 1] > sizes[3, 0] > sizes[1, 0] and sizes[4, 2] > sizes[4, 0]
    with pytest.raises(fl.WireError, match="does not begin"):
        method.client_side(task).download(
            5, 0, server.send(5, 0, state, last_seen)[0], {}
        )

"""FedFusion: networks that cannot be fused, a fusion that stays with its client."""

from importlib import import_module

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.wire import DOWN, UP, Message, pack

fusion = import_module("fedlearn.methods.fedfusion")


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "main_class:0.8", train=120, test=60)


def test_networks_that_cannot_be_fused():
    def network(shape, classes):
        return fl.models.Network(nn.Flatten(), nn.Linear(64, classes))

    task = fl.tasks.classification("digits", 2, train=40, network=network)
    with pytest.raises(ValueError, match=r"feature maps \[channels, height, width\]"):
        fl.run(fl.methods.fedfusion(), task, 1)


def test_a_personal_fusion_stays_with_its_client(task):
    method = fl.methods.fedfusion(lr=0.3, personal=True)
    server, clients = method.server_side(task), fl.clients(method, task)
    state = server.start()
    for t in (1, 2):
        answers = [clients.answer(t, k, server.send(t, k, state)[0]) for k in range(4)]
        arrivals = [server.receive(t, k, a, state) for k, a in enumerate(answers)]
        state = server.aggregate(t, state, arrivals)
    kept = [clients.memories[k]["fusion.lam"].clone() for k in range(4)]
    assert all(bool(v.any()) for v in kept) and not torch.equal(kept[0], kept[1])
    assert not state.weights["fusion.lam"].any()
    got = clients.side.download(
        3, 1, server.send(3, 1, state)[0], clients.memories[1]
    ).start
    for (
        name,
        w,
    ) in state.weights.items():  # the shared body, and the client's fusion beside it
        assert torch.equal(got[name], kept[1] if name == "fusion.lam" else w)
    clients.side.method = method.but(
        optimizer=fl.SGD(1e38)
    )  # a fusion that diverges is not kept
    answer = clients.answer(3, 0, server.send(3, 0, state)[0])
    with pytest.raises(fl.WireError, match="diverged"):
        server.receive(3, 0, answer, state)
    assert torch.equal(clients.memories[0]["fusion.lam"], kept[0])
    # neither side believes the other a fusion
    ctx = server.context(3, 0, server.down, {})
    sections = fl.methods.fedfusion().downlink.encode(state.weights, ctx)
    with pytest.raises(fl.WireError, match="fusion"):
        clients.side.download(
            3, 0, pack(Message(DOWN, 3, 0, 0, sections), server.down), {}
        )
    with pytest.raises(fl.WireError, match="Client 0"):
        server.receive(
            3, 0, pack(Message(UP, 3, 0, task.sizes[0], sections), server.up), state
        )

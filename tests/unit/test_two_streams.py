"""FedFusion: networks that cannot be fused, a fusion that stays with its client."""

import pytest
import torch
from torch import nn

import fedlearn as fl


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "main_class:0.8", train=120, test=60)


def test_networks_that_cannot_be_fused():
    def network(shape, classes):
        return fl.models.Network(nn.Flatten(), nn.Linear(64, classes))

    task = fl.tasks.classification("digits", 2, train=40, network=network)
    with pytest.raises(ValueError, match="feature maps"):
        fl.run(fl.methods.fedfusion(), task, 1)


def test_a_personal_fusion_stays_with_its_client(task):
    method = fl.methods.fedfusion(lr=0.3, personal=True)
    server = method.server_side(task)
    clients = fl.clients(method, task)
    state = server.start()
    for t in (1, 2):
        answers = [clients.answer(t, k, server.send(t, k, state)[0]) for k in range(4)]
        arrivals = [server.receive(t, k, a, state) for k, a in enumerate(answers)]
        state = server.aggregate(t, state, arrivals)
    fusions = [clients.memories[k]["fusion.lam"].clone() for k in range(4)]
    assert all(bool(v.any()) for v in fusions)
    assert not torch.equal(fusions[0], fusions[1])
    assert not state.weights["fusion.lam"].any()
    message = server.send(3, 1, state)[0]
    got = clients.side.download(3, 1, message, clients.memories[1]).start
    for name, w in state.weights.items():
        assert torch.equal(got[name], fusions[1] if name == "fusion.lam" else w)

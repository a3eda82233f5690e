"""Parts of FedNova and FedPM; golden histories hold what the other baselines compute."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

import fedlearn as fl
from fedlearn.parts import Arrival, Context
from fedlearn.wire import Schema

Normalised = import_module("fedlearn.methods.fednova").Normalised


@pytest.mark.parametrize("clients", [(0, 1, 2), (0, 2)])
def test_fednova_is_normalised_averaging(clients):
    """Section 4: tau = 6, 2, 2. A refused client counts in no sum."""
    sizes = (25, 10, 5)
    tau = (6, 2, 2)
    u = torch.tensor([[0.6, -0.3], [0.1, 0.5], [-0.2, 0.2]])
    ctx = Context(
        SimpleNamespace(sizes=sizes),
        1,
        schema=Schema({"w": (2,)}),
        settings=fl.Settings(epochs=2, batch_size=10),
        participants=(0, 1, 2),
    )
    arrivals = [Arrival(k, sizes[k], {"w": u[k]}) for k in clients]
    new = Normalised().aggregate({"w": torch.zeros(2)}, arrivals, ctx)
    n = sum(sizes[k] for k in clients)
    tau_eff = sum(sizes[k] * tau[k] for k in clients) / n
    expected = tau_eff * sum(sizes[k] * u[k] / tau[k] for k in clients) / n
    torch.testing.assert_close(new["w"], expected)


def test_fedpm_keeps_the_mean_of_masks_between_its_end_points():
    masks = torch.tensor([[0.0, 0, 1, 1], [0.0, 1, 1, 1], [0.0, 0, 0, 1]])
    arrivals = [Arrival(k, 1, {"w": mask}) for k, mask in enumerate(masks)]
    ctx = Context(None, 1, schema=Schema({"w": (4,)}))
    new = fl.methods.fedpm().server.aggregate({"w": torch.zeros(4)}, arrivals, ctx)
    expected = torch.tensor([0.01, 1 / 3, 2 / 3, 0.99])
    torch.testing.assert_close(new["w"].sigmoid(), expected)

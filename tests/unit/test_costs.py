"""What would it send? Checked against messages that runs really sent."""

import numpy as np
import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.book import sends


def plain() -> nn.Module:
    """A network that is none of the book's."""
    return nn.Sequential(
        nn.Conv2d(3, 20, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * 36, 4),
    )


def test_bytes_are_those_of_a_run():
    methods = ["fedavg", "rpn", "stc", "scaffold", "fed_kgf"]
    costs = fl.cost("digits_cnn", "1x8x8", methods)
    task = fl.tasks.classification("digits", clients=1, train=30, network="digits_cnn")
    for name, row in costs.iterrows():
        last = fl.run(name, task, 2).rows[-1]
        for way in ("up", "down"):  # positions are coded by their gaps
            sent = last[f"bytes_{way}"]
            assert abs(row[way] - sent) <= (0.1 * sent if name == "stc" else 0)
    assert costs.loc["fedavg", "factor"] == 1
    assert costs.loc["rpn", "factor"] > 5
    dense = costs.loc["fedavg", "up"] + costs.loc["fedavg", "down"]
    assert costs.loc["fedavg", "total"] == 10 * 100 * dense


def test_every_method_counts_or_says_why_not():
    net = plain()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    costs = fl.cost(net, (3, 8, 8), link="LoRaWAN", rounds=2)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert len(costs) == len(fl.methods.METHODS) - 1
    refused = costs[costs["up"].isna()]
    assert {"fed_gkt", "split_learning", "fedfusion", "fed_repopt"} <= set(
        refused.index
    )
    assert len(refused) < 6
    assert refused["note"].map(bool).all()
    assert "trains" in costs.loc["fed_kgf", "note"]


def broken() -> nn.Module:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    "network, shape, noun",
    [
        (nn.Flatten(), "3x8x8", "parameters"),
        (broken, "3x8x8", "boom"),
        (nn.LazyLinear(3), "8", "lazy"),
        (plain, "3x9x9", "shape"),
        (plain, "big", "input"),
        ("no_such", "3x8x8", "network"),
    ],
)
def test_what_cannot_be_is_said(network, shape, noun):
    with pytest.raises(ValueError, match=noun):
        fl.cost(network, shape, "fedavg")


def test_the_page_says_what_its_tables_say():
    tables = sends.stored()
    resnet = tables["ResNet-50"].dropna(subset="up")
    assert f"{resnet.attrs['wide']:.0%}" == "44%"
    assert (resnet["up"] + resnet["down"]).idxmin() == "stc"
    assert resnet.loc["scaffold", "factor"] < 0.51
    half = resnet.loc[["qsgd", "dgc", "smartidx", "fedcams"], "factor"]
    assert half.between(1.5, 2.1).all()
    block = tables["transformer block"]
    assert block.loc["rpn", "up"] == block.loc["fedavg", "up"]


# ---- a loop of one's own -------------------------------------------------------------------------


def test_a_meter_counts_messages_and_bytes():
    state = nn.Linear(100, 10).state_dict()
    meter = fl.Meter()
    for _ in range(3):
        meter.received(state)
    meter.sent({name: t.half() for name, t in state.items()})
    meter.sent({"w": np.zeros((4, 8), np.float32)}, size=57)
    table = meter.table()
    assert table.loc["down"].tolist() == [3, 3 * 1010, 3 * 4040, 32]
    assert table.loc["up", "messages"] == 2
    assert table.loc["up", "bytes"] == 2020 + 57


@pytest.mark.parametrize(
    "state, size", [(nn.Flatten(), None), ({"w": 1.0}, None), ({}, -1)]
)
def test_a_meter_refuses_what_is_no_state(state, size):
    with pytest.raises(ValueError, match="state|size"):
        fl.Meter().sent(state, size=size)

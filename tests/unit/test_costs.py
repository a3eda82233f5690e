"""What would it send? Checked against messages that runs really sent."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.lab import cli


def plain() -> nn.Module:
    """A network that is none of the book's."""
    return nn.Sequential(nn.Conv2d(3, 20, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20 * 36, 4))


def test_bytes_are_those_of_a_run():
    methods = ["fedavg", "rpn", "stc", "scaffold", "fed_kgf"]
    costs = fl.cost("digits_cnn", "1x8x8", methods)
    task = fl.tasks.classification("digits", clients=1, train=30, network="digits_cnn")
    for row in costs.rows:
        last = fl.run(row["method"], task, 2).rows[-1]
        for way in ("up", "down"):  # positions are coded by entropy
            sent = last[f"bytes_{way}"]
            assert abs(row[way] - sent) <= (0.1 * sent if row["method"] == "stc" else 0)
    dense, rpn = costs.rows[:2]
    assert dense["factor"] == 1 and rpn["factor"] > 5
    assert dense["bound"] is None and 0 < costs.rows[2]["bound"] <= costs.rows[2]["bits"]
    assert dense["total"] == 10 * 100 * (dense["up"] + dense["down"])


def test_every_method_counts_or_says_why_not(tmp_path):
    net = plain()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    costs = fl.cost(net, (3, 8, 8), link="LoRaWAN", rounds=2)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert len(costs.rows) == len(fl.methods.METHODS) - 1
    refused = {row["method"]: row["note"] for row in costs.rows if row["up"] is None}
    assert {"fed_gkt", "split_learning", "fedfusion", "fed_repopt"} <= refused.keys()
    assert len(refused) < 6 and all(refused.values())
    assert "trains" in {row["method"]: row["note"] for row in costs.rows}["fed_kgf"]
    assert json.loads(costs.to_json(tmp_path / "costs.json")) == json.loads(costs.to_json())
    assert "LoRaWAN" in repr(costs) and "<table" in costs.to_html()
    assert costs.to_html(tmp_path / "costs.html") == costs._repr_html_()
    assert all(f"{method}: {note}" in repr(costs) for method, note in refused.items())
    assert costs.plot().get_xlabel()


class Tokens(nn.Module):
    """A transformer block that begins with an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not x.is_floating_point()
        return self.head(self.block(self.embedding(x)))


@pytest.mark.parametrize(
    "network, input, tokens",
    [
        (Tokens, "8", 50),
        (Tokens, torch.randint(50, (3, 8)), None),
        (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), np.zeros((2, 8, 16)), None),
    ],
)
def test_transformers_are_counted_with_every_method_that_has_a_form(network, input, tokens):
    costs = fl.cost(network, input, tokens=tokens)
    rows = {row["method"]: row for row in costs.rows if row["up"]}
    refused = {"fed_kgf", "fedfusion", "fed_gkt", "fed_repopt", "fedpm", "split_learning"}
    assert rows.keys() == fl.methods.METHODS.keys() - refused - {"local"}
    assert rows["fedavg"]["up"] > 4 * costs.network["numbers"] and rows["stc"]["factor"] > 10
    assert "pools 0%" in rows["rpn"]["note"]


def test_gradients_of_few_values_a_channel_stay_finite():
    """A ResNet's last maps are 1 x 1 on 32 x 32 pixels, where two samples diverged."""
    costs = fl.cost("torchvision.models:resnet18", "3x32x32", ["fedmmd", "fed_kgf"])
    assert all(row["up"] for row in costs.rows), costs


class Part(nn.Module):
    """Two outputs, a layer that is not used, a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.unused = nn.Linear(6, 3), nn.Linear(6, 2), nn.Linear(6, 9)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        x = self.frozen(x)
        return {"none": None, "one": self.one(x), "two": self.two(x)}


@pytest.mark.filterwarnings("error")
def test_networks_of_which_a_part_is_trained():
    """Frozen parameters never travel; the note is no warning."""
    dense, rpn = fl.cost(Part, "6", ["fedavg", "rpn"]).rows
    assert dense["up_buffers"] == 0 and dense["bits"] > 32
    assert rpn["up"] == dense["up"]


def test_named_networks_are_built_for_the_input():
    for name, shape, tokens in (("mlp", "1x4x4", None), ("char_lstm", "20", 30)):
        build = {**fl.models.NETWORKS, **fl.models.SEQUENCES}[name]
        net = build(tuple(map(int, shape.split("x"))), tokens or 10)
        numbers = fl.cost(name, shape, "fedavg", tokens=tokens).network["numbers"]
        assert numbers == fl.models.parameter_count(net)


def test_the_command_takes_all_and_lists(tmp_path, capsys):
    out = tmp_path / "new" / "cost.json"
    typed = ["cost", "mlp", "--input", "1X4x4", "--methods"]
    assert not cli.main([*typed, "fedavg,stc,", "--out", str(out)])
    assert [row["method"] for row in json.loads(out.read_text())["rows"]] == ["fedavg", "stc"]
    assert not cli.main([*typed, "all"])
    assert "split_learning" in capsys.readouterr().out


def broken() -> nn.Module:
    raise RuntimeError("boom")


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(8, dtype=torch.complex64))


@pytest.mark.parametrize(
    "network, shape, noun",
    [
        (nn.Flatten(), "3x8x8", "parameters"),
        (broken, "3x8x8", "boom"),
        (lambda: 5, "3x8x8", "Module"),
        (nn.LazyLinear(3), "8", "lazy"),
        (Complex, "8", "float32"),
        (nn.Embedding(9, 3), "8", "tokens"),
        (plain, f"{10**11}x9", "input"),
        (plain, "3x9x9", "input"),
        (plain, "big", "input"),
        (plain, torch.rand(1, 3, 8, 8), "batch"),
        ("no_such", "3x8x8", "network"),
    ],
)
def test_what_cannot_be_is_said(network, shape, noun):
    with pytest.raises(ValueError, match=noun):
        fl.cost(network, shape, "fedavg")

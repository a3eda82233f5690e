"""Methods and networks that are not in the package."""

import json

import pytest

from fedlearn.lab import cli

MINE = """
import fedlearn as fl
from torch import nn


def halved(lr=0.05):
    return fl.Averaging("halved", optimizer=fl.SGD(lr / 2))


def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(MINE)
    return tmp_path


@pytest.mark.parametrize("name", ["own/mine.py:halved", "own.mine:halved"])
def test_a_method_and_a_network_by_file_and_by_module(here, name, capsys):
    network = name.replace("halved", "net")
    line = (
        f"compare {name} fedavg:lr=0.1 --network {network} --rounds 2 --option lr=0.2"
    )
    assert not cli.main([*line.split(), "--train", "200", "--out", "-"])
    ours, theirs = json.loads(capsys.readouterr().out)
    assert ours["method"] == "halved"
    assert ours["meta"]["task"]["network"] == network
    assert [r["loss"] for r in ours["rows"]] == [r["loss"] for r in theirs["rows"]]
    assert not list(here.glob("*.checkpoint")) + list(
        (here / "own").glob("*.checkpoint")
    )

"""The command line as a user types it."""

import json
import os
import subprocess
import sys

import pytest

import fedlearn as fl
from fedlearn.cli import main

SMALL = ["--clients", "3", "--rounds", "2", "--train", "120", "--test", "50"]


def test_run_prints_a_table(capsys):
    assert main(["run", "fedavg", *SMALL]) is None
    out = capsys.readouterr().out
    assert out.startswith("method") and "fedavg" in out


def test_json_on_standard_output(capsys):
    main(["run", "rpn", *SMALL, "--out", "-", "--option", "share=0.5", "--lr", "0.05"])
    history = fl.History.from_json(capsys.readouterr().out)
    assert (
        len(history) == 2
        and "share=0.5" in history.meta["parts"]["uplink"]
        and "lr=0.05" in history.meta["parts"]["optimizer"]
    )
    assert set(history.meta["provenance"]) == {"command", "date", "commit"}


def test_compare_writes_json_and_a_picture(tmp_path, capsys):
    out, picture = tmp_path / "both.json", tmp_path / "both.png"
    main(
        [
            "compare",
            "fedavg",
            "rpn",
            *SMALL,
            "--out",
            str(out),
            "--plot",
            str(picture),
            "--partition",
            "dirichlet:1",
        ]
    )
    first, second = json.loads(out.read_text())
    assert (first["method"], second["method"]) == (
        "fedavg",
        "rpn",
    ) and picture.stat().st_size > 1000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["both.json", "both.png"], (
        "checkpoints go away after the run"
    )


def test_a_comparison_that_stops_in_its_second_run_keeps_the_first(tmp_path, monkeypatch):
    out, interrupts, real = tmp_path / "both.json", [1], fl.federation.run

    def run(method, *args, **settings):
        if method.name == "rpn" and interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return real(method, *args, **settings)

    monkeypatch.setattr("fedlearn.federation.run", run)
    assert (
        main(["compare", "fedavg", "rpn", *SMALL, "--out", str(out), "--option", "share=0.5"])
        == 130
    )
    assert [p.name for p in tmp_path.iterdir()] == ["both.fedavg.checkpoint"] and not out.exists()
    rounds = []
    monkeypatch.setattr(
        "fedlearn.federation.one_round",
        lambda *a, one=fl.federation.one_round, **k: rounds.append(1) or one(*a, **k),
    )
    assert (
        main(["compare", "fedavg", "rpn", *SMALL, "--out", str(out), "--option", "share=0.5"])
        is None
    )
    assert len(rounds) == 2, "only the two rounds of the second method were left to do"
    assert [p.name for p in tmp_path.iterdir()] == ["both.json"]


def test_methods_lists_options_and_parts(capsys):
    main(["methods"])
    out = capsys.readouterr().out
    assert "rpn(" in out and "share=1.0" in out and "uplink" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "fedawg"], "Did you mean 'fedavg'"),
        (["run", "rpn", "--option", "shear=1"], "Did you mean 'share'"),
        (["run", "rpn", "--option", "share"], "NAME=VALUE"),
        (["compare", "fedavg", "rpm"], "Did you mean 'rpn'"),
        (["compare", "fedavg", "rpn", "--option", "shear=1"], "no option of fedavg 'shear'"),
        (["run", "fedavg", "--dataset", "mnits"], "Did you mean 'mnist'"),
        (["run", "fedavg", "--partition", "dirichlet:-1"], "alpha"),
        (["run", "fedavg", "--rounds", "0"], "rounds must be"),
        (["run", "fedavg", "--device", "cuda:99"], "GPU"),
    ],
)
def test_errors_are_one_sentence(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedlearn.local.train", lambda *a: pytest.fail("training started"))
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.startswith("fedlearn: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_absent_data_set_offline(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path))
    fl.data.sources.load.cache_clear()
    if fl.data.sources.available("cifar100"):
        pytest.skip("CIFAR-100 lies in data/cache of this checkout")
    assert main(["run", "fedavg", "--dataset", "cifar100"]) == 2
    assert "FEDLEARN_DATA" in capsys.readouterr().err


def test_check_recomputes_the_ledger(capsys):
    assert main(["check", "--paper", "rpn"]) == 0
    out = capsys.readouterr().out
    assert "rpn-table1-rpn-params" in out or "1,183,242" in out
    assert " inconsistent" in out.splitlines()[-1]
    assert (
        main(["check", "--paper", "rpm"]) == 2 and "Did you mean 'rpn'" in capsys.readouterr().err
    )


@pytest.mark.parametrize("arguments", [[], ["run"], ["compare"], ["check"], ["classroom"]])
def test_help_for_a_stranger(arguments, capsys):
    with pytest.raises(SystemExit) as done:
        main([*arguments, "--help"])
    assert done.value.code == 0 and "usage: fedlearn" in capsys.readouterr().out


CTRL_C_IN_ROUND_5 = """
import os, signal, sys
from fedlearn import cli, federation
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits that it is ignored
train = federation.one_round
def interrupted(server, clients, t, last=False):
    if t == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return train(server, clients, t, last)
federation.one_round = interrupted
sys.exit(cli.main(sys.argv[1:]))
"""


def test_interrupted_and_continued(tmp_path):
    """Ctrl-C in the middle; the same command then goes on, and the result is that of an unbroken run."""
    arguments = ["run", "fedavg", "--clients", "3", "--rounds", "8", "--train", "150", "--out"]
    whole, broken = tmp_path / "whole.json", tmp_path / "broken.json"

    def command(path, *python):
        return subprocess.run(
            [sys.executable, *python, *arguments, str(path)], capture_output=True, text=True
        )

    assert command(whole, "-m", "fedlearn.cli").returncode == 0
    stopped = command(broken, "-c", CTRL_C_IN_ROUND_5)
    checkpoint = tmp_path / "broken.fedavg.checkpoint"
    assert stopped.returncode == 130 and "the same command goes on from there" in stopped.stderr
    assert checkpoint.exists() and not broken.exists()
    again = command(broken, "-m", "fedlearn.cli")
    assert again.returncode == 0 and "Going on from" in again.stderr and not checkpoint.exists()
    assert len(fl.History.from_json(broken)) == 8
    assert fl.History.from_json(whole) == fl.History.from_json(broken)


def test_installed_command_exists():
    """`pip install -e .` puts `fedlearn` beside python."""
    path = os.path.join(os.path.dirname(sys.executable), "fedlearn")
    if not os.path.exists(path):
        pytest.skip("the package is on the path but not installed in this environment")
    assert subprocess.run([path, "methods"], capture_output=True).returncode == 0

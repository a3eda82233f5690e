"""The command line as a user types it, and the experiment that it states."""

import json
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn.core import federation
from fedlearn.lab import cli
from fedlearn.lab.cli import main
from fedlearn.lab.experiment import Experiment

SMALL = "--clients 3 --rounds 2 --train 120 --test 50 --no-progress".split()
# no field has its default
OTHER = {
    "method": "stc",
    "lr": -1e-05,
    "task": "detection",
    "dataset": "mnist",
    "clients": 3,
    "options": dict(ratio=0.25, on=True, of=None, text="a b", number="1", two=(1, -2)),
    "partition": "dirichlet:0.5",
    "network": "digits_cnn",
    "augment": ("crop", "flip"),
    "metrics": ("per_class",),
    "train": 100,
    "test": 50,
    "validation": True,
    "seed": 7,
    "device": "cuda:1",
    "rounds": 4,
    "threads": 2,
    "participation": 0.5,
    "epochs": 2,
    "batch_size": 16,
    "evaluate_every": 3,
    "precision": "bf16",
}


def typed(words):
    """The experiments that the words behind `fedlearn` state."""
    _, arguments = cli.parse(words)
    return cli.experiments(arguments)


@pytest.mark.parametrize(
    "names", [*([n] for n in OTHER), OTHER], ids=lambda n: "-".join(n)[:9]
)
def test_every_field_can_be_typed(names):
    one = Experiment(**{name: OTHER[name] for name in names})
    assert OTHER.keys() == {f.name for f in fields(Experiment)}
    assert one != Experiment()
    assert typed(["run", *one.arguments()]) == [one]


def test_seeds_options_and_values_are_runs_of_their_own():
    words = (
        "compare fedavg rpn:share=0.5/1,lr=0.3 --seed 0 1 --seed 4 --option by=pixels"
    )
    both = [("rpn", {"by": "pixels", "share": share, "lr": 0.3}) for share in (0.5, 1)]
    expected = [(*run, seed) for run in (("fedavg", {}), *both) for seed in (0, 1, 4)]
    assert [(e.method, e.options, e.seed) for e in typed(words.split())] == expected
    (e,) = typed(
        ["run", "fed_repopt", "--option", "form=inf"]
    )  # a number and a form's name
    assert e.make_method().model.form == "inf"


def test_help_does_not_load_torch():
    commands = [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)]
    program = f"""
import sys
from fedlearn.lab.cli import main
for arguments in {commands}:
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0
print([name for name in ("torch", "numpy", "yaml") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.slow
def test_several_processes_give_the_same_histories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "fedavg", "rpn:share=0.5/1", *SMALL, "--seed", "0", "1"]
    for more in (["--out", "one.json"], ["--out", "two.json", "--jobs", "2"]):
        assert not main([*words, *more])
    one, two = (json.loads(Path(f"{name}.json").read_text()) for name in ("one", "two"))
    assert len(one) == 6
    assert [*map(fl.History.from_dict, one)] == [*map(fl.History.from_dict, two)]


def test_the_typed_run_is_the_run_in_python(capsys):
    words = ["run", "rpn", *SMALL, "--option", "share=0.5", "--lr", "0.05"]
    assert main([*words, "--out", "-"]) is None
    captured = capsys.readouterr()
    history = fl.History.from_json(captured.out)
    assert not captured.err
    assert history.meta["provenance"].keys() == {"command", "date", "commit"}
    (e,) = typed(words)
    assert fl.Settings(**history.meta["settings"]) == e.settings
    assert history == fl.run(e.make_method(), e.make_task(), 2, **asdict(e.settings))


def test_a_stopped_run_goes_on(tmp_path, monkeypatch, capsys):
    real = federation.one_round
    begun = []

    def one_round(server, engine, t, *rest, **how):
        begun.append(t)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr("fedlearn.core.federation.one_round", one_round)
    monkeypatch.chdir(tmp_path)
    few = "--clients 2 --train 8 --test 4 --no-progress --option share=0.5".split()
    assert main(["compare", "rpn", "fedavg", *few, "--rounds", "2"]) == 130
    assert "same command" in capsys.readouterr().err
    (checkpoint,) = tmp_path.iterdir()
    assert not main(["run", "rpn", *few, "--rounds", "1", "--seed", "1"])
    assert [*tmp_path.iterdir()] == [checkpoint]
    resumed = ["--rounds", "3", "--threads", "1", "--checkpoint", str(checkpoint)]
    assert not main(["run", "rpn", *few, *resumed, "--out", "a"])
    assert begun == [1, 2, 1, 2, 3]
    assert not main(["run", "rpn", *few, "--rounds", "3", "--out", "b.json"])
    assert fl.History.from_json("a") == fl.History.from_json("b.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b.json"]

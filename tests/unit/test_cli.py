"""The command line as a user types it, and the experiment that it states."""

import json
import shlex
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
# no field has its default; each with the words behind `fedlearn run`
OTHER = {
    "method": ("stc", "stc"),
    "lr": (-1e-05, "--lr=-1e-05"),
    "task": ("detection", "--task detection"),
    "dataset": ("mnist", "--dataset mnist"),
    "clients": (3, "--clients 3"),
    "options": (
        dict(ratio=0.25, on=True, off=None, text="a b", number="1", two=(1, -2)),
        "--option ratio=0.25 --option on=True --option off=None --option 'text=a b' "
        """--option number="'1'" --option two=(1,-2)""",
    ),
    "partition": ("dirichlet:0.5", "--partition dirichlet:0.5"),
    "network": ("digits_cnn", "--network digits_cnn"),
    "augment": (("crop", "flip"), "--augment crop --augment flip"),
    "metrics": (("per_class",), "--metric per_class"),
    "train": (100, "--train 100"),
    "test": (50, "--test 50"),
    "validation": (True, "--validation"),
    "seed": (7, "--seed 7"),
    "device": ("cuda:1", "--device cuda:1"),
    "rounds": (4, "--rounds 4"),
    "threads": (2, "--threads 2"),
    "participation": (0.5, "--participation 0.5"),
    "epochs": (2, "--epochs 2"),
    "batch_size": (16, "--batch-size 16"),
    "evaluate_every": (3, "--evaluate-every 3"),
    "precision": ("bf16", "--precision bf16"),
}


def typed(words):
    """The experiments that the words behind `fedlearn` state."""
    return cli.experiments(cli.parser().parse_args(words))


@pytest.mark.parametrize(
    "names", [*([n] for n in OTHER), OTHER], ids=lambda n: "-".join(n)[:9]
)
def test_every_field_can_be_typed(names):
    experiment = Experiment(**{name: OTHER[name][0] for name in names})
    assert OTHER.keys() == {f.name for f in fields(Experiment)}
    assert experiment != Experiment()
    words = " ".join(OTHER[name][1] for name in names)
    method = "" if "method" in names else "fedavg "
    assert typed(["run", *shlex.split(method + words)]) == [experiment]


def test_seeds_and_options_are_runs_of_their_own():
    words = "compare fedavg rpn:share=0.5,lr=0.3 --seed 0 1 --seed 4 --option lr=0.2"
    runs = [("fedavg", {"lr": 0.2}), ("rpn", {"share": 0.5, "lr": 0.3})]
    expected = [(*run, seed) for run in runs for seed in (0, 1, 4)]
    assert [(e.method, e.options, e.seed) for e in typed(words.split())] == expected


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
    words = ["compare", "fedavg", "rpn:share=0.5", "rpn", *SMALL, "--seed", "0", "1"]
    for options in (["--out", "one.json"], ["--out", "two.json", "--jobs", "2"]):
        assert not main([*words, *options])
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
    few = "--clients 2 --train 8 --test 4 --no-progress --checkpoint c".split()
    assert main(["run", "rpn", *few, "--rounds", "2"]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert not main(["run", "rpn", *few, "--rounds", "2", "--out", "a"])
    assert begun == [1, 2, 2]
    assert not main(["run", "rpn", *few, "--rounds", "3", "--out", "b"])
    assert begun[3:] == [3]
    first, longer = (fl.History.from_json(name) for name in "ab")
    assert first.rows == longer.rows[:2]

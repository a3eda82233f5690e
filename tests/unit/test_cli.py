"""The command line as a user types it, and the experiment that it states."""

import json
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn import cli, runs
from fedlearn.cli import main
from fedlearn.core import federation
from fedlearn.experiment import Experiment

SMALL = "--clients 3 --rounds 2 --train 120 --test 50".split()
# every field as it is not by default
OTHER = {
    "method": "stc", "lr": -1e-05, "task": "detection", "dataset": "mnist", "clients": 3,
    "options": dict(ratio=0.25, on=True, of=None, text="a b", number="1", two=(1, -2)),
    "partition": "dirichlet:0.5", "network": "digits_cnn", "augment": ("crop", "flip"),
    "metrics": ("per_class",), "train": 100, "test": 50, "validation": True, "seed": 7,
    "device": "cuda:1", "rounds": 4, "threads": 2, "participation": 0.5, "epochs": 2,
    "batch_size": 16,
    "evaluate_every": 3, "precision": "bf16",
}  # fmt: skip


def typed(words):
    """The experiments that are stated behind `fedlearn`."""
    return cli.experiments(cli.parse(words).keywords["experiment"])


@pytest.mark.parametrize("names", [*([n] for n in OTHER), OTHER], ids=lambda n: "-".join(n)[:9])
def test_every_field_can_be_typed(names):
    one = Experiment(**{name: OTHER[name] for name in names})
    assert OTHER.keys() == {f.name for f in fields(Experiment)}
    assert one != Experiment() and typed(["run", *one.arguments()]) == [one]


def test_seeds_options_and_values_are_runs_of_their_own():
    words = "compare fedavg rpn:share=0.5/1,lr=0.3 --seed 0 1 --seed 4 --option by=pixels"
    both = [("rpn", {"by": "pixels", "share": share, "lr": 0.3}) for share in (0.5, 1)]
    expected = [(*run, seed) for run in (("fedavg", {}), *both) for seed in (0, 1, 4)]
    assert [(e.method, e.options, e.seed) for e in typed(words.split())] == expected
    (e,) = typed(["run", "fed_repopt", "--option", "form=inf"])  # a number and a form's name
    assert e.make_method().model.form == "inf"


def test_every_field_that_makes_another_run_makes_another_checkpoint():
    names = [runs.stem(Experiment())]
    for name in OTHER.keys() - {"rounds", "threads", "device"}:
        names.append(runs.stem(Experiment(**{name: OTHER[name]})))
    names += [runs.stem(Experiment(dataset=f"/{letter}{200 * 'x'}.npz")) for letter in "ab"]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 100
    assert not any("/" in name for name in names)
    same = {name: OTHER[name] for name in ("rounds", "threads", "device")}
    assert runs.stem(Experiment(**same)) == "fedavg"


def test_help_does_not_wait_for_torch():
    commands = [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)]
    program = f"""
import sys
from fedlearn.cli import main
for arguments in {commands}:
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0
print([name for name in ("torch", "numpy", "yaml") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert f"fedlearn {fl.__version__}" in done.stdout.splitlines()


@pytest.mark.slow
def test_processes_of_their_own_do_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "fedavg", "rpn:share=0.5/1", *SMALL, "--seed", "0", "1"]
    for more in (["--out", "one.json"], ["--out", "two.json", "--jobs", "2"]):
        assert not main([*words, *more])
    one, two = (json.loads(Path(f"{name}.json").read_text()) for name in ("one", "two"))
    assert len(one) == 6 and [*map(fl.History.from_dict, one)] == [*map(fl.History.from_dict, two)]


def test_json_on_standard_output(capsys):
    words = ["run", "rpn", *SMALL, "--option", "share=0.5", "--lr", "0.05", "--no-progress"]
    assert main([*words, "--out", "-"]) is None
    captured = capsys.readouterr()
    history = fl.History.from_json(captured.out)
    assert len(history) == 2 and not captured.err
    assert set(history.meta["provenance"]) == {"command", "date", "commit"}
    (e,) = typed(words)
    assert fl.Settings(**history.meta["settings"]) == e.settings
    assert history == fl.run(e.make_method(), e.make_task(), 2, **asdict(e.settings))


def test_a_stopped_run_goes_on_and_is_in_nobodys_way(tmp_path, monkeypatch, capsys):
    """Only rounds, threads and device may be others when it goes on."""
    real, began = federation.one_round, []

    def one_round(server, engine, t, *rest, **how):
        began.append(t)
        if len(began) == 2:
            raise KeyboardInterrupt
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr("fedlearn.core.federation.one_round", one_round)
    monkeypatch.chdir(tmp_path)
    few = "--clients 2 --train 8 --test 4 --no-progress".split()
    assert main(["compare", "rpn", "fedavg", *few, "--rounds", "2", "--option", "share=0.5"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    left = ["fedlearn.rpn.option-share-0.5.clients-2.train-8.test-4.checkpoint"]
    assert [p.name for p in tmp_path.iterdir()] == left
    rpn = ["run", "rpn", *few, "--option", "share=0.5"]
    assert not main([*rpn, "--rounds", "1", "--seed", "1"])
    assert [p.name for p in tmp_path.iterdir()] == left
    assert not main([*rpn, "--rounds", "3", "--threads", "2", "--checkpoint", *left, "--out", "a"])
    assert began == [1, 2, 1, 2, 3] and "Going on from" in capsys.readouterr().err
    assert not main([*rpn, "--rounds", "3", "--out", "b.json"])
    assert fl.History.from_json("a") == fl.History.from_json("b.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_nothing_is_lost_when_the_result_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", "fedavg", *SMALL, "--out", "/dev/full"]
    assert main(words) == 2 and "/dev/full cannot be written" in capsys.readouterr().err
    (kept,) = tmp_path.iterdir()  # not in the folder of the devices
    monkeypatch.setattr("fedlearn.core.local.train", lambda *a: pytest.fail("it trained again"))
    assert not main([*words[:-1], "there.json", "--checkpoint", kept.name])
    assert Path("there.json").exists() and not kept.exists()

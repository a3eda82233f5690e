"""The command line as a user types it, and the experiment that it states."""

import inspect
import json
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn import cli, runs
from fedlearn.cli import main
from fedlearn.experiment import Experiment, read_value, write_value

SMALL = "--clients 3 --rounds 2 --train 120 --test 50".split()
# every field as it is not by default
OTHER = {
    "method": "stc",
    "options": dict(ratio=0.25, on=True, of=None, text="a b", number="1", two=(1, -2)),
    "lr": -1e-05,
    "task": "detection",
    "dataset": "mnist",
    "clients": 3,
    "partition": "dirichlet:0.5",
    "network": "digits_cnn",
    "augment": ("crop", "flip"),
    "metrics": ("per_class",),
    "train": 100,
    "test": 50,
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
    """The experiments that are stated behind `fedlearn`."""
    return cli.experiments(cli.parse(words).keywords["experiment"])


def python(program, *words, **how):
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **how)


# ---- what is stated


@pytest.mark.parametrize("names", [*([n] for n in OTHER), OTHER], ids=lambda n: "-".join(n)[:9])
def test_every_field_can_be_typed(names):
    one = Experiment(**{name: OTHER[name] for name in names})
    assert one != Experiment() and typed(["run", *one.arguments()]) == [one]


def test_only_what_is_not_as_by_default_is_typed():
    assert OTHER.keys() == {f.name for f in fields(Experiment)}
    one = Experiment(method="rpn", clients=2, lr=-1.0, metrics=["per_class"], options={"by": "n"})
    words = "rpn --lr=-1.0 --clients 2 --metric per_class --option by=n".split()
    assert sorted(one.arguments()) == sorted(words) and one.arguments()[0] == "rpn"
    with pytest.raises(ValueError, match="batch_size"):
        Experiment(batch_size=0)


@pytest.mark.parametrize(
    "value", [1, -0.5, float("inf"), True, None, "conv", "1", "inf", (1, 2), "", "{1}", "b'x'"]
)
def test_the_value_of_an_option_is_read_as_it_was_written(value):
    again = read_value(write_value(value))
    assert again == value and type(again) is type(value)
    (e,) = typed(["run", "fed_repopt", "--option", "form=inf"])  # which is a form's name, too
    assert e.make_method().model.form == "inf"


def test_seeds_options_and_values_are_runs_of_their_own():
    words = "compare fedavg rpn:share=0.5/1,lr=0.3 --seed 0 1 --seed 4 --option by=pixels"
    stated = [
        (e.method, e.options, e.seed, e.epochs) for e in typed([*words.split(), "--epochs=2"])
    ]
    both = [("rpn", {"by": "pixels", "share": share, "lr": 0.3}) for share in (0.5, 1)]
    expected = [(*run, seed, 2) for run in (("fedavg", {}), *both) for seed in (0, 1, 4)]
    assert stated == expected


def test_defaults_are_those_of_the_python_functions():
    mine = Experiment()
    for function in (fl.run, fl.tasks.classification):
        for name, parameter in inspect.signature(function).parameters.items():
            if hasattr(mine, name) and parameter.default not in (parameter.empty, None):
                assert getattr(mine, name) == parameter.default, name


def test_every_field_that_makes_another_run_makes_another_checkpoint():
    names = [runs.stem(Experiment())]
    for name in OTHER.keys() - {"rounds", "threads", "device"}:
        names.append(runs.stem(Experiment(**{name: OTHER[name]})))
    names += [runs.stem(Experiment(dataset=f"/{letter}{200 * 'x'}.npz")) for letter in "ab"]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 100
    assert not any("/" in name for name in names)
    same = {name: OTHER[name] for name in ("rounds", "threads", "device")}
    assert runs.stem(Experiment(**same)) == runs.stem(Experiment()) == "fedavg"
    assert runs.stem(Experiment(clients=3, train=9)) == "fedavg.clients-3.train-9"


# ---- what is loaded


def test_help_does_not_wait_for_torch():
    commands = [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS), ["rnu"]]
    done = python(f"""
import sys
from fedlearn.cli import main
for arguments in {commands}:
    try:
        assert main(arguments) in (0, 2)
    except SystemExit as end:
        assert end.code == 0
print([name for name in ("torch", "numpy", "yaml") if name in sys.modules])
""")
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert f"fedlearn {fl.__version__}" in done.stdout.splitlines()
    assert done.stdout.count("usage: fedlearn") == len(commands) - 2


def test_a_run_needs_no_tables_and_no_pictures(tmp_path):
    done = python(
        """
import sys, fedlearn as fl
assert [name for name in sys.modules if name.startswith("fedlearn")] == ["fedlearn"]
fl.run("fedavg", fl.tasks.classification("digits", 2, train=40, test=20), 1)
heavy = ("torchvision", "pandas", "matplotlib", "sklearn", "scipy", "IPython", "torch._dynamo")
print([name for name in heavy if name in sys.modules])
""",
        cwd=tmp_path,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_the_front_is_all_that_is_shown():
    assert dir(fl) == sorted(fl.__all__) and 30 < len(dir(fl)) < 40
    assert all(getattr(fl, name) is not None for name in fl.__all__ if name != "flower")
    assert fl.SGD is fl.parts.SGD and fl.plot.__name__ == "fedlearn.plot"
    assert fl.round.run is fl.run
    with pytest.raises(AttributeError, match="'rnu'"):
        fl.rnu  # noqa: B018


# ---- run and compare


def test_json_on_standard_output(capsys):
    words = ["run", "rpn", *SMALL, "--option", "share=0.5", "--lr", "0.05", "--no-progress"]
    assert main([*words, "--out", "-"]) is None
    captured = capsys.readouterr()
    history = fl.History.from_json(captured.out)
    assert len(history) == 2 and not captured.err
    assert "share=0.5" in history.meta["parts"]["uplink"]
    assert "lr=0.05" in history.meta["parts"]["optimizer"]
    assert set(history.meta["provenance"]) == {"command", "date", "commit"}
    (e,) = typed(words)
    assert fl.Settings(**history.meta["settings"]) == e.settings
    assert history == fl.run(e.make_method(), e.make_task(), 2, **asdict(e.settings))


def test_compare_says_what_it_costs_on_a_link(tmp_path, capsys):
    link = "--link 3G --uplink 1Mbit --slower 5 --stragglers 0.5 --against minutes"
    words = ["compare", "fedavg", "rpn", *SMALL, *link.split()]
    assert not main([*words, "--out", f"{tmp_path}/both.json", "--plot", f"{tmp_path}/both.svg"])
    stated = {
        "up": "1Mbit",
        "down": "1.6Mbit",
        "latency": "300ms",
        "slower": 5.0,
        "stragglers": 0.5,
    }
    histories = map(fl.History.from_dict, json.loads((tmp_path / "both.json").read_text()))
    radio = fl.link.RADIOS["3G"]
    expected = runs.table({h.meta["label"]: [h] for h in histories}, stated, radio)
    assert capsys.readouterr().out == f"{expected}\n" and "1.6Mbit down" in expected
    assert sorted(p.name for p in tmp_path.iterdir()) == ["both.json", "both.svg"]


def stop(monkeypatch, when):
    """Ctrl-C before round ``when`` of all -> the rounds that were done or begun."""
    real, began = fl.round.one_round, []

    def one_round(server, engine, t, *rest, **how):
        began.append(t)
        if len(began) == when:
            raise KeyboardInterrupt
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr("fedlearn.round.one_round", one_round)
    return began


def test_a_stopped_run_goes_on_and_is_in_nobodys_way(tmp_path, monkeypatch, capsys):
    """Only rounds, threads and device may be others when it goes on."""
    monkeypatch.chdir(tmp_path)
    few, began = "--clients 2 --train 8 --test 4 --no-progress".split(), stop(monkeypatch, 2)
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


@pytest.mark.slow
def test_processes_of_their_own_do_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "fedavg", "rpn:share=0.5/1", *SMALL, "--seed", "0", "1"]
    assert not main([*words, "--out", "one.json", "--plot", "all.svg"])
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()[:2]) for line in lines[2:4]] == ["rpn share=0.5", "rpn share=1"]
    assert not main([*words, "--out", "two.json", "--jobs", "2"])
    one, two = (
        [fl.History.from_dict(d) for d in json.loads(Path(name).read_text())]
        for name in ("one.json", "two.json")
    )
    assert one == two and len(one) == 6
    mean = sum(h.final["accuracy"] for h in one[:2]) / 2
    assert f"{mean:.4f} ± " in lines[1]


@pytest.mark.parametrize(
    ("words", "noun"),
    [
        ("--out folder", "folder is a folder"),
        ("--checkpoint folder", "folder is a folder"),
        ("--out a.json --checkpoint ./a.json", "a.json is named for two things"),
        ("--out a.png --plot a.png", "a.png is named for two things"),
        ("--out a.jsonl --log a.jsonl", "a.jsonl is named for two things"),
        ("--plot file/x.png", "file is no folder"),
        ("--plot x.pmg", "Did you mean 'png'"),
        ("--log x.txt", ".csv"),
    ],
)
def test_where_results_go_is_checked_before_training(tmp_path, monkeypatch, capsys, words, noun):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedlearn.local.train", lambda *a: pytest.fail("training started"))
    Path("folder").mkdir()
    Path("file").touch()
    assert main(["run", "fedavg", *SMALL, *words.split()]) == 2
    err = capsys.readouterr().err
    assert noun in err and err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_nothing_is_lost_when_the_result_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", "fedavg", *SMALL, "--out", "/dev/full"]
    assert main(words) == 2 and "/dev/full cannot be written" in capsys.readouterr().err
    (kept,) = tmp_path.iterdir()  # not in the folder of the devices
    monkeypatch.setattr("fedlearn.local.train", lambda *a: pytest.fail("it trained again"))
    assert not main([*words[:-1], "there.json", "--checkpoint", kept.name])
    assert Path("there.json").exists() and not kept.exists()


# ---- all else


def test_methods_list_their_options_and_parts(capsys):
    assert main(["methods"]) is None
    out = capsys.readouterr().out
    assert "rpn(" in out and "share: float = 1.0" in out
    lines = {text.partition("(")[0]: text.splitlines() for text in out.split("\n\n")}
    assert len(lines["fedavg"]) == 2 and any("uplink" in line for line in lines["rpn"])


@pytest.mark.slow
def test_check_recomputes_the_ledger(capsys):
    assert main(["check", "--paper", "rpn"]) == 0
    assert "rpn-table1" in capsys.readouterr().out


def test_an_error_without_words_is_said_in_some(monkeypatch, capsys):
    def fails():
        raise MemoryError

    monkeypatch.setitem(cli.COMMANDS, "methods", fails)
    assert main(["methods"]) == 2
    assert capsys.readouterr().err == "fedlearn: not enough memory.\n"

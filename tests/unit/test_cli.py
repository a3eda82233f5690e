"""The command line as a user types it, and the experiment that it states."""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn import cli, runs
from fedlearn.cli import main
from fedlearn.experiment import Experiment
from fedlearn.options import add, given, read_pairs, read_value, words, write_value
from fedlearn.settings import Settings

SMALL = ["--clients", "3", "--rounds", "2", "--train", "120", "--test", "50"]
# every field as it is not by default
OTHER = {
    "method": "stc",
    "options": {
        "ratio": 0.25,
        "on": True,
        "of": None,
        "text": "a b",
        "number": "1",
        "two": (1, -2),
    },
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


def typed(texts):
    """What the command line makes of these words behind `fedlearn run`."""
    (experiment,) = cli.experiments(cli.parser().parse_args(["run", *texts]))
    return experiment


# ---- what is stated


def test_an_experiment_is_the_same_after_a_way_through_json():
    for experiment in (Experiment(), Experiment(**OTHER)):
        text = experiment.to_json()
        assert Experiment.from_json(text) == Experiment.from_json(json.loads(text)) == experiment
    assert OTHER.keys() == {f.name for f in fields(Experiment)}
    assert Experiment.from_json('{"epochs": 3}') == Experiment(epochs=3)


def test_json_with_a_field_that_there_is_not_is_refused():
    with pytest.raises(
        ValueError, match=r"no field of an experiment 'epoch'. Did you mean 'epochs'"
    ):
        Experiment.from_json('{"epoch": 3}')
    with pytest.raises(ValueError, match="batch_size must be a whole number"):
        Experiment.from_json('{"batch_size": 0}')


@pytest.mark.parametrize("name", OTHER)
def test_every_field_can_be_typed(name):
    one = Experiment(**{name: OTHER[name]})
    assert one != Experiment() and typed(words(one)) == one
    if name not in ("method", "options"):
        assert len(words(one)) == 2 + (not str(OTHER[name]).startswith("-")) + 2 * (
            name == "augment"
        )


def test_a_run_is_stated_in_words():
    """Only what is not as by default is in them."""
    assert words(Experiment(method="rpn", clients=2)) == ["rpn", "--clients", "2"]
    whole = Experiment(**OTHER)
    args = cli.parser().parse_args(["run", *words(whole)])
    assert cli.experiments(args) == [whole]


@pytest.mark.parametrize(
    "value", [1, -0.5, float("inf"), True, None, "conv", "1", "inf", (1, 2), ""]
)
def test_the_value_of_an_option_is_read_as_it_was_written(value):
    again = read_value(write_value(value))
    assert again == value and type(again) is type(value)


def test_what_json_does_not_know_stays_text():
    assert read_value("{1}") == "{1}" and read_value("b'x'") == "b'x'"


def test_results_store_the_settings_of_training():
    experiment = Experiment(clients=2, train=40, test=20, rounds=1, epochs=2)
    how = asdict(experiment.settings)
    history = fl.run(experiment.make_method(), experiment.make_task(), experiment.rounds, **how)
    assert Settings(**history.meta["settings"]) == experiment.settings
    stored = ["participation", "epochs", "batch_size", "evaluate_every", "precision"]
    assert list(history.meta["settings"]) == stored


def test_defaults_are_those_of_the_python_functions():
    import inspect

    mine = Experiment()
    for function in (fl.run, fl.tasks.classification):
        for name, parameter in inspect.signature(function).parameters.items():
            if hasattr(mine, name) and parameter.default is not parameter.empty:
                if (name, parameter.default) not in (("method", None), ("partition", None)):
                    assert getattr(mine, name) == parameter.default, name


def test_options_of_a_dataclass_are_those_that_it_has():
    parser = argparse.ArgumentParser()
    add(parser, cli.Recipe)
    args = parser.parse_args(["rpn", "--jobs", "3"])
    assert given(args, cli.Recipe) == {"recipe": "rpn", "jobs": 3}
    assert cli.Recipe(**given(args, cli.Recipe)).scale == "quick"


def test_help_does_not_wait_for_torch():
    commands = [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS), ["rnu"]]
    program = f"""
import sys
from fedlearn.cli import main
for arguments in {commands}:
    try:
        main(arguments)
    except SystemExit:
        pass
print([name for name in ("torch", "numpy", "yaml") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert f"fedlearn {fl.__version__}" in done.stdout.splitlines()


def test_a_run_needs_no_tables_and_no_pictures(tmp_path):
    program = """
import sys
from fedlearn.cli import main
main(["run", "fedavg", "--rounds", "1", "--out", "-", "--no-progress"])
heavy = ("torchvision", "pandas", "matplotlib", "sklearn", "scipy", "IPython", "torch._dynamo")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_all_that_the_package_offers_is_there():
    assert set(fl.__all__) <= set(dir(fl))
    assert all(getattr(fl, name) is not None for name in fl.__all__ if name != "flower")
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        fl.rnu  # noqa: B018


# ---- run and compare


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


def test_compare_says_how_long_it_takes_on_a_link(tmp_path, capsys):
    words = ["compare", "fedavg", "rpn", *SMALL, "--out", str(tmp_path / "both.json")]
    link = ["--link", "3G", "--uplink", "1Mbit", "--slower", "5"]
    link += ["--stragglers", "0.5", "--waits-for", "7", "--radio-up", "5uJ"]
    picture = ["--plot", str(tmp_path / "both.svg"), "--against", "minutes"]
    assert not main([*words, *link, *picture])
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[-2:] == ["minutes", "joules"]
    words = "minutes: 1Mbit up, 1.6Mbit down, latency 300ms, slower 5.0, stragglers 0.5, clients 7"
    assert table[-2] == words
    assert table[-1] == "joules: a client's radio, 5uJ a byte up, 0.98uJ down"
    stored = json.loads((tmp_path / "both.json").read_text())
    for line, data in zip(table[1:], stored, strict=False):
        its = fl.History.from_dict(data)
        how = {"slower": 5, "stragglers": 0.5, "clients": 7}
        end = fl.link.time(its, "1Mbit", "1.6Mbit", "300ms", **how)[-1] / 60
        used = fl.link.energy(its, "5uJ", "0.98uJ")[-1]
        assert line.split()[-2:] == [f"{end:.4g}", f"{used:.4g}"]
    assert (tmp_path / "both.svg").stat().st_size > 1000


def test_a_comparison_that_stops_in_its_second_run_keeps_the_first(tmp_path, monkeypatch):
    out, interrupts, real = tmp_path / "both.json", [1], fl.round.run

    def run(method, *args, **settings):
        if method.name == "rpn" and interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return real(method, *args, **settings)

    monkeypatch.setattr("fedlearn.round.run", run)
    assert (
        main(["compare", "fedavg", "rpn", *SMALL, "--out", str(out), "--option", "share=0.5"])
        == 130
    )
    left = ["both.fedavg.clients-3.train-120.test-50.checkpoint"]
    assert [p.name for p in tmp_path.iterdir()] == left and not out.exists()
    rounds = []
    monkeypatch.setattr(
        "fedlearn.round.one_round",
        lambda *a, one=fl.round.one_round, **k: rounds.append(1) or one(*a, **k),
    )
    assert (
        main(["compare", "fedavg", "rpn", *SMALL, "--out", str(out), "--option", "share=0.5"])
        is None
    )
    assert len(rounds) == 2, "only the two rounds of the second method were left to do"
    assert [p.name for p in tmp_path.iterdir()] == ["both.json"]


def test_a_stopped_run_is_in_nobodys_way(tmp_path, monkeypatch):
    """The name of its checkpoint says what it is a run of; only rounds, threads and device may be
    others when it goes on."""
    monkeypatch.chdir(tmp_path)
    few = ["--clients", "2", "--train", "8", "--test", "4", "--no-progress"]
    detect, segment = (["run", "fed_kgf", "--task", t, *few] for t in ("detection", "segmentation"))
    real, trained = fl.round.one_round, []

    def stops(server, engine, t, *rest, **how):
        trained.append(t)
        if trained == [1, 2]:
            raise KeyboardInterrupt
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr("fedlearn.round.one_round", stops)
    assert main([*detect, "--rounds", "2"]) == 130
    left = ["fedlearn.fed_kgf.task-detection.clients-2.train-8.test-4.checkpoint"]
    assert [p.name for p in tmp_path.iterdir()] == left
    assert not main([*segment, "--rounds", "1"])
    assert [p.name for p in tmp_path.iterdir()] == left
    assert not main([*detect, "--rounds", "3", "--threads", "2"]) and not [*tmp_path.iterdir()]
    assert trained == [1, 2, 1, 2, 3]


def test_every_field_that_makes_another_run_makes_another_checkpoint():
    names = [runs.told(Experiment())]
    for name in OTHER.keys() - {"rounds", "threads", "device"}:
        names.append(runs.told(Experiment(**{name: OTHER[name]})))
    names += [runs.told(Experiment(dataset=f"/{letter}{200 * 'x'}.npz")) for letter in "ab"]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 100
    assert not any("/" in name for name in names)
    same = {name: OTHER[name] for name in ("rounds", "threads", "device")}
    assert runs.told(Experiment(**same)) == runs.told(Experiment()) == "fedavg"


def test_without_a_terminal_lines_say_how_far_a_run_is(monkeypatch, capsys):
    """At once when it begins, and then a round's, but at most one every ten seconds."""
    words = ["run", "fedavg", *SMALL]
    assert not main([*words, "--until", "0"])
    assert capsys.readouterr().err == "fedavg: 0 of 2 rounds\n"
    monkeypatch.setattr("fedlearn.callbacks.EVERY", 0.0)
    assert not main(words)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "fedavg: 0 of 2 rounds" and len(lines) == 2
    for t, line in enumerate(lines, 1):
        assert line.startswith(f"fedavg: {t} of 2 rounds, accuracy 0.")
    assert not main([*words, "--no-progress"]) and not capsys.readouterr().err
    fl.run("fedavg", fl.tasks.classification("digits", 2, train=20, test=10), 1)
    assert not capsys.readouterr().err, "in Python only where somebody looks, or asks"


def test_seeds_and_options_of_one_method_are_runs_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "fedavg", "rpn:share=0.5/1,lr=0.3", *SMALL, "--seed", "0", "1"]
    assert not main([*words, "--out", "all.json", "--plot", "all.svg"])
    lines = capsys.readouterr().out.splitlines()
    labels = ["fedavg", "rpn share=0.5 lr=0.3", "rpn share=1 lr=0.3"]
    assert [line.startswith(label) for line, label in zip(lines[1:], labels, strict=True)] == 3 * [
        True
    ]
    histories = [fl.History.from_dict(d) for d in json.loads(Path("all.json").read_text())]
    stated = [(h.meta["label"], h.meta["task"]["seed"]) for h in histories]
    assert stated == [(label, seed) for label in labels for seed in (0, 1)]
    mean = sum(h.final["accuracy"] for h in histories[:2]) / 2
    assert f"{mean:.4f} ± " in lines[1]
    # what the command ran is what the same words run one by one
    assert not main(["run", "rpn:share=1,lr=0.3", *SMALL, "--seed", "1", "--out", "-"])
    assert fl.History.from_json(capsys.readouterr().out) == histories[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.json", "all.svg"]
    # and the same in processes of their own, two at a time
    assert not main([*words, "--out", "again.json", "--jobs", "2"])
    again = [fl.History.from_dict(d) for d in json.loads(Path("again.json").read_text())]
    assert again == histories


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "folder"], "folder is a folder; name a file"),
        (["--checkpoint", "folder"], "folder is a folder; name a file"),
        (["--out", "a.json", "--checkpoint", "./a.json"], "a.json is named for two things"),
        (["--out", "a.png", "--plot", "a.png"], "a.png is named for two things"),
        (["--out", "a.jsonl", "--log", "a.jsonl"], "a.jsonl is named for two things"),
        (["--plot", "file/x.png"], "file is no folder"),
        (["--plot", "x.pmg"], "no image type 'pmg'. Did you mean 'png'"),
        (["--plot", "x"], "no image type ''"),
    ],
)
def test_where_results_go_is_checked_before_training(
    tmp_path, monkeypatch, capsys, words, sentence
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedlearn.local.train", lambda *a: pytest.fail("training started"))
    Path("folder").mkdir()
    Path("file").touch()
    assert main(["run", "fedavg", *SMALL, *words]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


def test_nothing_is_lost_when_the_result_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", "fedavg", *SMALL, "--out", "/dev/full", "--checkpoint", "kept"]
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    assert main(words) == 2
    assert "/dev/full cannot be written: No space left" in capsys.readouterr().err
    assert Path("/dev/full").is_char_device() and Path("kept").exists()
    assert main(words[:-2]) == 2
    here = Path("fedlearn.fedavg.clients-3.train-120.test-50.checkpoint")
    assert here.exists(), "not in the folder of the devices"
    with monkeypatch.context() as patch:
        patch.setattr("fedlearn.local.train", lambda *a: pytest.fail("it trained again"))
        assert not main([*words[:-4], "--out", "there.json", "--checkpoint", "kept"])
    assert Path("there.json").exists() and not Path("kept").exists()


def test_a_word_that_reads_like_a_number_is_a_word():
    e = Experiment(method="fed_repopt", options=read_pairs(("form=inf",)))
    assert e.make_method().model.form == "inf"


def test_the_same_run_twice_is_refused(capsys):
    assert main(["compare", "rpn", "rpn:share=1", "rpn:share=1", *SMALL]) == 2
    assert "a method, options or a seed of its own" in capsys.readouterr().err


def test_python_dash_m():
    done = subprocess.run(
        [sys.executable, "-m", "fedlearn", "methods"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "rpn(" in done.stdout


def test_methods_lists_options_and_parts(capsys):
    main(["methods"])
    out = capsys.readouterr().out
    assert "rpn(" in out and "share=1.0" in out and "uplink" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rnu", "fedavg"], "There is no command 'rnu'. Did you mean 'run'"),
        (["run", "fedavg", "--patition", "iid"], "Did you mean '--partition'"),
        (["run", "fedavg", "rpn"], "takes no further argument 'rpn'"),
        (["run", "fedawg"], "Did you mean 'fedavg'"),
        (["run", "rpn", "--option", "shear=1"], "Did you mean 'share'"),
        (["run", "rpn", "--option", "share"], "NAME=VALUE"),
        (["compare", "fedavg", "rpm"], "Did you mean 'rpn'"),
        (["compare", "fedavg", "rpn", "--option", "shear=1"], "no option of fedavg 'shear'"),
        (["compare", "fedavg", "--uplink", "1Mbit"], "A link has two speeds"),
        (["compare", "fedavg", "--uplink", "0Mbit", "--downlink", "1Mbit"], "must be above 0"),
        (["compare", "fedavg", "--uplink", "1furlong", "--downlink", "1Mbit"], "Units: bit"),
        (["compare", "fedavg", "--link", "4G"], "Allowed: LoRaWAN, 2G, 3G"),
        (["compare", "fedavg", "--link", "LTE", "--slower", "-1"], "slower cannot be below 0"),
        (["compare", "fedavg", "--link", "LTE", "--stragglers", "9"], "must be 0 to 5"),
        (["compare", "fedavg", "--link", "LTE", "--waits-for", "0"], "at least 1 client"),
        (["compare", "fedavg", "--slower", "-3"], "--waits-for need a link: --link LTE, or"),
        (["compare", "fedavg", "--slower", "5"], "--waits-for need a link: --link LTE, or"),
        (["compare", "fedavg", "--stragglers", "99"], "--waits-for need a link: --link LTE, or"),
        (["run", "fedavg", "--waits-for", "0"], "--waits-for need a link: --link LTE, or"),
        (
            f"run fedavg --link LTE --stragglers 1 --waits-for 1{'0' * 400}".split(),
            "A round waits for at least 1 client and at most 1,000,000,000, not 1000",
        ),
        (["compare", "fedavg", "--uplink", "0", "--downlink", "1Mbit"], "must be above 0"),
        (["compare", "fedavg", "--link", "DSL", "--radio-up", ""], "A radio has two numbers"),
        (["compare", "fedavg", "--link", "DSL", "--radio-up", "1uJ"], "A radio has two numbers"),
        (["compare", "fedavg", "--link", "LTE", "--radio-up", "1 cal"], "Units: nJ, uJ"),
        (["run", "fedavg", "--plot", "x.png", "--against", "minutes"], "Minutes need a link"),
        (["run", "fedavg", "--dataset", "mnits"], "Did you mean 'mnist'"),
        (["run", "fedavg", "--partition", "dirichlet:-1"], "alpha"),
        (["run", "fedavg", "--rounds", "0"], "rounds must be"),
        (["run", "fedavg", "--device", "cuda:99"], "'cuda:99' here: this machine has cpu"),
        (["run", "fedavg", "--device", "gpu"], "no CUDA GPU that torch"),
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
from fedlearn import cli, round as rounds
# a background job of a shell inherits that it is ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
train = rounds.one_round
def interrupted(server, engine, t, *rest, **more):
    if t == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return train(server, engine, t, *rest, **more)
rounds.one_round = interrupted
sys.exit(cli.main(sys.argv[1:]))
"""


def test_interrupted_and_continued(tmp_path):
    """Ctrl-C in the middle; the same command then goes on, and the result is that of an unbroken
    run."""
    arguments = ["run", "fedavg", "--clients", "3", "--rounds", "8", "--train", "150", "--out"]
    whole, broken = tmp_path / "whole.json", tmp_path / "broken.json"

    def command(path, *python):
        return subprocess.run(
            [sys.executable, *python, *arguments, str(path)], capture_output=True, text=True
        )

    assert command(whole, "-m", "fedlearn.cli").returncode == 0
    stopped = command(broken, "-c", CTRL_C_IN_ROUND_5)
    checkpoint = tmp_path / "broken.fedavg.clients-3.train-150.checkpoint"
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


def test_a_commit_is_dirty_if_programs_differ_not_if_results_do(tmp_path, monkeypatch):
    def git(*words):
        own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", tmp_path, *own, *words], check=True, capture_output=True)

    files = [tmp_path / name for name in ("fedlearn/runs.py", "data/results/a.json", "book/a.md")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "all")
    monkeypatch.setattr(runs, "__file__", str(files[0]))
    whole = runs.provenance()["commit"]
    for file in files[1:]:
        file.write_text("2")
    assert runs.provenance()["commit"] == whole and len(whole) == 12
    files[0].write_text("2")
    assert runs.provenance()["commit"] == f"{whole}-dirty"


def test_an_error_without_words_is_said_in_some(monkeypatch, capsys):
    def fails():
        """Nothing."""
        raise MemoryError

    monkeypatch.setitem(cli.COMMANDS, "methods", fails)
    assert main(["methods"]) == 2
    assert capsys.readouterr().err == "fedlearn: not enough memory.\n"

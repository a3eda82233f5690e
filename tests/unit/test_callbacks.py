"""What is called after each round: files of rows, an early stop, errors, stop and resume."""

import csv
import json
import sys

import pytest
import torch

import fedlearn as fl
from fedlearn import cli
from fedlearn.callbacks import Lines, TensorBoard, Until

METHOD = fl.methods.fedavg()


def rows_of(path):
    """What a file of rows holds, as rows of a history."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines()))


def as_text(row):
    """A row of the history as the CSV file has it."""
    cells = {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()}
    return {k: "" if v is None else str(v) for k, v in cells.items()}


def test_a_callback_gets_every_row_and_the_state_after_it(task):
    seen = []
    history = fl.run(
        METHOD, task, 3, on_round=lambda row, state: seen.append((dict(row), state.weights))
    )
    assert [row for row, _ in seen] == history.rows
    assert all(torch.equal(seen[-1][1][n], w) for n, w in history.state.items())
    assert history == fl.run(METHOD, task, 3), "to look on changes nothing"


def test_several_are_called_in_their_order(task):
    seen = []
    calls = [lambda row, state, i=i: seen.append((row["round"], i)) for i in range(2)]
    fl.run(METHOD, task, 2, on_round=calls)
    assert seen == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_the_checkpoint_is_there_before_the_callback_and_its_error_ends_the_run(task, tmp_path):
    path = tmp_path / "c"

    def fails(row, state):
        assert path.exists()
        if row["round"] == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fl.run(METHOD, task, 4, checkpoint=path, on_round=fails)
    seen = []
    rest = fl.run(
        METHOD, task, 4, checkpoint=path, on_round=lambda row, state: seen.append(row["round"])
    )
    assert seen == [2, 3, 4], "the round in which it failed comes again"
    assert rest == fl.run(METHOD, task, 4)


def test_until_ends_the_run_at_the_target_and_for_good(task, tmp_path):
    whole = fl.run(METHOD, task, 6, epochs=3, batch_size=8)
    target = float(sorted(whole.accuracy)[2])
    first = whole.rounds_to(target)
    assert first < 6
    how = {"epochs": 3, "batch_size": 8, "on_round": Until(target), "checkpoint": tmp_path / "c"}
    short = fl.run(METHOD, task, 6, **how)
    assert short.rows[:-1] == [*short.rows[:-1]] and len(short) == first
    assert len(fl.run(METHOD, task, 6, **how)) == first, "the same command does not go on"
    assert list(short.accuracy) == list(whole.accuracy[:first])


def test_until_does_not_mind_rounds_without_evaluation(task):
    history = fl.run(METHOD, task, 3, evaluate_every=2, on_round=Until(0.0))
    assert len(history) == 2


def test_a_callback_that_returns_something_true_does_not_end_the_run(task):
    assert len(fl.run(METHOD, task, 2, on_round=lambda row, state: {"logged": 1})) == 2


@pytest.mark.parametrize("name", ["run.csv", "run.jsonl"])
def test_lines_are_the_rows(name, task, tmp_path):
    path, seen = tmp_path / "folder" / name, []
    lines = Lines(path)
    history = fl.run(
        METHOD, task, 3, on_round=[lines, lambda row, state: seen.append(len(rows_of(path)))]
    )
    assert seen == [1, 2, 3], "as the run goes"
    expected = [as_text(r) for r in history.rows] if name.endswith("csv") else history.rows
    assert rows_of(path) == json.loads(json.dumps(expected))
    fl.run(METHOD, task, 2, on_round=Lines(path))
    assert len(rows_of(path)) == 2, "another run begins the file anew"


@pytest.mark.parametrize("name", ["run.csv", "run.jsonl"])
def test_lines_of_a_run_that_was_stopped_anywhere_have_every_row_once(name, task, tmp_path):
    path, checkpoint = tmp_path / name, tmp_path / "c"

    def dies(row, state):  # before the line of this round is written
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fl.run(METHOD, task, 4, checkpoint=checkpoint, on_round=[dies, Lines(path)])
    assert len(rows_of(path)) == 1
    history = fl.run(METHOD, task, 4, checkpoint=checkpoint, on_round=Lines(path))
    fl.run(METHOD, task, 4, checkpoint=checkpoint, on_round=Lines(path))
    assert [int(row["round"]) for row in rows_of(path)] == [1, 2, 3, 4] == list(history.round)


def test_refusals_with_commas_and_line_ends_stay_one_line(tmp_path):
    path = tmp_path / "run.csv"
    row = {"round": 1, "accuracy": None, "refused": {2: 'said "no",\nand left'}}
    Lines(path)(row, None)
    assert rows_of(path) == [as_text(row)]


@pytest.mark.parametrize(
    "build, sentence",
    [
        (lambda path: Lines(path / "run.txt"), "no ending of a file of rows '.txt'"),
        (lambda path: Lines(path), "no ending of a file of rows ''"),
        (lambda path: Until(2), "accuracy lies between 0 and 1, not 2"),
        (lambda path: Until(float("nan")), "between 0 and 1, not nan"),
    ],
)
def test_bad_values_are_one_sentence(build, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        build(tmp_path)


def test_a_file_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "run.csv").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        Lines(tmp_path / "run.csv")


def test_tensorboard_gets_the_numbers(task, tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            assert folder == str(tmp_path)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def flush(self):
            written.append("flushed")

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    history = fl.run(METHOD, task, 2, evaluate_every=2, on_round=TensorBoard(tmp_path))
    names = {w[0] for w in written if w != "flushed" and w[2] == 2}
    assert {"accuracy", "loss", "bytes_up", "seconds"} <= names and "round" not in names
    assert ("accuracy", history.rows[1]["accuracy"], 2) in written
    assert not any(w[:1] == ("accuracy",) and w[2] == 1 for w in written if w != "flushed")
    assert written.count("flushed") == 2
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TensorBoard(tmp_path)


def test_the_real_tensorboard_writes_a_file(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    TensorBoard(tmp_path)({"round": 1, "accuracy": 0.5}, None)
    assert any(p.name.startswith("events.out") for p in tmp_path.iterdir())


def test_the_command_line_writes_a_file_of_rows_for_each_run_and_stops_at_a_target(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    few = ["--clients", "2", "--train", "40", "--test", "40", "--rounds", "3", "--no-progress"]
    assert not cli.main(["run", "fedavg", *few, "--log", "rows.csv", "--until", "0", "--out", "-"])
    assert len(rows_of(tmp_path / "rows.csv")) == 1
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1
    assert not cli.main(["compare", "fedavg", "rpn", *few, "--log", "all.jsonl"])
    names = {p.name for p in tmp_path.iterdir() if p.suffix == ".jsonl"}
    assert names == {"all.fedavg.jsonl", "all.rpn.jsonl"}
    assert all(len(rows_of(tmp_path / name)) == 3 for name in names)
    for words, sentence in (
        (["--log", "rows.txt"], "no ending of a file of rows '.txt'"),
        (["--until", "2"], "accuracy lies between 0 and 1"),
    ):
        assert cli.main(["run", "fedavg", *few, *words]) == 2
        assert sentence in capsys.readouterr().err

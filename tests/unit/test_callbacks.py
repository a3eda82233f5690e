"""What is called after each round: files of rows, an early stop, errors, stop and resume; a bar."""

import csv
import json

import pytest
import torch

import fedlearn as fl
from fedlearn.callbacks import Lines, Until

METHOD = fl.methods.fedavg()


def rows_of(path):
    """What a file of rows holds, as rows of a history."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines()))


def as_text(row):
    """A row of the history as the CSV file has it."""
    cells = {
        k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()
    }
    return {k: "" if v is None else str(v) for k, v in cells.items()}


def test_callbacks_get_every_row_and_the_state_after_it_in_their_order(task):
    seen = []
    calls = [
        lambda row, s, i=i: seen.append((i, dict(row), s.weights)) for i in range(2)
    ]
    history = fl.run(METHOD, task, 2, on_round=calls)
    assert [(i, row) for i, row, _ in seen] == [
        (i, row) for row in history.rows for i in range(2)
    ]
    assert all(torch.equal(seen[-1][2][n], w) for n, w in history.state.items())
    assert history == fl.run(
        METHOD, task, 2, on_round=lambda row, state: {"only True": "ends"}
    )


def test_until_ends_the_run_at_the_target_and_for_good(task, tmp_path):
    how = {"epochs": 3, "batch_size": 8, "evaluate_every": 2}
    whole = fl.run(METHOD, task, 4, **how)
    for _ in range(2):  # the same command does not go on
        target = Until(float(whole.accuracy[1]))
        short = fl.run(
            METHOD, task, 4, on_round=target, checkpoint=tmp_path / "c", **how
        )
        assert len(short) == 2 and short.accuracy[1] == whole.accuracy[1]
    assert not Until(0.51)({"accuracy": 0.5}, None) and not Until(0.0)(
        {"accuracy": None}, None
    )


@pytest.mark.parametrize("name", ["run.csv", "run.jsonl"])
def test_lines_are_the_rows_once_wherever_a_run_was_stopped(name, task, tmp_path):
    path, checkpoint = tmp_path / "folder" / name, tmp_path / "c"

    def dies(row, state):  # before the line of this round is written
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fl.run(METHOD, task, 3, checkpoint=checkpoint, on_round=[dies, Lines(path)])
    assert len(rows_of(path)) == 1, "as the run goes"
    history = fl.run(METHOD, task, 3, checkpoint=checkpoint, on_round=Lines(path))
    fl.run(METHOD, task, 3, checkpoint=checkpoint, on_round=Lines(path))
    expected = (
        [as_text(r) for r in history.rows] if name.endswith("csv") else history.rows
    )
    assert rows_of(path) == json.loads(json.dumps(expected))
    fl.run(METHOD, task, 1, on_round=Lines(path))
    assert len(rows_of(path)) == 1, "another run begins the file anew"

"""Files that are there in full or not at all, and the JSON in them."""

import json
import math
import os
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn.files import check_writable, to_json, write_atomically, write_text


def test_what_fails_leaves_the_old_file_and_no_rest(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")

    def fail(part):
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="a.json.*No space"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    for name in (".", "file/a"):
        with pytest.raises(OSError, match="folder"):
            check_writable(tmp_path / name)
    with pytest.raises(OSError, match="device"):
        check_writable("/dev/null")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.getuid():  # root may write anywhere
        with pytest.raises(OSError, match="is read-only"):
            check_writable(locked / "a.json")
    assert check_writable(tmp_path / "new" / "a.json") == Path(
        tmp_path / "new" / "a.json"
    )
    assert not (tmp_path / "new").exists()


def test_what_clients_keep_is_for_the_owner_alone(tmp_path):
    task = fl.tasks.classification("digits", 2, train=40, test=20)
    path = tmp_path / "run.checkpoint"
    before = os.umask(0)
    try:
        fl.run(fl.methods.stc(), task, 1, checkpoint=path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_json_is_strict():
    value = {"a": [1, math.inf, -math.inf], "b": {"c": math.nan, "d": (0.5, "NaN?")}}
    text = to_json(value)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [1, "Infinity", "-Infinity"],
        "b": {"c": "NaN", "d": [0.5, "NaN?"]},
    }


def test_numbers_that_json_lacks_come_back_in_a_history():
    row = {"round": 1, "accuracy": 0.1, "loss": math.nan, "per_client": [0.5, math.inf]}
    text = fl.History("fedavg", {}, [row]).to_json()
    history = fl.History.from_json(text)
    assert math.isnan(history.loss[0])
    assert history.per_client.tolist() == [[0.5, math.inf]]

"""Files that are there in full or not at all, and the JSON in them."""

import json
import math
import os
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn.files import (
    check_writable,
    numbers,
    to_json,
    write_atomically,
    write_text,
)


def test_what_fails_leaves_the_old_file_and_no_rest(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")

    def fail(part):
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="a.json cannot be written: No space"):
        write_atomically(path, fail)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == [
        "a.json"
    ]


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    for name, error in ((".", IsADirectoryError), ("file/a", NotADirectoryError)):
        with pytest.raises(error, match="folder"):
            check_writable(tmp_path / name)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.getuid():  # root may write anywhere
        with pytest.raises(PermissionError, match="is read-only"):
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


def test_json_is_strict_and_numbers_come_back():
    value = {"a": [1, math.inf, -math.inf], "b": {"c": math.nan, "d": (0.5, "NaN?")}}
    text = to_json(value)
    back = numbers(json.loads(text, parse_constant=pytest.fail))
    assert (
        back["a"] == value["a"]
        and math.isnan(back["b"]["c"])
        and back["b"]["d"][1] == "NaN?"
    )
    row = {"round": 1, "accuracy": 0.1, "loss": math.nan, "clients": [0], "refused": {}}
    text = fl.History("fedavg", {}, [row]).to_json()
    assert json.loads(text, parse_constant=pytest.fail)["rows"][0]["clients"] == [0]
    assert math.isnan(fl.History.from_json(text).loss[0])

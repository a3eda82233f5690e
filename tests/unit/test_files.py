"""Files that are there in full or not at all."""

import os
import threading
from pathlib import Path

import pytest

from fedlearn.files import check_writable, write_atomically, write_text


@pytest.mark.parametrize("old", ["old", None])
def test_a_link_is_written_through(tmp_path, old):
    link, target = tmp_path / "a.json", tmp_path / "folder" / "a.json"
    target.parent.mkdir()
    link.symlink_to(target)
    if old:
        target.write_text(old)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "new")
    reader.join(60)
    assert got == ["new"] and pipe.is_fifo()


def test_a_file_that_the_system_has_open_is_written_to_at_its_end(tmp_path):
    """As /dev/stdout, and the pipe of bash's >(command)."""
    path = tmp_path / "log"
    path.write_text("earlier\n")
    with open(path, "a") as log:
        write_text(f"/dev/fd/{log.fileno()}", "new\n")
    assert path.read_text() == "earlier\nnew\n"
    end, other = os.pipe()
    write_text(f"/dev/fd/{other}", "new")
    os.close(other)
    assert os.read(end, 9) == b"new"
    os.close(end)


def test_what_fails_leaves_the_old_file_and_no_rest(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")

    def fail(part):
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="a.json cannot be written: No space"):
        write_atomically(path, fail)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path):
    dead = tmp_path / f"a.json.{2**22 + 1}.part"  # above what a process number can be
    living = tmp_path / f"a.json.{os.getppid()}.part"
    foreign = tmp_path / "a.json.zip.part"  # a browser's
    for part in (dead, living, foreign):
        part.touch()
    write_text(tmp_path / "a.json", "new")
    assert {p.name for p in tmp_path.iterdir()} == {"a.json", living.name, foreign.name}


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "locked").mkdir(mode=0o500)
    for name, error, noun in (
        (".", IsADirectoryError, "is a folder"),
        ("file/a.json", NotADirectoryError, "is no folder"),
        ("ring", OSError, "cannot be written"),
        ("locked/a.json", PermissionError, "is read-only"),
    ):
        if name[:6] != "locked" or os.getuid():  # root may write anywhere
            with pytest.raises(error, match=noun):
                check_writable(tmp_path / name)
    assert check_writable(tmp_path / "new" / "a.json") == Path(tmp_path / "new" / "a.json")
    assert not (tmp_path / "new").exists()

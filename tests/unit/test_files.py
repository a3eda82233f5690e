"""Files that are there in full or not at all."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from fedlearn.files import LOOK, check_writable, claim, claimed, write_atomically, write_text


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a.json").write_text("old")
    (tmp_path / "a.json").symlink_to("there/a.json")
    write_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").is_symlink() and (tmp_path / "there/a.json").read_text() == "new"


def test_a_link_to_nothing_yet(tmp_path):
    (tmp_path / "a.json").symlink_to("later/b.json")
    write_text(tmp_path / "a.json", "new")
    assert (tmp_path / "later/b.json").read_text() == "new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "new")
    reader.join(60)
    assert got == ["new"] and pipe.is_fifo()


def test_a_pipe_that_a_link_names_is_written_to(tmp_path):
    """As /dev/stdout and bash's >(command) do."""
    end, other = os.pipe()
    write_text(f"/dev/fd/{other}", "new")
    os.close(other)
    assert os.read(end, 9) == b"new"
    os.close(end)


def test_a_file_that_the_system_has_open_is_written_to_at_its_end(tmp_path):
    path = tmp_path / "log"
    path.write_text("earlier\n")
    with open(path, "a") as log:
        write_text(f"/dev/fd/{log.fileno()}", "new\n")
    assert path.read_text() == "earlier\nnew\n"
    shm = Path("/dev/shm") / f"{os.getpid()}.txt"
    if shm.parent.is_dir():  # a folder like any other
        write_text(shm, "old")
        write_text(shm, "new")
        assert shm.read_text() == "new"
        shm.unlink()


def test_a_ring_of_links(tmp_path):
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(OSError, match="cannot be written"):
        write_text(tmp_path / "a", "new")


def test_what_fails_leaves_the_old_file_and_no_rest(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")

    def fail(part):
        part.write_text("half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path):
    dead = tmp_path / f"a.json.{2**22 + 1}.part"  # above what a process number can be
    living = tmp_path / f"a.json.{os.getppid()}.part"
    foreign = tmp_path / "a.json.zip.part"  # a browser's
    for part in (dead, living, foreign):
        part.touch()
    write_text(tmp_path / "a.json", "new")
    there = {p.name for p in tmp_path.iterdir()}
    assert there == {"a.json", living.name, foreign.name}


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        check_writable(tmp_path)
    with pytest.raises(NotADirectoryError, match="is no folder"):
        check_writable(tmp_path / "file" / "a.json")
    if os.getuid():  # root may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(PermissionError, match="is read-only"):
            check_writable(tmp_path / "locked" / "a.json")
    assert not check_writable(tmp_path / "new" / "a.json").exists()


def test_a_claim_is_held_by_one(tmp_path):
    path = tmp_path / "deep/x.claim"
    assert not claimed(path)
    with claim(path) as mine:
        assert mine and claimed(path)
        with claim(path) as second:
            assert not second
        assert claimed(path)
    assert not path.exists() and not claimed(path)


def test_who_looks_at_a_claim_does_not_keep_others_from_it(tmp_path):
    path = tmp_path / "x.claim"
    path.touch()
    with open(path) as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(LOOK / 5, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with claim(path) as mine:
            assert mine


def test_a_claim_that_cannot_be_read_is_somebody_elses(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError

    monkeypatch.setattr("builtins.open", denied)
    assert claimed(tmp_path / "x.claim")


def test_a_claim_that_cannot_be_written_can_be_held(tmp_path, monkeypatch):
    """Another user's killed process left it; who reads it may lock it."""
    path, real = tmp_path / "x.claim", os.open
    path.touch()

    def reads(name, flags, *rest):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError
        return real(name, flags, *rest)

    monkeypatch.setattr(os, "open", reads)
    with claim(path) as mine:
        assert mine


def test_a_disk_without_locks_serves_one_process(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.warns(UserWarning, match=f"{tmp_path} keeps no locks .*No locks available"):
        with claim(tmp_path / "x.claim") as mine:
            assert mine and not claimed(tmp_path / "x.claim")
    assert not [*tmp_path.iterdir()]


def test_a_claim_whose_file_goes_is_no_error(tmp_path):
    path = tmp_path / "x.claim"
    with claim(path) as mine:
        path.unlink()
        with claim(path) as second:  # another's now, which stays
            assert mine and second
    assert not path.exists()


def test_a_claim_ends_with_an_error_and_with_its_process(tmp_path):
    path = tmp_path / "x.claim"
    with pytest.raises(KeyboardInterrupt), claim(path):
        raise KeyboardInterrupt
    assert not path.exists()
    path.write_text("")  # what a killed process leaves: a file that nobody holds
    assert not claimed(path)
    with claim(path) as mine:
        assert mine
    assert not path.exists()

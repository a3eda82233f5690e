"""Files that are there in full or not at all."""

import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

OPEN = re.compile(r"/(dev/(stdout|stderr|fd)|proc)\b")
LOOK = 0.05  # seconds, in which whoever looks at a claim is done


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write(temporary_path)`` fill a file beside ``path``, then put it there in one step.

    A symbolic link is written through. A device or a pipe is written to, never replaced. What a
    killed process left half-written beside it goes."""
    path = check_writable(path)
    try:
        if is_device(path):
            with tempfile.TemporaryDirectory() as folder:
                write(part := Path(folder, path.name))
                with open(part, "rb") as source, open(path, "ab") as target:
                    shutil.copyfileobj(source, target)
        else:
            _replace(path, write)
    except OSError as error:
        if error.filename is None:  # such as a full disk
            raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error
        raise


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{escape(path.name)}.*.part"):
        pid = old.name.removeprefix(f"{path.name}.").removesuffix(".part")
        if pid.isdecimal() and not _runs(int(pid)):
            old.unlink(missing_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(part)
        with open(part, "rb") as f:
            os.fsync(f.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def write_text(path: str | Path, text: str) -> None:
    """``write_atomically`` for a text."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def check_writable(path: str | Path) -> Path:
    """Where a file of that name is written, links followed; ``OSError`` if none can be."""
    target = Path(path)
    if not is_device(target):  # what a pipe's link says is no path
        try:
            target = target.resolve()
        except RuntimeError:
            raise OSError(f"{path} cannot be written: its links form a ring.") from None
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    there = next(p for p in (target, *target.parents) if p.exists())  # the rest can be made
    if there != target and not there.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {there} is no folder.")
    if not os.access(there, os.W_OK):
        raise PermissionError(f"{path} cannot be written: {there} is read-only.")
    return target


def is_device(path: Path) -> bool:
    """Whether it is a pipe or a device, or a name that the system has for an open file, such as
    /dev/stdout."""
    if not path.exists() or path.is_dir():
        return False
    return not path.is_file() or bool(OPEN.match(str(path)))


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Whether the file ``path`` is now this process's; it is until the block ends, or the process
    does: a lock, so that no claim is left by a process that died."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, opener=_reader) as file:
        mine = _locked(file)
        if not mine:  # somebody may just be looking whether it is claimed
            time.sleep(LOOK)
            mine = _locked(file)
        mine = mine and _still(path, file)  # it may have been given back and removed just now
        try:
            yield mine
        finally:
            if mine and _still(path, file):
                path.unlink(missing_ok=True)


def _reader(path: str, _: int) -> int:
    """To read is enough for a lock, and what another user's process left cannot be written."""
    return os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)


def _still(path: Path, file: Any) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def claimed(path: Path) -> bool:
    """Whether a process has claimed ``path``."""
    try:
        with open(path) as file:
            return not _locked(file, shared=True)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:  # somebody else's
        return True


def _locked(file: Any, shared: bool = False) -> bool:
    """Whether this process now has the operating system's lock on an open file. Where there are no
    locks, on Windows and on some network disks, everybody has it."""
    try:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError) as error:
        warnings.warn(
            f"{Path(file.name).parent} keeps no locks ({error}): let one process alone work there.",
            stacklevel=3,
        )
    return True

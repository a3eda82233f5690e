"""Files that are there in full or not at all."""

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write(temporary_path)`` fill a file beside ``path``, then put it there in one step."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(part)
        with open(part, "rb") as f:
            os.fsync(f.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """``write_atomically`` for a text."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))

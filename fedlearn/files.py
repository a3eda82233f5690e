"""Files that are there in full or not at all, and the JSON in them."""

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPEN = re.compile(r"/(dev/(stdout|stderr|fd)|proc)\b")
# what JSON has no number for, as texts (those of protobuf's JSON)
TEXTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any, **how: Any) -> str:
    """Strict JSON, in which NaN and infinite numbers are ``TEXTS``."""
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        return json.dumps(_texts(value), allow_nan=False, **how)


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _texts(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_texts, value))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def numbers(value: Any) -> Any:
    """What JSON holds, with the numbers that ``to_json`` made ``TEXTS`` of."""
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return list(map(numbers, value))
    return TEXTS.get(value, value) if isinstance(value, str) else value


def from_json(text: str) -> Any:
    """``json.loads``, and ``ValueError`` for half a surrogate pair, which no file can hold."""
    value = json.loads(text)
    if re.search(r"\\u[dD][89a-fA-F]", text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_yaml(*paths: str | Path) -> Any:
    """What a YAML file holds, or several that are one text. libyaml, where it is there, is ten
    times faster."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = "\n".join(Path(path).read_text(encoding="utf-8") for path in paths)
    return yaml.load(text, Loader=loader)


def write_atomically(
    path: str | Path, write: Callable[[Path], object], private: bool = False
) -> None:
    """Let ``write(temporary_path)`` fill a file, then put it at ``path`` in one step.

    Only the owner can read a ``private`` file. Links are followed; devices and pipes are written
    to, never replaced.
    """
    path = check_writable(path)
    try:
        if is_device(path):
            with tempfile.TemporaryDirectory() as folder:
                part = Path(folder, path.name)
                write(part)
                with open(part, "rb") as source, open(path, "ab") as target:
                    shutil.copyfileobj(source, target)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            if private:
                part.touch(0o600)
            write(part)
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        if error.filename is None:  # such as a full disk
            raise OSError(
                f"{path} cannot be written: {error.strerror or error}."
            ) from error
        raise


def write_text(path: str | Path, text: str) -> None:
    """``write_atomically`` for a text."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def check_writable(path: str | Path) -> Path:
    """Where a file of that name is written, links followed; ``OSError`` if none can be."""
    target = Path(path)
    if not is_device(target):  # the link of a pipe is no path
        target = Path(os.path.realpath(target))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    nearest = next(p for p in (target, *target.parents) if p.exists())
    if nearest != target and not nearest.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {nearest} is no folder.")
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"{path} cannot be written: {nearest} is read-only.")
    return target


def is_device(path: Path) -> bool:
    """Whether it is a pipe, a device, or a name of an open file such as /dev/stdout."""
    if not path.exists() or path.is_dir():
        return False
    return not path.is_file() or bool(OPEN.match(str(path)))

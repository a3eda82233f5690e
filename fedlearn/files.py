"""Files that are there in full or not at all, and the JSON and YAML in them."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def to_json(value: Any, **options: Any) -> str:
    """Strict JSON: NaN and infinite numbers become texts, as in protobuf's JSON."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_spelled(value), allow_nan=False, **options)


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _spelled(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(entry) for entry in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def read_yaml(*paths: str | Path) -> Any:
    """The content of a YAML file, or of several that are one text.

    libyaml, where it is installed, is ten times faster.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = "\n".join(Path(path).read_text(encoding="utf-8") for path in paths)
    return yaml.load(text, Loader=loader)


def write_text(path: str | Path, text: str) -> None:
    """``write_atomically`` for a text."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_atomically(
    path: str | Path, write: Callable[[Path], object], private: bool = False
) -> None:
    """Let ``write(temporary_path)`` fill a file, then put it at ``path`` in one step.

    Only the owner can read a ``private`` file.
    """
    path = check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if private:
            part.touch(0o600)
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.filename is None:  # such as a full disk
            reason = error.strerror or error
            raise OSError(f"{path} cannot be written: {reason}.") from error
        raise
    finally:
        part.unlink(missing_ok=True)


def check_writable(path: str | Path) -> Path:
    """The place of a file of that name, links followed; ``OSError`` if none can be."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is a folder or a device; name a file.")
    nearest = target
    while not nearest.exists():
        nearest = nearest.parent
    if nearest != target and not nearest.is_dir():
        raise OSError(f"{path} cannot be written: {nearest} is no folder.")
    if not os.access(nearest, os.W_OK):
        raise OSError(f"{path} cannot be written: {nearest} is read-only.")
    return target

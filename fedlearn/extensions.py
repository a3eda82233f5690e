"""Methods and networks from elsewhere: mine.py:method, a name in a file; package.mine:method, in a
module."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import pick

FILES: dict[Path, ModuleType] = {}  # those that were loaded here, each once


def find(name: Any, known: Mapping[str, Any], kind: str) -> Any:
    """``known[name]``, or what ``name`` says where it is; ``ImportError`` if that cannot be
    loaded."""
    with suppress(KeyError, TypeError):
        return known[name]
    if isinstance(name, str) and ":" in name:
        place, _, attribute = name.rpartition(":")
        module = _file(Path(place)) if place.endswith(".py") else _module(place)
        public = {
            n: v
            for n, v in vars(module).items()
            if callable(v) and not n.startswith("_")
        }
        return pick(attribute, public, f"{kind} in {place}")
    return pick(name, known, kind)


def check_call(function: Any, name: Any, options: Mapping[str, Any]) -> None:
    """``ValueError`` unless ``function(**options)`` has the arguments that it needs."""
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ValueError(f"{name} cannot be called: {error}.") from None


def _file(path: Path) -> ModuleType:
    path = path.resolve()
    if path not in FILES:
        if not path.is_file():
            raise ValueError(f"There is no file {path}.")
        name = f"{path.stem}_{blake2b(bytes(path), digest_size=4).hexdigest()}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader  # it ends in .py
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise _failed(path, error) from error
        FILES[path] = module
    return FILES[path]


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())  # as for `python -m`
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _failed(name, error) from error


def _failed(place: object, error: Exception) -> ImportError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    reason = f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    return ImportError(f"{place} cannot be loaded: {reason}.")

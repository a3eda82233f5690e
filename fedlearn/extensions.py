"""Methods, networks and data from elsewhere: ``mine.py:method`` is a name in a file,
``package.mine:method`` a name in a module."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import pick

FILES: dict[Path, ModuleType] = {}  # the modules that were loaded from files


def find(name: Any, options: Mapping[str, Any], noun: str) -> Any:
    """``options[name]``, or the object whose place ``name`` says.

    ``ValueError`` for an unknown name, ``ImportError`` for a file or a module that
    cannot be loaded.
    """
    if not (isinstance(name, str) and ":" in name):
        return pick(name, options, noun)
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"There is no file {place}.")
    try:
        module = load_file(Path(place)) if place.endswith(".py") else load_module(place)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{Path(last.filename).name}, line {last.lineno}"
        raise ImportError(
            f"{place} cannot be loaded: {type(error).__name__}: {error} ({line})."
        ) from error
    public = {
        name: x
        for name, x in vars(module).items()
        if callable(x) and not name.startswith("_")
    }
    return pick(attribute, public, f"{noun} in {place}")


def check_call(function: Any, name: Any, options: Mapping[str, Any]) -> None:
    """``ValueError`` unless ``function(**options)`` has the arguments that it needs."""
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ValueError(f"{name} cannot be called: {error}.") from None


def load_file(path: Path) -> ModuleType:
    """The module of a file, which is run once."""
    path = path.resolve()
    if path not in FILES:
        name = str(path).replace(".", "_")  # of no other module
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader  # because the file's name ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        FILES[path] = module
    return FILES[path]


def load_module(name: str) -> ModuleType:
    """A module, also of the working directory, as for ``python -m``."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)

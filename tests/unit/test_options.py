"""Every option of a method, a part, a coder and a partition: its default, and which numbers it
takes. Stored runs and the papers' recipes stand on both, so a change shows here first.

After a change that is meant:  PYTHONPATH=. python tests/unit/test_options.py
"""

import importlib
import inspect
import pkgutil
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import fedlearn as fl
from fedlearn.arguments import Checked

TABLE = Path(__file__).with_suffix(".txt")
TRIED = (-1, -0.5, 0, 1e-6, 0.5, 1, 2, 3, 16, 17, 40, float("inf"))


def classes():
    """The dataclasses of all parts, coders and partitions, by module and name."""
    found = {}
    names = ["context", "links", "local", "optim", "servers"]
    for name in ("wire", "methods", "data"):
        path = importlib.import_module(f"fedlearn.{name}").__path__
        names += [f"{name}.{info.name}" for info in pkgutil.iter_modules(path)]
    for module in (importlib.import_module(f"fedlearn.{name}") for name in names):
        for kind in vars(module).values():
            if is_dataclass(kind) and isinstance(kind, type) and issubclass(kind, Checked):
                found[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return dict(sorted(found.items()))


def accepts(make, option, value):
    try:
        make(**{option: value})
    except (ValueError, TypeError):
        return False
    return True


def line(make, option, default):
    if isinstance(default, bool | str | None) or not isinstance(default, int | float):
        return f"    {option} = {default!r}"
    taken = " ".join(f"{value:g}" for value in TRIED if accepts(make, option, value))
    return f"    {option} = {default!r}, takes {taken or 'none of these alone'}"


def table():
    lines = [f"numbers tried: {' '.join(f'{value:g}' for value in TRIED)}"]
    for name, function in sorted(fl.methods.METHODS.items()):
        lines.append(f"{name}()")
        for option, parameter in inspect.signature(function).parameters.items():
            lines.append(line(function, option, parameter.default))
    for name, kind in classes().items():
        own = [f for f in fields(kind) if f.init and f.default is not MISSING]
        if own:
            lines.append(name)
            lines += [line(kind, f.name, f.default) for f in own]
    return "\n".join(lines) + "\n"


def test_defaults_and_ranges_are_as_written_down():
    assert table().splitlines() == TABLE.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")

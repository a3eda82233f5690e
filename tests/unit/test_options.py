"""Every option of every method, part and coder: its default; and which numbers a method's takes.
Stored runs and the papers' recipes stand on both, so a change shows here first.

After a change that is meant:  PYTHONPATH=. python tests/unit/test_options.py
"""

import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path
from textwrap import wrap

import fedlearn as fl
import fedlearn.methods.fed_repopt_search  # noqa: F401, has a part of its own

TABLE = Path(__file__).with_suffix(".txt")
BASE, PLAIN = fl.Averaging().parts(), (bool, int, float, str, type(None))
TRIED = (-1, -0.5, 0, 1e-6, 0.5, 1, 2, 3, 16, 17, 40, float("inf"))


def accepts(make, option, value):
    try:
        make(**{option: value})
    except (ValueError, TypeError):
        return False
    return True


def below(kind):
    """The package's classes below this one."""
    for each in kind.__subclasses__():
        yield from below(each)
        if each.__module__.startswith("fedlearn.") and ".book." not in each.__module__:
            yield each


def table():
    """Each method with its defaults and its parts; each part and coder with its defaults; then each
    set of numbers with the options that take it."""
    lines, takers = [], {}
    for name, function in sorted(fl.methods.METHODS.items()):
        options = inspect.signature(function).parameters
        defaults = [f"{option}={p.default!r}" for option, p in options.items()]
        lines += wrap(f"{name} {' '.join(defaults)}", 100, subsequent_indent="    ")
        parts = {p: text for p, text in function().parts().items() if text != BASE.get(p)}
        lines += [f"    {part}: {text}" for part, text in parts.items()]
        for option, p in options.items():
            if isinstance(p.default, int | float) and not isinstance(p.default, bool):
                taken = " ".join(f"{v:g}" for v in TRIED if accepts(function, option, v))
                takers.setdefault(taken, []).append(f"{name}.{option}")
    kinds = {kind for base in (fl.parts.Part, fl.wire.Coder) for kind in below(base)}
    for kind in sorted(filter(is_dataclass, kinds), key=lambda kind: kind.__name__):
        options = [f"{f.name}={f.default!r}" for f in fields(kind) if type(f.default) in PLAIN]
        lines += wrap(f"{kind.__name__} {' '.join(options)}", 100, subsequent_indent="    ")
    for taken, options in sorted(takers.items()):
        lines += ["", f"takes {taken}", *wrap(" ".join(options), 100)]
    return "\n".join(lines) + "\n"


def test_defaults_and_ranges_are_as_written_down():
    assert table().splitlines() == TABLE.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")

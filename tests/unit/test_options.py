"""Every option of every method: its default, and which numbers it takes. Stored runs and the
papers' recipes stand on both, so a change shows here first.

After a change that is meant:  PYTHONPATH=. python tests/unit/test_options.py
"""

import inspect
from pathlib import Path
from textwrap import wrap

import fedlearn as fl

TABLE = Path(__file__).with_suffix(".txt")
TRIED = (-1, -0.5, 0, 1e-6, 0.5, 1, 2, 3, 16, 17, 40, float("inf"))


def accepts(make, option, value):
    try:
        make(**{option: value})
    except (ValueError, TypeError):
        return False
    return True


def table():
    """Each method with its defaults, then each set of numbers with the options that take it."""
    lines, takers = [], {}
    for name, function in sorted(fl.methods.METHODS.items()):
        options = inspect.signature(function).parameters
        defaults = [f"{option}={p.default!r}" for option, p in options.items()]
        lines += wrap(f"{name} {' '.join(defaults)}", 100, subsequent_indent="    ")
        for option, p in options.items():
            if isinstance(p.default, int | float) and not isinstance(p.default, bool):
                taken = " ".join(f"{v:g}" for v in TRIED if accepts(function, option, v))
                takers.setdefault(taken, []).append(f"{name}.{option}")
    for taken, options in sorted(takers.items()):
        lines += ["", f"takes {taken}", *wrap(" ".join(options), 100)]
    return "\n".join(lines) + "\n"


def test_defaults_and_ranges_are_as_written_down():
    assert table().splitlines() == TABLE.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")

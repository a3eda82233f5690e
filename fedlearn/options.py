"""Dataclasses as options of the command line, both ways.

A field that was made by ``opt`` has its default, its help and its type in one place; ``add``
makes argparse's options of them, ``given`` reads what was typed, and ``words`` writes it again.
"""

import argparse
import ast
import json
from dataclasses import MISSING, Field, field, fields
from types import NoneType
from typing import Any, get_args, get_origin

from .arguments import check_value


def opt(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:
    """A dataclass field that is also an option.

    ``default`` is a value, a function that makes one, or ``MISSING`` if the option must be given.
    Of ``more``, ``group`` is a heading in the help, ``flag`` the option's name if it is not the
    field's, ``positional`` says that it goes without a name, ``several`` that it may be given more
    than once where ``add`` allows it, and all else is argparse's.
    """
    start = {"default_factory" if callable(default) else "default": default}
    shown = {"metavar": metavar} if metavar else {}
    return field(**start, metadata={"help": help, **shown, **more})


def flag(f: Field) -> str:
    """What a field is called there: ``batch_size`` is ``--batch-size``."""
    return f.metadata.get("flag", "--" + f.name.replace("_", "-"))


def flags_of(kind: type) -> list[str]:
    """The names of all options of a dataclass."""
    return [flag(f) for f in fields(kind) if not f.metadata.get("positional")]


def add(parser: argparse.ArgumentParser, kind: type, several: bool = False) -> None:
    """Every field as an option, of the type that it has, and what is inherited last.

    A tuple or a dict may be given several times; if ``several``, so may what has no name or says so
    itself. What was not given is ``None`` afterwards: its default is up to the dataclass.
    """
    groups: dict[str, Any] = {"": parser}
    for f in sorted(fields(kind), key=lambda f: f.name not in kind.__annotations__):
        ours = ("group", "flag", "positional", "several")
        how = {k: v for k, v in f.metadata.items() if k not in ours}
        of = get_args(f.type)[0] if NoneType in get_args(f.type) else f.type
        if get_origin(of) in (tuple, dict):
            how, of = {"action": "append"} | how, get_args(of)[0]
        how = ({"action": "store_true"} if of is bool else {"type": of}) | how
        if several and f.metadata.get("several"):
            how |= {"nargs": "+", "action": "extend", "help": f"{how['help']}; may be several"}
        group = f.metadata.get("group", "")
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        if f.metadata.get("positional"):
            nargs = {"nargs": "+" if several else None}
            groups[group].add_argument(f.name, **nargs | how)
            continue
        if of is not bool and isinstance(f.default, str | int | float):
            shown = f"{f.default:g}" if of is float else f.default
            how["help"] += "" if "default" in how["help"] else f" (default {shown})"
        needed = f.default is f.default_factory is MISSING
        groups[group].add_argument(flag(f), dest=f.name, required=needed, **{"default": None} | how)


def given(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    """The fields that were given, by name."""
    values = {f.name: getattr(args, f.name) for f in fields(kind)}
    for f in fields(kind):
        if isinstance(values[f.name], float):
            check_value(flag(f), values[f.name], float, f.default)
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if v is not None}


def words(instance: Any) -> list[str]:
    """What one types for it: what has no name first, then all that is not as by default."""
    unnamed, named = [], []
    for f in fields(instance):
        value, flagged = getattr(instance, f.name), flag(f)
        if f.metadata.get("positional"):
            unnamed.append(value)
        elif value != (f.default if f.default_factory is MISSING else f.default_factory()):
            if isinstance(value, dict):
                value = tuple(f"{name}={write_value(v)}" for name, v in value.items())
            for text in map(str, value if isinstance(value, tuple) else (value,)):
                named += [f"{flagged}={text}"] if text.startswith("-") else [flagged, text]
    return unnamed + named


def read_pairs(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``("share=0.5",)`` -> ``{"share": 0.5}``."""
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"An option has the form NAME=VALUE, not {pair!r}.")
    return {name: read_value(text) for name, text in (pair.split("=", 1) for pair in pairs)}


def read_value(text: str) -> Any:
    """A Python literal if it is one that JSON knows, or a number such as inf; else the text."""
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
        return value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        pass
    try:
        return float(text)
    except ValueError:
        return text


def write_value(value: Any) -> str:
    """The inverse of ``read_value``."""
    text = str(value)
    return text if read_value(text) == value else repr(value)

"""The errors of the package, and the one way to say "no such name"."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any

from .arguments import short


class Diverged(ValueError):
    """What is to be sent holds NaN or infinite values."""


class WireError(ValueError):
    """Bytes from outside that are not what the receiver's schema allows: truncated, altered,
    foreign or not finite.

    Examples
    --------
    >>> import fedlearn as fl
    >>> try:
    ...     fl.wire.Dense().decode(b"", (2,))
    ... except fl.WireError:
    ...     print("refused")
    refused
    """


class StartError(ConnectionError):
    """A program that a run needs does not start on this machine."""


class DataError(RuntimeError):
    """A data set that is not on this machine and cannot be fetched, or is not the one its name
    says.

    >>> import fedlearn as fl
    >>> try:
    ...     task = fl.tasks.classification("tiny_imagenet", train=100)
    ... except fl.DataError as error:
    ...     task = str(error)
    >>> "tiny_imagenet" in str(task)
    True
    """


@contextmanager
def extra(name: str) -> Iterator[None]:
    """What is imported inside comes with this extra: where it is missing, one sentence says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        text = f"{package} is missing: pip install 'fedlearn[{name}]' brings it."
        raise ModuleNotFoundError(text, name=error.name) from None


def no_memory(error: BaseException) -> bool:
    """Whether it says that memory could not be had, as Python, numpy or PyTorch say it."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def error_text(error: BaseException) -> str:
    """What an error says; Python's own of too little memory says nothing."""
    silent = "not enough memory." if no_memory(error) else type(error).__name__
    return str(error) or silent


def pick(name: Any, options: Mapping[Any, Any], noun: str) -> Any:
    """``options[name]``, or a ``ValueError`` with the nearest matches and all that is allowed."""
    with suppress(KeyError, TypeError):  # what cannot be hashed is no name
        return options[name]
    lower, text = {str(o).lower(): str(o) for o in options}, isinstance(name, str)
    near = get_close_matches(name.lower(), lower, n=3, cutoff=0.5) if text else []
    hint = f" Did you mean {' or '.join(repr(lower[o]) for o in near)}?" if near else ""
    shown, allowed = repr(name) if text else short(name), ", ".join(map(str, options)) or "none"
    raise ValueError(f"There is no {noun} {shown}.{hint} Allowed: {allowed}.")

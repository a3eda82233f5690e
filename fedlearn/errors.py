"""The errors of the package, and the few checks of values that would else mislead."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any


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
    >>> def first(*names):
    ...     for name in names:
    ...         try:
    ...             return fl.tasks.classification(name)
    ...         except fl.DataError as error:
    ...             print(error)
    >>> first("digits", "mnist").source.name
    'digits'
    """


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports in this block need an extra; the error for a missing package names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        text = f"{package} is missing: pip install 'fedlearn[{name}]' brings it."
        raise ModuleNotFoundError(text, name=error.name) from None


def error_text(error: BaseException) -> str:
    """The text of an error, or its type where it has none."""
    return str(error) or type(error).__name__


def short(value: Any) -> str:
    """A value in one line of at most 80 letters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:76]} ..."


def near_names(name: Any, options: Iterable[Any]) -> str:
    """ " Did you mean 'x'?", with the options that are spelt nearly like it, or nothing."""
    near = get_close_matches(str(name), map(str, options), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def pick(name: Any, options: Mapping[Any, Any], noun: str) -> Any:
    """``options[name]``, or a ``ValueError`` with the nearest names and all that are allowed."""
    with suppress(KeyError, TypeError):  # a value that cannot be hashed is no name
        return options[name]
    allowed = ", ".join(map(str, options)) or "none"
    hint = near_names(name, options)
    raise ValueError(f"There is no {noun} {short(name)}.{hint} Allowed: {allowed}.")


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = math.inf,
    below: float = math.inf,
) -> float:
    """``value`` as a float; ``ValueError`` unless it is a finite number in the range.

    >>> check_number("share", 0.5, above=0, maximum=1)
    0.5
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if (
        number
        and math.isfinite(value)
        and minimum <= value <= maximum
        and above < value < below
    ):
        return float(value)
    limits = {"at least": minimum, "above": above, "at most": maximum, "below": below}
    words = [f"{word} {x:g}" for word, x in limits.items() if math.isfinite(x)]
    allowed = " and ".join(words) or "finite"
    raise ValueError(f"{name} must be a number {allowed}, not {short(value)}.")


def check_whole(
    name: str, value: Any, minimum: int = 1, maximum: float = math.inf
) -> int:
    """``value`` as an int; ``ValueError`` unless it is a whole number in the range."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and minimum <= value <= maximum:
        return int(value)
    allowed = f"from {minimum} on"
    if math.isfinite(maximum):
        allowed = f"from {minimum} to {maximum}"
    raise ValueError(f"{name} must be a whole number {allowed}, not {short(value)}.")

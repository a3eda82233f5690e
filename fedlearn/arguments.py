"""Arguments that are what their annotation says: methods' options, fields of parts, coders,
settings. Numbers are finite, unless the default is infinite, and become Python's own kind of their
annotation: what is equal has the same ``repr``, by which two machines know it."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ParamSpec,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from .errors import short

KINDS = {
    float: "a finite number",
    int: "a whole number",
    bool: "True or False",
    str: "a text",
    NoneType: "None",
}
LARGEST = 3.4028234663852886e38  # of float32, in which all training computes

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Range:
    """Which numbers an annotation allows: ``Annotated[float, Range("above 0", ...)]``."""

    words: str
    allows: Callable[[Any], bool]


def counts(most: float = 1e38) -> Range:
    """The numbers 1, 2, 3, ..., up to the most."""
    return Range(
        f"a whole number from 1 to {most}", lambda n: n is None or 1 <= n <= most
    )


Positive = Annotated[float, Range("above 0 and finite", lambda x: 0 < x < math.inf)]
NotNegative = Annotated[
    float, Range("at least 0 and finite", lambda x: 0 <= x < math.inf)
]
BelowOne = Annotated[float, Range("at least 0 and below 1", lambda x: 0 <= x < 1)]
Ratio = Annotated[float, Range("above 0 and at most 1", lambda x: 0 < x <= 1)]
Share = Annotated[float, Range("from 0 to 1", lambda x: 0 <= x <= 1)]
Count = Annotated[int, counts()]


def check_value(name: str, value: Any, annotation: Any, default: Any = None) -> Any:
    """``value`` as Python's own kind; ``ValueError`` unless it is what the annotation says."""
    if isinstance(annotation, type) and issubclass(
        annotation, Checked
    ):  # a part, a coder
        if not isinstance(value, annotation):
            raise ValueError(
                f"{name} must be of kind {annotation.__name__}, not {short(value)}."
            )
        return value
    if get_origin(annotation) is Annotated:
        annotation, allowed = get_args(annotation)
        value = check_value(name, value, annotation, default)
        if not allowed.allows(value):
            raise ValueError(f"{name} must be {allowed.words}, not {short(value)}.")
        return value
    union = get_origin(annotation) in (UnionType, Union)
    kinds = get_args(annotation) if union else (annotation,)
    bare = annotation is inspect.Parameter.empty
    if bare:
        kinds = (float,) if is_number(default) else (type(default),)
        if kinds[0] not in (float, bool):
            return value
    if not all(kind in KINDS for kind in kinds):
        return value
    if not any(_is(value, k, default) for k in kinds):
        wanted = [KINDS[kind] for kind in kinds]
        raise ValueError(f"{name} must be {' or '.join(wanted)}, not {short(value)}.")
    if not is_number(value):
        return value
    return int(value) if is_whole(value) and (bare or int in kinds) else float(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a real number of any kind: Python's, numpy's, but not True."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number of any kind."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole_number(name: str, value: object, most: float = 1e38) -> None:
    """Refuse anything but 1, 2, 3, ..., up to the most."""
    if not is_whole(value) or not 1 <= value <= most:
        raise ValueError(
            f"{name} must be a whole number from 1 to {most}, not {short(value)}."
        )


def _is(value: Any, kind: type, default: Any) -> bool:
    if kind is float and is_number(value):
        return -LARGEST <= value <= LARGEST or (
            value == default and math.isinf(default)
        )
    if kind is int:
        return (
            is_whole(value) and abs(value) < 10**4000
        )  # Python shows no more than 4,300 digits
    return kind is not float and isinstance(value, kind)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, which checks its arguments first."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind_partial(*args, **kwargs)
        except TypeError:  # too many, or unknown: the call itself will say so
            return function(*args, **kwargs)
        for name, value in bound.arguments.items():
            p = signature.parameters[name]
            title = f"{name} of {getattr(function, '__name__', 'the method')}"
            bound.arguments[name] = check_value(title, value, p.annotation, p.default)
        return function(*bound.args, **bound.kwargs)

    return call


class Checked:
    """Base of dataclasses whose fields are checked before their ``__post_init__``."""

    def __post_init__(self) -> None:
        for f in fields(self) if is_dataclass(self) else ():
            if f.init:
                title, value = (
                    f"{f.name} of {type(self).__name__}",
                    getattr(self, f.name),
                )
                object.__setattr__(
                    self, f.name, check_value(title, value, f.type, f.default)
                )

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if further := vars(cls).get("__post_init__"):

            @wraps(further)
            def first_check(self: Any) -> None:
                Checked.__post_init__(self)
                further(self)

            cls.__post_init__ = first_check  # type: ignore[method-assign]

"""Arguments that are what their annotation says: checked in one place for all parts, coders,
methods and public functions.

What is annotated as float, int, bool, str, or one of them or None, is checked; what else a value
must be, such as above 0, is up to the callee. Numbers are finite, unless the default is infinite.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

WORDS = {
    float: "a finite number",
    int: "a whole number",
    bool: "True or False",
    str: "a text",
    NoneType: "None",
}
LARGEST = 3.4028234663852886e38  # of float32, in which all training computes

P = ParamSpec("P")
R = TypeVar("R")
_signature = lru_cache(1024)(inspect.signature)


def check_arguments(function: Callable, args: tuple = (), kwargs: Mapping[str, Any] = {}) -> None:
    """``ValueError`` for an argument that cannot be what ``function``, or a class, says it is."""
    signature = _signature(function)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:  # too many, or unknown: the call itself will say so
        return
    for name, value in given.items():
        parameter = signature.parameters[name]
        check_value(
            f"{name} of {function.__name__}", value, parameter.annotation, parameter.default
        )


def check_value(name: str, value: Any, annotation: Any, default: Any = None) -> None:
    """``ValueError`` unless ``value`` is what an annotation says. Without one, a number as default
    asks for a number."""
    union = get_origin(annotation) in (UnionType, Union)
    kinds = get_args(annotation) if union else (annotation,)
    if annotation is inspect.Parameter.empty:
        number = isinstance(default, Real) and not isinstance(default, bool)
        kinds = (float,) if number else (type(default),)
        if kinds[0] not in (float, bool):
            return
    if all(kind in WORDS for kind in kinds) and not any(_is(value, k, default) for k in kinds):
        wanted = [WORDS[kind] for kind in kinds]
        raise ValueError(f"{name} must be {' or '.join(wanted)}, not {short(value)}.")


def _is(value: Any, kind: type, default: Any) -> bool:
    if kind is float and isinstance(value, Real) and not isinstance(value, bool):
        return -LARGEST <= value <= LARGEST or (value == default and math.isinf(default))  # type: ignore[operator]
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return kind is not float and isinstance(value, kind)


def short(value: Any) -> str:
    """A value in one line of at most 80 letters."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # a whole number of more than 4,300 digits
        text = "a number too long to show"
    return text if len(text) <= 80 else f"{text[:76]} ..."


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, which checks its arguments first."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(function, args, kwargs)
        return function(*args, **kwargs)

    return call


class Checked:
    """Base of classes that check what they are made of."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        check_arguments(cls, args, kwargs)
        return super().__new__(cls)

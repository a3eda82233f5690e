"""Samples, labels and users as arrays from which a network can learn.

Samples are images [n, channels, height, width] or vectors [n, features], which become
images [n, 1, 1, features]. uint8 stays uint8; all other numbers become float32. Nothing
is dropped, scaled or reordered in silence: what is not sure is refused, and the
sentence says what makes it sure."""

from collections.abc import Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np
import torch

from ..errors import short

BANDS = 1, 3, 4  # channels of grey pictures, of colours, of colours with transparency
LAYOUTS = {
    "first": "[n, channels, height, width]",
    "last": "[n, height, width, channels]",
}
PRECISION = (
    1e-3  # rounding to float32 may move a value by this share of its column's spread
)
SCALED = 2.0  # images with larger values are not on the scale from 0 to 1
DEEP = (
    "A picture has colours of 16 bits, of which PIL keeps 8: read it with another "
    "library, and give its arrays to fl.data.arrays."
)
KINDS = {"b": "truth values", "i": "numbers", "U": "texts"}


# ---- arrays


def is_wide(picture: Any) -> bool:
    """Whether a picture of PIL, before its pixels are read, has more than 8 bits a
    channel."""
    tile = getattr(picture, "tile", None)
    mode = str(tile[0][3]) if tile else ""
    return picture.mode in ("I", "F") or ";16" in picture.mode + mode


def is_colour(picture: Any) -> bool:
    """Whether PIL has 8 bits a channel for it."""
    return picture.mode not in ("I", "F") and ";16" not in picture.mode


def pixels_of(picture: Any) -> np.ndarray:
    """A picture of PIL as [height, width] or [height, width, 3]. Pixels of 16 bits and
    float pixels keep their values, a palette becomes its colours."""
    if is_wide(picture):
        if is_colour(picture):
            raise ValueError(DEEP)
        return np.asarray(picture)
    if picture.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        darkest, _ = picture.convert("RGBA").getchannel("A").getextrema()
        if darkest < 255:
            raise ValueError(
                f"A picture (mode {picture.mode}) has transparency: leave it out by "
                'picture.convert("RGB"), or keep it as a channel by '
                "numpy.asarray(picture), in the data set's transform."
            )
    grey = picture.mode in ("1", "L", "LA")
    return np.asarray(picture.convert("L" if grey else "RGB"))


def array_of(values: Any) -> np.ndarray:
    """An array of an array, a tensor, a picture, or a list of these."""
    if hasattr(values, "getbands"):
        return pixels_of(values)
    if isinstance(values, torch.Tensor):
        try:
            return values.detach().cpu().numpy()
        except (TypeError, RuntimeError):  # sparse, bfloat16, quantised, on "meta"
            raise ValueError(
                "Samples are dense tensors of numbers that numpy has, such as "
                f"x.to_dense().float() makes them, not {values.dtype} with the layout "
                f"{values.layout}."
            ) from None
    if hasattr(values, "toarray"):
        kind = type(values).__name__
        raise ValueError(f"Samples are dense arrays: give x.toarray(), not a {kind}.")
    if isinstance(values, list | tuple) and any(map(_is_array, values)):
        return _stacked([array_of(value) for value in values])
    if np.ma.isMaskedArray(values):
        return values
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(
            "Samples are not all of one shape: resize them first."
        ) from None


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") or hasattr(value, "getbands")


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    """Arrays of one shape and type as one array."""
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        pair = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
        raise ValueError(
            f"Samples are not all of one shape, but {pair}: resize them and give them "
            "the same channels first, such as by a transform."
        )
    types = {array.dtype for array in arrays}
    if len(types) > 1 and any(t.kind != "U" for t in types):
        pair = " and ".join(sorted(map(str, types)))
        raise ValueError(
            f"Samples are of several types, {pair}: bring them to one scale and type."
        )
    masked = any(np.ma.isMaskedArray(array) for array in arrays)
    return np.ma.stack(arrays) if masked else np.stack(arrays)


# ---- samples


def samples_of(
    x: Any, channels: str | None = None, columns: Sequence = ()
) -> np.ndarray:
    """uint8 or finite float32 [n, channels, height, width]. ``channels``: "first" or
    "last", where four dimensions do not show it; ``columns`` are the names of
    features."""
    if channels is not None and channels not in LAYOUTS:
        raise ValueError(f'channels is "first" or "last", not {short(channels)}.')
    if hasattr(x, "columns"):
        raise ValueError(
            "Samples are arrays: fl.data.table takes a DataFrame with its target, and "
            "frame.to_numpy() is an array."
        )
    x = array_of(x)
    if x.dtype.kind not in "buif":
        raise ValueError(f"Samples are numbers, not {x.dtype}.")
    if x.ndim not in (2, 3, 4) or not x.size:
        raise ValueError(
            "Samples are vectors [n, features], grey images [n, height, width], or "
            f"images with channels, {' or '.join(LAYOUTS.values())}, not "
            f"{list(x.shape)}."
        )
    if x.ndim == 4 and _layout(x.shape, channels) == "last":
        x = x.transpose(0, 3, 1, 2)
    while x.ndim < 4:
        x = x[:, None]
    if np.ma.isMaskedArray(x):
        _refuse_missing(np.ma.getmaskarray(x), "are masked", columns)
        x = np.ma.getdata(x)
    if x.dtype.kind == "b":
        x = x.astype(np.uint8)
    return x if x.dtype == np.uint8 else _float32(x, columns)


def _layout(shape: tuple[int, ...], channels: str | None) -> str:
    """Where the channels of four dimensions are: as the caller says, or where only one
    place can hold those of a picture."""
    if channels is not None:
        return channels
    first = shape[1] in BANDS and min(shape[2:]) > max(BANDS)
    last = shape[3] in BANDS and min(shape[1:3]) > max(BANDS)
    if first == last:
        raise ValueError(
            f"Images {list(shape)} do not show where their channels are: say "
            f"channels='first' for {LAYOUTS['first']}, or channels='last' for "
            f"{LAYOUTS['last']}."
        )
    return "first" if first else "last"


def _float32(x: np.ndarray, columns: Sequence) -> np.ndarray:
    """Finite float32, of which no column has lost what tells its values apart."""
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float32)
    _refuse_missing(~np.isfinite(narrow), "are NaN, or infinite in float32,", columns)
    if x.dtype.itemsize >= 4 and x.dtype != np.float32:
        axes = (0, 1, 2) if x.shape[1:3] == (1, 1) else (0, 2, 3)
        wide = x.astype(np.float64)
        moved = np.abs(narrow - wide).max(axes)
        spread = wide.max(axes) - wide.min(axes)
        noise = 1e-12 * np.abs(wide).max(axes)  # float64's own rounding
        blurred = np.flatnonzero((spread > noise) & (moved > PRECISION * spread))
        if len(blurred):
            place = _text_of(blurred, x.shape, columns)
            raise ValueError(
                f"float32 cannot tell apart the values of {place}: subtract the mean "
                "first."
            )
    return narrow


def _refuse_missing(missing: np.ndarray, fault: str, columns: Sequence) -> None:
    """``missing`` is bool [n, channels, height, width]."""
    if missing.any():
        vectors = missing.shape[1:3] == (1, 1)
        positions = np.flatnonzero(missing.any((0, 1, 2) if vectors else (1, 2, 3)))
        place = (
            _text_of(positions, missing.shape, columns)
            if vectors
            else f"samples {short(positions.tolist())}"
        )
        raise ValueError(
            f"Values {fault} in {place}: fill them in, or leave these out."
        )


def _text_of(positions: np.ndarray, shape: tuple[int, ...], columns: Sequence) -> str:
    names = [columns[i] if len(columns) else int(i) for i in positions]
    return f"{'columns' if shape[1:3] == (1, 1) else 'channels'} {short(names)}"


def check_scale(title: str, x: np.ndarray, other_title: str, other: np.ndarray) -> None:
    """``ValueError`` if two sets of samples are not of one shape, or not on one
    scale."""
    if x.shape[1:] != other.shape[1:]:
        pair = list(x.shape[1:]), list(other.shape[1:])
        raise ValueError(f"{title} has samples {pair[0]}, {other_title} {pair[1]}.")
    images = x.shape[1:3] != (1, 1)
    ends = [max(float(part.max()), -float(part.min())) for part in (x, other)]
    scaled = images and 0 < min(ends) <= 1 and max(ends) > SCALED
    types = {x.dtype, other.dtype}
    if scaled or (len(types) > 1 and not (_is_byte(x) and _is_byte(other))):
        raise ValueError(
            f"{title} has samples {x.dtype} up to {ends[0]:g}, {other_title} "
            f"{other.dtype} up to {ends[1]:g}: bring them to one scale and type first."
        )


def _is_byte(x: np.ndarray) -> bool:
    """Whether the values could be stored as uint8, and use more than 0 and 1."""
    return (
        x.min() >= 0
        and 1 < x.max() <= 255
        and (x.dtype == np.uint8 or (x == x.round()).all())
    )


def check_kind(title: str, y: np.ndarray, other_title: str, other: np.ndarray) -> None:
    """``ValueError`` if two sets of labels are of two kinds."""
    kinds = KINDS[y.dtype.kind], KINDS[other.dtype.kind]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{title} has labels that are {kinds[0]}, {other_title} {kinds[1]}: labels "
            "are all of one kind."
        )


# ---- labels and users


def labels_of(y: Any) -> np.ndarray:
    """One label a sample: whole numbers from 0 on, texts or truth values [n]."""
    if not isinstance(y, list | tuple):
        y = array_of(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            hint = " (one-hot? y.argmax(1))" if y.ndim == 2 else ""
            raise ValueError(
                f"Labels are one for each sample, not {list(y.shape)}{hint}."
            )
    values = [_plain(label) for label in (y.tolist() if hasattr(y, "tolist") else y)]
    _refuse_empty(values, "labels")
    kinds = {str if isinstance(value, str) else type(value) for value in values}
    if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(
            "Labels are one for each sample and all of one kind, whole numbers, texts "
            f"or truth values, not {names}."
        )
    labels = np.array(values)
    if labels.dtype.kind == "f" and all(float(value).is_integer() for value in values):
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "f":
        raise ValueError(
            "Labels are whole numbers or texts, not fractions: the page book/extend.md "
            "has a task that predicts numbers."
        )
    if labels.dtype.kind not in KINDS or (labels.dtype.kind == "i" and min(values) < 0):
        raise ValueError(
            f"Labels are 0, 1, 2, ... or texts, not {min(values)} to {max(values)}."
        )
    return labels


def _plain(value: Any) -> Any:
    """A number of numpy or torch as one of Python's."""
    return value.item() if getattr(value, "ndim", 1) == 0 else value


def _refuse_empty(values: list, noun: str) -> None:
    """``ValueError`` for None (as which numpy lists masked values), NaN, what pandas
    has for them, and blank texts."""
    empty = [i for i, value in enumerate(values) if _is_empty(value)]
    if empty:
        raise ValueError(f"There are no {noun} in rows {short(empty)}: fill them in.")


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Real) and value != value


def numbered(parts: Sequence[np.ndarray], names: Sequence = ()) -> tuple[list, tuple]:
    """Labels of one kind as the numbers 0, 1, ... of classes, int64, and the classes'
    names, which are empty where the labels are these numbers. ``names``: the order of
    classes, if it is known, else they are in the order of their labels."""
    whole = np.concatenate(parts)
    classes, numbers = np.unique(whole, return_inverse=True)
    if names:
        place = {name: i for i, name in enumerate(names)}
        numbers = np.array([place[name] for name in classes.tolist()])[numbers]
    elif whole.dtype.kind != "i" or (classes != np.arange(len(classes))).any():
        names = classes.tolist()
    count = len(names) or len(classes)
    if not 2 <= count < len(whole):
        raise ValueError(
            f"{len(whole)} samples with {count} classes are not learned from: at least "
            "two classes are needed, and more samples than classes."
        )
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    return np.split(numbers.astype(np.int64), cuts), tuple(names)


def users_of(users: Any) -> list:
    """A name for each sample: a whole number, a text, or a tuple of these."""
    if isinstance(users, str) or not hasattr(users, "__iter__"):
        raise ValueError(
            f"users= is a name for each sample, not {short(users)}: fl.data.table "
            "takes the name of a column as user=."
        )
    names = array_of(users).tolist() if hasattr(users, "dtype") else list(users)
    _refuse_empty(names, "users")
    return [_user_name(name) for name in names]


def _user_name(name: Any) -> Any:
    if isinstance(name, list | tuple):
        return tuple(_user_name(part) for part in name)
    name = _plain(name)
    if (
        isinstance(name, float) and name.is_integer()
    ):  # as pandas has them beside empty cells
        name = int(name)
    if not isinstance(name, int | str):
        raise ValueError(
            f"Users are whole numbers, texts or tuples of these, not {short(name)}."
        )
    return name


def user_numbers(users: list, order: Sequence = ()) -> tuple[np.ndarray, tuple]:
    """The number of each sample's user, int64 [n], and their names in this order; else
    sorted, or, of names of several kinds, as they first appear."""
    names = list(order) or list(dict.fromkeys(users))
    if not order:
        with suppress(TypeError):
            names = sorted(names)
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[user] for user in users], np.int64), tuple(names)

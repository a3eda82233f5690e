"""Samples, labels and users as arrays from which a network can learn.

Samples are images [n, channels, height, width] or vectors [n, features], which become
images [n, 1, 1, features]. uint8 stays uint8; all other numbers become float32. Nothing
is dropped, scaled or reordered in silence: ambiguous values are refused, and the
sentence says how to make them clear."""

from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

import numpy as np
import torch

from ..errors import pick, short

BANDS = 1, 3, 4  # channels of grey pictures, of colours, of colours with transparency
LAYOUTS = {
    "first": "[n, channels, height, width]",
    "last": "[n, height, width, channels]",
}
PRECISION = 1e-3  # share of a column's spread by which float32 may move a value
SCALED = 2.0  # images with larger values are not on the scale from 0 to 1
DARK = 0.05  # images from 0 to 1 have pixels as dark, on the scale from -1 to 1 few do
RATIO = 40  # of the largest values of images on two scales, such as 255 and normalised
DEEP = "I", "F", "I;16", "I;16L", "I;16B", "I;16N"  # PIL's modes with more than 8 bits
DENSE = (
    "Samples are dense numbers of a type that numpy has, as x.toarray() or "
    "x.to_dense().float() makes them"
)
LABELS = (
    "Labels are one for each sample and all of one kind: whole numbers from 0 to "
    "2**63 - 1, texts or truth values"
)
KINDS = {"b": "truth values", "i": "numbers", "U": "texts"}
EMPTY = "None", "nan", "NaT", "<NA>"  # missing values of Python, numpy and pandas


# ---- arrays


def is_deep(picture: Any) -> bool:
    """Whether a picture of PIL has more than 8 bits a channel. Colours of 16 bits are
    recognised only before the pixels are read."""
    storage = [str(tile[3]) for tile in getattr(picture, "tile", None) or ()]
    return picture.mode in DEEP or any(";16" in mode for mode in storage)


def cut_to_bytes(picture: Any) -> Any:
    """A picture of PIL whose pixels are cut to whole numbers from 0 to 255, in the same
    mode."""
    from PIL import Image

    pixels = np.asarray(picture)
    cut = pixels.clip(0, 255).astype(np.uint8)
    return Image.fromarray(cut.astype(pixels.dtype))


def has_transparency(picture: Any) -> bool:
    """Whether a picture of PIL has a channel or a colour for transparency."""
    return picture.mode.endswith("A") or "transparency" in picture.info


def pixels_of(picture: Any) -> np.ndarray:
    """A picture of PIL as [height, width] or [height, width, 3]. Pixels of 16 bits and
    float pixels keep their values, a palette becomes its colours."""
    if picture.format in ("TIFF", "GIF") and getattr(picture, "n_frames", 1) > 1:
        raise ValueError(
            f"A picture has {picture.n_frames} pages or frames: choose one by "
            "picture.seek(0) and picture.copy(), or stack them as channels."
        )
    if picture.mode in DEEP:
        return np.asarray(picture)
    if is_deep(picture):
        raise ValueError(
            "A picture has colours of 16 bits, of which PIL keeps 8: read it with "
            "another library, and give its arrays to fl.data.arrays."
        )
    if has_transparency(picture):
        darkest, _ = picture.convert("RGBA").getchannel("A").getextrema()
        if darkest < 255:
            raise ValueError(
                f"A picture (mode {picture.mode}) has transparency: leave it out by "
                'picture.convert("RGBA").convert("RGB"), or keep it as a channel by '
                'picture.convert("RGBA") and numpy.asarray, in the data set\'s transform.'
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
                f"{DENSE}, not {values.dtype} with the layout {values.layout}."
            ) from None
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
    return any(hasattr(value, name) for name in ("shape", "getbands", "__array__"))


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    """Arrays of one shape and type as one array."""
    forms = {f"{array.dtype} {list(array.shape)}" for array in arrays}
    if len(forms) > 1:
        pair = " and ".join(sorted(forms)[:2])
        raise ValueError(
            f"Samples have several shapes or types, such as {pair}: bring them to one "
            "size, scale and type first, such as by a transform."
        )
    masked = any(np.ma.isMaskedArray(array) for array in arrays)
    return np.ma.stack(arrays) if masked else np.stack(arrays)


# ---- samples


def samples_of(
    x: Any,
    channels: str | None = None,
    columns: Sequence = (),
    like: np.ndarray | None = None,
) -> np.ndarray:
    """uint8 or finite float32 [n, channels, height, width].

    ``channels`` is "first" or "last", for images whose shape does not show it;
    ``columns`` are the names of features. Float32 has to tell apart values that differ
    on the scale of ``like``, by default that of ``x``."""
    if channels is not None:
        pick(channels, LAYOUTS, "place of channels")
    if hasattr(x, "columns"):
        raise ValueError(
            "Samples are arrays: fl.data.table takes a DataFrame with its target, and "
            "frame.to_numpy() is an array."
        )
    if not (isinstance(x, list | tuple) or _is_array(x)):
        raise ValueError(
            f"Samples are an array, a tensor or a list of these, not {type(x).__name__}."
        )
    x = array_of(x)
    if x.dtype.kind not in "buif":
        raise ValueError(f"{DENSE}, not {x.dtype}.")
    if x.ndim not in (2, 3, 4) or not x.size:
        raise ValueError(
            "Samples are vectors [n, features], grey images [n, height, width], or "
            f"images with channels, {' or '.join(LAYOUTS.values())}, not "
            f"{list(x.shape)}."
        )
    if x.ndim == 4 and (channels or _layout(x.shape)) == "last":
        x = x.transpose(0, 3, 1, 2)
    while x.ndim < 4:
        x = x[:, None]
    if np.ma.is_masked(x):
        place = _place(np.ma.getmaskarray(x), columns)
        raise ValueError(f"Values are masked in {place}: fill or drop them.")
    x = np.ma.getdata(x)
    if x.dtype == np.uint8 or x.dtype == bool:
        return x.astype(np.uint8)  # a copy: the caller may write into theirs
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float32)
    missing = ~np.isfinite(narrow)
    if missing.any():
        raise ValueError(
            "Values are NaN, or infinite in float32, in "
            f"{_place(missing, columns)}: fill or drop them."
        )
    like = x if like is None else like
    wide = x.dtype.itemsize >= 4 and x.dtype != np.float32
    if wide and x.shape[1:] == like.shape[1:]:
        blurred = _blurred(x.astype(np.float64), narrow, like)
        if blurred.any():
            raise ValueError(
                "float32 cannot tell apart the values of "
                f"{_place(blurred, columns)}: subtract the mean first."
            )
    return narrow


def _layout(shape: tuple[int, ...]) -> str:
    """Where the channels of four dimensions are, if only one place can hold those of a
    picture."""
    first = shape[1] in BANDS and min(shape[2:]) > max(BANDS)
    last = shape[3] in BANDS and min(shape[1:3]) > max(BANDS)
    if first == last:
        raise ValueError(
            f"Images {list(shape)} do not show where their channels are: say "
            f"channels='first' for {LAYOUTS['first']}, or channels='last' for "
            f"{LAYOUTS['last']}."
        )
    return "first" if first else "last"


def _blurred(wide: np.ndarray, narrow: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The values that float32 moves by a large share of the spread that their column or
    channel has in ``like``. A spread that is rounding of float64 does not count."""
    axes = (0, 1, 2) if like.shape[1:3] == (1, 1) else (0, 2, 3)
    if like.dtype.kind in "iu":
        spread = np.ptp(like, axes, keepdims=True).astype(np.float64)
        return (spread > 0) & (np.abs(narrow - wide) > PRECISION * spread)
    spread = np.float64(like.max(axes, keepdims=True))
    spread = spread - like.min(axes, keepdims=True)
    varied = spread > 1e-12 * np.abs(wide)
    return varied & (np.abs(narrow - wide) > PRECISION * spread)


def _place(chosen: np.ndarray, columns: Sequence) -> str:
    """The columns of vectors, or the images, that have such values; bool [n, channels,
    height, width]."""
    if chosen.shape[1:3] != (1, 1):
        return f"samples {short(np.flatnonzero(chosen.any((1, 2, 3))).tolist())}"
    positions = np.flatnonzero(chosen.any((0, 1, 2))).tolist()
    return f"columns {short([columns[i] for i in positions] if columns else positions)}"


def check_scale(title: str, x: np.ndarray, other_title: str, other: np.ndarray) -> None:
    """``ValueError`` if two sets of samples differ in shape, type or scale."""
    if x.shape[1:] != other.shape[1:]:
        raise ValueError(
            f"{title} has samples {list(x.shape[1:])}, {other_title} "
            f"{list(other.shape[1:])}."
        )
    lows = [float(part.min()) for part in (x, other)]
    highs = [float(part.max()) for part in (x, other)]
    ends = [max(high, -low) for low, high in zip(lows, highs, strict=True)]
    images = x.shape[1:3] != (1, 1)
    scaled = images and 0 < min(ends) <= 1 and max(ends) > SCALED
    floats = x.dtype == other.dtype == np.float32
    if images and floats and 0 < min(ends) <= 256 and RATIO * min(ends) < max(ends):
        scaled = len(x) > 1
    shifted = images and max(ends) <= SCALED and min(lows) < 0 <= max(lows) < DARK
    if lows[0] >= 0 and len(x) == 1:  # a single bright image of a scale around 0
        shifted = False
    if scaled or shifted or x.dtype != other.dtype:
        raise ValueError(
            f"{title} has samples {x.dtype} from {lows[0]:g} to {highs[0]:g}, "
            f"{other_title} {other.dtype} from {lows[1]:g} to {highs[1]:g}: bring them "
            "to one scale and type first."
        )


# ---- labels and users


def labels_of(y: Any) -> np.ndarray:
    """One label a sample: whole numbers from 0 on, texts or truth values [n]."""
    if not isinstance(y, list | tuple):
        y = array_of(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.dtype.kind in "mM":
            raise ValueError(f"{LABELS}, not {y.dtype}.")
        if y.ndim == 0:
            raise ValueError(f"{LABELS}, not {short(y.item())}.")
        if y.ndim != 1:
            raise ValueError(
                f"Labels are one for each sample, not {list(y.shape)}: y.argmax(1) "
                "makes them of one-hot rows."
            )
        y = y.tolist()
    values = [_plain(label) for label in y]
    _refuse_empty(values, "labels")
    kinds = {str if isinstance(value, str) else type(value) for value in values}
    if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"{LABELS}, not {names}.")
    if kinds == {float}:
        if not all(value.is_integer() for value in values):
            raise ValueError(
                f"{LABELS}, not fractions: the page book/extend.md has a task that "
                "predicts numbers."
            )
        values = [int(value) for value in values]
    labels = np.array(values)
    if labels.dtype.kind not in KINDS or (labels.dtype.kind == "i" and min(values) < 0):
        raise ValueError(f"{LABELS}, not {min(values)} to {max(values)}.")
    return labels


def _plain(value: Any) -> Any:
    """A number of numpy or torch, or the value of an enumeration, as one of Python's."""
    if isinstance(value, Enum):
        return value.value
    return value.item() if getattr(value, "ndim", 1) == 0 else value


def _refuse_empty(values: list, noun: str) -> None:
    """``ValueError`` for missing values and blank texts."""
    empty = [i for i, value in enumerate(values) if _is_empty(value)]
    if empty:
        raise ValueError(
            f"There are no {noun} at positions {short(empty)}: fill them in, drop these "
            "rows, or read a text such as NA as it is, by pandas.read_csv(..., "
            "keep_default_na=False)."
        )


def _is_empty(value: Any) -> bool:
    return not value.strip() if isinstance(value, str) else str(value) in EMPTY


def users_of(users: Any) -> list:
    """A name for each sample: a whole number, a text, or a tuple of these."""
    if isinstance(users, str) or not hasattr(users, "__iter__"):
        raise ValueError(
            f"users= is a name for each sample, not {short(users)}: fl.data.table "
            "takes the name of a column as user=."
        )
    names = users.tolist() if hasattr(users, "tolist") else list(users)
    _refuse_empty(names, "users")
    return [_user_name(name) for name in names]


def _user_name(name: Any) -> Any:
    if isinstance(name, list | tuple):
        return tuple(_user_name(part) for part in name)
    name = _plain(name)
    if isinstance(name, float) and name.is_integer():
        name = int(name)  # pandas has floats in a column with empty cells
    if not isinstance(name, int | str):
        raise ValueError(
            f"Users are whole numbers, texts or tuples of these, not {short(name)}."
        )
    return name


def numbers_of(values: list, order: Sequence = ()) -> tuple[np.ndarray, tuple]:
    """The number of each value, int64 [n], and the values in the order of their
    numbers: in this ``order``, else sorted, or, if values of several kinds cannot be,
    as they first appear."""
    names = list(order or dict.fromkeys(values))
    with suppress(TypeError):
        names = names if order else sorted(names)
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[value] for value in values], np.int64), tuple(names)

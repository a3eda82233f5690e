"""Arrays as a ``Source``: samples with labels, with numbers, sequences of tokens.
(``forms`` makes arrays of tables, files and data sets.)

x is images [n, channels, height, width], [n, height, width, channels] with 1, 3 or 4 channels,
[n, height, width], or vectors [n, features], which become [n, 1, 1, features]; uint8 stays uint8,
other numbers become float32. y is one label a sample: 0, 1, ... or texts, which are numbered in
alphabetical order. ``test`` is a share that is split off, the same whatever the seed of an
experiment, or (x, y), or (x, y, users).
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..arguments import check_value, checked, short
from ..settings import whole_number
from .sources import Source, moments

PADDING = -100  # in place of the label of a position behind the end of a sequence


# ---- samples with one label, with numbers, or a label a position


@checked
def from_arrays(
    x: Any, y: Any, test: Any = 0.2, name: str = "own", users: Any = None, note: str = ""
) -> Source:
    """A data set of arrays, tensors or lists, called ``name`` in histories. ``users``: whose each
    sample is, whole numbers or texts [n]; ``test`` is then a share of every user's samples, else of
    every class.

    Examples
    --------
    >>> import numpy as np
    >>> source = from_arrays(np.zeros((10, 4)), ["a", "b"] * 5)
    >>> source.names, tuple(source.train_x.shape)
    (('a', 'b'), (8, 1, 1, 4))
    """
    train, other = _divided(lambda x, y: (images_of(x), _labels(y)), x, y, users, test)
    labels, names = np.concatenate([train[1], other[1]]), ()
    if labels.dtype.kind == "U":
        kinds, labels = np.unique(labels, return_inverse=True)
        names = tuple(kinds.tolist())
    classes = int(labels.max()) + 1
    if labels.min() == 1:
        warnings.warn("No sample has label 0: of labels 1, 2, ... give y - 1.", stacklevel=2)
    if not 2 <= classes <= len(labels):
        raise ValueError(
            f"Labels are 0 to the number of classes less 1, of at least two classes; {len(labels)} "
            f"samples with {classes} classes are not learned from."
        )
    ys = np.split(labels, [len(train[1])])
    return _source(name, train, other, ys, classes, note=note, names=names)


@checked
def from_numbers(
    x: Any, y: Any, test: Any = 0.2, name: str = "own", users: Any = None, note: str = ""
) -> Source:
    """The same with numbers to be predicted in place of labels: y [n] or, several a sample, [n,
    targets]. A split by "labels" goes by tenths of the first.

    Examples
    --------
    >>> tuple(from_numbers([[1, 2], [3, 4], [5, 6]], [0.5, 1.5, 2.5], test=0.4).train_y.shape)
    (2, 1)
    """
    train, other = _divided(lambda x, y: (images_of(x), _numbers(y)), x, y, users, test)
    more = {"note": note, "labels": tenths(train[1])}
    return _source(name, train, other, (train[1], other[1]), train[1].shape[1], **more)


@checked
def from_tokens(
    x: Any, y: Any = None, test: Any = 0.2, name: str = "own", users: Any = None, note: str = ""
) -> Source:
    """Sequences: x is token ids, 0, 1, ..., [n, length], or rows of different lengths, or texts,
    whose characters are tokens. y is a label for each position [n, length], of which ``PADDING``
    counts for nothing, or one for the sequence [n]; without y the label of a position is the next
    token, and of texts y is how each goes on.

    Examples
    --------
    >>> source = from_tokens(["abba", "ab"], test=(["ba"], None))
    >>> source.train_x.tolist(), source.train_y.tolist(), source.names
    ([[0, 1, 1], [0, 1, 0]], [[1, 1, 0], [1, -100, -100]], ('a', 'b'))
    """
    parts = [[x, y], [*test]] if isinstance(test, tuple | list) else [[x, y]]
    for part in parts:  # texts with how they go on are one text each
        both = part[:2] if len(part) > 1 and part[1] is not None else [(None,)]
        if all(isinstance(text, str) for column in both for text in column):
            part[:2] = [a + b for a, b in zip(*both, strict=True)], None
    rows = [row for part in parts for row in part[0] if hasattr(row, "__len__")]
    names = tuple(sorted(set().union(*(row for row in rows if isinstance(row, str)))))
    ids, width = {letter: i for i, letter in enumerate(names)}, max(map(len, rows), default=0)

    def read(x, y):
        tokens = _tokens([[ids[c] for c in r] if isinstance(r, str) else r for r in x], width)
        if y is None:
            return tokens[:, :-1].clip(0), tokens[:, 1:]
        y = _labels(y, dim=(1, 2))
        if y.shape[1:] not in ((), (width,)):
            raise ValueError(f"Sequences of {width} tokens cannot have labels {list(y.shape)}.")
        return tokens.clip(0), y

    (x, y), *given = parts
    train, other = _divided(read, x, y, users, given[0] if given else test)
    more: dict[str, Any] = {"note": note, "names": names}
    if train[1].ndim == 2:
        whose = np.zeros(len(train[1])) if train[2] is None else train[2]
        more["labels"] = np.unique(whose, return_inverse=True)[1]  # which a split goes by
    ys = train[1], other[1]
    return _source(name, train, other, ys, 1 + max(map(np.max, ys)), **more)


def from_texts(
    texts: Any, users: Any = None, length: int = 80, test: Any = 0.2, name: str = "own"
) -> Source:
    """Texts, or one, of which each character is to be foreseen from those before it: cut into
    sequences of that ``length``. The texts of a user are one, in their order.

    Examples
    --------
    >>> source = from_texts(["to be ", "or not ", "to be"], ["a", "b", "a"], length=4, test=0.3)
    >>> source.users.tolist(), source.test_users.tolist()
    (['a', 'a', 'b'], ['a', 'b'])
    """
    whole_number("length", length)
    texts = [texts] if isinstance(texts, str) else list(texts)
    if users is not None:
        together: dict[Any, list[str]] = {}
        for user, text in zip(users, texts, strict=True):
            together.setdefault(user, []).append(text)
        users, texts = [*together], ["\n".join(lines) for lines in together.values()]
        if short_of := [user for user, text in zip(users, texts, strict=True) if len(text) < 2]:
            raise ValueError(f"Users have texts of at least two letters, unlike {short(short_of)}.")
    starts = [range(0, len(text) - 1, length) for text in texts]
    pieces = [t[i : i + length + 1] for t, at in zip(texts, starts, strict=True) for i in at]
    owners = None if users is None else np.repeat(users, [*map(len, starts)])
    return from_tokens(pieces, None, test, name, owners)


def tenths(y: np.ndarray) -> np.ndarray:
    """The tenth, 0 to 9, that each row's first number belongs to."""
    return np.digitize(y[:, 0], np.quantile(y[:, 0], np.arange(1, 10) / 10), right=True)


def _divided(read: Callable, x: Any, y: Any, users: Any, test: Any) -> tuple[tuple, tuple]:
    """Samples, targets and users, to train and to test; ``read`` makes arrays of the first two."""
    train = _columns(read, x, y, users)
    if isinstance(test, tuple | list) and len(test) in (2, 3):
        other = _columns(read, *test)
        for part, a, b in zip(("samples", "labels", "users"), train, other, strict=True):
            kinds = {(c.dtype.kind, c.shape[1:]) for c in (a, b) if c is not None}
            if b is not None and (a is None or len(kinds) > 1):
                raise ValueError(f"The test set's {part} are not of the kind of the others.")
    else:
        alike = train[1] if train[1].ndim == 1 else np.zeros(len(train[1]))
        chosen = split_off(alike if users is None else train[2], test)
        other = tuple(None if a is None else a[chosen] for a in train)
        train = tuple(None if a is None else a[~chosen] for a in train)
    if not len(train[0]) or not len(other[0]):
        counts = f"{len(train[0])} samples to train and {len(other[0])} to test"
        raise ValueError(f"{counts} are too few.")
    return train, other


def _source(name: str, train: tuple, other: tuple, ys: Sequence, classes: int, **more) -> Source:
    arrays = train[0], ys[0], other[0], ys[1]
    x, y, test_x, test_y = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
    mean, std = ((0.0,), (1.0,)) if x.dim() == 2 else _statistics(x)
    more |= {"users": train[2], "test_users": other[2]}
    return Source(name, x, y, test_x, test_y, mean, std, int(classes), **more)


# ---- columns that can be learned from


def images_of(x: Any) -> np.ndarray:
    """uint8 or finite float32 [n, channels, height, width]."""
    names = list(getattr(x, "columns", ()))  # of a table of pandas
    if texts := [name for name in names if x[name].dtype.kind not in "buif"]:
        raise ValueError(
            f"Samples are numbers, unlike the columns {short(texts)}: leave them out, or make "
            "numbers of them (pandas.get_dummies)."
        )
    x = _numpy(x.to_numpy(float, na_value=np.nan) if names else x)
    if x.dtype.kind not in "buif":
        texts = " (texts are for fl.tasks.sequences)" * (x.dtype.kind == "U")
        raise ValueError(f"Samples are numbers, not {x.dtype}{texts}.")
    if x.dtype.kind == "b":
        x = x.astype(np.uint8)
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, x.shape[3]):
        x = x.transpose(0, 3, 1, 2)
    while x.ndim in (2, 3):
        x = x[:, None]
    if x.ndim != 4 or not x.size:
        raise ValueError(
            "Samples are images [n, channels, height, width], [n, height, width, channels] or "
            f"[n, height, width], or vectors [n, features], not {list(x.shape)}."
        )
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            columns = np.flatnonzero(~np.isfinite(x).all((0, 1, 2))) if x.shape[2] == 1 else ()
            where = f" in columns {short([names[i] if names else int(i) for i in columns])}"
            raise ValueError(
                "Samples hold NaN, or numbers that are infinite in float32"
                f"{where if len(columns) else ''}."
            )
    return x


def _labels(y: Any, dim: tuple[int, ...] = (1,)) -> np.ndarray:
    """int64 or texts [n]; where they may be labels of positions, int64 [n, length]."""
    y = _numpy(y)
    if y.ndim == 2 and y.shape[1] == 1 and 2 not in dim:
        y = y[:, 0]
    if y.dtype.kind == "O" and all(isinstance(label, str) for label in y.flat):
        y = y.astype(str)
    if y.dtype.kind == "U" and y.ndim == 1 and 2 not in dim:
        return y
    whole = y.dtype.kind in "biu" or (y.dtype.kind == "f" and (y == np.floor(y)).all())
    if y.ndim not in dim or not whole:
        raise ValueError(
            "Labels are one whole number or text for each sample, not "
            f"{y.dtype} {list(y.shape)}"
            + (" (one-hot?)." if y.ndim == 2 else ".")
            + " Numbers are for fl.tasks.regression." * (y.dtype.kind == "f" and y.ndim == 1)
        )
    real = y[y != PADDING] if y.ndim == 2 else y
    if len(real) and not 0 <= real.min() <= real.max() < 2**31:
        raise ValueError(f"Labels are 0, 1, 2, ..., not {real.min()} to {real.max()}.")
    return y.astype(np.int64)


def _numbers(y: Any) -> np.ndarray:
    """Finite float32 [n, targets]."""
    y = _numpy(y)
    y = y[:, None] if y.ndim == 1 else y
    if y.ndim != 2 or y.dtype.kind not in "buif":
        raise ValueError(
            "Targets are one number for each sample, or several [n, targets], not "
            f"{y.dtype} {list(y.shape)}."
        )
    with np.errstate(over="ignore"):
        y = y.astype(np.float32)
    if not np.isfinite(y).all():
        raise ValueError("Targets hold NaN, or numbers that are infinite in float32.")
    return y


def _tokens(rows: Any, width: int) -> np.ndarray:
    """int64 [n, width] of rows of whole numbers, with ``PADDING`` behind those that are shorter."""
    tokens = np.full((len(rows), width), PADDING)
    for row, given in zip(tokens, map(_numpy, rows), strict=True):
        if given.ndim != 1 or (len(given) and (given.dtype.kind not in "iu" or given.min() < 0)):
            raise ValueError(
                "Sequences are texts, or token ids, 0, 1, 2, ..., [n, length], not "
                f"{given.dtype} {[len(rows), *given.shape]}."
            )
        row[: len(given)] = given
    if width < 2:
        raise ValueError(f"Sequences have at least two tokens, not {width}.")
    return tokens


def _columns(read: Callable, x: Any, y: Any, users: Any = None) -> tuple:
    """Samples, labels and users (whole numbers or texts [n], or None) that fit together."""
    x, y = read(x, y)
    users = None if users is None else np.array(_numpy(users).tolist())
    for part, column in (("labels", y[:, 0] if y.ndim == 2 else y), ("users", users)):
        if column is not None and column.shape != (len(x),):
            raise ValueError(f"{len(x)} samples cannot have {part} {list(column.shape)}.")
    return x, y, users


def _numpy(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        try:
            return values.detach().cpu().numpy()
        except (TypeError, NotImplementedError):  # sparse, bfloat16, quantised, without data
            raise ValueError(
                "Samples are dense tensors of numbers that numpy has, such as x.to_dense().float() "
                f"makes them, not {values.dtype} with the layout {values.layout}."
            ) from None
    if hasattr(values, "toarray"):
        raise ValueError(
            f"Samples are dense arrays: give x.toarray(), not a {type(values).__name__}."
        )
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError("Samples are not all of one shape: resize them.") from None


def _statistics(x: torch.Tensor) -> tuple:
    """Mean and standard deviation, 1 where a channel or feature is constant."""
    mean, std = moments(x)
    return mean, tuple(s or 1.0 for s in std)


def split_off(groups: np.ndarray, test: Any) -> np.ndarray:
    """Which samples are for the test: of every group that share, and never all of them."""
    check_value("test", test, float)
    if not 0 < test < 1:
        raise ValueError(f"test is a share above 0 and below 1, or (x, y), not {test!r}.")
    chosen, random = np.zeros(len(groups), bool), np.random.RandomState(0)
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    for members in np.split(np.argsort(group, kind="stable"), np.cumsum(counts)[:-1]):
        members = random.permutation(members)
        chosen[members[: min(int(len(members) * test + 0.5), len(members) - 1)]] = True
    return chosen

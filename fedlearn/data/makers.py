"""One's own data: four makers, each for one form, which give a ``Source``.

``arrays`` takes samples, ``clients`` what each client holds, ``dataset`` a map-style
data set of torchvision, PyTorch or Hugging Face, and ``table`` a DataFrame of pandas.
Nothing is guessed among these: ``advise`` says which maker fits data that came without
one."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from .. import extensions
from ..errors import extra, pick, short
from . import sources
from .sources import Source, moments
from .values import (
    DEEP,
    array_of,
    check_kind,
    check_scale,
    is_colour,
    is_wide,
    labels_of,
    numbered,
    samples_of,
    user_numbers,
    users_of,
)

PARTS = "train training test testing val valid validation dev".split()  # no client's
ATTEMPTS = 32  # items that are read twice, to find transforms that draw


@dataclass
class Part:
    """Samples with labels: those to train, those to test, or a client's."""

    x: np.ndarray
    y: np.ndarray
    users: list | None = None
    names: tuple = ()  # of the classes, in their order, if that is known

    def __post_init__(self) -> None:
        for noun, column in (("labels", self.y), ("users", self.users)):
            if column is not None and len(column) != len(self.x):
                raise ValueError(
                    f"There are {len(self.x)} samples, but {len(column)} {noun}."
                )


# ---- the makers


def arrays(
    x: Any,
    y: Any,
    test: Any = 0.2,
    users: Any = None,
    channels: str | None = None,
    name: str = "own",
    note: str = "",
) -> Source:
    """Samples with a label each, as arrays, tensors or lists.

    Parameters
    ----------
    x
        Vectors [n, features], grey images [n, height, width], or images with channels.
    y
        Whole numbers from 0 on, texts or truth values [n]. ``task.predict`` gives them
        back.
    test
        A share of the samples of every class (of every user, where these are named),
        which does not depend on a task's seed; or (x, y) or (x, y, users).
    users
        Whose each sample is: whole numbers, texts or tuples [n]. Every user is then a
        client.
    channels
        "first" for [n, channels, height, width], "last" for [n, height, width,
        channels].
    name, note
        What histories call the data, and what they say besides.

    Returns
    -------
    Source
        What ``fl.tasks.classification`` takes.

    Raises
    ------
    ValueError
        For values that are missing, and for what is not sure.

    Examples
    --------
    >>> import numpy as np
    >>> data = arrays(np.zeros((10, 4)), ["a", "b"] * 5)
    >>> data.names, tuple(data.train_x.shape)
    (('a', 'b'), (8, 1, 1, 4))
    """
    train = Part(
        samples_of(x, channels),
        labels_of(y),
        None if users is None else users_of(users),
    )
    if _is_pair(test, 3):
        whose = users_of(test[2]) if len(test) == 3 else None
        test = Part(samples_of(test[0], channels), labels_of(test[1]), whose)
    return _source(name, train, test, note=note, channels=channels)


def clients(
    data: Any,
    test: Any = 0.2,
    channels: str | None = None,
    keys: tuple | None = None,
    name: str = "own",
    note: str = "",
) -> Source:
    """What each client holds.

    Parameters
    ----------
    data
        A list, or a dictionary by the clients' names, of (x, y) or of map-style data
        sets. Clients are numbered in this order.
    test
        A share of every client's samples; or (x, y) or a map-style data set, which is
        nobody's.
    channels, name, note
        As of ``arrays``.
    keys
        As of ``dataset``.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.zeros((20, 4)), np.arange(20) % 2
    >>> data = clients({"ward 3": (x[:12], y[:12]), "ward 1": (x[12:], y[12:])})
    >>> data.user_names, data.users.tolist().count(0)
    (('ward 3', 'ward 1'), 10)
    """
    if not isinstance(data, Mapping | list) or not len(data):
        raise ValueError(
            "Clients are a list or a dictionary of what each holds, such as [(x, y), "
            f"(x, y)], not {advise(data)}"
        )
    entries = data if isinstance(data, Mapping) else dict(enumerate(data))
    texts = [name for name in entries if isinstance(name, str)]
    wrong = [name for name in texts if name.strip().lower() in PARTS]
    if wrong:
        raise ValueError(
            f"{short(wrong)} are parts of a data set, not clients: the makers take a "
            "test set as test=."
        )
    names = users_of(entries)
    parts: list[Part] = []
    reference = 0  # the client with the largest value so far
    for client, entry in zip(names, entries.values(), strict=True):
        title = f"Client {client!r}"
        try:
            part = _entry(entry, channels, keys)
        except ValueError as error:
            raise ValueError(f"{title}: {error}") from error
        parts.append(part)
        largest = parts[reference].x
        check_scale(title, part.x, f"client {names[reference]!r}", largest)
        if part.x.max() > largest.max():
            reference = len(parts) - 1
        check_kind(title, part.y, f"client {names[0]!r}", parts[0].y)
    users = []
    for client, part in zip(names, parts, strict=True):
        users += [client] * len(part.y)
    train = Part(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        users,
        _common_names(parts),
    )
    if not _is_share(test):
        test = _entry(test, channels, keys)
    return _source(name, train, test, names, note=note, channels=channels)


def dataset(
    train: Any,
    test: Any = 0.2,
    users: Any = None,
    keys: tuple | None = None,
    channels: str | None = None,
    name: str = "own",
    note: str = "",
) -> Source:
    """A map-style data set: it has a length, and ``train[i]`` is an image and its
    label. So are those of torchvision and of PyTorch, and with ``keys`` those of
    Hugging Face.

    Parameters
    ----------
    train, test
        Such data sets; ``test`` may be a share of ``train``.
    users, channels, name, note
        As of ``arrays``.
    keys
        Where an item has its image and its label, unless it is (image, label):
        keys=("image", "label").

    Raises
    ------
    ValueError
        For a transform that draws: every run would have other images.

    Examples
    --------
    >>> import numpy as np
    >>> data = dataset([(np.full((8, 8), i), i % 2) for i in range(10)])
    >>> len(data.train_y), len(data.test_y)
    (8, 2)
    """
    whole = _items(train, channels, keys)
    if users is not None:
        whole = Part(whole.x, whole.y, users_of(users), whole.names)
    if not _is_share(test):
        test = _items(test, channels, keys)
    return _source(name, whole, test, note=note, channels=channels)


def table(
    frame: Any,
    target: Any,
    user: Any = None,
    test: Any = 0.2,
    name: str = "table",
    note: str = "",
) -> Source:
    """A DataFrame of pandas, which has read the file.

    Parameters
    ----------
    frame
        A column for each feature, all of numbers, one for the target, maybe one for the
        user.
    target
        The name of the column of labels.
    user
        The name of the column that says whose each row is. Every user is then a client.
    test
        A share, as of ``arrays``, or a DataFrame with the same columns, which go by
        their names.
    name, note
        As of ``arrays``.

    Examples
    --------
    >>> import pandas
    >>> columns = {"age": range(10), "ill": ["no", "yes"] * 5, "ward": [1, 2] * 5}
    >>> frame = pandas.DataFrame(columns)
    >>> data = table(frame, target="ill", user="ward")
    >>> data.columns, data.user_names
    (('age',), (1, 2))
    """
    check_frame(frame)
    columns = dict.fromkeys(frame.columns)
    pick(target, columns, "column of the table")
    if user is not None:
        pick(user, columns, "column of the table")
    features = [column for column in columns if column not in (target, user)]
    _check_header(frame)
    train = _rows(frame, features, target, user)
    if not _is_share(test):
        check_frame(test)
        pick(target, dict.fromkeys(test.columns), "column of the test table")
        test = _rows(test, features, target, user if user in test.columns else None)
    return _source(name, train, test, note=note, columns=tuple(features))


# ---- tables


def check_frame(frame: Any) -> None:
    """``ValueError`` unless it is a DataFrame of pandas with rows and with different
    names."""
    if not (hasattr(frame, "iloc") and hasattr(frame, "columns")):
        raise ValueError(f"A table is a DataFrame of pandas, not {advise(frame)}")
    names = [*frame.columns]
    if len(set(names)) < len(names) or not len(frame):
        raise ValueError(
            f"A table has rows, and columns with different names, not {len(frame)} "
            f"rows with the columns {short(names)}."
        )


def _check_header(frame: Any) -> None:
    """``ValueError`` for names that a file's first row, or pandas' own row numbers,
    have become."""
    if "Unnamed: 0" in frame.columns:
        raise ValueError(
            "The column 'Unnamed: 0' has the rows' numbers: pandas.read_csv(..., "
            "index_col=0) leaves them out."
        )
    texts = [column for column in frame.columns if isinstance(column, str)]
    numbers = [number for text in texts for number in _numbers(text)]
    fractions = any(isfinite(number) and number % 1 for number in numbers)
    places = [
        float(i) for i in range(frame.shape[1])
    ]  # as pandas writes unnamed columns
    if fractions or (len(numbers) == len(places) and numbers != places):
        raise ValueError(
            f"The columns' names are numbers, {short([*frame.columns])}: has the file "
            "a header? If not, pandas.read_csv(..., header=None) keeps its first row; "
            "if so, frame.rename(columns='x{}'.format) makes names of them."
        )


def _numbers(name: str) -> list[float]:
    """The number that a name looks like, or none."""
    try:
        return [float(name)]
    except ValueError:
        first, _, copy = name.rpartition(".")  # pandas writes 0.5.1 for a second 0.5
        return _numbers(first) if copy.isdigit() else []


def columns_of(frame: Any, features: Sequence) -> np.ndarray:
    """The columns of features as float64 [n, features], by their names."""
    lacking = [c for c in features if c not in frame.columns]
    if lacking:
        raise ValueError(f"The table has no columns {short(lacking)}.")
    kinds = {c: getattr(frame[c].dtype, "kind", "O") for c in features}
    texts = [c for c in features if kinds[c] not in "buif"]
    if texts:
        first = frame[texts[0]].astype(str)
        remedy = "leave them out, or make numbers of them (pandas.get_dummies, astype)"
        if first.str.fullmatch(r"[-+\d\s.]*\d,\d[\d.,]*").any():
            remedy = (
                "they have decimal commas or thousands, which pandas.read_csv(..., "
                "decimal=',') or thousands=',' reads"
            )
        raise ValueError(
            f"Features are numbers, unlike the columns {short(texts)}: {remedy}."
        )
    return frame[[*features]].to_numpy(float, na_value=np.nan)


def _rows(frame: Any, features: list, target: Any, user: Any) -> Part:
    if not features:
        raise ValueError(f"The table has no column of features besides {target!r}.")
    x = samples_of(columns_of(frame, features), columns=features)
    y = labels_of(_filled(frame, target))
    return Part(x, y, None if user is None else users_of(_filled(frame, user)))


def _filled(frame: Any, column: Any) -> list:
    """The values of a column without gaps."""
    rows = np.flatnonzero(frame[column].isna()).tolist()
    if rows:
        raise ValueError(
            f"The column {column!r} has nothing in rows {short(rows)}: drop these "
            "rows, or read a text such as NA as it is, by pandas.read_csv(..., "
            "keep_default_na=False)."
        )
    return frame[column].tolist()


# ---- data sets


def _items(dataset: Any, channels: str | None, keys: tuple | None) -> Part:
    """The items of a map-style data set."""
    sized = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    kinds = str | tuple | Mapping | np.ndarray | torch.Tensor | IterableDataset
    if not sized or isinstance(dataset, kinds) or hasattr(dataset, "columns"):
        raise ValueError(
            "A map-style data set has a length, and dataset[i] is an image and its "
            f"label, unlike {advise(dataset)}"
        )
    for inner in _inside(dataset):
        _check_files(inner)
    try:
        pairs = [_pair(dataset[i], keys) for i in range(len(dataset))]
        again = [_pair(dataset[i], keys) for i in range(min(ATTEMPTS, len(dataset)))]
    except (LookupError, TypeError, AttributeError, NotImplementedError) as error:
        raise ValueError(
            "A map-style data set has a length, and dataset[i] is an image and its "
            f"label: {type(dataset).__name__} gives {type(error).__name__} "
            f"({short(str(error))})."
        ) from error
    if not pairs:
        raise ValueError(f"{type(dataset).__name__} has no items.")
    for i, pair in enumerate(again):
        first = pairs[i]
        if not (_equal(pair[0], first[0]) and _equal(pair[1], first[1])):
            raise ValueError(
                f"Item {i} of {type(dataset).__name__} differs when it is read twice: "
                'leave the random transform out, and say augment=("crop", "flip") to '
                "the task."
            )
    x = samples_of([array_of(image) for image, _ in pairs], channels)
    y = labels_of([label for _, label in pairs])
    names = _class_names(dataset, keys)
    if names and y.dtype.kind == "i":
        if y.max() >= len(names):
            raise ValueError(f"Label {y.max()} has no name among {short(names)}.")
        return Part(x, np.array(names)[y], names=names)
    return Part(x, y)


def _pair(item: Any, keys: tuple | None) -> tuple:
    """The image and the label of an item."""
    if keys is not None:
        image, label = keys
        return item[image], item[label]
    if not isinstance(item, tuple | list) or len(item) != 2:
        names = f" with {short([*item])}" if isinstance(item, Mapping) else ""
        raise ValueError(
            f"An item is (image, label), not a {type(item).__name__} of "
            f'{len(item)}{names}: keys=("image", "label"), or keys=(0, 1), says where '
            "they are."
            if hasattr(item, "__len__")
            else f"An item is (image, label), not {short(item)}."
        )
    return item[0], item[1]


def _equal(value: Any, other: Any) -> bool:
    one, two = array_of(value), array_of(other)
    return np.array_equal(one, two) or one.tobytes() == two.tobytes()


def _inside(dataset: Any) -> list:
    """The data sets that PyTorch's Subset and ConcatDataset are made of."""
    if hasattr(dataset, "classes"):
        return [dataset]
    if hasattr(dataset, "datasets"):
        return [inner for part in dataset.datasets for inner in _inside(part)]
    return _inside(dataset.dataset) if hasattr(dataset, "dataset") else [dataset]


def _labelled(dataset: Any) -> list:
    """Likewise, but not what a wrapper of one's own holds: it may have other labels."""
    if isinstance(dataset, ConcatDataset):
        return [inner for part in dataset.datasets for inner in _labelled(part)]
    return _labelled(dataset.dataset) if isinstance(dataset, Subset) else [dataset]


def _class_names(dataset: Any, keys: tuple | None) -> tuple:
    """The names that torchvision or Hugging Face have for the labels 0, 1, ..."""
    names = set()
    for inner in _labelled(dataset):
        texts = getattr(inner, "classes", ())
        if keys is not None:
            feature = (getattr(inner, "features", None) or {}).get(keys[1])
            texts = getattr(feature, "names", texts)
        if not isinstance(texts, list | tuple):
            texts = ()
        if getattr(inner, "target_transform", None):
            texts = ()  # names of other labels than the items'
        names.add(tuple(map(str, texts)))
    if len(names) > 1:
        raise ValueError(
            f"The parts of a data set have different classes, {short(sorted(names))}: "
            "fl.data.clients matches those of several data sets by their names."
        )
    return names.pop()


def _check_files(dataset: Any) -> None:
    """Of a folder of images that torchvision's loader reads, which makes RGB of all:
    what is lost is refused (16 bits) or warned of (transparency)."""
    loader = getattr(getattr(dataset, "loader", None), "__name__", "")
    if loader not in ("default_loader", "pil_loader", "open"):
        return
    with extra("data"):
        from PIL import Image

    transparent = []
    for path, _ in dataset.samples:
        with Image.open(path) as picture:
            if is_wide(picture) and is_colour(picture):
                raise ValueError(f"{path}: {DEEP}")
            if is_wide(picture) and loader != "open":
                raise ValueError(
                    f"{path} has 16 bits or more a pixel, of which torchvision's "
                    "loader keeps 8: say loader=PIL.Image.open to its data set."
                )
            clear = "A" in picture.mode or "transparency" in picture.info
            if clear and loader != "open":
                transparent.append(path)
    if transparent:
        files = short(transparent)
        warnings.warn(
            f"torchvision's loader leaves out the transparency of {files}: "
            "loader=PIL.Image.open refuses it.",
            stacklevel=4,
        )


# ---- what all makers share


def _entry(entry: Any, channels: str | None, keys: tuple | None) -> Part:
    """(x, y), or a map-style data set."""
    pair = _is_pair(entry, 2)
    if hasattr(entry[0] if pair else entry, "columns"):
        raise ValueError(
            "A DataFrame is no (x, y): fl.data.table takes one for all clients "
            "(pandas.concat makes it), with user=."
        )
    if not pair:
        return _items(entry, channels, keys)
    x, y = entry
    return Part(samples_of(x, channels), labels_of(y))


def _common_names(parts: list[Part]) -> tuple:
    """The names of classes of several parts, in the order of the first; empty if none
    has any."""
    names = [name for part in parts for name in part.names]
    if names and not all(part.names for part in parts):
        raise ValueError(
            "Labels are all of one kind: some of these data sets have no class names."
        )
    return tuple(dict.fromkeys(names))


def _is_pair(value: Any, largest: int) -> bool:
    """Whether it is (x, y); with ``largest`` 3 maybe (x, y, users)."""
    if isinstance(value, list):
        return len(value) == 2 and hasattr(value[0], "shape")
    return isinstance(value, tuple) and 2 <= len(value) <= largest


def _is_share(value: Any) -> bool:
    return isinstance(value, Real)


def split_off(groups: np.ndarray, test: float) -> np.ndarray:
    """Which samples are for the test: of every group this share, and never all of
    them."""
    if not _is_share(test) or not 0 < test < 1:
        raise ValueError(
            f"test is a share above 0 and below 1, or a test set, not {short(test)}."
        )
    chosen = np.zeros(len(groups), bool)
    random = np.random.RandomState(0)
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    for members in np.split(np.argsort(group, kind="stable"), np.cumsum(counts)[:-1]):
        members = random.permutation(members)
        count = min(int(len(members) * test + 0.5), len(members) - 1)
        chosen[members[:count]] = True
    if not chosen.any():
        raise ValueError(
            f"test={test} of each of {len(counts)} classes or users is less than a "
            "sample: give a test set, test=(x, y)."
        )
    return chosen


def _divided(part: Part, share: float) -> tuple[Part, Part]:
    """What is to train, and this share of every user's samples, else of every class, to
    test."""
    groups = part.y if part.users is None else user_numbers(part.users)[0]
    chosen = split_off(groups, share)
    return _picked(part, ~chosen), _picked(part, chosen)


def _picked(part: Part, chosen: np.ndarray) -> Part:
    users = part.users
    if users is not None:
        users = [users[i] for i in np.flatnonzero(chosen)]
    return Part(part.x[chosen], part.y[chosen], users, part.names)


def _source(
    name: str, train: Part, test: Any, order: Sequence = (), **fields: Any
) -> Source:
    """The data to train and to test. ``order``: of the users, if they are in one."""
    if isinstance(test, Part):
        check_scale("The test set", test.x, "the training set", train.x)
        check_kind("The test set", test.y, "the training set", train.y)
        foreign = sorted({*test.y.tolist()} - {*train.y.tolist()})
        if foreign:
            text = "The test set has classes that no training sample has"
            warnings.warn(f"{text}: {short(foreign)}.", stacklevel=3)
    else:
        train, test = _divided(train, test)
    ys, names = numbered([train.y, test.y], _common_names([train, test]))
    classes = len(names) or 1 + max(int(y.max()) for y in ys)
    if train.users is not None:
        users, user_names = user_numbers(train.users, order)
        fields |= {"users": users, "user_names": user_names}
        if test.users is not None:
            place = {user: i for i, user in enumerate(user_names)}
            fields["test_users"] = np.array(
                [place.get(user, -1) for user in test.users]
            )
    elif test.users is not None:
        raise ValueError(
            "The test set names users, but the training set does not: say users=."
        )
    columns = train.x, ys[0], test.x, ys[1]
    x, y, test_x, test_y = (torch.from_numpy(np.ascontiguousarray(c)) for c in columns)
    mean, std = moments(x)
    return Source(name, x, y, test_x, test_y, mean, std, classes, names=names, **fields)


# ---- data without a maker


def find(data: Any) -> Source:
    """The data that a task is given: what a maker gave, a set by its name, or what the
    function mine.py:name makes. ``ValueError`` names the maker of other data."""
    if isinstance(data, Source):
        return data
    if isinstance(data, str):
        if data in sources.SETS:
            return sources.load(data)
        if ".py:" in data:
            maker = extensions.find(data, {}, "data set")
            extensions.check_call(maker, data, {})
            source = maker()
            if not isinstance(source, Source):
                raise ValueError(
                    f"{data} gives {short(source)}, not what a maker of fl.data gives."
                )
            return source
        if not ("/" in data or "." in data or Path(data).exists()):
            pick(data, sources.SETS, "data set")
    raise ValueError(
        "A task takes the name of a set, or what a maker of fl.data has made, not "
        f"{advise(data)}"
    )


def advise(data: Any) -> str:
    """What such data are, and which maker takes them: the end of a sentence."""
    plain = isinstance(data, str | Path | Real)
    return f"{short(data) if plain else type(data).__name__}: {_maker_of(data)}"


def _maker_of(data: Any) -> str:
    if isinstance(data, str | Path):
        return (
            "a path is read by its own library, as in "
            "fl.data.table(pandas.read_csv(path), target=...), where options of pandas "
            "say what a header, a decimal comma or a text such as NA means, or "
            "fl.data.dataset(torchvision.datasets.ImageFolder(path)); book/own_data.md "
            "has more."
        )
    if isinstance(data, tuple) and data and hasattr(data[0], "columns"):
        data = data[0]
    if hasattr(data, "columns"):
        frame = "frame" if hasattr(data, "iloc") else "frame.to_pandas()"
        return f"fl.data.table({frame}, target=..., user=...) takes a table."
    if isinstance(data, Mapping):
        return (
            "fl.data.clients takes a dictionary of what each client holds, "
            "fl.data.table a pandas.DataFrame of columns, fl.data.dataset the parts of "
            "a data set."
        )
    if isinstance(data, list):
        return (
            "fl.data.clients takes a list of what each client holds, fl.data.dataset a "
            "list of images with their labels, fl.data.arrays samples."
        )
    if isinstance(data, tuple) or hasattr(data, "shape"):
        return "fl.data.arrays(x, y, test=..., users=...) takes samples."
    if hasattr(data, "__iter__") or hasattr(data, "__getitem__"):
        return (
            "fl.data.dataset(train, test) takes a map-style data set, which has a "
            "length and items (image, label); list(...) makes one of a stream."
        )
    return "fl.data.arrays, clients, dataset and table make data."


def samples_like(source: Source, x: Any) -> np.ndarray:
    """New samples as a source has them: on its scale, and columns by their names."""
    if source.columns:
        if not hasattr(x, "iloc"):
            raise ValueError(
                "The data are a table: give a DataFrame with the columns "
                f"{short(source.columns)}."
            )
        surplus = [column for column in x.columns if column not in source.columns]
        if surplus:
            raise ValueError(
                f"The data have no features {short(surplus)}: give "
                "frame[list(task.source.columns)]."
            )
        samples = samples_of(columns_of(x, source.columns), columns=source.columns)
    else:
        samples = samples_of(x, source.channels)
    check_scale(
        "What is to be predicted", samples, "the training set", source.train_x.numpy()
    )
    return samples

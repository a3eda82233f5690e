"""One's own data: four makers, each for one form, which give a ``Source``.

``arrays`` takes samples, ``clients`` the data of each client, ``dataset`` a map-style
data set of torchvision, PyTorch or Hugging Face, and ``table`` a DataFrame of pandas.
Nothing is guessed among these: data that came without a maker are refused, and the
sentence names the makers."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from .. import extensions
from ..errors import pick, short
from . import images
from .images import Source, moments
from .values import (
    DEEP,
    KINDS,
    array_of,
    check_scale,
    cut_to_bytes,
    has_transparency,
    is_deep,
    labels_of,
    numbers_of,
    samples_of,
    users_of,
)

MAKERS = (
    "fl.data.arrays(x, y) takes samples, fl.data.clients([(x, y), ...]) the data of "
    "each client, fl.data.dataset(train, test) map-style data sets, such as ImageFolder "
    "of torchvision, and fl.data.table(frame, target=...) a DataFrame, as "
    "pandas.read_csv(path) and frame.to_pandas() make it"
)
PARTS = "train training test testing val valid validation dev".split()  # no clients
NUMBER = re.compile(r"[-+]?\d*\.?\d+(e[-+]?\d+)?(\.\d+)?")  # 0.5.1: a second 0.5
ATTEMPTS = 256  # items that are read twice, to detect random transforms


@dataclass
class Part:
    """Samples with labels: those to train, those to test, or a client's."""

    x: np.ndarray
    y: np.ndarray
    users: list | None = None
    names: tuple = ()  # of the classes in their order, if the data have it

    def __post_init__(self) -> None:
        for noun, column in (("labels", self.y), ("users", self.users)):
            if column is not None and len(column) != len(self.x):
                raise ValueError(
                    f"There are {len(self.x)} samples, but {len(column)} {noun}."
                )

    def rows(self, chosen: np.ndarray) -> "Part":
        """Those samples for which ``chosen``, bool [n], is true."""
        users = self.users
        if users is not None:
            users = [users[i] for i in np.flatnonzero(chosen)]
        return Part(self.x[chosen], self.y[chosen], users, self.names)


# ---- the makers


def arrays(
    x: Any,
    y: Any,
    test: Any = 0.2,
    users: Any = None,
    channels: str | None = None,
    name: str = "own",
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
        The user of each sample: whole numbers, texts or tuples [n]. Every user is then
        a client.
    channels
        "first" for [n, channels, height, width], "last" for [n, height, width,
        channels].
    name
        The name of the data in histories.

    Returns
    -------
    Source
        What ``fl.tasks.classification`` takes.

    Raises
    ------
    ValueError
        For missing values, and for data that are not clear.

    Examples
    --------
    >>> import numpy as np
    >>> data = arrays(np.zeros((10, 4)), ["a", "b"] * 5)
    >>> data.names, tuple(data.train_x.shape)
    (('a', 'b'), (8, 1, 1, 4))
    """
    train = _samples(x, y, users, channels=channels)
    if isinstance(test, tuple) and len(test) in (2, 3):
        test = _samples(*test, channels=channels)
    return _source(name, train, test, channels=channels)


def clients(
    data: Any,
    test: Any = 0.2,
    channels: str | None = None,
    keys: tuple | None = None,
    name: str = "own",
) -> Source:
    """The data of each client.

    Parameters
    ----------
    data
        A list, or a dictionary by the clients' names, of (x, y) or of map-style data
        sets. Clients are numbered in this order.
    test
        A share of every client's samples; or (x, y) or a map-style data set, which
        belongs to no client.
    channels, name
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
        raise refusal("Clients are a list or a dictionary of the data of each", data)
    entries = data if isinstance(data, Mapping) else dict(enumerate(data))
    words = [set(re.split("[^a-z]+", str(key).lower())) & {*PARTS} for key in entries]
    wrong = [key for key in entries if str(key).strip().lower() in PARTS]
    if all(words) and len(set().union(*words)) >= len(words) > 1:
        wrong = list(entries)  # such as train_set and test_set
    if wrong:
        raise ValueError(
            f"{short(wrong)} are parts of a data set, not clients: the makers take a "
            "test set as test=."
        )
    names = users_of(entries)
    parts: dict[Any, Part] = {}
    for client, entry in zip(names, entries.values(), strict=True):
        try:
            parts[client] = _entry(entry, channels, keys)
        except ValueError as error:
            raise ValueError(f"Client {client!r}: {error}") from error
    largest = max(parts, key=lambda client: parts[client].x.max())
    users = []
    for client, part in parts.items():
        title = f"Client {client!r}"
        check_alike(title, part, f"client {largest!r}", parts[largest])
        users += [client] * len(part.y)
    train = Part(
        np.concatenate([part.x for part in parts.values()]),
        np.concatenate([part.y for part in parts.values()]),
        users,
        _common_names([*parts.values()]),
    )
    if not isinstance(test, Real):
        test = _entry(test, channels, keys)
    return _source(name, train, test, names, channels=channels)


def dataset(
    train: Any,
    test: Any = 0.2,
    users: Any = None,
    keys: tuple | None = None,
    channels: str | None = None,
    name: str = "own",
) -> Source:
    """A map-style data set: it has a length, and ``train[i]`` is an image and its
    label. So are those of torchvision and of PyTorch, and with ``keys`` those of
    Hugging Face.

    Parameters
    ----------
    train, test
        Such data sets; ``test`` may be a share of ``train``.
    users, channels, name
        As of ``arrays``.
    keys
        The keys of the image and of the label in an item, unless it is (image, label):
        keys=("image", "label").

    Raises
    ------
    ValueError
        For a random transform: every run would have other images.

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
    if not isinstance(test, Real):
        test = _items(test, channels, keys)
    return _source(name, whole, test, channels=channels)


def table(
    frame: Any,
    target: Any,
    user: Any = None,
    test: Any = 0.2,
    name: str = "table",
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
        The name of the column with the user of each row. Every user is then a client.
    test
        A share, as of ``arrays``, or a DataFrame with columns of the same names.
    name
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
    _check_header(frame)
    columns = dict.fromkeys(frame.columns)
    for column in [target] if user is None else [target, user]:
        pick(column, columns, "column of the table")
    features = [column for column in columns if column not in (target, user)]
    train = _rows(frame, features, target, user)
    if not isinstance(test, Real):
        check_frame(test)
        pick(target, dict.fromkeys(test.columns), "column of the test table")
        test = _rows(test, features, target, user if user in test.columns else None)
    return _source(name, train, test, columns=tuple(features))


# ---- tables


def check_frame(frame: Any) -> None:
    """``ValueError`` unless it is a DataFrame of pandas with rows and with different
    names."""
    if not (hasattr(frame, "iloc") and hasattr(frame, "columns")):
        raise refusal("A table is a DataFrame of pandas", frame)
    names = list(frame.columns)
    if len(set(names)) < len(names) or not len(frame):
        raise ValueError(
            f"A table has rows, and columns with different names, not {len(frame)} "
            f"rows with the columns {short(names)}."
        )


def _check_header(frame: Any) -> None:
    """``ValueError`` for names that are a file's first row, and for row numbers."""
    texts = [column for column in frame.columns if isinstance(column, str)]
    numbers = [text for text in map(str.strip, texts) if NUMBER.fullmatch(text)]
    places = [str(i) for i in range(len(numbers))]  # pandas writes unnamed columns so
    mostly_numbers = 2 * len(numbers) >= frame.shape[1] and numbers != places
    if "Unnamed: 0" in texts or mostly_numbers:
        raise ValueError(
            f"The columns {short(texts)} have no header: pandas.read_csv(..., "
            "header=None) reads a file without names, index_col=0 a file with row "
            "numbers, and frame.rename(columns='x{}'.format) makes names of numbers."
        )


def _columns(frame: Any, features: Sequence) -> np.ndarray:
    """The columns of features as float64 [n, features], by their names."""
    absent = [column for column in features if column not in frame.columns]
    if absent:
        raise ValueError(f"The table has no columns {short(absent)}.")
    texts = [column for column in features if frame[column].dtype.kind not in "buif"]
    if texts:
        raise ValueError(
            f"Features are numbers, unlike the columns {short(texts)}: read decimal "
            "commas or thousands by pandas.read_csv(..., decimal=',', thousands='.'), "
            "else leave the columns out, or make numbers of them (astype, "
            "pandas.get_dummies)."
        )
    return frame[[*features]].to_numpy(float, na_value=np.nan)


def _rows(frame: Any, features: list, target: Any, user: Any) -> Part:
    if not features:
        raise ValueError(f"The table has no column of features besides {target!r}.")
    y = labels_of(frame[target].tolist())
    users = None if user is None else users_of(frame[user])
    if len(set(map(str, users or ()))) < len(set(users or ())):
        raise ValueError(
            f"The column {user!r} has a user as a number and as a text: read it as text, "
            f"by pandas.read_csv(..., dtype={{{user!r}: str}})."
        )
    return Part(samples_of(_columns(frame, features), columns=features), y, users)


# ---- data sets


def _items(dataset: Any, channels: str | None, keys: tuple | None) -> Part:
    """The items of a map-style data set."""
    sized = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    other = isinstance(dataset, str | tuple | Mapping) or hasattr(dataset, "columns")
    if other or not sized:
        raise refusal(
            "A map-style data set has a length and items (image, label)", dataset
        )
    try:
        pairs = [_pair(dataset[i], keys) for i in range(len(dataset))]
        places = np.linspace(0, len(pairs) - 1, min(ATTEMPTS, len(pairs))).astype(int)
        again = {i: _pair(dataset[i], keys) for i in places.tolist()}
    except (LookupError, TypeError, AttributeError, NotImplementedError) as error:
        raise ValueError(
            "A map-style data set has a length and items (image, label): to read "
            f"{type(dataset).__name__} gives {type(error).__name__} "
            f"({short(str(error))})."
        ) from error
    for i, pair in again.items():
        if any(map(_differs, pair, pairs[i])):
            raise ValueError(
                f"Item {i} of {type(dataset).__name__} differs when it is read twice: "
                'leave the random transform out, and say augment=("crop", "flip") to '
                "the task."
            )
    for inner, _ in _inside(dataset):
        _check_files(inner)
    pixels = array_of([image for image, _ in pairs])
    if pixels.ndim > 2 and pixels.dtype == np.int16 and pixels.min() < 0:
        raise ValueError(
            "Images are int16 with negative values, which torchvision's ToTensor makes "
            "of large values of 16 bits: leave ToTensor out, or give true negative "
            "values as int32."
        )
    part = Part(samples_of(pixels, channels), labels_of([label for _, label in pairs]))
    names = _class_names(dataset, keys)
    if names and part.y.dtype.kind == "i":
        if part.y.max() >= len(names):
            raise ValueError(f"Label {part.y.max()} has no name among {short(names)}.")
        return Part(part.x, np.array(names)[part.y], names=names)
    return part


def _pair(item: Any, keys: tuple | None) -> tuple:
    """The image and the label of an item."""
    if keys is None and not (isinstance(item, tuple | list) and len(item) == 2):
        raise ValueError(
            f'An item is (image, label), not {short(item)}: keys=("image", "label"), or '
            "keys=(0, 1), says where they are."
        )
    place, other = keys or (0, 1)
    image = item[place]
    if isinstance(image, np.ndarray | Tensor):  # the data set may write into it again
        image = np.array(image) if isinstance(image, np.ndarray) else image.clone()
    return image, item[other]


def _differs(value: Any, other: Any) -> bool:
    first, second = array_of(value), array_of(other)
    if first.dtype == object:  # which is refused later
        return False
    return first.tobytes() != second.tobytes()


def _inside(dataset: Any, labelled: bool = True) -> Iterator[tuple[Any, bool]]:
    """The data sets inside wrappers, each with a mark whether the items have its labels:
    PyTorch's wrappers keep labels, others may change them."""
    parts = []
    if not hasattr(dataset, "classes"):
        attributes = getattr(dataset, "__dict__", {}).values()
        parts = [part for part in attributes if isinstance(part, Dataset)]
        parts = getattr(dataset, "datasets", parts)
    if not parts:
        yield dataset, labelled
        return
    labelled = labelled and isinstance(dataset, Subset | ConcatDataset)
    for part in parts:
        yield from _inside(part, labelled)


def _class_names(dataset: Any, keys: tuple | None) -> tuple:
    """The names that torchvision or Hugging Face have for the labels 0, 1, ..."""
    options = set()
    for inner, labelled in _inside(dataset):
        texts = getattr(inner, "classes", ())
        features = getattr(inner, "features", None)
        if keys is not None and isinstance(features, Mapping):
            texts = getattr(features.get(keys[1]), "names", texts)
        changed = not labelled or getattr(inner, "target_transform", None)
        usable = isinstance(texts, list | tuple) and not changed
        texts = tuple(map(str, texts)) if usable else ()
        if len(set(texts)) < len(texts):
            raise ValueError(f"Classes have different names, unlike {short(texts)}.")
        options.add(texts)
    if len(options) > 1:
        raise ValueError(
            f"The parts of a data set have different classes, {short(sorted(options))}: "
            "fl.data.clients matches those of several data sets by their names."
        )
    return options.pop() if options else ()


def _check_files(dataset: Any) -> None:
    """For a folder of images, whose files may hold more than its loader and its
    transform keep: pixels that are cut to 8 bits and indices of a palette are refused,
    and a warning says that transparency is left out."""
    from PIL import Image, UnidentifiedImageError

    loader = getattr(dataset, "loader", None)
    samples = getattr(dataset, "samples", None)
    if not (callable(loader) and isinstance(samples, list)):
        return
    name = getattr(loader, "__name__", "")
    opaque = name in ("default_loader", "pil_loader")  # of torchvision
    checked = set()
    for path, *_ in samples:
        try:
            picture = Image.open(path)
        except (
            UnidentifiedImageError,
            OSError,
            AttributeError,
        ):
            continue  # no file of a picture
        with picture:
            if opaque and has_transparency(picture):
                warnings.warn(
                    "torchvision's loader leaves out the transparency of images: "
                    "loader=PIL.Image.open refuses it.",
                    stacklevel=4,
                )
            deep = is_deep(picture)
            if (deep or picture.mode == "P") and picture.mode not in checked:
                check = _check_depth if deep else _check_palette
                if check(dataset, path, picture):
                    checked.add(picture.mode)


def _check_depth(dataset: Any, path: Any, picture: Any) -> bool:
    """``ValueError`` if a data set cuts pixels of 16 bits. False if this picture cannot
    show it."""
    if picture.mode in DEEP:
        cut = cut_to_bytes(picture)
        if not _differs(picture, cut):
            return False
        whole, copy = _read(dataset, path), _read(dataset, cut)
        if copy is None or not np.array_equal(whole, copy):
            return True
    raise ValueError(
        f"{path} has 16 bits or fractions, of which the loader or the transform keeps 0 "
        "to 255: say loader=PIL.Image.open and scale in the transform, as by "
        '(numpy.asarray(picture) // 257).astype("uint8"), and read colours of 16 bits '
        "with another library."
    )


def _check_palette(dataset: Any, path: Any, picture: Any) -> bool:
    """``ValueError`` if a data set takes indices of a palette for grey pixels."""
    from PIL import Image

    mode = "RGBA" if has_transparency(picture) else "RGB"
    read = _read(dataset, path)
    colours = _read(dataset, picture.convert(mode))
    indices = _read(dataset, Image.fromarray(np.asarray(picture)))
    if read is None or colours is None or indices is None:
        return True
    if np.array_equal(read, colours):
        return True
    if read.shape == colours.shape and not np.array_equal(read, indices):
        return True
    raise ValueError(
        f"{path} has a palette, of which the transform gets the indices: begin it with "
        f'picture.convert("{mode}").'
    )


def _read(dataset: Any, picture: Any) -> np.ndarray | None:
    """What a folder of images gives for a file, or for a copy of a picture; None if its
    loader or its transform refuses the copy."""
    transform = getattr(dataset, "transform", None)
    with TemporaryDirectory() as folder:
        path = picture
        if hasattr(picture, "save"):
            path = str(Path(folder, "copy.tiff"))
            picture.save(path)
        try:
            image = dataset.loader(path)
            return array_of(transform(image) if transform else image)
        except Exception:
            return None


# ---- shared by the makers


def _samples(x: Any, y: Any, users: Any = None, *, channels: str | None) -> Part:
    users = None if users is None else users_of(users)
    return Part(samples_of(x, channels), labels_of(y), users)


def _entry(entry: Any, channels: str | None, keys: tuple | None) -> Part:
    """(x, y), or a map-style data set."""
    pair = isinstance(entry, tuple | list) and len(entry) == 2
    pair = pair and (isinstance(entry, tuple) or hasattr(entry[0], "shape"))
    if hasattr(entry[0] if pair else entry, "columns"):
        raise ValueError(
            "A DataFrame is no (x, y): fl.data.table takes one for all clients "
            "(pandas.concat makes it), with user=."
        )
    if pair:
        return _samples(*entry, channels=channels)
    return _items(entry, channels, keys)


def check_alike(title: str, part: Part, other_title: str, other: Part) -> None:
    """``ValueError`` if two parts differ in the form of samples or the kind of
    labels."""
    check_scale(title, part.x, other_title, other.x)
    kind = KINDS[part.y.dtype.kind]
    other_kind = KINDS[other.y.dtype.kind]
    if kind != other_kind:
        raise ValueError(
            f"{title} has labels that are {kind}, {other_title} {other_kind}: labels "
            "are all of one kind."
        )


def _common_names(parts: list[Part]) -> tuple:
    """The names of classes of several parts, in the order of the first; empty if none
    has any."""
    names = [name for part in parts for name in part.names]
    if names and not all(part.names for part in parts):
        raise ValueError(
            "Labels are all of one kind: some of these data sets have no class names."
        )
    return tuple(dict.fromkeys(names))


def split_off(groups: np.ndarray, test: float) -> np.ndarray:
    """The samples for the test, bool [n]: this share of every group, but never all of
    it."""
    if not isinstance(test, Real) or not 0 < test < 1:
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


def _source(
    name: str, train: Part, test: Any, order: Sequence = (), **fields: Any
) -> Source:
    """The data to train and to test. ``order``: of the users, if the data have one."""
    if isinstance(test, Part):
        check_alike("The test set", test, "the training set", train)
        foreign = sorted({*test.y.tolist()} - {*train.y.tolist()})
        if foreign:
            warnings.warn(
                "The test set has classes that no training sample has: "
                f"{short(foreign)}.",
                stacklevel=3,
            )
    else:
        groups = train.y if train.users is None else numbers_of(train.users)[0]
        chosen = split_off(groups, test)
        test = train.rows(chosen)
        train = train.rows(~chosen)
    labels = [*train.y.tolist(), *test.y.tolist()]
    y, names = numbers_of(labels, _common_names([train, test]))
    classes = len(names)
    if not 2 <= classes < len(labels):
        raise ValueError(
            f"{len(labels)} samples with {classes} classes are not learned from: at "
            "least two classes are needed, and more samples than classes."
        )
    if train.y.dtype.kind == "i" and names == tuple(range(classes)):
        names = ()
    if train.users is not None:
        users, user_names = numbers_of(train.users, order)
        fields |= {"users": users, "user_names": user_names}
        if test.users is not None:
            place = {user: i for i, user in enumerate(user_names)}
            owners = [place.get(user, -1) for user in test.users]
            if max(owners) < 0:
                raise ValueError(
                    f"The test set's users, such as {short(test.users[0])}, are none of the "
                    f"training set's, such as {short(user_names[0])}."
                )
            fields["test_users"] = np.array(owners)
    elif test.users is not None:
        raise ValueError(
            "The test set names users, but the training set does not: say users=."
        )
    x = torch.from_numpy(np.ascontiguousarray(train.x))
    test_x = torch.from_numpy(np.ascontiguousarray(test.x))
    train_y, test_y = torch.from_numpy(y).split([len(train.y), len(test.y)])
    mean, std = moments(x)
    return Source(
        name, x, train_y, test_x, test_y, mean, std, classes, names=names, **fields
    )


# ---- tasks


def find(data: Any) -> Source:
    """The data that a task receives: made by a maker, a set by its name, or made by the
    function mine.py:name."""
    if isinstance(data, str):
        path = "/" in data or "." in data or Path(data).exists()
        if ".py:" in data:
            maker = extensions.find(data, {}, "data set")
            extensions.check_call(maker, data, {})
            data = maker()
        elif data in images.SETS or not path:
            data = images.load(data)
    if not isinstance(data, Source):
        raise refusal("A task takes the name of a set, or what a maker makes", data)
    return data


def refusal(sentence: str, data: Any) -> ValueError:
    """An error for data of another form, which names the makers."""
    plain = isinstance(data, str | Path | Real)
    form = short(data) if plain else type(data).__name__
    return ValueError(f"{sentence}, not {form}: {MAKERS}.")


def samples_like(source: Source, x: Any) -> np.ndarray:
    """New samples as a source has them: on its scale, and columns by their names."""
    train = source.train_x.numpy()
    if source.columns:
        check_frame(x)
        surplus = [column for column in x.columns if column not in source.columns]
        if surplus:
            raise ValueError(
                f"The data have no features {short(surplus)}: give "
                "frame[list(task.source.columns)]."
            )
        x = _columns(x, source.columns)
    samples = samples_of(x, source.channels, source.columns, train)
    check_scale("What is to be predicted", samples, "the training set", train)
    return samples

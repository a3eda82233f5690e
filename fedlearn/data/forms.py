"""The forms in which data lie about: data of each client, tables, data sets in the style of
torchvision or of Hugging Face, folders of images or of LEAF's JSON, ``.csv`` and ``.npz`` files.

``make`` says what becomes of samples and targets: ``from_arrays`` (labels), ``from_numbers`` or
``from_tokens``.
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch

from ..arguments import checked, is_whole, short
from ..errors import DataError, extra, pick
from . import sources
from .arrays import _numpy, from_arrays
from .sources import SETS, Source, folders, images, open_image, reason

TESTS = "test_x", "test_y", "test_users"  # arrays in a file
TARGETS = "target label labels y class".split()  # columns that are it unless another is named
USERS = "users", "user"  # the same of the column that says whose a row is
FILE = re.compile(r"(.+\.(?:csv|tsv))(?::(.+))?", re.IGNORECASE)  # and its target's column
Make = Callable[..., Source]


def read(dataset: Any, users: Any = None, make: Make = from_arrays) -> Source:
    """A ``Source`` of what a task takes. ``users``: whose each sample is, or a table's column."""
    if isinstance(dataset, Source):
        return dataset
    if table := table_of(dataset):
        return _from_table(*table, users, make)
    if isinstance(users, str) and users != "users":
        raise ValueError(
            "clients must be a whole number of at least 1, lists, a column (of a table its name), "
            f'or "users", not {short(users)}.'
        )
    users = None if isinstance(users, str) else users
    if isinstance(dataset, tuple) and len(dataset) == 2:
        if all(map(is_set, dataset)):
            train, test = map(_items, dataset)
            return make(*train, test)
        if all(isinstance(part, tuple) and len(part) == 2 for part in dataset):
            return make(*dataset[0], dataset[1], users=users)
        return make(*dataset, users=users)
    if by_client(dataset):
        return _from_clients(dataset, make)
    if isinstance(dataset, str | Path):
        path, name = Path(dataset).expanduser(), str(dataset)
        if name in SETS or not (path.exists() or path.suffix == ".npz" or "/" in name):
            return sources.load(name)
        if not path.exists():
            raise DataError(f"There is no file or folder {path.absolute()}.")
        places = (path, *path.rglob("*")) if path.is_dir() else (path,)
        return _read(path.resolve(), max(place.stat().st_mtime_ns for place in places), make)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return make(*_items(dataset))
    raise ValueError(
        "A data set is a name, a Source, (x, y), ((x, y), (test x, test y)), [(x, y), ...] with an "
        "entry for each client, a table, a data set in torchvision's style, or the path of a file "
        f"or folder, not {short(dataset)}."
    )


@lru_cache(2)
def _read(path: Path, changed: int, make: Make) -> Source:
    """The data there, where something ``changed`` last at that time."""
    if not path.is_dir():
        return _from_npz(path, make)
    return _from_leaf(path, parts, make) if (parts := _leaf_files(path)) else from_folder(path)


# ---- data of each client -------------------------------------------------------------------------


def is_set(data: Any) -> bool:
    """Whether it is a data set in torchvision's style, and not an array, a list or a table."""
    kinds = str, bytes, list, tuple, range, Mapping, np.ndarray, torch.Tensor
    some = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return some and not isinstance(data, kinds) and not (hasattr(data, "dtype") or is_table(data))


def by_client(data: Any) -> bool:
    """Whether it lists, maybe by names, an (x, y), table or data set for each client; or texts."""
    named = isinstance(data, Mapping)
    entries = list(data.values()) if named else data
    several = isinstance(entries, list) or (isinstance(entries, tuple) and len(entries) > 2)
    if not several or not entries or (named and is_table(data)):
        return False
    return all(map(_of_client, entries)) or (named and all(isinstance(e, str) for e in entries))


def _of_client(entry: Any) -> bool:
    if table_of(entry):
        return True
    if isinstance(entry, tuple | list) and len(entry) == 2:
        x, y = entry
        many = not isinstance(x, str) and hasattr(x, "__len__") and np.shape(y) != ()
        return many and (np.size(y) != 1 or len(x) == 1)  # else an image and its label
    return is_set(entry)


def _from_clients(clients: Any, make: Make) -> Source:
    named = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    pairs, shape = {}, None
    for name, entry in named.items():
        if table := table_of(entry):
            x, y, _ = _parted(*columns_of(*table, None)[:3])
        elif isinstance(entry, str):
            raise ValueError(f"Client {name} has a text: fl.tasks.sequences takes texts.")
        else:
            x, y = _items(entry) if is_set(entry) else entry
        if not len(x) or len(x) != len(y):
            raise ValueError(f"Client {name} has {len(x)} samples and {len(y)} labels.")
        pairs[name] = x if hasattr(x, "columns") else _numpy(x), _numpy(y)
        if (other := pairs[name][0].shape[1:]) != (shape := shape or other):
            raise ValueError(f"Client {name} has samples {list(other)}, others {list(shape)}.")
    xs, ys = zip(*pairs.values(), strict=True)
    if tables := all(hasattr(x, "columns") for x in xs):  # whose columns have names
        import pandas
    x = pandas.concat(xs) if tables else np.concatenate(xs)
    return make(x, np.concatenate(ys), users=np.repeat([*pairs], [*map(len, ys)]))


# ---- tables --------------------------------------------------------------------------------------


def is_table(data: Any) -> bool:
    """Whether it has columns: one of pandas or of Hugging Face, its parts, or a ``.csv`` path."""
    if isinstance(data, Mapping):
        return len(data) > 0 and all(hasattr(part, "column_names") for part in data.values())
    file = isinstance(data, str | Path) and FILE.fullmatch(str(data))
    return bool(file) or hasattr(data, "column_names") or hasattr(data, "columns")


def table_of(data: Any) -> tuple[Any, Any] | None:
    """The table and its target's column that such data are: a table, or (table, "column")."""
    if is_table(data):
        return data, None
    pair = isinstance(data, tuple | list) and len(data) == 2 and is_table(data[0])
    return (
        tuple(data) if pair and isinstance(data[1], str | int) and not is_table(data[1]) else None
    )


def _from_table(table: Any, target: str | None, user: Any, make: Make) -> Source:
    """``user`` is the column that says whose each row is (or such a column itself)."""
    test: Any = 0.2
    if isinstance(table, Mapping):
        test, table = table.get("test", test), pick("train", table, "part of this data set")
    frame, target, user, name = columns_of(table, target, user)
    x, y, users = _parted(frame, target, user)
    if is_table(test):
        test = _parted(*columns_of(test, target, user)[:3])[: 2 + (users is not None)]
    try:
        source = make(x, y, test, name, users)
    except ValueError as error:
        raise ValueError(f"{name}, to predict {target!r}: {error}") from None
    feature = getattr(table, "features", {}).get(target)
    return replace(source, names=tuple(getattr(feature, "names", source.names)))


def frame_of(table: Any) -> Any:
    """A table as one of pandas."""
    with extra("data"):
        import pandas

    if isinstance(table, str | Path):
        path = Path(table).expanduser()
        if not path.exists():
            raise DataError(f"There is no file {path.absolute()}.")
        try:
            with open(path, encoding="utf-8-sig") as file:
                header = file.readline()
            sep = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
            frame = pandas.read_csv(path, sep=sep, skipinitialspace=True)
        except Exception as error:
            raise DataError(f"{path} is no table that can be read ({reason(error)}).") from None
        # the numbers of the rows, as pandas.to_csv writes them
        return frame.drop(columns=[c for c in frame.columns[:1] if c == "Unnamed: 0"])
    if hasattr(table, "column_names"):
        return pandas.DataFrame({name: list(table[name]) for name in table.column_names})
    return table.reset_index(drop=True).set_axis([str(c) for c in table.columns], axis=1)


def columns_of(table: Any, target: str | None, user: Any, usual: Sequence[str] = TARGETS) -> tuple:
    """A table as one of pandas, the names of its columns that hold the target, by default one of
    the ``usual``, and the user (or whose each row is), and its own name; ``ValueError`` names a
    column that is not there, or has nothing in some rows."""
    file = isinstance(table, str | Path) and FILE.fullmatch(str(table))
    name, frame = Path(file[1]).stem if file else "table", frame_of(file[1] if file else table)
    other = f"{file[1]}:COLUMN" if file else '(table, "column")'
    known = dict.fromkeys(frame.columns)
    if not len(frame):
        raise ValueError(f"{name} has no rows.")
    if len(known) < len(frame.columns):
        raise ValueError(f"Two columns of {name} have the same name: {short([*frame.columns])}.")
    if user is None or (isinstance(user, str) and user == "users"):
        user = next((c for c in USERS if c in known), user)
    target = str(target) if is_whole(target) else target or (file[2] if file else None)
    for column in (target, user):
        if isinstance(column, str):
            pick(column, known, f"column of {name}")
    target = target or next((c for c in usual if c in known), None)
    if target is None and usual is not TARGETS:
        raise ValueError(f"{name} has no column {usual[0]!r}: {other} takes another.")
    if target is None:
        target = [c for c in known if isinstance(user, np.ndarray) or c != user][-1]
        text = f"The last column of {name}, {target!r}, is its target"
        warnings.warn(f"{text}: {other} takes another.", stacklevel=2)
    for column in (target, user):
        if isinstance(column, str) and (empty := np.flatnonzero(frame[column].isna()).tolist()):
            rows = short(empty)
            raise ValueError(f"The column {column!r} of {name} has nothing in rows {rows}.")
    return frame, target, user, name


def _parted(frame: Any, target: str, user: Any) -> tuple:
    """Samples, targets, users; the samples are the one column of images or lists, or all others."""
    named = isinstance(user, str)
    x = frame.drop(columns=[target, user] if named else [target])
    if not x.shape[1]:
        raise ValueError(f"The table has no column of samples besides {target!r}.")
    wide = [c for c in x if x[c].dtype.kind == "O" and len(x) and np.ndim(x[c][0])]
    if len(wide) > 1:
        raise ValueError(f"The samples are one column of images or lists, not {wide}.")
    samples = _numpy([_numpy(v) for v in x[wide[0]]]) if wide else x
    return samples, frame[target], frame[user] if named else user


# ---- data sets, folders, files -------------------------------------------------------------------


def _items(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        pairs = [dataset[i] for i in range(len(dataset))]
        x, y = zip(*pairs, strict=True) if pairs else ((), ())
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise ValueError(
            f"A data set has a length, and dataset[i] is an image and its label ({error})."
        ) from None
    return _numpy([_numpy(image) for image in x]), _numpy([_numpy(label) for label in y])


@checked
def from_folder(path: str | Path, size: int | None = None, test: Any = 0.2) -> Source:
    """A folder with a folder of images for each class, or two such folders, ``train`` and ``test``.
    ``size`` is the side of the squares that all images are scaled to; by default they stay as they
    are if they are all of one size, else it is 32."""
    if size is not None and not 1 <= size <= 4096:
        raise ValueError(f"size is a number of pixels from 1 to 4096, not {size!r}.")
    path = Path(path).resolve()
    if not path.is_dir():
        raise DataError(f"There is no folder {path}.")
    parts = [path / "train", path / "test"]
    parts = parts if all(part.is_dir() for part in parts) else [path]
    if new := {c.name for c in folders(parts[-1])} - {c.name for c in folders(parts[0])}:
        raise DataError(f"{parts[1]} has classes that train has not: {short(sorted(new))}.")
    files = [f for part in parts for c in folders(part) for f in images(c)]
    if not files:
        raise DataError(f"{path} has no folders with images in them, one for each class.")
    pictures = [open_image(file) for file in files]
    sizes, note = {image.size for image in pictures}, ""
    if size is None and len(sizes) > 1:
        size, note = 32, f"images of {len(sizes)} sizes, scaled to 32 x 32"
    grey = all(image.mode in ("1", "L", "LA") for image in pictures)
    pictures = [image.convert("L" if grey else "RGB") for image in pictures]
    if size is not None:
        pictures = [image.resize((size, size)) for image in pictures]
    x, y = np.stack(pictures), np.array([file.parent.name for file in files])
    train = np.array([file.parents[1] == parts[0] for file in files])
    if len(parts) == 2:
        test = x[~train], y[~train]
    return from_arrays(x[train], y[train], test, path.name, note=note)


def _from_npz(path: Path, make: Make) -> Source:
    """A file of ``numpy.savez`` with x and y, and maybe test_x and test_y, users and test_users."""
    if not path.is_file() or not is_zipfile(path):
        raise DataError(f"{path} is neither a table (.csv) nor a file of numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:
        why = "an array holds objects" if "allow_pickle" in str(error) else reason(error)
        raise DataError(f"{path} is not a file of numpy.savez that can be read ({why}).") from None
    for key in ("x", "y", *arrays):
        pick(key, arrays, f"array in {path}")
        pick(key, dict.fromkeys(("x", "y", *TESTS, "users")), "array of a data set")
    test = tuple(arrays[key] for key in TESTS if key in arrays)
    if test and not {"test_x", "test_y"} <= arrays.keys():
        raise DataError(f"{path} needs both test_x and test_y for a test set of its own.")
    try:
        return make(arrays["x"], arrays["y"], test or 0.2, path.stem, arrays.get("users"))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _leaf_files(path: Path) -> list[list[Path]]:
    """The JSON files of a folder in LEAF's layout, to train and to test, or all in one."""
    for place in (path, path / "data"):
        for parts in (("train", "test"), ("train",), ("",)):
            files = [sorted((place / part).glob("*.json")) for part in parts]
            if all(files):
                return files
    return []


def _from_leaf(path: Path, files_of: list[list[Path]], make: Make) -> Source:
    """A folder as LEAF (Caldas et al., 2018) writes it: ``train/*.json`` and ``test/*.json``, each
    with ``users`` and, in ``user_data``, their ``x`` and ``y``. Vectors of 784 become the images of
    28 x 28 that they are in FEMNIST; of texts (Shakespeare) y is how each goes on."""
    parts: list[tuple] = []
    for files in files_of:
        xs, ys, users = [], [], []
        for file in files:
            try:
                table = json.loads(file.read_text(encoding="utf-8"))
                for user in table["users"]:
                    x, y = (table["user_data"][user][key] for key in "xy")
                    if len(x) != len(y) or not (x or parts):  # a user may have none to test
                        raise ValueError(f"user {user} has {len(x)} samples and {len(y)} labels")
                    xs += x
                    ys += y
                    users += [str(user)] * len(x)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                why = f"no {error}" if isinstance(error, KeyError) else reason(error)
                raise DataError(f"{file} is not in LEAF's layout ({why}).") from None
        if not xs and not parts:
            raise DataError(f"{path} has no samples of any user.")
        images: Any = xs if xs and isinstance(xs[0], str) else _numpy(xs)
        femnist = np.shape(images)[1:] == (784,)
        parts.append((images.reshape(-1, 28, 28) if femnist else images, ys, users))
    x, y, users = parts[0]
    return make(x, y, parts[1] if parts[1:] else 0.2, path.name, users)

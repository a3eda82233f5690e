"""Pascal VOC and COCO as their makers publish them, whole or in part, for detection and
segmentation.

A picture is scaled in proportion until its longer side has ``size`` pixels, and lies at the top
left of a square; what is left of the square is black, and void where there are masks. Boxes are
scaled with it, so that an IoU stays what it was. What is wrong with a file is said in one sentence
before anything is trained; ``skip=True`` leaves such pictures out and notes how many.
"""

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch

from ..arguments import checked, short
from ..errors import DataError, extra, pick
from . import sources
from .annotations import CROWD, VOID, from_boxes, from_masks, wrong_object
from .scenes import SIDE
from .scenes import named as digits_named
from .sources import Known, Source, locate, open_image, reason

VOC = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
NAMES = {"boxes": ("digits", "voc", "coco"), "masks": ("digits", "voc")}  # that a task knows
PARTS = "train", "val"
SIZE = 160  # pixels, unless asked for otherwise
LARGEST = 2048
MEAN, STD = (127.0,) * 3, (128.0,) * 3  # as the trunk of ``models.trunk`` wants pictures
SLACK = 1.0  # pixels by which rounding may put a box outside its picture
YEARS = {"voc": "2012", "coco": "2017"}
MASKS = 1464, 1449  # of VOC's pictures, to train and to test
# what a damaged or encrypted zip file raises
UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class Item(NamedTuple):
    """A picture's file, the place of its target in messages, how that is read (objects [k, 6] or a
    PIL image of classes), and the picture's size, if it is stated there."""

    picture: Path
    place: str
    read: Callable[[], Any]
    stated: tuple[int, int] | None = None


@checked
def voc(targets: str = "boxes", size: int = SIZE, skip: bool = False) -> Source:
    """VOC 2012's ``train`` to train and its ``val`` to test, with ``targets`` "boxes" or "masks".

    Objects marked difficult count neither for nor against a detector, as in VOC's evaluation, and
    train nothing; borders of masks are void."""
    pick(targets, {"boxes": 1, "masks": 1}, "target of VOC")
    return _load(locate("voc"), "voc", targets, size, skip)


@checked
def coco(size: int = SIZE, skip: bool = False) -> Source:
    """COCO's ``train2017`` and ``val2017``, with boxes. Crowds train nothing, and what is found in
    one counts neither for nor against a detector, as in COCO's evaluation. A picture without an
    object stays: whatever is found in it is wrong."""
    return _load(locate("coco"), "coco", "boxes", size, skip)


def annotated(dataset: Any, targets: str) -> Source:
    """A ``Source`` from what detection or segmentation takes: itself, one of the names, with an
    argument behind a colon, or the first arguments of what makes one. What their losses and metrics
    need is asked for before anything is read."""
    with extra("seeing"):
        for module in ("torchvision", "torchmetrics", "faster_coco_eval"):
            if not find_spec(module):
                raise ModuleNotFoundError(name=module)
    make: Callable = from_boxes if targets == "boxes" else from_masks
    if isinstance(dataset, str):
        name, _, argument = dataset.partition(":")
        pick(name, dict.fromkeys(NAMES[targets]), "data set of this task")
        return (digits_named if name == "digits" else partial(named, name))(targets, argument)
    if isinstance(dataset, tuple) and len(dataset) in (3, 4):
        return make(*dataset)
    if not isinstance(dataset, Source):
        raise ValueError(
            f"A data set is a name ({', '.join(NAMES[targets])}), a Source, or the first arguments "
            f"of {make.__name__}, not {short(dataset)}."
        )
    y = dataset.train_y
    boxes = y.dim() == 3 and y.shape[-1] == 6
    if not (boxes if targets == "boxes" else y.dtype == torch.uint8):
        raise ValueError(
            f"{dataset.name} has no {targets} (fl.data.{make.__name__} makes such a set)."
        )
    return dataset


def named(name: str, targets: str, argument: str) -> Source:
    """What "voc:96" asks for: 96 pixels; "voc:96,skip" leaves out pictures that are wrong."""
    sizes = argument.split(",") if argument else []
    skip = "skip" in sizes
    sizes = [size for size in sizes if size != "skip"] or [str(SIZE)]
    if len(sizes) > 1 or not sizes[0].isdecimal():
        raise ValueError(f"Sizes of {name} are written like '{name}:160', not {argument!r}.")
    size = int(sizes[0])
    return voc(targets, size, skip) if name == "voc" else coco(size, skip)


def known(task: str, dataset: str) -> Known:
    """What is known of the data set that a task means by a name, before it is there."""
    name, _, argument = dataset.partition(":")
    if task == "classification":
        return sources.SETS[dataset]
    masks = task == "segmentation"  # with the background
    if name == "digits":
        return Known(10 + masks, (1, SIDE, SIDE), 2000, 300)
    size = int(argument.partition(",")[0] or SIZE)
    whole = sources.ANNOTATED[name]
    counts = MASKS if masks else (whole.train, whole.test)
    return Known(whole.classes + masks, (3, size, size), *counts)


def count_pictures(task: str, dataset: str) -> tuple[int, int] | None:
    """How many pictures of a set that can be here in part are, to train and to test; None for one
    that is absent, and for all others. No picture is read; ``DataError`` for a damaged copy."""
    name = dataset.partition(":")[0]
    if name not in (*sources.ANNOTATED, *sources.LISTINGS) or not sources.available(name):
        return None
    place = locate(name)
    try:
        if name in sources.LISTINGS:
            return sources.count_listed(name, place)
        with _folder(place, name) as folder:
            if name == "coco":
                train, test = (len([*(folder / f"{p}2017").iterdir()]) for p in PARTS)
                return train, test
            targets = "masks" if task == "segmentation" else "boxes"
            items = (_voc(folder, targets, part) for part in PARTS)
            train, test = (sum(item.picture.exists() for item in part) for part in items)
            return train, test
    except (OSError, ValueError) as error:
        raise _bad(place, f"is no {name} that can be read", error) from None


@contextmanager
def _folder(place: Path, name: str) -> Iterator[Path]:
    """The folder of a data set, or for a while that of a packed subset."""
    if place.suffix != ".zip":
        yield place
        return
    with TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(place) as pack:
                pack.extractall(folder)
        except UNREADABLE as error:
            raise _bad(place, "is no zip file that can be read", error) from None
        yield Path(folder, sources.ANNOTATED[name].places[0])


@lru_cache(4)
def _load(place: Path, name: str, targets: str, size: int, skip: bool) -> Source:
    """The data set whose folder, or packed subset, this is."""
    if not 32 <= size <= LARGEST:
        raise ValueError(f"size is a number of pixels from 32 to {LARGEST}, not {size!r}.")
    with _folder(place, name) as folder:
        return _read(folder, name, targets, size, skip)


def _read(place: Path, name: str, targets: str, size: int, skip: bool) -> Source:
    names: tuple[str, ...] = VOC
    parts, files, counts, wrong = [], [], [], 0
    for part in PARTS:
        if name == "voc":
            items = _voc(place, targets, part)
        else:
            names, items = _coco(place, part, names if parts else ())
        pairs = []
        for item in items:
            try:
                pairs.append(_scaled(item, size, targets, len(names)))
                files.append(str(item.picture))
            except DataError:
                if not skip:
                    raise
                wrong += 1
        if not pairs:
            raise DataError(f"{place} has no picture for {part}.")
        pictures, ys = zip(*pairs, strict=True)
        parts.append((np.stack(pictures), ys))
        counts.append(len(items))
    note = f"{name.upper()} {YEARS[name]}, scaled to {size} pixels"
    whole = sources.ANNOTATED[name]
    train, test = MASKS if targets == "masks" else (whole.train, whole.test)
    if counts != [train, test]:
        images = f"{counts[0]} of {train:,} pictures to train, {counts[1]} of {test:,} to test"
        note = f"a subset of {note}: {images}"
    note += f"; {wrong} that are wrong were left out" if wrong else ""
    more: dict[str, Any] = {"name": f"{name}:{size}", "note": note, "files": files}
    if targets == "boxes":
        empty = name == "coco"
        source = from_boxes(*parts[0], len(names), parts[1], names=names, empty=empty, **more)
    else:
        names = ("background", *names)
        source = from_masks(*parts[0], len(names), parts[1], names=names, empty=True, **more)
    return replace(source, mean=MEAN, std=STD)


def _scaled(item: Item, size: int, targets: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """A square picture uint8 [3, size, size] and what belongs to it."""
    with extra("data"):
        from PIL import Image

    picture = open_image(item.picture).convert("RGB")
    width, height = picture.size
    # a copy may be scaled without its annotations, which shows where sizes are stated
    if item.stated not in (None, picture.size):
        raise DataError(f"{item.place} says {item.stated}, but the picture is {picture.size}.")
    y: Any = (_mask if targets == "masks" else _objects)(item, width, height, classes)
    scale = size / max(width, height)
    inside = max(1, round(scale * width)), max(1, round(scale * height))
    square = np.zeros((size, size, 3), np.uint8)
    square[: inside[1], : inside[0]] = picture.resize(inside, Image.Resampling.BILINEAR)
    x = square.transpose(2, 0, 1)
    if targets == "masks":
        mask = np.full((size, size), VOID, np.uint8)
        mask[: inside[1], : inside[0]] = y.resize(inside, Image.Resampling.NEAREST)
        return x, mask
    ends = np.array([*inside, *inside], np.float32)
    y[:, :4] = (y[:, :4] * ends / [width, height, width, height]).clip(0, ends)
    return x, y


def _objects(item: Item, width: int, height: int, classes: int) -> np.ndarray:
    """float32 [k, 6]; ``DataError`` for a box that is no part of its picture."""
    try:
        objects = np.array(item.read(), float).reshape(-1, 6)
    except Exception as error:
        raise _bad(item.place, "is no annotation that can be read", error) from None
    if problem := wrong_object(objects, width, height, classes, SLACK):
        raise DataError(f"{item.place} has {problem}")
    y = objects.astype(np.float32)
    y[:, :4] = y[:, :4].clip(0, [width, height, width, height])
    return y


def _mask(item: Item, width: int, height: int, classes: int) -> Any:
    mask = item.read()
    kinds = {*np.unique(np.asarray(mask)).tolist()} - {VOID}
    right = mask.mode in ("P", "L") and mask.size == (width, height)
    if not right or not 0 < max(kinds, default=0) <= classes:
        raise DataError(
            f"{item.place} is no mask of {width} x {height} pixels with numbers of classes, 0 "
            f"(background) to {classes}, and an object."
        )
    return mask


def _voc(place: Path, targets: str, part: str) -> list[Item]:
    """torchvision's list of the pictures of VOC's own division."""
    with extra("data"):
        from torchvision.datasets import VOCDetection, VOCSegmentation

    boxes = targets == "boxes"
    kind, read = (VOCDetection, _voc_objects) if boxes else (VOCSegmentation, open_image)
    try:
        listing = kind(place.parent, YEARS["voc"], part)
    except (OSError, RuntimeError) as error:
        raise _bad(place, f"is no VOC {YEARS['voc']} with {targets}", error) from None
    pairs = zip(map(Path, listing.images), listing.targets, strict=True)
    return [Item(picture, target, partial(read, target)) for picture, target in pairs]


def _voc_objects(file: str) -> list:
    """VOC's corners are pixels, from 1, and belong to the box."""
    rows = []
    for item in ElementTree.parse(file).iterfind("object"):
        name = item.findtext("name")
        corners: Any = (item.findtext(f"bndbox/{end}") for end in ("xmin", "ymin", "xmax", "ymax"))
        x1, y1, x2, y2 = map(float, corners)
        if name not in VOC:
            raise ValueError(f"VOC has no class {name!r}")
        ignored = int(item.findtext("difficult") or 0)
        rows.append([x1 - 1, y1 - 1, x2, y2, VOC.index(name), ignored])
    if not rows:
        raise ValueError("no object")
    return rows


def _coco(place: Path, part: str, names: tuple[str, ...]) -> tuple[tuple[str, ...], list[Item]]:
    """The names of the classes (those given, else in the order of their ids, of which COCO's 80
    leave some out) and the pictures with their objects."""
    file, items = place / "annotations" / f"instances_{part}2017.json", []
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad(file, "is no JSON that can be read", error) from None
    try:
        listed = {c["id"]: c["name"] for c in sorted(table["categories"], key=lambda c: c["id"])}
        names = names or tuple(listed.values())
        kinds = {number: names.index(name) for number, name in listed.items() if name in names}
        rows: dict[Any, list] = {image["id"]: [] for image in table["images"]}
        for row in table["annotations"]:
            (x, y, w, h), kind = row["bbox"], kinds.get(row["category_id"], -1)
            crowd = CROWD if row.get("iscrowd") else 0
            rows[row["image_id"]].append([x, y, x + w, y + h, kind, crowd])
        for image in table["images"]:
            path, objects = place / f"{part}2017" / image["file_name"], rows[image["id"]]
            label, stated = f"{file}, image {path.name},", (image["width"], image["height"])
            items.append(Item(path, label, partial(list, objects), stated))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _bad(file, "is no COCO with images, categories and annotations", error) from None
    return names, items


def _bad(file: object, problem: str, error: Exception) -> DataError:
    return DataError(f"{file} {problem} ({reason(error)}).")

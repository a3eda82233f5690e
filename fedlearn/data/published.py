"""Pascal VOC and COCO as their makers publish them, whole or in part, for detection and
segmentation.

A picture is scaled in proportion until its longer side has ``size`` pixels, and lies at the top
left of a square; what is left of the square is black, and void where there are masks. Boxes are
scaled with it, so that an IoU stays what it was. What is wrong with a file is said in one sentence
before anything is trained; ``skip=True`` leaves such pictures out and notes how many.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from ..arguments import checked
from ..errors import DataError, pick
from .annotated import CROWD, VOID, from_boxes, from_masks
from .folders import counted
from .scenes import SIDE
from .sources import ANNOTATED, SETS, Known, Source, available, found

VOC = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
SIZE = 160  # pixels, unless asked for otherwise
LARGEST = 2048
SLACK = 1.0  # pixels by which rounding may put a box outside its picture
# pictures to train and to test, by what is asked for and the year
WHOLE = {
    ("boxes", "2007"): (2501, 2510),
    ("masks", "2007"): (209, 213),
    ("boxes", "2012"): (5717, 5823),
    ("masks", "2012"): (1464, 1449),
    ("boxes", "2017"): (118287, 5000),
}
# what a damaged or encrypted zip file raises
UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
INSIDE = {"voc": "VOCdevkit", "coco": "coco"}  # the folder in a pack


class Item(NamedTuple):
    """A picture's file, its target's, and how the target is read: given the picture's width and
    height, objects [k, 6] or a PIL image of classes."""

    picture: Path
    target: Path
    read: Callable[[int, int], Any]


@checked
def voc(targets: str = "boxes", size: int = SIZE, year: str = "2012", skip: bool = False) -> Source:
    """VOC's ``train`` to train and its ``val`` to test, with ``targets`` "boxes" or "masks".

    Objects marked difficult count neither for nor against a detector, as in VOC's evaluation, and
    train nothing; borders of masks are void."""
    pick(targets, {"boxes": 1, "masks": 1}, "target of VOC")
    pick(year, {year: 1 for _, year in list(WHOLE)[:4]}, "year of VOC here")
    return _load(found("voc"), targets, year, _sized(size), skip)


@checked
def coco(size: int = SIZE, skip: bool = False) -> Source:
    """COCO's ``train2017`` and ``val2017``, with boxes. Crowds train nothing, and what is found in
    one counts neither for nor against a detector, as in COCO's evaluation. A picture without an
    object stays: whatever is found in it is wrong."""
    return _load(found("coco"), "boxes", "2017", _sized(size), skip)


def named(name: str, targets: str, argument: str) -> Source:
    """What the text "voc:96" asks for: pictures of 96 pixels; "voc:96,skip" without those that are
    wrong."""
    words = argument.split(",") if argument else []
    skip = "skip" in words
    sizes = [word for word in words if word != "skip"]
    if len(sizes) > 1 or not all(word.isdecimal() for word in sizes):
        raise ValueError(f"Sizes of {name} are written like '{name}:160', not {argument!r}.")
    size = int(sizes[0]) if sizes else SIZE
    return voc(targets, size, skip=skip) if name == "voc" else coco(size, skip)


def known(task: str, dataset: str) -> Known:
    """What is known of the data set that a task means by a name, before it is there."""
    name, _, argument = dataset.partition(":")
    if task == "classification":
        return SETS[dataset]
    masks = task == "segmentation"  # with the background
    if name == "digits":
        return Known(10 + masks, (1, SIDE, SIDE), 2000, 300)
    size = int(argument.partition(",")[0] or SIZE)
    targets, year = ("masks" if masks else "boxes"), {"voc": "2012", "coco": "2017"}[name]
    return Known(ANNOTATED[name].classes + masks, (3, size, size), *WHOLE[targets, year])


def there(task: str, dataset: str) -> tuple[int, int] | None:
    """How many pictures of a set that can be here in part are, to train and to test; None for one
    that is absent, and for all others. No picture is read; ``DataError`` for a damaged copy."""
    name = dataset.partition(":")[0]
    if name not in (*ANNOTATED, "cinic10", "tiny_imagenet") or not available(name):
        return None
    place = found(name)
    try:
        if name not in ANNOTATED:
            return counted(name, place)
        root: Any = place if place.suffix != ".zip" else zipfile.Path(place, f"{INSIDE[name]}/")
        if name == "coco":
            train, test = (sum(1 for _ in (root / f"{p}2017").iterdir()) for p in ("train", "val"))
            return train, test
        year = root / "VOC2012"
        pictures = {file.name for file in (year / "JPEGImages").iterdir()}
        lists = year / "ImageSets" / ("Segmentation" if task == "segmentation" else "Main")
        train, test = (
            sum(f"{line}.jpg" in pictures for line in (lists / f"{p}.txt").read_text().split())
            for p in ("train", "val")
        )
        return train, test
    except (KeyError, ValueError, *UNREADABLE) as error:
        raise _bad(place, f"is no {name} that can be read", error) from None


def _sized(size: int) -> int:
    if not 32 <= size <= LARGEST:
        raise ValueError(f"size is a number of pixels from 32 to {LARGEST}, not {size!r}.")
    return size


@lru_cache(4)
def _load(place: Path, targets: str, year: str, size: int, skip: bool) -> Source:
    """The data set whose folder, or packed subset, this is."""
    if place.suffix == ".zip":
        with TemporaryDirectory() as folder:
            try:
                with zipfile.ZipFile(place) as pack:
                    pack.extractall(folder)
            except UNREADABLE as error:
                raise _bad(place, "is no zip file that can be read", error) from None
            inside = Path(folder, INSIDE["coco" if year == "2017" else "voc"])
            return _read(inside, targets, year, size, skip)
    return _read(place, targets, year, size, skip)


def _read(place: Path, targets: str, year: str, size: int, skip: bool) -> Source:
    name, whole = ("coco", "COCO") if year == "2017" else ("voc", "VOC")
    names = VOC if name == "voc" else _categories(place)
    parts, files, counts, left_out = [], [], [], 0
    for part in ("train", "val"):
        items = _voc(place, targets, year, part) if name == "voc" else _coco(place, part, names)
        x, ys, count = [], [], 0
        for item in items:
            count += 1
            try:
                picture, y = _scaled(item, size, targets)
            except DataError:
                if not skip:
                    raise
                left_out += 1
                continue
            x.append(picture)
            ys.append(y)
            files.append(os.fspath(item.picture))
        if not x:
            raise DataError(f"{place} has no picture for {part}.")
        parts.append((np.stack(x), ys))
        counts.append(count)
    full = WHOLE[targets, year]
    note = f"{whole} {year}, scaled to {size} pixels"
    if counts != list(full):
        note = (
            f"a subset of {note}: {counts[0]} of {full[0]:,} pictures to train, {counts[1]} of "
            f"{full[1]:,} to test"
        )
    note += f"; {left_out} that are wrong were left out" if left_out else ""
    about: dict[str, Any] = {"name": f"{name}:{size}", "note": note, "files": files}
    (x, ys), test = parts
    if targets == "boxes":
        return from_boxes(x, ys, len(names), test, names=names, empty=name == "coco", **about)
    both = ("background", *names)
    return from_masks(x, ys, len(both), test, names=both, empty=True, **about)


def _scaled(item: Item, size: int, targets: str) -> tuple[np.ndarray, np.ndarray]:
    """A square picture uint8 [3, size, size] and what belongs to it."""
    from PIL import Image

    try:
        with Image.open(item.picture) as file:
            picture = file.convert("RGB")
    except Exception as error:
        raise _bad(item.picture, "is no picture that can be read", error) from None
    width, height = picture.size
    try:
        y = item.read(width, height)
    except DataError:
        raise
    except Exception as error:
        raise _bad(item.target, "is no annotation that can be read", error) from None
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


def _voc(place: Path, targets: str, year: str, part: str) -> Iterator[Item]:
    """torchvision's list of the pictures of VOC's own division."""
    from torchvision.datasets import VOCDetection, VOCSegmentation

    kind = VOCDetection if targets == "boxes" else VOCSegmentation
    try:
        listed = kind(place.parent, year, part)
    except (OSError, RuntimeError) as error:
        raise _bad(place, f"is no VOC {year} with {targets}", error) from None
    for picture, target in zip(listed.images, listed.targets, strict=True):
        file = Path(target)

        def read(width: int, height: int, file: Path = file) -> Any:
            if targets == "boxes":
                return _voc_objects(file, width, height)
            return _voc_mask(file, width, height)

        yield Item(Path(picture), file, read)


def _voc_objects(file: Path, width: int, height: int) -> np.ndarray:
    """VOC's corners are pixels, from 1, and belong to the box."""
    from torchvision.datasets import voc

    tree = voc.VOCDetection.parse_voc_xml(voc.ET_parse(file).getroot())
    rows = []
    for own in tree["annotation"]["object"]:
        if own["name"] not in VOC:
            raise DataError(f"{file} has an object of class {own['name']!r}, which VOC has not.")
        x1, y1, x2, y2 = (float(own["bndbox"][end]) for end in ("xmin", "ymin", "xmax", "ymax"))
        ignored = int(own.get("difficult") or 0)
        rows.append([x1 - 1, y1 - 1, x2, y2, VOC.index(own["name"]), ignored])
    if not rows:
        raise DataError(f"{file} has no object.")
    return _inside(rows, file, "", width, height)


def _voc_mask(file: Path, width: int, height: int) -> Any:
    from PIL import Image

    with Image.open(file) as mask:
        mask.load()
    if mask.mode not in ("P", "L"):
        raise DataError(f"{file} is a picture of mode {mask.mode}, not a mask of class numbers.")
    if mask.size != (width, height):
        size = f"{mask.width} x {mask.height}"
        raise DataError(f"{file} is {size} pixels, but its picture is {width} x {height}.")
    kinds = {*np.unique(np.asarray(mask)).tolist()} - {VOID}
    if max(kinds, default=0) > len(VOC):
        raise DataError(
            f"{file} has a pixel of class {max(kinds)}; classes are 0 (background) to {len(VOC)}."
        )
    if not kinds - {0}:
        raise DataError(f"{file} has no object.")
    return Image.fromarray(np.asarray(mask))


def _annotations(place: Path, part: str) -> tuple[Path, dict[str, Any]]:
    """COCO's file, with its three lists of records."""
    file = place / "annotations" / f"instances_{part}2017.json"
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad(file, "is no JSON that can be read", error) from None
    wanted = {
        "images": {"id", "file_name"},
        "annotations": {"image_id", "category_id", "bbox"},
        "categories": {"id", "name"},
    }
    for name, keys in wanted.items():
        rows = table.get(name) if isinstance(table, dict) else None
        if not isinstance(rows, list) or not all(
            isinstance(row, dict) and keys <= row.keys() for row in rows
        ):
            raise DataError(
                f"{file} is no COCO: it needs {name!r}, a list of records with "
                f"{', '.join(sorted(keys))}."
            )
    return file, table


def _categories(place: Path) -> tuple[str, ...]:
    """In the order of their ids, of which COCO's 80 leave some out."""
    _, table = _annotations(place, "train")
    return tuple(c["name"] for c in sorted(table["categories"], key=lambda c: c["id"]))


def _coco(place: Path, part: str, names: tuple[str, ...]) -> Iterator[Item]:
    file, table = _annotations(place, part)
    kinds = {c["id"]: names.index(c["name"]) for c in table["categories"] if c["name"] in names}
    own: dict[Any, list] = {image["id"]: [] for image in table["images"]}
    for row in table["annotations"]:
        if row["image_id"] not in own:
            raise DataError(
                f"{file} has an object in an image {row['image_id']!r}, which it lacks."
            )
        own[row["image_id"]].append(row)
    for image in table["images"]:
        picture = place / f"{part}2017" / image["file_name"]

        def read(width: int, height: int, image: dict = image) -> np.ndarray:
            rows, which = [], f", image {image['file_name']},"
            for row in own[image["id"]]:
                kind = row["category_id"]
                if kind not in kinds:
                    known = f"{min(kinds)} to {max(kinds)}"
                    raise DataError(
                        f"{file}{which} has an object of category {kind!r}; it lists {known}."
                    )
                x, y, w, h = row["bbox"]
                crowd = CROWD if row.get("iscrowd") else 0
                rows.append([x, y, x + w, y + h, kinds[kind], crowd])
            # a copy may be scaled without its annotations, which shows where sizes are stated
            stated = image.get("width", width), image.get("height", height)
            if stated != (width, height):
                raise DataError(f"{file}{which} says {stated}, but the picture is {width, height}.")
            return _inside(rows, file, which, width, height)

        yield Item(picture, file, read)


def _inside(rows: list, file: Path, which: str, width: int, height: int) -> np.ndarray:
    """float32 [k, 6]; ``DataError`` for a box that is no part of its picture."""
    for x1, y1, x2, y2, *_ in rows:
        box = f"{file}{which} has a box ({x1:g}, {y1:g}, {x2:g}, {y2:g})"
        if not (x2 > x1 and y2 > y1):  # NaN, too
            raise DataError(f"{box} of no area.")
        if min(x1, y1) < -SLACK or x2 > width + SLACK or y2 > height + SLACK:
            raise DataError(f"{box} that is not inside its {width} x {height} pixels.")
    y = np.array(rows, np.float32).reshape(-1, 6)
    y[:, :4] = y[:, :4].clip(0, [width, height, width, height])
    return y


def _bad(file: Path, what: str, error: Exception) -> DataError:
    why = ""
    with suppress(ValueError):  # a message that cannot be made
        why = " ".join(str(error).split())
    return DataError(f"{file} {what} ({why or type(error).__name__}).")

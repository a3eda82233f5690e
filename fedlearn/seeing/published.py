"""Pascal VOC and COCO as their makers publish them, whole or in part.

A picture is scaled in proportion until its longer side has ``size`` pixels, and lies at
the top left of a square; the rest of the square is black, and void in masks. Boxes are
scaled with it, so that an IoU stays the same. A damaged file is refused before the
training, with its name.
"""

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from ..data import images
from ..data.images import Known, Source, locate, open_image, reason
from ..errors import DataError, extra, pick, short
from .scenes import digit_scenes
from .targets import CROWD, VOID, from_boxes, from_masks

VOC = (
    *(
        "aeroplane",
        "bicycle",
        "bird",
        "boat",
        "bottle",
        "bus",
        "car",
        "cat",
        "chair",
        "cow",
    ),
    *(
        "diningtable",
        "dog",
        "horse",
        "motorbike",
        "person",
        "pottedplant",
        "sheep",
        "sofa",
    ),
    *("train", "tvmonitor"),
)
SETS = {
    "voc": Known(
        classes=20,
        train=5717,
        test=5823,
        site="host.robots.ox.ac.uk/pascal/VOC/voc2012",
        megabytes=1999,
        torchvision="VOCDetection",
        places=("VOCdevkit", "voc_subset.zip"),
    ),
    "coco": Known(
        classes=80,
        train=118287,
        test=5000,
        site="cocodataset.org",
        megabytes=19900,
        places=("coco", "coco_subset.zip"),
    ),
}
images.ANNOTATED.update(SETS)  # so that they are found and fetched like the other sets
MASKS = 1464, 1449  # of VOC's pictures, to train and to test
NAMES = {"boxes": ("digits", "voc", "coco"), "masks": ("digits", "voc")}
YEARS = {"voc": "2012", "coco": "2017"}
KINDS = {"boxes": torch.float32, "masks": torch.uint8}  # of y
SIZE = 160  # pixels, unless another size is stated
SIZES = 32, 2048  # the smallest and the largest
MEAN, STD = (127.0,) * 3, (128.0,) * 3  # for pictures that the trunk takes
SLACK = 1.0  # pixels

Items = list[
    tuple[Path, Any]
]  # pictures, each with its objects [k, 6] or the file of its mask


def find(dataset: Any, targets: str) -> Source:
    """The ``Source`` with these ``targets`` that a task's ``dataset`` means: a Source,
    or a name, maybe with an argument behind a colon. The packages of losses and metrics
    are asked for first."""
    with extra("seeing"):
        import faster_coco_eval  # noqa: F401
        import torchmetrics  # noqa: F401
        import torchvision  # noqa: F401
    if isinstance(dataset, str):
        return _named(dataset, targets)
    if not isinstance(dataset, Source):
        raise ValueError(
            f"A data set is a name ({', '.join(NAMES[targets])}) or made by "
            f"fl.seeing.from_{targets}, not {short(dataset)}."
        )
    y = dataset.train_y
    if y.dim() != 3 or y.dtype != KINDS[targets]:
        raise ValueError(
            f"{dataset.name} has no {targets}: fl.seeing.from_{targets} makes such a "
            "set."
        )
    return dataset


def _named(dataset: str, targets: str) -> Source:
    """ "digits", "digits:0.8" with a difficulty, "voc:96" with a size."""
    name, _, argument = dataset.partition(":")
    pick(name, dict.fromkeys(NAMES[targets]), "data set of this task")
    try:
        number = float if name == "digits" else int
        options = [number(argument)] if argument else []
    except ValueError:
        raise ValueError(
            f"Data sets are written like 'digits:0.8' or 'voc:160', not {dataset!r}."
        ) from None
    if name == "digits":
        return digit_scenes(targets, *options)
    return load(locate(name), name, targets, *options)


@lru_cache(4)
def load(place: Path, name: str, targets: str, size: int = SIZE) -> Source:
    """VOC 2012's ``train`` to train and its ``val`` to test, or COCO's ``train2017``
    and ``val2017``, in this folder or packed subset.

    Objects that VOC marks as difficult, and COCO's crowds, are not learned; a
    prediction of one counts neither for nor against a detector, as in their evaluation.
    Borders of VOC's masks are void. A picture of COCO without an object stays: every
    prediction in it is wrong."""
    smallest, largest = SIZES
    if not smallest <= size <= largest:
        raise ValueError(
            f"size is a number of pixels from {smallest} to {largest}, not {size}."
        )
    list_items: Callable = _voc if name == "voc" else _coco
    with _folder(place, name) as folder:
        names, train = list_items(folder, targets, "train")
        _, test = list_items(folder, targets, "val", names)
        parts = [_arrays(folder, items, size, targets) for items in (train, test)]
    known = SETS[name]
    whole = MASKS if targets == "masks" else (known.train, known.test)
    note = f"{name.upper()} {YEARS[name]}, scaled to {size} pixels"
    if (len(train), len(test)) != whole:
        note = (
            f"a subset of {note}: {len(train)} of {whole[0]:,} pictures to train, "
            f"{len(test)} of {whole[1]:,} to test"
        )
    fields: dict[str, Any] = {
        "name": f"{name}:{size}",
        "files": [str(picture) for picture, _ in (*train, *test)],
        "note": note,
    }
    if targets == "boxes":
        source = from_boxes(*parts[0], len(names), parts[1], names=names, **fields)
    else:
        names = ("background", *names)
        source = from_masks(*parts[0], len(names), parts[1], names=names, **fields)
    return replace(source, mean=MEAN, std=STD)


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
        except Exception as error:
            raise _bad(place, "is no zip file that can be read", error) from None
        yield Path(folder, SETS[name].places[0])


# ---- pictures


def _arrays(
    place: Path, items: Items, size: int, targets: str
) -> tuple[np.ndarray, list]:
    """Square pictures uint8 [n, 3, size, size], and their objects or masks."""
    if not items:
        raise DataError(f"{place} has no pictures.")
    x = np.zeros((len(items), size, size, 3), np.uint8)
    ys = []
    for square, (file, target) in zip(x, items, strict=True):
        picture = open_image(file).convert("RGB")
        old = picture.size
        width, height = (max(1, round(side * size / max(old))) for side in old)
        square[:height, :width] = picture.resize((width, height), 2)  # 2: bilinear
        if targets == "boxes":
            ys.append(_scaled(target, file, old, (width, height)))
        else:
            mask = open_image(target)
            if mask.mode not in ("P", "L") or mask.size != old:
                raise DataError(
                    f"{target} is no mask of {old[0]} x {old[1]} pixels with classes."
                )
            y = np.full((size, size), VOID, np.uint8)
            y[:height, :width] = mask.resize((width, height), 0)  # 0: nearest
            ys.append(y)
    return x.transpose(0, 3, 1, 2), ys


def _scaled(
    objects: Any, file: Path, old: tuple[int, int], new: tuple[int, int]
) -> np.ndarray:
    """The objects of a picture whose sides change from ``old`` to ``new``. Rounding may
    have put a box outside the picture by ``SLACK``."""
    y = np.array(objects, np.float32).reshape(-1, 6)
    inside = y[:, :4].clip(0, (*old, *old))
    if np.abs(inside - y[:, :4]).max(initial=0) > SLACK:
        raise DataError(f"{file} has an object outside its {old[0]} x {old[1]} pixels.")
    ends = np.array([*new, *new], np.float32)
    y[:, :4] = (inside * ends / (*old, *old)).clip(0, ends)
    return y


# ---- lists of pictures


def _voc(place: Path, targets: str, part: str, names: Any = ()) -> tuple[tuple, Items]:
    """VOC's classes, and torchvision's list of the pictures of VOC's own division."""
    from torchvision.datasets import VOCDetection, VOCSegmentation

    kind = VOCDetection if targets == "boxes" else VOCSegmentation
    try:
        listing = kind(place.parent, YEARS["voc"], part)
    except (OSError, RuntimeError) as error:
        raise _bad(place, f"is no VOC {YEARS['voc']} with {targets}", error) from None
    items = []
    for picture, target in zip(listing.images, listing.targets, strict=True):
        rows = _voc_objects(target) if targets == "boxes" else target
        items.append((Path(picture), rows))
    return VOC, items


def _voc_objects(file: str) -> list[list[float]]:
    """VOC's corners are pixels, from 1, and belong to the box."""
    rows = []
    try:
        for item in ElementTree.parse(file).iterfind("object"):
            kind = VOC.index(item.findtext("name"))
            ends = [
                item.findtext(f"bndbox/{end}")
                for end in ("xmin", "ymin", "xmax", "ymax")
            ]
            x1, y1, x2, y2 = map(float, ends)
            ignored = int(item.findtext("difficult") or 0)
            rows.append([x1 - 1, y1 - 1, x2, y2, kind, ignored])
    except (OSError, SyntaxError, TypeError, ValueError) as error:
        raise _bad(file, "is no annotation of VOC's classes", error) from None
    return rows


def _coco(place: Path, targets: str, part: str, names: Any = ()) -> tuple[tuple, Items]:
    """The names of the classes (``names``, else in the order of their ids, of which
    COCO's 80 leave some out), and the pictures."""
    file = place / "annotations" / f"instances_{part}2017.json"
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        categories = sorted(table["categories"], key=lambda category: category["id"])
        names = names or tuple(category["name"] for category in categories)
        kinds = {
            c["id"]: names.index(c["name"]) for c in categories if c["name"] in names
        }
        rows: dict[Any, list] = {image["id"]: [] for image in table["images"]}
        for row in table["annotations"]:
            x, y, width, height = row["bbox"]
            crowd = CROWD if row.get("iscrowd") else 0
            kind = kinds.get(row["category_id"], -1)
            rows[row["image_id"]].append([x, y, x + width, y + height, kind, crowd])
        items = []
        for image in table["images"]:
            picture = place / f"{part}2017" / image["file_name"]
            items.append((picture, rows[image["id"]]))
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        problem = "is no COCO with images, categories and annotations"
        raise _bad(file, problem, error) from None
    return names, items


def _bad(file: object, problem: str, error: Exception) -> DataError:
    return DataError(f"{file} {problem} ({reason(error)}).")

"""Pascal VOC and COCO as their authors publish them, whole or in part.

A picture is scaled in proportion so that its longer side has ``size`` pixels, and lies
at the top left of a square. The padding is black, and void in masks. Boxes are scaled
with their picture, so an IoU stays the same. A damaged file is refused before the
training, by name.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from ..data import images
from ..data.images import Known, Source, locate, open_image, reason
from ..errors import DataError, check_whole, extra, pick, short
from .scenes import digit_scenes
from .targets import VOID, from_boxes, from_masks

VOC = (
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
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
SETS = {
    "voc": Known(
        classes=20,
        train=5717,
        test=5823,
        origin="1999 MB from host.robots.ox.ac.uk/pascal/VOC/voc2012",
        torchvision="VOCDetection",
        places=("VOCdevkit", "voc_subset.zip"),
    ),
    "coco": Known(
        classes=80,
        train=118287,
        test=5000,
        origin="19900 MB from cocodataset.org",
        places=("coco", "coco_subset.zip"),
    ),
}
images.ANNOTATED.update(SETS)  # these sets are located and fetched like the others
MASKS = 1464, 1449  # of VOC's pictures, to train and to test
# the sets by targets; behind a colon stands a difficulty (float) or a size (int)
NAMES = {
    "boxes": {"digits": float, "voc": int, "coco": int},
    "masks": {"digits": float, "voc": int},
}
TITLES = {"voc": "VOC 2012", "coco": "COCO 2017"}
KINDS = {"boxes": torch.float32, "masks": torch.uint8}  # of y
MEAN = (127.0,) * 3  # the trunk's normalisation
STD = (128.0,) * 3
BILINEAR = 2  # of PIL
NEAREST = 0
CORNERS = "xmin", "ymin", "xmax", "ymax"

Items = list[tuple[Path, Any]]  # pictures, each with its objects or its mask's file


def find(dataset: Any, targets: str) -> Source:
    """The ``Source`` with these ``targets`` that a task's ``dataset`` means: a Source,
    or a name such as "digits", "digits:0.8" or "voc:96". A missing package of losses
    or metrics is reported first."""
    with extra("seeing"):
        import faster_coco_eval  # noqa: F401
        import torchmetrics  # noqa: F401
        import torchvision  # noqa: F401
    names = NAMES[targets]
    if isinstance(dataset, str):
        name, _, argument = dataset.partition(":")
        number = pick(name, names, "data set of this task")
        try:
            options = [number(argument)] if argument else []
        except ValueError:
            raise ValueError(
                "Data sets are written like 'digits:0.8' or 'voc:160', not "
                f"{dataset!r}."
            ) from None
        if name == "digits":
            return digit_scenes(targets, *options)
        return load(locate(name), name, targets, *options)
    y = getattr(dataset, "train_y", torch.empty(0))
    if y.dim() != 3 or y.dtype != KINDS[targets]:
        raise ValueError(
            f"A data set with {targets} is a name ({', '.join(names)}) or made by "
            f"fl.seeing.from_{targets}, not {short(dataset)}."
        )
    return dataset


@lru_cache(4)
def load(place: Path, name: str, targets: str, size: int = 160) -> Source:
    """VOC 2012's ``train`` to train on and its ``val`` to test on, or COCO's
    ``train2017`` and ``val2017``, from this folder or packed subset.

    Objects that VOC marks as difficult, and COCO's crowds, are ignored. Borders of
    VOC's masks are void. Pictures without an object stay: every prediction in one is
    wrong."""
    check_whole("size", size, 32, 2048)
    published = SETS[name]
    list_part = list_voc if name == "voc" else list_coco
    with TemporaryDirectory() as folder:
        root = place
        if place.suffix == ".zip":
            with reading(place, "zip file"):
                shutil.unpack_archive(place, folder)
            root = Path(folder, published.places[0])
        names, train = list_part(root, targets, "train")
        test_names, test = list_part(root, targets, "val")
        if test_names != names:
            raise DataError(f"{place} has other classes to test than to train.")
        x, y = scaled(train, size, targets)
        test_arrays = scaled(test, size, targets)
    whole = MASKS if targets == "masks" else (published.train, published.test)
    note = f"{TITLES[name]}, scaled to {size} pixels"
    if (len(train), len(test)) != whole:
        note = (
            f"a subset of {note}: {len(train)} of {whole[0]:,} pictures to train, "
            f"{len(test)} of {whole[1]:,} to test"
        )
    make = from_boxes if targets == "boxes" else from_masks
    return make(
        x,
        y,
        len(names),
        test_arrays,
        name=f"{name}:{size}",
        files=[str(picture) for picture, _ in train + test],
        names=names,
        note=note,
        mean=MEAN,
        std=STD,
    )


@contextmanager
def reading(file: Path, form: str) -> Iterator[None]:
    """``DataError`` with the file's name for an error in the block."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{file} is no {form} ({reason(error)}).") from None


def scaled(items: Items, size: int, targets: str) -> tuple[np.ndarray, list]:
    """Square pictures uint8 [n, 3, size, size], and their objects or masks. Boxes are
    clipped to their picture."""
    x = np.zeros((len(items), 3, size, size), np.uint8)
    ys = []
    for square, (file, target) in zip(x, items, strict=True):
        picture = open_image(file).convert("RGB")
        old = picture.size
        new = [max(1, round(side * size / max(old))) for side in old]
        width, height = new
        pixels = np.array(picture.resize(new, BILINEAR))
        square[:, :height, :width] = pixels.transpose(2, 0, 1)
        if targets == "masks":
            mask = open_image(target)
            if mask.mode not in ("P", "L") or mask.size != old:
                raise DataError(f"{target} is no mask of classes for {file}.")
            y = np.full((size, size), VOID, np.uint8)
            y[:height, :width] = mask.resize(new, NEAREST)
        else:
            y = np.array(target, float).reshape(-1, 6)
            ends = np.array([*old, *old])
            factor = np.array([*new, *new]) / ends
            y[:, :4] = y[:, :4].clip(0, ends) * factor
        ys.append(y)
    return x, ys


def list_voc(root: Path, targets: str, part: str) -> tuple[tuple, Items]:
    """The names of VOC's classes, and the pictures of VOC's list ``part``."""
    root = root / "VOC2012"
    boxes = targets == "boxes"
    listing = root / "ImageSets" / ("Main" if boxes else "Segmentation") / f"{part}.txt"
    with reading(listing, "list of VOC's pictures"):
        stems = listing.read_text(encoding="utf-8").split()
    items: Items = []
    for stem in stems:
        picture = root / "JPEGImages" / f"{stem}.jpg"
        if boxes:
            items.append((picture, voc_objects(root / "Annotations" / f"{stem}.xml")))
        else:
            items.append((picture, root / "SegmentationClass" / f"{stem}.png"))
    return (VOC if boxes else ("background", *VOC)), items


def voc_objects(file: Path) -> list[list[float]]:
    """The objects of an annotation. VOC counts pixels from 1, and the last pixel
    belongs to the box."""
    rows = []
    with reading(file, "annotation of VOC's classes"):
        for item in ElementTree.parse(file).iterfind("object"):
            x1, y1, x2, y2 = (float(item.findtext(f"bndbox/{c}")) for c in CORNERS)
            kind = VOC.index(item.findtext("name"))
            ignored = int(item.findtext("difficult") or 0)
            rows.append([x1 - 1, y1 - 1, x2, y2, kind, ignored])
    return rows


def list_coco(root: Path, targets: str, part: str) -> tuple[tuple, Items]:
    """The names of the classes, in the order of their ids, and the pictures. Boxes
    without an area are left out. (COCO's ids have gaps.)"""
    file = root / "annotations" / f"instances_{part}2017.json"
    with reading(file, "table of COCO's images, categories and annotations"):
        table = json.loads(file.read_text(encoding="utf-8"))
        names = {row["id"]: row["name"] for row in table["categories"]}
        ids = sorted(names)
        objects: dict[Any, list] = {row["id"]: [] for row in table["images"]}
        for row in table["annotations"]:
            x, y, width, height = row["bbox"]
            kind = ids.index(row["category_id"])
            if width > 0 and height > 0:
                box = [x, y, x + width, y + height, kind, row.get("iscrowd", 0)]
                objects[row["image_id"]].append(box)
        folder = root / f"{part}2017"
        items = [
            (folder / row["file_name"], objects[row["id"]]) for row in table["images"]
        ]
    return tuple(names[i] for i in ids), items

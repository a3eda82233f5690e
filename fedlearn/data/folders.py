"""Data sets that are published as folders of picture files: CINIC-10 and Tiny ImageNet.

What else lies beside the pictures (an operating system's files, Tiny ImageNet's lists of boxes) is
left alone: a picture is known by its ending."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

Listed = tuple[list[Path], list[int]]  # files and their labels
PICTURES = ".png", ".jpeg", ".jpg"


def _seen(folder: Path, *endings: str) -> list[Path]:
    """What is in a folder, of names with these endings, but for what the operating system hides."""
    its = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in its if not endings or path.suffix.lower() in endings)


def _read(size: int, *parts: Listed) -> tuple:
    """Of each part the pictures, RGB, grey ones too: uint8 [n, size, size, 3], and the labels;
    ``ValueError`` names one that cannot be read, or is of another size."""
    from PIL import Image

    arrays: list[np.ndarray] = []
    for files, labels in parts:
        x = np.empty((len(files), size, size, 3), np.uint8)
        for i, file in enumerate(files):
            try:
                with Image.open(file) as picture:
                    pixels, own = picture.size, np.asarray(picture.convert("RGB"))
            except MemoryError:
                raise
            except Exception as error:
                raise ValueError(f"{file} is no picture: {error}") from error
            if pixels != (size, size):
                raise ValueError(f"{file} is {pixels[0]} x {pixels[1]} pixels")
            x[i] = own
        arrays += [x, np.array(labels)]
    return tuple(arrays)


def _classes(folder: Path, names: Sequence[str], inside: str = "") -> Listed:
    """Of a folder that has a folder for each class."""
    files, labels = [], []
    for label, name in enumerate(names):
        own = _seen(folder / name / inside, *PICTURES)
        if not own:
            raise ValueError(f"{folder / name / inside} has no picture")
        files, labels = files + own, labels + [label] * len(own)
    return files, labels


def _cinic10(folder: Path) -> tuple[Listed, Listed]:
    names = [path.name for path in _seen(folder / "train") if path.is_dir()]
    if len(names) != 10:
        raise ValueError(f"train has {len(names)} folders, not one for each of 10 classes")
    return _classes(folder / "train", names), _classes(folder / "test", names)


def cinic10(folder: Path) -> tuple:
    """``{train,test}/<class>/*.png`` of 32 x 32 pixels, 90,000 each; as the authors of FedGKT do,
    the 90,000 of ``valid`` are left alone."""
    return _read(32, *_cinic10(folder))


def _tiny_imagenet(folder: Path) -> tuple[Listed, Listed]:
    names = sorted((folder / "wnids.txt").read_text(encoding="utf-8-sig").split())
    label = {name: i for i, name in enumerate(names)}
    if len(label) < len(names):
        twice = next(name for i, name in enumerate(names) if label[name] != i)
        raise ValueError(f"{folder / 'wnids.txt'} has the class {twice} twice")
    file = folder / "val" / "val_annotations.txt"
    files, labels, seen = [], [], set[str]()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        picture, name, *_ = *line.split("\t"), ""
        is_one = Path(picture).name == picture and Path(picture).suffix.lower() in PICTURES
        if not is_one or name not in label:
            raise ValueError(
                f"line {number} of {file} is a picture's name, a tab and a class of wnids.txt, not "
                f"{line!r:.80}"
            )
        files.append(folder / "val" / "images" / picture)
        labels.append(label[name])
        if picture in seen:
            raise ValueError(f"line {number} of {file} names {picture} once more")
        seen.add(picture)
    if not files:
        raise ValueError(f"{file} names no picture")
    return _classes(folder / "train", names, "images"), (files, labels)


def tiny_imagenet(folder: Path) -> tuple:
    """``train/<class>/images/*.JPEG`` of 64 x 64 pixels, 500 of each of the classes in
    ``wnids.txt``. The published test pictures have no labels, so those of ``val`` are the test."""
    return _read(64, *_tiny_imagenet(folder))


def counted(name: str, folder: Path) -> tuple[int, int]:
    """How many pictures a copy of "cinic10" or "tiny_imagenet" has, to train and to test, of which
    none is read; errors as in reading."""
    (train, _), (test, _) = {"cinic10": _cinic10, "tiny_imagenet": _tiny_imagenet}[name](folder)
    return len(train), sum(file.exists() for file in test)

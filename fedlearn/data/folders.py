"""Data sets that are published as folders of picture files: CINIC-10 and Tiny ImageNet."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def _pictures(files: Sequence[Path], size: int) -> np.ndarray:
    """RGB, grey ones too: uint8 [n, size, size, 3]; ``ValueError`` names one of another size."""
    from PIL import Image

    x = np.empty((len(files), size, size, 3), np.uint8)
    for i, file in enumerate(files):
        with Image.open(file) as picture:
            if picture.size != (size, size):
                raise ValueError(f"{file} is {picture.size[0]} x {picture.size[1]} pixels")
            x[i] = np.asarray(picture.convert("RGB"))
    return x


def _classes(folder: Path, names: Sequence[str], inside: str, size: int) -> tuple:
    """Pictures and labels of a folder that has a folder for each class."""
    files, labels = [], []
    for label, name in enumerate(names):
        own = sorted((folder / name / inside).iterdir())
        if not own:
            raise ValueError(f"{folder / name / inside} is empty")
        files, labels = files + own, labels + [label] * len(own)
    return _pictures(files, size), np.array(labels)


def cinic10(folder: Path) -> tuple:
    """``{train,test}/<class>/*.png`` of 32 x 32 pixels, 90,000 each; as the authors of FedGKT do,
    the 90,000 of ``valid`` are left alone."""
    names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    if len(names) != 10:
        raise ValueError(f"train has {len(names)} folders, not one for each of 10 classes")
    return (*_classes(folder / "train", names, "", 32), *_classes(folder / "test", names, "", 32))


def tiny_imagenet(folder: Path) -> tuple:
    """``train/<class>/images/*.JPEG`` of 64 x 64 pixels, 500 of each of the classes in
    ``wnids.txt``. The published test pictures have no labels, so those of ``val`` are the test."""
    names = sorted((folder / "wnids.txt").read_text().split())
    label = {name: i for i, name in enumerate(names)}
    lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    rows = [line.split("\t")[:2] for line in lines if line]
    test_x = _pictures([folder / "val" / "images" / file for file, _ in rows], 64)
    test_y = np.array([label[name] for _, name in rows])
    return (*_classes(folder / "train", names, "images", 64), test_x, test_y)

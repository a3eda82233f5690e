"""Tiny ImageNet, for the paper's Table 1. A recipe names
data/fed_repopt/tiny_imagenet.py:pictures, so it is run at the root of the repository.

The set is fetched by hand and unpacked in the folder FEDLEARN_DATA. The published test pictures
have no labels, so those of ``val`` are the test.
"""

from copy import copy
from typing import Any

import numpy as np
from torchvision.datasets import ImageFolder

import fedlearn as fl
from fedlearn.data.images import unpacked


def pictures() -> Any:
    """100,000 to train and 10,000 to test, of 64 x 64 pixels."""
    place = unpacked(
        "tiny-imagenet-200", "248 MB from cs231n.stanford.edu/tiny-imagenet-200.zip"
    )
    train = ImageFolder(place / "train", transform=np.asarray)
    test = copy(train)
    test.samples = []
    for line in (place / "val" / "val_annotations.txt").read_text().splitlines():
        file, name, *_ = line.split("\t")
        picture = str(place / "val" / "images" / file)
        test.samples.append((picture, train.class_to_idx[name]))
    return fl.data.dataset(train, test, name="tiny_imagenet")

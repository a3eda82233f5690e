"""CINIC-10, for the paper's Table 1. A recipe names data/fed_gkt/cinic10.py:pictures, so it is run
at the root of the repository.

The set is fetched by hand and unpacked in the folder FEDLEARN_DATA. As in the authors' program,
the 90,000 pictures of ``valid`` are left alone.
"""

from typing import Any

import numpy as np
from torchvision.datasets import ImageFolder

import fedlearn as fl
from fedlearn.data.images import unpacked


def pictures() -> Any:
    """90,000 to train and 90,000 to test."""
    place = unpacked("CINIC-10", "688 MB from datashare.ed.ac.uk/handle/10283/3192")
    train, test = (
        ImageFolder(place / part, transform=np.asarray) for part in ("train", "test")
    )
    return fl.data.dataset(train, test, name="cinic10")

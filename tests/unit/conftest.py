import pytest
from hypothesis import settings
from torch import nn

import fedlearn as fl

# a shared machine stalls now and then; a slow example is no failure. The same examples every time.
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")


@pytest.fixture(scope="session")
def task():
    """Four uneven clients with few digits: a round takes a moment."""
    return fl.tasks.classification(
        "digits", clients=4, partition="dirichlet:0.5", train=240, test=100
    )


def without_maxima(shape, classes):
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.Tanh(),
        nn.Conv2d(8, 16, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


@pytest.fixture
def smooth():
    """A network for runs that are compared after more than one step: it has no maximum, whose
    choice could hang on the last bit of a sum."""
    return without_maxima

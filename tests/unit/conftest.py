import pytest
from hypothesis import settings

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

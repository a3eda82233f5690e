"""A machine for GPUs may hold torch and little else: what needs more is skipped, and says what."""

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if (error.name or "fedlearn").split(".")[0] == "fedlearn":
            raise
        pytest.skip(f"{error.name} is not installed")

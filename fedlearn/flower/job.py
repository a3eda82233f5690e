"""What every side of a run on Flower holds before the first byte, and whether Flower is there at
all."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

from .. import training
from ..method import Method
from ..round import describe, good_threads
from ..settings import Settings, thread_count, whole_number

FLOWER = (1, 41), (2, 0)  # from this version on, and before that one
DATA = "data."  # begins the names of the hashes in a head
# Nothing leaves the machine that was not asked for. Flower and Ray read these when imported.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def require() -> str:
    """The version of Flower, which from now on is quiet; ``ImportError`` unless it is one that this
    package was written for."""
    from importlib import metadata

    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise ImportError(
            "Flower is not installed in this environment: make puts it into .venv-flower; by hand, "
            'pip install ".[flower]" in the folder of the repository.'
        ) from None
    first, end = FLOWER
    if not first <= tuple(map(int, re.findall(r"\d+", version)[:2])) < end:
        oldest = ".".join(map(str, first))
        raise ImportError(
            f"Flower {version} is installed; fedlearn works with {oldest} or newer, before "
            f"{end[0]}."
        )
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return version


@dataclass(frozen=True)
class Job:
    """A run: method, task, rounds, settings. Server and clients each make their own."""

    method: Method
    task: Any
    rounds: int = 20
    settings: Settings = Settings()
    threads: int | None = None  # CPU threads; None: the rule of ``fl.run``

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds)
        thread_count(self.threads)

    @cached_property
    def cpu_threads(self) -> int:
        """The number of CPU threads to train with."""
        net = training.initial_network(self.method, self.task)
        return self.threads or good_threads(net, self.task, self.settings.batch_size)

    @cached_property
    def head(self) -> dict[str, str]:
        """What has to be equal on both sides, as texts. Several threads may be another number
        elsewhere."""
        about = describe(self.method, self.task, self.settings, self.cpu_threads)
        flat = {
            f"{group}.{name}": value
            for group in ("parts", "task", "settings")
            for name, value in about[group].items()
        }
        flat |= {f"{DATA}{name} (a hash)": value for name, value in about["data"].items()}
        threads = "one" if self.cpu_threads == 1 else "several"
        all_of_it = {"method": self.method.name, "threads": threads, **flat}
        return {name: str(value) for name, value in all_of_it.items()}

    @cached_property
    def digest(self) -> str:
        """A short name of the head. Every question carries it, so that a client which changed its
        mind after the greeting is noticed."""
        return blake2b(json.dumps(self.head, sort_keys=True).encode(), digest_size=8).hexdigest()


def differences(mine: Mapping[str, str], other: Mapping[str, str], here: str, there: str) -> str:
    """What two jobs' heads do not have in common, in words; empty if nothing. That other seeds or
    partitions make other data goes without saying."""
    names = [n for n, value in mine.items() if other.get(n) != value]
    stated = [n for n in names if not n.startswith(DATA)]
    return "; ".join(f"{n} is {other.get(n)} {there} and {mine[n]} {here}" for n in stated or names)

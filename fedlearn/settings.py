"""How clients train, in plain values; ``experiment.py`` adds what states a whole run.

The command line, ``fl.Settings`` and the results (``meta["settings"]``) are all made from the
fields below, each of which has its default and its help text here and nowhere else.
Nothing heavy is imported, so that ``fedlearn --help`` does not wait for torch.
"""

import os
from dataclasses import dataclass, fields
from functools import partial

from .arguments import LARGEST, check_value, is_whole, short
from .errors import pick
from .options import opt

# What products of float32 numbers may be computed in: exactly, in TensorFloat-32 (GPUs only), in
# bfloat16.
PRECISIONS = dict.fromkeys(("float32", "tf32", "bf16"))


def whole_number(name: str, value: object) -> None:
    """Refuse anything but 1, 2, 3, ..."""
    if not is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {short(value)}.")
    if value > LARGEST:
        raise ValueError(f"{name} must be a whole number below 10^38, not {short(value)}.")


def kept(name: str, total: int, purpose: str, count: int | None) -> None:
    """Refuse to keep ``count`` of a data set's ``total`` images for ``purpose``, train or test."""
    if count is not None and not 1 <= count <= total:
        raise ValueError(
            f"{name} has {total} {purpose} images, so {purpose}={short(count)} cannot be kept."
        )


def thread_count(value: object) -> None:
    """Refuse a number of CPU threads that no machine of this kind has use for."""
    most = max(64, os.cpu_count() or 1)
    if value is not None and not (is_whole(value) and 1 <= value <= most):
        raise ValueError(f"threads must be a whole number from 1 to {most}, not {short(value)}.")


training = partial(opt, group="training")


@dataclass(frozen=True)
class Settings:
    """How clients train, as results store it.

    McMahan's letters: ``participation`` C, ``epochs`` E, ``batch_size`` B. Then how often the test
    set is looked at, and the arithmetic of local training, a name in ``PRECISIONS``.
    """

    participation: float = training(1.0, "share of the clients drawn each round", "C")
    epochs: int = training(1, "local epochs a round", "E")
    batch_size: int = training(32, "local batch size", "B")
    evaluate_every: int = training(1, "look at the test set every N rounds", "N")
    precision: str = training("float32", "arithmetic of training: float32 (default), tf32 or bf16")

    def __post_init__(self) -> None:
        for f in fields(self):
            own = check_value(f.name, getattr(self, f.name), f.type)
            object.__setattr__(self, f.name, own)
        if not 0 < self.participation <= 1:
            raise ValueError(
                "participation is a share of the clients, above 0 and at most 1, "
                f"not {self.participation!r}."
            )
        for name in ("epochs", "batch_size", "evaluate_every"):
            whole_number(name, getattr(self, name))
        pick(self.precision, PRECISIONS, "precision")

    def drawn(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return max(1, int(self.participation * clients + 0.5))

"""How clients train, in plain values; ``experiment.py`` adds what states a whole run."""

import os
from dataclasses import dataclass, fields

from .arguments import check_value, short, whole_number
from .errors import pick

# What products of float32 numbers may be computed in: exactly, in TensorFloat-32 (GPUs only), in
# bfloat16.
PRECISIONS = dict.fromkeys(("float32", "tf32", "bf16"))


def kept(name: str, total: int, purpose: str, count: int | None) -> None:
    """Refuse to keep ``count`` of a data set's ``total`` images for ``purpose``, train or test."""
    if count is not None and not 1 <= count <= total:
        raise ValueError(f"{name} has {total} samples, {purpose}={short(count)} cannot be kept.")


def held_out(name: str, count: int) -> int:
    """How many of ``count`` training images are held out for choices: a tenth."""
    if count < 10:
        raise ValueError(f"{name} has {count} training images here, too few to hold a tenth out.")
    return count // 10


def thread_count(value: object) -> None:
    """Refuse a number of CPU threads that no machine of this kind has use for."""
    if value is not None:
        whole_number("threads", value, max(64, os.cpu_count() or 1))


@dataclass(frozen=True)
class Settings:
    """How clients train, as results store it; the letters are McMahan's (2017).

    Parameters
    ----------
    participation : float
        C: share of the clients drawn each round, above 0 and at most 1
    epochs : int
        E: local epochs a round
    batch_size : int
        B: local batch size, in samples
    evaluate_every : int
        look at the test set every N rounds
    precision : str
        arithmetic of training: float32, tf32 or bf16

    Raises
    ------
    ValueError
        For a value that is not of its type or range.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.Settings(participation=0.25, epochs=2).drawn(10)
    3
    """

    participation: float = 1.0
    epochs: int = 1
    batch_size: int = 32
    evaluate_every: int = 1
    precision: str = "float32"

    def __post_init__(self) -> None:
        for f in fields(self):
            value = check_value(f.name, getattr(self, f.name), f.type)
            object.__setattr__(self, f.name, value)
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation is a share, above 0 to 1, not {self.participation}.")
        for name in ("epochs", "batch_size", "evaluate_every"):
            whole_number(name, getattr(self, name))
        pick(self.precision, PRECISIONS, "precision")

    def drawn(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return max(1, int(self.participation * clients + 0.5))

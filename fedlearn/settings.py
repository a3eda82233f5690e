"""How clients train, in plain values."""

from dataclasses import dataclass

from .errors import check_number, check_whole, pick

# The arithmetic of products of float32 numbers; TensorFloat-32 is of GPUs only.
PRECISIONS = dict.fromkeys(("float32", "tf32", "bf16"))


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
        share = check_number("participation", self.participation, above=0, maximum=1)
        object.__setattr__(self, "participation", share)
        for name in ("epochs", "batch_size", "evaluate_every"):
            count = check_whole(name, getattr(self, name))
            object.__setattr__(self, name, count)
        pick(self.precision, PRECISIONS, "precision")

    def drawn(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return max(1, int(self.participation * clients + 0.5))

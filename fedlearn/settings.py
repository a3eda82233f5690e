"""What both sides of a run agree on before the first byte. Nothing heavy is imported here."""

from dataclasses import dataclass

from .errors import pick

# What products of float32 numbers may be computed in: exactly, in TensorFloat-32 (GPUs only), in
# bfloat16.
PRECISIONS = dict.fromkeys(("float32", "tf32", "bf16"))


def whole_number(name: str, value: object) -> None:
    """Refuse anything but 1, 2, 3, ..."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}.")


@dataclass(frozen=True)
class Settings:
    """McMahan's letters: ``participation`` C, ``epochs`` E, ``batch_size`` B; how often the test
    set is looked at; and the arithmetic of local training, a name in ``PRECISIONS``."""

    participation: float = 1.0
    epochs: int = 1
    batch_size: int = 32
    evaluate_every: int = 1
    precision: str = "float32"

    def __post_init__(self) -> None:
        if not 0 < self.participation <= 1:
            raise ValueError(
                f"participation is a share of the clients, above 0 and at most 1, not "
                f"{self.participation!r}."
            )
        for name in ("epochs", "batch_size", "evaluate_every"):
            whole_number(name, getattr(self, name))
        pick(self.precision, PRECISIONS, "precision")

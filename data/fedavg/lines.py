"""FedAvg with McMahan's letters E, B and C as options of the method, so that the grid of
fedavg.yaml can state them line by line. In the package they are settings of a run, the same for
every method.
"""

from dataclasses import dataclass, replace
from typing import Any

from fedlearn.core import Averaging
from fedlearn.parts import SGD
from fedlearn.settings import Settings


@dataclass(frozen=True)
class Line(Averaging):
    """Federated averaging with local epochs, batch size and participation of its own."""

    epochs: int = 1
    batch_size: int = 32
    participation: float = 1.0

    def of(self, settings: Settings | None) -> Settings:
        """The settings of the run, with this line's own in their place."""
        return replace(
            settings or Settings(),
            epochs=self.epochs,
            batch_size=self.batch_size,
            participation=self.participation,
        )

    def server_side(self, task: Any, settings: Settings | None = None) -> Any:
        return super().server_side(task, self.of(settings))

    def client_side(self, task: Any, settings: Settings | None = None) -> Any:
        return super().client_side(task, self.of(settings))


def line(
    lr: float = 0.3, epochs: int = 1, batch_size: int = 32, participation: float = 1.0
) -> Line:
    """FedAvg; with one epoch and a batch that nobody's images fill, FedSGD."""
    return Line(
        "fedavg",
        optimizer=SGD(lr),
        epochs=epochs,
        batch_size=batch_size,
        participation=participation,
    )

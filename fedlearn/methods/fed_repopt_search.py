"""FedRepOpt's first step: the server trains the scales of a network's branches on its own data
(``fed_repopt.py`` has the rounds that follow)."""

from typing import Any

from ..core import SGD, Averaging, run
from ..models.repopt import Scales, scales_of
from .base import Continued
from .fed_repopt import Form


def repopt_search(
    task: Any,
    rounds: int = 5,
    network: Any = "digits_repvgg",
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int = 32,
    checkpoint: Any = None,
) -> Scales:
    """Train a network with all its scales at the server (Lau et al., 2024, Algorithm 1, step 1).

    Parameters
    ----------
    task : Task
        With one client, which is the server itself.
    rounds, batch_size : int
        Epochs and images a batch, at least 1.
    network, lr, momentum, weight_decay
        As in ``fed_repopt``; momentum continues from round to round.
    checkpoint : path or None
        As in ``fl.run``.

    Returns
    -------
    Scales
        The trained scales, for ``fed_repopt(scales=...)``.

    Raises
    ------
    ValueError
        For a task with several clients, or an option that cannot be.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", clients=1, train=16, test=10)
    >>> fl.repopt_search(task, rounds=1)
    Scales(digest='...')
    """
    if getattr(task, "clients", 1) != 1:
        raise ValueError(
            f"A search takes a task with one client, the server, not {task.clients}."
        )
    sgd = SGD(lr, momentum, weight_decay)
    method = Averaging("search", Form("search", network), optimizer=Continued(sgd))
    history = run(
        method,
        task,
        rounds,
        batch_size=batch_size,
        evaluate_every=rounds,
        checkpoint=checkpoint,
        progress=False,
    )
    return Scales(scales_of(history.network()))

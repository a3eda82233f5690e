"""Networks that start from weights in a local file."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn


def starting_from(build: Callable, file: str | Path) -> Callable:
    """A network that starts from stored weights.

    Parameters
    ----------
    build : callable
        (shape, classes) -> network.
    file : path
        A state that ``torch.save`` wrote; integer buffers may be absent.

    Returns
    -------
    callable
        The same with these weights. It raises ``ValueError`` if the file does not fit.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.models.starting_from(fl.models.mlp, "digits.pt").__name__
    'mlp@digits.pt'
    """
    path = Path(file).expanduser()

    def network(shape: tuple[int, ...], classes: int) -> nn.Module:
        net = build(shape, classes)
        integers = {n: t for n, t in net.state_dict().items() if not t.is_floating_point()}
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ValueError(f"{path} holds no weights ({_line(error)}).") from None
        try:
            net.load_state_dict(integers | state)
        except Exception as error:  # no state at all, or another network's
            raise ValueError(f"{path} does not fit {build.__name__} ({_line(error)}).") from None
        return net

    network.__name__ = f"{build.__name__}@{path.name}"
    return network


def _line(error: Exception) -> str:
    """An error in one line that is not endless."""
    return (" ".join(str(error).split()) or type(error).__name__)[:160]

"""Networks that start from weights in a local file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..arguments import short


def starting_from(build: Callable, file: str | Path) -> Callable:
    """The function ``build(shape, classes)``, whose network then has the weights of ``file``: a
    state that ``torch.save`` wrote. ``ValueError`` says what does not fit."""
    path = Path(file).expanduser()

    def network(shape: tuple[int, ...], classes: int) -> nn.Module:
        net = build(shape, classes)
        net.load_state_dict(_checked(path, net.state_dict(), build.__name__))
        return net

    network.__name__ = f"{build.__name__}@{path.name}"
    return network


def _checked(path: Path, own: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """What the file has for each tensor of a network."""
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        why = (" ".join(str(error).split()) or type(error).__name__)[:120]
        raise ValueError(f"{path} holds no weights that can be read ({why}).") from None
    if not isinstance(state, Mapping) or not all(map(torch.is_tensor, state.values())):
        raise ValueError(f"{path} holds no state of a network, tensors by name: {short(state)}.")
    lacking = [n for n, t in own.items() if n not in state and t.is_floating_point()]
    unknown = [n for n in state if n not in own]
    other = [n for n in state if n in own and state[n].shape != own[n].shape]
    for names, what in ((lacking, "lacks"), (unknown, "has besides"), (other, "has otherwise")):
        if names:
            first = names[0]
            sizes = ""
            if names is other:
                sizes = f" {list(state[first].shape)} in place of {list(own[first].shape)}"
            more = f", and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"{path} does not fit {name}: it {what} {first}{sizes}{more}.")
    return {n: state.get(n, t) for n, t in own.items()}

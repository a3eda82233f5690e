"""Measures of a finished run that are no part of a round."""

from typing import Any

import torch

from . import local
from .context import Tensors
from .method import Method
from .models import state_of


def refit(method: Method, task: Any, state: Tensors, images: int = 2000) -> dict[str, float]:
    """Accuracy and loss of a state whose batch statistics are measured anew; all learned weights
    stay as they are. A diagnosis, not a method: it looks at images of all clients.

    Parameters
    ----------
    method, task
        Of the run.
    state
        The tensors of a network, by name, such as ``history.state``.
    images
        How many training images to measure them on, in one batch.

    Returns
    -------
    dict
        What ``task.evaluate`` says.

    Raises
    ------
    ValueError
        If the state is not of the method's network.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", 2, train=60, test=40)
    >>> history = fl.run("fedavg", task, rounds=1, progress=False)
    >>> sorted(fl.refit(fl.methods.fedavg(), task, history.state))
    ['accuracy', 'loss']
    """
    net = local.initial_network(method, task)
    if state.keys() != state_of(net).keys():
        raise ValueError(
            f"refit needs a state of the network that clients of {method.name} train; this is "
            "another one's."
        )
    local.load(state_of(net), state)
    for module in net.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0  # forget the old statistics at once
    with torch.no_grad():
        net.train()(task.inputs(task.train[0][:images]))
    return task.evaluate(net)

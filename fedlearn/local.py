"""The hot loop: what one client does between download and upload."""

from contextlib import contextmanager

import torch

from . import rng
from .method import Batch


def load(net, state):
    """Copy a state into a network, in place."""
    own = net.state_dict(keep_vars=True)
    with torch.no_grad():
        torch._foreach_copy_([own[name] for name in state], list(state.values()))


def train(net, method, ctx, epochs, batch_size):
    """E epochs of minibatch training on the client's own data, in place on ``net``.

    Shuffling, augmentation and dropout draw from generators named after (seed, purpose, round, client). Each epoch is
    gathered, augmented and normalised in one go, so that a step only slices.
    """
    task, params = ctx.task, [p for p in net.parameters() if p.requires_grad]
    net.train()
    loss = method.objective.begin(net, ctx)
    state = method.optimizer.init(params, ctx)
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    n = task.sizes[ctx.client]
    with rng.scope(task.seed, "dropout", ctx.round, ctx.client, device=task.device):
        for _ in range(epochs):
            order = torch.randperm(n, generator=shuffle)
            x, y = task.epoch(ctx.client, order, augment)
            for at in range(0, n, batch_size):
                batch = Batch(x[at : at + batch_size], y[at : at + batch_size], order[at : at + batch_size])
                grads = torch.autograd.grad(loss(net, batch), params)
                with torch.no_grad():
                    method.optimizer.step(params, grads, state)


@contextmanager
def threads(count):
    """Run a block on that many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

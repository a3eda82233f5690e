"""The hot loop: what clients do between download and upload, one client at a time or all at once."""

from contextlib import contextmanager
from itertools import groupby

import torch

from . import rng, stacked
from .method import Batch


def load(own, state):
    """Copy a state into a network, in place: ``own`` is its ``state_of``."""
    with torch.no_grad():
        torch._foreach_copy_([own[name] for name in state], list(state.values()))


def trainable(net):
    """The parameters that local training moves."""
    return [p for p in net.parameters() if p.requires_grad]


def train(net, method, ctx, epochs, batch_size):
    """E epochs of minibatch training on the client's own data, in place on ``net``.

    Shuffling, augmentation and dropout draw from generators named after (seed, purpose, round, client). Each epoch is
    gathered, augmented and normalised in one go, so that a step only slices.
    """
    task, params = ctx.task, trainable(net)
    net.train()
    loss = method.objective.begin(net, ctx)
    state = method.optimizer.init(params, ctx)
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    n = task.sizes[ctx.client]
    with rng.scope(task.seed, "dropout", ctx.round, ctx.client, device=task.device):
        for _ in range(epochs):
            order = torch.randperm(n, generator=shuffle)
            x, y = task.epoch(ctx.client, order, augment)
            x = x.to(params[0].dtype)
            for at in range(0, n, batch_size):
                batch = Batch(x[at : at + batch_size], y[at : at + batch_size], order[at : at + batch_size])
                grads = torch.autograd.grad(loss(net, batch), params)
                with torch.no_grad():
                    method.optimizer.step(params, grads, state)


def steps(sizes, batch_size):
    """One epoch of stacked training, as (at, first, last, size): clients first..last-1 take their samples at..at+size-1.

    ``sizes`` (n_k) must fall. Clients share a step where their batches have the same size, so nothing is padded and no
    batch differs from sequential training: sizes 5, 5, 3 in batches of 4 give (0, 0, 2, 4), (0, 2, 3, 3), (4, 0, 2, 1).
    """
    plan = []
    for at in range(0, max(sizes), batch_size):
        first = 0
        for size, run in groupby(min(batch_size, n - at) for n in sizes if n > at):
            last = first + len(list(run))
            plan.append((at, first, last, size))
            first = last
    return plan


def train_stacked(net, method, ctx, epochs, batch_size):
    """The same training for all clients of ``ctx`` at once, those with most samples first; ``net`` is stacked.

    Every draw comes from the generator that sequential training uses, and only the last bits of sums differ.
    """
    task = ctx.task
    sizes = [task.sizes[k] for k in ctx.client]
    plan = steps(sizes, batch_size)
    net.train()
    stacked.seed_dropout(net, ctx)
    state = method.optimizer.init(trainable(net), ctx)
    parts = {}
    for first, last in {(first, last) for _, first, last, _ in plan}:  # before training: an objective may copy ``part``
        part = stacked.narrow(net, first, last)
        its_state = {k: [t[first:last] for t in v] if isinstance(v, list) else v for k, v in state.items()}
        parts[first, last] = part, trainable(part), method.objective.begin(part, ctx.narrow(first, last)), its_state
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    # Samples are gathered in the order of use: in each step by position in the batch, then by client.
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    use = torch.cat([(starts[i:j] + torch.arange(at, at + size)[:, None]).flatten() for at, i, j, size in plan])
    on_device = use.to(task.device)
    dtype = next(net.parameters()).dtype
    for _ in range(epochs):
        orders = [torch.randperm(n, generator=g) for n, g in zip(sizes, shuffle, strict=True)]
        x, y = task.gather(ctx.client, orders, augment)
        x, y, index = x[on_device], y[on_device], torch.cat(orders)[use]
        done = 0
        for _, first, last, size in plan:
            part, params, loss, its_state = parts[first, last]
            now = slice(done, done + size * (last - first))
            images = stacked.channels_last(x[now].unflatten(0, (size, -1)))
            labels, positions = (t[now].unflatten(0, (size, -1)).T for t in (y, index))
            batch = Batch(task.inputs(images).to(dtype).transpose(0, 1), labels, positions)
            grads = torch.autograd.grad(loss(part, batch).sum(), params)
            with torch.no_grad():
                method.optimizer.step(params, grads, its_state)
            done = now.stop


@contextmanager
def threads(count):
    """Run a block on that many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

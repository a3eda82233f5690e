"""The hot loop: what clients do between download and upload, one client at a time or all at
once."""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import nn

from . import rng
from .engines import layers
from .parts import Batch, Context, Model, Tensors
from .parts.base import Loss
from .settings import Settings


def initial_network(method: Any, task: Any) -> nn.Module:
    """M^0: the method's network with the weights that the task's seed gives it, on its device."""
    return new_network(method.model, task)


def new_network(model: Model, task: Any) -> nn.Module:
    """The network of a model part, with the weights that the task's seed gives it."""
    with rng.scope(task.seed, "initial weights"):
        net = model.build(task).to(task.device)
    for p in net.parameters():
        if p.dim() == 4:  # unlike contiguous(), also for a single input channel
            p.data = p.data.to(memory_format=layers.layout(net))
    return net


def load(own: Tensors, state: Tensors) -> None:
    """Copy a state into a network, in place: ``own`` is its ``state_of``."""
    with torch.no_grad():
        torch._foreach_copy_([own[name] for name in state], list(state.values()))


def trainable(net: nn.Module) -> list[torch.Tensor]:
    """The parameters that local training moves."""
    return [p for p in net.parameters() if p.requires_grad]


def local_step(
    net: nn.Module,
    method: Any,
    loss: Loss,
    state: dict[str, Any],
    settings: Settings,
    device: torch.device,
    steps: int,
) -> Callable[..., None]:
    """The function ``(x, y, index)`` that takes one local step of ``net``; ``steps`` is how many
    it will take."""
    params, optimizer = trainable(net), method.optimizer
    if settings.precision == "bf16":
        loss = torch.autocast(device.type, torch.bfloat16)(loss)

    def step(*batch):
        value = loss(net, Batch(*batch))
        grads = torch.autograd.grad(value if value.dim() == 0 else value.sum(), params)
        with torch.no_grad():
            optimizer.step(params, grads, state)

    # A graph replays tensor operations only: both parts must say that nothing else changes.
    recordable = method.objective.recordable and optimizer.recordable
    return (
        recorded(step, device)
        if device.type == "cuda" and recordable and steps >= GRAPH_PAYS
        else step
    )


@torch.enable_grad()  # the server may be adding up while its clients still train
def train(net: nn.Module, method: Any, ctx: Context, settings: Settings) -> None:
    """E epochs of minibatch training on the client's own data, in place on ``net``.

    Shuffling, augmentation and dropout draw from generators named after (seed, purpose, round,
    client). Each epoch is gathered, augmented and normalised in one go, so that a step only
    slices."""
    task, params, B = ctx.task, trainable(net), settings.batch_size
    net.train()
    n = task.sizes[ctx.client]
    state = method.optimizer.init(params, ctx)
    loss = method.objective.begin(net, ctx)
    step = local_step(net, method, loss, state, settings, task.device, settings.epochs * (n // B))
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    with rng.scope(task.seed, "dropout", ctx.round, ctx.client, device=task.device):
        for _ in range(settings.epochs):
            order = torch.randperm(n, generator=shuffle)
            x, y = task.epoch(ctx.client, order, augment)
            x = x.to(params[0].dtype, memory_format=layers.layout(net))
            index = order.to(task.device)
            for at in range(0, n, B):
                step(x[at : at + B], y[at : at + B], index[at : at + B])


def steps(sizes: list[int], batch_size: int) -> list[tuple[int, int, int, int]]:
    """One epoch of stacked training, as (at, first, last, size): clients first..last-1 take their
    samples at..at+size-1.

    ``sizes`` (n_k) must fall. Clients share a step where their batches have the same size, so
    nothing is padded and no batch differs from sequential training: sizes 5, 5, 3 in batches of 4
    give (0, 0, 2, 4), (0, 2, 3, 3), (4, 0, 2, 1)."""
    plan = []
    for at in range(0, max(sizes), batch_size):
        first = 0
        for size, run in groupby(min(batch_size, n - at) for n in sizes if n > at):
            last = first + len(list(run))
            plan.append((at, first, last, size))
            first = last
    return plan


@torch.enable_grad()
def train_stacked(net: nn.Module, method: Any, ctx: Context, settings: Settings) -> None:
    """The same training for all clients of ``ctx`` at once, those with most samples first; ``net``
    is stacked.

    Every draw comes from the generator that sequential training uses, and only the last bits of
    sums differ. (On a GPU dropout is drawn for the whole stack from one generator, named after all
    its clients.)"""
    task = ctx.task
    sizes = [task.sizes[k] for k in ctx.client]
    plan = steps(sizes, settings.batch_size)
    net.train()
    layers.seed_dropout(net, ctx)
    state, dtype = method.optimizer.init(trainable(net), ctx), next(net.parameters()).dtype
    takes = Counter((first, last) for _, first, last, _ in plan)
    step = {}
    for first, last in takes:  # all before training: an objective may copy the network
        part = layers.narrow(net, first, last)
        its_state = {
            k: [t[first:last] for t in v] if isinstance(v, list) else v for k, v in state.items()
        }
        loss = method.objective.begin(part, ctx.narrow(first, last))

        def on_images(part, batch, loss=loss):
            x = task.inputs(layers.channels_last(batch.x)).to(dtype).transpose(0, 1)
            return loss(part, Batch(x, batch.y.T, batch.index.T))

        count = settings.epochs * takes[first, last]
        step[first, last] = local_step(
            part, method, on_images, its_state, settings, task.device, count
        )
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    # Samples are gathered in the order of use: in each step by position in the batch, then by
    # client.
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    use = torch.cat(
        [(starts[i:j] + torch.arange(at, at + size)[:, None]).flatten() for at, i, j, size in plan]
    )
    use = use.to(task.device)
    with rng.scope(task.seed, "dropout", ctx.round, *ctx.client, device=task.device):
        for _ in range(settings.epochs):
            orders = [torch.randperm(n, generator=g) for n, g in zip(sizes, shuffle, strict=True)]
            x, y = task.gather(ctx.client, orders, augment)
            data, done = (x[use], y[use], torch.cat(orders).to(task.device)[use]), 0
            for _, first, last, size in plan:
                end = done + size * (last - first)
                step[first, last](*(t[done:end].unflatten(0, (size, -1)) for t in data))
                done = end


GRAPH_PAYS = 20  # steps of one shape: recording takes about as long as a few of them


def recorded(step: Callable[..., None], device: torch.device) -> Callable[..., None]:
    """``step`` as CUDA graphs, one for each shape of its inputs: the first two calls run as they
    are (on a side stream, as recording demands), the third is recorded, and from then on one
    launch replays the whole step."""
    side, seen, graphs = torch.cuda.Stream(device), Counter(), {}

    def replay(*inputs):
        with torch.cuda.device(device):
            run(*inputs)

    def run(*inputs):
        shape = tuple(t.shape for t in inputs)
        seen[shape] += 1
        if seen[shape] < 3:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step(*inputs)
            torch.cuda.current_stream().wait_stream(side)
            return
        if shape not in graphs:
            graph, memory = torch.cuda.CUDAGraph(), [t.clone() for t in inputs]
            with torch.cuda.graph(graph):
                step(*memory)  # recorded, not run
            graphs[shape] = graph, memory
        graph, memory = graphs[shape]
        for place, t in zip(memory, inputs, strict=True):
            place.copy_(t)
        graph.replay()

    return replay


@cache
def keep_memory() -> None:
    """Have the C library keep what is freed. By default it gives large blocks back to the system,
    and getting them again costs several times what copying a message into them does: every page
    is cleared anew."""
    with suppress(OSError, AttributeError):  # other libraries than glibc have no such call
        mallopt = ctypes.CDLL(None).mallopt
        for which in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            mallopt(which, 2**30)


@contextmanager
def threads(count: int, precision: str = "float32") -> Iterator[None]:
    """Run a block on that many CPU threads, with TensorFloat-32 products on a GPU unless they
    shall be exact."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    keep_memory()
    before = torch.get_num_threads(), cuda.allow_tf32, cudnn.allow_tf32
    torch.set_num_threads(count)
    cuda.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cuda.allow_tf32, cudnn.allow_tf32 = before[1:]

"""The hot loop: what clients do between download and upload, one client at a time or all at
once."""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import nn

from . import rng
from .engines import layers
from .models import multiply_adds
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
    of one shape it will take that could be recorded."""
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
    count = settings.epochs * (n // B) * task.recordable
    step = local_step(net, method, loss, state, settings, task.device, count)
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    with rng.scope(task.seed, "dropout", ctx.round, ctx.client, device=task.device):
        for _ in range(settings.epochs):
            order = torch.randperm(n, generator=shuffle)
            x, y = task.epoch(ctx.client, order, augment)
            x = x.to(params[0].dtype, memory_format=layers.layout(net))
            index = order.to(task.device)
            for at in range(0, n, B):
                step(x[at : at + B], y[at : at + B], index[at : at + B])


STEP = 7e6  # multiply-adds (forward) that take as long as what a stacked step costs anyway


def steps(
    sizes: list[int], batch_size: int, spare: float = 0
) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """One epoch of stacked training, as (at, first, last, counts): clients first..last-1 take
    their samples from ``at`` on, so many each.

    ``sizes`` (n_k) must fall. Clients share a step where their batches have the same size: sizes
    5, 5, 3 in batches of 4 give (0, 0, 2, (4, 4)), (0, 2, 3, (3,)), (4, 0, 2, (1, 1)). Batches of
    different size share one where rows that count for nothing are cheaper than another step, which
    costs as much as ``spare`` rows."""
    plan = []
    for at in range(0, max(sizes), batch_size):
        counts = tuple(min(batch_size, n - at) for n in sizes if n > at)
        ends = [0, *(i for i in range(1, len(counts)) if counts[i] < counts[i - 1]), len(counts)]
        best: list[tuple[float, list]] = [(0.0, [])]  # cost and steps of the clients up to each end
        for last in ends[1:]:
            ways = (
                (cost + spare + counts[first] * (last - first), [*before, (first, last)])
                for first, (cost, before) in zip(ends, best, strict=False)
            )
            best.append(min(ways))
        plan += [(at, first, last, counts[first:last]) for first, last in best[-1][1]]
    return plan


def spare_rows(net: nn.Module, task: Any) -> float:
    """How many samples of arithmetic a stacked step less is worth."""
    return STEP / multiply_adds(net, task.shape)


@torch.enable_grad()
def train_stacked(
    net: nn.Module, method: Any, ctx: Context, settings: Settings, spare: float = 0
) -> None:
    """The same training for all clients of ``ctx`` at once, those with most samples first; ``net``
    is stacked. ``spare``: see ``steps``; without effect where the objective does not allow it.

    Every draw comes from the generator that sequential training uses, and only the last bits of
    sums differ. (On a GPU dropout is drawn for the whole stack from one generator, named after all
    its clients.)"""
    task = ctx.task
    sizes = [task.sizes[k] for k in ctx.client]
    pads = method.objective.pads and settings.precision != "bf16"
    plan = steps(sizes, settings.batch_size, spare * pads)
    net.train()
    layers.seed_dropout(net, ctx)
    state, dtype = method.optimizer.init(trainable(net), ctx), next(net.parameters()).dtype
    takes = Counter((first, last, _padded(counts)) for _, first, last, counts in plan)
    step = {}
    for first, last, counts in takes:  # all before training: an objective may copy the network
        part = layers.narrow(net, first, last)
        if counts:
            layers.pad(part, counts)
        its_state = {
            k: [t[first:last] for t in v] if isinstance(v, list) else v for k, v in state.items()
        }
        loss = method.objective.begin(part, ctx.narrow(first, last))

        # a mean over n_k of n rows, of which the others are zero
        share = torch.tensor([max(counts) / n for n in counts], device=task.device, dtype=dtype)

        def on_images(part, batch, loss=loss, share=share):
            x = task.inputs(layers.channels_last(batch.x)).to(dtype).transpose(0, 1)
            value = loss(part, Batch(x, batch.y.transpose(0, 1), batch.index.T))
            return value * share if len(share) else value

        count = settings.epochs * takes[first, last, counts] * task.recordable
        step[first, last, counts] = local_step(
            part, method, on_images, its_state, settings, task.device, count
        )
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    # Samples are gathered in the order of use: in each step by position in the batch, then by
    # client.
    n = torch.tensor(sizes)
    starts, wanted, there = n.cumsum(0) - n, [], []
    for at, i, j, counts in plan:
        row = torch.arange(at, at + counts[0])[:, None]
        wanted.append((starts[i:j] + row.minimum(n[i:j] - 1)).flatten())
        there.append((row < n[i:j]).flatten())
    use, absent = torch.cat(wanted).to(task.device), ~torch.cat(there).to(task.device)
    with rng.scope(task.seed, "dropout", ctx.round, *ctx.client, device=task.device):
        for _ in range(settings.epochs):
            orders = [torch.randperm(n, generator=g) for n, g in zip(sizes, shuffle, strict=True)]
            x, y = task.gather(ctx.client, orders, augment)
            y = y[use].masked_fill_(absent.view(-1, *[1] * (y.dim() - 1)), task.ignored)
            data, done = (x[use], y, torch.cat(orders).to(task.device)[use]), 0
            for _, first, last, counts in plan:
                end = done + counts[0] * (last - first)
                batch = (t[done:end].unflatten(0, (counts[0], -1)) for t in data)
                step[first, last, _padded(counts)](*batch)
                done = end


def _padded(counts: tuple[int, ...]) -> tuple[int, ...]:
    """The rows of each client that count, if they are not all."""
    return counts if counts[-1] < counts[0] else ()


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

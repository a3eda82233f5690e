"""All clients of a round train in one step: an engine that replaces local training.

Method, batches and draws are those of sequential training; only the last bits of sums
differ. Parameters and buffers of a stacked network are [clients, ...], activations
[clients, batch, ...]. In memory the batch comes before the clients: [batch,
clients*channels, h, w] is what one grouped convolution, pooling or normalisation takes
without a copy. A network may have the layers of ``FORMS``, and others whose ``forward``
counts dimensions from the end.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import rng
from ..core import Batch, Context, OneByOne, local
from ..core.local import SMALL_STEP, step_work
from ..errors import WireError
from ..models import multiply_adds, state_of
from ..models.kernels import Drawing
from ..settings import Settings

STEP = 7e6  # multiply-adds (forward) that take as long as the overhead of a step
MEMORY = 2**31  # bytes that are free, where psutil cannot say
MALLOC_MAX = 32_000_000  # bytes: the largest block that changes glibc's threshold
MOST = 128  # clients in one step on a CPU: more take more memory and gain nothing


def connect(engine: str, side: Any) -> OneByOne:
    """The clients of a run for ``engine`` "stacked" or "auto"."""
    count = len(side.participants(1))
    choice = choose(engine, side.method, side.task, side.settings, count)
    stacks = choice.together > 1
    clients = Stacked(side, choice.together) if stacks else OneByOne(side)
    clients.about = asdict(choice)
    return clients


class Stacked(OneByOne):
    """Clients train ``together`` at a time; a group's messages are written at once."""

    def __init__(self, side: Any, together: int) -> None:
        super().__init__(side)
        self.together = together
        self._stack: Any = None
        work = multiply_adds(side.net, side.task.example)
        self._spare = STEP / max(1, work)  # see ``steps``
        # once a block of this size was freed, glibc keeps freed memory for the next step
        torch.empty(MALLOC_MAX, dtype=torch.uint8)

    def exchange(
        self,
        t: int,
        question: str,
        clients: Iterable[int],
        write: Callable[[int], bytes],
    ) -> Iterator[tuple[int, bytes | WireError]]:
        order = list(clients)
        sizes = self.side.task.sizes
        for i in range(0, len(order), self.together):
            group = order[i : i + self.together]
            if question != "train" or len(group) == 1:
                yield from super().exchange(t, question, group, write)
                continue
            falling = sorted(group, key=lambda k: -sizes[k])
            messages = {k: write(k) for k in falling}
            try:
                answers = self._together(t, messages)
            except Exception:  # an error of one client is found by training each alone
                read = messages.__getitem__
                answers = dict(super().exchange(t, question, falling, read))
                refused = [a for a in answers.values() if isinstance(a, WireError)]
                if not refused:
                    raise  # the stack fails, and no client
            yield from ((k, answers.pop(k)) for k in group)

    def _together(self, t: int, messages: dict[int, bytes]) -> dict[int, Any]:
        """Download, training and upload of several clients; only training is common."""
        side = self.side
        memories = {k: self.recall(k) for k in messages}
        contexts = []
        for k, data in messages.items():
            contexts.append(side.download(t, k, data, memories[k]))
        if self._stack is None:
            self._stack = stack(side.net, self.together)
        net = narrow(self._stack, 0, len(contexts))
        trained = state_of(net)
        first = contexts[0].start
        for name, w in trained.items():
            starts = [ctx.start[name] for ctx in contexts]
            common = all(start is first[name] for start in starts)
            w.copy_(first[name] if common else torch.stack(starts))
        ctx = replace(
            contexts[0],
            client=list(messages),
            memory=[c.memory for c in contexts],
            start={n: w.clone() for n, w in trained.items()},
        )
        side.method.model.refresh(net, side.task, t)
        train(net, side.method, ctx, side.settings, self._spare)
        answers = {}
        rows = zip(*(w.contiguous() for w in trained.values()), strict=True)
        for context, row in zip(contexts, rows, strict=True):
            weights = dict(zip(trained, row, strict=True))
            answers[context.client] = side.upload(weights, context)
        self.new |= memories
        return answers


# ---- local training ------------------------------------------------------------------

Step = tuple[int, int, int, tuple[int, ...]]


def steps(sizes: list[int], batch_size: int, spare: float = 0) -> list[Step]:
    """One epoch of stacked training, a step each as (at, first, last, counts).

    Clients first..last-1 take their samples from ``at`` on, ``counts`` each. ``sizes``
    (n_k) must fall: 5, 5, 3 in batches of 4 give (0, 0, 2, (4, 4)), (0, 2, 3, (3,)),
    (4, 0, 2, (1, 1)). The overhead of a step costs as much as ``spare`` rows. Uneven
    batches share a step where padding costs less than that overhead.
    """
    plan = []
    for at in range(0, max(sizes), batch_size):
        counts = tuple(min(batch_size, n - at) for n in sizes if n > at)
        falls = [i for i in range(1, len(counts)) if counts[i] < counts[i - 1]]
        ends = [0, *falls, len(counts)]
        # cost and steps of the clients up to each end
        best: list[tuple[float, list]] = [(0.0, [])]
        for last in ends[1:]:
            choices = []
            for first, (cost, before) in zip(ends, best, strict=False):
                rows = counts[first] * (last - first)
                choices.append((cost + spare + rows, [*before, (first, last)]))
            best.append(min(choices))
        _, shortest = best[-1]
        plan += [(at, first, last, counts[first:last]) for first, last in shortest]
    return plan


@torch.enable_grad()
def train(
    net: nn.Module, method: Any, ctx: Context, settings: Settings, spare: float = 0
) -> None:
    """``local.train`` for all clients of ``ctx`` at once, most samples first, with the
    draws of sequential training (but for dropout on a GPU).

    ``spare``: see ``steps``; it counts only for the task's own loss.
    """
    task = ctx.task
    sizes = [task.sizes[k] for k in ctx.client]
    pads = type(method.objective) is local.TaskLoss and settings.precision != "bf16"
    plan = steps(sizes, settings.batch_size, spare * pads)
    # all before the first step: an objective may copy the network
    parts = narrowed(net.train(), method, ctx, settings, plan)
    shuffle = ctx.generator("shuffle")
    augment = ctx.generator("augment")
    use, padding = (t.to(task.device) for t in in_order_of_use(plan, sizes))
    with rng.scope(task.seed, "dropout", ctx.round, *ctx.client, device=task.device):
        for _ in range(settings.epochs):
            orders = [
                torch.randperm(n, generator=g)
                for n, g in zip(sizes, shuffle, strict=True)
            ]
            x, y = task.gather(ctx.client, orders, augment)
            y = y[use]
            y[padding] = task.ignored
            index = torch.cat(orders).to(task.device)
            data = (x[use], y, index[use])
            done = 0
            for _, first, last, counts in plan:
                end = done + counts[0] * (last - first)
                shape = (counts[0], -1)
                batch = Batch(*(t[done:end].unflatten(0, shape) for t in data))
                part, params, state, loss = parts[first, last, uneven(counts)]
                local.step(loss(part, batch), params, method.optimizer, state)
                done = end


def narrowed(
    net: nn.Module, method: Any, ctx: Context, settings: Settings, plan: list[Step]
) -> dict[tuple, tuple]:
    """(first, last, rows) -> network, parameters, optimizer state and loss of a step's
    clients; tensors are views."""
    draws = any(isinstance(module, Drawing) for module in net.modules())
    generators = ctx.generator("dropout") if draws else []
    whole = method.optimizer.init(local.trainable(net), ctx)
    parts: dict[tuple, tuple] = {}
    for _, first, last, counts in plan:
        rows = uneven(counts)
        if (first, last, rows) in parts:
            continue
        part = narrow(net, first, last)
        prepare(part, rows, generators[first:last])
        context = replace(
            ctx,
            client=ctx.client[first:last],
            memory=ctx.memory[first:last],
            start={name: t[first:last] for name, t in ctx.start.items()},
        )
        loss = method.objective.begin(part, context)
        loss = local.in_precision(_on_images(loss, ctx.task, rows), ctx.task, settings)
        state = {
            k: [t[first:last] for t in v] if isinstance(v, list) else v
            for k, v in whole.items()
        }
        parts[first, last, rows] = (part, local.trainable(part), state, loss)
    return parts


def in_order_of_use(plan: list[Step], sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The samples of all steps, in each by position in the batch, then by client; and
    which of them are padding."""
    n = torch.tensor(sizes)
    starts = n.cumsum(0) - n
    use = []
    padding = []
    for at, first, last, counts in plan:
        row = torch.arange(at, at + counts[0])[:, None]
        count = n[first:last]
        sample = starts[first:last] + row.minimum(count - 1)
        use.append(sample.flatten())
        padding.append((row >= count).flatten())
    return torch.cat(use), torch.cat(padding)


def uneven(counts: tuple[int, ...]) -> tuple[int, ...]:
    """The rows of each client that are no padding; empty if none is."""
    return counts if counts[-1] < counts[0] else ()


def _on_images(loss: Callable, task: Any, rows: tuple[int, ...]) -> Callable:
    """``loss`` of pixels [batch, clients, ...], where only ``rows`` of each client
    count."""

    def on_images(part, batch):
        x = task.inputs(channels_last(batch.x)).transpose(0, 1)
        x = x.to(next(part.parameters()).dtype)
        y = batch.y.transpose(0, 1)
        value = loss(part, Batch(x, y, batch.index.T))
        if not rows:
            return value
        return value * value.new_tensor([max(rows) / n for n in rows])

    return on_images


# ---- layers --------------------------------------------------------------------------


def merge(x: Tensor) -> Tensor:
    """[clients, batch, channels, ...] -> [batch, clients*channels, ...]."""
    y = x.transpose(0, 1).flatten(1, 2)
    # a single image may have any strides, and with some of them torch's grouped
    # convolution has a wrong gradient of its weights (2.15 on a CPU)
    return y.clone(memory_format=torch.contiguous_format) if len(y) == 1 else y


def split(x: Tensor, clients: int) -> Tensor:
    """The inverse of ``merge``."""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


def _flat(t):
    return None if t is None else t.flatten(0, 1)


def channels_last(x: Tensor) -> Tensor:
    """[batch, clients, channels, height, width] in the memory order batch, height,
    width, clients, channels, in which a CPU convolves, pools and normalises all clients'
    channels at once. Vectors stay as they are."""
    if x.dim() < 5:
        return x
    y = x.flatten(1, 2).contiguous(memory_format=torch.channels_last)
    return y.unflatten(1, x.shape[1:3])


class Conv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(
            merge(x),
            _flat(self.weight),
            _flat(self.bias),
            self.stride,
            self.padding,
            self.dilation,
            len(x) * self.groups,
        )
        return split(y, len(x))


class _Padded(torch.autograd.Function):
    """Batch normalisation of x [batch, channels, ...] with padding.

    ``real`` [batch, channels, 1...] is one in rows that are no padding, and n [channels]
    counts their entries. No gradient may come from the padding, and none goes to it.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, real, n, eps):
        axes = [0, *range(2, x.dim())]
        wide = (-1, *[1] * (x.dim() - 2))
        mean = (x * real).sum(axes) / n
        centred = (x - mean.view(wide)) * real
        var = centred.square_().sum(axes) / n
        scale = mean.new_ones(mean.shape) if weight is None else weight
        # outputs that are attributes of ctx would never be freed
        ctx.save_for_backward(x, scale, real, n, mean, var)
        ctx.mark_non_differentiable(mean, var)
        ctx.eps = eps
        ctx.wide = wide
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var

    @staticmethod
    def backward(ctx, g, *_):
        x, weight, real, n, mean, var = ctx.saved_tensors
        invstd = (var + ctx.eps).rsqrt()
        # as if the statistics were constants; a GPU asks for them twice
        dx, dw, db = torch.ops.aten.native_batch_norm_backward(
            g, x, weight, mean, var, mean, invstd, False, ctx.eps, [True] * 3
        )
        scale = weight * invstd / n
        slope = dw * invstd
        at_zero = scale * (db - mean * slope)
        slope = scale * slope
        line = torch.addcmul(at_zero.view(ctx.wide), x, slope.view(ctx.wide))
        dx -= line * real
        _, scales, shifts, *_ = ctx.needs_input_grad  # either may be frozen
        return dx, dw if scales else None, db if shifts else None, None, None, None


@lru_cache(64)
def _padding(
    rows: tuple[int, ...], shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """``real`` and ``n`` of ``_Padded`` where each client has so many ``rows``."""
    batch, channels, *image = shape
    each = torch.tensor(rows, device=device).repeat_interleave(channels)
    real = torch.arange(batch, device=device)[:, None] < each
    real = real.to(dtype).view(*real.shape, *[1] * len(image))
    n = each * prod(image)
    return real, n.to(dtype)


class _Norm:
    """Batch normalisation: the statistics of each client's own batch."""

    rows: tuple[int, ...] = ()  # see ``prepare``

    def forward(self, x: Tensor) -> Tensor:
        mean = _flat(self.running_mean)
        var = _flat(self.running_var)
        weight = _flat(self.weight)
        bias = _flat(self.bias)
        of_batch = self.training or mean is None
        if self.rows and of_batch:
            return split(self.padded(x, mean, var, weight, bias), len(x))
        y = F.batch_norm(
            merge(x), mean, var, weight, bias, of_batch, self.momentum, self.eps
        )
        return split(y, len(x))

    def padded(self, x, mean, var, weight, bias):
        if min(self.rows) * x[0, 0, 0].numel() < 2:
            raise ValueError("Expected more than 1 value per channel when training.")
        real, n = _padding(self.rows, x.shape[1:], x.dtype, x.device)
        y, new_mean, new_var = _Padded.apply(merge(x), weight, bias, real, n, self.eps)
        if mean is not None:
            with torch.no_grad():
                mean.lerp_(new_mean, self.momentum)
                var.lerp_(new_var * (n / (n - 1)), self.momentum)
        return y


class GroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        groups = len(x) * self.num_groups
        weight = _flat(self.weight)
        bias = _flat(self.bias)
        y = F.group_norm(merge(x), groups, weight, bias, self.eps)
        return split(y, len(x))


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.transpose(1, 2)
        bias = self.bias  # read once: it may be drawn
        if bias is None:
            return torch.bmm(x, weight)
        return torch.baddbmm(bias[:, None], x, weight)


class _Pool:
    def forward(self, x: Tensor) -> Tensor:
        return split(super().forward(merge(x)), len(x))


class AdaptiveAvgPool2d(_Pool, nn.AdaptiveAvgPool2d):
    def forward(self, x: Tensor) -> Tensor:
        if self.output_size not in (1, (1, 1)):
            return super().forward(x)
        # the same mean, but its gradient lies in memory in the order of ``x``
        y = F.avg_pool2d(merge(x), x.shape[-2:])
        return split(y, len(x))


class Flatten(nn.Flatten):
    def forward(self, x: Tensor) -> Tensor:
        first, last = (d + (d >= 0) for d in (self.start_dim, self.end_dim))
        return x.flatten(first, last)


class Dropout(Drawing, nn.Dropout):
    """Draws each client's mask from that client's own generator, as sequential training does."""

    layout = torch.contiguous_format  # see ``stack``
    rows: tuple[int, ...] = ()  # see ``prepare``

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.is_cuda:  # one launch for all
            return super().forward(x)
        layout = self.layout if x.dim() == 5 else torch.contiguous_format
        masks = torch.zeros(x.shape)
        rows = self.rows or [x.shape[1]] * len(x)
        for mask, n, g in zip(masks, rows, self.generators, strict=True):
            draw = torch.empty((n, *x.shape[2:]), memory_format=layout)
            mask[:n] = draw.bernoulli_(1 - self.p, generator=g)
        return x * masks.to(x).div_(1 - self.p)


FORMS: dict[type[nn.Module], type] = {
    nn.Conv2d: Conv2d,
    nn.GroupNorm: GroupNorm,
    nn.Linear: Linear,
    nn.Flatten: Flatten,
    nn.AdaptiveAvgPool2d: AdaptiveAvgPool2d,
    nn.Dropout: Dropout,
}
for layer in (nn.BatchNorm1d, nn.BatchNorm2d):
    FORMS[layer] = type(layer.__name__, (_Norm, layer), {})
for layer in (nn.MaxPool2d, nn.AvgPool2d, nn.Upsample):
    FORMS[layer] = type(layer.__name__, (_Pool, layer), {})


@cache
def form(kind: type[nn.Module]) -> type[nn.Module]:
    """The stacked form of a kind of layer; of a kind that has none, itself."""
    if "computed_by" in vars(kind):  # see ``models.kernels``
        mixin, plain = vars(kind)["computed_by"]
        return type(f"Stacked{kind.__name__}", (mixin, FORMS[plain]), {})
    return FORMS.get(kind, kind)


def remake(net: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """A module like this one, with what ``change`` makes of each tensor of floats."""
    tensors: dict[int, Tensor] = {}  # tied tensors stay tied

    def changed(t: Tensor | None) -> Tensor | None:
        if t is None or not t.is_floating_point():
            return t
        if id(t) not in tensors:
            new = change(t.detach())
            if isinstance(t, nn.Parameter):
                new = nn.Parameter(new, t.requires_grad)
            tensors[id(t)] = new
        return tensors[id(t)]

    def remade(module: nn.Module | None) -> nn.Module | None:
        if module is None:
            return None
        new = copy.copy(module)
        entries = vars(new)  # deepcopy and setattr take two to ten times as long
        for name in ("_parameters", "_buffers"):
            entries[name] = {k: changed(t) for k, t in entries[name].items()}
        entries["_modules"] = {k: remade(m) for k, m in module._modules.items()}
        return new

    return remade(net)


def stack(net: nn.Module, clients: int) -> nn.Module:
    """A copy of ``net``: layers in stacked form, tensors repeated along a new axis 0."""
    stacked = remake(net, lambda t: t.expand(clients, *t.shape).clone())
    for module in stacked.modules():
        module.__class__ = form(type(module))
        if isinstance(module, Dropout):
            module.layout = local.layout(net)
    return stacked


def narrow(net: nn.Module, first: int, last: int) -> nn.Module:
    """The stacked network of clients ``first`` to ``last - 1``: views of the whole."""
    return remake(net, lambda t: t[first:last])


def prepare(
    net: nn.Module, rows: tuple[int, ...], generators: list[torch.Generator]
) -> None:
    """So many ``rows`` of each client's batch count, all if empty; layers draw from these."""
    for module in net.modules():
        if isinstance(module, _Norm | Dropout):
            module.rows = rows
        if isinstance(module, Drawing):
            module.generators = generators


@dataclass(frozen=True)
class Choice:
    """What was chosen: ``together`` clients in a step, and the reason, for the history."""

    name: str
    together: int
    why: str


def choose(
    engine: str,
    method: Any,
    task: Any,
    settings: Settings,
    count: int,
) -> Choice:
    """The ``Choice`` for ``count`` clients a round, which take half the free memory."""
    limit = free_memory(task.device) // 2
    need = bytes_for_one(method, task, settings.batch_size)
    if limit < need and engine == "stacked":
        raise ValueError(
            f"Training one client takes about {need / 1e6:.1f} MB, but half of the free "
            f"memory is {limit / 1e6:.1f} MB."
        )
    together = int(min(max(1, limit / need), count))
    if task.device.type == "cpu":
        together = min(together, MOST)
    if together == 1:
        reason = (
            "one client a round" if count == 1 else "memory for one client at a time"
        )
        return Choice("sequential", 1, reason)
    reason = "asked for"
    if engine == "auto":
        net = local.initial_network(method, task)
        work = step_work(net, task, settings.batch_size)
        reason = f"{work / 1e6:,.1f} million multiply-adds a step"
        if work >= SMALL_STEP:
            return Choice("sequential", 1, reason)
    problem = obstacle(method, task, settings)
    if problem is None:
        return Choice("stacked", together, reason)
    if engine == "stacked":
        raise ValueError(f"{method.name} cannot be trained stacked: {problem}.")
    return Choice("sequential", 1, problem)


def free_memory(device: torch.device) -> int:
    """Bytes that nobody uses, of a GPU or of this machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        import psutil
    except ModuleNotFoundError:
        return MEMORY
    return psutil.virtual_memory().available


def bytes_for_one(method: Any, task: Any, batch_size: int) -> int:
    """Memory of one stacked client: seven times its state, twice what its largest batch
    saves for the backward pass, and its images twice."""
    net = local.initial_network(method, task)
    client = int(np.argmax(task.sizes))
    state = sum(t.nbytes for t in state_of(net).values())
    saved = {}

    def note(t):
        # the storage is kept until all is counted, but not its history
        storage = t.detach().untyped_storage()
        saved[storage.data_ptr()] = storage

    order = torch.arange(min(batch_size, task.sizes[client]))
    x, y = task.epoch(client, order, rng.generator(0))
    loss = method.objective.begin(net.train(), _context(task, net, client))
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda _: None)
    with hooks, rng.scope(0, device=task.device):
        loss(net, Batch(x, y, order.to(task.device)))
    activations = sum(storage.nbytes() for storage in saved.values())
    images = task.sizes[client] * task.train[0][0].nbytes
    return 7 * state + 2 * activations + 2 * images


def obstacle(method: Any, task: Any, settings: Settings) -> str | None:
    """Why a method cannot be stacked, or None.

    Networks and objectives may be anybody's. One that mixes clients would train wrongly
    and in silence, so the losses around a first step are compared with those of each
    client alone.
    """
    if not method.client_class.stacks:
        return "its clients take turns in a round"
    if task.device.type == "mps":
        return "Apple's GPU has no float64, in which the two forms are compared"
    net = local.initial_network(method, task).double().train()
    try:
        copy.deepcopy(net)
    except Exception as error:  # such as weights that a hook computes
        return f"its network cannot be copied ({type(error).__name__})"
    kinds = {type(m) for m in net.modules() if m._parameters or m._buffers}
    unknown = [
        kind.__name__
        for kind in kinds
        if kind.__module__.startswith("torch.nn") and form(kind) is kind
    ]
    if unknown:
        names = ", ".join(sorted(unknown))
        return f"its network has layers without a stacked form ({names})"
    for module in net.modules():
        if isinstance(module, nn.Dropout) and task.device.type == "cuda":
            module.p = 0.0  # on a GPU the two forms draw different masks
    batched = any(isinstance(module, nn.BatchNorm1d) for module in net.modules())
    if batched and any(n % settings.batch_size == 1 for n in task.sizes):
        return "a client's last batch of one cannot pass its batch normalisation"
    pair = np.argsort(task.sizes)[-2:].tolist()
    fewest = min(task.sizes[k] for k in pair)
    order = torch.arange(min(settings.batch_size, fewest, 8))
    batches = []
    alone = []
    for k in pair:
        x, y = task.epoch(k, order, rng.generator(0))
        batches.append((x.double(), y, order.to(task.device)))
        context = _context(task, net, k)
        single = copy.deepcopy(net)
        alone.append(_losses(single, method, context, Batch(*batches[-1])))
    x, y, index = (torch.stack(tensors) for tensors in zip(*batches, strict=True))
    x = channels_last(x.transpose(0, 1)).transpose(0, 1)
    stacked = stack(net, 2)
    context = replace(_context(task, stacked, pair), net=net)
    try:
        losses = _losses(stacked, method, context, Batch(x, y, index))
    except Exception as error:  # a part that does not expect the client axis
        message, *_ = str(error).splitlines() or [""]
        return f"{type(error).__name__}: {message}"
    expected = torch.stack(alone, 1)
    if losses.dim() == 2 and torch.allclose(losses, expected, 1e-6, equal_nan=True):
        return None
    return "the losses of a first step are not those of each client by itself"


def _losses(net: nn.Module, method: Any, ctx: Context, batch: Batch) -> Tensor:
    """The losses before and after one step on a batch, of one client or [2, clients]."""
    clients = ctx.client
    if isinstance(clients, list):
        prepare(net, (), ctx.generator("dropout"))
    else:
        clients = [clients]
    params = local.trainable(net)
    state = method.optimizer.init(params, ctx)
    loss = method.objective.begin(net, ctx)
    task = ctx.task
    with rng.scope(task.seed, "dropout", 1, *clients, device=task.device):
        before = loss(net, batch)
        local.step(before, params, method.optimizer, state)
        return torch.stack([before, loss(net, batch)]).detach()


def _context(task: Any, net: nn.Module, client: Any) -> Context:
    """The context of a first round from this network."""
    start = {name: t.clone() for name, t in state_of(net).items()}
    memory = [{} for _ in client] if isinstance(client, list) else {}
    return Context(task, 1, client, start, start, memory, net=net)

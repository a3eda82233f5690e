"""All clients of a round train in one step: an engine that replaces local training. Same method,
batches and draws: only the last bits of sums differ. Parameters and buffers of a stacked network
are [clients, ...], activations [clients, batch, ...]; in memory the batch comes before the clients,
so that without a copy [batch, clients*channels, h, w] is what one grouped convolution, pooling or
normalisation takes. A network may have the layers of ``FORMS``, and others whose ``forward`` counts
dimensions from the end."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .. import rng
from ..core import Batch, Context, OneByOne, local
from ..core.local import SMALL_STEP, step_work
from ..errors import WireError, check_number
from ..models import multiply_adds, state_of
from ..models.kernels import Drawing
from ..settings import Settings

STEP = (
    7e6  # multiply-adds (forward) that take as long as what a stacked step costs anyway
)
MEMORY = 2**31  # bytes that are free, where psutil cannot say
MOST = 128  # clients in one step on a CPU: with more, a step needs more memory and gains nothing


def connect(engine: str, side: Any, memory_limit: float | None = None) -> OneByOne:
    """The clients of a run for ``engine`` "stacked" or "auto", stacked if that is the choice."""
    count = len(side.participants(1))
    choice = choose(engine, side.method, side.task, side.settings, count, memory_limit)
    clients = OneByOne(side) if choice.together == 1 else Stacked(side, choice.together)
    clients.about = asdict(choice)
    return clients


class Stacked(OneByOne):
    """Clients train ``together`` so many at a time; messages of one group are there at once."""

    def __init__(self, side: Any, together: int) -> None:
        super().__init__(side)
        self.together = together
        self._stack: Any = None

    def exchange(
        self,
        t: int,
        question: str,
        clients: Iterable[int],
        write: Callable[[int], bytes],
    ) -> Iterator[tuple[int, bytes | WireError]]:
        order = list(clients)
        for i in range(0, len(order), self.together):
            group = order[i : i + self.together]
            if question != "train" or len(group) == 1:
                yield from super().exchange(t, question, group, write)
                continue
            falling = sorted(group, key=lambda k: -self.side.task.sizes[k])
            messages = {k: write(k) for k in falling}
            try:
                answers = self._together(t, messages)
            except Exception:  # of one of them: each by itself
                answers = dict(
                    super().exchange(t, question, falling, messages.__getitem__)
                )
                if not any(
                    isinstance(answer, WireError) for answer in answers.values()
                ):
                    raise  # it is the stack that fails
            yield from ((k, answers.pop(k)) for k in group)

    def _together(self, t: int, messages: dict[int, bytes]) -> dict[int, Any]:
        """Download, training and upload of several clients; only training is common."""
        side, memories = self.side, {k: self.recall(k) for k in messages}
        contexts = [
            side.download(t, k, data, memories[k]) for k, data in messages.items()
        ]
        if self._stack is None:
            self._stack = stack(side.net, self.together)
        net = narrow(self._stack, 0, len(contexts))
        trained, first = state_of(net), contexts[0].start
        for name, w in trained.items():
            same = all(ctx.start[name] is first[name] for ctx in contexts)
            w.copy_(
                first[name]
                if same
                else torch.stack([ctx.start[name] for ctx in contexts])
            )
        start, memory = (
            {n: w.clone() for n, w in trained.items()},
            [c.memory for c in contexts],
        )
        ctx = replace(contexts[0], client=list(messages), memory=memory, start=start)
        side.method.model.refresh(net, side.task, t)
        work = multiply_adds(side.net, side.task.example)
        train(net, side.method, ctx, side.settings, STEP / max(1, work))
        answers = {}
        rows = zip(*(w.contiguous() for w in trained.values()), strict=True)
        for one, row in zip(contexts, rows, strict=True):
            weights = dict(zip(trained, row, strict=True))
            answers[one.client] = side.upload(weights, one)
        self.new |= memories
        return answers


def steps(
    sizes: list[int], batch_size: int, spare: float = 0
) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """One epoch of stacked training, as (at, first, last, counts): clients first..last-1 take their
    samples from ``at`` on, so many each. ``sizes`` (n_k) must fall: 5, 5, 3 in batches of 4 give
    (0, 0, 2, (4, 4)), (0, 2, 3, (3,)), (4, 0, 2, (1, 1)). Uneven batches share a step where rows
    that count for nothing are cheaper than another, which costs as much as ``spare`` rows."""
    plan = []
    for at in range(0, max(sizes), batch_size):
        counts = tuple(min(batch_size, n - at) for n in sizes if n > at)
        ends = [
            0,
            *(i for i in range(1, len(counts)) if counts[i] < counts[i - 1]),
            len(counts),
        ]
        best: list[tuple[float, list]] = [
            (0.0, [])
        ]  # cost and steps of the clients up to each end
        for last in ends[1:]:
            ways = (
                (
                    cost + spare + counts[first] * (last - first),
                    [*before, (first, last)],
                )
                for first, (cost, before) in zip(ends, best, strict=False)
            )
            best.append(min(ways))
        plan += [(at, first, last, counts[first:last]) for first, last in best[-1][1]]
    return plan


@torch.enable_grad()
def train(
    net: nn.Module, method: Any, ctx: Context, settings: Settings, spare: float = 0
) -> None:
    """``local.train`` for all clients of ``ctx`` at once, most samples first, with the draws of
    sequential training (but for dropout on a GPU). ``spare``: see ``steps``; only for the task's
    own loss."""
    task, params = ctx.task, local.trainable(net)
    sizes = [task.sizes[k] for k in ctx.client]
    pads = type(method.objective) is local.TaskLoss and settings.precision != "bf16"
    plan = steps(sizes, settings.batch_size, spare * pads)
    draws = any(isinstance(module, Drawing) for module in net.train().modules())
    generators = ctx.generator("dropout") if draws else []
    state, parts = method.optimizer.init(params, ctx), {}
    for (
        _,
        first,
        last,
        counts,
    ) in plan:  # all before training: an objective may copy the network
        rows = uneven(counts)
        if (first, last, rows) not in parts:
            part = narrow(net, first, last)
            prepare(part, rows, generators[first:last])
            loss = method.objective.begin(part, some_of(ctx, first, last))
            loss = local.in_precision(_on_images(loss, task, rows), task, settings)
            part_state = {
                k: [t[first:last] for t in v] if isinstance(v, list) else v
                for k, v in state.items()
            }
            parts[first, last, rows] = loss, part, local.trainable(part), part_state
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    # Samples are gathered in the order of use: in each step by position in the batch, then by
    # client.
    n = torch.tensor(sizes)
    starts, wanted, real = n.cumsum(0) - n, [], []
    for at, i, j, counts in plan:
        row = torch.arange(at, at + counts[0])[:, None]
        wanted.append((starts[i:j] + row.minimum(n[i:j] - 1)).flatten())
        real.append((row < n[i:j]).flatten())
    use, absent = torch.cat(wanted).to(task.device), ~torch.cat(real).to(task.device)
    with rng.scope(task.seed, "dropout", ctx.round, *ctx.client, device=task.device):
        for _ in range(settings.epochs):
            orders = [
                torch.randperm(n, generator=g)
                for n, g in zip(sizes, shuffle, strict=True)
            ]
            x, y = task.gather(ctx.client, orders, augment)
            y = y[use].masked_fill_(absent.view(-1, *[1] * (y.dim() - 1)), task.ignored)
            data, done = (x[use], y, torch.cat(orders).to(task.device)[use]), 0
            for _, first, last, counts in plan:
                end = done + counts[0] * (last - first)
                batch = Batch(
                    *(t[done:end].unflatten(0, (counts[0], -1)) for t in data)
                )
                loss, part, part_params, part_state = parts[first, last, uneven(counts)]
                local.step(loss(part, batch), part_params, method.optimizer, part_state)
                done = end


def some_of(ctx: Context, first: int, last: int) -> Context:
    """The context of some of the stacked clients; tensors are views."""
    return replace(
        ctx,
        client=ctx.client[first:last],
        memory=ctx.memory[first:last],
        start={name: t[first:last] for name, t in ctx.start.items()},
    )


def uneven(counts: tuple[int, ...]) -> tuple[int, ...]:
    """The rows of each client that count, if they are not all."""
    return counts if counts[-1] < counts[0] else ()


def _on_images(loss: Callable, task: Any, rows: tuple[int, ...]) -> Callable:
    """``loss`` of pixels [batch, clients, ...], where only ``rows`` of each client count."""

    def on_images(part, batch):
        x = task.inputs(channels_last(batch.x)).transpose(0, 1)
        x = x.to(next(part.parameters()).dtype) if x.is_floating_point() else x
        value = loss(part, Batch(x, batch.y.transpose(0, 1), batch.index.T))
        return (
            value * value.new_tensor([max(rows) / n for n in rows]) if rows else value
        )

    return on_images


def merge(x: torch.Tensor) -> torch.Tensor:
    """[clients, batch, channels, ...] -> [batch, clients*channels, ...]."""
    y = x.transpose(0, 1).flatten(1, 2)
    # the strides of a single image may be any, and with some of them torch's grouped convolution
    # has a wrong gradient of its weights (2.15 on a CPU)
    return y.clone(memory_format=torch.contiguous_format) if len(y) == 1 else y


def split(x: torch.Tensor, clients: int) -> torch.Tensor:
    """The inverse of ``merge``."""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


def _flat(t):
    return None if t is None else t.flatten(0, 1)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """[batch, clients, channels, height, width] in the order batch, height, width, clients,
    channels, in which a CPU convolves, pools and normalises all clients' channels at once.
    Tokens stay as they are."""
    if x.dim() < 5:
        return x
    return (
        x.flatten(1, 2)
        .contiguous(memory_format=torch.channels_last)
        .unflatten(1, x.shape[1:3])
    )


class Conv2d(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias, groups = (
            _flat(self.weight),
            _flat(self.bias),
            len(x) * self.groups,
        )
        y = F.conv2d(
            merge(x), weight, bias, self.stride, self.padding, self.dilation, groups
        )
        return split(y, len(x))


class _Ragged(torch.autograd.Function):
    """Batch normalisation over the rows of x [batch, channels, ...] where ``real`` [batch,
    channels, 1...] is one, n [channels] entries; no gradient may come from the others, none goes to
    them."""

    @staticmethod
    def forward(ctx, x, weight, bias, real, n, eps):
        axes, wide = [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))
        mean = (x * real).sum(axes) / n
        var = ((x - mean.view(wide)) * real).square_().sum(axes) / n
        scale = mean.new_ones(mean.shape) if weight is None else weight
        ctx.save_for_backward(
            x, scale, real, n, mean, var
        )  # kept on ctx, outputs are never freed
        ctx.mark_non_differentiable(mean, var)
        ctx.eps, ctx.wide = eps, wide
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var

    @staticmethod
    def backward(ctx, g, *_):
        x, weight, real, n, mean, var = ctx.saved_tensors
        invstd = (var + ctx.eps).rsqrt()
        dx, dw, db = torch.ops.aten.native_batch_norm_backward(
            g, x, weight, mean, var, mean, invstd, False, ctx.eps, [True] * 3
        )  # as if the statistics were constants; a GPU asks for them twice
        slope, scale = dw * invstd, weight * invstd / n
        at_zero, slope = scale * (db - mean * slope), scale * slope
        dx -= torch.addcmul(at_zero.view(ctx.wide), x, slope.view(ctx.wide)) * real
        scales, shifts = ctx.needs_input_grad[1:3]  # either may be frozen
        return dx, dw if scales else None, db if shifts else None, None, None, None


@lru_cache(64)
def _counting(
    rows: tuple[int, ...], shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """One where of each client's [batch, channels, ...] so many ``rows`` count, else zero: [batch,
    channels, 1...]; and the entries [channels] that count."""
    batch, channels, *image = shape
    each = torch.tensor(rows, device=device).repeat_interleave(channels)
    real = torch.arange(batch, device=device)[:, None] < each
    return real.to(dtype).view(*real.shape, *[1] * len(image)), (each * prod(image)).to(
        dtype
    )


class _Norm:
    """Batch normalisation: the statistics of each client's own batch."""

    rows: tuple[int, ...] = ()  # see ``prepare``

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, var = _flat(self.running_mean), _flat(self.running_var)
        weight, bias = _flat(self.weight), _flat(self.bias)
        of_batch = self.training or mean is None
        if self.rows and of_batch:
            return split(self._some(x, mean, var, weight, bias), len(x))
        y = F.batch_norm(
            merge(x), mean, var, weight, bias, of_batch, self.momentum, self.eps
        )
        return split(y, len(x))

    def _some(self, x, mean, var, weight, bias):
        if min(self.rows) * x[0, 0, 0].numel() < 2:
            raise ValueError("Expected more than 1 value per channel when training.")
        real, n = _counting(self.rows, x.shape[1:], x.dtype, x.device)
        y, new_mean, new_var = _Ragged.apply(merge(x), weight, bias, real, n, self.eps)
        if mean is not None:
            with torch.no_grad():
                mean.lerp_(new_mean, self.momentum)
                var.lerp_(new_var * (n / (n - 1)), self.momentum)
        return y


class GroupNorm(nn.GroupNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias, groups = (
            _flat(self.weight),
            _flat(self.bias),
            len(x) * self.num_groups,
        )
        return split(F.group_norm(merge(x), groups, weight, bias, self.eps), len(x))


class Linear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() > 3:  # a row for each position
            return self.forward(x.flatten(1, -2)).unflatten(1, x.shape[1:-1])
        weight, bias = (
            self.weight.transpose(1, 2),
            self.bias,
        )  # looked at once: may be drawn
        return (
            torch.bmm(x, weight)
            if bias is None
            else torch.baddbmm(bias[:, None], x, weight)
        )


class _Pool:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return split(super().forward(merge(x)), len(x))


class AdaptiveAvgPool2d(_Pool, nn.AdaptiveAvgPool2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.output_size not in (1, (1, 1)):
            return super().forward(x)
        # the same mean, but its gradient lies in memory in the order of ``x``
        return split(F.avg_pool2d(merge(x), x.shape[-2:]), len(x))


class Embedding(nn.Embedding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = (
            torch.arange(len(x), device=x.device) * self.num_embeddings
        )  # row of each client
        return F.embedding(x + first.view(-1, *[1] * (x.dim() - 1)), _flat(self.weight))


class Flatten(nn.Flatten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = (d + 1 if d >= 0 else d for d in (self.start_dim, self.end_dim))
        return x.flatten(first, last)


class Dropout(Drawing, nn.Dropout):
    """Draws each client's mask from that client's own generator, as sequential training does."""

    layout = torch.contiguous_format  # see ``stack``
    rows: tuple[int, ...] = ()  # see ``prepare``

    def forward(self, x: torch.Tensor) -> torch.Tensor:
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
    **{
        nn.Conv2d: Conv2d,
        nn.GroupNorm: GroupNorm,
        nn.Linear: Linear,
        nn.Flatten: Flatten,
    },
    **{nn.AdaptiveAvgPool2d: AdaptiveAvgPool2d, nn.Dropout: Dropout},
    nn.Embedding: Embedding,
}
norms, pools = (
    (nn.BatchNorm1d, nn.BatchNorm2d),
    (nn.MaxPool2d, nn.AvgPool2d, nn.Upsample),
)
FORMS |= {layer: type(layer.__name__, (_Norm, layer), {}) for layer in norms}
FORMS |= {layer: type(layer.__name__, (_Pool, layer), {}) for layer in pools}


@cache
def form(kind: type[nn.Module]) -> type[nn.Module]:
    """The stacked form of a kind of layer; of a kind that has none, itself."""
    if "computed_by" in vars(kind):  # see ``models.kernels``
        mixin, plain = vars(kind)["computed_by"]
        return type(f"Stacked{kind.__name__}", (mixin, FORMS[plain]), {})
    return FORMS.get(kind, kind)


def remake(net: nn.Module, change: Callable, tensors: dict | None = None) -> nn.Module:
    """A module like this one, with what ``change`` makes of each tensor of floats."""
    tensors = {} if tensors is None else tensors

    def changed(t: torch.Tensor | None) -> torch.Tensor | None:
        if t is None or not t.is_floating_point():
            return t
        if id(t) not in tensors:  # tied tensors stay tied
            new, moved = change(t.detach()), isinstance(t, nn.Parameter)
            tensors[id(t)] = nn.Parameter(new, t.requires_grad) if moved else new
        return tensors[id(t)]

    new = net.__class__.__new__(net.__class__)  # copy.copy and setattr take much longer
    new.__dict__ |= net.__dict__ | {
        "_parameters": {n: changed(t) for n, t in net._parameters.items()},
        "_buffers": {n: changed(t) for n, t in net._buffers.items()},
        "_modules": {
            n: c and remake(c, change, tensors) for n, c in net._modules.items()
        },
    }
    return new


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
    memory_limit: float | None = None,
) -> Choice:
    """The ``Choice`` for ``count`` clients a round; limit by default: half the free memory."""
    if memory_limit is not None:
        check_number("memory_limit", memory_limit, least=0)
    limit = free_memory(task.device) // 2 if memory_limit is None else memory_limit
    need = bytes_for_one(method, task, settings.batch_size)
    if limit < need and (memory_limit is not None or engine == "stacked"):
        both = f"{need / 1e6:.1f} MB, but memory_limit is {limit / 1e6:.1f} MB"
        raise ValueError(f"Training one client takes about {both}.")
    together = int(
        min(max(1, limit / need), count, MOST if task.device.type == "cpu" else count)
    )
    work = step_work(local.initial_network(method, task), task, settings.batch_size)
    why = (
        "asked for"
        if engine != "auto"
        else f"{work / 1e6:,.1f} million multiply-adds a step"
    )
    if together == 1:
        why = "one client a round" if count == 1 else "memory for one client at a time"
    elif engine == "stacked" or work < SMALL_STEP:
        problem = obstacle(method, task, settings)
        if problem is None:
            return Choice("stacked", together, why)
        if engine == "stacked":
            raise ValueError(f"{method.name} cannot be trained stacked: {problem}.")
        why = problem
    return Choice("sequential", 1, why)


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
    """Memory of one stacked client: seven times its state, twice what its largest batch saves for
    the backward pass, and its images twice."""
    net, client = local.initial_network(method, task), int(np.argmax(task.sizes))
    state = sum(t.nbytes for t in state_of(net).values())
    saved = {}

    def note(
        t,
    ):  # and keep it until all is counted, but not its history, which would keep it
        saved[t.untyped_storage().data_ptr()] = t.detach().untyped_storage()

    order = torch.arange(min(batch_size, task.sizes[client]))
    x, y = task.epoch(client, order, rng.generator(0))
    loss = method.objective.begin(net.train(), _context(task, net, client))
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda _: None)
    with hooks, rng.scope(0, device=task.device):
        loss(net, Batch(x, y, order.to(task.device)))
    images = task.sizes[client] * task.train[0][0].nbytes
    return 7 * state + 2 * sum(s.nbytes() for s in saved.values()) + 2 * images


def obstacle(method: Any, task: Any, settings: Settings) -> str | None:
    """What keeps a method from being stacked, or None: turns, a layer without a stacked form, or
    losses around a first step that are not those of each client by itself."""
    if not method.client_class.stacks:
        return "its clients take turns in a round"
    if task.device.type == "mps":
        return "Apple's GPU has no float64, in which the two forms are compared"
    net = local.initial_network(method, task).double().train()
    unknown = {
        type(m).__name__
        for m in net.modules()
        if type(m).__module__.startswith("torch.nn") and (m._parameters or m._buffers)
        if form(type(m)) is type(m)
    }
    if unknown:
        return f"its network has layers without a stacked form ({', '.join(sorted(unknown))})"
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout) and task.device.type == "cuda":
            module.p = 0.0  # on a GPU the two forms draw different masks
    batched = any(isinstance(module, nn.BatchNorm1d) for module in net.modules())
    if batched and any(n % settings.batch_size == 1 for n in task.sizes):
        return "a client's last batch of one cannot pass its batch normalisation"
    pair = np.argsort(task.sizes)[-2:].tolist()
    order = torch.arange(min(settings.batch_size, *(task.sizes[k] for k in pair), 8))
    index, epochs = (
        order.to(task.device),
        [task.epoch(k, order, rng.generator(0)) for k in pair],
    )
    batches = [
        Batch(x.double() if x.is_floating_point() else x, y, index) for x, y in epochs
    ]
    apart = [
        _losses(copy.deepcopy(net), method, _context(task, net, k), batch)
        for k, batch in zip(pair, batches, strict=True)
    ]
    x, y, index = (torch.stack(tensors) for tensors in zip(*batches, strict=True))
    x, both = channels_last(x.transpose(0, 1)).transpose(0, 1), stack(net, 2)
    try:
        losses = _losses(
            both, method, _context(task, both, pair, net), Batch(x, y, index)
        )
    except (
        Exception
    ) as error:  # whatever a part that does not expect the client axis does with it
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if losses.dim() == 2 and torch.allclose(
        losses, torch.stack(apart, 1), 1e-6, equal_nan=True
    ):
        return None
    return "the losses of a first step are not those of each client by itself"


def _losses(net: nn.Module, method: Any, ctx: Context, batch: Batch) -> torch.Tensor:
    """The losses before and after one step on a batch, of one client or [2, clients]."""
    many, params = isinstance(ctx.client, list), local.trainable(net)
    who = ctx.client if many else [ctx.client]
    if many:
        prepare(net, (), ctx.generator("dropout"))
    state, loss = method.optimizer.init(params, ctx), method.objective.begin(net, ctx)
    with rng.scope(ctx.task.seed, "dropout", 1, *who, device=ctx.task.device):
        before = loss(net, batch)
        local.step(before, params, method.optimizer, state)
        return torch.stack([before, loss(net, batch)]).detach()


def _context(
    task: Any, net: nn.Module, client: Any, alone: nn.Module | None = None
) -> Context:
    """``alone``: the network of one client, if ``net`` is stacked."""
    start = {name: t.clone() for name, t in state_of(net).items()}
    memory = [{} for _ in client] if isinstance(client, list) else {}
    return Context(task, 1, client, start, start, memory, net=alone or net)

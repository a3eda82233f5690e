"""Local training of one client; and the two parts that say what it trains: which network, and what
is minimised."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import rng
from .arguments import BelowOne, short
from .context import Batch, Context, Part, Tensors
from .errors import WireError
from .models import Network, state_of
from .settings import Settings

Loss = Callable[[nn.Module, Batch], torch.Tensor]


@torch.enable_grad()
def train(net: nn.Module, method: Any, ctx: Context, settings: Settings) -> None:
    """E epochs of minibatch training on the client's own data, in place on ``net``; each epoch is
    gathered, augmented and normalised in one go."""
    task, params, B = ctx.task, trainable(net), settings.batch_size
    n = task.sizes[ctx.client]
    state = method.optimizer.init(params, ctx)
    loss = in_precision(method.objective.begin(net.train(), ctx), task, settings)
    shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
    with rng.scope(task.seed, "dropout", ctx.round, ctx.client, device=task.device):
        for _ in range(settings.epochs):
            order = torch.randperm(n, generator=shuffle)
            x, y = task.epoch(ctx.client, order, augment)
            if x.is_floating_point():  # and no tokens
                x = x.to(params[0].dtype, memory_format=layout(net))
            index = order.to(task.device)
            for at in range(0, n, B):
                batch = Batch(x[at : at + B], y[at : at + B], index[at : at + B])
                step(loss(net, batch), params, method.optimizer, state)


def step(loss: torch.Tensor, params: list, optimizer: Any, state: dict[str, Any]) -> None:
    """One local step, in place; of several stacked clients the losses come as [clients]."""
    # a parameter that the loss does not depend on stays
    total = loss if loss.dim() == 0 else loss.sum()
    grads = torch.autograd.grad(total, params, materialize_grads=True)
    with torch.no_grad():
        optimizer.step(params, grads, state)


def in_precision(
    loss: Callable[..., torch.Tensor], task: Any, settings: Settings
) -> Callable[..., torch.Tensor]:
    """The loss in the arithmetic that the settings name."""
    if settings.precision != "bf16":
        return loss
    return torch.autocast(task.device.type, torch.bfloat16)(loss)


def trainable(net: nn.Module) -> list[torch.Tensor]:
    """The parameters that local training moves."""
    return [p for p in net.parameters() if p.requires_grad]


def initial_network(method: Any, task: Any) -> nn.Module:
    """M^0, the network with which both sides begin.

    Parameters
    ----------
    method : Method
        Whose ``model`` builds it.
    task : Task
        Whose seed gives the weights, and whose device it lies on.

    Returns
    -------
    torch.nn.Module
        A new network, the same each time.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", clients=3)
    >>> fl.models.parameter_count(fl.initial_network(fl.methods.fedavg(), task))
    10078
    """
    return new_network(method.model, task)


def refit(method: Any, task: Any, state: Tensors, images: int = 2000) -> dict[str, float]:
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
    net = initial_network(method, task)
    if state.keys() != state_of(net).keys():
        raise ValueError(f"refit needs a state of the network that {method.name} trains.")
    load(state_of(net), state)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0  # forget the old statistics at once
    with torch.no_grad():
        net.train()(task.inputs(task.train[0][:images]))
    return task.evaluate(net)


def new_network(model: "Model", task: Any) -> nn.Module:
    """The network of a model part, with the weights that the task's seed gives it."""
    with rng.scope(task.seed, "initial weights"):
        net = model.build(task).to(task.device)
    for p in net.parameters():
        if p.dim() == 4:  # unlike contiguous(), also for a single input channel
            p.data = p.data.to(memory_format=layout(net))
    return net


def layout(net: nn.Module) -> torch.memory_format:
    """Memory format of kernels and images: channels last, up to a third faster on a CPU, for the
    book's own networks; another's ``forward`` may count on torch's default."""
    return torch.channels_last if isinstance(net, Network) else torch.contiguous_format


def load(tensors: Tensors, state: Tensors) -> None:
    """Copy a state into a network, in place: ``tensors`` are its ``state_of``."""
    with torch.no_grad():
        torch._foreach_copy_([tensors[name] for name in state], list(state.values()))


@contextmanager
def threads(count: int, precision: str = "float32") -> Iterator[None]:
    """Run a block on that many CPU threads, on a GPU with TensorFloat-32 unless "float32"."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = torch.get_num_threads(), cuda.allow_tf32, cudnn.allow_tf32
    # glibc gives the system back what is freed, and a round needs it again at once, unless a large
    # block was freed before: its limits grow with it, up to blocks of 32 MiB
    torch.empty(31 << 20, dtype=torch.uint8)
    torch.set_num_threads(count)
    cuda.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cuda.allow_tf32, cudnn.allow_tf32 = before[1:]


class OneByOne:
    """The clients of this process, one after another. ``memories`` is what each keeps, once its
    answer counted (``settle``). One whose code raises is refused, and keeps what it had."""

    def __init__(self, side: Any) -> None:
        self.side = side
        self.memories: dict[int, Tensors] = {}
        self.new: dict[int, Tensors] = {}  # of the round at hand

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Return when round ``t`` can begin; these clients always are."""

    def answer(self, t: int, client: int, data: bytes, question: str = "train") -> bytes:
        """One client's answer, bytes -> bytes, which counts at once."""
        memory = self.recall(client)
        answer = self.side.answer(t, client, question, data, memory)
        self.memories[client] = memory
        return answer

    def exchange(
        self, t: int, question: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """Deliver ``write(k)``, yield each client's answer, or why there is none, in this order."""
        for k in clients:
            memory, data = self.recall(k), write(k)
            try:
                answer: Any = self.side.answer(t, k, question, data, memory)
                self.new[k] = memory
            except WireError as error:
                answer = error
            except Exception as error:
                answer = WireError(f"Client {k} raised {type(error).__name__}: {error}")
                answer.__cause__ = error
            yield k, answer

    def recall(self, client: int) -> Tensors:
        """A copy of what a client remembers, to be written to."""
        return dict(self.new.get(client, self.memories.get(client, {})))

    def settle(self, t: int, clients: Iterable[int]) -> None:
        """Round ``t`` is over, and of its answers those of these clients counted."""
        self.memories |= {k: self.new[k] for k in clients if k in self.new}
        self.new = {}


class Model(Part):
    """Builds the network. ``gives`` says what is special about it."""

    def build(self, task: Any) -> nn.Module:
        """A new network, initialised from torch's global generator."""
        raise NotImplementedError

    def refresh(self, net: nn.Module, task: Any, round: int) -> None:
        """Called on both sides in each round, before training and evaluation."""


@dataclass(frozen=True)
class TaskNetwork(Model):
    """The network that the task names: the default ``model`` of every method.

    Examples
    --------
    >>> import fedlearn as fl
    >>> type(fl.TaskNetwork().build(fl.tasks.classification("digits", clients=3))).__name__
    'Network'
    """

    def build(self, task: Any) -> nn.Module:
        return task.network()


@dataclass(frozen=True, repr=False)
class Named(Model):
    """The network of that name or function, whatever the task's; for inputs of ``shape``."""

    network: str | Callable | None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not (self.network is None or isinstance(self.network, str) or callable(self.network)):
            raise ValueError(
                f"There is no network {short(self.network)}: a network is a name, a function "
                "(shape, classes) -> module, or None, the task's."
            )

    def __repr__(self) -> str:  # a function by its name: its address would be another one tomorrow
        known = isinstance(self.network, str | None)
        name = self.network if known else getattr(self.network, "__name__", repr(self.network))
        return f"{type(self).__name__}({name!r}{f', {self.shape}' if self.shape else ''})"

    def build(self, task: Any) -> nn.Module:
        return task.network(self.network, self.shape)


@dataclass(frozen=True, repr=False)
class Edge(Named):
    """A network that must be split into the extractor f_e and the classifier f_c."""

    def build(self, task: Any) -> nn.Module:
        if task.train[1].dim() > 1 or min(task.shape[-2:]) == 1:
            data = "vectors" if min(task.shape[-2:]) == 1 else f"a {type(task).__name__}"
            raise ValueError(f"Edge networks classify images: {data} cannot be split.")
        net = super().build(task)
        if not isinstance(net, Network):
            raise ValueError(f"An edge network is a models.Network, not {type(net).__name__}.")
        return net


class Objective(Part):
    """The loss of a batch, a mean over the batch axis only: for stacked clients parameters are
    [clients, ...], images [clients, batch, ...] and the loss is [clients]. Dimensions count from
    the end."""

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        """Called before local training -> ``loss(net, batch)``."""
        raise NotImplementedError


@dataclass(frozen=True)
class TaskLoss(Objective):
    """The task's own loss, for classification the mean cross-entropy of the batch: the default
    ``objective`` of every method.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.methods.fedavg().but(objective=fl.TaskLoss()) == fl.methods.fedavg()
    True
    """

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        loss = ctx.task.loss
        return lambda net, batch: loss(net(batch.x), batch.y)


@dataclass(frozen=True)
class Smoothed(Objective):
    """Label smoothing (Szegedy et al., 2016): J <- (1 - eps) J + eps mean_c(-log p_c)."""

    eps: BelowOne = 0.1

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        J, eps = ctx.task.loss, self.eps

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
            logits = net(batch.x)
            return (1 - eps) * J(logits, batch.y) - eps * F.log_softmax(logits, -1).mean((-2, -1))

        return loss


def trained(net: nn.Module, ctx: Context) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters that local training moves, and where they start from; those that are in no
    state start as they are."""
    named = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    first = [ctx.start[n] if n in ctx.start else p.detach().clone() for n, p in named]
    return [p for _, p in named], first


def inner(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], ctx: Context) -> torch.Tensor:
    """<a, b> over all tensors of two lists; of each stacked client: [clients]."""
    first = int(isinstance(ctx.client, list))  # axis that is summed
    products = [x * y for x, y in zip(a, b, strict=True)]
    sums = [p.sum(tuple(range(first, p.dim()))) if p.dim() > first else p for p in products]
    return torch.stack(sums).sum(0)


class Reference:
    """What a frozen copy of a network, in evaluation mode, says about a client's batches; computed
    in the first epoch and looked up later, unless clients are stacked or images augmented."""

    def __init__(self, net: nn.Module, ctx: Context) -> None:
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        alone = not isinstance(ctx.client, list) and not ctx.task.augment
        self.images = ctx.task.sizes[ctx.client] if alone else None
        self.seen, self.table = 0, torch.empty(0)

    def __call__(self, batch: Batch) -> torch.Tensor:
        if self.seen == self.images:
            return self.table[batch.index]
        with torch.no_grad():
            outputs = self.net(batch.x)
        if self.images:
            if not len(self.table):
                self.table = outputs.new_empty(self.images, *outputs.shape[1:])
            self.table[batch.index] = outputs
            self.seen += len(outputs)
        return outputs

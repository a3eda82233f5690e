"""Local training: which network, which loss, and the loop over a client's batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from .. import rng
from ..models import Network, multiply_adds, state_of
from ..settings import Settings
from .context import Batch, Context, Part, Tensors, batches

Loss = Callable[[nn.Module, Batch], torch.Tensor]
BUILT: WeakValueDictionary[int, Any] = WeakValueDictionary()  # in use by networks
SMALL_STEP = 50e6  # multiply-adds (forward) of a step in which overhead counts


@torch.enable_grad()
def train(net: nn.Module, method: Any, ctx: Context, settings: Settings) -> None:
    """E epochs of minibatch training on the client's own data, in place."""
    task = ctx.task
    params = trainable(net)
    state = method.optimizer.init(params, ctx)
    loss = in_precision(method.objective.begin(net.train(), ctx), task, settings)
    shuffle = ctx.generator("shuffle")
    augment = ctx.generator("augment")
    with rng.scope(task.seed, "dropout", ctx.round, ctx.client, device=task.device):
        for _ in range(settings.epochs):
            order = torch.randperm(task.sizes[ctx.client], generator=shuffle)
            x, y = task.epoch(ctx.client, order, augment)
            if x.is_floating_point():
                x = x.to(params[0].dtype, memory_format=layout(net))
            index = order.to(task.device)
            for start, end in batches(len(y), settings.batch_size, net):
                batch = Batch(x[start:end], y[start:end], index[start:end])
                try:
                    step(loss(net, batch), params, method.optimizer, state)
                except ValueError as error:
                    if end - start > 1 or "more than 1 value" not in str(error):
                        raise
                    raise ValueError(
                        "A batch of one sample cannot be normalised: choose a batch_size "
                        f"that leaves no remainder of one from {len(y)} samples."
                    ) from error


def step(
    loss: torch.Tensor, params: list, optimizer: Any, state: dict[str, Any]
) -> None:
    """One step, in place; of stacked clients the losses come as [clients]."""
    grads = torch.autograd.grad(loss.sum(), params, materialize_grads=True)
    with torch.no_grad():
        optimizer.step(params, grads, state)


def in_precision(loss: Callable, task: Any, settings: Settings) -> Callable:
    """The loss in the arithmetic that the settings name."""
    if settings.precision != "bf16":
        return loss
    return torch.autocast(task.device.type, torch.bfloat16)(loss)


def trainable(net: nn.Module) -> list[torch.Tensor]:
    """The parameters that training moves."""
    return [p for p in net.parameters() if p.requires_grad]


def new_network(model: "Model", task: Any) -> nn.Module:
    """The network of a model part, with the weights that the task's seed gives it."""
    with rng.wide_scope(task.seed, "initial weights"):
        net = model.build(task).to(task.device)
    net.train()  # a network may freeze parameters here
    pieces = [*trainable(net), *filter(_has_state, net.modules())]
    if any(BUILT.get(id(piece)) is piece for piece in pieces):
        raise ValueError(
            "The network's function returned a module or a parameter that is in use "
            "already: let it make a new one each time, or every run starts from trained "
            "weights."
        )
    BUILT.update({id(piece): piece for piece in pieces})
    own_values(net)
    for p in net.parameters():
        if p.dim() == 4:
            p.data = p.data.to(memory_format=layout(net))
    return net


def _has_state(module: nn.Module) -> bool:
    """Whether training can change this layer itself."""
    own = [p for p in module._parameters.values() if p is not None]
    return bool(module._buffers) or any(p.requires_grad for p in own)


def own_values(net: nn.Module) -> None:
    """Copy the values of a network's tensors, which may be views of a tensor that its
    builder has kept: training must not change that. Tied weights stay tied."""
    storages: dict[int, torch.UntypedStorage] = {}
    for t in (*net.parameters(), *net.buffers()):
        if not t.is_meta and t.layout == torch.strided:
            storage = t.untyped_storage()
            place = storage.data_ptr()
            if place not in storages:
                storages[place] = storage.clone()
            copy = torch.empty(0, dtype=t.dtype, device=t.device)
            t.data = copy.set_(
                storages[place], t.storage_offset(), t.size(), t.stride()
            )


def initial_network(method: Any, task: Any) -> nn.Module:
    """M^0, the network with which both sides begin.

    Parameters
    ----------
    method : Method
        Whose ``model`` builds it.
    task : Task
        Whose seed gives the weights, and on whose device they are.

    Returns
    -------
    torch.nn.Module
        A new network, the same each time.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", clients=3)
    >>> net = fl.initial_network(fl.methods.fedavg(), task)
    >>> fl.models.parameter_count(net)
    10078
    """
    return new_network(method.model, task)


def refit(
    method: Any, task: Any, state: Tensors, images: int = 2000, round: int = 0
) -> dict[str, float]:
    """Accuracy and loss of a state whose batch statistics are measured anew.

    All learned weights stay as they are. It is a diagnosis, not a method: it looks at
    images of all clients.

    Parameters
    ----------
    method, task : Method, Task
        Those of the run.
    state : dict of tensors
        The state of a network, such as ``history.state``.
    images : int
        How many training images to measure them on, in one batch.
    round : int
        The state's, for a network that changes from round to round (Fed-KGF's ``redraw``).

    Returns
    -------
    dict
        The result of ``task.evaluate``.

    Raises
    ------
    ValueError
        If the state is not one of the method's network.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", 2, train=60, test=40)
    >>> history = fl.run("fedavg", task, rounds=1, progress=False)
    >>> sorted(fl.refit(fl.methods.fedavg(), task, history.state))
    ['accuracy', 'loss']
    """
    net = initial_network(method, task)
    tensors = state_of(net)
    shapes = {name: t.shape for name, t in tensors.items()}
    if {name: t.shape for name, t in state.items()} != shapes:
        raise ValueError(
            f"The state is not one of the network that {method.name} trains."
        )
    load(tensors, state)
    method.model.refresh(net, task, round)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0  # the old statistics count for nothing
    x, y = task.train
    order = torch.randperm(len(y), generator=rng.generator(task.seed, "refit"))
    rows = order[:images].sort().values.to(task.device)
    with torch.no_grad(), rng.scope(task.seed, "refit draws", device=task.device):
        net.train()(task.inputs(x[rows]))
        return task.evaluate(net)


def layout(net: nn.Module) -> torch.memory_format:
    """Channels last, up to a third faster on a CPU, for our own networks only."""
    return torch.channels_last if isinstance(net, Network) else torch.contiguous_format


def load(tensors: Tensors, state: Tensors) -> None:
    """Copy a state into a network, of which ``tensors`` is the ``state_of``."""
    with torch.no_grad():
        torch._foreach_copy_([tensors[name] for name in state], list(state.values()))


@contextmanager
def threads(count: int, precision: str = "float32") -> Iterator[None]:
    """Run a block on that many CPU threads, on a GPU with TensorFloat-32 unless "float32"."""
    matmul = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    threads_before = torch.get_num_threads()
    matmul_before = matmul.allow_tf32
    cudnn_before = cudnn.allow_tf32
    torch.set_num_threads(count)
    matmul.allow_tf32 = precision != "float32"
    cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        matmul.allow_tf32 = matmul_before
        cudnn.allow_tf32 = cudnn_before


def step_work(net: nn.Module, task: Any, batch_size: int) -> int:
    """Multiply-adds (forward) of one client's largest batch."""
    return multiply_adds(net, task.example) * min(batch_size, max(task.sizes))


def good_threads(net: nn.Module, task: Any, batch_size: int) -> int:
    """One CPU thread for a small step, all that torch may use for a large one.

    It is a rule rather than a timing: the number of threads changes the last bits of a sum.
    """
    small = step_work(net, task, batch_size) < SMALL_STEP
    return 1 if small else torch.get_num_threads()


class Model(Part):
    """Which network does a client train?"""

    def build(self, task: Any) -> nn.Module:
        """A new network, initialised from torch's global generator."""
        raise NotImplementedError

    def refresh(self, net: nn.Module, task: Any, round: int) -> None:
        """Called on both sides in each round, before training and before evaluation."""


@dataclass(frozen=True)
class TaskNetwork(Model):
    """The network that the task names.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", clients=3)
    >>> type(fl.TaskNetwork().build(task)).__name__
    'Network'
    """

    def build(self, task: Any) -> nn.Module:
        return task.network()


@dataclass(frozen=True, repr=False)
class Named(Model):
    """The network of that name or function, for inputs of ``shape``; None: the task's."""

    network: str | Callable | None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.network, str | None) or callable(self.network)):
            raise ValueError(
                "A network is a name, a function (shape, classes) -> module, or None for "
                f"the task's own, not {self.network!r}."
            )

    def __repr__(self) -> str:  # a function's address changes from run to run
        name = getattr(self.network, "__name__", self.network)
        shape = f", {self.shape}" if self.shape else ""
        return f"{type(self).__name__}({name!r}{shape})"

    def build(self, task: Any) -> nn.Module:
        return task.network(self.network, self.shape)


class Objective(Part):
    """What does local training minimise?

    Losses are means over the batch axis only, so that for stacked clients they come as
    [clients]; other axes are counted from the end.
    """

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        """Called once before local training; returns ``loss(net, batch)``."""
        raise NotImplementedError


@dataclass(frozen=True)
class TaskLoss(Objective):
    """The task's own loss; for classification the mean cross-entropy of the batch.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.methods.fedavg().but(objective=fl.TaskLoss()) == fl.methods.fedavg()
    True
    """

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        loss = ctx.task.loss
        return lambda net, batch: loss(net(batch.x), batch.y)

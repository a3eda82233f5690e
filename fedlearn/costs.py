"""What does it send? The bytes of every method for a network, before any training; and
the bytes of a training loop that is not the package's.

For ``cost`` each method takes one local step on a few samples, and its messages are
really coded, both ways, as in the middle of a run. A message has this length in every
round, but for Golomb-coded positions: those vary by a few per cent.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from . import models, rng
from .core import Averaging, Method
from .core.federation import TRAIN
from .core.method import method_of
from .data.images import Source
from .data.partition import Split
from .errors import check_whole, extra, pick, short
from .extensions import find
from .link import PRESETS, check
from .methods import METHODS
from .settings import Settings
from .tasks import Task
from .wire import Pooled, Schema

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

# Batch normalisation wants two samples. Where only two values a channel are left, as of
# 32 x 32 pixels at the end of a ResNet-50, the gradient of random weights has a norm of
# 1e8 (measured; with eight samples 200), and training diverges.
BATCH = 8
ENTRIES = BATCH * 3 * 32 * 32  # of a batch; a larger sample comes twice
ROUNDS = (
    5,
    6,
)  # measured: DGC warms up for four rounds, and a first message can be special
# the errors of a method that has no form for a network
NO_FORM = ValueError, RuntimeError, TypeError, AttributeError, LookupError


class Trial(Task):
    """One client with a few samples; the loss is the mean square of all outputs."""

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        squares = [t.float().square().mean() for t in learned(outputs)]
        return torch.stack(squares).sum()

    def inputs(self, x: Tensor, client: int | None = None) -> Tensor:
        return x


def learned(outputs: Any) -> list[Tensor]:
    """The tensors of an output, also in a tuple, a list or a dictionary, that depend on
    the parameters."""
    leaves = tree_leaves(outputs)
    return [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]


def cost(
    network: Any,
    input: Any,
    methods: Any = "all",
    clients: int = 10,
    rounds: int = 100,
    link: str = "LTE",
    seed: int = 0,
) -> "pandas.DataFrame":
    """The bytes that each method would send to train this network, untrained as it is.

    Parameters
    ----------
    network : torch.nn.Module, function or str
        A module; a function without arguments, or of (shape, classes), that makes one;
        a name of ``fl.models.NETWORKS``; or a place, "mine.py:net",
        "torchvision.models:resnet50".
    input : str, tuple, tensor or array
        The shape of one sample, "3x32x32" or (3, 32, 32), which gets random numbers; or
        a batch of at least two samples. Whole numbers stay whole, for an embedding.
    methods : str or iterable
        "all", or some: names or methods.
    clients, rounds : int
        For the totals: clients that take part in each round, and rounds.
    link : str
        A preset of ``fl.link``, for the minutes.
    seed : int
        Of the initial weights (of a function) and of all that is drawn.

    Returns
    -------
    pandas.DataFrame
        A row a method: ``up`` and ``down``, bytes of a client and round; ``factor``,
        how many times less than FedAvg both ways; ``bits`` up, for each trained
        number; ``total``, bytes of all clients and rounds; ``minutes`` of all rounds on
        the link; ``note``, such as why a method has no form for the network. ``attrs``
        has the network's ``name``, its ``numbers``, and ``wide``, the share of them in
        kernels wider than one entry.

    Raises
    ------
    ValueError
        For a network without parameters, or one that does not take the input.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.cost("digits_cnn", "1x8x8", methods=["fedavg", "rpn"])["up"].to_dict()
    {'fedavg': 40957, 'rpn': 6781}
    """
    with extra("plot"):
        import pandas

    check_whole("clients", clients)
    check_whole("rounds", rounds)
    uplink, downlink, latency = check(**pick(link, PRESETS, "link"))
    name, task = trial(network, input, seed)
    fedavg: Any = method_of("fedavg")
    dense = measured(fedavg, task)
    rows = []
    for method in chosen(methods):
        row: dict[str, Any] = {"method": method.name}
        rows.append(row)
        try:
            row |= dense if method == fedavg else measured(method, task)
        except NO_FORM as error:
            row["note"] = one_line(error)
            continue
        up = row["up"]
        down = row["down"]
        seconds = latency + 8 * up / uplink + 8 * down / downlink
        row["factor"] = (dense["up"] + dense["down"]) / (up + down)
        row["total"] = (up + down) * clients * rounds
        row["minutes"] = rounds * seconds / 60
    columns = ["method", "up", "down", "factor", "bits", "total", "minutes", "note"]
    table = pandas.DataFrame(rows, columns=columns).set_index("method")
    table = table.astype(dict.fromkeys(["up", "down", "total"], "Int64"))
    schema = fedavg.uplink.schema(task.network())
    numbers = sum(map(prod, schema.shapes.values()))
    table.attrs = {"name": name, "numbers": numbers, "wide": wide_share(schema)}
    return table


def chosen(methods: Any) -> list[Method]:
    """These methods, or all that send something."""
    if isinstance(methods, str) and methods == "all":
        methods = [name for name in METHODS if name != "local"]
    elif isinstance(methods, str | Method):
        methods = [methods]
    return [method_of(method) for method in methods]


def one_line(error: BaseException) -> str:
    """The text of an error, in one line that is not endless."""
    return " ".join(str(error).split())[:160]


def wide_share(schema: Schema) -> float:
    """The share of the numbers that lie in kernels wider than one entry."""
    shapes = schema.shapes.values()
    wide = [shape for shape in shapes if prod(shape[2:]) > 1]
    return sum(map(prod, wide)) / sum(map(prod, shapes))


def trial(network: Any, input: Any, seed: int) -> tuple[str, Trial]:
    """A network's name, and one client with a few samples for it.

    ``ValueError`` if the network has no parameters or does not take the samples.
    """
    x = samples(input, seed)
    name = getattr(network, "__name__", type(network).__name__)
    if isinstance(network, str):
        name = network
        network = find(network, models.NETWORKS, "network")
    if not isinstance(network, nn.Module):
        try:
            with rng.scope(seed, "initial weights"):
                network = call(network, tuple(x.shape[1:]))
        except Exception as error:
            raise ValueError(f"{name} cannot be built ({one_line(error)}).") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{name} is a {type(network).__name__}, not a nn.Module.")
    models.check_tensors(name, network)
    try:
        outputs = learned(copy.deepcopy(network).train()(x))
    except Exception as error:
        raise ValueError(
            f"{name} does not take samples of shape {list(x.shape[1:])} "
            f"({one_line(error)}). An embedding takes a batch of whole numbers."
        ) from error
    if not outputs:
        raise ValueError(f"{name} gives no tensors that depend on its parameters.")

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        return copy.deepcopy(network)  # to draw a large network anew would take longer

    y = torch.zeros(len(x), dtype=torch.int64)
    classes = outputs[0].shape[-1] if outputs[0].dim() > 1 else 1
    task = Trial(
        dataset="trial",
        clients=1,
        partition=None,
        seed=seed,
        network_name=build,
        augment=(),
        device=torch.device("cpu"),
        source=Source("trial", x, y, x, y, (0.0,), (1.0,), classes),
        split=Split([np.arange(len(x))]),
        train=(x, y),
        test=(x, y),
    )
    return name, task


def call(build: Callable, shape: tuple[int, ...]) -> Any:
    """The network of a function of (shape, classes), or of no arguments."""
    try:
        inspect.signature(build).bind(shape, 10)
    except TypeError:
        return build()
    return build(shape, 10)


def samples(input: Any, seed: int) -> Tensor:
    """The batch that ``input`` is, or random numbers of the shape that it says."""
    if isinstance(input, Tensor | np.ndarray):
        x = torch.as_tensor(input)[:BATCH]
        if x.dim() < 2 or len(x) < 2:
            raise ValueError(f"A batch has at least two samples, not {list(x.shape)}.")
        whole = x.dtype in (torch.int64, torch.int32)
        return x if whole else x.float()
    try:
        sizes = input.lower().split("x") if isinstance(input, str) else input
        shape = [check_whole("a size", int(size)) for size in sizes]
    except (TypeError, ValueError):
        raise ValueError(
            f'input is the shape of one sample, such as "3x32x32", not {short(input)}.'
        ) from None
    count = min(BATCH, max(2, ENTRIES // prod(shape)))
    return torch.randn(count, *shape, generator=rng.generator(seed, "samples"))


def measured(method: Method, task: Trial) -> dict[str, Any]:
    """One client's round with this method: bytes both ways, bits a number, a note."""
    if (name := getattr(method.model, "network", None)) is not None:
        raise ValueError(
            f"has no form for your network: trains one of its own ({name})"
        )
    if not isinstance(method, Averaging):
        raise ValueError("has messages of another kind: a run counts them")
    settings = Settings(batch_size=BATCH)
    server = method.server_side(task, settings)
    client = method.client_side(task, settings)
    state = server.start()
    memory: dict[str, Tensor] = {}
    last_seen: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RPN pools")  # the note says so
        server.validate()
        for t in ROUNDS:
            question, _ = server.send(t, 0, state, last_seen)
            answer = client.answer(t, 0, TRAIN, question, memory)
            arrival = server.receive(t, 0, answer, state)
            state = server.aggregate(t, state, [arrival], last_seen)
            last_seen[0] = t
    trained = server.up.shapes.keys() - server.up.buffers
    numbers = sum(prod(server.up.shapes[name]) for name in trained)
    notes = []
    if isinstance(method.uplink.code.coder, Pooled):
        notes.append(f"pools {wide_share(server.up):.0%} of the numbers")
    whole = models.parameter_count(task.network())
    share = models.parameter_count(client.net) / whole
    if share < 0.99:  # FedPM leaves out a few
        notes.append(f"trains {share:.0%} of the parameters and generates the others")
    return {
        "up": len(answer),
        "down": len(question),
        "bits": 8 * (len(answer) - arrival.buffers) / numbers,
        "note": "; ".join(notes),
    }


class Meter:
    """Counts the bytes of a training loop of one's own.

    Raises
    ------
    ValueError
        For a state that is no dictionary of tensors or arrays.

    Examples
    --------
    >>> import torch
    >>> import fedlearn as fl
    >>> net = torch.nn.Linear(1000, 10)
    >>> meter = fl.Meter()
    >>> meter.received(net.state_dict())
    >>> meter.sent({name: t.half() for name, t in net.state_dict().items()})
    >>> meter.table()["bytes"].to_dict()
    {'down': 40040, 'up': 20020}
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def received(self, state: Any, client: Any = 0, size: int | None = None) -> None:
        """Note the state that a client got.

        ``size``: the bytes that crossed, if they are not those of the tensors.
        """
        self._note("down", state, client, size)

    def sent(self, state: Any, client: Any = 0, size: int | None = None) -> None:
        """Note the state or the update that a client sent; ``size`` as for
        ``received``."""
        self._note("up", state, client, size)

    def table(self) -> "pandas.DataFrame":
        """A row each way: messages, numbers of any type in them, bytes, bits a
        number."""
        with extra("plot"):
            import pandas

        columns = ["way", "client", "numbers", "bytes"]
        ways = pandas.DataFrame(self.messages, columns=columns).groupby("way")
        table = ways[["numbers", "bytes"]].sum()
        table.insert(0, "messages", ways.size())
        table["bits"] = 8 * table["bytes"] / table["numbers"]
        return table

    def _note(self, way: str, state: Any, client: Any, size: int | None) -> None:
        tensors = list(state.values()) if isinstance(state, Mapping) else [state]
        if not all(isinstance(t, Tensor | np.ndarray) for t in tensors):
            raise ValueError(f"A state is a dictionary of tensors, not {short(state)}.")
        tensors = _distinct([torch.as_tensor(t) for t in tensors])
        if size is None and any(t.layout != torch.strided for t in tensors):
            raise ValueError("A sparse tensor has no one size in bytes: say size=.")
        if size is None:
            size = sum(t.nbytes for t in tensors)
        message = {
            "way": way,
            "client": client,
            "numbers": sum(t.numel() for t in tensors),
            "bytes": check_whole("size", size, least=0),
        }
        self.messages.append(message)


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors without those that share their memory with an earlier one."""
    places = {}
    for t in tensors:
        dense = t.layout == torch.strided and t.numel()
        place = (t.data_ptr(), t.shape, t.stride()) if dense else id(t)
        places.setdefault(place, t)
    return list(places.values())

"""What does it send? The bytes of every method for a network, before any training; and
the bytes of a training loop that is not the package's.

For ``cost`` each method takes one local step on a few samples, and its messages are
really coded, both ways, as in the middle of a run. A message has this length in every
round, but for Golomb-coded positions: those vary by a few per cent.
"""

import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from . import models, rng
from .core import TRAIN, Averaging, Method
from .core.method import method_of
from .data.images import Source
from .errors import check_whole, extra, pick, short
from .extensions import find
from .link import PRESETS
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
# measured: DGC warms up for four rounds, and a first message can be special
ROUNDS = (5, 6)
# the errors that a method raises for a network that it cannot train
NO_FORM = ValueError, RuntimeError, TypeError, AttributeError, LookupError


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
        how many times less than FedAvg both ways; ``total``, bytes of all clients and
        rounds; ``minutes`` of all rounds on the link; ``note``, such as why a method
        has no form for the network. ``attrs`` has the network's ``name``, its
        ``numbers``, and ``wide``, the share of them in kernels wider than one entry.

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
    speed = pick(link, PRESETS, "link")
    if isinstance(methods, str) and methods == "all":
        methods = [name for name in METHODS if name != "local"]
    elif isinstance(methods, str | Method):
        methods = [methods]
    task = trial(network, input, seed)
    fedavg: Any = method_of("fedavg")
    dense = measured(fedavg, task)
    rows = []
    for method in map(method_of, methods):
        try:
            row = dense if method == fedavg else measured(method, task)
        except NO_FORM as error:
            row = {"note": " ".join(str(error).split())[:160]}
        rows.append({"method": method.name, **row})
    columns = ["method", "up", "down", "factor", "total", "minutes", "note"]
    table = pandas.DataFrame(rows, columns=columns).set_index("method")
    up = table["up"]
    down = table["down"]
    seconds = speed["latency"] + 8 * up / speed["up"] + 8 * down / speed["down"]
    table["factor"] = (dense["up"] + dense["down"]) / (up + down)
    table["total"] = (up + down) * clients * rounds
    table["minutes"] = rounds * seconds / 60
    table = table.astype(dict.fromkeys(["up", "down", "total"], "Int64"))
    schema = fedavg.uplink.schema(task.network())
    table.attrs = {
        "name": task.network_name.__name__,
        "numbers": sum(map(prod, schema.shapes.values())),
        "wide": wide_share(schema),
    }
    return table


class Trial(Task):
    """One client with a few samples; the loss is the mean square of all outputs.

    Outputs may be tensors in tuples, lists or dictionaries.
    """

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        leaves = [t for t in tree_leaves(outputs) if isinstance(t, Tensor)]
        squares = [t.float().square().mean() for t in leaves if t.requires_grad]
        if not squares:
            raise ValueError(
                "The network's outputs are no tensors, in tuples, lists or dictionaries, "
                "that depend on what is trained."
            )
        return torch.stack(squares).sum()

    def inputs(self, x: Tensor, client: int | None = None) -> Tensor:
        return x

    def check_outputs(self, name: str, outputs: Any, y: Tensor) -> None:
        pass


def trial(network: Any, input: Any, seed: int) -> Trial:
    """One client with a few samples for this network.

    ``ValueError`` if the network cannot be built, has no parameters, or does not take
    the samples.
    """
    x = samples(input, seed)
    name = getattr(network, "__name__", type(network).__name__)
    if isinstance(network, str):
        name = network
        network = find(network, models.NETWORKS, "network")
    if not isinstance(network, nn.Module):
        try:
            with rng.wide_scope(seed, "initial weights"):
                network = call(network, tuple(x.shape[1:]))
        except Exception as error:
            raise ValueError(f"{name} cannot be built ({short(error)}).") from error

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        return copy.deepcopy(network)  # to draw a large network anew would take longer

    build.__name__ = name
    y = torch.zeros(len(x), dtype=torch.int64)
    data = Source("trial", x, y, x, y, (0.0,), (1.0,), classes=1)
    return Trial.make(data, clients=1, seed=seed, network=build, device="cpu")


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
        return x.float() if x.is_floating_point() else x
    sizes = input.lower().split("x") if isinstance(input, str) else input
    try:
        shape = [check_whole("a size", int(size)) for size in sizes]
    except (TypeError, ValueError):
        raise ValueError(
            f'input is the shape of one sample, such as "3x32x32", not {short(input)}.'
        ) from None
    count = min(BATCH, max(2, ENTRIES // prod(shape)))
    return torch.randn(count, *shape, generator=rng.generator(seed, "samples"))


def measured(method: Method, task: Trial) -> dict[str, Any]:
    """One client's round with this method: bytes both ways, and a note."""
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
    notes = []
    if isinstance(method.uplink.code.coder, Pooled):
        notes.append(f"pools {wide_share(server.up):.0%} of the numbers")
    whole = models.parameter_count(task.network())
    share = models.parameter_count(client.net) / whole
    if share < 0.99:  # FedPM leaves out a few
        notes.append(f"trains {share:.0%} of the parameters and generates the others")
    return {"up": len(answer), "down": len(question), "note": "; ".join(notes)}


def wide_share(schema: Schema) -> float:
    """The share of the numbers that lie in kernels wider than one entry."""
    shapes = schema.shapes.values()
    wide = [shape for shape in shapes if prod(shape[2:]) > 1]
    return sum(map(prod, wide)) / sum(map(prod, shapes))


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
        nothing = {"messages": 0, "numbers": 0, "bytes": 0}
        self.counts = {"down": Counter(nothing), "up": Counter(nothing)}

    def received(self, state: Mapping[str, Any], *, size: int | None = None) -> None:
        """Note the state that a client got.

        ``size``: the bytes that crossed, if they are not those of the tensors.
        """
        self._note("down", state, size)

    def sent(self, state: Mapping[str, Any], *, size: int | None = None) -> None:
        """Note the state or the update that a client sent; ``size`` as for ``received``."""
        self._note("up", state, size)

    def table(self) -> "pandas.DataFrame":
        """A row each way: messages, numbers of any type in them, bytes, bits a number."""
        with extra("plot"):
            import pandas

        table = pandas.DataFrame(self.counts).T
        table["bits"] = 8 * table["bytes"] / table["numbers"]
        return table

    def _note(self, way: str, state: Any, size: int | None) -> None:
        tensors = list(state.values()) if isinstance(state, Mapping) else [state]
        for t in tensors:
            dense = isinstance(t, Tensor) and t.layout == torch.strided
            if not dense and not (isinstance(t, np.ndarray) and t.dtype != object):
                raise ValueError(
                    "A state is a dictionary of dense tensors or arrays of numbers, not "
                    f"{short(state)}."
                )
        if size is None:
            size = sum(t.nbytes for t in tensors)
        check_whole("size", size, minimum=0)
        numbers = sum(prod(t.shape) for t in tensors)
        self.counts[way].update(messages=1, numbers=numbers, bytes=size)

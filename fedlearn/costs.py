"""What would it send? The bytes of every method for a network of one's own, before any training.

Each method takes one local step on a few samples, and its messages are really coded, both ways, as
in the middle of a run (DGC is past its warm-up). A message has this length in every round, but for
positions that are coded by their entropy: those vary by a few per cent.
"""

import copy
import html
import inspect
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from . import link as links
from . import models, rng
from .arguments import checked, short
from .core import DENSE, Averaging, Method, local, run
from .core.method import method_of
from .data.partition import Split
from .data.sources import Source
from .errors import WireError, extra, pick
from .extensions import find
from .files import to_json, write_text
from .history import History
from .methods import METHODS
from .settings import Settings, whole_number
from .tasks import Task
from .wire import Pooled

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made
    from matplotlib.axes import Axes

# Samples of the local step, at least and at most. Batch normalisation wants two. Where only two
# values a channel are left, as of 32 x 32 pixels at the end of a ResNet-50, the gradient of random
# weights has a norm of 1e8 (measured; with eight samples 200), and training diverges.
FEW, MANY, ENTRIES = 2, 8, 8 * 3 * 32 * 32
NAMED = {**models.NETWORKS, **models.SEQUENCES}
MOST = 10**9  # numbers of a sample
ROUNDS = 5, 6  # that are tried: DGC warms up for four, and some first messages are special
# what a method says of a network that it has no form for
NO_FORM = ValueError, RuntimeError, TypeError, AttributeError, IndexError, KeyError, WireError
COLUMNS = """
    method up down factor bits bound code total minutes joules note
""".split()


class Trial(Task):
    """One client with a few samples, and a loss for outputs of any shape: their mean square."""

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        return torch.stack([t.float().square().mean() for t in learned(outputs)]).sum()

    def inputs(self, x: Tensor, client: int | None = None) -> Tensor:
        return x

    def score(self, net: nn.Module, client: int | None, predictions: Any) -> dict[str, float]:
        return {"accuracy": 0.0, "loss": 0.0}


def learned(outputs: Any) -> list[Tensor]:
    """The tensors in what a network gives, also in a tuple, a list or a dictionary, that depend on
    its parameters."""
    return [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]


def text_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of texts as lines, the first column to the left, for a terminal and without pandas.

    >>> print(text_table([{"method": "FedAvg", "MB": "12.5"}, {"method": "RPN", "MB": "0.75"}]))
    method    MB
    FedAvg  12.5
    RPN     0.75
    """
    cells = [list(rows[0]), *(list(row.values()) for row in rows)]
    first, *others = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([left.ljust(first), *map(str.rjust, rest, others)]) for left, *rest in cells
    )


@dataclass(frozen=True, repr=False)
class Cost:
    """What ``cost`` found: prints as a table. ``network``: name, input, numbers (parameters and
    buffers) and the share of them in kernels wider than one entry; ``stated``: clients, rounds,
    link. ``rows`` are one a method:

    * ``up`` and ``down`` in bytes a client and round, ``up_buffers`` and ``down_buffers`` of them;
      ``factor``, how many times less than FedAvg both ways together
    * ``bits`` a parameter up and, if the coder loses something, their entropy ``bound``; of a meter
      also ``error``; ``code``, CPU seconds to code and decode a client's messages
    * ``total`` bytes of all clients and rounds; ``minutes`` on the link and ``joules`` of one
      client's radio for all rounds; ``note``

    None where there is nothing to say."""

    network: dict[str, Any]
    stated: dict[str, Any]
    rows: list[dict[str, Any]]

    def to_html(self, path: str | Path | None = None) -> str:
        """The table as HTML, also written to ``path`` if one is given."""
        text = f"<p>{html.escape(self.head)}</p>\n{self.table().to_html()}\n"
        if path is not None:
            write_text(path, text)
        return text

    def to_json(self, path: str | Path | None = None) -> str:
        """All of it as JSON, also written to ``path`` if one is given."""
        text = to_json(vars(self), indent=1)
        if path is not None:
            write_text(path, text + "\n")
        return text

    def plot(self) -> "Axes":
        """Bytes of a client and round, up and down, a bar a method, the cheapest on top."""
        from .plot import COLOURS, axes

        rows = [row for row in self.rows if row["up"] is not None]
        rows.sort(key=lambda row: row["up"] + row["down"])
        names, up, down = ([row[n] for row in rows] for n in ("method", "up", "down"))
        ax = axes(size=(5.2, 0.6 + 0.24 * len(rows)))
        up, down = np.divide(up, 1e6), np.divide(down, 1e6)
        ax.barh(names, up, color=COLOURS[0], label="up")
        ax.barh(names, down, left=up, color=COLOURS[4], hatch="//", label="down")
        ax.set(xlabel="MB of a client and round", title=self.network["name"])
        ax.invert_yaxis()
        ax.legend()
        return ax

    def texts(self) -> list[dict[str, str]]:
        """The rows as one reads them: MB (of small messages kB), bits, milliseconds; columns that
        say something."""
        most = max(row[way] or 0 for row in self.rows for way in ("up", "down"))
        unit, size = ("MB", 1e6) if most >= 1e6 else ("kB", 1e3)
        forms = {  # column -> its head, how a number is written, in which unit
            "up": (f"{unit} up", ".3f", size),
            "down": (f"{unit} down", ".3f", size),
            "factor": ("times less", ".1f", 1),
            "bits": ("bits up", ".2f", 1),
            "bound": ("bound", ".2f", 1),
            "error": ("error", ".2g", 1),
            "code": ("ms to code", ".0f", 1e-3),
            "total": ("GB in all", ".3g", 1e9),
            "minutes": (f"minutes, {self.stated['link']}", ".3g", 1),
            "joules": ("joules", ".3g", 1),
        }
        texts = [{"method": row["method"]} for row in self.rows]
        for name, (head, form, of) in forms.items():
            values = [row.get(name) for row in self.rows]
            if any(value is not None for value in values):
                for text, value in zip(texts, values, strict=True):
                    text[head] = "" if value is None else format(value / of, form)
        return [t | {"note": row["note"]} for t, row in zip(texts, self.rows, strict=True)]

    def table(self) -> "pandas.DataFrame":
        """``texts`` as a table."""
        with extra("plot"):
            import pandas

        return pandas.DataFrame(self.texts()).set_index("method")

    @property
    def head(self) -> str:
        """What is counted, in a sentence or two."""
        n, s = self.network, self.stated
        return (
            f"{n['name']}: {n['numbers']:,} numbers, {n['wide']:.0%} of them in kernels wider than "
            f"one entry. Bytes of a client and round; in all: {s['clients']} clients, "
            f"{s['rounds']} rounds; minutes and joules: {s['link']}."
        )

    def __repr__(self) -> str:
        notes = [f"{row['method']}: {row['note']}" for row in self.rows if row["note"]]
        rows = [{k: v for k, v in row.items() if k != "note"} for row in self.texts()]
        return "\n".join([self.head, text_table(rows), *notes])

    def _repr_html_(self) -> str | None:  # without pandas the text is shown
        return self.to_html() if find_spec("pandas") else None


@checked
def cost(
    network: Any,
    input: Any = None,
    methods: Any = "all",
    clients: int = 10,
    rounds: int = 100,
    link: str = "LTE",
    images: int = 100,
    seed: int = 0,
    tokens: int | None = None,
) -> Cost:
    """The bytes that each method would send to train this network, untrained as it is. The book's
    page "What does it send?" shows such tables, and checks coders against other people's.

    Parameters
    ----------
    network : torch.nn.Module, function or str
        A module; a function without arguments, or (shape, classes) -> module; or a name of
        ``fl.models.NETWORKS`` or ``SEQUENCES``, or where to find one, "mine.py:net",
        "torchvision.models:resnet50".
    input : str, tuple, tensor or array
        The shape of one sample, "3x32x32" or (3, 32, 32), which gets random numbers; or a batch of
        at least two samples. Whole numbers of int64 or int32 come to the network as they are.
    methods : str or iterable
        "all", or some: names or methods.
    clients, rounds : int
        For the totals: clients that take part in each round, and rounds.
    images : int
        Samples of a client: some methods (FedGKT, split learning) send something for each.
    link : str
        A preset of ``fl.link``, for minutes and joules.
    seed : int
        Of the initial weights (of a function) and of what is drawn.
    tokens : int, optional
        The random numbers are whole, from 0 to below this: for a network that begins with an
        embedding.

    Returns
    -------
    Cost
        A row a method. A method that has no form for the network says why.

    Raises
    ------
    ValueError
        For a network without parameters, or one that does not take the input.

    Examples
    --------
    >>> import fedlearn as fl
    >>> costs = fl.cost("digits_cnn", "1x8x8", methods=["fedavg", "rpn"])
    >>> [(row["method"], row["up"]) for row in costs.rows]
    [('fedavg', 40957), ('rpn', 6781)]
    """
    whole_number("clients", clients)
    whole_number("rounds", rounds)
    whole_number("images", images)
    pick(link, links.PRESETS, "link")
    if tokens is not None:
        whole_number("tokens", tokens)
    task, name = trial(network, input, seed, tokens)
    net = task.network()
    parameters, shape = models.parameter_count(net), "x".join(map(str, task.shape))
    about = {"name": name, "input": shape} | counted(models.state_of(net))
    if methods == "all":
        methods = [n for n in METHODS if n != "local"]  # which sends nothing
    dense = measured(method_of("fedavg"), task, parameters, images)
    rows = []
    for given in [methods] if isinstance(methods, str | Method) else methods:
        method = method_of(given)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "RPN pools")  # its note says so
                row = dense if given == "fedavg" else measured(method, task, parameters, images)
            rows.append(row | priced(row, dense, clients, rounds, link))
        except NO_FORM as error:
            note = {"method": method.name, "note": short_reason(error)}
            rows.append(dict.fromkeys(COLUMNS) | note)
    return Cost(about, {"clients": clients, "rounds": rounds, "link": link}, rows)


def counted(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """How many numbers a state has, and the share of them that residual pooling means."""
    wide = [state[n].numel() for n in models.kernel_names(state) if prod(state[n].shape[2:]) > 1]
    numbers = sum(t.numel() for t in state.values())
    return {"numbers": numbers, "wide": sum(wide) / numbers}


def priced(
    row: dict[str, Any], dense: dict[str, Any], clients: int, rounds: float, link: str
) -> dict[str, Any]:
    """What follows from the bytes ``up`` and ``down`` of a client and round."""
    both, radio = row["up"] + row["down"], links.RADIOS.get(link)
    sent = [{"bytes_up": row["up"], "bytes_down": row["down"], "seconds": 0.0, "clients": [0]}]
    alone = History(row["method"], {}, sent)
    return {
        "factor": (dense["up"] + dense["down"]) / both if both else None,
        "total": both * clients * rounds,
        "minutes": rounds * links.time(alone, **links.PRESETS[link])[-1] / 60,
        "joules": rounds * links.energy(alone, **radio)[-1] if radio else None,
    }


def short_reason(error: BaseException) -> str:
    """The first sentence of an error."""
    text = " ".join(str(error).split())
    return text if len(text) < 160 else text[:157] + "..."


def trial(network: Any, input: Any, seed: int, tokens: int | None = None) -> tuple[Trial, str]:
    """One client with a few samples for this network, and the network's name; ``ValueError`` if it
    has no parameters or does not take them."""
    if isinstance(network, str):
        name, network = network, find(network, NAMED, "network")
    else:
        name = getattr(network, "__name__", type(network).__name__)
    x = samples(input, seed, tokens)
    shape = tuple(x.shape[1:])

    if not isinstance(network, nn.Module):
        try:
            try:
                inspect.signature(network).bind()
                whole = network in NAMED.values()
            except TypeError:  # it needs arguments
                whole = True
            with rng.scope(seed, "initial weights"):
                network = network(shape, tokens or 10) if whole else network()
        except Exception as error:
            raise ValueError(f"{name} cannot be built ({models.one_line(error)}).") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{name} is a {type(network).__name__}, not a nn.Module.")
    models.check_tensors(name, network)

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        return copy.deepcopy(network)  # to draw large networks anew would take longer

    try:
        tensors = learned(build(shape, 10).train()(x))
    except Exception as error:
        told = f"{'x'.join(map(str, shape))}: {short_reason(error)}"
        hint = "" if "indices" not in str(error) else " (token ids: see tokens)"
        raise ValueError(f"{name} does not take input of shape {told}{hint}") from error
    if not tensors:
        raise ValueError(f"{name} gives no tensors that depend on its parameters.")
    outputs, y = tensors[0], torch.zeros(len(x), dtype=torch.int64)
    classes = outputs.shape[-1] if outputs.dim() > 1 else 1
    source = Source("trial", x, y, x, y, (0.0,), (1.0,), classes)
    owners = Split([np.arange(len(x))])
    task = Trial(
        "trial", 1, None, seed, build, (), torch.device("cpu"), source, owners, (x, y), (x, y)
    )
    return task, name


def samples(input: Any, seed: int, tokens: int | None = None) -> Tensor:
    """The batch that ``input`` is, or random numbers of the shape that it says."""
    if isinstance(input, Tensor | np.ndarray):
        batch = torch.as_tensor(input)[:MANY]
        if batch.dim() < 2 or len(batch) < FEW:
            raise ValueError(f"A batch has at least {FEW} samples, not {list(batch.shape)}.")
        return batch if batch.dtype in (torch.int64, torch.int32) else batch.float()
    try:
        sizes = input.lower().split("x") if isinstance(input, str) else input
        shape = [int(size) for size in sizes]
    except (TypeError, ValueError, AttributeError):
        shape = []
    if not shape or min(shape) < 1 or prod(shape) > MOST:
        raise ValueError(
            f'input is the shape of one sample, such as "3x32x32", not {short(input)}.'
        )
    generator = rng.generator(seed, "samples")
    if tokens is not None:
        return torch.randint(tokens, (FEW, *shape), generator=generator)
    count = min(MANY, max(FEW, ENTRIES // prod(shape)))
    return torch.randn(count, *shape, generator=generator)


def measured(method: Method, task: Trial, parameters: int, images: int) -> dict[str, Any]:
    """One client's round with this method: bytes both ways, seconds to code, bits a parameter. The
    task's network has so many ``parameters``."""
    if (other := getattr(method.model, "network", None)) is not None:
        raise ValueError(f"has no form for your network: trains one of its own ({other})")
    note = ""
    side = method.client_side(task, Settings(batch_size=MANY))
    mine = models.parameter_count(side.net)
    if mine < 0.99 * parameters:  # FedPM leaves out a few
        note = f"trains {mine / parameters:.0%} of the parameters and generates the others"
    row: dict[str, Any] = {"method": method.name} | dict.fromkeys(("bits", "bound", "code"))
    if not isinstance(method, Averaging):  # a round of its own, whose messages are of other kinds
        many = replace(task, split=Split([np.arange(images) % len(task.train[0])]))
        last = run(method, many, 2, evaluate_every=2, progress=False).rows[-1]
        sent = {way: last[f"bytes_{way}"] for way in ("up", "down", "up_buffers", "down_buffers")}
        return row | sent | {"note": f"for {images} samples" + f"; {note}" * bool(note)}
    server, memory = method.server_side(task, side.settings), dict[str, Tensor]()
    state, seen, spent = server.start(), dict[int, int](), 0.0
    for t in ROUNDS:
        began = time.process_time()
        question, buffers_down = server.send(t, 0, state, seen)
        ctx = side.download(t, 0, question, memory)
        spent = time.process_time() - began
        local.load(side.tensors, ctx.start)
        method.model.refresh(side.net, task, t)
        local.train(side.net, method, ctx, side.settings)
        began = time.process_time()
        answer = side.upload(side.tensors, ctx)
        arrival = server.receive(t, 0, answer, state)
        spent += time.process_time() - began
        state, seen = server.aggregate(t, state, [arrival], seen), {0: t}
    trained = sum(prod(s) for n, s in server.up.shapes.items() if n not in server.up.buffers)
    row |= {"up": len(answer), "up_buffers": arrival.buffers, "code": spent}
    row |= {"down": len(question), "down_buffers": buffers_down}
    row["bits"] = 8 * (len(answer) - arrival.buffers) / trained
    coder = method.uplink.code.coder
    if isinstance(coder, Pooled):
        pools = f"pools {counted(server.initial)['wide']:.0%} of the numbers"
        note = pools + f"; {note}" * bool(note)
    elif coder != DENSE:  # the entropy of what comes, where it may come shorter
        update = [t for name, t in arrival.update.items() if name not in server.up.buffers]
        bound = entropy(update) / trained
        row["bound"] = bound if 0 < bound <= row["bits"] else None
    return row | {"note": note}


def entropy(tensors: Iterable[Tensor]) -> float:
    """Bits that an ideal coder of independent entries needs: for each tensor which of its entries
    are not zero, and these as float32 or by the entropy of their values, at 32 bits a value."""
    bits = 0.0
    for t in tensors:
        counts = t[t != 0].unique(return_counts=True)[1]
        k = int(counts.sum())
        bits += surprise(torch.tensor([k, t.numel() - k]))
        bits += min(32 * k, surprise(counts) + 32 * len(counts))
    return bits


def surprise(counts: Tensor) -> float:
    """The entropy of so many entries of each kind, all together, in bits."""
    c = counts[counts > 0].double()
    return float((c * (c.sum() / c).log2()).sum())

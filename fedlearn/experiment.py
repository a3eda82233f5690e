"""All that states a run, in plain values: ``Experiment``, and what the command line adds. Nothing
heavy is imported before a method or a task is made: ``fedlearn --help`` does not wait for torch."""

import ast
import inspect
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .arguments import Checked, checked, short
from .errors import pick
from .settings import Settings, thread_count, whole_number

if TYPE_CHECKING:
    from .core import Method
    from .tasks import Task


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """All that states a run: the method and its options, the task, how long and how to train.

    Two machines that hold equal experiments hold the same method, task and seed. Names of methods,
    options, data sets and networks are looked up when the method and the task are made. The fields
    of ``Settings`` are among the parameters.

    Parameters
    ----------
    method : str
        a name that `fedlearn methods` lists, or your own: mine.py:name or module:name
    options : dict
        an option of the method, as `fedlearn methods` lists them, such as share=0.5
    lr : float, optional
        local learning rate; None: the method's own
    task : str
        classification, regression, sequences, detection or segmentation
    dataset : str
        digits (embedded), mnist, fashion_mnist, cifar10, cifar100, cinic10, tiny_imagenet; or your
        own: a folder with a folder of images for each class or with LEAF's JSON, an .npz file, a
        table, mine.csv or mine.csv:TARGET; of sequences: Shakespeare, whatever else is not given;
        to detect and to segment: digits, or digits:0.8 in that difficulty from 0 to 1; voc and, to
        detect, coco, or voc:96 for pictures of 96 pixels
    clients : int or str
        number of clients; or "users", a client for each of those that the data name; or the column
        of a table that does
    partition : str
        how the images are split: iid, dirichlet:ALPHA, shards:K, classes, main_class:SHARE,
        permuted, table:NAME, objects
    network : str, optional
        a network of fedlearn.models, or your own, a function (shape, classes) -> module:
        mine.py:name or module:name; None: the data set's own
    augment : tuple of str
        crop or flip; to detect and to segment flip
    metrics : tuple of str
        measure more on the test set: per_class; of masks per_class_iou, of boxes per_class_ap;
        per_client, client_spread, worst_client, personal of clients' own test samples;
        per_class_mix, worst_class_mix where they have none; or your own,
        mine.py:name
    train : int, optional
        keep only so many training images
    test : int, optional
        keep only so many test images
    validation : bool
        hold a tenth of the training images out and test on it, not on the test images
    seed : int
        the seed of every random choice
    device : str
        auto: a GPU if there is one; or cpu, cuda, cuda:1, ...
    rounds : int
        communication rounds
    threads : int, optional
        CPU threads; None: one for small networks, all for large ones

    Raises
    ------
    ValueError
        For a value that is not of its type or range, and for a learning rate stated twice.

    Examples
    --------
    >>> import fedlearn as fl
    >>> stated = fl.Experiment(method="rpn", options={"share": 0.5}, clients=4)
    >>> stated.label, stated.make_task().clients
    ('rpn share=0.5', 4)
    """

    method: str = "fedavg"
    options: dict[str, Any] = field(default_factory=dict)
    lr: float | None = None
    task: str = "classification"
    dataset: str = "digits"
    clients: int | str = 10
    partition: str = "iid"
    network: str | None = None
    augment: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    train: int | None = None
    test: int | None = None
    validation: bool = False
    seed: int = 0
    device: str = "auto"
    rounds: int = 20
    threads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "sequences" and self.dataset == Experiment.dataset:  # which it cannot take
            object.__setattr__(self, "dataset", "shakespeare")
        whole_number("rounds", self.rounds)
        thread_count(self.threads)
        if self.seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, not {short(self.seed)}.")
        for name, kind, noun in (
            ("options", dict, "a dict"),
            ("augment", tuple | list, "a list"),
            ("metrics", tuple | list, "a list"),
        ):
            if not isinstance(value := getattr(self, name), kind):
                raise ValueError(f"{name} must be {noun}, not {value!r}.")
            # JSON has lists only; the tuples here are equal to those that were written
            object.__setattr__(self, name, _tuples(value))
        if self.lr is not None and "lr" in self.options:
            raise ValueError("lr is stated twice: state lr, or the method's option lr.")

    @property
    def settings(self) -> Settings:
        """The part of it that says how clients train."""
        return Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})

    @property
    def label(self) -> str:
        """The method and its options, as a table or a picture names them."""
        return " ".join([self.method, *(f"{name}={v}" for name, v in self.options.items())])

    def make_method(self) -> "Method":
        """The method, its options checked against its own signature."""
        from .core import Method
        from .methods import find

        function = find(self.method)
        options = self.options | ({} if self.lr is None else {"lr": self.lr})
        signature = inspect.signature(function)
        for name in options:
            known = pick(name, signature.parameters, f"option of {self.method}")
            if known.annotation is str and options[name] == math.inf:
                options = options | {name: "inf"}  # read as a number where a word is meant
        try:
            signature.bind(**options)
        except TypeError as error:
            raise ValueError(f"{self.method} makes no method of these options: {error}.") from None
        method = checked(function)(**options)
        if not isinstance(method, Method):
            kind = type(method).__name__
            raise ValueError(f"{self.method} makes a {kind}, not a fedlearn.Method.")
        return method

    def make_task(self) -> "Task":
        """The task, with its data loaded and split."""
        from . import seeing, tasks

        make = pick(self.task, tasks.TASKS | seeing.TASKS, "task")
        stated = {name: getattr(self, name) for name in inspect.signature(make).parameters}
        if isinstance(self.clients, str) and self.partition == "iid":  # nobody asked for it
            stated["partition"] = None
        return make(**stated)

    def arguments(self) -> list[str]:
        """What one types behind ``fedlearn run`` for it, defaults left out."""
        plain, typed = Experiment(), [self.method]
        names = {"options": "option", "metrics": "metric"}
        for f in fields(self):
            if f.name == "method" or (value := getattr(self, f.name)) == getattr(plain, f.name):
                continue
            if isinstance(value, dict):
                value = [f"{name}={write_value(v)}" for name, v in value.items()]
            name = "--" + names.get(f.name, f.name).replace("_", "-")
            if value is True:
                typed.append(name)
                continue
            for text in map(str, value if isinstance(value, list | tuple) else [value]):
                typed += [f"{name}={text}"] if text.startswith("-") else [name, text]
        return typed


@dataclass(frozen=True, kw_only=True)
class Engine(Checked):
    """How clients are trained."""

    # sequential: clients train one after another; stacked: all of a round in one step; auto:
    # stacked where steps are small; flower: in processes of their own, through Flower's
    # simulation
    engine: str = "sequential"
    # memory for stacked training, in MB; by default half of what is free
    memory_limit: float | None = None
    # flower: CPUs that a training client takes
    cpus_per_client: float = 1.0
    # flower: share of a GPU that it takes, such as 0.1
    gpus_per_client: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Output(Checked):
    """What is shown and written."""

    # write the history as JSON to this file; - prints it
    out: str | None = None
    # where finished rounds are kept until the run ends, by default beside --out; if the file is
    # there, the run goes on from it
    checkpoint: str | None = None
    # write every row as the run goes, as .csv or .jsonl; a file for each run
    log: str | None = None
    # write the trained network's tensors, as .safetensors; a file for each run
    save: str | None = None
    # end a run at this test accuracy, 0 to 1
    until: float | None = None
    # no progress bar, and no lines where there is no terminal for one
    progress: bool = True
    # also draw the accuracies into an image file
    plot: str | None = None
    # horizontal axis of --plot; minutes: on the link that --link or --uplink and --downlink state;
    # clients: the last test of each, with --metric per_client
    against: Literal["rounds", "bytes", "seconds", "minutes", "clients"] = "bytes"

    @staticmethod
    def file(path: str, end: str) -> Path:
        """The file of that name of the run whose own files end so."""
        return Path(path).with_suffix(end + Path(path).suffix) if end else Path(path)

    def callbacks(self, end: str) -> list[Any]:
        """What is called after each round of the run whose files end so."""
        from .callbacks import Lines, Until

        calls: list[Any] = [] if self.until is None else [Until(self.until)]
        return calls + ([Lines(self.file(self.log, end))] if self.log else [])


@dataclass(frozen=True, kw_only=True)
class Link(Checked):
    """The link on which runs are timed."""

    # the clients' link: LoRaWAN, 2G, 3G, DSL, cable, LTE or fibre
    link: str | None = None
    # a client's speed up, such as 1Mbit (a second)
    uplink: str | None = None
    # a client's speed down, such as 10Mbit
    downlink: str | None = None
    # a round trip, such as 50ms
    latency: str | None = None
    # how many times slower a device computes than this machine
    slower: float = 1.0
    # how much devices differ: standard deviation of the logarithm of their times
    stragglers: float = 0.0

    def time(self) -> dict[str, Any] | None:
        """The arguments of ``fedlearn.link.time``, checked, or ``None`` without a link."""
        if self == Link():
            return None
        from . import link

        typed = {"up": self.uplink, "down": self.downlink, "latency": self.latency}
        speeds = {} if self.link is None else pick(self.link, link.PRESETS, "link")
        speeds = speeds | {name: text for name, text in typed.items() if text is not None}
        if not {"up", "down"} <= speeds.keys():
            raise ValueError("A link has two speeds: give --uplink and --downlink, or --link LTE.")
        speeds |= {"slower": self.slower, "stragglers": self.stragglers}
        link.check(**speeds)
        return speeds


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(v) for name, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def read_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """``("share=0.5",)`` -> ``{"share": 0.5}``."""
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"An option has the form NAME=VALUE, not {pair!r}.")
    return {name: read_value(text) for name, text in (pair.split("=", 1) for pair in pairs)}


def read_value(text: str) -> Any:
    """A Python literal if it is one that JSON knows, or a number such as inf; else the text."""
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
        return value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        pass
    try:
        return float(text)
    except ValueError:
        return text


def write_value(value: Any) -> str:
    """The inverse of ``read_value``."""
    text = str(value)
    return text if read_value(text) == value else repr(value)

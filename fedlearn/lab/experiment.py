"""``Experiment``: everything that states a run, in plain values. Importing it does not
load torch, so ``fedlearn run --help`` is quick."""

import ast
import inspect
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..errors import check_whole, pick
from ..settings import Settings

if TYPE_CHECKING:
    from ..core import Method
    from ..tasks import Task


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """Everything that states a run: the method and its options, the task, rounds and
    settings.

    Two machines with equal experiments have the same method, task and seed. Names of
    methods, data sets and networks are looked up when the method and the task are made.
    The fields of ``Settings`` are parameters, too.

    Parameters
    ----------
    method : str
        a name that `fedlearn methods` lists, or your own: mine.py:name or module:name
    options : dict
        an option of the method, as `fedlearn methods` lists them, such as share=0.5
    lr : float, optional
        local learning rate, by default the method's own
    task : str
        classification, detection or segmentation
    dataset : str
        digits (in the package), mnist, fashion_mnist, cifar10, cifar100, or your own,
        mine.py:name, a function that makes data by fl.data.arrays or another maker; for
        detection and segmentation digits, or digits:0.8 of that difficulty from 0 to 1,
        voc and coco, or voc:96 for pictures of 96 pixels
    clients : int or str
        number of clients; or "users" for one client a user of the data
    partition : str
        split of the images: iid, dirichlet:ALPHA, shards:K, classes, main_class:SHARE,
        permuted, table:NAME
    network : str, optional
        a network of fedlearn.models, or your own function (shape, classes) -> module:
        mine.py:name or module:name; by default the data set's own
    augment : tuple of str
        crop or flip, for classification
    metrics : tuple of str
        further measures of the test set: per_class; per_class_iou of masks,
        per_class_ap of boxes; per_client of clients' own test samples; per_class_mix,
        worst_class_mix without them; or your own, mine.py:name
    train : int, optional
        number of training images, by default all
    test : int, optional
        number of test images, by default all
    validation : bool
        test on a tenth of the training images that is held out, not on the test images
    seed : int
        seed of every random choice
    device : str
        auto (a GPU if there is one), cpu, cuda, cuda:1, ...
    rounds : int
        communication rounds
    threads : int, optional
        CPU threads; by default one for small networks, all for large ones

    Raises
    ------
    ValueError
        For a value that is not of its type or range, and for two learning rates.

    Examples
    --------
    >>> import fedlearn as fl
    >>> experiment = fl.Experiment(method="rpn", options={"share": 0.5}, clients=4)
    >>> experiment.label, experiment.make_task().clients
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
        check_whole("rounds", self.rounds)
        check_whole("seed", self.seed, minimum=0)
        if self.lr is not None and "lr" in self.options:
            raise ValueError("lr is stated twice: state lr, or the method's option lr.")
        for name in ("augment", "metrics"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ValueError(f"{name} must be a list, not {value!r}.")
            object.__setattr__(self, name, tuple(value))

    @property
    def settings(self) -> Settings:
        """The fields that say how clients train."""
        return Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})

    @property
    def label(self) -> str:
        """The method and its options, as tables and pictures name the run."""
        options = [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([self.method, *options])

    def make_method(self) -> "Method":
        """The method; its options are compared with its signature."""
        from ..core import Method
        from ..extensions import check_call
        from ..methods import find

        function = find(self.method)
        options = dict(self.options)
        if self.lr is not None:
            options["lr"] = self.lr
        signature = inspect.signature(function)
        for name, value in options.items():
            parameter = pick(name, signature.parameters, f"option of {self.method}")
            if parameter.annotation is str and value == math.inf:
                options[name] = "inf"  # the command line reads this word as a number
        check_call(function, self.method, options)
        method = function(**options)
        if not isinstance(method, Method):
            kind = type(method).__name__
            raise ValueError(f"{self.method} makes a {kind}, not a fedlearn.Method.")
        return method

    def make_task(self) -> "Task":
        """The task, with its data loaded and split."""
        from .. import seeing, tasks

        make = pick(self.task, tasks.TASKS | seeing.TASKS, "task")
        names = inspect.signature(make).parameters
        values = {name: getattr(self, name) for name in names}
        if isinstance(self.clients, str) and self.partition == Experiment.partition:
            values["partition"] = None  # the data set has its clients
        return make(**values)


def read_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """``("share=0.5",)`` -> ``{"share": 0.5}``."""
    options = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"An option has the form NAME=VALUE, not {pair!r}.")
        options[name] = read_value(text)
    return options


def read_value(text: str) -> Any:
    """A Python literal that JSON can hold, or else the text itself."""
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
        return value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text

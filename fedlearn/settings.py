"""What states a run, in plain values: the settings of training, and the whole experiment.

The command line, ``fl.Settings`` and the results (``meta["settings"]``) are all made from the
fields below, each of which has its default and its help text here and nowhere else.
Nothing heavy is imported, so that ``fedlearn --help`` does not wait for torch.
"""

import inspect
import json
import math
import os
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from .arguments import LARGEST, check_arguments, check_value, is_whole, short
from .errors import pick
from .options import opt

if TYPE_CHECKING:
    from .method import Method
    from .tasks import Task

# What products of float32 numbers may be computed in: exactly, in TensorFloat-32 (GPUs only), in
# bfloat16.
PRECISIONS = dict.fromkeys(("float32", "tf32", "bf16"))


def whole_number(name: str, value: object) -> None:
    """Refuse anything but 1, 2, 3, ..."""
    if not is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {short(value)}.")
    if value > LARGEST:
        raise ValueError(f"{name} must be a whole number below 10^38, not {short(value)}.")


def kept(name: str, total: int, purpose: str, count: int | None) -> None:
    """Refuse to keep ``count`` of a data set's ``total`` images for ``purpose``, train or test."""
    if count is not None and not 1 <= count <= total:
        raise ValueError(
            f"{name} has {total} {purpose} images, so {purpose}={short(count)} cannot be kept."
        )


def thread_count(value: object) -> None:
    """Refuse a number of CPU threads that no machine of this kind has use for."""
    most = max(64, os.cpu_count() or 1)
    if value is not None and not (is_whole(value) and 1 <= value <= most):
        raise ValueError(f"threads must be a whole number from 1 to {most}, not {short(value)}.")


_training = partial(opt, group="training")
_task = partial(opt, group="the task")
_method = partial(opt, group="the method")


@dataclass(frozen=True)
class Settings:
    """How clients train, as results store it.

    McMahan's letters: ``participation`` C, ``epochs`` E, ``batch_size`` B. Then how often the test
    set is looked at, and the arithmetic of local training, a name in ``PRECISIONS``.
    """

    participation: float = _training(1.0, "share of the clients drawn each round", "C")
    epochs: int = _training(1, "local epochs a round", "E")
    batch_size: int = _training(32, "local batch size", "B")
    evaluate_every: int = _training(1, "look at the test set every N rounds", "N")
    precision: str = _training("float32", "arithmetic of training: float32 (default), tf32 or bf16")

    def __post_init__(self) -> None:
        for f in fields(self):
            own = check_value(f.name, getattr(self, f.name), f.type)
            object.__setattr__(self, f.name, own)
        if not 0 < self.participation <= 1:
            raise ValueError(
                "participation is a share of the clients, above 0 and at most 1, "
                f"not {self.participation!r}."
            )
        for name in ("epochs", "batch_size", "evaluate_every"):
            whole_number(name, getattr(self, name))
        pick(self.precision, PRECISIONS, "precision")

    def drawn(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return max(1, int(self.participation * clients + 0.5))


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """All that states a run: the method and its options, the task, how long and how to train.

    Two machines that hold equal experiments hold the same method, task and seed. Names of methods,
    options, data sets and networks are looked up when the method and the task are made.
    """

    method: str = opt(
        "fedavg",
        "a name that `fedlearn methods` lists, or your own: mine.py:name or module:name",
        "METHOD",
        positional=True,
    )
    options: dict[str, Any] = _method(
        dict,
        "an option of the method, as `fedlearn methods` lists them, such as share=0.5; "
        "may be given several times",
        "NAME=VALUE",
        flag="--option",
    )
    lr: float | None = _method(None, "local learning rate; by default the method's own")
    task: str = _task("classification", "classification (default), detection or segmentation")
    dataset: str = _task(
        "digits",
        "digits (embedded, the default), mnist, fashion_mnist, cifar10, cifar100, cinic10, "
        "tiny_imagenet; or your own: a folder with a folder of images for each class, or an .npz "
        "file; to detect and to segment: digits, or digits:0.8 in that difficulty from 0 to 1; voc "
        "and, to detect, coco, or voc:96 for pictures of 96 pixels",
    )
    clients: int | str = _task(
        10,
        'number of clients; or "users", a client for each of those that an .npz file names',
        type=lambda text: int(text) if text.lstrip("+-").isdecimal() else text,
    )
    partition: str = _task(
        "iid",
        "how the images are split: iid, dirichlet:ALPHA, shards:K, classes, main_class:SHARE, "
        "permuted, table:NAME, objects",
        "P",
    )
    network: str | None = _task(
        None,
        "a network of fedlearn.models, or your own, a function (shape, classes) -> module: "
        "mine.py:name or module:name; by default the data set's own",
    )
    augment: tuple[str, ...] = _task(
        (), "crop or flip, to detect and to segment also scale; may be given several times", "A"
    )
    metrics: tuple[str, ...] = _task(
        (),
        "measure more on the test set: per_class, per_client, client_spread, worst_client, or "
        "your own, mine.py:name; may be given several times",
        "M",
        flag="--metric",
    )
    train: int | None = _task(None, "keep only N training images", "N")
    test: int | None = _task(None, "keep only N test images", "N")
    seed: int = _task(0, "the seed of every random choice", several=True)
    device: str = _task("auto", "auto (default: a GPU if there is one), cpu, cuda, cuda:1, ...")
    rounds: int = _training(20, "communication rounds")
    threads: int | None = _training(
        None, "CPU threads; by default one for small networks, all for large ones"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("rounds", self.rounds)
        thread_count(self.threads)
        if self.seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, not {short(self.seed)}.")
        for name, kind, what in (
            ("options", dict, "a dict"),
            ("augment", tuple | list, "a list"),
            ("metrics", tuple | list, "a list"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be {what}, not {getattr(self, name)!r}.")
        if self.lr is not None and "lr" in self.options:
            raise ValueError("lr is stated twice: state lr, or the method's option lr.")
        # JSON has lists only; the tuples here are equal to those that were written
        object.__setattr__(self, "augment", tuple(self.augment))
        object.__setattr__(self, "metrics", tuple(self.metrics))
        options = {name: _tuples(value) for name, value in self.options.items()}
        object.__setattr__(self, "options", options)

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
        from .method import Method
        from .methods import find

        function = find(self.method)
        options = self.options | ({} if self.lr is None else {"lr": self.lr})
        known = inspect.signature(function).parameters
        for name in options:
            pick(name, known, f"option of {self.method}")
            if known[name].annotation is str and options[name] == math.inf:
                options = options | {name: "inf"}  # read as a number where a word is meant
        args, named = check_arguments(function, (), options)
        lacking = [
            n
            for n, p in known.items()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        for name in set(lacking) - set(options):
            raise ValueError(f"{self.method} needs its option {name}: --option {name}=VALUE.")
        try:
            inspect.signature(function).bind(*args, **named)
        except TypeError as error:
            raise ValueError(f"{self.method} makes no method of options ({error}).") from None
        made = function(*args, **named)
        if not isinstance(made, Method):
            raise ValueError(f"{self.method} makes a {type(made).__name__}, not a fedlearn.Method.")
        return made

    def make_task(self) -> "Task":
        """The task, with its data loaded and split."""
        from .tasks import TASKS

        make = pick(self.task, TASKS, "task")
        names = inspect.signature(make).parameters
        stated = {name: getattr(self, name) for name in names}
        if self.clients == "users" and self.partition == "iid":  # nobody asked for it
            stated["partition"] = None
        return make(**stated)

    def to_json(self) -> str:
        """Every field, as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, data: str | dict[str, Any]) -> Self:
        """What ``to_json`` wrote, as text or read; a field that is missing has its default."""
        data = json.loads(data) if isinstance(data, str) else data
        names = [f.name for f in fields(cls)]
        for name in data:
            pick(name, dict.fromkeys(names), "field of an experiment")
        return cls(**data)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value

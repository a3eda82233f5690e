"""All that states a run, in plain values: method, task, how long and how to train.

Each field has its default and its help text here and nowhere else. Nothing heavy is imported before
a method or a task is made, so that ``fedlearn --help`` does not wait for torch.
"""

import inspect
import json
import math
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from .arguments import check_arguments, short
from .errors import pick
from .options import opt
from .settings import Settings, thread_count, training, whole_number

if TYPE_CHECKING:
    from .method import Method
    from .tasks import Task

_task = partial(opt, group="the task")
_method = partial(opt, group="the method")


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
        "measure more on the test set: per_class; per_client, client_spread, worst_client of "
        "clients' own test samples; per_class_mix, class_mix_spread, worst_class_mix where they "
        "have none; or your own, mine.py:name; may be given several times",
        "M",
        flag="--metric",
    )
    train: int | None = _task(None, "keep only N training images", "N")
    test: int | None = _task(None, "keep only N test images", "N")
    seed: int = _task(0, "the seed of every random choice", several=True)
    device: str = _task("auto", "auto (default: a GPU if there is one), cpu, cuda, cuda:1, ...")
    rounds: int = training(20, "communication rounds")
    threads: int | None = training(
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

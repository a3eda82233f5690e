"""A method is a name and the parts that it is made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from ..errors import near_names, pick, short
from ..extensions import find
from .context import Part
from .links import Downlink, Link, Uplink
from .local import Model, Objective, TaskLoss, TaskNetwork
from .optim import SGD, Optimizer
from .servers import Aggregator, Mean

# the base class of each part
KINDS: dict[str, type[Part]] = {
    "model": Model,
    "objective": Objective,
    "optimizer": Optimizer,
    "uplink": Uplink,
    "downlink": Downlink,
    "server": Aggregator,
}


@dataclass(frozen=True)
class Method:
    """How a client trains. A subclass says what else a round is.

    Parameters
    ----------
    name : str
        Stands in histories and tables.
    model, objective, optimizer : Model, Objective, Optimizer
        Which network a client trains, what it minimises, and how it takes a step.

    Raises
    ------
    ValueError
        For parts that do not fit together, and for a part with a misspelt member.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.methods.fedavg(lr=0.05).parts()["objective"]
    'TaskLoss()'
    """

    name: str = "method"
    model: Model = TaskNetwork()
    objective: Objective = TaskLoss()
    optimizer: Optimizer = SGD()

    # the two sides of a round; ``federation`` sets them
    server_class: ClassVar[Any] = None
    client_class: ClassVar[Any] = None

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.name in KINDS:
                check_part(f.name, getattr(self, f.name), KINDS[f.name])
        parts = list(self.all_parts())
        for part in parts:
            kinds = [provided(other) for other in parts if other is not part]
            for need in part.needs:
                if not any(issubclass(kind, need) for kind in kinds):
                    raise ValueError(
                        f"{part!r} needs {need.__name__}, but no other part of "
                        f"{self.name} is a {need.__name__}."
                    )
            part.check(self)

    def all_parts(self) -> Iterator[Part]:
        """Every part, and the steps of each link."""
        for f in fields(self):
            part = getattr(self, f.name)
            if isinstance(part, Part):
                yield part
            if isinstance(part, Link):
                yield from part.steps

    def but(self, **parts: Any) -> Any:
        """The same method with other parts.

        >>> import fedlearn as fl
        >>> fl.methods.rpn().but(server=fl.Mean("clients")).parts()["server"]
        "Mean(by='clients')"
        """
        allowed = {f.name: f for f in fields(self)}
        for name in parts:
            pick(name, allowed, "part of a method")
        return replace(self, **parts)

    def parts(self) -> dict[str, str]:
        """The parts as text, for tables, histories and checkpoints."""
        names = [f.name for f in fields(self) if f.name != "name"]
        return {name: repr(getattr(self, name)) for name in names}

    def server_side(self, task: Any, settings: Any = None) -> Any:
        """The server of this method on a task."""
        return self.server_class(self, task, settings)

    def client_side(self, task: Any, settings: Any = None) -> Any:
        """The clients of this method on a task."""
        return self.client_class(self, task, settings)


@dataclass(frozen=True)
class Averaging(Method):
    """Six parts; by default those of federated averaging.

    Parameters
    ----------
    name, model, objective, optimizer
        As for every ``Method``.
    uplink, downlink : Uplink, Downlink
        Which bytes go up and come down; by default the dense update and the dense model.
    server : Aggregator
        How updates become the next global model; by default their weighted mean.

    Examples
    --------
    >>> import fedlearn as fl
    >>> half = fl.Uplink(fl.parts.Update(), fl.parts.Code(fl.wire.Dense(16)))
    >>> fl.Averaging("half", uplink=half).parts()["server"]
    "Mean(by='samples')"
    """

    name: str = "fedavg"
    uplink: Uplink = Uplink()
    downlink: Downlink = Downlink()
    server: Aggregator = Mean()


def provided(part: Any) -> type:
    """The class that satisfies another part's ``needs``.

    A link provides the class of the tensors that it sends, and any other part its own
    class. A step that makes such tensors satisfies no need.
    """
    if isinstance(part, Link):
        return part.makes
    return object if getattr(part, "makes", None) else type(part)


def check_part(name: str, part: Any, kind: type[Part]) -> None:
    """``ValueError`` for a part of another kind, or with a member that its kind lacks.

    Such a member is most often a misspelt one, which would never be called.
    """
    if not isinstance(part, kind):
        raise ValueError(
            f"The {name} of a method is of kind {kind.__name__}, not {short(part)}."
        )
    options = getattr(part, "__dataclass_fields__", {})
    for member in dir(type(part)):
        if member.startswith("_") or member in options or hasattr(kind, member):
            continue
        hint = (
            near_names(member, dir(kind)) or " Names of further members begin with _."
        )
        raise ValueError(
            f"{type(part).__name__} has {member!r}, which no {kind.__name__} has.{hint}"
        )


METHODS: dict[str, Callable[..., Method]] = {}  # by name; ``fedlearn.methods`` fills it


def method_of(method: Any) -> Method:
    """A method as it is, or by its name with its defaults."""
    if isinstance(method, str):
        return find(method, METHODS, "method")()
    if not isinstance(method, Method):
        name = getattr(method, "__name__", "")
        hint = f"the function {name}: call it, {name}()" if name else short(method)
        raise ValueError(f"A run takes a method or its name, not {hint}.")
    return method

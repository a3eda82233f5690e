"""The parts that methods are made of, in one place.

A part is a plain object with a few methods. A link is a chain of steps (``Update``,
``Feedback``, ``Lossy``, ...); model, objective, optimizer and server are one part each.
Two parts fit or not by the classes that one ``needs``. Base classes do nothing by default,
so that a part of your own has just the methods that it changes.
"""

from .core import (
    DENSE,
    SGD,
    Adam,
    Aggregator,
    Arrival,
    Arrivals,
    Batch,
    Code,
    Context,
    Downlink,
    Feedback,
    Link,
    Loss,
    Lossy,
    Mean,
    Model,
    Named,
    Objective,
    Optimizer,
    Part,
    State,
    Step,
    TaskLoss,
    TaskNetwork,
    Tensors,
    Trained,
    Update,
    Uplink,
    Weights,
)
from .methods.base import (
    Continued,
    Reference,
    Shifted,
    inner,
    mean_update,
    summed,
    trained,
)
from .methods.dgc import Momentum
from .methods.edge import Edge
from .methods.fed_kgf import Representative
from .methods.fedfusion import FusionNetwork
from .methods.replay import KeptSteps, Replay
from .methods.robust import Clipped, Krum, Median, TrimmedMean
from .methods.rpn import Residual

"""What methods are made of, in one place. A part is a plain object with a few methods: a link is a
chain of steps (``Update``, ``Feedback``, ``Lossy``, ...); model, objective, optimizer and server
are one part each. Two parts fit or not by the classes that one ``needs`` and the other gives; base
classes do nothing by default, so that a part of your own has just what it changes."""

from .context import Arrival, Batch, Context, Part, State, Tensors
from .links import (
    DENSE,
    Clip,
    Code,
    Downlink,
    Feedback,
    Link,
    Lossy,
    Momentum,
    Residual,
    Step,
    Trained,
    Update,
    Uplink,
    WarmStart,
    Weights,
)
from .local import (
    Edge,
    Loss,
    Model,
    Named,
    Objective,
    Reference,
    Smoothed,
    TaskLoss,
    TaskNetwork,
    inner,
    trained,
)
from .optim import SGD, Adam, Continued, Optimizer, Shifted, lasting, recalled
from .servers import (
    Aggregator,
    Arrivals,
    Clipped,
    KeptSteps,
    Krum,
    Mean,
    Median,
    Replay,
    TrimmedMean,
    mean_update,
    summed,
)

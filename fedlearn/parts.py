"""The parts of a method in one place: base classes whose members do nothing by default, and the
common parts."""

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
    Replay,
    Residual,
    Step,
    Steps,
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
    HeavyHitters,
    KeptSteps,
    Krum,
    Mean,
    Median,
    TrimmedMean,
    mean_update,
    summed,
)

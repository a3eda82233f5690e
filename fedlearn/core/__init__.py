"""The round, and the six parts that methods are made of. Read ``federation.py`` first."""

from .context import Arrival, Batch, Context, Part, State, Tensors
from .federation import (
    EVALUATE,
    TRAIN,
    Client,
    Exchange,
    OneByOne,
    Server,
    Side,
    clients,
    run,
)
from .links import (
    DENSE,
    Code,
    Downlink,
    Feedback,
    Link,
    Lossy,
    Residual,
    Sections,
    Step,
    Trained,
    Update,
    Uplink,
    Weights,
    refuse_diverged,
)
from .local import (
    Edge,
    Loss,
    Model,
    Named,
    Objective,
    TaskLoss,
    TaskNetwork,
    inner,
    trained,
)
from .method import METHODS, Averaging, Method
from .optim import SGD, Adam, Continued, Optimizer, Shifted, lasting, recalled
from .servers import Aggregator, Arrivals, Mean, mean_update, summed

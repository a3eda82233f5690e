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
    Sections,
    Step,
    Trained,
    Update,
    Uplink,
    Weights,
)
from .local import Loss, Model, Named, Objective, TaskLoss, TaskNetwork
from .method import METHODS, Averaging, Method
from .optim import SGD, Adam, Optimizer
from .servers import Aggregator, Arrivals, Mean

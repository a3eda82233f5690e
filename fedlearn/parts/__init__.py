"""The parts of a method: base classes whose members do nothing by default, and the common parts."""

from .base import WORDS, Arrival, Batch, Context, Part, State, Tensors
from .link import DENSE, Code, Downlink, Link, Lossy, Step, Update, Uplink
from .model import Edge, Model, Named, TaskNetwork
from .objective import Objective, Reference, Smoothed, TaskLoss
from .optimizer import SGD, Adam, Continued, Optimizer, Shifted, lasting, recalled
from .replay import KeptSteps, Replay
from .robust import Clipped, Krum, Median, TrimmedMean
from .server import Aggregator, Mean, summed
from .sketched import HeavyHitters
from .steps import Clip, Feedback, Momentum, Residual, WarmStart

"""A task is data, its split over clients, a network, a loss and a metric."""

from .base import Task
from .kinds import Classification, classification
from .regression import Regression, regression
from .sequences import Sequences, sequences

TASKS = {f.__name__: f for f in (classification, regression, sequences)}

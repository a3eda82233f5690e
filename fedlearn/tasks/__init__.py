"""A task is data, its split over clients, a network, a loss and a metric."""

from .base import Task
from .kinds import Classification, classification

TASKS = {"classification": classification}

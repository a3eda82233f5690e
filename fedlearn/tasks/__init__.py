"""A task is data, its split over clients, a network, a loss and a metric."""

from .base import Task
from .kinds import Classification, Detection, Segmentation, classification, detection, segmentation

TASKS = {f.__name__: f for f in (classification, detection, segmentation)}

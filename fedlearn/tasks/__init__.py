"""A task is data, its split over clients, a network, a loss and a metric."""

from .base import Task
from .classification import Classification, classification
from .detection import Detection, detection
from .segmentation import Segmentation, segmentation

TASKS = {f.__name__: f for f in (classification, detection, segmentation)}

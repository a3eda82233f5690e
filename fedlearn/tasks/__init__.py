"""A task is data, its split over clients, a network, a loss and a metric."""

from .classification import Classification, classification

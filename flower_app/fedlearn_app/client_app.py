"""A client's part. ``client_app(task)`` takes a function of Flower's context that makes the task of
the data on this machine; without one the client of the node's ``partition-id`` has its share of the
data set that the run config names."""

from fedlearn.engines.flower import client_app

app = client_app()

"""Clients that arrive after a training: how good a start do they have? (Figure 6 of FedFusion.)

Each trains alone, from the weights that the training left, and is tested before and after each of
its epochs. Its images are as many as those of the clients before it, drawn anew from the same set,
and where a partition permutes pixels its order is one that no client had. Its rate is that of a
first round; with FedFusion the frozen stream is the extractor that it begins with.
"""

from dataclasses import replace

from . import local, round
from .experiment import Experiment
from .method import Method
from .parts import State, Tensors

COUNT = 3  # of newcomers


def newcomers(
    method: Method, experiment: Experiment, weights: Tensors, images: int, epochs: int
) -> list[list[float]]:
    """Each newcomer's test accuracy before it trains and after 1, 2, ... ``epochs`` epochs on
    ``images``; ``weights``: what the training of ``experiment`` left."""
    curves = []
    for k in range(COUNT):
        seed = experiment.seed + 1000 * (k + 1)  # the recipes' own seeds are small numbers
        task = replace(experiment, clients=1, train=images, seed=seed).make_task()
        curve = []
        for n in range(epochs + 1):  # each from the start: the longer begins as the shorter does
            settings = replace(experiment.settings, participation=1.0, epochs=max(n, 1))
            server, state = method.server_side(task, settings), State(weights)
            people = round.clients(method, task, settings)
            threads = experiment.threads or round.good_threads(
                server.net, task, settings.batch_size
            )
            with local.threads(threads, settings.precision):
                if n:
                    state, _ = round.one_round(server, people, 1, state, {})
                curve.append(server.evaluate(1, state, None)["accuracy"])
        curves.append(curve)
    return curves

"""Where a round spends its time, for ``speed.py``."""

import time
from collections import Counter

import fedlearn as fl
from fedlearn import local, stacked
from fedlearn.round import one_round
from fedlearn.stacked import choose

PARTS = {  # what a round consists of, and the functions in which it happens
    "training": [(local, "train"), (stacked, "train")],
    "batch assembly": [("task", "gather")],
    "messages down": [("server", "send"), ("clients", "download")],
    "messages up": [("clients", "upload"), ("server", "receive")],
    "aggregation": [("server", "aggregate")],
    "evaluation": [("server", "evaluate")],
}


def profile(args):
    result = {}
    for engine in ("sequential", "stacked"):
        for clients, partition in ((10, "dirichlet:0.5"), (100, "iid")):
            task, label = (
                fl.tasks.classification("digits", clients, partition),
                f"{clients} clients",
            )
            shares = result[f"{engine}, {label}"] = profile_run(task, engine, 10 * args.repeats)
            print(engine, label, {n: f"{s:.1%}" for n, s in shares.items()}, flush=True)
    return result


def profile_run(task, engine, rounds):
    """The share of each part in the time of all rounds, evaluation included."""
    method, settings = fl.methods.fedavg(), fl.Settings()
    together = choose(engine, method, task, settings, task.clients).together
    server = method.server_side(task, settings)
    clients, heard = fl.clients(method, task, settings, together), {}
    state, _ = one_round(server, clients, 1, server.start(), heard)
    spent, undo, inside, since = Counter(), [], ["the rest"], 0.0

    def turn():  # the time since the last turn belongs to the innermost part
        nonlocal since
        now = time.perf_counter()
        spent[inside[-1]] += now - since
        since = now

    def timed(function, part):
        def call(*args, **kwargs):
            turn()
            inside.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                turn()
                inside.pop()

        return call

    owners = {"task": type(task), "server": server, "clients": clients.side}
    for part, functions in PARTS.items():
        for owner, name in functions:
            owner = owners[owner] if isinstance(owner, str) else owner
            undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, timed(getattr(owner, name), part))
    try:
        began = since = time.perf_counter()
        for t in range(2, rounds + 2):
            state, _ = one_round(server, clients, t, state, heard)
        turn()
        total = since - began
    finally:
        for owner, name, function in undo:
            setattr(owner, name, function)
    return {part: spent[part] / total for part in (*PARTS, "the rest")}

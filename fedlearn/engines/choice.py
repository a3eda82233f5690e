"""How a run trains its clients: one after another, or several stacked in one step. Same method,
same batches, same draws: after a round the results differ in the last bits of sums. Over many
rounds such differences can grow.

"sequential" is the default. "stacked" trains as many clients at once as fit into memory, and
refuses a method that does not allow it. "auto" times both on the method's own network and takes
the faster; it keeps the answer in a file, so that a run repeated on the same machine is trained
the same way."""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from .. import rng, training
from ..arguments import is_number
from ..data import sources
from ..errors import pick
from ..files import write_text
from ..models import state_of
from ..parts import SGD, Batch, Context, TaskLoss
from ..settings import Settings
from . import layers

ENGINES = dict.fromkeys(
    ("sequential", "stacked", "auto", "flower-sim")
)  # the last is not chosen here, but in ``round.run``
MOST = 128  # clients in one step on a CPU: with more, a step needs more memory and gains nothing
SLOW = (
    0.05  # seconds: a step of one client that takes longer on a CPU has no overhead worth sharing
)


@dataclass(frozen=True)
class Engine:
    """What was chosen: ``together`` clients in a step, and the reason, for the history."""

    name: str
    together: int
    why: str


def choose(
    engine: str,
    method: Any,
    task: Any,
    settings: Settings,
    count: int,
    memory_limit: float | None = None,
) -> Engine:
    """The ``Engine`` for runs with ``count`` clients a round. ``memory_limit`` in bytes; by
    default half of what is free."""
    pick(engine, ENGINES, "engine")
    if engine == "sequential" and memory_limit is None:
        return Engine("sequential", 1, "asked for")
    if memory_limit is not None and not (is_number(memory_limit) and memory_limit >= 0):
        raise ValueError(f"memory_limit is a number of bytes, not {memory_limit!r}.")
    limit = free_memory(task.device) // 2 if memory_limit is None else memory_limit
    need = bytes_for_one(method, task, settings.batch_size)
    if limit < need and (memory_limit is not None or engine == "stacked"):
        raise ValueError(
            f"Training one client takes about {need / 1e6:.1f} MB, but memory_limit allows "
            f"{limit / 1e6:.1f} MB."
        )
    if engine == "sequential":
        return Engine("sequential", 1, "asked for")
    most = MOST if task.device.type == "cpu" else count
    together = int(min(max(1, limit / need), count, most))
    if together == 1:
        return Engine(
            "sequential",
            1,
            "one client a round" if count == 1 else "memory for one client at a time",
        )
    case = (method, task, settings, together)
    if engine == "auto" and task.device.type == "cpu" and remembered(slow_step, case, need):
        return Engine("sequential", 1, f"one step of one client takes more than {SLOW} s")
    problem = obstacle(method, task)
    if problem and engine == "stacked":
        raise ValueError(
            f"{method.name} cannot be trained stacked because of its {problem}; choose another "
            "engine."
        )
    if problem:
        return Engine("sequential", 1, f"cannot be stacked because of its {problem}")
    if engine == "stacked":
        return Engine("stacked", together, "asked for")
    ratio = remembered(calibrate, case, need)
    name, chosen = ("stacked", together) if ratio < 1 else ("sequential", 1)
    return Engine(name, chosen, f"stacked training took {ratio:.2f} of the time")


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def bytes_for_one(method: Any, task: Any, batch_size: int) -> int:
    """Memory that one stacked client takes: seven times its state (parameters, gradients, optimiser
    state, start, update, two messages), twice what its largest batch saves for the backward pass,
    and its images twice."""
    net, client = training.initial_network(method, task), int(np.argmax(task.sizes))
    state = sum(t.nbytes for t in state_of(net).values())
    saved = {}

    def note(t):  # and keep it until all is counted, but not its history, which would keep it
        saved[t.untyped_storage().data_ptr()] = t.detach().untyped_storage()

    order = torch.arange(min(batch_size, task.sizes[client]))
    x, y = task.epoch(client, order, rng.generator(0))
    loss = method.objective.begin(net.train(), _context(task, net, client))
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda _: None),
        rng.scope(0, device=task.device),
    ):
        loss(net, Batch(x, y, order.to(task.device)))
    images = task.sizes[client] * task.train[0][0].nbytes
    return 7 * state + 2 * sum(s.nbytes() for s in saved.values()) + 2 * images


def obstacle(method: Any, task: Any) -> str | None:
    """Which part of the method keeps it from being stacked, as text; ``None`` if none does. Found
    by trial: two clients with a few images each, trained both ways in double precision."""
    if not method.sides[1].stacks:
        return "round, in which clients take turns"
    problem = _difference(method, task)
    if problem is None:
        return None
    for part, default in (("optimizer", SGD()), ("objective", TaskLoss())):
        if _difference(method.but(**{part: default}), task) is None:
            return f"{part} ({problem})"
    return f"model ({problem})"


def _context(task, net, client, alone=None):
    """``alone``: the network of one client, if ``net`` is stacked."""
    start = {name: t.clone() for name, t in state_of(net).items()}
    memory = [{} for _ in client] if isinstance(client, list) else {}
    return Context(task, 1, client, start, start, memory, net=alone or net)


def _difference(method, task):
    """In what the two forms differ, as text. One step has to agree; so have several, the second
    epoch's away from the start, but for what networks of many layers make of a last bit."""
    at = np.arange(17) % len(task.train[1])
    # then: a shared batch of 4, one of 4 and 3, one of 2 for the first client alone
    return _both(method, task, [at[:4], at[10:14]], 1) or _both(method, task, [at[:10], at[10:]], 2)


def _both(method, task, few, epochs):
    small = Settings(epochs=epochs, batch_size=4)
    permutations = task.split.permutations and task.split.permutations[:2]
    task = replace(task, split=replace(task.split, indices=few, permutations=permutations))
    net = training.initial_network(method, task).double()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout) and task.device.type == "cuda":
            module.p = 0.0  # on a GPU the two forms draw different masks
    initial = {name: t.clone() for name, t in state_of(net).items()}
    try:
        both = layers.stack(net, 2)
        training.train_stacked(both, method, _context(task, both, [0, 1], net), small, spare=9)
    except Exception as error:  # whatever a part that does not expect the client axis does with it
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

    def alone(k, change=0.0):
        training.load(state_of(net), {name: t * (1 + change) for name, t in initial.items()})
        training.train(net, method, _context(task, net, k), small)
        return {name: t.clone() for name, t in state_of(net).items()}

    def far(ours, own):
        gaps = [(ours[n] - t).abs().max() / (1 + t.abs().max()) for n, t in own.items()]
        return float(torch.stack(gaps).max())  # NaN if any is

    for k in (0, 1):
        own = alone(k)
        gap = far({name: t[k] for name, t in state_of(both).items()}, own)
        bit = epochs > 1 and not gap <= 1e-10 and far(alone(k, 1e-15), own)
        if not gap <= max(1e-10, bit):  # NaN is no agreement
            return "a stacked step gives another result"
    return None


def remembered(measure: Callable, case: tuple, need: int) -> Any:
    """``measure(*case)``, or what it said before for the same parts, work, hardware and threads."""
    method, task, settings, together = case
    device = (
        torch.cuda.get_device_name(task.device)
        if task.device.type == "cuda"
        else f"{platform.machine()} {os.cpu_count()}"
    )
    parts = {k: v for k, v in method.parts().items() if k in ("model", "objective", "optimizer")}
    work = (
        task.describe()["network"],
        need,
        sum(task.sizes) // task.clients,
        settings.batch_size,
        settings.precision,
        together,
    )
    what = (measure.__name__, parts, work, device, torch.__version__, torch.get_num_threads())
    key, path = (
        blake2b(repr(what).encode(), digest_size=8).hexdigest(),
        sources.CACHE / "engine.json",
    )
    try:
        known = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        known = {}
    if key not in known:
        known[key] = measure(*case)
        try:
            write_text(path, json.dumps(known, indent=1))
        except OSError:  # nowhere to keep it: the next run measures again
            pass
    return known[key]


def slow_step(method: Any, task: Any, settings: Settings, together: int) -> bool:
    """Whether a single step of a single client takes so long that there is no overhead worth
    sharing."""
    few, client = replace(settings, epochs=1), int(np.argmax(task.sizes))
    task = _shortened(task, settings.batch_size)
    net = training.initial_network(method, task)
    for _ in range(2):  # the first warms up
        began = time.perf_counter()
        training.train(net, method, _context(task, net, client), few)
        seconds = time.perf_counter() - began
    return seconds > SLOW


def calibrate(method: Any, task: Any, settings: Settings, together: int) -> float:
    """Seconds of stacked training by seconds of sequential training of the same clients (at most
    32), for a few steps. What takes long is timed once, what is short in turns, and the fastest of
    three counts."""
    settings, together = replace(settings, epochs=1), min(together, 32)
    clients = sorted(range(task.clients), key=lambda k: -task.sizes[k])
    clients = [
        clients[i * len(clients) // together] for i in range(together)
    ]  # every size has its share
    some = clients[:: max(1, together // 8)]
    task = _shortened(task, 2 * settings.batch_size + settings.batch_size // 2)
    net = training.initial_network(method, task)
    both, spare = layers.stack(net, together), training.spare_rows(net, task)

    def one_by_one():
        for k in some:
            training.train(net, method, _context(task, net, k), settings)
        return sum(task.sizes[k] for k in some)

    def at_once():
        training.train_stacked(both, method, _context(task, both, clients, net), settings, spare)
        return sum(task.sizes[k] for k in clients)

    def timed(form):  # seconds a sample
        began = time.perf_counter()
        samples = form()
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        return (time.perf_counter() - began) / samples

    began = time.perf_counter()
    times = [(timed(at_once), timed(one_by_one))]
    if time.perf_counter() - began < 1:
        times = [(timed(at_once), timed(one_by_one)) for _ in range(3)]
    return min(t for t, _ in times) / min(t for _, t in times)


def _shortened(task, most):
    """The task with at most so many samples a client."""
    return replace(task, split=replace(task.split, indices=[i[:most] for i in task.split.indices]))

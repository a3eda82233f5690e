"""How many bytes and seconds does a coder need? Two tables of the wire's audit are made here.

    python tests/benchmarks/coders.py table      # of ResNet-18 -> data/results/coders_cpu.json
    python tests/benchmarks/coders.py updates    # real updates -> data/results/coders_updates.json
    ... --quick                                  # of a small network, two repeats
    ... --out FILE                               # write it

The made-up update is normal times exp(normal), a heavy tail, for every tensor by itself. The
coders take turns, medians of CPU seconds count.
"""

import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np
import torch

import fedlearn as fl
from fedlearn import wire

sys.path.insert(0, str(Path(__file__).parent))
from common import program  # noqa: E402

CODERS = {  # label -> coder, share of ones in the mask that it codes
    "top 1/32, float32": (wire.TopK(1 / 32), None),
    "top 1/32, float16": (wire.TopK(1 / 32, "float16"), None),
    "top 1/32, signs (STC)": (wire.TopK(1 / 32, "sign"), None),
    "top 1/1000, float32": (wire.TopK(1 / 1000), None),
    "SmartIdx, 1/32": (wire.SmartIdx(1 / 32), None),
    "scaled signs": (wire.Signs(), None),
    "uniform, 8 bits": (wire.Uniform(8), None),
    "uniform, 5 bits": (wire.Uniform(5), None),
    "QSGD, 127 levels": (wire.QSGD(), None),
    "QSGD, 127 levels, entropy": (wire.QSGD(entropy=True), None),
    "QSGD, 7 levels, entropy": (wire.QSGD(7, entropy=True), None),
    "TernGrad": (wire.TernGrad(), None),
    "DRIVE (EDEN, 1 bit)": (wire.EDEN(1), None),
    "EDEN, 4 bits": (wire.EDEN(4), None),
    "mask, half ones": (wire.Mask(), 0.5),
    "mask, 1 in 10": (wire.Mask(), 0.1),
}
SMALL = (  # of updates: one or two bits an entry
    wire.Signs(),
    wire.EDEN(1),
    wire.EDEN(2),
    wire.Uniform(1),
    wire.Uniform(2),
    wire.QSGD(1),
    wire.TopK(1 / 4, "sign"),
    wire.SmartIdx(1 / 4),
    wire.TernGrad(),
)
ROUNDS = (1, 3, 10, 30, 100)


def update(net):
    """A made-up update, tensor by tensor, and a uniform number for each entry for the masks."""
    g = fl.rng.generator(0, "coders")
    shapes = [p.shape for p in net.parameters()]
    tensors = [
        torch.randn(s, generator=g) * torch.randn(s, generator=g).exp() for s in shapes
    ]
    return tensors, [torch.rand(s, generator=g) for s in shapes]


def round_trip(coder, tensors, seed=0):
    """Seconds to encode and to decode, the sections and the decoded tensors."""

    def generators(
        *kinds,
    ):  # on both sides one generator continues from tensor to tensor
        return (fl.rng.generator(seed, "rounding"),) if isinstance(coder, kinds) else ()

    drawn = generators(wire.Stochastic, wire.SharedRandomness)
    began = time.process_time()
    sections = [coder.encode(t, *drawn) for t in tensors]
    encoded = time.process_time()
    drawn = generators(wire.SharedRandomness)
    decoded = [
        coder.decode(s, t.shape, *drawn) for s, t in zip(sections, tensors, strict=True)
    ]
    return encoded - began, time.process_time() - encoded, sections, decoded


def table(quick):
    network = "digits_cnn" if quick else "resnet18"
    repeats = 2 if quick else 7
    net = fl.models.NETWORKS[network]()
    tensors, chances = update(net)
    entries = sum(t.numel() for t in tensors)
    rows = {}
    seconds = {}
    for turn in range(repeats + 1):  # the first warms up
        for name, (coder, p) in CODERS.items():
            x = tensors if p is None else [(c < p).float() for c in chances]
            *took, sections, _ = round_trip(coder, x)
            if turn:
                seconds.setdefault(name, []).append(took)
                continue
            size = sum(map(len, sections))
            rows[name] = {
                "coder": repr(coder),
                "bytes": size,
                "bits": 8 * size / entries,
            }
    for name, row in rows.items():
        row["encode_s"], row["decode_s"] = map(median, zip(*seconds[name], strict=True))
        speeds = [
            f"{4e-6 * entries / row[way]:>8.0f}" for way in ("encode_s", "decode_s")
        ]
        print(f"{name:<28}", row["bits"], "MB/s", *speeds)
    versions = {name: version(name) for name in ("torch", "numpy", "constriction")}
    settings = {"network": network, "entries": entries, "repeats": repeats}
    return {"rows": rows, "settings": settings | {"versions": versions}}


def real_updates(task, settings):
    """The large tensors of the update of the client with most images, in some rounds."""
    fedavg = fl.methods.fedavg()
    server = fedavg.server_side(task, settings)
    workers = fl.clients(fedavg, task, settings)
    states = {1: server.start()}

    def keep(row, state):
        if row["round"] + 1 in ROUNDS:
            states[row["round"] + 1] = state

    options = {"batch_size": settings.batch_size, "engine": "stacked"}
    fl.run(fedavg, task, rounds=max(ROUNDS) - 1, on_round=keep, **options)
    client = max(range(task.clients), key=lambda k: task.sizes[k])
    for t, state in states.items():
        answer = workers.answer(t, client, server.send(t, client, state)[0])
        arrival = server.receive(t, client, answer, state)
        yield t, [u for u in arrival.update.values() if u.dim() > 1]


def error(decoded, tensors):
    """The squared error as a share of the energy."""
    pairs = zip(decoded, tensors, strict=True)
    wrong = sum(float((d - t).double().square().sum()) for d, t in pairs)
    return wrong / sum(float(t.double().square().sum()) for t in tensors)


def updates(quick, draws=5):
    """For each coder and round: bits an entry, and the mean error over some draws."""
    federation = {"clients": 10, "partition": "dirichlet:0.5", "network": "digits_cnn"}
    task = fl.tasks.classification("digits", **federation)
    settings = fl.Settings(batch_size=16)
    rows = []
    for t, tensors in real_updates(task, settings):
        entries = sum(u.numel() for u in tensors)
        for coder in SMALL:
            random = isinstance(coder, wire.Stochastic | wire.SharedRandomness)
            trips = [
                round_trip(coder, tensors, seed)
                for seed in range(draws if random else 1)
            ]
            row = {
                "setting": repr(coder),
                "round": t,
                "bits": 8 * sum(map(len, trips[-1][2])) / entries,
                "error": np.mean([error(decoded, tensors) for *_, decoded in trips]),
            }
            rows.append(row)
            print(*row.values(), flush=True)
    settings = federation | {"dataset": "digits", "batch_size": 16, "lr": 0.1}
    return {"errors": rows, "settings": settings}


if __name__ == "__main__":
    program({"table": table, "updates": updates}, __doc__)

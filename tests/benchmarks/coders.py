"""How many bytes and seconds does a coder need? All that the book says about it is measured here.

    python tests/benchmarks/coders.py --out data/results/coders_cpu.json      # of ResNet-18
    python tests/benchmarks/coders.py --quick   # of a small network, two repeats
    python tests/benchmarks/coders.py --updates --out data/results/coders_updates.json
    python tests/benchmarks/coders.py --peers FOLDER --out data/results/coders_peers.json

FOLDER has clones of other people's programs, ``PEERS``, which are imported from there. What one of
their compressors sends are the bytes of the tensors that it hands over, or what it says that it
counts. One process stands for all: an "allreduce" gives back what it was given.

The made-up update is normal times exp(normal), a heavy tail, for every tensor by itself. The coders
take turns, medians of CPU seconds count. No coder of the same values beats the bound on average:
log2 C(n, k) for k of n positions, the empirical entropy for masks, range-coded levels and
exponents, log2 3 for three values, r (n + m - r) numbers for a matrix of rank r, and their own
number of bits for all else.
"""

import argparse
import contextlib
import io
import math
import platform
import subprocess
import sys
import time
import types
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np
import torch

import fedlearn as fl
from fedlearn import meter, wire
from fedlearn.files import to_json, write_text

# label -> coder, share of ones in the mask that it codes
PLAIN = "dense", "float16", "pooled (RPN)"  # no row of the table
CODERS = {label: (coder, None) for label, coder in meter.ALL.items() if label not in PLAIN}
CODERS |= {"mask, half ones": (wire.Mask(), 0.5), "mask, 1 in 10": (wire.Mask(), 0.1)}
SMALL = (  # of --updates: one or two bits an entry
    *(wire.Signs(), wire.EDEN(1), wire.EDEN(2), wire.Uniform(1), wire.Uniform(2), wire.QSGD(1)),
    *(wire.TopK(1 / 4, "sign"), wire.SmartIdx(1 / 4), wire.LowRank(1), wire.TernGrad()),
    *(wire.RandomK(1 / 16), wire.RandomK(1 / 16, unbiased=False)),
)
ROUNDS = (1, 3, 10, 30, 100)
PEERS = {  # folder -> what the table calls it
    "grace": "GRACE",
    "deep-gradient-compression": "DGC's authors",
    "federated-learning": "STC's authors",
}
SHARE = 1 / 32
TURNS = 50  # in which the same update is sent again, with and without a memory


def update(net):
    """A made-up update, tensor by tensor, and a uniform number for each entry for the masks."""
    g = fl.rng.generator(0, "coders")
    shapes = [p.shape for p in net.parameters()]
    tensors = [torch.randn(s, generator=g) * torch.randn(s, generator=g).exp() for s in shapes]
    return tensors, [torch.rand(s, generator=g) for s in shapes]


def entropy(symbols):
    """Bits of the best code of so many symbols of each kind."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(counts @ np.log2(counts.sum() / counts))


def choices(n, k):
    """log2 C(n, k)"""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def bound(coder, section, decoded):
    """The least bits of what a section holds, scales and norms as they are."""
    n, x = decoded.numel(), decoded.flatten().numpy()
    match coder:
        case wire.Zipped():
            return 24 * n + entropy(np.frexp(x)[1])
        case wire.TernGrad():
            return 32 + n * math.log2(3)
        case wire.EDEN():
            return 32 + coder.bits * n
        case wire.LowRank() if sizes := coder.factors(decoded.shape):
            return 32 * coder.rank * (sum(sizes) - coder.rank)
        case wire.Natural():
            return 9 * n
        case wire.TopK():
            index, used = wire.decode_positions(section, n)
            return choices(n, len(index)) + 8 * (len(section) - used)
        case wire.Mask():
            return entropy(x)
        case wire.Signs():
            return 32 + n
        case wire.Uniform():
            return 64 + coder.bits * n
        case wire.QSGD():
            norms = np.frombuffer(section, "<f4", -(-n // coder.bucket)).repeat(coder.bucket)[:n]
            levels = np.rint(x / np.where(norms, norms, 1) * coder.levels)
            least = entropy(levels) if coder.entropy else n * (1 + coder.levels.bit_length())
            return 32 * -(-n // coder.bucket) + least
        case wire.RandomK() | wire.CountSketch() | wire.LowRank():
            return 8 * len(section)
    return None


def round_trip(coder, tensors, seed=0):
    """Seconds to encode and to decode, the sections and what came out."""

    def draws(*kinds):  # on both sides one generator goes on from tensor to tensor
        return (fl.rng.generator(seed, "rounding"),) if isinstance(coder, kinds) else ()

    began, extra = time.process_time(), draws(wire.Stochastic, wire.SharedRandomness)
    sections = [coder.encode(t, *extra) for t in tensors]
    between, extra = time.process_time(), draws(wire.SharedRandomness)
    decoded = [coder.decode(s, t.shape, *extra) for s, t in zip(sections, tensors, strict=True)]
    return between - began, time.process_time() - between, sections, decoded


def measure(net, repeats):
    tensors, chances = update(net)
    entries, rows, seconds = sum(t.numel() for t in tensors), {}, {}
    for turn in range(repeats + 1):  # the first warms up
        for name, (coder, p) in CODERS.items():
            x = tensors if p is None else [(c < p).float() for c in chances]
            *took, sections, decoded = round_trip(coder, x)
            if turn:
                seconds.setdefault(name, []).append(took)
                continue
            size, each = sum(map(len, sections)), zip(sections, decoded, strict=True)
            bounds = [bound(coder, section, its) for section, its in each]
            least = None if None in bounds else sum(bounds) / entries
            rows[name] = {"coder": repr(coder), "bytes": size}
            rows[name] |= {"bits": 8 * size / entries, "bound": least}
    for name, row in rows.items():
        row["encode_s"], row["decode_s"] = map(median, zip(*seconds[name], strict=True))
        speeds = [f"{4e-6 * entries / row[way]:>8.0f}" for way in ("encode_s", "decode_s")]
        print(f"{name:<28}", row["bits"], row["bound"], "MB/s", *speeds)
    return entries, rows


def real_updates(task, settings):
    """The large tensors of the update of the client with most images, in some rounds."""
    fedavg, states = fl.methods.fedavg(), {}
    server, workers = fedavg.server_side(task, settings), fl.clients(fedavg, task, settings)
    states[1] = server.start()

    def keep(row, state):
        if row["round"] + 1 in ROUNDS:
            states[row["round"] + 1] = state

    how = {"batch_size": settings.batch_size, "engine": "stacked"}
    fl.run(fedavg, task, rounds=max(ROUNDS) - 1, on_round=[keep], **how)
    client = max(range(task.clients), key=lambda k: task.sizes[k])
    for t, state in states.items():
        answer = workers.answer(t, client, server.send(t, client, state)[0])
        arrival = server.receive(t, client, answer, state)
        yield t, [u for u in arrival.update.values() if u.dim() > 1]


def errors(task, settings, draws=5):
    """For each coder and round: bits an entry, and the squared error of what arrives as a share of
    the update's energy, the mean of some draws."""
    rows = []
    for t, tensors in real_updates(task, settings):
        entries = sum(u.numel() for u in tensors)
        for coder in SMALL:
            drawn = isinstance(coder, wire.Stochastic | wire.SharedRandomness)
            trips = [round_trip(coder, tensors, seed) for seed in range(draws if drawn else 1)]
            bits = 8 * sum(map(len, trips[-1][2])) / entries
            rows.append({"setting": repr(coder), "round": t, "bits": bits})
            rows[-1]["error"] = np.mean([error(came, tensors) for *_, came in trips])
            print(*rows[-1].values(), flush=True)
    return rows


def peers(folder):
    """Compressors of other people: (program, name, ours at the same setting, function). A function
    takes a tensor and its name -> bytes, tensor as it arrives."""
    alone = {"size": lambda: 1, "rank": lambda: 0, "local_rank": lambda: 0, "Average": None}
    alone |= dict.fromkeys(("allreduce_", "synchronize"), lambda t, *_, **__: t)
    alone |= dict.fromkeys(("allreduce_async_", "allgather_async"), lambda t, *_, **__: t)
    horovod = {
        n: types.ModuleType(n) for n in ("horovod", "horovod.torch", "horovod.torch.mpi_ops")
    }
    for module in horovod.values():
        vars(module).update(alone)
    sys.modules |= horovod
    sys.path[:0] = [str(folder / name) for name in PEERS]
    from compression_utils import get_bits, stc
    from dgc.compression import DGCCompressor
    from grace_dl.torch.helper import grace_from_params

    def grace(**params):
        def through(t, name):
            it = grace_from_params(params | {"communicator": "allreduce"})
            sent, ctx = it.compressor.compress(it.memory.compensate(t.clone(), name), name)
            came = it.compressor.decompress(sent, ctx)
            if params["compressor"] == "powersgd" and ctx:
                sent = ctx[:2]  # which its compressor sends itself
            return sum(torch.as_tensor(part).nbytes for part in sent), came

        return through

    def authors_dgc(t, name):
        it = DGCCompressor(SHARE, fp16_values=False, int32_indices=True)
        with contextlib.redirect_stdout(io.StringIO()):
            it.initialize([(name, t)])
        sent, ctx = it.compress(t.clone(), name)
        return sum(part.nbytes for part in sent), it.decompress(sent, ctx).clone()

    def authors_stc(t, name):
        came = stc(t, {"p": SHARE})
        return get_bits(came, "stc", approx=True) / 8, came

    one = "GRACE"
    rows = [
        (one, "fp16", wire.Dense(16), grace(compressor="fp16")),
        (one, "topk", wire.TopK(SHARE), grace(compressor="topk", compress_ratio=SHARE)),
        (one, "dgc", wire.TopK(SHARE), grace(compressor="dgc", compress_ratio=SHARE)),
        (PEERS["deep-gradient-compression"], "dgc", wire.TopK(SHARE), authors_dgc),
        (PEERS["federated-learning"], "stc", wire.TopK(SHARE, "sign"), authors_stc),
        (one, "randomk", wire.RandomK(SHARE, unbiased=False),
            grace(compressor="randomk", compress_ratio=SHARE)),
        (one, "qsgd", wire.QSGD(), grace(compressor="qsgd", quantum_num=127)),
        (one, "terngrad", wire.TernGrad(), grace(compressor="terngrad")),
        (one, "signsgd", wire.Signs(scaled=False), grace(compressor="signsgd")),
        (one, "efsignsgd", wire.Signs(), grace(compressor="efsignsgd")),
        (one, "powersgd", wire.LowRank(2),
            grace(compressor="powersgd", memory="powersgd", compress_rank=2)),
    ]  # fmt: skip
    return rows, grace_from_params


def error(came, tensors):
    """The squared error as a share of the energy."""
    pairs = list(zip(came, tensors, strict=True))
    wrong = sum(float((c - t).double().square().sum()) for c, t in pairs)
    return wrong / sum(float(t.double().square().sum()) for t in tensors)


def conformance(tensors, folder):
    """Other people's compressors and ours on the same tensors: bytes, and the squared error."""
    rows, build = peers(folder)
    found = []
    for program, name, coder, through in rows:
        torch.manual_seed(0)
        sent, came = zip(*(through(t, f"t{i}") for i, t in enumerate(tensors)), strict=True)
        _, _, sections, ours = round_trip(coder, tensors)
        row = {"program": program, "compressor": name, "coder": repr(coder)}
        row |= {"theirs": round(sum(sent)), "ours": sum(map(len, sections))}
        row |= {"their_error": error(came, tensors), "our_error": error(ours, tensors)}
        found.append(row)
        print(*row.values(), flush=True)
    return found, repeated(max(tensors, key=torch.numel), build)


def repeated(t, build):
    """The same update sent again and again through signs: how far the mean of what arrived is from
    it, squared, as a share. With a memory it comes near."""
    means = {}
    for memory in ("none", "residual", "efsignsgd"):
        it = build({"compressor": "efsignsgd", "memory": memory, "lr": 0.1})
        total = torch.zeros_like(t)
        for _ in range(TURNS):
            x = it.memory.compensate(t.clone(), "t")
            sent, ctx = it.compressor.compress(x, "t")
            it.memory.update(x, "t", it.compressor, sent, ctx)
            total += it.compressor.decompress(sent, ctx)
        rate = 0.1 if memory == "efsignsgd" else 1.0  # by which this memory multiplies what comes
        means[f"GRACE, memory {memory}"] = error([total / TURNS / rate], [t])
    coder, kept, total = wire.Signs(), torch.zeros_like(t), torch.zeros_like(t)
    for _ in range(TURNS):
        came = coder.decode(coder.encode(t + kept), t.shape)
        kept, total = t + kept - came, total + came
    return means | {"ours, Feedback": error([total / TURNS], [t])}


def revisions(folder):
    """The commit of each program, and of this one."""
    show = ("git", "log", "-1", "--format=%h of %cs")
    return {
        label: subprocess.run(
            show, cwd=folder / name, capture_output=True, text=True, check=True
        ).stdout.strip()
        for name, label in (PEERS | {Path(__file__).parent.absolute(): "ours"}).items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a small network, two repeats")
    parser.add_argument("--updates", action="store_true", help="errors on real updates instead")
    parser.add_argument("--peers", metavar="FOLDER", type=Path, help="other people's programs")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the results as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = {"date": date.today().isoformat(), "machine": platform.machine()}
    about["versions"] = {name: version(name) for name in ("torch", "numpy", "constriction")}
    if args.updates:
        stated = {"clients": 10, "partition": "dirichlet:0.5", "network": "digits_cnn", "seed": 0}
        task = fl.tasks.classification("digits", **stated)
        settings = fl.Settings(batch_size=16)
        about |= stated | {"dataset": "digits", "batch_size": 16, "lr": 0.1}
        about["command"] = "python tests/benchmarks/coders.py --updates"
        result = {"errors": errors(task, settings)}
    elif args.peers:
        net = fl.models.resnet18()
        tensors = [t for t in update(net)[0] if t.dim() > 1]
        about |= {"network": "resnet18", "entries": sum(t.numel() for t in tensors)}
        about |= {"share": SHARE, "turns": TURNS, "programs": revisions(args.peers)}
        about["command"] = "python tests/benchmarks/coders.py --peers FOLDER"
        rows, again = conformance(tensors, args.peers)
        result = {"rows": rows, "again": again}
    else:
        net = fl.models.digits_cnn() if args.quick else fl.models.resnet18()
        entries, rows = measure(net, 2 if args.quick else args.repeats)
        about |= {"network": "digits_cnn" if args.quick else "resnet18", "entries": entries}
        about |= {"repeats": 2 if args.quick else args.repeats, "threads": 1}
        result = {"rows": rows}
    if args.out:
        write_text(args.out, to_json({"settings": about, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()

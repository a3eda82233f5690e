"""Golden histories: every method, sequential and stacked, compared with stored ones.

    python tests/golden/golden.py write       store what this code gives on this machine
    python tests/golden/golden.py compare     compare with it; exit with 1 if they differ
    ... --engines sequential    --methods fedavg rpn

Runs compute in float64: a last bit then hardly ever decides a choice of max pooling or of a
quantiser, as it does in float32. Messages carry float32 as always.

The file names the kind of machine that stored it: processor, vector instructions, PyTorch.
On the same kind of machine every column and the final state agree bit for bit. On another
kind the loss agrees to 1e-5 in round 1 and to 1e-3 after it, the accuracy to one test sample
in round 1, and bytes exactly, unless the coder chooses its length by the values (VALUED).
Two exceptions: FedPM's weights have one size, so that sums tie and a last bit decides max
pooling; its losses are compared on the same kind only. Scenes are drawn in float32, where a
last bit decides a pixel; their losses agree to 1e-3.

Flower's simulation gives the histories of one process: tests/flower compares the two.
"""

import argparse
import gzip
import hashlib
import json
import os
import platform
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import fedlearn as fl

# here, since each process that computes histories needs them
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
warnings.simplefilter("ignore")
FILE = Path(__file__).with_name("histories.jsonl.gz")
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")  # of instructions
CASES = {
    "iid": (
        {
            "task": "classification",
            "clients": 5,
            "partition": "iid",
            "train": 400,
            "test": 200,
        },
        {"batch_size": 16},
    ),
    "dirichlet": (
        {
            "task": "classification",
            "clients": 6,
            "partition": "dirichlet:0.5",
            "train": 400,
            "test": 200,
        },
        {"batch_size": 16, "participation": 0.5, "epochs": 2},
    ),
    "detection": (
        {"task": "detection", "clients": 3, "train": 60, "test": 30},
        {"batch_size": 10},
    ),
    "segmentation": (
        {"task": "segmentation", "clients": 3, "train": 60, "test": 30},
        {"batch_size": 10},
    ),
}
SEEING = ("detection", "segmentation")
SEEING_METHODS = ("fedavg", "rpn", "stc", "fed_kgf")
ROUNDS = 3
EXACT = (
    "bytes_down",
    "bytes_down_buffers",
    "bytes_up_buffers",
    "bytes_evaluation_up",
    "bytes_evaluation_down",
    "clients",
)
COLUMNS = ("accuracy", "loss", "bytes_up", *EXACT)
VALUED = ("fedpm", "qsgd", "smartidx", "stc", "fedcom", "fedcomgate")  # entropy codes


def machine() -> str:
    """The kind of this machine: histories agree bit for bit within one kind."""
    processor = {"vendor_id": platform.machine(), "cpu family": "", "model": ""}
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in processor:
                processor[name.strip()] = value.strip()
    vectors = torch.backends.cpu.get_cpu_capability()
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    return ", ".join(
        [*processor.values(), vectors, f"torch {torch.__version__}", *limits]
    )


def digest(state: dict[str, torch.Tensor]) -> str:
    """A hash of all tensors, by name, bit for bit."""
    checksum = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(state.items()):
        checksum.update(f"{name} {tuple(tensor.shape)}".encode())
        checksum.update(tensor.cpu().contiguous().numpy().tobytes())
    return checksum.hexdigest()


def history(method: str, case: str, engine: Any) -> dict[str, Any]:
    """The columns of a run and its final state, or the type of the error that refuses it."""
    task_options, run_options = CASES[case]
    options = dict(task_options)
    make_task = (fl.tasks.TASKS | fl.seeing.TASKS)[options.pop("task")]
    task = make_task("digits", seed=0, device="cpu", **options)
    try:
        run = fl.run(
            fl.methods.get(method),
            task,
            ROUNDS,
            threads=1,
            progress=False,
            engine=engine,
            **run_options,
        )
    except ValueError as error:
        return {"error": type(error).__name__}
    columns = {name: [row.get(name) for row in run.rows] for name in COLUMNS}
    refused = [sorted(map(int, row["refused"])) for row in run.rows]
    return columns | {"refused": refused, "state": digest(run.state)}


def difference(
    stored: dict[str, Any], new: dict[str, Any], method: str, case: str
) -> str:
    """The columns that differ by more than another kind of machine explains."""
    if "error" in stored or "error" in new:
        return "" if stored == new else "error"
    problems = [name for name in (*EXACT, "refused") if stored[name] != new[name]]
    if method not in VALUED and stored["bytes_up"] != new["bytes_up"]:
        problems.append("bytes_up")
    if method == "fedpm":
        return ", ".join(problems)
    for t in range(ROUNDS):
        near = 1e-5 if t == 0 and case not in SEEING else 1e-3
        gap = abs(stored["loss"][t] - new["loss"][t])
        if not gap <= near:
            problems.append(f"loss of round {t + 1} by {gap:.1e}")
    sample = 1 / CASES[case][0]["test"]
    if (
        case not in SEEING
        and not abs(stored["accuracy"][0] - new["accuracy"][0]) < 1.01 * sample
    ):
        problems.append("accuracy of round 1")
    return ", ".join(problems)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("--methods", nargs="+", default=list(fl.methods.METHODS))
    parser.add_argument("--engines", nargs="+", default=["sequential", "stacked"])
    arguments = parser.parse_args()
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        home, stored = json.load(file)
    same_kind = machine() == home
    print(f"stored on {home}")
    print(f"this is   {machine()}: {'bit for bit' if same_kind else 'to rounding'}")
    keys = [
        (method, case, engine)
        for case in CASES
        for method in arguments.methods
        for engine in arguments.engines
        if case not in SEEING or method in SEEING_METHODS
    ]
    fresh = {}
    count = 0
    with ProcessPoolExecutor(int(os.environ.get("FEDLEARN_JOBS", 1))) as pool:
        histories = list(pool.map(history, *zip(*keys, strict=True)))
    for (method, case, engine), new in zip(keys, histories, strict=True):
        key = f"{method} {case} {engine}"
        if arguments.action == "write":
            fresh[key] = new
            print(key, new.get("error") or new["accuracy"][-1], flush=True)
            continue
        problems = difference(stored[key], new, method, case)
        if same_kind and not problems and stored[key] != new:
            problems = "last bits"
        if problems:
            count += 1
            print(key, "differs:", problems, flush=True)
    if arguments.action == "write":
        text = json.dumps([machine(), fresh])
        FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{len(fresh)} histories in {FILE}")
        return 0
    print(f"{len(keys) - count} of {len(keys)} histories agree.")
    return count > 0


if __name__ == "__main__":
    sys.exit(main())

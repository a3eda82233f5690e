"""Golden histories: every method, sequential and stacked, held against stored ones.

    python tests/golden/golden.py write       what this code says becomes the file
    python tests/golden/golden.py compare     and is held against it; exits with 1 if they differ
    ... --engines sequential    --methods fedavg rpn

Sequential histories have to agree to the last bit, stacked ones to rounding. (tests/flower holds
Flower to the sequential ones.)
"""

import argparse
import gzip
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

# the same sums on every processor, also of other makers: with AVX2 alone MKL adds in another order
# on AMD than on Intel
os.environ |= {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
}

import torch  # noqa: E402

import fedlearn as fl  # noqa: E402

FILE = Path(__file__).with_name("histories.jsonl.gz")
COLUMNS = ("accuracy", "loss", "bytes_up", "bytes_up_buffers", "bytes_down", "bytes_down_buffers")
COLUMNS += ("bytes_evaluation_up", "bytes_evaluation_down", "clients")
CASES = {
    "iid": (
        dict(task="classification", clients=5, partition="iid", train=400, test=200),
        dict(batch_size=16),
    ),
    "dirichlet": (
        dict(task="classification", clients=6, partition="dirichlet:0.5", train=400, test=200),
        dict(batch_size=16, participation=0.5, epochs=2),
    ),
    "detection": (dict(task="detection", clients=3, train=60, test=30), dict(batch_size=10)),
    "segmentation": (dict(task="segmentation", clients=3, train=60, test=30), dict(batch_size=10)),
}
SEEING = "fedavg", "rpn", "stc", "fed_kgf"  # the methods of the last two
NEAR = 1e-3  # largest difference of a stacked loss or accuracy, as rounding grows in four rounds


def digest(state: dict[str, torch.Tensor]) -> str:
    """A hash of all tensors, by name, bit for bit."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(state.items()):
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(tensor.cpu().float().contiguous().numpy().tobytes())
    return found.hexdigest()


def history(method: str, case: str, engine: str) -> dict:
    """What a run leaves behind, or the type of the error that refuses it."""
    task, how = CASES[case]
    make = (fl.tasks.TASKS | fl.seeing.TASKS)[task["task"]]
    task = make("digits", seed=0, device="cpu", **{k: v for k, v in task.items() if k != "task"})
    entry, how = {"method": method, "case": case, "engine": engine}, how | {"engine": engine}
    try:
        run = fl.run(fl.methods.get(method), task, 4, threads=1, progress=False, **how)
    except ValueError as error:
        return entry | {"error": type(error).__name__}
    columns = {name: [row.get(name) for row in run.rows] for name in COLUMNS}
    refused = [sorted(map(int, row["refused"])) for row in run.rows]
    return entry | columns | {"refused": refused, "state": digest(run.state)}


def difference(old: dict, new: dict) -> str:
    """In what two histories differ, as text; empty if in nothing that counts."""
    differ = [k for k in old | new if old.get(k) != new.get(k)]
    if old["engine"] == "stacked" and "error" not in old | new:
        # an entropy code is as long as its numbers make it
        near = {"accuracy": 1.0, "loss": 1.0, "bytes_up": max(1, *old["bytes_up"])}
        for name, unit in near.items():
            pairs = zip(old[name], new[name], strict=True)
            if name in differ and max(abs(a - b) for a, b in pairs) <= NEAR * unit:
                differ.remove(name)
        differ = [name for name in differ if name not in ("state", "bytes_down")]
    return ", ".join(differ)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("--methods", nargs="+", default=list(fl.methods.METHODS))
    parser.add_argument("--engines", nargs="+", default=["sequential", "stacked"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        known = {(e["method"], e["case"], e["engine"]): e for e in map(json.loads, file)}
    wanted = [
        (method, case, engine)
        for case in CASES
        for method in asked.methods
        for engine in asked.engines
        if case in ("iid", "dirichlet") or method in SEEING
    ]
    differ = 0
    for key in wanted:
        new = history(*key)
        if asked.what == "write":
            known[key] = new
            print(*key, new.get("error") or new["accuracy"][-1], flush=True)
        elif gap := difference(known[key], new) if key in known else "not in the file":
            differ += 1
            print(*key, "differs:", gap, flush=True)
    if asked.what == "write":
        text = "".join(json.dumps(known[key]) + "\n" for key in sorted(known))
        FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{len(known)} histories in {FILE}")
    else:
        print(f"{len(wanted) - differ} of {len(wanted)} histories agree.")
    return differ > 0


if __name__ == "__main__":
    sys.exit(main())

"""Golden histories: every method on every engine, from before a redesign, held against today's.

    python tests/golden/golden.py write       what this code says becomes the file
    python tests/golden/golden.py compare     and is held against it; exits with 1 if they differ
    ... --engines sequential stacked flower-sim    --methods fedavg rpn    --cases iid

Sequential and Flower's simulation have to agree to the last bit, stacked to rounding. What is meant
to differ is listed in MEANT, with its reason.
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
ROUNDS = 4
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
SEEING = "fedavg", "rpn", "stc", "fed_kgf"
NEAR = 1e-3  # largest difference of a stacked loss or accuracy, as rounding grows in four rounds
MEANT: dict[str, str] = {}  # "method case engine" -> why it may differ


def experiments(methods: list[str], cases: list[str], engines: list[str]):
    """(method, case, engine), in the order of the file."""
    for case in cases:
        for method in methods if case in ("iid", "dirichlet") else SEEING:
            for engine in engines:
                yield method, case, engine


def digest(state: dict[str, torch.Tensor]) -> str:
    """A hash of all tensors, by name, bit for bit."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(state.items()):
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(tensor.cpu().float().contiguous().numpy().tobytes())
    return found.hexdigest()


def history(method: str, case: str, engine: str) -> dict:
    """What a run leaves behind, or the sentence that refuses it."""
    task, how = CASES[case]
    task = dict(task)
    task = getattr(fl.tasks, task.pop("task"))("digits", seed=0, device="cpu", **task)
    entry = {"method": method, "case": case, "engine": engine}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = fl.run(
                fl.methods.get(method),
                task,
                ROUNDS,
                engine=engine,
                threads=1,
                progress=False,
                **how,
            )
    except ValueError as error:
        return entry | {"error": type(error).__name__}
    columns = {name: [row.get(name) for row in run.rows] for name in COLUMNS}
    refused = [sorted(map(int, row["refused"])) for row in run.rows]
    return entry | columns | {"refused": refused, "state": digest(run.state)}


def difference(old: dict, new: dict) -> str:
    """In what two histories differ, as text; empty if in nothing that counts."""
    if old["engine"] != "stacked" or "error" in old or "error" in new:
        return ", ".join(k for k in old | new if old.get(k) != new.get(k))
    far = []
    for name in old:
        if name in ("accuracy", "loss"):
            gaps = [abs(a - b) for a, b in zip(old[name], new[name], strict=True)]
            if max(gaps) > NEAR:
                far.append(f"{name} by {max(gaps):.2g}")
        elif name == "bytes_up":  # an entropy code is as long as its numbers make it
            gaps = [abs(a - b) / max(a, 1) for a, b in zip(old[name], new[name], strict=True)]
            if max(gaps) > NEAR:
                far.append(f"{name} by a share of {max(gaps):.2g}")
        elif name not in ("state", "bytes_down") and old[name] != new[name]:
            far.append(name)
    return ", ".join(far)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("--methods", nargs="+", default=list(fl.methods.METHODS))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--engines", nargs="+", default=["sequential", "stacked", "flower-sim"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    known = {}
    if FILE.exists():
        with gzip.open(FILE, "rt", encoding="utf-8") as file:
            lines = list(map(json.loads, file))
        known = {(e["method"], e["case"], e["engine"]): e for e in lines}
    differ = compared = 0
    for key in experiments(asked.methods, asked.cases, asked.engines):
        new = history(*key)
        if asked.what == "write":
            known[key] = new
            print(*key, new.get("error") or new["accuracy"][-1], flush=True)
            continue
        compared += 1
        gap = difference(known[key], new) if key in known else "not in the file"
        if gap:
            why = MEANT.get(" ".join(key))
            differ += not why
            print(*key, "differs:", gap, f"(meant: {why})" if why else "", flush=True)
    if asked.what == "write":
        text = "".join(json.dumps(known[key]) + "\n" for key in sorted(known))
        FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{len(known)} histories in {FILE}")
        return 0
    print(f"{compared - differ} of {compared} histories agree.")
    return differ > 0


if __name__ == "__main__":
    sys.exit(main())

"""What a round costs on Flower, what Flower adds to a message, and whether the tests saw the same
history as in one process. Writes ``data/results/flower.json``, which the chapter shows.

    make test-flower SLOW=1 && .venv-flower/bin/python tests/benchmarks/flower.py

Seconds: FedAvg with the digits CNN, two clients, one thread; the median of all rounds but the
first. Framing: bytes that Flower's SuperLink counted, less our payload, for the messages by which a
run of three rounds is longer than one of one: what both have, such as greetings, cancels."""

import json
import os
import platform
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import fedlearn as fl
from fedlearn.lab.results import provenance

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from flower.deployment import Deployment  # noqa: E402

SHORT, LONG = 1, 3


def deployed(d, method, rounds):
    """The history of a run, and the bytes that Flower counted to and from the server."""
    out = d.folder / "history.json"
    output = d.run(method=method, rounds=rounds, threads=1, out=str(out))
    run = re.search(r"run (\d{5,})", output).group(1)
    (listed,) = json.loads(d.call("flwr list here --format json --run-id", run))["runs"]
    return fl.History.from_json(out), listed["network-traffic"]


def framing(method, runs):
    """Bytes a message of a round, payload and as Flower counts it, each way."""
    (short, short_traffic), (long, long_traffic) = (
        runs[method, SHORT],
        runs[method, LONG],
    )
    row = {"method": method}
    messages = 2 * (LONG - SHORT)
    for way, counted in (("up", "inbound-bytes"), ("down", "outbound-bytes")):
        payload = (
            getattr(long, f"bytes_{way}").sum() - getattr(short, f"bytes_{way}").sum()
        )
        all_of_it = long_traffic[counted] - short_traffic[counted]
        row[way] = {
            "payload": round(payload / messages),
            "flower": round(all_of_it / messages),
        }
    return row


def equal():
    """What the tests have kept of each method, a row each."""
    seen = {}
    for path in sorted((ROOT / "_build" / "flower").glob("*_*.json"), reverse=True):
        kind, name = path.stem.split("_", 1)  # simulations first
        record = json.loads(path.read_text(encoding="utf-8"))
        agrees = record.pop("equal")
        seen.setdefault(name, record | {"simulation": None, "deployment": None})[
            kind
        ] = agrees
    return [seen[name] for name in sorted(seen)]


def main():
    origin = provenance()  # first: the checkout may change meanwhile
    task = fl.tasks.classification("digits", 2)
    method = fl.methods.fedavg()
    seconds = {}
    runs = {}
    for engine in ("sequential", "stacked", "flower"):
        history = fl.run(method, task, 6, threads=1, engine=engine, progress=False)
        seconds[engine.replace("flower", "simulation")] = history.seconds.tolist()
    with tempfile.TemporaryDirectory() as folder, Deployment(Path(folder), 2) as d:
        for name in ("fedavg", "rpn"):
            for rounds in (SHORT, LONG):
                runs[name, rounds] = deployed(d, name, rounds)
                print(name, rounds, runs[name, rounds][0].seconds, flush=True)
    seconds["deployment"] = runs["fedavg", LONG][0].seconds.tolist()
    origin |= {"python": platform.python_version(), "torch": torch.__version__}
    origin |= {"hardware": f"{os.cpu_count()} CPU cores ({platform.machine()})"}
    origin |= {"flower": version("flwr"), "ray": version("ray")}
    result = {"made": origin | {"command": "python tests/benchmarks/flower.py"}}
    result["seconds"] = {engine: median(run[1:]) for engine, run in seconds.items()}
    result["framing"] = [framing(name, runs) for name in ("fedavg", "rpn")]
    text = json.dumps(result | {"equal": equal()}, indent=1, allow_nan=False) + "\n"
    (ROOT / "data" / "results" / "flower.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

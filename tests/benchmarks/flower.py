"""What a round costs on Flower, and what Flower adds to a message. Writes
``_build/flower/cost.json``.

    <flower environment>/bin/python tests/benchmarks/flower.py

Seconds: FedAvg with the digits CNN, two clients, one thread; the four engines in turns, twice; the
median of all rounds but the first of each run. CPU seconds of a round: of all processes of a
deployment together, with two clients and with five, between the ends of its first and its last
round but one. Framing: bytes that Flower's SuperLink counted,
less our payload, for the messages by which a run of six rounds is longer than one of two:
greetings and farewells, which both have, cancel."""

import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import fedlearn as fl
from fedlearn.cli import provenance

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from flower.processes import Deployment  # noqa: E402

SHORT, LONG = 2, 6


def deployed(name, rounds, clients=2):
    """The history of a run, and the CPU seconds of a round if there are enough rounds."""
    with tempfile.TemporaryDirectory() as folder:
        d = Deployment(Path(folder), f"{name} --clients {clients} --rounds {rounds} --threads 1")
        try:
            joined = [d.join(k, "--insecure") for k in range(clients)]
            server, used = d.serve("--insecure"), []
            for t in (1, rounds - 1) if rounds > 2 else ():
                server.wait_for(f"Round {t}:")
                used.append(d.cpu())
            assert server.end() == 0
            assert [c.end() for c in joined] == [0] * clients
            history = fl.History.from_json(Path(folder) / "history.json")
            return history, (used[1] - used[0]) / (rounds - 2) if used else None
        finally:
            d.stop()


def framing(name, short, long):
    """Bytes a message of a round, payload and as Flower counts it, each way."""
    row, messages = {"method": name}, 2 * (LONG - SHORT)
    for way, counted in (("up", "to_server"), ("down", "from_server")):
        payload = getattr(long, f"bytes_{way}").sum() - getattr(short, f"bytes_{way}").sum()
        all_of_it = long.meta["flower_bytes"][counted] - short.meta["flower_bytes"][counted]
        row[way] = {"payload": round(payload / messages), "flower": round(all_of_it / messages)}
    return row


def main():
    task, method = fl.tasks.classification("digits", 2), fl.methods.fedavg()
    seconds, programs, runs = {}, {}, {}
    for _ in range(2):
        for engine in ("sequential", "stacked", "simulation", "deployment"):
            if engine == "deployment":
                history, used = deployed("fedavg", LONG)
                runs["fedavg", LONG] = history
                programs.setdefault(2, []).append((median(history.seconds[1:]), used))
                five, used = deployed("fedavg", LONG, 5)
                programs.setdefault(5, []).append((median(five.seconds[1:]), used))
            else:
                history = fl.run(
                    method,
                    task,
                    LONG,
                    threads=1,
                    engine={"simulation": "flower-sim"}.get(engine, engine),
                )
            seconds.setdefault(engine, []).append(history.seconds.tolist())
            print(engine, np.round(history.seconds, 3), flush=True)
    for name, rounds in (("fedavg", SHORT), ("rpn", SHORT), ("rpn", LONG)):
        runs[name, rounds], _ = deployed(name, rounds)
    result = {
        "made": provenance()
        | {
            "command": "python tests/benchmarks/flower.py",
            "python": platform.python_version(),
            "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()})",
            "torch": torch.__version__,
            "flower": version("flwr"),
            "ray": version("ray"),
        },
        "seconds": {
            engine: median(s for run in them for s in run[1:]) for engine, them in seconds.items()
        },
        "programs": [
            {"clients": n, "seconds": median(s), "cpu": median(c)}
            for n, (s, c) in ((n, zip(*them, strict=True)) for n, them in programs.items())
        ],
        "first": {engine: median(run[0] for run in them) for engine, them in seconds.items()},
        "framing": [
            framing(name, runs[name, SHORT], runs[name, LONG]) for name in ("fedavg", "rpn")
        ],
    }
    path = ROOT / "_build" / "flower" / "cost.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

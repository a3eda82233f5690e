"""Put what the tests and ``tests/benchmarks/flower.py`` saw into ``data/results/flower.json``,
which the chapter shows."""

import json
import re
from pathlib import Path

from processes import LIMIT

ROOT = Path(__file__).resolve().parents[2]


def read(name):
    return json.loads((ROOT / "_build" / "flower" / f"{name}.json").read_text(encoding="utf-8"))


def tidy(shown):
    """Ports differ from run to run, and the machine's name is nobody's business."""
    text = re.sub(r"127\.0\.0\.1:\d{5}", "127.0.0.1:8000", json.dumps(shown))
    text = re.sub(r"--port \d+ ", "", text)
    text = re.sub(rf"--wait {LIMIT} (--timeout {LIMIT} )?", "", text)  # against hanging only
    text = re.sub(r"/[\w./-]*/(?=fedlearn-server/)", "", text)  # the test's own folder
    return json.loads(re.sub(r"join \w[\w.-]*:\d+ ", "join 127.0.0.1:8000 ", text))


def main():
    folder, equal = ROOT / "_build" / "flower", []
    for path in sorted(folder.glob("simulation_*.json")):
        seen = read(path.stem)
        there = folder / f"deployment_{seen['method']}.json"
        deployment = read(there.stem)["equal"] if there.exists() else None
        equal.append(
            {
                "method": seen["method"],
                "simulation": seen["equal"],
                "deployment": deployment,
                **{k: seen[k] for k in ("accuracy", "bytes_up", "bytes_down")},
            }
        )
    parts = {name: tidy(read(name)) for name in ("transcript", "refusals", "faults")}
    parts["refusals"].append(tidy(read("expired")))
    result = {**read("cost"), "equal": equal, **parts}
    (ROOT / "data" / "results" / "flower.json").write_text(
        json.dumps(result, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()

"""Put what the tests and ``tests/benchmarks/flower.py`` saw into ``data/results/flower.json``,
which the chapter shows."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    seen = {}
    folder = ROOT / "_build" / "flower"
    for path in sorted(folder.glob("*_*.json"), reverse=True):  # simulations first
        kind, name = path.stem.split("_", 1)
        record = json.loads(path.read_text(encoding="utf-8"))
        equal = record.pop("equal")
        seen.setdefault(name, record | {"simulation": None, "deployment": None})[kind] = equal
    result = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
    result["equal"] = [seen[name] for name in sorted(seen)]
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    (ROOT / "data" / "results" / "flower.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The tests under seven kinds of arithmetic, one row each; what has a result is skipped:

    python tests/processors.py [--fresh] [--only papers/rpn_audit tests/unit]

``tests`` are the fast tests; ``cells``, every chapter with other parameters; ``guards``, every
page with held sentences, with its own parameters and a cell for the sentences.
"""

import argparse
import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import nbformat

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "_build" / "processors"
SETTINGS = (
    "ATEN_CPU_CAPABILITY=default",
    "ATEN_CPU_CAPABILITY=avx2",
    "ATEN_CPU_CAPABILITY=avx512",
    "ONEDNN_MAX_CPU_ISA=SSE41",
    "ONEDNN_MAX_CPU_ISA=AVX2",
    "MKL_CBWR=COMPATIBLE",
    "OMP_NUM_THREADS=2",
)
NBVAL = "--nbval-lax --nbval-current-env --nbval-cell-timeout=3600".split()
NBVAL += ["--nbval-sanitize-with=tests/chapters/nbval_sanitize.cfg"]


def targets() -> list[tuple[str, str, Path]]:
    """The part, the name and the path of all that runs; chapters are copied below ``OUT``."""
    other = runpy.run_path(str(ROOT / "tests" / "chapters" / "other.py"))
    found = [("tests", "tests/unit", ROOT / "tests" / "unit")]
    for path in other["chapters"]():
        page = path.relative_to(other["BOOK"]).with_suffix("").as_posix()
        found.append(("cells", page, other["copy"](path, OUT / "cells")))
        if page in other["PROSE"]:
            notebook = nbformat.read(path, 4)
            other["hold"](notebook, page)
            own = OUT / "guards" / f"{page}.ipynb"
            own.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, own)
            found.append(("guards", page, own))
    return found


def run(setting: str, part: str, name: str, path: Path) -> None:
    """Run pytest on a target in a process of its own, whose children inherit the setting."""
    result = OUT / setting / part / f"{name}.xml"
    if result.exists():
        return
    result.parent.mkdir(parents=True, exist_ok=True)
    variable, value = setting.split("=")
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | {variable: value}
    environment.pop("MPLBACKEND", None)  # kernels choose their own
    if part == "tests":
        environment["MPLBACKEND"] = "Agg"
    words = [sys.executable, "-m", "pytest", str(path), f"--junitxml={result}"]
    words += [] if part == "tests" else NBVAL
    with result.with_suffix(".log").open("w") as log:
        subprocess.run(words, cwd=ROOT, env=environment, stdout=log, stderr=log)
    print(setting, part, name, "failed: {} of {}".format(*numbers(result)), flush=True)


def numbers(result: Path) -> tuple[int, int]:
    """How many cases of a result failed, and how many there are."""
    if not result.exists():  # pytest itself failed
        return 1, 1
    suite = ElementTree.parse(result).getroot().find("testsuite")
    failed = int(suite.get("failures")) + int(suite.get("errors"))
    return failed, int(suite.get("tests"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--only", nargs="+", help="chapters, or tests/unit")
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("-n", type=int, default=os.cpu_count(), help="at a time")
    asked = parser.parse_args()
    if asked.fresh:
        shutil.rmtree(OUT, ignore_errors=True)
    jobs = [job for job in targets() if not asked.only or job[1] in asked.only]
    with ThreadPoolExecutor(asked.n) as pool:
        for setting in asked.settings:
            for job in jobs:
                pool.submit(run, setting, *job)
    failures = 0
    for setting in asked.settings:
        row = {"tests": [0, 0], "cells": [0, 0], "guards": [0, 0]}
        for part, name, _ in jobs:
            for i, number in enumerate(numbers(OUT / setting / part / f"{name}.xml")):
                row[part][i] += number
        failures += sum(failed for failed, _ in row.values())
        columns = [f"{part} {failed} of {n}" for part, (failed, n) in row.items()]
        print(f"{setting:30} failed:", ", ".join(columns))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

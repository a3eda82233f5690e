"""The tests under seven kinds of arithmetic; what has a log is skipped:

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


def targets():
    """The part, the name and the path of all that runs; chapters are copied below ``OUT``."""
    other = runpy.run_path(str(ROOT / "tests" / "chapters" / "other.py"))
    entries = [("tests", "tests/unit", ROOT / "tests" / "unit")]
    for path in other["chapters"]():
        page = path.relative_to(other["BOOK"]).with_suffix("").as_posix()
        entries.append(("cells", page, other["copy"](path, OUT / "cells")))
        if page in other["PROSE"]:
            notebook = nbformat.read(path, 4)
            other["hold"](notebook, page)
            page_copy = OUT / "guards" / f"{page}.ipynb"
            page_copy.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, page_copy)
            entries.append(("guards", page, page_copy))
    return entries


def run(setting, part, name, path):
    """Whether pytest passes on a target, in a process that inherits the setting."""
    log = OUT / setting / part / f"{name}.log"
    if not log.exists():
        log.parent.mkdir(parents=True, exist_ok=True)
        variable, value = setting.split("=")
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | {variable: value}
        environment.pop("MPLBACKEND", None)  # kernels choose their own
        if part == "tests":
            environment["MPLBACKEND"] = "Agg"
        words = [sys.executable, "-m", "pytest", str(path)]
        words += [] if part == "tests" else NBVAL
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        log.write_text(f"exit status {done.returncode}\n{done.stdout}")
    passed = log.read_text().startswith("exit status 0\n")
    print(setting, part, name, "passed" if passed else f"failed: {log}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--only", nargs="+", help="chapters, or tests/unit")
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("-n", type=int, default=os.cpu_count(), help="at a time")
    arguments = parser.parse_args()
    if arguments.fresh:
        shutil.rmtree(OUT, ignore_errors=True)
    jobs = [job for job in targets() if not arguments.only or job[1] in arguments.only]
    with ThreadPoolExecutor(arguments.n) as pool:
        runs = [
            pool.submit(run, setting, *job)
            for setting in arguments.settings
            for job in jobs
        ]
    failures = sum(not passed.result() for passed in runs)
    print(f"{failures} of {len(runs)} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

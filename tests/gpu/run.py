"""All that only a GPU can show, on a machine with CUDA and torch, without network or installation:

    make gpu                                 (OUT=gpu-results MINUTES=20 STEPS="tests speed")

tests     tests/gpu: every method, engine, coder and checkpoint, compared with the CPU
chapters  the code of every chapter at quick scale, as a script
speed     the table and the growth of tests/benchmarks/speed.py -> speed_cuda.json
recipes   the papers' comparisons at full scale, most valuable first -> runs/

Each step writes a log into the folder, and its result into summary.json; a failing one does not
stop the next. The same command again goes on where the last one stopped. MINUTES is what the table
may take, and what the recipes may. Data are not downloaded unless FEDLEARN_OFFLINE=0 is set.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STEPS = "tests", "chapters", "speed", "recipes"
LATE = "stopped at the end of its time"
NEEDED = "torch", "numpy", "safetensors"


def chapter(path, **parameters):
    """Run a chapter's code cells as a script; those of its parameters that are given are set."""
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    module = sys.modules["chapter"] = type(sys)("chapter")  # dataclasses look it up
    os.chdir(Path(path).parent)
    for i, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"<cell {i}>", "exec"), vars(module))
        if "parameters" in cell["metadata"].get("tags", []):
            vars(module).update(
                {k: v for k, v in parameters.items() if hasattr(module, k)}
            )


class Steps:
    """The folder of results, and the commands that fill it."""

    def __init__(self, args):
        self.args, self.out, self.lock = args, Path(args.out).resolve(), Lock()
        self.out.mkdir(parents=True, exist_ok=True)
        self.path = self.out / "summary.json"
        self.summary = json.loads(self.path.read_text()) if self.path.exists() else {}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        fixed = {
            "PYTHONPATH": path,
            "MPLBACKEND": "Agg",
            "FEDLEARN_TEST_DEVICE": args.device,
        }
        # the tests hide every GPU that is not named
        usual = {
            "FEDLEARN_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "0",
        }
        self.env = usual | os.environ | fixed

    def run(self, name, log, *command, minutes=None, again=False, folder=ROOT):
        """Run Python with these words, its output at the end of a log; after ``minutes`` it is
        stopped. The result is kept at once: the machine may be taken back at any time."""
        if self.summary.get(name, {}).get("status") == "passed" and not again:
            return print(f"{name}: there already")
        began, python = time.monotonic(), [sys.executable, *map(str, command)]
        how = {"cwd": folder, "env": self.env, "timeout": minutes and 60 * minutes}
        try:
            done = subprocess.run(
                python, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how
            )
            status, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status, text = LATE, late.stdout or b""
        text = text.decode(errors="replace").strip()
        last, seconds = (
            (text.splitlines() or [""])[-1],
            round(time.monotonic() - began, 1),
        )
        lacks = "No module named" in last and "fedlearn" not in last
        state = {0: "passed", LATE: LATE}.get(status, "left out" if lacks else "failed")
        with self.lock, open(self.out / f"{log}.log", "a", encoding="utf-8") as file:
            file.write(f"$ python {' '.join(python[1:])}\n{text}\n\n")
            self.summary[name] = {"status": state, "seconds": seconds, "last": last}
            self.path.write_text(
                json.dumps(self.summary, indent=1) + "\n", encoding="utf-8"
            )
            print(f"{state:<10}{seconds:>8.0f} s  {name}: {last}", flush=True)

    def tests(self):
        bare = ["-c", os.devnull, "--rootdir", ROOT, "-p", "no:cacheprovider"]
        few = ["-k", "auto or augmentation"] if self.args.quick else []
        self.run("tests", "tests", "-m", "pytest", "-q", "-rsf", *bare, *few, HERE)

    def chapters(self):
        def one(path):
            name = path.relative_to(ROOT / "book").with_suffix("").as_posix()
            self.run(f"chapter {name}", "chapters", __file__, "--chapter", path, *how)

        how = ["--device", self.args.device]
        paths = [
            p
            for p in sorted((ROOT / "book").rglob("*.ipynb"))
            if ".ipynb_" not in str(p)
        ]
        paths = [p for p in paths if not self.args.quick or p.stem == "speed"]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(one, paths))

    def speed(self):
        quick = (
            ["--quick", "--only", "plain", "--most", "10"]
            if self.args.quick
            else ["growth"]
        )
        how = ["--device", self.args.device, "--forms", "--missing"]
        how += ["--minutes", self.args.minutes, "--out", self.out / "speed_cuda.json"]
        how = [ROOT / "tests/benchmarks/speed.py", "table", *quick, *how]
        self.run("speed", "speed", *how, again=True)

    def recipes(self):
        """In order of value; one whose data are absent does not keep the others."""
        sys.path.insert(0, str(ROOT))
        from fedlearn.lab.recipes import RECIPES

        scale = "quick" if self.args.quick else "full"
        end = time.monotonic() + 60 * self.args.minutes
        for name in (name for name, recipe in RECIPES.items() if scale in recipe):
            left = (end - time.monotonic()) / 60
            if left <= 0:
                return
            how = ["--scale", scale, "--no-progress"]
            how = [
                "-m",
                "fedlearn",
                "reproduce",
                name,
                *how,
                "--device",
                self.args.device,
            ]
            self.run(f"recipe {name}", "recipes", *how, minutes=left, folder=self.out)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="gpu-results", help="the folder of results")
    parser.add_argument(
        "--minutes", type=float, default=20, help="for the table, and for recipes"
    )
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--chapter", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.chapter:
        return chapter(args.chapter, scale="quick", device=args.device)
    if lacks := [name for name in NEEDED if not find_spec(name)]:
        sys.exit(
            f"make gpu needs {', '.join(lacks)}, which {sys.executable} does not have."
        )
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("make gpu needs a CUDA GPU, and torch sees none on this machine.")
    steps = Steps(args)
    for step in args.steps:
        getattr(steps, step)()
    return int(any(r["status"] == "failed" for r in steps.summary.values()))


if __name__ == "__main__":
    sys.exit(main())

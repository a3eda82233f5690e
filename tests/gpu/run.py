"""All that only a GPU can show, on a machine with CUDA and torch, without network or installation:

    make gpu                                 (OUT=gpu-results MINUTES=20 STEPS="tests speed")
    python tests/gpu/run.py --out gpu-results --minutes 20

tests     tests/gpu/test_device.py: every method, engine, coder and checkpoint beside the CPU
chapters  the code of every chapter at quick scale, as a script
speed     the table and the growth of tests/benchmarks/speed.py -> speed_cuda.json
recipes   the papers' comparisons at full scale, most valuable first -> runs/

Each step writes a log into the folder, and what came of it into summary.json; one that fails does
not stop the next. The same command again goes on where it stopped: what passed is not repeated,
rows and runs stay. MINUTES is what the table may take, and the recipes. Data are not downloaded
unless FEDLEARN_OFFLINE=0 is set.
"""

import argparse
import importlib.util
import json
import linecache
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MISSING = 3  # exit status of a chapter for which a package is missing
STEPS = ("tests", "chapters", "speed", "recipes")


def chapter(path, device):
    """Execute a chapter's code cells in a module of their own, parameters changed behind the cell
    that is tagged so; where there is no IPython, ``display`` prints."""
    if not importlib.util.find_spec("IPython"):
        shown = SimpleNamespace(display=print, HTML=str, Markdown=str, SVG=str)
        sys.modules["IPython.display"] = shown
        sys.modules["IPython"] = SimpleNamespace(display=shown, get_ipython=lambda: None)
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    module = sys.modules["chapter"] = ModuleType("chapter")  # dataclasses look it up
    os.chdir(Path(path).parent)
    try:
        for i, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                name, source = f"<cell {i}>", "".join(cell["source"])
                linecache.cache[name] = len(source), None, source.splitlines(True), name
                exec(compile(source, name, "exec"), module.__dict__)
            if "parameters" in cell["metadata"].get("tags", []):
                parameters = {"scale": "quick", "device": device}
                module.__dict__.update((k, v) for k, v in parameters.items() if hasattr(module, k))
    except ModuleNotFoundError as error:
        if (error.name or "fedlearn").split(".")[0] == "fedlearn":
            raise
        print(f"{error.name} is not installed")
        return MISSING


class Gpu:
    """The folder of results, and the commands that fill it."""

    def __init__(self, args):
        self.args, self.out = args, Path(args.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.path = self.out / "summary.json"
        self.summary = json.loads(self.path.read_text()) if self.path.exists() else {}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.env = {"FEDLEARN_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | os.environ
        self.env |= {"PYTHONPATH": path, "MPLBACKEND": "Agg", "FEDLEARN_TEST_DEVICE": args.device}

    def step(self, name, *command, minutes=None, folder=ROOT, again=False):
        """Run Python with these words, its output in a log; after ``minutes`` it is interrupted, as
        by Ctrl-C. -> what came of it, kept at once: the machine may be taken back any time."""
        if not again and self.summary.get(name, {}).get("status") in ("passed", "left out"):
            return self.summary[name]
        start, log = time.monotonic(), self.out / f"{name.replace(' ', '_').replace('/', '_')}.log"
        with open(log, "w", encoding="utf-8") as file:
            words = [sys.executable, *map(str, command)]
            child = subprocess.Popen(words, stdout=file, stderr=file, cwd=folder, env=self.env)
            try:
                status = child.wait(None if minutes is None else 60 * minutes)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
                status = "stopped at the end of its time"
                try:
                    child.wait(60)
                except subprocess.TimeoutExpired:
                    child.kill()
        last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1]
        absent = status == 2 and "data set" in last
        state = {0: "passed", MISSING: "left out"}.get(status, "left out" if absent else "failed")
        state = status if isinstance(status, str) else state
        result = {"status": state, "last": last, "seconds": round(time.monotonic() - start, 1)}
        self.summary[name] = result
        self.path.write_text(json.dumps(self.summary, indent=1) + "\n", encoding="utf-8")
        print(f"{result['status']:<10}{result['seconds']:>8.0f} s  {name}: {last}", flush=True)
        return result

    def tests(self):
        # not the project's settings: they name plugins that may be missing
        bare = ["-c", os.devnull, "--rootdir", ROOT, "-p", "no:cacheprovider"]
        few = ["-k", "augmentation"] if self.args.quick else []
        self.step("tests", "-m", "pytest", "-q", *bare, *few, HERE / "test_device.py")

    def chapters(self):
        for path in sorted((ROOT / "book").rglob("*.ipynb")):
            if ".ipynb_" not in str(path) and (not self.args.quick or path.stem == "speed"):
                name = path.relative_to(ROOT / "book").with_suffix("").as_posix()
                self.step(f"chapter {name}", __file__, "--device", self.args.device, "--run", path)

    def speed(self):
        quick = ["--quick", "--only", "plain", "--most", "10"] if self.args.quick else ["growth"]
        how = ["--device", self.args.device, "--forms", "--no-peers", "--missing"]
        how += ["--minutes", self.args.minutes, "--out", self.out / "speed_cuda.json"]
        self.step("speed", ROOT / "tests/benchmarks/speed.py", "table", *quick, *how, again=True)

    def recipes(self):
        """All in order of value; where data are absent, the recipes that do not need them."""
        sys.path.insert(0, str(ROOT))
        from fedlearn.recipes import RECIPES

        end = time.monotonic() + 60 * self.args.minutes
        for name in ("", *(n for n, recipe in RECIPES.items() if "full" in recipe)):
            left = max(0.0, (end - time.monotonic()) / 60)
            command = ["-m", "fedlearn.cli", "reproduce", *([name] if name else [])]
            command += ["--scale", "full", "--device", self.args.device, "--no-progress"]
            how = {"minutes": left, "folder": self.out, "again": True}
            result = self.step(f"recipes {name}".strip(), *command, **how)
            if not name and result["status"] != "left out":
                break


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="gpu-results", help="the folder of results")
    parser.add_argument("--minutes", type=float, default=20, help="for the table, and for recipes")
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--device", default="cuda", help="cpu: whether this script itself runs")
    parser.add_argument("--quick", action="store_true", help="a little of each step")
    parser.add_argument("--run", metavar="FILE", help="one chapter, in this process")
    args = parser.parse_args(argv)
    if args.run:
        return chapter(args.run, args.device)
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        print(f"make gpu needs a CUDA GPU; torch {torch.__version__} sees none.", file=sys.stderr)
        return 1
    gpu = Gpu(args)
    for step in args.steps:
        getattr(gpu, step)()
    return int(any(result["status"] == "failed" for result in gpu.summary.values()))


if __name__ == "__main__":
    sys.exit(main())

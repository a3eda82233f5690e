"""All that only a GPU can show, on a machine with CUDA and torch, without network or installation:

    make gpu                                 (OUT=gpu-results MINUTES=20 STEPS="tests speed")
    python tests/gpu/run.py --out gpu-results --minutes 20

tests     tests/gpu: every method, engine, coder and checkpoint, compared with the CPU
chapters  the code of every chapter at quick scale, as a script
speed     the table and the growth of tests/benchmarks/speed.py -> speed_cuda.json
recipes   the papers' comparisons at full scale, most valuable first -> runs/

Each step writes a log into the folder, and what came of it into summary.json; one that fails does
not stop the next. The same command again goes on where the last one stopped: what passed is not
repeated, rows and runs that are there stay. MINUTES is what the table may take, and the recipes.
Data are not downloaded unless FEDLEARN_OFFLINE=0 is set.
"""

import argparse
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MISSING = 3  # exit status of chapter.py
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "sklearn": "scikit-learn",
    "safetensors": "safetensors",
}
USEFUL = {
    "pytest": "the tests",
    "matplotlib": "chapters",
    "pandas": "chapters",
    "jinja2": "chapters",
    "tqdm": "chapters and progress bars",
    "ipywidgets": "explorers, of which only the first picture is drawn",
    "psutil": "runs on the CPU beside it",
    "constriction": "range coding",
    "yaml": "the recipes",
}


def absent(names):
    return [name for name in names if not importlib.util.find_spec(name)]


def refusal(device):
    """Why this machine cannot do it, in one sentence, or None."""
    lacks = [NEEDED[name] for name in absent(NEEDED)]
    if lacks:
        return f"make gpu needs {', '.join(lacks)}, which {sys.executable} does not have."
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return (
            f"make gpu needs a CUDA GPU, and torch {torch.__version__} sees none on this machine."
        )
    return None


def described(device):
    """The machine and the version of the code, for the summary."""
    import torch

    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except OSError:
        commit = ""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "gpus": torch.cuda.device_count() if device == "cuda" else 0,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "commit": commit or "not a checkout",
        "absent": {name: USEFUL[name] for name in absent(USEFUL)},
    }


class Gpu:
    """The folder of results, and the commands that fill it."""

    def __init__(self, args):
        self.args, self.out, self.lock = args, Path(args.out).resolve(), Lock()
        self.out.mkdir(parents=True, exist_ok=True)
        self.path = self.out / "summary.json"
        self.summary = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.summary["machine"] = described(args.device)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        gpus = ",".join(map(str, range(self.summary["machine"]["gpus"])))
        defaults = {"CUDA_VISIBLE_DEVICES": gpus, "FEDLEARN_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        own = {"PYTHONPATH": path, "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}
        self.env = defaults | os.environ | own | {"FEDLEARN_TEST_DEVICE": args.device}
        # what a shell starts in the background ignores Ctrl-C, and so would what is started here
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def note(self, what, **result):
        """One line of the summary, kept at once: the machine may be taken back at any time."""
        with self.lock:
            self.summary[what] = result
            self.path.write_text(json.dumps(self.summary, indent=1) + "\n", encoding="utf-8")
            print(f"{what}: {', '.join(f'{k} {v}' for k, v in result.items())}", flush=True)

    def passed(self, what):
        return self.summary.get(what, {}).get("status") in ("passed", "left out")

    def python(self, what, log, *command, minutes=None, folder=ROOT):
        """Run Python with these words, its output at the end of a log -> status, seconds, last
        line. After ``minutes`` it is interrupted, as by Ctrl-C."""
        began, part = time.monotonic(), self.out / f"{what.replace('/', '-')}.part"
        words = [sys.executable, *map(str, command)]
        with open(part, "w", encoding="utf-8") as file:
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
                    child.wait()
            except BaseException:
                child.kill()
                raise
        text = part.read_text(encoding="utf-8", errors="replace").strip()
        with self.lock, open(self.out / f"{log}.log", "a", encoding="utf-8") as file:
            file.write(f"$ python {' '.join(words[1:])}\n{text}\n\n")
        part.unlink()
        return status, round(time.monotonic() - began, 1), text.splitlines()[-1] if text else ""

    def step(self, what, log, *command, again=False):
        """A command whose exit status says what came of it."""
        if self.passed(what) and not again:
            print(f"{what}: there already")
            return
        status, seconds, last = self.python(what, log, *command)
        text = {0: "passed", MISSING: "left out"}.get(status, "failed")
        self.note(what, status=text, seconds=seconds, last=last)

    # ---- the steps

    def tests(self):
        more = ["-k", "auto or augmentation"] if self.args.quick else []
        # not the project's settings: they name plugins that may be missing
        bare = ["-c", os.devnull, "--rootdir", ROOT, "-p", "no:cacheprovider"]
        if absent(["pytest"]):
            self.note("tests", status="left out", last="pytest is not installed")
        else:
            self.step("tests", "tests", "-m", "pytest", "-q", "-rsf", *bare, *more, HERE)

    def chapters(self):
        """Several at a time: what they show is not their speed."""

        def run(path):
            name = path.relative_to(ROOT / "book").with_suffix("").as_posix()
            values = ["scale=quick", f"device={self.args.device}"]
            self.step(f"chapter {name}", "chapters", HERE / "chapter.py", path, *values)

        chapters = sorted(p for p in (ROOT / "book").rglob("*.ipynb") if ".ipynb_" not in str(p))
        chapters = [p for p in chapters if not self.args.quick or p.stem == "speed"]
        with ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 2))) as pool:
            list(pool.map(run, chapters))

    def speed(self):
        quick = ["--quick", "--only", "plain", "--most", "10"] if self.args.quick else []
        parts = ["table"] if self.args.quick else ["table", "growth"]
        how = ["--device", self.args.device, "--forms", "--no-peers", "--missing"]
        how += ["--minutes", self.args.minutes, "--out", self.out / "speed_cuda.json", *quick]
        self.step("speed", "speed", ROOT / "tests/benchmarks/speed.py", *parts, *how, again=True)

    def recipes(self):
        """All in order of value. Where data are absent, the recipes that do not need them."""
        sys.path.insert(0, str(ROOT))
        from fedlearn.recipes import RECIPES

        end = time.monotonic() + 60 * self.args.minutes
        scale = "quick" if self.args.quick else "full"
        for name in ("all", *(n for n, recipe in RECIPES.items() if scale in recipe)):
            left = max(0.0, (end - time.monotonic()) / 60)
            which = [] if name == "all" else [name]
            how = ["--scale", scale, "--device", self.args.device, "--no-progress"]
            command = ["-m", "fedlearn.cli", "reproduce", *which, *how]
            status, seconds, last = self.python(
                f"recipes {name}", "recipes", *command, minutes=left, folder=self.out
            )
            runs = len(list(self.out.glob("runs/*/*.json")))
            data = status == 2 and "data set" in last  # some of them are absent
            text = "passed" if status == 0 else "left out" if data else "failed"
            text = status if isinstance(status, str) else text
            self.note(f"recipes {name}", status=text, seconds=seconds, runs=runs, last=last)
            if name == "all" and not data:
                break


STEPS = ("tests", "chapters", "speed", "recipes")


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="gpu-results", help="the folder of results")
    parser.add_argument("--minutes", type=float, default=20, help="for the table, and for recipes")
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    # how the unit tests see to it that this file does not rot
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    problem = refusal(args.device)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    gpu = Gpu(args)
    gpu.note("machine", **gpu.summary["machine"])
    for step in args.steps:
        try:
            getattr(gpu, step)()
        except Exception as error:  # one step's trouble must not keep the others from running
            gpu.note(step, status="failed", last=f"{type(error).__name__}: {error}")
    print(f"\n---- {gpu.out}")
    for what, result in gpu.summary.items():
        if "status" in result:
            said = "" if result["status"] == "passed" else f": {result['last']}"
            print(f"{result['status']:<10}{result.get('seconds', 0):>8.0f} s  {what}{said}")
    return int(any(r.get("status") == "failed" for r in gpu.summary.values()))


if __name__ == "__main__":
    sys.exit(main())

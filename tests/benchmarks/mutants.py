"""Do the tests notice? Small changes are made to the package, one at a time, and the tests that run
the changed line (the quickest first, for a minute) must fail. Each mutant runs in a fork of this
process, which has imported torch.

    python tests/benchmarks/mutants.py --jobs 2                         # 200 of the core, seed 0
    python tests/benchmarks/mutants.py --count 50 --files round.py wire --tests tests/unit"""

import argparse
import ast
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module, metadata
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

import pytest
from coverage import Coverage

ROOT = Path(__file__).resolve().parents[2]
CORE = [f"{name}.py" for name in "round local method links servers optim context".split()]
PAIRS = "Lt LtE, Gt GtE, Eq NotEq, In NotIn, Is IsNot, And Or, Add Sub, Mult Div, FloorDiv Mult"
SWAPS = {a: b for pair in PAIRS.split(", ") for a, b in [pair.split(), pair.split()[::-1]]}
SWAPS |= {"Mult": "Div", "Mod": "FloorDiv", "Pow": "Mult", "BitOr": "BitAnd", "USub": "UAdd"}
IGNORED = ast.Raise | ast.JoinedStr, ("annotation", "returns", "decorator_list")
HEAVY = "torch torchvision sklearn.datasets pandas matplotlib.pyplot yaml tyro".split()


def changes(tree: ast.Module):
    """(line, what is changed, a node or list, its attribute or index, the new value)"""
    for node in (nodes := [tree]):
        for name, value in ast.iter_fields(node):
            if not isinstance(node, IGNORED[0]) and name not in IGNORED[1]:
                children = value if isinstance(value, list) else [value]
                nodes += [child for child in children if isinstance(child, ast.AST)]
                if not isinstance(node, ast.Module | ast.ClassDef):
                    for i, s in enumerate(children):
                        call = isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)
                        if call or isinstance(s, ast.AugAssign | ast.Raise | ast.Continue):
                            yield s.lineno, f"{ast.unparse(s)[:70]}  ->  pass", value, i, ast.Pass()
        compared = isinstance(node, ast.Compare)
        kind = type(node.ops[0] if compared else getattr(node, "op", None)).__name__
        if kind in SWAPS:
            owner, field = (node.ops, 0) if compared else (node, "op")
            text, new = f"{ast.unparse(node)}  ->  {SWAPS[kind]}", getattr(ast, SWAPS[kind])()
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            owner, field, text = node, "value", f"{node.value}"
            new = not node.value if type(node.value) is bool else node.value + 1
        elif kind == "Not" or isinstance(node, ast.IfExp | ast.If):
            owner, field = node, "operand" if kind == "Not" else "test"
            text = f"{ast.unparse(getattr(node, field))}  ->  not"
            new = ast.UnaryOp(ast.Not(), getattr(node, field))
        else:
            continue
        yield node.lineno, text, owner, field, new


class Measure:
    """A plugin of pytest that writes which lines each test runs, and its seconds."""

    def __init__(self, out: str):
        self.out, self.seconds = out, defaultdict(float)
        self.coverage = Coverage(data_file=None, source=[str(ROOT / "fedlearn")])

    def pytest_sessionstart(self):
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self):
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        Path(self.out).write_text(json.dumps([lines, self.seconds]))


def run(folder: str | Path, tests: list[str], *plugins) -> None:
    """Run these tests on the package of this folder, up to the first that fails."""
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    options = "-x", "--timeout=120", "--timeout-method=thread"
    code = pytest.main([*options, *tests], plugins=plugins)
    os._exit(code)  # a fork of torch may crash when it is taken down


def fork(*arguments) -> int:
    """``run`` in a process of its own: its exit code."""
    process = get_context("fork").Process(target=run, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def verdict(mutant: tuple, lines: dict, seconds: dict[str, float]) -> str:
    """Whether a copy of the package with this change is noticed."""
    path, line, _, number = mutant
    tree = ast.parse(path.read_text())
    around = (n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= line)
    first = max(n.lineno for n in around if line <= n.end_lineno)  # where its lines are covered
    tests = lines.get(str(first), [])
    if not any(tests):  # it runs at import, such as a default
        tests = sum(lines.values(), [])
    tests = sorted({test for test in tests if test}, key=seconds.get)
    total = accumulate(map(seconds.get, tests))
    tests = [test for test, time in zip(tests, total, strict=True) if time < 60] or tests[:1]
    if not tests:
        return "not covered"
    *_, owner, field, new = list(changes(tree))[number]
    (list.__setitem__ if isinstance(owner, list) else setattr)(owner, field, new)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "fedlearn", f"{folder}/fedlearn")
        for name in ("tests", "data", "book", "pyproject.toml", "README.md"):
            os.symlink(ROOT / name, f"{folder}/{name}")
        mutated = ast.unparse(ast.fix_missing_locations(tree))
        Path(folder, path.relative_to(ROOT)).write_text(mutated)
        code = fork(folder, tests)
    # 4: the package cannot be imported, so that no test can be collected
    return {0: "survived", 1: "killed", 4: "killed at import"}.get(code, f"pytest: {code}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", nargs="+", default=[*CORE, "methods", "wire"])
    parser.add_argument("--tests", nargs="+", default=["tests/unit"])
    asked = parser.parse_args()
    began = time.monotonic()
    for plugin in metadata.entry_points(group="pytest11"):
        plugin.load()
    for name in HEAVY:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        if code := fork(ROOT, asked.tests, Measure(f"{folder}/measured")):
            sys.exit(f"without any change pytest ends with {code}: no test may fail")
        lines, seconds = json.loads(Path(folder, "measured").read_text())
    named = [ROOT / "fedlearn" / name for name in asked.files]
    places = [
        (path, line, text, i)
        for path in (p for name in named for p in sorted(name.rglob("[!_]*.py")) or [name])
        for i, (line, text, *_) in enumerate(changes(ast.parse(path.read_text())))
    ]
    drawn = random.Random(asked.seed).sample(places, min(asked.count, len(places)))
    counts: Counter = Counter()
    with ThreadPoolExecutor(asked.jobs) as pool:
        results = pool.map(lambda m: verdict(m, lines.get(str(m[0]), {}), seconds), drawn)
        for (path, line, text, _), result in zip(drawn, results, strict=True):
            counts[result] += 1
            if "killed" not in result:
                print(f"{result}: {path.relative_to(ROOT)}:{line}  {text}", flush=True)
    print(f"{len(places)} places; {dict(counts)}; {(time.monotonic() - began) / 60:.0f} minutes")


if __name__ == "__main__":
    main()

"""Do the tests notice? Small changes are made to the package, one at a time, and the unit tests
that run the changed line must fail.

    python tests/benchmarks/mutants.py --jobs 2                         # 200 of the core, seed 0
    python tests/benchmarks/mutants.py --count 50 --files round.py wire --tests tests/unit

Drawn evenly over all places where an operator, a comparison, a constant or a whole statement can
be changed; texts of errors, annotations and documentation do not count. Each mutant runs in a fork
of this process, which has imported torch; its quickest tests come first, for a minute at most.
Needs ``coverage``."""

import argparse
import ast
import compileall
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).resolve().parents[2]
CORE = [f"{name}.py" for name in "round local method links servers optim context".split()]
PAIRS = "Lt LtE, Gt GtE, Eq NotEq, In NotIn, Is IsNot, And Or, Add Sub, Mult Div".split(", ")
SWAPS = {getattr(ast, a): getattr(ast, b) for a, b in map(str.split, PAIRS)}
SWAPS |= {b: a for a, b in SWAPS.items()}
SWAPS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}
SWAPS |= {ast.BitOr: ast.BitAnd, ast.USub: ast.UAdd}
WARM = "torch torchvision sklearn.datasets pandas matplotlib.pyplot hypothesis yaml tyro pytest"
UNSEEN = "annotation", "returns", "decorator_list", "type_comment"
# (its line, what was changed): no test can see it
EQUIVALENT = {
    ('return np.packbits(values.astype(bool, copy=False), bitorder="little").tobytes()', "False"),
    ("return values.reshape(-1).view(np.uint8).data", "1"),
    ("x[whole] = reader.signs(len(whole) * entries).reshape(-1, entries)", "1"),
    ("number = np.full(len(count), -1)", "1"),
    ("near = get_close_matches(name, dir(kind), n=1)", "1"),
}


def changes(tree: ast.Module):
    """(line, what is changed, node or list, its attribute or index, new value) of every mutant."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        line = getattr(node, "lineno", 0)
        if not isinstance(node, ast.Raise | ast.JoinedStr):
            for name, value in ast.iter_fields(node):
                if name not in UNSEEN:
                    children = value if isinstance(value, list) else [value]
                    stack += [child for child in children if isinstance(child, ast.AST)]
        comparison = isinstance(node, ast.Compare)
        kind = node.ops[0] if comparison else getattr(node, "op", None)
        if type(kind) in SWAPS:
            new = SWAPS[type(kind)]()
            text = f"{ast.unparse(node)}  ->  {type(new).__name__}"
            yield (line, text, node, *(("ops", [new]) if comparison else ("op", new)))
        elif isinstance(kind, ast.Not):
            new = ast.UnaryOp(ast.Not(), node.operand)
            yield line, f"{ast.unparse(node)}  ->  without it", node, "operand", new
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            new = not node.value if type(node.value) is bool else node.value + 1
            yield line, f"{node.value}", node, "value", new
        elif isinstance(node, ast.IfExp | ast.If):
            new = ast.UnaryOp(ast.Not(), node.test)
            yield line, f"if {ast.unparse(node.test)}  ->  if not", node, "test", new
        if isinstance(node, ast.Module | ast.ClassDef):
            continue
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for i, s in enumerate(body if isinstance(body, list) else []):
                call = isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)
                if call or isinstance(s, ast.AugAssign | ast.Raise | ast.Continue):
                    yield s.lineno, f"{ast.unparse(s)[:70]}  ->  pass", body, i, ast.Pass()


class Measure:
    """A plugin of pytest that writes which lines each test runs, its seconds, and what failed."""

    def __init__(self, out: str):
        self.out, self.seconds, self.failed = out, defaultdict(float), []
        self.coverage = Coverage(data_file=None, source=[str(ROOT / "fedlearn")])
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        self.failed += [report.nodeid] if report.failed else []

    def pytest_sessionfinish(self):
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        Path(self.out).write_text(json.dumps([lines, self.seconds, self.failed]))


def test(place: str | Path, tests: list[str], out: str | None = None) -> None:
    """Run pytest on the package in this folder and leave the process with its exit code."""
    os.setsid()
    os.chdir(place)
    os.environ["PYTHONPATH"] = str(place)
    sys.path.insert(0, str(place))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    import pytest

    stop, plugins = ([], [Measure(out)]) if out else (["-x"], [])
    sys.exit(pytest.main(["-q", "--no-header", *stop, *tests], plugins=plugins))


def forked(seconds: float, *arguments) -> int | None:
    """The exit code of ``test`` in a fork of this process; None where it took too long."""
    process = get_context("fork").Process(target=test, args=arguments)
    process.start()
    process.join(seconds)
    if late := process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return None if late else process.exitcode


def covering(tests: list[str], jobs: int) -> tuple[dict, dict[str, float]]:
    """(file -> line -> tests that run it, test -> its seconds), each file of tests in a fork."""
    groups = defaultdict(list)
    for name in tests:
        folder = ROOT / name
        for file in sorted(folder.rglob("test_*.py")) if folder.is_dir() else [name]:
            groups[str(file).split("::")[0]].append(str(file))
    lines, seconds = defaultdict(lambda: defaultdict(set)), {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        outs = [f"{folder}/{i}" for i in range(len(groups))]
        list(pool.map(lambda group, out: forked(3600, ROOT, group, out), groups.values(), outs))
        for out in outs:
            contexts, times, failed = json.loads(Path(out).read_text())
            if failed:
                sys.exit(f"tests that fail without any change: {failed}")
            seconds |= times
            for file, numbers in contexts.items():
                for number, names in numbers.items():
                    lines[file][int(number)] |= {name for name in names if name}
    return lines, seconds


def verdict(path: Path, line: int, text: str, number: int, lines: dict, seconds: dict) -> str:
    """Whether a copy of the package with this change is noticed by a test that runs its line."""
    if (path.read_text().splitlines()[line - 1].strip(), text) in EQUIVALENT:
        return "equivalent"
    # a statement of several lines is covered under its first; some run only at import
    near = [lines[str(path)][n] for n in range(line, line - 6, -1) if lines[str(path)][n]]
    tests = sorted(near[0] if near else set().union(*lines[str(path)].values()), key=seconds.get)
    total = list(accumulate(seconds[name] for name in tests))
    tests = [name for name, time in zip(tests, total, strict=True) if time < 60] or tests[:1]
    if not tests:
        return "not covered"
    tree = ast.parse(path.read_text())
    *_, owner, field, new = list(changes(tree))[number]
    owner.__setitem__(field, new) if isinstance(owner, list) else setattr(owner, field, new)
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT / "fedlearn", f"{place}/fedlearn")
        for name in ("tests", "data", "book", "pyproject.toml", "README.md"):
            os.symlink(ROOT / name, f"{place}/{name}")
        mutant = ast.unparse(ast.fix_missing_locations(tree))
        Path(place, path.relative_to(ROOT)).write_text(mutant)
        code = forked(60 + 5 * sum(map(seconds.get, tests)), place, tests)
    return "survived" if code == 0 else "killed"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", nargs="+", default=[*CORE, "methods", "wire"])
    parser.add_argument("--tests", nargs="+", default=["tests/unit"])
    asked = parser.parse_args()
    modules = [ROOT / "fedlearn" / name for name in asked.files]
    modules = [m for path in modules for m in (sorted(path.rglob("*.py")) or [path])]
    places = [
        (path, line, text, i)
        for path in modules
        if path.name != "__init__.py"
        for i, (line, text, *_) in enumerate(changes(ast.parse(path.read_text())))
    ]
    compileall.compile_dir(ROOT / "fedlearn", quiet=1)
    for name in WARM.split():
        importlib.import_module(name)
    measured = covering(asked.tests, asked.jobs)
    drawn = random.Random(asked.seed).sample(places, min(asked.count, len(places)))
    counts: Counter = Counter()
    with ThreadPoolExecutor(asked.jobs) as pool:
        results = pool.map(lambda mutant: verdict(*mutant, *measured), drawn)
        for (path, line, text, _), result in zip(drawn, results, strict=True):
            counts[result] += 1
            if result != "killed":
                place = f"{path.relative_to(ROOT)}:{line}"
                print(f"{result} as number {counts.total()}: {place}  {text}", flush=True)
    judged = counts.total() - counts["equivalent"]
    print(f"{len(places)} places; {dict(counts)}; killed {counts['killed']}/{judged}")


if __name__ == "__main__":
    main()

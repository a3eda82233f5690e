"""Do the tests notice? Small changes are made to the package, one at a time, and the unit tests
that run the changed line must fail.

    pip install coverage pytest-cov
    python tests/benchmarks/mutants.py --jobs 2                         # 200 of the core, seed 0
    python tests/benchmarks/mutants.py --count 50 --files round.py wire --tests tests/unit

Drawn evenly over all places where an operator, a comparison, a constant or a whole statement can
be changed; texts of errors, annotations and documentation do not count. Mutants that no test can
tell from the original are named in ``EQUIVALENT``."""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]
CORE = [f"{name}.py" for name in "round local method links servers optim context".split()]
SWAPS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult},
    **{ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.USub: ast.UAdd},
}
UNSEEN = "annotation", "returns", "decorator_list", "type_comment"
# (its line, what was changed): no test can see it
EQUIVALENT = {
    ('return np.packbits(values.astype(bool, copy=False), bitorder="little").tobytes()', "False"),
    ("return values.reshape(-1).view(np.uint8).data", "1"),
    ("x[whole] = reader.signs(len(whole) * entries).reshape(-1, entries)", "1"),
    ("number = np.full(len(count), -1)", "1"),
    ("near = get_close_matches(name, dir(kind), n=1)", "1"),
}


def files(places: list[str]) -> list[Path]:
    """The modules that these names stand for: files or folders of the package."""
    paths = [ROOT / "fedlearn" / place for place in places]
    modules = [
        m for path in paths for m in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
    ]
    return [m for m in modules if m.name != "__init__.py"]


def changes(tree: ast.Module):
    """(line, what is changed, a function that changes the tree in place) for every mutant."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        line = getattr(node, "lineno", 0)
        if not isinstance(node, ast.Raise | ast.JoinedStr):
            for name, value in ast.iter_fields(node):
                if name not in UNSEEN:
                    inner = value if isinstance(value, list) else [value]
                    stack += [child for child in inner if isinstance(child, ast.AST)]
        kind = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
        if type(kind) in SWAPS:
            new = SWAPS[type(kind)]()
            name, value = ("ops", [new]) if isinstance(node, ast.Compare) else ("op", new)
            text = f"{ast.unparse(node)}  ->  {type(new).__name__}"
            yield line, text, lambda n=node, f=name, v=value: setattr(n, f, v)
        elif isinstance(kind, ast.Not):
            text = f"{ast.unparse(node)}  ->  without it"
            yield (
                line,
                text,
                lambda n=node: setattr(n, "operand", ast.UnaryOp(ast.Not(), n.operand)),
            )
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            value = not node.value if type(node.value) is bool else node.value + 1
            yield line, f"{node.value}", lambda n=node, v=value: setattr(n, "value", v)
        elif isinstance(node, ast.IfExp | ast.If):
            text = f"if {ast.unparse(node.test)}  ->  if not"
            yield line, text, lambda n=node: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
        if isinstance(node, ast.Module | ast.ClassDef):
            continue
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for i, s in enumerate(body if isinstance(body, list) else []):
                call = isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)
                if call or isinstance(s, ast.AugAssign | ast.Raise | ast.Continue):
                    text = f"{ast.unparse(s).splitlines()[0][:70]}  ->  pass"
                    yield s.lineno, text, lambda b=body, i=i: b.__setitem__(i, ast.Pass())


def covering(paths: list[Path], tests: list[str], jobs: int) -> dict[Path, dict[int, set[str]]]:
    """file -> line -> the tests that run it, of one run of all these tests."""
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/coverage"
        env = os.environ | {"COVERAGE_FILE": data, "OMP_NUM_THREADS": "1"}
        parallel = ["-n", str(jobs)] if jobs > 1 else []
        command = [sys.executable, "-m", "pytest", *tests, "-q", *parallel]
        command += ["--cov=fedlearn", "--cov-context=test", "--cov-report="]
        subprocess.run(command, cwd=ROOT, env=env, check=False)
        measured = CoverageData(data)
        measured.read()
        return {
            path: {
                n: {c.split("|")[0] for c in contexts if c}
                for n, contexts in measured.contexts_by_lineno(str(path)).items()
            }
            for path in paths
        }


def judge(path: Path, number: int, tests: list[str]) -> str:
    """Whether a copy of the package with this change is noticed by one of the tests."""
    tree = ast.parse(path.read_text())
    list(changes(tree))[number][2]()
    with tempfile.TemporaryDirectory() as place:
        no_cache = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "fedlearn", f"{place}/fedlearn", ignore=no_cache)
        for name in ("tests", "data", "book", "pyproject.toml", "README.md"):
            os.symlink(ROOT / name, f"{place}/{name}")
        mutant = ast.unparse(ast.fix_missing_locations(tree))
        Path(place, path.relative_to(ROOT)).write_text(mutant)
        env = {"PYTHONPATH": place, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--timeout=120"]
        done = subprocess.run(
            [*command, *tests], cwd=place, env=os.environ | env, capture_output=True, check=False
        )
    return "killed" if done.returncode in (1, 2, 4) else "survived"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", nargs="+", default=[*CORE, "methods", "wire"])
    parser.add_argument("--tests", nargs="+", default=["tests/unit"])
    asked = parser.parse_args()
    paths = files(asked.files)
    places = [
        (path, line, text, i)
        for path in paths
        for i, (line, text, _) in enumerate(changes(ast.parse(path.read_text())))
    ]
    lines = covering(paths, asked.tests, asked.jobs)
    drawn = random.Random(asked.seed).sample(places, min(asked.count, len(places)))

    def verdict(mutant: tuple[Path, int, str, int]) -> str:
        path, line, text, number = mutant
        if (path.read_text().splitlines()[line - 1].strip(), text) in EQUIVALENT:
            return "equivalent"
        # a statement of several lines is covered under its first; some run only at import
        near = [lines[path][n] for n in range(line, line - 6, -1) if lines[path].get(n)]
        tests = near[0] if near else set().union(*lines[path].values())
        return judge(path, number, sorted(tests)[:300]) if tests else "not covered"

    counts: Counter = Counter()
    with ThreadPoolExecutor(asked.jobs) as pool:
        for (path, line, text, _), result in zip(drawn, pool.map(verdict, drawn), strict=True):
            counts[result] += 1
            if result != "killed":
                place = f"{path.relative_to(ROOT)}:{line}"
                print(f"{result} as number {counts.total()}: {place}  {text}", flush=True)
    told = counts.total() - counts["equivalent"]
    print(f"{len(places)} places; {dict(counts)}; killed {counts['killed'] / told:.1%}")


if __name__ == "__main__":
    main()

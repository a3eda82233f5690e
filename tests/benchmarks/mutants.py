"""Do the tests notice? Small changes are made to round, parts, methods and wire, one at a time,
and the unit tests that run the changed line must fail.

    pip install coverage pytest-cov
    python tests/benchmarks/mutants.py     # 200 mutants of seed 0, an hour on two cores
    python tests/benchmarks/mutants.py --count 50 --seed 1 --jobs 2 --out survivors.txt

Drawn evenly over all places where an operator, a comparison, a constant or a whole statement can
be changed; texts of errors, annotations and documentation do not count. Mutants that no test can
tell from the original are named in ``EQUIVALENT``, with the reason."""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ("round", "local", "method", "links", "servers", "optim", "context")
PLACES = (*(f"{name}.py" for name in CORE), "methods", "wire")
COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
MOST = 500  # tests that judge a mutant
# (file, its line, what was changed): why no test can see it
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "fedlearn/wire/bits.py",
        'return np.packbits(values.astype(bool, copy=False), bitorder="little").tobytes()',
        "False  ->  True",
    ): "a copy that nobody changes",
    (
        "fedlearn/wire/bits.py",
        "if width >= 8:",
        "width >= 8  ->  Gt",
    ): "both ways pack eight bits into one byte",
    (
        "fedlearn/wire/fixed.py",
        "return values.reshape(-1).view(np.uint8).data",
        "1  ->  2",
    ): "numpy takes every negative number of a shape for -1",
    (
        "fedlearn/wire/smartidx.py",
        "x[whole] = reader.signs(len(whole) * entries).reshape(-1, entries)",
        "1  ->  2",
    ): "the same",
    (
        "fedlearn/wire/smartidx.py",
        "number = np.full(len(count), -1)",
        "1  ->  2",
    ): "any number below zero says that a pattern is not shared",
    (
        "fedlearn/round.py",
        '"seconds": 0.0,',
        "0.0  ->  1.0",
    ): "only keeps the place in the row: the seconds of the round replace it",
    (
        "fedlearn/methods/fed_gkt.py",
        "filled = [known[:1] * 0 if z is None else z for z in z_s]",
        "1  ->  2",
    ): "padded to the longest anyway",
    (
        "fedlearn/context.py",
        "near = get_close_matches(name, known, n=1)",
        "1  ->  2",
    ): "only the nearest of them is used",
}


def files() -> list[Path]:
    found = []
    for place in PLACES:
        path = ROOT / "fedlearn" / place
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [p for p in found if p.name != "__init__.py"]


def children(node: ast.AST):
    """What of a node may be changed: no annotations, decorators, messages of errors."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        if isinstance(node, ast.Raise) or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def changes(tree: ast.Module):
    """(line, description, function that changes the tree in place) for every mutant."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        stack += children(node)
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARE:
            new = COMPARE[type(node.ops[0])]
            text = f"{ast.unparse(node)}  ->  {new.__name__}"
            yield line, text, lambda n=node, new=new: n.ops.__setitem__(0, new())
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            new = ARITHMETIC[type(node.op)]
            text = f"{ast.unparse(node)}  ->  {new.__name__}"
            yield line, text, lambda n=node, new=new: setattr(n, "op", new())
        elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
            new = ARITHMETIC[type(node.op)]
            text = f"{ast.unparse(node)}  ->  {new.__name__}"
            yield line, text, lambda n=node, new=new: setattr(n, "op", new())
        elif isinstance(node, ast.BoolOp):
            new = ast.Or if isinstance(node.op, ast.And) else ast.And
            text = f"{ast.unparse(node)}  ->  {new.__name__}"
            yield line, text, lambda n=node, new=new: setattr(n, "op", new())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            new = ast.UAdd if isinstance(node.op, ast.USub) else None
            text = f"{ast.unparse(node)}  ->  without it"
            yield line, text, lambda n=node, new=new: invert(n, new)
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            value = not node.value if type(node.value) is bool else node.value + 1
            text = f"{node.value}  ->  {value}"
            yield line, text, lambda n=node, value=value: setattr(n, "value", value)
        elif isinstance(node, ast.IfExp | ast.If):
            text = f"if {ast.unparse(node.test)}  ->  if not"
            yield line, text, lambda n=node: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
        for body in ("body", "orelse"):
            statements = getattr(node, body, None)
            if not isinstance(statements, list) or isinstance(node, ast.Module | ast.ClassDef):
                continue
            for i, s in enumerate(statements):
                call = isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)
                if call or isinstance(s, ast.AugAssign | ast.Raise | ast.Continue):
                    text = f"{ast.unparse(s).splitlines()[0][:70]}  ->  pass"
                    yield s.lineno, text, lambda b=statements, i=i: b.__setitem__(i, ast.Pass())


def invert(node: ast.UnaryOp, new: type | None) -> None:
    """-x -> +x; not x -> bool(x)."""
    node.op = new() if new else ast.Not()
    if not new:
        node.operand = ast.UnaryOp(ast.Not(), node.operand)


def places() -> list[tuple[Path, int, str, int]]:
    """(file, line, description, number of the change in its file)."""
    every = []
    for path in files():
        tree = ast.parse(path.read_text())
        every += [(path, line, text, i) for i, (line, text, _) in enumerate(changes(tree))]
    print(f"{len(every)} places in {len(files())} files")
    return every


def mutate(path: Path, number: int) -> str:
    tree = ast.parse(path.read_text())
    change = list(changes(tree))[number][2]
    change()
    return ast.unparse(ast.fix_missing_locations(tree))


def varied(tests: Iterable[str], times: dict[str, float]) -> list[str]:
    """The quickest test of every function first, then the second quickest of every function."""
    turn: Counter = Counter()
    order = []
    for test in sorted(tests, key=lambda t: times.get(t, 9.0)):
        function = test.split("[")[0]
        turn[function] += 1
        order.append((turn[function], times.get(test, 9.0), test))
    return [test for *_, test in sorted(order)][:MOST]


def covering(folder: Path, jobs: int) -> tuple[dict, dict]:
    """file -> line -> the tests that run it; and how long each test takes. One run of all unit
    tests, of which those that fail without a mutant count for nothing."""
    from xml.etree import ElementTree

    from coverage import CoverageData

    data, report = folder / "coverage", folder / "times.xml"
    if not report.exists():
        env = os.environ | {"COVERAGE_FILE": str(data), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "tests/unit", "-q", "-n", str(jobs)]
        command += ["--cov=fedlearn", "--cov-context=test", "--cov-report="]
        subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, env=env, check=False)
    times = {}
    for case in ElementTree.parse(report).iter("testcase"):
        where = case.get("classname").replace(".", "/") + ".py"
        if case.find("failure") is None and case.find("error") is None:
            times[f"{where}::{case.get('name')}"] = float(case.get("time"))
    found = CoverageData(str(data))
    found.read()
    lines: dict = {}
    for path in files():
        tests = {
            n: {c.split("|")[0] for c in contexts} & times.keys()
            for n, contexts in found.contexts_by_lineno(str(path)).items()
        }
        lines[str(path)] = {n: varied(its, times) for n, its in tests.items()}
    return lines, times


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--count", type=int, default=200)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--jobs", type=int, default=2)
    args.add_argument(
        "--tests", type=int, default=MOST, help="at most so many tests a mutant, the quickest first"
    )
    args.add_argument("--out", type=Path, help="write the survivors here")
    args.add_argument("--only", type=Path, help="judge only those that such a file names")
    args.add_argument(
        "--folder", type=Path, help="keep what was covered here, and use it if it is there"
    )
    args = args.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "covering.json"
    if not kept.exists():
        kept.write_text(json.dumps(covering(folder, args.jobs)))
    lines, times = json.loads(kept.read_text())

    def judge(mutant: tuple[Path, int, str, int]) -> tuple[str, tuple]:
        path, line, text, number = mutant
        tests = lines.get(str(path), {})
        # a statement of several lines is covered under its first
        near = [tests[str(n)] for n in range(line, max(0, line - 6), -1) if str(n) in tests]
        running = set(near[0]) if near else set()
        if not running:  # run when the file is imported: whatever uses the file
            running = {t for own in tests.values() for t in own}
        chosen = varied(running, times)[: args.tests]
        if not chosen:
            return "not covered", mutant
        with tempfile.TemporaryDirectory() as place:
            shutil.copytree(
                ROOT / "fedlearn", f"{place}/fedlearn", ignore=shutil.ignore_patterns("__pycache__")
            )
            for name in ("tests", "data", "book", "pyproject.toml", "README.md"):
                os.symlink(ROOT / name, f"{place}/{name}")
            Path(place, path.relative_to(ROOT)).write_text(mutate(path, number))
            env = os.environ | {
                "PYTHONPATH": place,
                "OMP_NUM_THREADS": "1",
                "MPLBACKEND": "Agg",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "--no-header",
                "-p",
                "no:randomly",
                "--timeout=120",
                *chosen,
            ]
            done = subprocess.run(command, cwd=place, env=env, capture_output=True, check=False)
        return "killed" if done.returncode in (1, 4) else "survived", mutant

    if args.only:  # wherever they are today
        lines_of = args.only.read_text().splitlines()
        named = {re.fullmatch(r"\S+ +(\S+):\d+  (.*)", x).groups() for x in lines_of}
        drawn = [m for m in places() if (str(m[0].relative_to(ROOT)), m[2]) in named]
    else:
        drawn = random.Random(args.seed).sample(places(), args.count)
    found: Counter = Counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        for verdict, (path, line, text, _) in pool.map(judge, drawn):
            name = str(path.relative_to(ROOT))
            source = path.read_text().splitlines()[line - 1].strip()
            if verdict != "killed" and (name, source, text) in EQUIVALENT:
                verdict = "equivalent"
            found[verdict] += 1
            if verdict != "killed":
                report = f"{verdict:<12} {name}:{line}  {text}"
                print(report, flush=True)
                if args.out:
                    with open(args.out, "a") as out:
                        out.write(report + "\n")
    counted = found.total() - found["equivalent"]
    print(
        dict(found), f"{found['killed'] / counted:.1%} of those that can be told apart were killed"
    )


if __name__ == "__main__":
    main()

"""Who may import whom, lazy imports counted; and that there is no circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import fedlearn

ROOT = Path(fedlearn.__file__).parent
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in ROOT.rglob("*.py")
}
FILES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}
SMALL = """
    core wire methods models tasks data
    rng settings errors history plot link costs checkpoint
""".split()
ELSEWHERE = {"engines", "seeing", "lab", "book"}
CORE = {"wire", "models", "rng", "settings", "errors", "history"}
CORE |= {"checkpoint", "extensions"}


def imported(name: str) -> set[str]:
    """The modules of the package that a module imports anywhere, but for type checkers."""
    path = FILES[name]
    names = set()
    package = ["", *name.split(".")][: None if path.name == "__init__.py" else -1]

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [
                *package[: len(package) - node.level + 1],
                *(node.module or "").split("."),
            ]
            base = ".".join(filter(None, base))
            names.update(
                {f"{base}.{alias.name}".strip(".") for alias in node.names} | {base}
            )
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return (names & FILES.keys()) - {name, "__init__"}


GRAPH = {name: imported(name) for name in FILES}


def test_no_circle_of_imports():
    circles = {n: {m for m in GRAPH[n] if not n.startswith(f"{m}.")} for n in GRAPH}
    assert (
        set(TopologicalSorter(circles).static_order()) == FILES.keys()
    )  # CycleError names one


def test_the_small_package_imports_no_engine_and_no_page():
    for name, modules in GRAPH.items():
        rooms = {other.split(".")[0] for other in modules}
        if name.split(".")[0] in SMALL:
            assert not rooms & ELSEWHERE, name
        if name.split(".")[0] == "core":
            assert rooms <= CORE | {"core"}, name


def test_an_engine_imports_the_small_package_alone():
    """``core`` loads engines by name, so their imports are counted as those of core."""
    reached = set()
    names = [name for name in FILES if name.startswith("engines.")]
    while names:
        name = names.pop()
        reached.add(name)
        names += GRAPH[name] - reached
    assert {"engines.flower", "engines.stacked"} <= reached
    assert not {name.split(".")[0] for name in reached} & {"seeing", "lab", "book"}

"""No circle of imports: of any two modules at most one knows the other, lazy imports counted."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import fedlearn

ROOT = Path(fedlearn.__file__).parent
FILES = {
    ".".join(("fedlearn", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in ROOT.rglob("*.py")
}


def imported(name: str) -> set[str]:
    """The modules of the package that a module imports anywhere, but for type checkers."""
    path, found = FILES[name], set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found.update(inner & FILES.keys() or {base})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return (found & FILES.keys()) - {name}


def test_no_circle_of_imports():
    order = TopologicalSorter({name: imported(name) for name in FILES}).static_order()
    assert set(order) == FILES.keys()  # CycleError names a circle

"""Run a chapter's code as a script, without Jupyter: ``chapter.py FILE.ipynb NAME=VALUE ...``.

The parameters are set behind the cell that is tagged so, as papermill does. Where there is no
IPython, ``display`` prints; where there are no ipywidgets, an explorer draws its first picture.
Exit status 3: a package is missing, and the last line names it.
"""

import ast
import importlib.util
import json
import linecache
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
MISSING = 3


def stand_ins():
    """Modules in place of those that only a page needs -> their names."""
    made = []
    if not importlib.util.find_spec("IPython"):
        shown = SimpleNamespace(display=print, HTML=str, Markdown=str, SVG=str)
        package = {"display": shown, "get_ipython": lambda: None, "version_info": (9, 0)}
        sys.modules["IPython"] = SimpleNamespace(**package)  # matplotlib asks for these
        sys.modules["IPython.display"] = shown
        made.append("IPython")
    if not importlib.util.find_spec("ipywidgets"):

        def explore(draw, live=False, start=None, **values):
            return draw(**{name: next(iter(v)) for name, v in values.items()} | dict(start or {}))

        sys.modules["fedlearn.book.widgets"] = SimpleNamespace(explore=explore)
        made.append("ipywidgets")
    return made


def run(path, parameters):
    """Execute the code cells one after the other in a module of their own."""
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    module = sys.modules["chapter"] = ModuleType("chapter")  # dataclasses look it up
    os.chdir(Path(path).parent)
    for i, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        name, source = f"<cell {i}>", "".join(cell["source"])
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        code = ast.parse(source, name)
        last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, name, "exec"), module.__dict__)
        if last:
            value = eval(compile(ast.Expression(last.value), name, "eval"), module.__dict__)
            print(value if value is not None else "", flush=True)
        if "parameters" in cell["metadata"].get("tags", []):
            known = {k: v for k, v in parameters.items() if hasattr(module, k)}
            module.__dict__.update(known)
            print("parameters:", known)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


def main(path, *words):
    sys.path.insert(0, str(ROOT))
    pairs = dict(word.split("=", 1) for word in words)
    parameters = {k: int(v) if v.lstrip("-").isdigit() else v for k, v in pairs.items()}
    for name in stand_ins():
        print(f"{name} is not installed: a stand-in shows less")
    warnings.filterwarnings("ignore", message=".*non-interactive.*")
    try:
        run(Path(path).resolve(), parameters)
    except ModuleNotFoundError as error:
        if (error.name or "fedlearn").split(".")[0] == "fedlearn":
            raise
        print(f"left out: {error.name} is not installed")
        return MISSING


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

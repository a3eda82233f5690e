"""The class edition: the chapters with every solution taken out at the source, so that no copy of
it is published."""

import json
import re
from pathlib import Path
from typing import Any

from ..files import write_text

SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION[ \t]*$", re.MULTILINE | re.DOTALL
)
FENCE = re.compile(
    r"^(`{3,}|:{3,})\{solution(?:-start|-end)?\}.*?^\1[ \t]*$\n?", re.MULTILINE | re.DOTALL
)
STUB = r"\1# YOUR CODE HERE\n\1raise NotImplementedError"


def strip(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook (as parsed JSON) without solutions.

    Marked lines become a stub; solution boxes and their text go.
    """
    cells, inside = [], False
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            inside = "{solution-start}" in source or (inside and "{solution-end}" not in source)
            if "{solution" in source:
                source = FENCE.sub("", source).strip()
                if not source:
                    continue
            elif inside:
                continue  # text that explains the solution
        else:
            source = SOLUTION.sub(STUB, source)
        cells.append({**cell, "source": source.splitlines(keepends=True)})
    return {**notebook, "cells": cells}


def make(folder: str | Path, out: str | Path) -> list[Path]:
    """Write the stripped chapters of ``folder`` under ``out``; returns their paths."""
    folder, written = Path(folder), []
    chapters = sorted(p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    if not chapters:
        raise ValueError(f"There are no notebooks in {folder}.")
    for path in chapters:
        text = (
            json.dumps(
                strip(json.loads(path.read_text(encoding="utf-8"))), indent=1, ensure_ascii=False
            )
            + "\n"
        )
        target = Path(out) / path.relative_to(folder)
        write_text(target, text)
        written.append(target)
    return written

"""The class edition: the chapters with every solution taken out at the source, so that no copy of
it is published."""

import json
import re
from pathlib import Path
from typing import Any

from ..files import write_text

SHOWS = re.compile(r"^(?:fl|fedlearn)\.solution\(.*\)[ \t]*\n?", re.MULTILINE)


def strip(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook (as parsed JSON) without the cells that show a solution with ``fl.solution``.

    The chapters hold no other: their answer cells are empty.
    """
    cells = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and SHOWS.search(source):
            source = SHOWS.sub("", source).rstrip("\n")
            if not source:
                continue
        cells.append({**cell, "source": source.splitlines(keepends=True)})
    return {**notebook, "cells": cells}


def make(folder: str | Path, out: str | Path, force: bool = False) -> list[Path]:
    """Write the stripped chapters of ``folder`` under ``out``; returns their paths.

    Nothing is written over: ``out`` may not lie in ``folder`` or around it, and files that are
    there already are refused unless ``force``.
    """
    folder, out = Path(folder), Path(out)
    one, other = folder.resolve(), out.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise ValueError(f"The folders {folder} and {out} overlap; name one outside of the other.")
    chapters = sorted(p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    if not chapters:
        raise ValueError(f"There are no notebooks in {folder}.")
    targets = [out / path.relative_to(folder) for path in chapters]
    there = [str(path) for path in targets if path.exists()]
    if there and not force:
        raise ValueError(f"{there[0]} is there already; with --force it is written anew.")
    for path, target in zip(chapters, targets, strict=True):
        notebook = strip(json.loads(path.read_text(encoding="utf-8")))
        write_text(target, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return targets

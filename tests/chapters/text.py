"""A chapter as one text file, for writing.

    python tests/chapters/text.py to-text book/papers/rpn.ipynb rpn.txt
    python tests/chapters/text.py to-book rpn.txt book/papers/rpn.ipynb

A line "=== md" or "=== code TAG ..." begins a cell. Tags: parameters | fold (folded on the site and
in JupyterLab) | gone (not shown at all) | answer:EXERCISE | check:EXERCISE | solution:EXERCISE.
"""

import pathlib
import re
import sys

import nbformat

SHORT = {"hide-input": "fold", "remove-input": "gone"}


def grading(exercise, answer, stars):
    """nbgrader's metadata of an answer cell, or of a check, whose points are its stars."""
    how = {"grade": not answer, "locked": not answer, "solution": answer, "task": False}
    more = {} if answer else {"points": stars}
    name = exercise if answer else f"{exercise}-check"
    return {"grade_id": name, "schema_version": 3} | how | more


def to_book(text, name):
    cells, stars = [], 1
    for part in ("\n" + text).split("\n=== ")[1:]:
        head, _, body = part.partition("\n")
        kind, *tags = head.split()
        key, body = f"{name}-{len(cells):02d}", body.strip("\n")
        if kind == "md":
            stars = len(re.findall("★+", body)[-1]) if "★" in body else stars
            cells.append(nbformat.v4.new_markdown_cell(body, id=key))
            continue
        meta = {"tags": []} if tags else {}
        for tag in tags:
            what, _, exercise = tag.partition(":")
            known = {short: tag for tag, short in SHORT.items()} | dict.fromkeys(
                ("answer", "check", "solution"), "exercise"
            )
            meta["tags"].append(known.get(what, what))
            if what in ("fold", "gone"):
                meta["jupyter"] = {"source_hidden": True}
            if what in ("answer", "check"):
                meta["nbgrader"] = grading(exercise, what == "answer", stars)
        cells.append(nbformat.v4.new_code_cell(body, id=key, metadata=meta))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    meta = {
        "fedlearn": {"edition": 2},
        "kernelspec": kernel,
        "language_info": {"name": "python"},
    }
    book = nbformat.v4.new_notebook(cells=cells, metadata=meta)
    book.nbformat_minor = 5
    return book


def to_text(book):
    out = []
    for cell in book.cells:
        if cell.cell_type == "markdown":
            out.append("=== md\n" + cell.source)
            continue
        tags = [SHORT.get(t, t) for t in cell.metadata.get("tags", [])]
        if "exercise" in tags:
            how = cell.metadata.get("nbgrader", {"grade_id": "x"})
            kind = {None: "solution", True: "answer", False: "check"}[
                how.get("solution")
            ]
            tags[tags.index("exercise")] = (
                f"{kind}:{how['grade_id'].removesuffix('-check')}"
            )
        out.append("=== " + " ".join(["code", *tags]) + "\n" + cell.source)
    return "\n\n".join(out) + "\n"


if __name__ == "__main__":
    what, source, target = sys.argv[1:]
    if what == "to-book":
        made = to_book(pathlib.Path(source).read_text(), pathlib.Path(target).stem)
        nbformat.validate(made)
        nbformat.write(made, target)
    else:
        pathlib.Path(target).write_text(to_text(nbformat.read(source, 4)))

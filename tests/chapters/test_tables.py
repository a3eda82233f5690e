"""The tables that set a paper's accuracies beside runs of this book: the runs saw a part of the
paper's data, so each side says what was run, and neither is subtracted from the other."""

from pathlib import Path

import nbformat
import pytest

from fedlearn.book import show

PAPERS = Path(__file__).resolve().parents[2] / "book" / "papers"


@pytest.fixture
def table(monkeypatch):
    """table("fed_kgf", "5.2"): the rows and units of a table, from the chapter's first cells."""
    asked = {}
    monkeypatch.setattr(
        show, "table", lambda number, rows, caption, units: asked.update({number: (rows, units)})
    )

    def of(chapter, number):
        made = {"__name__": "__main__"}
        for cell in nbformat.read(PAPERS / f"{chapter}.ipynb", 4).cells:
            if number not in asked and cell.cell_type == "code":
                exec(cell.source, made)
        return asked[number]

    return of


def test_what_was_run_stands_beside_and_nothing_is_subtracted(table):
    rows, _ = table("fed_kgf", "5.2")
    assert all(list(row)[:3] == ["", "images", "rounds"] for row in rows)
    ran = {row[""]: (row["images"], row["rounds"]) for row in rows}
    assert ran["paper, CIFAR-10"] == (50_000, 400) and ran["CIFAR-10, small, IID"] == (6_000, 40)
    rows, units = table("fed_gkt", "7.2")
    assert "difference" not in rows[0]
    assert units["paper"] == "%, 50,000 images, 200 rounds"
    assert units["small"] == "%, 5,000 images, 20 rounds"
    rows, _ = table("fed_mmd_fusion", "6.1")
    assert "difference" not in rows[0]

"""Papermill finds every chapter's parameters and sets them; what fails in a chapter is reported.

Whole chapters are executed with other parameters by nbval (``other.py``), and with their own when
the book is built (``book/_ext/fl_fresh.py``; ``tests/browser/test_executed.py`` looks at the
outcome)."""

import nbformat
import other
import papermill as pm
import pytest


@pytest.mark.parametrize("path", other.chapters(), ids=lambda p: p.stem)
def test_other_parameters_come_behind_its_own(path, tmp_path):
    assert {"scale", "seed"} <= set(other.parameters(path))
    cells = nbformat.read(other.copy(path, tmp_path), 4).cells
    [at] = [i for i, c in enumerate(cells) if "injected-parameters" in c.metadata.get("tags", [])]
    assert "parameters" in cells[at - 1].metadata.tags
    own, injected = {}, {}
    exec(cells[at - 1].source, own)
    exec(cells[at].source, injected)
    for name, value in other.parameters(path).items():
        assert name in own and injected[name] == value


def test_a_failing_cell_is_reported(tmp_path):
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    notebook.metadata.kernelspec.language = "python"
    notebook.cells = [nbformat.v4.new_code_cell("1 / 0")]
    nbformat.write(notebook, tmp_path / "bad.ipynb")
    with pytest.raises(pm.PapermillExecutionError, match="ZeroDivisionError"):
        pm.execute_notebook(
            str(tmp_path / "bad.ipynb"), str(tmp_path / "out.ipynb"), progress_bar=False
        )

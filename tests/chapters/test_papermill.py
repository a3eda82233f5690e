"""Every chapter runs from a clean kernel with parameters that are not its own."""

import os
from pathlib import Path

import nbformat
import papermill as pm
import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = sorted(p for p in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
INJECTED = {"scale": "quick", "clients": 3, "seed": 1, "device": "cpu"}
os.environ.pop("MPLBACKEND", None)  # the kernel then chooses the inline backend


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.relative_to(BOOK).as_posix())
def test_runs_with_other_parameters(path, tmp_path):
    # papermill only logs parameters that a notebook does not have: choose those that it has
    known = pm.inspect_notebook(str(path))
    parameters = {name: value for name, value in INJECTED.items() if name in known}
    assert {"scale", "seed"} <= set(parameters)
    done = tmp_path / path.name
    pm.execute_notebook(
        str(path),
        str(done),
        parameters=parameters,
        cwd=str(path.parent),
        kernel_name="python3",
        progress_bar=False,
        start_timeout=3600,
        execution_timeout=3600,
    )
    code = [cell for cell in nbformat.read(done, 4).cells if cell.cell_type == "code"]
    assert [cell for cell in code if "injected-parameters" in cell.metadata.get("tags", [])]
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]


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

"""The chapters as papermill executed them when the book was built."""

import pytest
from conftest import chapters, executed


@pytest.mark.parametrize("chapter", chapters())
def test_every_cell_ran_with_the_chapters_own_parameters(chapter):
    notebook = executed(chapter)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.metadata.papermill.parameters == {}
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]

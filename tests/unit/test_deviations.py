"""What the methods' files say of their deviations: whatever is quoted as measured is the label of
a stored run; what is not measured says why."""

import re
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn.lab import recipes, results

DOCS = {
    path.stem: path.read_text("utf-8")
    for path in Path(fl.methods.__file__).parent.glob("*.py")
}
NOTES = re.compile(r"Deviations from.*?(?=\"\"\")", re.S)
STORED = results.packed("deviations_digits")


def test_the_runs_of_the_recipe_are_stored():
    runs = recipes.runs("deviations")
    assert {run.key[1] for run in runs} <= {line["hash"] for line in STORED}


@pytest.mark.parametrize("name", sorted(DOCS))
def test_what_is_not_measured_says_why(name):
    """And what is quoted is the end of a row's label."""
    experiments = [line["experiment"] for line in STORED]
    labels = {e["label"] for e in experiments if e.get("method", "fedavg") == name}
    text = " ".join(" ".join(NOTES.findall(DOCS[name])).split())
    assert text.count("not measured") == len(re.findall(r"not measured: \w", text))
    for quoted in re.findall(r'"([^"]+)"', text):
        assert any(label.endswith(f", {quoted}") for label in labels), quoted

"""What the methods' files say of their deviations: whatever is quoted as measured is a row of the
recipe ``deviations``, whose runs are stored; what is not measured says why."""

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
RUNS = recipes.runs("deviations")


def test_its_runs_are_stored():
    stored = {line["hash"] for line in results.packed("deviations_digits")}
    assert {run.key[1] for run in RUNS} <= stored


@pytest.mark.parametrize("name", sorted(DOCS))
def test_what_is_not_measured_says_why(name):
    """And what is quoted is the end of a row's label."""
    labels = {run.label for run in RUNS if run.experiment.method == name}
    text = " ".join(" ".join(NOTES.findall(DOCS[name])).split())
    assert text.count("not measured") == len(re.findall(r"not measured: \w", text))
    for quoted in re.findall(r'"([^"]+)"', text):
        assert any(label.endswith(f", {quoted}") for label in labels), quoted

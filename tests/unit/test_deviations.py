"""What the methods' files say of their deviations is what the stored runs of the recipe
``deviations`` say: a row there is "label   mean ± deviation, IID   the same, with a main class"."""

import re
from collections import Counter
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn import recipes, results

FILES = sorted(Path(fl.methods.__file__).parent.glob("*.py"))
DOCS = {path.stem: path.read_text(encoding="utf-8") for path in FILES}
ROW = re.compile(r"^ {8}(\S.*?)  +(\S+ ± \S+)  +(\S+ ± \S+)$", re.M)
NOTES = re.compile(r"Deviations from.*?(?=Accuracy IID|\"\"\")", re.S)


@pytest.fixture(scope="module")
def measured():
    """By label the accuracies IID and with a main class, as a method's file has them."""
    result, stored = {}, {line["hash"]: line for line in results.packed("deviations_digits")}
    for run in recipes.runs("deviations", seeds=(0, 1, 2)):  # those of the docstrings
        assert run.key[1] in stored, f"{run.name} is not stored"
        history = fl.History.from_dict(stored[run.key[1]])
        splits = result.setdefault(run.label, {"iid": [], "main_class:0.8": []})
        splits[run.experiment.partition].append(history.final["accuracy"])
    assert {len(v) for splits in result.values() for v in splits.values()} == {3}
    return {label: tuple(map(fl.results.spread, of.values())) for label, of in result.items()}


def test_accuracies_are_those_of_the_stored_runs(measured):
    method = {r.label: r.experiment.method for r in recipes.runs("deviations")}
    for name, text in DOCS.items():
        rows = {label: accuracies for label, *accuracies in ROW.findall(text)}
        assert rows == {label: list(measured[label]) for label in rows}
        assert text.count("±") == 2 * len(rows) and "+-" not in text
        assert {method[label] for label in rows} <= {name}
    assert Counter(r[0] for doc in DOCS.values() for r in ROW.findall(doc)) == Counter([*measured])


@pytest.mark.parametrize("name", DOCS)
def test_what_is_not_measured_says_why(name):
    """And what is quoted as measured is the end of a row's label."""
    labels = [label for label, *_ in ROW.findall(DOCS[name])]
    text = " ".join(" ".join(NOTES.findall(DOCS[name])).split())
    assert text.count("not measured") == len(re.findall(r"not measured: \w", text))
    for quoted in re.findall(r'"([^"]+)"', text):
        assert any(label.endswith(f", {quoted}") for label in labels), quoted

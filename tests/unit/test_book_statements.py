"""What of a paper holds here: its statements, asked of stored runs."""

import pytest

import fedlearn as fl
from fedlearn.book import claims
from fedlearn.book.claims import leads, verdict


def run(label, accuracy, seed=0, dataset="digits", partition="Iid()"):
    task = {"dataset": dataset, "partition": partition, "seed": seed, "clients": 1}
    sent = {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "clients": [0]}
    rows = [{"accuracy": accuracy, "loss": 1.0, "round": 1, **sent}]
    return fl.History("m", {"task": task, "label": label}, rows)


@pytest.mark.parametrize(
    "lead, wanted, said",
    [
        ([1.0, 2.0, 1.5], "ahead", "holds"),
        ([0.1, 5.0, 0.1], "ahead", "cannot be told"),  # in front with each seed, but wildly
        ([1.0, -0.1], "ahead", "cannot be told"),
        ([0.0, -0.1], "ahead", "does not hold"),
        ([1.0, -1.0], "level", "holds"),
        ([1.1, -1.0], "level", "cannot be told"),
        ([2.0, 2.5], "level", "does not hold"),
        ([-2.0, -2.5], "level", "does not hold"),
        ([9.0, -1.0], "no lower", "holds"),
        ([9.0, -1.1], "no lower", "cannot be told"),
        ([-2.0, -2.5], "no lower", "does not hold"),
        ([50.0], "ahead", "one seed"),
    ],
)
def test_verdicts(lead, wanted, said):
    assert verdict(lead, wanted) == said


def test_leads_pair_the_seeds_of_one_data_set_and_split():
    runs = [run("A", 0.9, 1), run("A", 0.8), run("b", 0.7), run("B", 0.75, 1), run("B", 0.1, 2)]
    runs += [run("A", 0.5, partition="Dirichlet(alpha=0.5, min_samples=1)"), run("C", 0.2)]
    runs += [run("A", 0.4, dataset="mnist"), run("B", 0.3, dataset="mnist")]
    found = leads(runs, "A", "B")
    assert found.keys() == {("digits", "iid"), ("mnist", "iid")}
    assert found["digits", "iid"] == pytest.approx([10, 15])  # in the order of the seeds
    assert leads(runs, "A", "nobody") == {}


def test_the_table_says_what_holds_and_what_was_not_run(monkeypatch):
    both = [run("RPN", 0.9), run("FedAvg", 0.905), run("RPN", 0.8, 1), run("FedAvg", 0.8, 1)]
    stored = {"rpn_small": both}
    monkeypatch.setattr(claims.results, "load", lambda name: stored.get(name, []))
    page = fl.book.holds("4.8", "rpn")._repr_html_().replace("\N{NO-BREAK SPACE}", " ")
    assert "holds (-0.2 ± 0.4; 2 seeds)" in page and "digits, small" in page
    assert "1 hold, 0 do not and 0 cannot be told" in page
    assert page.count("not yet run") == 3 and "fedlearn reproduce rpn --scale full" in page
    stored.clear()
    assert fl.book.holds("4.8", "rpn")._repr_html_().count("not yet run") == 4


@pytest.mark.parametrize("name", ["rpn", "fed_kgf", "fed_gkt", "fed_repopt"])
def test_every_statement_is_about_rows_of_the_recipes(name):
    from fedlearn import recipes

    known = {
        run.label.lower()
        for recipe in recipes.RECIPES
        for scale in recipes.SCALES
        if scale in recipes.RECIPES[recipe]
        for run in recipes.runs(recipe, scale)
        if run.folder.startswith(name)
    }
    for said in claims.chapter_file(name)["holds"]["statements"]:
        assert {said["one"].lower(), said["other"].lower()} <= known
        assert verdict([3.0, 3.0], said["wanted"]) in ("holds", "does not hold")


@pytest.mark.parametrize("wanted", ["level", "no lower"])
def test_a_point_is_a_point_in_floats_too(wanted):
    lead = [100 * 0.0045 - 100 * 0.0145, 0.5]  # 20 of 2,000 images
    assert lead[0] < -1 and verdict(lead, wanted) == "holds"


def test_only_the_mean_of_a_difference_has_a_sign():
    assert fl.report.spread([1.0, 2.0], "+.1f") == "+1.5 ± 0.7"
    assert fl.report.spread([-1.0], "+.1f") == "-1.0"

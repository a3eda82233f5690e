"""What is measured beside accuracy: right by hand, and the same on every engine."""

import json
import math

import numpy as np
import pytest
import torch

import fedlearn as fl
from fedlearn.tasks import metrics as M

NAMES = ("per_class", "per_client", "client_spread", "worst_client")


def few(**more):
    how = {"partition": "dirichlet:0.3", "train": 240, "test": 100, "metrics": NAMES}
    return fl.tasks.classification("digits", 4, **how | more)


def net_of(task, history):
    net = fl.initial_network(fl.methods.fedavg(), task)
    net.load_state_dict(history.state, strict=False)
    return net.eval()


def test_every_metric_is_what_its_name_says():
    task = few()
    history = fl.run("fedavg", task, 3)
    x, y = task.test
    with torch.no_grad():
        right = (net_of(task, history)(task.inputs(x)).argmax(1) == y).double()
    row = history.final
    by_class = [float(right[y == c].mean()) for c in range(10)]
    assert row["per_class"] == pytest.approx(by_class)
    assert row["accuracy"] == pytest.approx(float(right.mean()))
    expected = []
    for own in task.owned:  # each client's classes in its own proportions
        labels = task.train[1][own]
        expected.append(float(np.mean([by_class[c] for c in labels.tolist()])))
    assert row["per_client"] == pytest.approx(expected)
    assert row["worst_client"] == min(row["per_client"])
    assert row["client_spread"] == pytest.approx(float(np.std(expected)))
    assert len(set(row["per_client"])) > 1


def test_permuted_clients_are_measured_with_their_own_eyes():
    task = few(partition="permuted")
    history = fl.run("fedavg", task, 2)
    alone = [task.evaluate(net_of(task, history), client=k)["accuracy"] for k in range(4)]
    held = [torch.bincount(task.train[1][own], minlength=10) for own in task.owned]
    seen = {}
    for k in range(4):
        task.evaluate(net_of(task, history), client=k, seen=seen)
        assert float(seen[k].diag().sum() / seen[k].sum()) == alone[k]
    for k, value in enumerate(history.final["per_client"]):
        recall = seen[k].diag() / seen[k].sum(1)
        assert value == pytest.approx(float((recall * held[k]).sum() / held[k].sum()))


@pytest.mark.parametrize("method", ["fedavg", "fed_gkt", "split_learning", "fedpm"])
def test_accuracy_and_bytes_are_those_of_a_run_without_metrics(method):
    plain, more = (fl.run(method, few(metrics=m), 2) for m in ((), NAMES))
    for a, b in zip(plain.rows, more.rows, strict=True):
        assert {k: v for k, v in b.items() if k not in NAMES and k != "seconds"} == {
            k: v for k, v in a.items() if k != "seconds"
        }
        assert set(NAMES) <= set(b)
    assert "metrics" not in plain.meta["task"] and more.meta["task"]["metrics"] == list(NAMES)


def test_in_fed_gkt_each_client_has_its_own_network():
    history = fl.run("fed_gkt", few(), 2)
    # every client's test set is the same, so the mean of the matrices is the mean accuracy
    y = few().test[1]
    share = torch.bincount(y, minlength=10) / len(y)
    mean = float((share * torch.tensor(history.final["per_class"])).sum())
    assert mean == pytest.approx(history.final["accuracy"], abs=1e-6)


def test_stacked_clients_give_the_same():
    one, together = (fl.run("fedavg", few(), 3, engine=e) for e in ("sequential", "stacked"))
    for name in NAMES:
        np.testing.assert_allclose(getattr(one, name), getattr(together, name), atol=0.021)
    assert one.rows[0]["per_class"] == together.rows[0]["per_class"]


def test_rounds_without_evaluation_and_a_way_through_json(tmp_path):
    history = fl.run("fedavg", few(), 3, evaluate_every=2)
    assert "per_class" not in history.rows[0]
    assert history.per_class.shape == (3, 10) and np.isnan(history.per_class[0]).all()
    assert np.isnan(history.worst_client[0]) and history.worst_client[1:].min() >= 0
    assert fl.History.from_json(history.to_json()) == history
    lines = fl.plot.compare(history, what="worst_client").lines
    assert lines[0].get_ydata().tolist() == history.worst_client[1:].tolist()


def test_a_run_that_goes_on_has_the_same_columns(tmp_path):
    whole = fl.run("fedavg", few(), 3)
    fl.run("fedavg", few(), 1, checkpoint=tmp_path / "c")
    assert fl.run("fedavg", few(), 3, checkpoint=tmp_path / "c") == whole
    with pytest.raises(ValueError, match="task differ"):
        fl.run("fedavg", few(metrics=()), 4, checkpoint=tmp_path / "c")


def test_a_metric_of_ones_own(tmp_path, monkeypatch, capsys):
    def balanced(confusion, clients):
        assert len(clients) == 4 and clients[0][1].sum() > 0
        return (confusion.diag() / confusion.sum(1)).mean()

    history = fl.run("fedavg", few(metrics=[balanced, "per_class"]), 1)
    assert history.balanced[0] == pytest.approx(history.per_class[0].mean())
    (tmp_path / "mine.py").write_text("def seen(confusion, clients):\n    return confusion.sum()\n")
    monkeypatch.chdir(tmp_path)
    words = ["run", "fedavg", "--metric", "mine.py:seen", "--rounds", "1", "--test", "50"]
    assert not fl.cli.main([*words, "--out", "-"])
    assert json.loads(capsys.readouterr().out)["rows"][0]["seen"] == 50.0


def test_what_no_number_is_and_what_is_not_there():
    none, held = torch.zeros(2, 2), torch.tensor([3, 1])
    some = torch.tensor([[3.0, 1.0], [0.0, 0.0]])  # the test set has no class 1
    found = {f.__name__: f for f in M.METRICS.values()}
    row = M.measured(found, {None: some}, [held, torch.tensor([0, 2])])
    assert row["per_class"] == [0.75, None] and row["per_client"] == [0.75, None]
    assert row["worst_client"] == 0.75 and row["client_spread"] == 0.0
    assert M.measured(found, {}, [held])["per_class"] is None
    row = M.measured(found, {1: some}, [held, held])  # client 0 was not seen
    assert row["per_client"] == [None, 0.75]
    assert M.measured(found, {None: none}, [held])["worst_client"] is None
    for wrong in ("much", True, {"a": 1}):
        with pytest.raises(ValueError, match="not a number or several"):
            M.measured({"mine": lambda c, k, wrong=wrong: wrong}, {None: some}, [held])
    assert M.measured({"mine": lambda c, k: math.inf}, {None: some}, [held]) == {"mine": None}


def test_names_of_metrics_are_their_own():
    def loss(confusion, clients):
        return 0.0

    for wrong in ([loss], ["per_class", "per_class"], ["f1"]):
        with pytest.raises(ValueError, match="name of its own|no metric 'f1'"):
            few(metrics=wrong)
    assert list(few(metrics="per_class").metrics) == ["per_class"]

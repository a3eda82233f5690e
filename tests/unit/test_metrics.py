"""What is measured beside accuracy: right by hand, and the same on every engine."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import fedlearn as fl
from fedlearn.tasks import metrics as M

NAMES = ("per_class", "per_class_mix", "class_mix_spread", "worst_class_mix")
OWNED = ("per_client", "client_spread", "worst_client")


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
    expected = []
    for own in task.owned:  # each client's classes in its own proportions
        labels = task.train[1][own]
        expected.append(float(np.mean([by_class[c] for c in labels.tolist()])))
    assert row["per_class_mix"] == pytest.approx(expected) and len(set(expected)) > 1
    assert row["worst_class_mix"] == min(row["per_class_mix"])
    assert row["class_mix_spread"] == pytest.approx(float(np.std(expected)))


@pytest.mark.parametrize(
    "method", ["fedavg", "split_learning", pytest.param("fed_gkt", marks=pytest.mark.slow)]
)
def test_the_rest_of_a_run_is_as_without_metrics(method):
    plain, more = (fl.run(method, few(metrics=m), 2) for m in ((), NAMES))
    for a, b in zip(plain.rows, more.rows, strict=True):
        both = ({k: v for k, v in row.items() if k not in (*NAMES, "seconds")} for row in (a, b))
        assert next(both) == next(both) and set(NAMES) <= set(b)
    assert "metrics" not in plain.meta["task"] and more.meta["task"]["metrics"] == list(NAMES)


def test_columns_of_engines_checkpoints_and_json(tmp_path):
    whole, stacked = (fl.run("fedavg", few(), 3, engine=e) for e in ("sequential", "stacked"))
    for name in NAMES:
        np.testing.assert_allclose(getattr(whole, name), getattr(stacked, name), atol=0.021)
    fl.run("fedavg", few(), 1, engine="sequential", checkpoint=tmp_path / "c")
    again = fl.run("fedavg", few(), 3, engine="sequential", checkpoint=tmp_path / "c")
    assert again == whole
    with pytest.raises(ValueError, match="task differ"):
        fl.run("fedavg", few(metrics=()), 4, checkpoint=tmp_path / "c")
    seldom = fl.run("fedavg", few(), 3, evaluate_every=2)
    assert "per_class" not in seldom.rows[0] and seldom.per_class.shape == (3, 10)
    assert np.isnan(seldom.per_class[0]).all() and np.isnan(seldom.worst_class_mix[0])
    assert fl.History.from_json(seldom.to_json()) == seldom


def test_a_metric_of_ones_own(tmp_path):
    def balanced(seen):
        assert len(seen.held) == 4 and seen.owners is None
        assert float(seen.confusion.sum()) == len(seen.labels) == len(seen.of(0)) == 100
        return (seen.confusion.diag() / seen.confusion.sum(1)).mean()

    history = fl.run("fedavg", few(metrics=[balanced, "per_class"]), 1)
    assert history.balanced[0] == pytest.approx(history.per_class[0].mean())
    (tmp_path / "mine.py").write_text("def total(seen):\n    return seen.confusion.sum()\n")
    task = few(metrics=f"{tmp_path}/mine.py:total")
    assert task.evaluate(task.network())["total"] == 100.0


def test_what_no_number_is_and_what_is_not_there():
    predicted, labels = torch.tensor([0, 0, 0, 1]), torch.zeros(4, dtype=torch.int64)
    held = torch.tensor([[3, 1], [0, 2]])  # the test set has no class 1
    named = {name: M.METRICS[name] for name in NAMES}

    def row(predictions, held=held, metrics=named, owners=None):
        return M.measured(metrics, M.Seen(predictions, labels, owners, held))

    found = row({None: predicted})
    assert found["per_class"] == [0.75, None] and found["per_class_mix"] == [0.75, None]
    assert found["worst_class_mix"] == 0.75 and found["class_mix_spread"] == 0.0
    assert row({})["per_class"] is None
    found = row({1: predicted}, held[[0, 0]])  # client 0 was not seen
    assert found["per_class_mix"] == [None, 0.75]
    assert row({None: predicted}, held[1:])["worst_class_mix"] is None
    for wrong in ("much", True, {"a": 1}):
        with pytest.raises(ValueError, match="number"):
            row({None: predicted}, metrics={"mine": lambda seen, wrong=wrong: wrong})
    assert row({None: predicted}, metrics={"mine": lambda seen: math.inf}) == {"mine": None}

    # client 1 has no test sample, one is nobody's; None, and no division by zero
    named = {name: M.METRICS[name] for name in OWNED}
    held, owners = held[[0, 0, 0]], torch.tensor([2, -1, 0, 0])
    found = row({None: predicted}, held, named, owners)
    assert found == {"per_client": [0.5, None, 1.0], "client_spread": 0.25, "worst_client": 0.5}
    found = row({2: 1 - predicted}, held, named, owners)  # client 0 was not seen
    assert found == {"per_client": [None, None, 0.0], "client_spread": 0.0, "worst_client": 0.0}
    found = row({None: predicted}, held, named, torch.full((4,), -1))
    assert found == dict(zip(OWNED, ([None] * 3, None, None), strict=True))
    with pytest.raises(ValueError, match="no owners"):
        row({None: predicted}, held, named)


def hospitals(n=200):
    """Three hospitals' samples and labels; the third's labels are the wrong way round."""
    draw = np.random.default_rng(0)
    ill, whose = draw.integers(0, 2, 3 * n), np.arange(3 * n) // n
    x = draw.normal(size=(3 * n, 8)) + 2 * ill[:, None] * (np.arange(8) < 4)
    return x.astype(np.float32), np.where(whose == 2, 1 - ill, ill), whose


@pytest.mark.parametrize("way", ["lists", "column", "users", "test"])
def test_per_client_is_the_accuracy_on_the_clients_own_test_samples(way):
    x, y, whose = hospitals()
    names = np.array(["north", "south", "west"])[whose]
    clients, dataset = "users", (x, y)
    if way == "lists":
        clients = [np.flatnonzero(whose == k) for k in range(3)]
    elif way == "column":
        clients = names
    elif way == "users":
        dataset = fl.data.from_arrays(x, y, users=names)
    else:
        test = np.arange(len(x)) % 4 == 0
        own = x[test], y[test], names[test]
        dataset = fl.data.from_arrays(x[~test], y[~test], own, users=names[~test])
    task = fl.tasks.classification(dataset, clients, metrics=OWNED)
    history = fl.run("fedavg", task, 10, engine="sequential" if way == "lists" else "stacked")
    row, (test_x, test_y) = history.final, task.test
    table = {row.tobytes(): k for row, k in zip(x, whose, strict=True)}
    owner = np.array([table[row.numpy().tobytes()] for row in test_x.flatten(1)])
    with torch.no_grad():
        right = (net_of(task, history)(task.inputs(test_x)).argmax(1) == test_y).numpy()
    expected = [float(right[owner == k].mean()) for k in range(3)]
    assert row["per_client"] == expected
    assert min(expected[:2]) > 0.85 and expected[2] < 0.15
    assert row["worst_client"] == expected[2]
    assert row["client_spread"] == pytest.approx(np.std(expected))
    mixed = fl.tasks.classification(dataset, clients, metrics="per_class_mix")
    mixed = mixed.evaluate(net_of(task, history))["per_class_mix"]
    assert max(abs(np.subtract(mixed, row["accuracy"]))) < 0.02, "hides the third"


def test_a_clients_own_network_is_tested_on_its_own_samples():
    x, y, whose = hospitals()
    task = fl.tasks.classification((x, y), whose, metrics=OWNED)
    row = fl.run("local", task, 10).final
    assert min(row["per_client"]) > 0.85, "each has learned its own labels"
    assert row["accuracy"] < 0.7, "the mean of their networks on everybody's"
    nets, found, rows = [net_of(task, fl.run("fedavg", task, t)) for t in (1, 2, 3)], {}, []
    for k, net in enumerate(nets):
        task.evaluate(net, client=k, predictions=found)
        own = task.owners == k
        alone = dataclasses.replace(task, test=tuple(t[own] for t in task.test), metrics={})
        rows.append(alone.evaluate(net)["accuracy"])
    assert task.measure(found)["per_client"] == rows


def test_owners_are_clients_or_nobody(tmp_path):
    x, y, whose = hospitals()
    # a sample in no list is nobody's, and so is a test sample of a user who has none to train
    task = fl.tasks.classification((x, y), [range(200), range(200, 300)], metrics="per_client")
    assert torch.bincount(task.owners + 1).tolist() == [60, 40, 20]
    known = whose < 2
    source = fl.data.from_arrays(x[known], y[known], (x, y, whose), users=whose[known])
    task, whole = (
        fl.tasks.classification(source, "users", test=n, metrics="per_client") for n in (300, None)
    )
    assert len(task.owners) == 300 and task.owners.min() == -1
    assert whole.owners.tolist() == np.where(known, whose, -1).tolist()
    assert not torch.equal(task.owners, whole.owners[:300]), "owners go with the samples kept"
    # only clients who are the users have test samples of their own
    for how in ({"clients": 2}, {"clients": [range(200), range(200, 400)]}):
        task = fl.tasks.classification(source, **how, metrics="per_class_mix")
        assert task.owners is None and "owners" not in task.digests
        for name, instead in zip(OWNED, NAMES[1:], strict=True):
            with pytest.raises(ValueError, match=f"so {name} cannot be .*; {instead} weights"):
                fl.tasks.classification(source, **how, metrics=[name])
    np.savez(tmp_path / "a.npz", x=x, y=y, users=whose, test_x=x, test_y=y, test_users=whose)
    task = fl.tasks.classification(str(tmp_path / "a.npz"), "users", metrics="per_client")
    assert task.owners.tolist() == whose.tolist()


def test_a_run_goes_on_only_with_the_same_data_clients_and_owners(tmp_path):
    x, y, whose = hospitals(40)
    owners = whose, whose[::-1].copy()
    a, b = (fl.data.from_arrays(x, y, (x, y, own), users=whose) for own in owners)
    a, b = (fl.tasks.classification(s, "users", metrics="per_client") for s in (a, b))
    lists = [np.flatnonzero(whose == k) for k in range(3)]
    c, d, e = (
        fl.tasks.classification(((x, labels), (x, y)), clients)
        for labels, clients in ((y, lists), (y, lists[::-1]), (1 - y, lists))
    )
    whole = fl.run("fedavg", a, 2)
    fl.run("fedavg", a, 1, checkpoint=tmp_path / "a")
    fl.run("fedavg", c, 1, checkpoint=tmp_path / "c")
    for name, other in (("a", b), ("c", d), ("c", e)):
        with pytest.raises(ValueError, match="data differ"):
            fl.run("fedavg", other, 2, checkpoint=tmp_path / name)
    assert fl.run("fedavg", a, 2, checkpoint=tmp_path / "a") == whole


def test_masks_are_measured_by_their_owners_too():
    x, y = np.zeros((2, 12, 16, 16), np.uint8)
    x[:, :8], y[:, :8] = 200, 1
    y[::2, 8:] = 255  # counts for nothing
    whose = np.arange(12) % 3
    source = fl.data.from_masks(x, y, 2, (x, y), users=whose, test_users=whose)
    task = fl.tasks.segmentation(source, "users", metrics=(*NAMES, *OWNED))
    history = fl.run("fedavg", task, 1)
    with torch.no_grad():
        predicted = task.predict(net_of(task, history), task.test[0])
    for k, value in enumerate(history.final["per_client"]):
        own, labels = predicted[whose == k], task.test[1][whose == k]
        assert value == float((own == labels)[labels != 255].double().mean())
    known = task.test[1] != 255
    by_class = [(predicted == c)[known & (task.test[1] == c)].double().mean() for c in range(2)]
    assert history.final["per_class"] == pytest.approx([float(v) for v in by_class])


def test_names_of_metrics_are_their_own():
    def loss(seen):
        return 0.0

    def old(confusion, clients):
        return 0.0

    for wrong in ([loss], ["per_class", "per_class"], ["f1"], old):
        with pytest.raises(ValueError, match="name of its own|no metric 'f1'|one argument"):
            few(metrics=wrong)
    assert list(few(metrics="per_class").metrics) == ["per_class"]

"""What is measured beside accuracy: right by hand, and the same on every engine."""

import numpy as np
import pytest
import torch

import fedlearn as fl
from fedlearn import tasks as M

NAMES = ("per_class", "per_class_mix", "worst_class_mix")
OWNED = ("per_client",)


def small(**changes):
    options = {
        "partition": "dirichlet:0.3",
        "train": 240,
        "test": 100,
        "metrics": NAMES,
    }
    return fl.tasks.classification("digits", 4, **options | changes)


def net_of(task, history):
    net = fl.initial_network(fl.methods.fedavg(), task)
    net.load_state_dict(history.state, strict=False)
    return net.eval()


def test_every_metric_is_what_its_name_says():
    task = small()
    plain, history = (fl.run("fedavg", t, 3) for t in (small(metrics=()), task))
    for a, b in zip(plain.rows, history.rows, strict=True):
        assert all(a[k] == b[k] for k in a.keys() - {"seconds"})
        assert b.keys() - a.keys() == {*NAMES}
    x, y = task.test
    with torch.no_grad():
        right = (net_of(task, history)(task.inputs(x)).argmax(1) == y).double()
    row = history.final
    by_class = [float(right[y == c].mean()) for c in range(10)]
    assert row["per_class"] == pytest.approx(by_class)
    expected = []
    for mine in task.owned:  # each client's classes in its own proportions
        labels = task.train[1][mine]
        expected.append(float(np.mean([by_class[c] for c in labels.tolist()])))
    assert row["per_class_mix"] == pytest.approx(expected)
    assert len(set(expected)) > 1
    assert row["worst_class_mix"] == min(expected)


def test_a_metric_of_ones_own(tmp_path):
    def balanced(seen):
        assert len(seen.class_counts) == 4
        assert seen.owners is None
        assert float(seen.confusion.sum()) == len(seen.labels) == len(seen.of(0)) == 100
        return (seen.confusion.diag() / seen.confusion.sum(1)).mean()

    history = fl.run("fedavg", small(metrics=[balanced, "per_class"]), 1)
    assert history.balanced[0] == pytest.approx(history.per_class[0].mean())
    (tmp_path / "mine.py").write_text(
        "def total(seen):\n    return seen.confusion.sum()\n"
    )
    task = small(metrics=f"{tmp_path}/mine.py:total")
    assert task.evaluate(task.network())["total"] == 100.0


PREDICTED, LABELS = (
    torch.tensor([0, 0, 0, 1, 0]),
    torch.tensor([0, 0, 0, 0, 255]),
)  # 255: void
OWNERS = torch.tensor([2, -1, 0, 0, 0])  # client 1 has no test sample, one is nobody's
HELD = torch.tensor([[3, 1], [0, 2]])


@pytest.mark.parametrize(
    "predictions, counts, owners, expected",
    [  # of four test samples of class 0; the test set has no class 1
        ({None: PREDICTED}, HELD, None, ([0.75, None], [0.75, None], 0.75)),
        ({}, HELD, None, (None, None, None)),
        ({None: PREDICTED}, HELD[[0, 0, 0]], OWNERS, ([0.5, None, 1.0],)),
    ],
)
def test_what_is_not_there_is_none(predictions, counts, owners, expected):
    metrics = {name: M.METRICS[name] for name in (NAMES if owners is None else OWNED)}
    row = M.measured(metrics, M.Seen(predictions, LABELS, owners, counts))
    assert row == dict(zip(metrics, expected, strict=True))


@pytest.mark.parametrize(
    "wrong", [["per_class", "per_class"], lambda seen: 0.0, "f1", M.measured]
)
def test_metrics_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="metric|argument|name"):
        small(metrics=wrong)


def test_per_client_is_the_accuracy_on_the_clients_own_test_samples():
    """The third hospital's labels are the wrong way round."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 600)
    hospital = np.arange(600) // 200
    x = draw.normal(size=(600, 8))
    x[:, :4] += 2 * y[:, None]
    y[hospital == 2] = 1 - y[hospital == 2]
    data = fl.data.arrays(x, y, users=hospital)
    task = fl.tasks.classification(data, metrics=OWNED)
    history = fl.run("fedavg", task, 10, engine="stacked")
    inputs, labels = task.test
    with torch.no_grad():
        right = net_of(task, history)(task.inputs(inputs)).argmax(1) == labels
    expected = [float(right[task.owners == k].double().mean()) for k in range(3)]
    assert history.final["per_client"] == pytest.approx(expected)
    assert min(expected[:2]) > 0.85
    assert expected[2] < 0.15

"""Numbers and sequences; each client's own network; the trained network."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.metrics import r2_score

import fedlearn as fl
from fedlearn.lab import cli

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(200, 4)).astype(np.float32)
PRICE = X[:, 0] * X[:, 1] + X[:, 2]
HOMES = np.repeat(["a", "b", "c"], [20, 60, 120])


def run(task, method="fedavg", rounds=3, **how):
    return fl.run(method, task, rounds, progress=False, **{"batch_size": 16} | how)


def rows(history, *others):
    return [{k: v for k, v in r.items() if k not in ("seconds", *others)} for r in history.rows]


def test_r2_in_whatever_unit():
    euros, cents = (
        fl.tasks.regression((X, scale * PRICE + 7 * scale), HOMES, metrics=["per_client"])
        for scale in (1, 100)
    )
    first, second = map(run, (euros, cents))
    assert first.accuracy == pytest.approx(second.accuracy, abs=1e-5)
    assert 100 * first.rmse == pytest.approx(second.rmse, rel=1e-4)
    x, y = cents.test
    predicted = cents.predict(second.network(), x.reshape(len(x), -1))
    assert second.final["accuracy"] == pytest.approx(r2_score(y, predicted))
    shares = torch.bincount(cents.owners).numpy() / len(y)
    assert shares @ second.per_client[-1] == pytest.approx(second.final["accuracy"])
    assert second.measure == "R²" and euros.held.sum() == len(euros.train[1])
    both = fl.tasks.regression((X, np.stack([PRICE, X[:, 3]], 1)), clients=2)
    x, y = both.test
    history = run(both)
    r2 = r2_score(y, both.predict(history.network(), x))
    assert history.final["accuracy"] == pytest.approx(r2)


@pytest.mark.parametrize("method", ["fedavg", "stc", "scaffold", "rpn"])
@pytest.mark.filterwarnings("ignore:RPN pools")
def test_regression_stacked_is_regression(method):
    task = fl.tasks.regression((X, PRICE), HOMES)  # 16, 48 and 96 samples
    one, all_ = (run(task, method, engine=engine) for engine in ("sequential", "stacked"))
    for name in ("accuracy", "loss"):
        assert getattr(one, name) == pytest.approx(getattr(all_, name), rel=1e-3)


def test_labels_of_positions():
    texts = ["abab" * 30, "a" * 10]
    source = fl.data.from_texts(texts, ["ann", "bob"], length=8, test=0.3)
    task = fl.tasks.sequences(source, "users", metrics=["per_client", "per_class"])
    history = run(task, fl.methods.fedavg(lr=1.0), 6)
    net, (x, y) = history.network(), task.test
    scores, real = net(x).detach(), y != -100
    assert not real.all(), "the end of a text is padded"
    right = (scores.argmax(-1) == y)[real].float()
    loss = torch.nn.functional.cross_entropy(scores[real], y[real])
    row = history.final
    assert row["accuracy"] == pytest.approx(float(right.mean())) and row["accuracy"] > 0.6
    assert row["perplexity"] == pytest.approx(float(loss.exp()), rel=1e-5)
    mine = real & (task.owners == 1)[:, None]
    own = (scores.argmax(-1) == y)[mine].float().mean()
    assert row["per_client"][1] == pytest.approx(float(own))
    assert torch.equal(task.predict(net, x.numpy()), scores.argmax(-1))
    loss = task.loss(torch.stack([scores] * 2), torch.stack([y, torch.full_like(y, -100)]))
    assert loss.shape == (2,) and loss[1] == 0, "clients in front; nothing counts in the second"


def test_shakespeare_and_why_it_is_not_stacked():
    task = fl.tasks.sequences(clients="users", test=8)
    assert task.clients == 13 and task.source.users[0] == "Benvolio"
    counts = [fl.models.parameter_count(f()) for f in fl.models.SEQUENCES.values()]
    assert counts == [23_397, 814_885]
    few = fl.tasks.sequences(clients=2, train=8, test=4)
    with pytest.warns(UserWarning, match="RPN pools convolution kernels"):
        history = fl.run("rpn", few, 1, engine="auto")
    assert "LSTM" in history.meta["engine"]["why"]


def test_embeddings_are_stacked():
    class Bag(torch.nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.table = torch.nn.Embedding(classes, 6)
            self.score = torch.nn.Linear(6, classes)

        def forward(self, x):
            return self.score(self.table(x).relu())

    task = fl.tasks.sequences(["abcab" * 40] * 3, 3, network=lambda shape, classes: Bag(classes))
    one, all_ = (run(task, engine=engine) for engine in ("sequential", "stacked"))
    assert one.loss == pytest.approx(all_.loss, rel=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "local"])
def test_a_network_of_ones_own(method):
    labels = ((X[:, 0] > 0) ^ (HOMES == "a")).astype(int)  # a's are the wrong way round
    plain, measured = (
        fl.tasks.classification((X, labels), HOMES, metrics=metrics)
        for metrics in ("per_client", ["per_client", "personal"])
    )
    before, after = (run(task, method, 5, batch_size=2) for task in (plain, measured))
    own = "personal", "bytes_evaluation_up", "bytes_evaluation_down"
    assert rows(before, *own) == rows(after, *own), "to measure it changes nothing"
    fair, personal = after.fairness(), after.fairness("personal")
    assert fair["worst"] == min(after.per_client[-1]) and personal["worst"] >= fair["worst"]
    assert fair["spread"] == pytest.approx(np.std(after.per_client[-1]))
    assert method != "local" or personal.equals(fair)
    assert method != "fedavg" or personal["mean"] > fair["mean"]
    line = fl.plot.clients([before, after]).lines[0]
    assert line.get_ydata().tolist() == sorted(before.per_client[-1])


def test_the_trained_network_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["--train", "60", "--test", "40", "--clients", "2", "--rounds", "1"]
    assert not cli.main(["run", "fedavg", *few, "--save", "model.safetensors"])
    with safe_open("model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["network"]) == "digits_cnn"
    task = fl.tasks.classification("digits", 2, train=60, test=40)
    history = fl.run("fedavg", task, 1)
    net, (x, y) = history.network(), task.test
    assert not net.training
    right = (task.predict(net, x) == y).float().mean()
    assert float(right) == pytest.approx(history.final["accuracy"])
    network = "digits_cnn@model.safetensors"
    again = fl.tasks.classification("digits", 2, train=60, test=40, network=network).network()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    homes = fl.tasks.regression((X, PRICE), 2)
    for method in ("fed_gkt", "split_learning"):
        with pytest.raises(ValueError, match="Edge networks classify"):
            fl.run(method, homes, 1)
    with pytest.raises(ValueError, match="clients keep their own"):
        fl.run("local", task, 1).network()
    split = fl.run("split_learning", task, 1)
    right = (task.predict(split.network(), x) == y).float().mean()
    assert float(right) == pytest.approx(split.final["accuracy"])


def test_a_table_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    columns = zip(HOMES, X[:, 0], X[:, 1], PRICE, strict=True)
    lines = ["home,a,b,price", *(f"{h},{a},{b},{p}" for h, a, b, p in columns)]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    words = "run rpn --task regression --dataset mine.csv:price --clients home --rounds 1".split()
    more = ["--metric", "per_client", "--plot", "x.png", "--against", "clients"]
    with pytest.warns(UserWarning, match="RPN pools"):
        assert not cli.main([*words, *more])
    shown = capsys.readouterr().out
    assert "worst client" in shown and "R²" in shown and (tmp_path / "x.png").exists()


def test_samples_that_the_network_does_not_take():
    task = fl.tasks.regression((X, PRICE), 2)
    with pytest.raises(ValueError, match="Samples"):
        task.predict(task.network(), np.zeros((2, 7)))
    texts = fl.tasks.sequences({"ann": "to be " * 40, "eve": "or not " * 40}, "users")
    for samples in (["to be"], [[0.5, 1]], [[500, 1]]):
        with pytest.raises(ValueError, match="Samples"):
            texts.predict(texts.network(), samples)


def test_an_experiment_says_which_text():
    assert fl.Experiment(task="sequences").dataset == "shakespeare"


def test_clients_are_drawn_only_if_they_were_measured(tmp_path, capsys):
    typed = ["run", "fedavg", "--against", "clients", "--plot", str(tmp_path / "c.png")]
    assert cli.main(typed) == 2
    assert "per_client" in capsys.readouterr().err

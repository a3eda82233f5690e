"""The round: against plain PyTorch, after a stop, and with bad input; and its history."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import rng
from fedlearn.core import Exchange
from fedlearn.core.federation import one_round
from fedlearn.models import state_of
from fedlearn.wire import UP, Message, pack

FEDAVG = fl.methods.fedavg()


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(t, other[n]) for n, t in one.items()
    )


def test_fedavg_is_the_average_of_models_trained_in_plain_pytorch(smooth):
    task = fl.tasks.classification(
        "digits", 4, "dirichlet:0.5", train=240, test=20, network=smooth
    )
    net = fl.initial_network(FEDAVG, task)
    w = {n: t.clone() for n, t in state_of(net).items()}
    for t in (1, 2):
        new = dict.fromkeys(w, 0)
        for k, indices in enumerate(task.split.indices):
            net.load_state_dict(w, strict=False)
            optimiser = torch.optim.SGD(net.parameters(), 0.05)
            x = task.inputs(task.train[0][indices])
            y = task.train[1][indices]
            shuffle = rng.generator(task.seed, "shuffle", t, k)
            for _ in range(2):
                for picked in torch.randperm(len(y), generator=shuffle).split(16):
                    optimiser.zero_grad()
                    F.cross_entropy(net(x[picked]), y[picked]).backward()
                    optimiser.step()
            share = len(y) / sum(task.sizes)
            new = {n: new[n] + share * v.detach() for n, v in state_of(net).items()}
        w = new
    history = fl.run(fl.methods.fedavg(0.05), task, 2, epochs=2, batch_size=16)
    torch.testing.assert_close(history.state, w, rtol=1e-4, atol=1e-5)


class Scripted:
    """Clients whose answers are given."""

    def __init__(self, answers):
        self.answers = answers

    def ready(self, t, clients):
        pass

    def settle(self, t, clients):
        pass

    def exchange(self, t, question, clients, write):
        for k in clients:
            write(k)
            yield k, self.answers[k]


@pytest.mark.parametrize("question", ["train", "evaluate"])
def test_an_exchange_counts_every_byte_and_notes_who_is_refused(question):
    def odd(k, data):
        if k == 1:
            raise fl.WireError("That is even.")
        return len(data)

    engine = Scripted([b"abc", b"defg", fl.WireError("Nobody there.")])
    row = {"refused": {}, "unevaluated": {}}
    seen = {0: 1}
    train = question == "train"
    ask = Exchange(7, engine, row, seen)
    answers = list(ask(range(3), lambda k: (b"x" * (10 + k), k), odd, question))
    assert answers == [(0, 3)]
    assert seen == {0: 7 if train else 1}
    assert [*row["refused" if train else "unevaluated"]] == [1, 2]
    assert not row["unevaluated" if train else "refused"]
    way = "bytes" if train else "bytes_evaluation"
    assert row[f"{way}_up"] == 3 + 4, "refused, too"
    assert row[f"{way}_down"] == 10 + 11 + 12
    assert row[f"{way}_down_buffers"] == 1 + 2


@pytest.mark.parametrize("samples", [0, 1, 2**32 - 1])
def test_an_upload_from_another_number_of_samples_is_refused(samples, task):
    """None would weigh nothing, and so many would make one client the whole mean."""
    server = FEDAVG.server_side(task)
    with pytest.raises(fl.WireError, match="samples"):
        server.receive(
            1, 0, pack(Message(UP, 1, 0, samples, {}), server.up), server.start()
        )


@pytest.mark.parametrize("name", fl.methods.METHODS)
def test_a_round_of_refusals_leaves_the_state(task, name):
    options = {"asynchronous": True} if name == "fed_gkt" else {}
    server = fl.methods.get(name, **options).server_side(task)
    state = server.start()
    before = copy.deepcopy(state)
    seen = {}
    new, row = one_round(server, Scripted([b"nonsense"] * 4), 1, state, seen)
    assert list(row["refused"]) == [0, 1, 2, 3]
    assert not seen
    assert row["bytes_up"] == 4 * len(b"nonsense")
    for now in (new, state):
        assert equal(now.weights, before.weights)
        assert equal(now.memory, before.memory)


def test_a_loss_of_three_times_the_lowest_is_a_jump():
    losses = [2.0, None, 1.0, 2.9, 3.1, 0.5, 1.4, 1.6, math.nan]
    rows = [{"round": t, "accuracy": x, "loss": x} for t, x in enumerate(losses, 1)]
    assert fl.History("mine", rows=rows).jumps == [5, 8, 9]


def test_a_function_sees_every_row_and_the_state_after_it(task):
    seen = []

    def after(row, state):
        seen.append((dict(row), state.weights))

    history = fl.run(FEDAVG, task, 3, evaluate_every=2, on_round=after)
    assert [row for row, _ in seen] == history.rows
    assert equal(seen[-1][1], history.state)


def test_a_function_that_returns_true_ends_the_run_for_good(task, tmp_path):
    options = {"epochs": 3, "batch_size": 8, "evaluate_every": 2}
    whole = fl.run(FEDAVG, task, 4, **options)

    def reached(row, state):
        return row["accuracy"] is not None and row["accuracy"] >= whole.accuracy[1]

    with pytest.raises(ValueError, match="on_round"):
        fl.run(FEDAVG, task, 1, on_round=lambda row, state: "stop")
    for _ in range(2):  # the same command does not go on
        path = tmp_path / "c"
        short = fl.run(FEDAVG, task, 4, on_round=reached, checkpoint=path, **options)
        assert short.rows[1]["accuracy"] == whole.accuracy[1]
        assert len(short) == 2


def test_a_continued_run_has_the_rows_of_an_uninterrupted_one(task, tmp_path):
    """Also where the shorter run was evaluated at its end, and the longer one is not."""
    options = {"evaluate_every": 3, "participation": 0.5}
    whole = fl.run(fl.methods.dgc(), task, 5, **options)
    options["checkpoint"] = tmp_path / "run.checkpoint"
    short = fl.run(fl.methods.dgc(), task, 2, **options)
    assert short.rows[1]["accuracy"] is not None
    assert fl.run(fl.methods.dgc(), task, 2, **options) == short

    def stop(row, state):
        if row["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fl.run(fl.methods.dgc(), task, 5, on_round=stop, **options)
    continued = fl.run(fl.methods.dgc(), task, 5, **options)
    assert continued == whole
    assert equal(continued.state, whole.state)


def test_checkpoints_of_other_runs_data_or_owners_are_refused(task, tmp_path):
    path = tmp_path / "run.checkpoint"
    fl.run(FEDAVG, task, 2, checkpoint=path)
    first, second, *owners = task.split.indices
    swapped = replace(task, split=replace(task.split, indices=[second, first, *owners]))
    changed = replace(task, train=(task.train[0] ^ 1, task.train[1]))
    for method, other, options, word in (
        ("rpn", task, {}, "parts"),
        (FEDAVG, task, {"batch_size": 8}, "settings"),
        (FEDAVG, changed, {}, "data"),
        (FEDAVG, swapped, {}, "data"),
    ):
        with pytest.raises(ValueError, match=f"{word} differ"):
            fl.run(method, other, 3, checkpoint=path, **options)
    with pytest.raises(ValueError, match="2 rounds"):
        fl.run(FEDAVG, task, 1, checkpoint=path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="no checkpoint"):
        fl.run(FEDAVG, task, 2, checkpoint=path)
    for file in (tmp_path, "/dev/null"):
        with pytest.raises(OSError, match="name a file"):
            fl.run(FEDAVG, task, 2, checkpoint=file)


def by_hand(rounds=3):
    rows = [
        {
            "round": t,
            "accuracy": t / 10 if t > 1 else None,
            "loss": 1.0,
            "bytes_up": 10**6 * t,
            "bytes_down": 10**7,
            "seconds": 0.5 * t,
            "clients": [1, t],
            "refused": {t: "why"},
        }
        for t in range(1, rounds + 1)
    ]
    return fl.History("by hand", {"task": {}}, rows)


def test_a_history_goes_to_json_and_pandas_and_back(tmp_path):
    history = by_hand()
    slower = by_hand()
    other = by_hand()
    slower.rows[0]["seconds"], other.rows[0]["loss"] = 9.0, 9.0
    assert history == slower
    assert history != other
    history.to_json(tmp_path / "h.json")
    for source in (tmp_path / "h.json", history.to_json()):
        back = fl.History.from_json(source)
        assert back == history
        assert back.rows == history.rows
    assert np.isnan(history.to_pandas().accuracy[1])
    assert history.megabytes.tolist() == [11, 23, 36]
    assert history.megabytes_to(0.2) == 23
    assert history.megabytes_to(0.5) is None
    assert history.accuracy_at(35.9) == 0.2
    assert history.accuracy_at(1) is None


def test_a_history_that_is_none_is_refused(tmp_path):
    path = tmp_path / "run.json"
    text = by_hand().to_json()
    for damaged in (text[:-9], json.dumps(json.loads(text) | {"rows": 3})):
        path.write_text(damaged)
        with pytest.raises(ValueError, match="run.json is no history"):
            fl.History.from_json(path)


def test_a_client_answers_only_what_it_is_asked_for(task):
    server = FEDAVG.server_side(task)
    clients = fl.clients(FEDAVG, task)
    message = server.send(1, 0, server.start())[0]
    with pytest.raises(fl.WireError, match="'dance'"):
        clients.answer(1, 0, message, "dance")


def test_refit_measures_statistics_and_touches_no_weight():
    task = fl.tasks.classification("digits", 3, train=200, test=60)
    state = fl.run(FEDAVG, task, 2).state
    spoiled = {
        n: t * 100 if n.endswith("running_mean") else t.clone()
        for n, t in state.items()
    }
    before = {n: t.clone() for n, t in spoiled.items()}
    assert fl.refit(FEDAVG, task, spoiled) == fl.refit(FEDAVG, task, state)
    assert equal(spoiled, before)

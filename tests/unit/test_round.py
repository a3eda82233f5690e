"""The round: against plain PyTorch, against itself after stop and resume, and with all kinds of bad
input."""

import copy
import json
import math
import random
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import checkpoint, local, rng
from fedlearn.local import OneByOne
from fedlearn.models import state_of
from fedlearn.parts import Arrival, Code, Context, Step, Update
from fedlearn.round import Exchange, good_threads, one_round
from fedlearn.tasks.classification import cross_entropy
from fedlearn.wire import UP, Message, pack


def scratch_fedavg(task, rounds, lr, epochs, batch_size):
    """Federated averaging in plain PyTorch: models are averaged, nothing is encoded."""
    net = fl.initial_network(fl.methods.fedavg(), task)
    w = {n: t.clone() for n, t in state_of(net).items()}
    for t in range(1, rounds + 1):
        models, sizes = [], []
        for k in range(task.clients):
            local = copy.deepcopy(net)
            local.load_state_dict(w, strict=False)
            optimiser = torch.optim.SGD(local.parameters(), lr)
            x, y = task.train[0][task.split.indices[k]], task.train[1][task.split.indices[k]]
            shuffle = rng.generator(task.seed, "shuffle", t, k)
            for _ in range(epochs):
                order = torch.randperm(len(y), generator=shuffle)
                for at in range(0, len(y), batch_size):
                    picked = order[at : at + batch_size]
                    optimiser.zero_grad()
                    F.cross_entropy(local(task.inputs(x[picked])), y[picked]).backward()
                    optimiser.step()
            models.append({n: v.clone() for n, v in state_of(local).items()})
            sizes.append(len(y))
        w = {n: sum(s / sum(sizes) * m[n] for s, m in zip(sizes, models, strict=True)) for n in w}
    return w


def test_fedavg_is_the_average_of_the_models(task):
    history = fl.run(fl.methods.fedavg(0.05), task, 3, epochs=2, batch_size=16)
    expected = scratch_fedavg(task, 3, 0.05, 2, 16)
    assert set(expected) == set(history.state)
    for name, w in expected.items():
        torch.testing.assert_close(history.state[name], w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_sgd_is_torch_sgd(momentum, decay):
    ours = [torch.randn(3, 4, generator=rng.generator(0, i)) for i in range(2)]
    theirs = [torch.nn.Parameter(p.clone()) for p in ours]
    optimiser = torch.optim.SGD(theirs, 0.1, momentum, weight_decay=decay)
    sgd = fl.SGD(0.1, momentum, decay)
    state = sgd.init(ours, type("ctx", (), {"round": 1}))
    for step in range(5):
        grads = [torch.randn(3, 4, generator=rng.generator(1, step, i)) for i in range(2)]
        sgd.step(ours, grads, state)
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        optimiser.step()
    for p, q in zip(ours, theirs, strict=True):
        assert torch.equal(p, q.detach())


def test_learning_rate_decays_by_the_round():
    assert fl.SGD(1.0, decay=0.5).init([], type("ctx", (), {"round": 3}))["lr"] == 0.25


def test_optimizer_and_loss_carry_client_axes():
    """The vectorised form stacks clients in front; parts must give each client its own result."""
    logits, y = (
        torch.randn(3, 5, 10, generator=rng.generator(0)),
        torch.arange(15).reshape(3, 5) % 10,
    )
    stacked = cross_entropy(logits, y)
    for k in range(3):
        torch.testing.assert_close(stacked[k], F.cross_entropy(logits[k], y[k]))


def test_same_seed_same_history_whatever_the_global_generators_do(task):
    first = fl.run(fl.methods.rpn(), task, 2)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = torch.get_rng_state()
    second = fl.run(fl.methods.rpn(), task, 2)
    assert first == second and all(
        torch.equal(first.state[n], second.state[n]) for n in first.state
    )
    assert torch.equal(before, torch.get_rng_state()), "a run must leave the global generator alone"
    other = fl.run(
        fl.methods.rpn(),
        fl.tasks.classification("digits", 4, "dirichlet:0.5", 1, train=240, test=100),
        2,
    )
    assert first != other


def test_dropout_has_named_randomness(task):
    task = fl.tasks.classification("digits", 4, network="mcmahan_cnn", train=120, test=50)
    torch.manual_seed(0)
    first = fl.run(fl.methods.fedavg(0.05), task, 1)
    torch.manual_seed(1)
    assert first == fl.run(fl.methods.fedavg(0.05), task, 1)


def test_history_counts_real_bytes(task):
    history = fl.run(fl.methods.fedavg(), task, 2, participation=0.5)
    net = fl.initial_network(fl.methods.fedavg(), task)
    numbers = sum(t.numel() for t in state_of(net).values())
    buffers = numbers - fl.models.parameter_count(net)
    for row in history.rows:
        assert len(row["clients"]) == 2
        assert row["bytes_up_buffers"] == row["bytes_down_buffers"] == 2 * 4 * buffers
        for key in ("bytes_up", "bytes_down"):
            assert 2 * 4 * numbers < row[key] <= 2 * (4 * numbers + 1024)


def test_participation_draws_anew_each_round_and_is_never_zero():
    task = fl.tasks.classification("digits", 10, train=100, test=20)
    server = fl.methods.fedavg().server_side(task, fl.Settings(participation=0.3))
    drawn = [tuple(server.participants(t)) for t in range(1, 30)]
    assert all(len(set(d)) == 3 for d in drawn) and len(set(drawn)) > 10
    assert drawn[0] == tuple(server.participants(1))
    few = fl.methods.fedavg().server_side(task, fl.Settings(participation=1e-9))
    assert len(few.participants(1)) == 1
    clients = fl.methods.fedavg().client_side(task, fl.Settings(participation=0.3))
    assert [clients.participants(t) for t in range(1, 30)] == drawn, "both sides draw the same"


def test_evaluation_every_n_rounds_and_at_the_end(task):
    history = fl.run(fl.methods.fedavg(), task, 5, evaluate_every=2)
    assert [row["accuracy"] is not None for row in history.rows] == [False, True, False, True, True]
    every = fl.run(fl.methods.fedavg(), task, 5)
    assert every.accuracy[3] == history.accuracy[3], (
        "looking at the test set must not change the run"
    )


def test_mean_is_over_those_who_sent_the_tensor():
    w = {"a": torch.zeros(2), "b": torch.zeros(1), "c": torch.ones(1)}
    arrivals = [
        Arrival(0, 30, {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([5.0])}),
        Arrival(1, 10, {"a": torch.tensor([0.0, 1.0])}),
    ]
    ctx = Context(None, 1)
    by_samples = fl.Mean().aggregate(w, arrivals, ctx)
    assert torch.equal(by_samples["a"], torch.tensor([0.75, 0.25]))
    assert by_samples["b"] == 5 and by_samples["c"] == 1 and w["a"].sum() == 0
    assert torch.equal(
        fl.Mean("clients").aggregate(w, arrivals, ctx)["a"], torch.tensor([0.5, 0.5])
    )


def test_mean_without_a_refused_client_is_that_of_the_others():
    w, u = {"a": torch.ones(3)}, [torch.randn(3, generator=rng.generator(k)) for k in range(3)]
    arrivals = [Arrival(k, 10 * k + 1, {"a": u[k]}) for k in (0, 2)]
    new = fl.Mean().aggregate(w, arrivals, Context(None, 1))
    torch.testing.assert_close(new["a"], 1 + (u[0] + 21 * u[2]) / 22)


# ---- every byte crosses in ask -------------------------------------------------------------------


class Scripted:
    """An engine that answers what it is told, whatever it is asked; it keeps what was asked."""

    def __init__(self, **answers):
        self.answers, self.memories, self.asked = answers, {}, []

    def ready(self, t, clients):
        pass

    def exchange(self, t, what, clients, write):
        for k in clients:
            self.asked.append((t, what, k, write(k)))
            yield k, self.answers[what][k]


def blank_row():
    columns = ("bytes_up", "bytes_down", "bytes_evaluation_up", "bytes_evaluation_down")
    return dict.fromkeys(columns, 0) | {"refused": {}, "unevaluated": {}}


def odd(k, data):
    """A reader that refuses what client 1 says."""
    if k == 1:
        raise fl.WireError("That is even.")
    return len(data)


def test_ask_counts_every_byte_notes_who_is_refused_and_remembers_who_was_heard():
    away = fl.WireError("Nobody there.")
    engine, row, heard = Scripted(train={0: b"abc", 1: b"defg", 2: away}), blank_row(), {0: 1}
    ask = Exchange(7, engine, row, heard)
    answers = ask([0, 1, 2], lambda k: b"x" * (10 + k))
    assert list(ask.read(answers, odd)) == [(0, 3)]
    assert row["refused"] == {1: "That is even.", 2: "Nobody there."}
    assert (row["bytes_up"], row["bytes_down"]) == (3 + 4, 10 + 11 + 12), "refused bytes came, too"
    assert row["bytes_evaluation_up"] == row["bytes_evaluation_down"] == 0
    assert heard == {0: 7} and not row["unevaluated"]
    assert engine.asked == [(7, "train", k, b"x" * (10 + k)) for k in range(3)]
    ask.note("bytes_down", 5)
    ask.note("a column of its own", 2)
    assert row["bytes_down"] == 38 and row["a column of its own"] == 2


def test_ask_counts_what_evaluation_costs_apart():
    engine, row, heard = Scripted(evaluate={0: b"abc", 1: b"defg"}), blank_row(), {}
    ask = Exchange(3, engine, row, heard)
    answers = ask([0, 1], lambda k: b"question", "evaluate")
    assert list(ask.read(answers, odd, "evaluate")) == [(0, 3)]
    assert (row["bytes_evaluation_up"], row["bytes_evaluation_down"]) == (7, 16)
    assert row["unevaluated"] == {1: "That is even."} and not row["refused"]
    assert row["bytes_up"] == row["bytes_down"] == 0
    assert heard == {}, "who shows its network has not answered a round"


def test_an_error_that_is_no_refusal_is_not_swallowed():
    ask = Exchange(1, Scripted(train={0: b""}), blank_row(), {})
    with pytest.raises(ZeroDivisionError):
        list(ask.read(ask([0], lambda k: b""), lambda k, data: 1 / 0))


def test_bytes_of_refused_uploads_are_counted(task):
    """They were sent, and somebody paid for them."""
    plain = fl.run(fl.methods.fedavg(), task, 1)
    with pytest.warns(UserWarning, match="1 answers of fedavg were refused"):
        history = fl.run(poisoned(float("nan")), task, 1)
    assert list(history.rows[0]["refused"]) == [2]
    assert history.rows[0]["bytes_up"] == plain.rows[0]["bytes_up"]
    assert history.rows[0]["bytes_up_buffers"] == plain.rows[0]["bytes_up_buffers"] * 3 // 4


def test_megabytes_are_those_of_both_ways():
    rows = [
        {"round": t, "accuracy": t / 10, "bytes_up": 10**6 * t, "bytes_down": 10**7}
        | {"bytes_evaluation_up": 10**9, "bytes_evaluation_down": 10**9}
        for t in (1, 2, 3)
    ]
    history = fl.History("by hand", rows=rows)
    assert history.megabytes.tolist() == [11, 23, 36]
    assert history.megabytes_to(0.2) == 23 and history.megabytes_to(0.5) is None
    assert history.accuracy_at(35.9) == 0.2 and history.accuracy_at(36) == 0.3
    assert history.accuracy_at(1) is None


def test_an_upload_from_no_samples_is_refused(task):
    """It would weigh nothing, and a round of such uploads would divide by zero."""
    server = fl.methods.fedavg().server_side(task)
    dense = fl.wire.Dense()
    sections = {n: dense.encode(torch.zeros_like(t)) for n, t in server.initial.items()}
    for samples in (0, 1):
        data = pack(Message(UP, 1, 0, samples, sections), server.up)
        if samples:
            assert server.receive(1, 0, data, server.start()).samples == 1
        else:
            with pytest.raises(fl.WireError, match="claims to come from no samples"):
                server.receive(1, 0, data, server.start())


# ---- the order of the clients --------------------------------------------------------------------


@pytest.fixture(scope="module")
def uneven():
    """Seven clients, of whom neither the first nor the last has most samples."""
    return fl.tasks.classification("digits", 7, "dirichlet:0.5", seed=2, train=210, test=40)


@pytest.mark.parametrize("together", [1, 2, 3, 7])
def test_engines_answer_in_the_order_of_the_clients(uneven, together):
    method = fl.methods.fedavg()
    server, clients = method.server_side(uneven), fl.clients(method, uneven, together=together)
    falling = sorted(range(7), key=lambda k: -uneven.sizes[k])
    assert falling != list(range(7)) and falling != list(range(7))[::-1]
    for who in (range(7), (1, 2, 4, 6)):
        state, written = server.start(), []

        def write(k, state=state, written=written):
            written.append(k)
            return server.send(1, k, state)[0]

        came = list(clients.exchange(1, "train", who, write))
        assert [k for k, _ in came] == list(who) and sorted(written) == list(who)
        for k, data in came:
            assert server.receive(1, k, data, state).client == k


@pytest.mark.parametrize("together", [1, 2, 3])
def test_the_mean_is_summed_in_the_order_of_the_clients_bit_for_bit(uneven, together):
    method, came = fl.methods.fedavg(), []

    class Watched(fl.Mean):
        def aggregate(self, state, arrivals, ctx):
            came.extend(arrivals)
            return super().aggregate(state, came, ctx)

    watched = method.but(server=Watched())
    server = watched.server_side(uneven)
    start = server.start()
    state, row = one_round(server, fl.clients(watched, uneven, together=together), 1, start, {})
    assert [a.client for a in came] == row["clients"] == list(range(7))

    def summed(order):
        new = {n: w.clone() for n, w in start.weights.items()}
        for a in order:
            for n, u in a.update.items():
                new[n].add_(u, alpha=a.samples / sum(uneven.sizes))
        return new

    expected, backwards = summed(came), summed(came[::-1])
    assert all(torch.equal(state.weights[n], w) for n, w in expected.items())
    assert not all(torch.equal(backwards[n], w) for n, w in expected.items()), "order shows"


# ---- what a round does to the state --------------------------------------------------------------


def copied(state):
    return [{n: t.clone() for n, t in tensors.items()} for tensors in (state.weights, state.memory)]


def unchanged(state, before):
    return all(
        tensors.keys() == old.keys() and all(torch.equal(tensors[n], t) for n, t in old.items())
        for tensors, old in zip((state.weights, state.memory), before, strict=True)
    )


@pytest.mark.parametrize("name", fl.methods.METHODS)
def test_a_round_does_not_change_the_state_it_was_given(task, name):
    """So that a round can be played again from where it began, and gives the same."""
    method = fl.methods.get(name)
    server, clients, heard = method.server_side(task), fl.clients(method, task), {}
    state = server.start()
    for t in (1, 2, 3):
        before = copied(state)
        new, row = one_round(server, clients, t, state, heard, last=True)
        assert not row["refused"] and unchanged(state, before)
        alone = name == "local"  # whose server has nothing to keep
        assert (new is state) is alone and unchanged(new, before) is alone
        state = new


@pytest.mark.parametrize("name", fl.methods.METHODS)
def test_a_round_in_which_everything_is_refused_leaves_the_state_as_it_is(task, name):
    options = {"asynchronous": True} if name == "fed_gkt" else {}
    method = fl.methods.get(name, **options)
    server, clients, heard = method.server_side(task), fl.clients(method, task), {}
    state, _ = one_round(server, clients, 1, server.start(), heard)
    before, said = copied(state), dict(heard)
    nobody = Scripted(train=dict.fromkeys(range(4), b"nonsense"))
    nobody.answers |= {"hand over": nobody.answers["train"], "evaluate": nobody.answers["train"]}
    new, row = one_round(server, nobody, 2, state, heard)
    assert list(row["refused"]) == [0, 1, 2, 3] and row["bytes_up"] == 4 * len(b"nonsense")
    assert unchanged(new, before) and unchanged(state, before) and heard == said
    if isinstance(method, fl.Averaging):
        assert new is state
    if name in ("fed_gkt", "local"):  # which cannot be evaluated without clients, either
        assert row["accuracy"] is None and list(row["unevaluated"]) == [0, 1, 2, 3]


def test_synchronous_fed_gkt_stops_when_somebody_is_missing(task):
    server = fl.methods.fed_gkt().server_side(task)
    nobody = Scripted(train=dict.fromkeys(range(4), b"nonsense"))
    with pytest.raises(fl.WireError, match=r"cannot go on: .* came from clients \[0, 1, 2, 3\]"):
        one_round(server, nobody, 1, server.start(), {})


# ---- stop and resume -----------------------------------------------------------------------------


def test_resume_gives_the_same_history(task, tmp_path):
    whole = fl.run(fl.methods.rpn(momentum=0.5), task, 4, participation=0.5)
    path = tmp_path / "run.checkpoint"
    fl.run(fl.methods.rpn(momentum=0.5), task, 2, participation=0.5, checkpoint=path)
    resumed = fl.run(fl.methods.rpn(momentum=0.5), task, 4, participation=0.5, checkpoint=path)
    assert resumed == whole
    assert all(torch.equal(whole.state[n], resumed.state[n]) for n in whole.state)
    assert list(tmp_path.iterdir()) == [path], "no half-written file may stay behind"


KILLED = """
import os, sys, fedlearn as fl, safetensors.torch as s
task = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=240, test=100)
left = [int(sys.argv[2])]
real = s.save_file
def dying(tensors, path, metadata):
    if left[0] == 0:
        open(path, "wb").write(b"half a file"); os._exit(9)   # it dies while it writes
    left[0] -= 1
    real(tensors, path, metadata)
s.save_file = dying
fl.run(fl.methods.fedavg(), task, 4, checkpoint=sys.argv[1])
"""


@pytest.mark.parametrize("writes", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_killed_while_writing(task, tmp_path, writes):
    path = tmp_path / "run.checkpoint"
    died = subprocess.run([sys.executable, "-c", KILLED, str(path), str(writes)])
    assert died.returncode == 9 and path.exists() == (writes > 0)
    assert fl.run(fl.methods.fedavg(), task, 4, checkpoint=path) == fl.run(
        fl.methods.fedavg(), task, 4
    )


def test_a_checkpoint_of_a_longer_run_is_refused_and_one_that_was_not_tested_is(task, tmp_path):
    path, how = tmp_path / "run.checkpoint", {"evaluate_every": 3, "checkpoint": tmp_path / "r"}
    fl.run(fl.methods.fedavg(), task, 3, checkpoint=path)
    with pytest.raises(ValueError, match="has 3 rounds already, more than the 2 asked for; name"):
        fl.run(fl.methods.fedavg(), task, 2, checkpoint=path)

    def stop(row, state):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fl.run(fl.methods.fedavg(), task, 4, on_round=stop, **how)
    cut, whole = fl.run(fl.methods.fedavg(), task, 2, **how), fl.run(fl.methods.fedavg(), task, 2)
    assert cut.final == whole.final | {"seconds": cut.final["seconds"]} and len(cut) == 2
    assert cut.rows[0]["accuracy"] is None


def test_checkpoints_of_other_runs_are_refused(task, tmp_path):
    path = tmp_path / "run.checkpoint"
    fl.run(fl.methods.fedavg(), task, 1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: method, parts differ"):
        fl.run(fl.methods.rpn(), task, 2, checkpoint=path)
    with pytest.raises(ValueError, match="settings differ"):
        fl.run(fl.methods.fedavg(), task, 2, batch_size=8, checkpoint=path)
    path.write_bytes(b"nonsense")
    for file in (path, tmp_path):  # a folder is none either
        with pytest.raises(ValueError, match="not a readable checkpoint"):
            fl.run(fl.methods.fedavg(), task, 2, checkpoint=file)


def test_a_flipped_bit_of_a_checkpoint_is_never_another_result(task, tmp_path):
    """Wherever it is: 40 places of the head, which is text, 160 of the tensors."""
    path, method = tmp_path / "run.checkpoint", fl.methods.rpn(momentum=0.5)
    fl.run(method, task, 1, participation=0.5, checkpoint=path)
    server = method.server_side(task, fl.Settings(participation=0.5))
    meta = fl.round.describe(method, task, server.settings, 1)
    whole, refused = path.read_bytes(), 0

    def resumed():
        history, memories = fl.History(method.name, meta), {}
        state = checkpoint.resume(path, history, server.start(), memories, task.device)
        tensors = [*state.weights.values(), *(t for m in memories.values() for t in m.values())]
        return history.rows, [t.clone() for t in tensors]

    rows, tensors = resumed()
    head = 8 + int.from_bytes(whole[:8], "little")
    draw = np.random.default_rng(0)
    for at in [*draw.integers(0, head, 40), *draw.integers(head, len(whole), 160)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        try:
            there = resumed()
        except ValueError as error:
            refused += 1
            assert "is not a readable checkpoint" in str(error)
        else:  # a blank of the head's padding
            assert there[0] == rows and all(map(torch.equal, there[1], tensors))
    assert refused >= 195


def test_a_checkpoint_of_other_images_or_other_owners_is_refused(task, tmp_path):
    path = tmp_path / "run.checkpoint"
    fl.run(fl.methods.fedavg(), task, 1, checkpoint=path)
    changed = replace(task, train=(task.train[0] ^ 1, task.train[1]))
    first, second, *rest = task.split.indices
    swapped = replace(task, split=replace(task.split, indices=[second, first, *rest]))
    for other in (changed, swapped):
        assert other.describe() == task.describe()
        with pytest.raises(ValueError, match="another run: data differ"):
            fl.run(fl.methods.fedavg(), other, 2, checkpoint=path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d["rows"].reverse(),
        lambda d: d["rows"].append(d["rows"][-1]),
        lambda d: d["rows"].pop(0),
        lambda d: d.pop("rows"),
        lambda d: d["rows"][0].pop("round"),
        lambda d: d.update(rows=3),
    ],
)
def test_a_history_that_is_none_is_refused_in_one_sentence(task, tmp_path, damage):
    data = fl.run(fl.methods.fedavg(), task, 3, progress=False).to_dict()
    damage(data)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="run.json is no history of fedlearn"):
        fl.History.from_json(path)
    path.write_text(json.dumps(data)[:-9])
    with pytest.raises(ValueError, match="is no history of fedlearn"):
        fl.History.from_json(path)


def test_a_history_shows_itself_in_one_line_and_as_a_short_table(task):
    history = fl.run(fl.methods.fedavg(), task, 12, evaluate_every=1)
    up = history.bytes_up.sum() / 1e6
    text = f"History('fedavg', 12 rounds, accuracy {history.final['accuracy']:.4f}, {up:.3f} MB up"
    assert repr(history).startswith(text) and "\n" not in repr(history)
    page = history._repr_html_()
    assert page.count("<tr>") == 11 and f"<td>{history.rows[-1]['loss']:.4f}</td>" in page
    assert repr(fl.History("x")) == "History('x', no rounds yet)" and fl.History("x")._repr_html_()


def test_history_to_json_and_pandas(task, tmp_path):
    history = fl.run(fl.methods.fedavg(), task, 3, evaluate_every=2)
    history.to_json(tmp_path / "h.json")
    back = fl.History.from_json(tmp_path / "h.json")
    assert back == history and back.meta == history.meta
    assert fl.History.from_json(history.to_json()) == history
    frame = history.to_pandas()
    assert list(frame.index) == [1, 2, 3] and np.isnan(frame.accuracy[1])
    assert (
        history.final["round"] == 3
        and history.rounds_to(0.0) == 2
        and history.rounds_to(1.1) is None
    )
    with pytest.raises(AttributeError, match="acuracy"):
        _ = history.acuracy


# ---- bad input -----------------------------------------------------------------------------------


def poisoned(value):
    """FedAvg whose client 2 uploads one bad value."""

    class Poison(fl.Uplink):
        def encode(self, trained, ctx):
            if ctx.client == 2:
                trained = {n: t.clone() for n, t in trained.items()}
                trained["classifier.2.bias"][0] = value
            return super().encode(trained, ctx)

    return fl.methods.fedavg().but(uplink=Poison())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_upload_with_nan_is_refused_and_the_round_goes_on(task, value):
    with pytest.warns(UserWarning, match="2 answers of fedavg were refused or missing"):
        history = fl.run(poisoned(value), task, 2)
    assert [list(row["refused"]) for row in history.rows] == [[2], [2]]
    assert "NaN or infinite" in history.rows[0]["refused"][2]
    assert all(torch.isfinite(t).all() for t in history.state.values())
    assert fl.History.from_json(history.to_json()).rows[0]["refused"] == history.rows[0]["refused"]


def test_if_all_are_refused_the_model_stays(task):
    class Silent(fl.Uplink):
        def decode(self, sections, ctx):
            raise fl.WireError("no")

    with pytest.warns(UserWarning, match="4 answers of fedavg"):
        history = fl.run(fl.methods.fedavg().but(uplink=Silent()), task, 1)
    initial = state_of(fl.initial_network(fl.methods.fedavg(), task))
    assert all(torch.equal(history.state[n], initial[n]) for n in initial)


@pytest.mark.parametrize(
    "method", [fl.methods.fedavg(), fl.methods.rpn(), fl.methods.rpn(threshold=0.05)]
)
def test_fuzz_ten_thousand_messages(task, method):
    """Random, cut and flipped messages, 10,000 in all: ``WireError`` or a right decode, and the
    model as it was."""
    server, clients = method.server_side(task), fl.clients(method, task)
    state = server.start()
    good = {k: clients.answer(1, k, server.send(1, k, state)[0]) for k in range(2)}
    right = server.receive(1, 0, good[0], state).update
    before = {n: t.clone() for n, t in state.weights.items()}
    dice, refused = random.Random(0), 0
    for i in range(3334):
        data = bytearray(good[0])
        kind = i % 6
        if kind == 0:
            data = bytearray(dice.randbytes(dice.randrange(0, 4000)))
        elif kind == 1:
            data = data[: dice.randrange(len(data))]
        elif kind == 2:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        elif kind == 3:  # a flip anywhere, behind a fitting checksum
            data[dice.randrange(26, len(data) - 4)] ^= 1 << dice.randrange(8)
            data[-4:] = struct.pack("<I", zlib.crc32(data[:26], zlib.crc32(data[26:-4])))
        elif kind == 4:  # a cut or a lengthened body, behind a fitting checksum
            body = data[: dice.randrange(26, len(data))] + dice.randbytes(dice.randrange(50))
            data = body + struct.pack("<I", zlib.crc32(body[:26], zlib.crc32(body[26:])))
        else:
            data = bytearray(good[1])  # somebody else's upload
        try:
            update = server.receive(1, 0, bytes(data), state).update
            assert kind == 3, "only an altered value behind a fitting checksum can pass"
            assert {n: t.shape for n, t in update.items()}.items() <= {
                n: t.shape for n, t in right.items()
            }.items()
            assert all(torch.isfinite(t).all() for t in update.values())
        except fl.WireError:
            refused += 1
    assert refused > 2000
    assert all(torch.equal(before[n], t) for n, t in state.weights.items()) and not state.memory
    again = server.receive(1, 0, good[0], state).update
    assert again.keys() == right.keys()
    assert all(torch.equal(right[n], t) for n, t in again.items())


def test_a_damaged_download_is_an_error_at_the_client(task):
    server, clients = fl.methods.fedavg().server_side(task), fl.clients(fl.methods.fedavg(), task)
    state = server.start()
    message = server.send(1, 0, state)[0]
    for bad in (message[:-1], server.send(1, 1, state)[0], server.send(2, 0, state)[0]):
        with pytest.raises(fl.WireError):
            clients.answer(1, 0, bad)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda t: fl.run(fl.methods.fedavg(), t, 0),
            "rounds must be a whole number of at least 1, not 0",
        ),
        (lambda t: fl.run(fl.methods.fedavg(), t, 2.5), "rounds must be a whole number"),
        (lambda t: fl.run(fl.methods.fedavg(), t, 1, participation=0), "participation is a share"),
        (
            lambda t: fl.run(fl.methods.fedavg(), t, 1, participation=1.5),
            "participation is a share",
        ),
        (
            lambda t: fl.run(fl.methods.fedavg(), t, 1, participation=float("nan")),
            "participation must be a finite number, not nan",
        ),
        (lambda t: fl.run(fl.methods.fedavg(), t, 1, epochs=0), "epochs must be"),
        (lambda t: fl.run(fl.methods.fedavg(), t, 1, batch_size=True), "batch_size must be"),
        (lambda t: fl.run(fl.methods.fedavg(), t, 1, evaluate_every=0), "evaluate_every must be"),
        (lambda t: fl.methods.fedavg(lr=0), "lr > 0"),
        (lambda t: fl.methods.fedavg(momentum=1), "momentum < 1"),
        (lambda t: fl.methods.rpn(share=1.1), "between 0 and 1"),
        (lambda t: fl.methods.rpn(threshold=-1), "threshold"),
        (lambda t: fl.methods.rpn(by="size"), "no weighting 'size'.*Allowed: samples, clients"),
        (lambda t: fl.methods.get("fedavgg"), "no method 'fedavgg'. Did you mean 'fedavg'"),
        (lambda t: fl.methods.fedavg().but(uplinc=fl.Uplink()), "Did you mean 'uplink'"),
        (
            lambda t: fl.methods.fedavg().but(uplink=fl.SGD()),
            "cannot be a method's uplink: it is not an Uplink",
        ),
        (lambda t: fl.tasks.classification("digit"), "no data set 'digit'. Did you mean 'digits'"),
        (lambda t: fl.tasks.classification(clients=0), "clients must be a whole number"),
        (lambda t: fl.tasks.classification(clients=5000), "5000 clients"),
        (lambda t: fl.tasks.classification(partition="dirichlet:0"), "alpha"),
        (lambda t: fl.tasks.classification(partition="dirichlet:-1"), "alpha"),
        (lambda t: fl.tasks.classification(partition="dirichlett:1"), "Did you mean 'dirichlet'"),
        (lambda t: fl.tasks.classification(partition="dirichlet:0.001", clients=50), "alpha"),
        (
            lambda t: fl.tasks.classification(network="resnet81"),
            "Did you mean 'resnet8' or 'resnet18'",
        ),
        (lambda t: fl.tasks.classification(augment="crap"), "Did you mean 'crop'"),
        (lambda t: fl.tasks.classification(train=10**6), "1347 train images"),
    ],
)
def test_bad_input_is_one_clear_sentence(task, call, sentence, monkeypatch):
    monkeypatch.setattr("fedlearn.local.train", lambda *a: pytest.fail("training started"))
    with pytest.raises(ValueError, match=sentence) as error:
        call(task)
    assert "\n" not in str(error.value)


def test_but_replaces_one_part_and_keeps_the_rest():
    base = fl.methods.fedavg()
    half = fl.Uplink(Update(), Code(fl.wire.Dense(16)))
    mine = base.but(uplink=half, name="half")
    assert mine.name == "half" and mine.downlink == base.downlink and base.uplink == fl.Uplink()
    assert list(mine.parts()) == ["model", "objective", "optimizer", "uplink", "downlink", "server"]


def test_small_steps_get_one_thread_and_large_ones_all(task):
    """The limit is 50 million multiply-adds in the largest batch that a client can have."""
    small, large = fl.models.digits_cnn(), fl.models.resnet18((1, 8, 8))
    batch = math.ceil(50e6 / fl.models.multiply_adds(small, task.shape))
    many = SimpleNamespace(shape=task.shape, sizes=[1, 10**6])
    few = SimpleNamespace(shape=task.shape, sizes=[1, batch - 1])
    with local.threads(3):
        assert good_threads(small, task, 4) == 1
        assert good_threads(large, task, 64) == 3
        assert (good_threads(small, many, batch - 1), good_threads(small, many, batch)) == (1, 3)
        assert good_threads(small, few, 10**6) == 1, "no client has so large a batch"


def test_one_round_is_the_loop_of_the_docstring(task):
    server, clients = fl.methods.fedavg().server_side(task), fl.clients(fl.methods.fedavg(), task)
    heard = {}
    state, row = one_round(server, clients, 1, server.start(), heard, last=True)
    assert row["clients"] == [0, 1, 2, 3] and 0 <= row["accuracy"] <= 1 and row["seconds"] > 0
    assert heard == dict.fromkeys(range(4), 1)
    assert {"accuracy": row["accuracy"], "loss": row["loss"]} == server.evaluate(1, state, None)


def test_a_broadcast_is_decoded_once_and_undone_for_each_client(task):
    asked, decoded = [], []

    class Shifted(Step):
        def decode(self, x, ctx):
            asked.append(ctx.client)
            return {n: t + ctx.memory.get("shift", 0) for n, t in x.items()}

    class Counting(fl.wire.Dense):
        def decode(self, section, shape):
            decoded.append(shape)
            return super().decode(section, shape)

    def starts(downlink, order):
        method = fl.methods.fedavg().but(downlink=downlink)
        server, side = method.server_side(task), method.client_side(task)
        state, memories = server.start(), {k: {} for k in order}
        memories[0]["shift"] = torch.tensor(1.0)
        messages = {k: server.send(1, k, state)[0] for k in order}
        return state, [side.download(1, k, messages[k], memories[k]).start for k in order]

    state, own = starts(fl.Downlink(Shifted(), Code(Counting())), (0, 1, 2, 0))
    assert asked == [0, 1, 2, 0] and len(decoded) == len(state.weights)
    for name, t in state.weights.items():
        assert torch.equal(own[1][name], t) and torch.equal(own[2][name], t)
        assert torch.equal(own[0][name], t + 1) and torch.equal(own[3][name], t + 1)
    _, plain = starts(fl.Downlink(Code(Counting())), (0, 1))
    assert all(t is plain[1][n] for n, t in plain[0].items())
    assert len(decoded) == 2 * len(state.weights)


def test_refit_measures_statistics_and_touches_no_weight():
    task, method = fl.tasks.classification("digits", 3, train=200, test=60), fl.methods.fedavg()
    history = fl.run(method, task, 2)
    spoiled = {
        n: t * 100 if n.endswith("running_mean") else t.clone() for n, t in history.state.items()
    }
    before = {n: t.clone() for n, t in spoiled.items()}
    assert fl.refit(method, task, spoiled) == fl.refit(method, task, history.state)
    assert all(torch.equal(t, spoiled[n]) for n, t in before.items())
    net = fl.initial_network(method, task)
    net.load_state_dict(history.state, strict=False)
    x = task.inputs(task.train[0])
    with torch.no_grad():
        first = net.extractor[1](net.extractor[0](x))  # what the first normalisation sees
        seen = first.mean((0, 2, 3))
        net.extractor[2].momentum = 1.0
        net.train()(x)
    torch.testing.assert_close(net.extractor[2].running_mean, seen)


def test_a_round_names_who_was_missing_and_averages_the_others():
    task, method = fl.tasks.classification("digits", 3, train=90, test=60), fl.methods.fedavg()

    class Elsewhere(OneByOne):
        def exchange(self, t, what, clients, write):
            for k in clients:
                if k == 0:
                    yield k, fl.WireError("not connected")
                else:
                    answer = self.answer(t, k, write(k), what)
                    yield k, fl.WireError("No answer.") if k == 1 else answer

    server, heard = method.server_side(task), {}
    state, row = one_round(server, Elsewhere(method.client_side(task)), 1, server.start(), heard)
    assert row["clients"] == [0, 1, 2] and row["refused"] == {0: "not connected", 1: "No answer."}
    assert heard == {2: 1}
    alone, only = method.server_side(task), fl.clients(method, task)
    message, buffers = alone.send(1, 2, alone.start())
    answer = only.answer(1, 2, message)
    arrival = alone.receive(1, 2, answer, alone.start())
    expected = alone.aggregate(1, alone.start(), [arrival])
    assert all(torch.equal(t, state.weights[n]) for n, t in expected.weights.items())
    assert row["bytes_up"] == len(answer) and row["bytes_down"] == 2 * len(message)
    assert row["bytes_up_buffers"] == arrival.buffers and row["bytes_down_buffers"] == 2 * buffers


def test_without_flower_its_engine_says_how_to_get_it(monkeypatch, capsys):
    from importlib import metadata

    from fedlearn import cli

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(ImportError, match=r'pip install "\.\[flower\]"'):
        fl.run(fl.methods.fedavg(), fl.tasks.classification("digits", 2), 1, engine="flower-sim")
    assert cli.main(["run", "fedavg", "--engine", "flower-sim"]) == 2
    assert capsys.readouterr().err.startswith("fedlearn: Flower is not installed in this")

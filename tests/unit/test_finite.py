"""Finite lies and clients whose code fails: the run goes on from the last good state, the history
names round and suspects, and nothing of it is lost when it is stopped and resumed."""

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn import finite
from fedlearn.book import liars
from fedlearn.method import Exchange
from fedlearn.methods.fed_gkt import Client
from fedlearn.parts import Arrival, Code, State, Update
from fedlearn.round import one_round
from fedlearn.wire import Dense

FEDAVG, HALF = fl.methods.fedavg(), fl.Downlink(Code(Dense(16)))


@pytest.fixture
def lie_once(monkeypatch):
    """A method whose client 2, or others, multiply their updates in round 2."""

    def change(u, ctx, factor):
        return {n: factor * t for n, t in u.items()} if ctx.round == 2 else u

    monkeypatch.setitem(liars.LIES, "once", change)
    return lambda method, factor, who=(2,): liars.lying(method, who, "once", factor)


EDGE = math.sqrt(torch.finfo(torch.float32).max)


@pytest.mark.parametrize(
    "tensors, overflows",
    [
        ([torch.tensor([0.99 * EDGE]), torch.tensor([2**62]), torch.zeros(0)], False),
        ([torch.tensor([0.8 * EDGE]), torch.tensor([[0.8 * EDGE]])], True),
        ([torch.zeros(3), torch.tensor([math.inf])], True),
    ],
)
def test_a_state_overflows_when_its_squared_norm_does(tensors, overflows):
    state = State(dict(enumerate(tensors)))
    with pytest.raises(fl.errors.Diverged, match="weights") if overflows else nullcontext():
        finite.check(state, State({}))


def test_only_what_is_new_is_looked_at_and_whether_it_has_grown():
    bad = torch.tensor([math.nan])
    finite.check(State({"w": bad}, {"m": bad}), State({"w": bad}, {"m": bad}))
    for new in (State({"w": bad + 0}, {"m": bad}), State({"w": bad}, {"m": bad + 0})):
        with pytest.raises(fl.errors.Diverged, match="new (weights|server's memory)"):
            finite.check(new, State({"w": bad}, {"m": bad}))


@pytest.mark.parametrize(
    "norms, out",
    [
        ([1, 1, 1, 7.9], []),
        ([1, 1, 1, 8.1], [3]),
        ([1, 9], [1]),  # of two the lower is the median
        ([9, 9, 1, 1], [0, 1]),
        ([9], []),
        ([], []),
    ],
)
def test_who_is_far_above_the_median_stands_out(norms, out):
    assert finite.far(dict(enumerate(norms))) == out


def test_norms_are_those_of_all_that_came_and_a_client_that_is_left_out_was_never_seen():
    u = {"a": torch.tensor([1.0, -7.0]), "b": torch.tensor([[2.0]]), "c": torch.tensor([99])}
    came = {1: u, 2: Arrival(2, 1, u, 5), 3: {"a": torch.full((12,), 3e38)}, 4: b"bytes"}
    engine = SimpleNamespace(exchange=lambda t, what, clients, write: ((k, b"") for k in clients))
    ask = Exchange(7, engine, {"refused": {}, "untaken": None}, {3: 2, 9: 1})
    with pytest.raises(fl.errors.Diverged):
        ask.excuse(fl.errors.Diverged("nobody has answered"))
    read = list(ask(came, None, lambda k, data: came[k]))
    assert len(read) == 4
    norms = [54**0.5, 54**0.5, 12**0.5 * 3e38, 0]
    assert [*ask.norms.values()] == pytest.approx(norms) and ask.row["bytes_up_buffers"] == 5
    assert not ask.leave_out([5], fl.errors.Diverged("why"))  # who has not come
    assert not ask.leave_out(came, fl.errors.Diverged("why"))  # nobody would be left
    assert ask.leave_out([3, 1], fl.errors.Diverged("why")) and list(ask.row["refused"]) == [3, 1]
    engine.exchange = lambda *args: pytest.fail("nobody is asked again")
    assert list(ask(came, None, None)) == read[1:2] + read[3:]
    assert ask.close() == [2, 4] and ask.last_seen == {2: 7, 3: 2, 4: 7, 9: 1}


@pytest.mark.parametrize(
    "name, factor, engine",
    [
        ("fedavg", 1e8, "stacked"),  # weights that are finite, and a network whose output is not
        ("fedavg", 1e12, "sequential"),
        ("dgc", 1e30, "sequential"),
        ("stc", 1e30, "sequential"),
        ("fedpm", 1e30, "sequential"),
        ("scaffold", 1e30, "sequential"),
    ],
)
def test_one_finite_lie_does_not_end_a_run(name, factor, engine, task, tmp_path, lie_once):
    method, path = lie_once(fl.methods.get(name), factor), tmp_path / "c"
    with pytest.warns(UserWarning, match="without .* client 2"):
        whole = fl.run(method, task, 3, checkpoint=path, engine=engine)
    first, second, third = whole.rows
    assert (first["suspects"], list(second["refused"])) == ([], [2])
    assert all(row["untaken"] is None and math.isfinite(row["loss"]) for row in whole.rows)
    assert not third["refused"] and not third["suspects"]
    if name == "dgc":
        with pytest.warns(UserWarning, match="without .* client 2"):
            again = fl.run(method, task, 4)
        assert fl.run(method, task, 4, checkpoint=path) == again


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


KEEPING = "dgc", "feddyn", "fedcomgate", "scaffold", "stc"  # their clients remember rounds


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("name", KEEPING)
def test_a_round_that_was_not_taken_leaves_clients_where_they_were(name, together, task, lie_once):
    """All lie at once, so nobody stands out."""
    method = lie_once(fl.methods.get(name), 1e30, range(4))
    server, people = method.server_side(task), fl.clients(method, task, together=together)
    seen, states, kept = {}, [server.start()], []
    for t in (1, 2, 3):
        state, row = one_round(server, people, t, states[-1], seen)
        states.append(state)
        kept.append({k: dict(memory) for k, memory in people.memories.items()})
        assert (row["untaken"] is None) is (t != 2) and not row["suspects"] and not row["refused"]
        assert set(seen.values()) == {1 if t == 2 else t}
    assert states[2] is states[1] and all(equal(kept[0][k], kept[1][k]) for k in range(4))
    assert not any(equal(kept[1][k], kept[2][k]) for k in range(4))


@pytest.mark.parametrize("name", KEEPING)
def test_who_is_left_out_keeps_what_it_had_and_the_others_go_on(name, task, lie_once):
    method = lie_once(fl.methods.get(name), 1e30)
    server, people, seen = method.server_side(task), fl.clients(method, task), {}
    state, _ = one_round(server, people, 1, server.start(), seen)
    before = {k: dict(memory) for k, memory in people.memories.items()}
    with pytest.warns(UserWarning, match="client 2"):
        new, row = one_round(server, people, 2, state, seen)
    assert new is not state and list(row["refused"]) == row["suspects"] == [2]
    assert seen == {0: 2, 1: 2, 2: 1, 3: 2}
    assert [equal(before[k], people.memories[k]) for k in range(4)] == [False, False, True, False]


def plain(shape, classes):
    """A network without batch statistics, whose variances would say who lies."""
    layers = nn.Conv2d(shape[0], 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 32)
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(32, classes))


def test_a_poisoned_state_does_not_make_honest_clients_suspects(task, lie_once):
    """The mean takes one lie of 1e6. Then all clients diverge, each as far as it comes."""
    task = replace(task, network_name=plain)
    with pytest.warns(UserWarning) as said:
        history = fl.run(lie_once(fl.methods.fedcomgate(), 1e6), task, 6)
    untaken = [row["untaken"] for row in history.rows if row["untaken"]]
    assert untaken and all("poisoned" in why for why in untaken)
    assert {k for row in history.rows for k in row["suspects"]} == {2}
    texts = " ".join(str(warning.message) for warning in said)
    assert "2 (rounds: 1)" in texts and "jumped in round 2" in texts


def test_updates_that_the_mean_takes_are_flagged(task):
    method, task = liars.lying(FEDAVG, (2,), "flip", 100.0), replace(task, network_name=plain)
    with pytest.warns(UserWarning, match=r"Far more .* 2 \(rounds: 2\)"):
        history = fl.run(method, task, 2)
    assert [(row["untaken"], row["suspects"]) for row in history.rows] == [(None, [2])] * 2


def test_features_that_lie_do_not_end_fed_gkt(task, monkeypatch):
    honest, rounds = Client.knowledge, []

    def knowledge(self, k):
        known = honest(self, k)
        if k == 2 and len(rounds) == 1:
            known |= {n: 1e10 * known[n] for n in ("features", "logits") if n in known}
        return known

    monkeypatch.setattr(Client, "knowledge", knowledge)
    with pytest.warns(UserWarning, match="1 answers of fed_gkt were"):
        history = fl.run("fed_gkt", task, 3, on_round=lambda row, state: rounds.append(row))
    second, third = history.rows[1:]
    assert list(second["refused"]) == [2] and second["untaken"] is third["untaken"] is None
    assert math.isfinite(third["loss"])


def test_a_downlink_that_cannot_be_encoded_is_noticed_in_the_round_that_made_it(task):
    """Half precision ends at 65504: weights of 1e5 are finite, and so is what the network says."""

    class Bias(fl.Uplink):
        def encode(self, trained, ctx):
            if (ctx.client, ctx.round) == (2, 2):
                trained = {n: t.clone() for n, t in trained.items()}
                trained["classifier.2.bias"] += 1e6
            return super().encode(trained, ctx)

    with pytest.warns(UserWarning, match="without .* client 2"):
        history = fl.run(FEDAVG.but(downlink=HALF, uplink=Bias()), task, 3)
    assert [row["suspects"] for row in history.rows] == [[], [2], []]
    assert "half precision" in history.rows[1]["refused"][2]


def test_the_downlink_is_tried_on_those_who_are_next_and_changes_nothing(task, tmp_path):
    feedback = fl.Downlink(fl.parts.Feedback(), Code(Dense(16)))  # writes to the server's memory
    method, path = FEDAVG.but(downlink=feedback), tmp_path / "c"
    fl.run(method, task, 2, checkpoint=path)
    assert fl.run(method, task, 3, checkpoint=path) == fl.run(method, task, 3)
    server = method.server_side(task, fl.Settings(participation=0.5))
    asked, start, send = [], server.start(), server.send
    server.send = lambda t, k, *rest: asked.append((t, k)) or send(t, k, *rest)
    t = next(t for t in range(1, 9) if server.participants(t + 1) != server.participants(t + 2))
    server.check(t, start, start, {})
    assert asked == [(t + 1, k) for k in server.participants(t + 1)] and not start.memory


def failing(after):
    """FedAvg whose clients fail in their own code after some rounds."""

    class Fails(fl.TaskLoss):
        def begin(self, net, ctx):
            if ctx.round > after:
                raise ZeroDivisionError("a sample of none")
            return super().begin(net, ctx)

    return FEDAVG.but(objective=Fails())


class Late(fl.parts.Step):
    """Fails for client 1 in round 2, when its memory has been written to."""

    def sent(self, x, sent, ctx):
        ctx.memory["mark"] = torch.tensor(ctx.round)
        if (ctx.round, ctx.client) == (2, 1):
            raise RuntimeError("late")


@pytest.mark.parametrize("together", [1, 2])
def test_a_client_that_raises_is_refused_with_what_it_had_and_the_others_go_on(together, task):
    method = FEDAVG.but(uplink=fl.Uplink(Update(), Late()))
    server, engine = method.server_side(task), fl.clients(method, task, together=together)
    state, seen, rows = server.start(), {}, []
    for t in (1, 2, 3):
        state, row = one_round(server, engine, t, state, seen)
        rows.append(row["refused"])
        assert seen == {0: t, 1: 1 if t == 2 else t, 2: t, 3: t}
        assert {k: int(m["mark"]) for k, m in engine.memories.items()} == seen
    assert rows == [{}, {1: "Client 1 raised RuntimeError: late"}, {}]


@pytest.mark.parametrize("together", [1, 4])
def test_what_all_clients_raise_before_any_has_answered_is_a_bug_and_raised(together, task):
    method = failing(0)
    server, engine = method.server_side(task), fl.clients(method, task, together=together)
    with pytest.raises(ZeroDivisionError, match="a sample of none"):
        one_round(server, engine, 1, server.start(), {})
    with pytest.warns(UserWarning, match="4 answers of fedavg were refused"):
        history = fl.run(failing(1), task, 2)  # a bug no more: they have answered before
    assert list(history.rows[1]["refused"]) == [0, 1, 2, 3]


def test_a_network_is_tried_with_the_weights_of_the_round(task):
    server = FEDAVG.server_side(task)
    start = server.start()
    large = {n: 1e15 * w for n, w in start.weights.items()}
    negative = {n: w - 1e-2 - w * n.endswith("running_var") for n, w in start.weights.items()}
    server.check(1, start, start, {})
    for weights in (large, negative):
        with pytest.raises(fl.errors.Diverged, match="network"):
            server.check(1, State(weights), start, {})

"""Finite lies and clients whose code fails: the run goes on from the last good state, the history
names round and suspects, and nothing of it is lost when it is stopped and resumed."""

import math
from importlib import import_module

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn import finite, local
from fedlearn.book import liars
from fedlearn.methods.fed_gkt import Messages
from fedlearn.parts import Arrival, Code, Lossy, State, Update
from fedlearn.round import Exchange, one_round
from fedlearn.wire import Dense, TopK

split = import_module("fedlearn.methods.split_learning")
OTHERS = ("fed_gkt", "split_learning", "local")  # rounds of their own
AVERAGING = [name for name in fl.methods.METHODS if name not in OTHERS]
NOT_TAKEN = "rounds of .* were not taken, first round 2; history.rows says why and whom"


def overflows(tensors):
    return math.isnan(finite.norm(tensors))


@pytest.fixture
def lie_once(monkeypatch):
    """A method whose client 2 multiplies its update in round 2."""

    def change(u, ctx, factor):
        return {n: factor * t for n, t in u.items()} if ctx.round == 2 else u

    monkeypatch.setitem(liars.LIES, "once", change)
    return lambda method, factor=1e30: liars.lying(method, (2,), "once", factor)


def state_is_good(method, task, state):
    server = method.server_side(task)
    assert not overflows(state.values())
    local.load(server.tensors, state)
    assert math.isfinite(task.evaluate(server.net)["loss"])


# ---- what overflows


def test_a_state_overflows_when_its_squared_norm_does():
    edge = math.sqrt(torch.finfo(torch.float32).max)
    assert not overflows([torch.tensor([0.99 * edge])])
    assert overflows([torch.tensor([1.01 * edge])])
    assert overflows([torch.tensor([0.8 * edge]), torch.tensor([[0.8 * edge]])])
    assert overflows([torch.tensor([math.nan])])
    assert overflows([torch.zeros(3), torch.tensor([math.inf])])
    assert overflows([torch.tensor([1e200], dtype=torch.float64)])
    assert not overflows([torch.tensor([2**62]), torch.zeros(0), "no tensor"])
    assert not overflows([])


def test_only_what_is_new_is_looked_at():
    bad = torch.tensor([math.nan])
    finite.check(State({"w": bad}, {"m": bad}), State({"w": bad}, {"m": bad}))
    for new in (State({"w": bad + 0}, {"m": bad}), State({"w": bad}, {"m": bad + 0})):
        with pytest.raises(fl.errors.Diverged, match="new (weights|server's memory) is NaN"):
            finite.check(new, State({"w": bad}, {"m": bad}))


def test_the_magnitude_of_what_came():
    u = {"a": torch.tensor([1.0, -7.0]), "b": torch.tensor([[2.0]]), "c": torch.tensor([99])}
    assert finite.magnitude(u) == finite.magnitude(Arrival(0, 1, u)) == pytest.approx(54**0.5)
    huge = {"a": torch.full((4,), 1e30), "b": torch.full((12,), 3e38)}
    assert finite.magnitude(huge) == pytest.approx((4 * 1e60 + 12 * 9e76) ** 0.5)
    assert finite.magnitude(b"bytes") == finite.magnitude(True) == finite.magnitude({}) == 0


# ---- every method


@pytest.mark.parametrize("name", AVERAGING)
def test_one_finite_lie_does_not_end_a_run(name, task, tmp_path, lie_once):
    method = lie_once(fl.methods.get(name))
    path = tmp_path / "c"
    with pytest.warns(UserWarning, match=NOT_TAKEN):
        whole = fl.run(method, task, 4)
    with pytest.warns(UserWarning, match=NOT_TAKEN):
        fl.run(method, task, 2, checkpoint=path)
        resumed = fl.run(method, task, 4, checkpoint=path)
    assert resumed == whole and all(
        torch.equal(resumed.state[n], w) for n, w in whole.state.items()
    )
    first, second = whole.rows[:2]
    assert second["suspects"] == [2] and not second["refused"]
    assert (first["untaken"], first["suspects"]) == (None, [])
    assert second["accuracy"] == first["accuracy"] and second["loss"] == first["loss"]
    state_is_good(method, task, whole.state)
    assert all(math.isfinite(row["loss"]) for row in whole.rows)
    keeps = name in ("dgc", "stc", "smartidx", "fedcams")  # the liar's own error feedback lies on
    assert (whole.rows[3]["untaken"] is None) is not keeps


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("factor", [1e4, 1e12, 1e20, 1e36])
def test_a_lie_of_any_size_is_noticed_before_the_next_round(factor, engine, task, lie_once):
    """The smaller ones leave weights that are finite, and a network whose output is not."""
    with pytest.warns(UserWarning, match="1 rounds of fedavg were not taken"):
        history = fl.run(lie_once(fl.methods.fedavg(), factor), task, 3, engine=engine)
    assert [row["suspects"] for row in history.rows] == [[], [2], []]
    assert history.rows[2]["loss"] < history.rows[1]["loss"] == history.rows[0]["loss"]


@pytest.mark.parametrize("coder", [Dense(16), TopK(0.1, "float16")], ids=repr)
def test_what_no_coder_can_send_is_refused_and_the_run_goes_on(coder, task, lie_once):
    """Whichever coder it is that cannot hold the update of a client that diverged."""
    plain = fl.methods.fedavg().but(uplink=fl.Uplink(Update(), Lossy(coder)))
    with pytest.warns(UserWarning, match="1 answers of fedavg were refused"):
        history = fl.run(lie_once(plain, 1e9), task, 3)
    assert [list(row["refused"]) for row in history.rows] == [[], [2], []]
    assert "diverged sends nothing" in history.rows[1]["refused"][2]


@pytest.mark.parametrize("factor", [1e10, pytest.param(1e30, marks=pytest.mark.slow)])
def test_features_that_lie_do_not_end_fed_gkt(factor, task, tmp_path, monkeypatch):
    honest = Messages.knowledge

    def knowledge(self, net, k, batch_size):
        known = honest(self, net, k, batch_size)
        if k == 2 and len(rounds) > 1:
            known |= {n: factor * known[n] for n in ("features", "logits") if n in known}
        return known

    rounds = []
    monkeypatch.setattr(Messages, "knowledge", knowledge)
    count = lambda row, state: rounds.append(row["round"])  # noqa: E731
    with pytest.warns(UserWarning, match="1 (answers|rounds) of fed_gkt were"):
        history = fl.run(fl.methods.fed_gkt(), task, 3, on_round=count, checkpoint=tmp_path / "c")
    third = history.rows[2]  # the server leaves out what is far off, or does not take the round
    assert [*third["refused"], *third["suspects"]] == [2]
    assert not overflows(history.state.values())
    monkeypatch.setattr(Messages, "knowledge", honest)
    with pytest.warns(UserWarning, match="1 (answers|rounds) of fed_gkt"):
        resumed = fl.run(fl.methods.fed_gkt(), task, 4, checkpoint=tmp_path / "c")
    assert resumed.rows[3]["untaken"] is None and math.isfinite(resumed.rows[3]["loss"])


@pytest.mark.parametrize(
    "what, factor", [("features", 1e10), ("features", 1e30), ("weights", 1e20), ("weights", 1e30)]
)
def test_a_turn_that_lies_counts_for_nothing(what, factor, task, monkeypatch):
    """In split learning it is known whose turn it is: that client is refused, and no other."""
    answer = split.Client.answer

    def lying(self, t, client, asked, data, memory):
        lies = t == 2 and client == 1
        forward = self._forward
        if lies and what == "features":

            def huge(*args):
                H, y = forward(*args)
                return factor * H, y

            self._forward = huge
        if lies and what == "weights":
            write = type(self.messages.weights).write
            monkeypatch.setattr(
                type(self.messages.weights),
                "write",
                lambda message, kind, t, k, tensors, *n: write(
                    message,
                    kind,
                    t,
                    k,
                    {m: factor * w if m not in ("H", "y") else w for m, w in tensors.items()},
                    *n,
                ),
            )
        try:
            return answer(self, t, client, asked, data, memory)
        finally:
            self.__dict__.pop("_forward", None)
            if lies and what == "weights":
                monkeypatch.setattr(type(self.messages.weights), "write", write)

    monkeypatch.setattr(split.Client, "answer", lying)
    with pytest.warns(UserWarning, match="answers of split_learning were refused"):
        history = fl.run(fl.methods.split_learning(), task, 3)
    assert [list(row["refused"]) for row in history.rows] == [[], [1], []]
    assert not any(row["untaken"] for row in history.rows)
    assert not overflows(history.state.values())


def test_a_downlink_that_cannot_be_encoded_is_noticed_in_the_round_that_made_it(task, lie_once):
    """Half precision ends at 65504: weights of 1e5 are finite, and so is what the network says."""
    method = fl.methods.fedavg().but(downlink=fl.Downlink(Code(Dense(16))))

    class Bias(fl.Uplink):
        def encode(self, trained, ctx):
            if (ctx.client, ctx.round) == (2, 2):
                trained = {n: t.clone() for n, t in trained.items()}
                trained["classifier.2.bias"] += 1e6
            return super().encode(trained, ctx)

    with pytest.warns(UserWarning, match="1 rounds of fedavg were not taken, first round 2"):
        history = fl.run(method.but(uplink=Bias()), task, 3)
    assert [row["suspects"] for row in history.rows] == [[], [2], []]
    assert "cannot be coded" in history.rows[1]["untaken"]
    assert all(math.isfinite(loss) for loss in history.loss)


def test_to_try_the_downlink_changes_nothing(task, tmp_path):
    """Here to encode it writes to the server's memory, which is saved before it is sent."""
    feedback = fl.Downlink(fl.parts.Feedback(), Code(Dense(16)))
    method, path = fl.methods.fedavg().but(downlink=feedback), tmp_path / "c"
    whole = fl.run(method, task, 4)
    fl.run(method, task, 2, checkpoint=path)
    assert fl.run(method, task, 4, checkpoint=path) == whole
    server, clients = method.server_side(task), fl.clients(method, task)
    state, _ = one_round(server, clients, 1, server.start(), {})
    before = {n: t.clone() for n, t in state.memory.items()}
    server.check(1, state, server.start(), {})
    assert before.keys() == state.memory.keys()
    assert all(torch.equal(before[n], t) for n, t in state.memory.items())


def test_a_model_that_nobody_can_be_sent_is_an_error_at_once(task):
    class Large(fl.TaskNetwork):
        def build(self, task):
            net = super().build(task)
            nn.init.constant_(net.classifier[2].bias, 1e6)
            return net

    half = fl.Downlink(Code(Dense(16)))
    with pytest.raises(ValueError, match="too large for half precision cannot be coded"):
        fl.run(fl.methods.fedavg().but(model=Large(), downlink=half), task, 2)


def test_history_with_suspects_survives_json(task, lie_once):
    with pytest.warns(UserWarning, match="not taken"):
        history = fl.run(lie_once(fl.methods.fedavg()), task, 2)
    assert fl.History.from_json(history.to_json()).rows == history.rows


# ---- clients whose code fails


def failing(when):
    """FedAvg whose clients fail in their own code when it says so."""

    class Fails(fl.TaskLoss):
        def begin(self, net, ctx):
            loss = super().begin(net, ctx)
            clients = ctx.client if isinstance(ctx.client, list) else [ctx.client]

            def checked(net, batch):
                if any(when(ctx.round, k) for k in clients):
                    raise ZeroDivisionError("a sample of none")
                return loss(net, batch)

            return checked

    return fl.methods.fedavg().but(objective=Fails())


@pytest.mark.parametrize("together", [1, 2, 4])
def test_a_client_that_raises_is_refused_and_the_others_go_on(together, task):
    method = failing(lambda t, k: (t, k) == (2, 1))
    server, engine = method.server_side(task), fl.clients(method, task, together=together)
    state, heard, rows = server.start(), {}, []
    for t in (1, 2, 3):
        state, row = one_round(server, engine, t, state, heard)
        rows.append(row["refused"])
    assert rows == [{}, {1: "Client 1 raised ZeroDivisionError: a sample of none"}, {}]
    plain = fl.methods.fedavg()
    server, engine = plain.server_side(task), fl.clients(plain, task, together=together)
    first, _ = one_round(server, engine, 1, server.start(), {})
    assert heard == {0: 3, 1: 3, 2: 3, 3: 3} and first.weights.keys() == state.weights.keys()


@pytest.mark.parametrize("together", [1, 4])
def test_what_all_clients_raise_before_any_has_answered_is_a_bug_and_raised(together, task):
    method = failing(lambda t, k: True)
    server, engine = method.server_side(task), fl.clients(method, task, together=together)
    with pytest.raises(ZeroDivisionError, match="a sample of none"):
        one_round(server, engine, 1, server.start(), {})
    later = failing(lambda t, k: t > 1)  # a bug no more: they have answered before
    with pytest.warns(UserWarning, match="8 answers of fedavg were refused"):
        history = fl.run(later, task, 3)
    assert list(history.rows[2]["refused"]) == [0, 1, 2, 3]


def test_an_error_of_the_server_is_raised_as_ever(task):
    class Broken(fl.Mean):
        def aggregate(self, state, arrivals, ctx):
            list(arrivals)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fl.run(fl.methods.fedavg().but(server=Broken()), task, 1)


def test_a_failing_stack_of_clients_that_do_not_fail_alone_is_a_bug_and_raised(task):
    method = fl.methods.fedavg()
    server, engine = method.server_side(task), fl.clients(method, task, together=4)

    def broken(*args):
        raise IndexError("stack")

    engine._together = broken
    with pytest.raises(IndexError, match="stack"):
        one_round(server, engine, 1, server.start(), {0: 1})


@pytest.mark.parametrize("answer", [None, "text", 3])
def test_an_answer_that_is_no_bytes_is_refused(answer, task):
    method = fl.methods.fedavg()
    server, engine = method.server_side(task), fl.clients(method, task)
    honest = engine.side.answer
    engine.side.answer = lambda t, k, *rest: answer if k == 2 else honest(t, k, *rest)
    _, row = one_round(server, engine, 1, server.start(), {})
    name = type(answer).__name__
    assert row["refused"] == {2: f"Client 2 must answer with bytes, not with {name}."}


def test_a_client_that_raises_keeps_what_it_had(task):
    """Its memory has been written to when the last step of its uplink fails."""

    class Late(fl.parts.Step):
        def sent(self, x, sent, ctx):
            ctx.memory["mark"] = torch.tensor(ctx.round)
            if (ctx.round, ctx.client) == (2, 1):
                raise RuntimeError("late")

    method = fl.methods.fedavg().but(uplink=fl.Uplink(Update(), Late()))
    server, engine = method.server_side(task), fl.clients(method, task)
    state = server.start()
    for t in (1, 2):
        state, row = one_round(server, engine, t, state, {0: 1})
    assert row["refused"] == {1: "Client 1 raised RuntimeError: late"}
    assert [int(engine.memories[k]["mark"]) for k in range(4)] == [2, 1, 2, 2]


def test_synchronous_fed_gkt_says_whose_code_failed(task):
    method = fl.methods.fed_gkt()
    server, engine = method.server_side(task), fl.clients(method, task)
    honest = engine.side.answer

    def answer(t, k, *rest):
        if k == 3:
            raise KeyError("lost")
        return honest(t, k, *rest)

    engine.side.answer = answer
    with pytest.raises(fl.WireError, match=r"nothing usable came from clients \[3\]") as error:
        one_round(server, engine, 1, server.start(), {})
    assert repr(error.value.__cause__) == "KeyError('lost')"


def test_the_downlink_is_tried_on_those_who_are_next(task, monkeypatch):
    method = fl.methods.fedavg().but(downlink=fl.Downlink(Code(Dense(16))))
    server = method.server_side(task, fl.Settings(participation=0.5))
    asked, start = [], server.start()
    monkeypatch.setattr(server, "send", lambda t, k, *rest: asked.append((t, k)))
    t = next(t for t in range(1, 9) if server.participants(t + 1) != server.participants(t + 2))
    server.check(t, start, start, {})
    assert asked == [(t + 1, k) for k in server.participants(t + 1)]


def test_suspects_sent_the_largest_norm_or_a_thousandth_of_it():
    ask = Exchange(1, None, {"refused": {}, "unevaluated": {}}, {})
    assert ask.suspects() == []
    ask.sizes = {3: 2000.0, 5: 2.0, 7: 1.999}
    assert ask.suspects() == [3, 5]

"""Clients behind a Flower grid, without Flower's processes: the history of one process, whoever is
missing named, and nothing lost in silence."""

import pytest
from fedlearn_app import client_app
from fedlearn_app.config import experiment
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

import fedlearn as fl
from fedlearn.book import liars
from fedlearn.core import Server, local
from fedlearn.engines import flower
from fedlearn.errors import WireError

from .conftest import Grid, small

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(refused or missing|not taken|failed)"
)


def run_both(name, grid, rounds=3, **options):
    """The history of one process, and that on the grid."""
    task = small()
    here = fl.run(name, task, rounds, threads=1, **options)
    return here, fl.run(name, task, rounds, threads=1, engine=grid, **options)


def refusals(grid, name="fedavg"):
    """Whom three rounds on the grid refuse, and why."""
    return [row["refused"] for row in run_both(name, grid)[1].rows]


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("name", ["dgc", "fed_gkt", "split_learning"])
def test_history_is_that_of_one_process(name, simulated):
    """Of methods whose clients keep something, and of rounds of their own."""
    share = 1.0 if name == "fed_gkt" else 0.5  # which needs every client in every round
    here, remote = run_both(
        name, Grid(simulated), participation=share, epochs=2, evaluate_every=2
    )
    assert remote == here
    assert not any(row["refused"] or row["unevaluated"] for row in remote.rows)


@pytest.mark.parametrize("engines", ["grid loop", "loop grid"])
def test_a_stopped_simulation_goes_on_from_its_checkpoint_on_any_engine(
    engines, tmp_path
):
    task = small()
    path = tmp_path / "c"
    first, second = [
        Grid(True) if e == "grid" else "sequential" for e in engines.split()
    ]
    expected = fl.run("dgc", task, 4, threads=1)
    fl.run("dgc", task, 2, threads=1, engine=first, checkpoint=path)
    assert fl.run("dgc", task, 4, threads=1, engine=second, checkpoint=path) == expected


def test_what_a_client_has_lost_is_not_silently_begun_anew():
    def restarts(message, reply, context):
        if message.content[flower.RECORD].get("round") == 2:
            context.state.clear()

    first, second, third = refusals(Grid(change=restarts), "dgc")
    assert not first
    assert not second
    assert list(third) == [0, 1, 2, 3]
    assert all("lost" in why for why in third.values())
    # of a method whose clients keep nothing
    assert refusals(Grid(change=restarts)) == [{}, {}, {}]


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("name", ["scaffold", "stc"])
def test_a_client_hears_that_its_answer_was_refused(name, simulated, monkeypatch):
    def once(u, ctx, factor):
        return {n: factor * t for n, t in u.items()} if ctx.round == 2 else u

    monkeypatch.setitem(liars.LIES, "once", once)
    method = liars.lying(fl.methods.get(name), (1,), "once", float("nan"))
    here, remote = run_both(method, Grid(simulated), rounds=4)
    assert remote == here
    assert [[*row["refused"]] for row in here.rows] == [[], [1], [], []]


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("name", ["scaffold", "stc"])
def test_clients_hear_that_a_round_was_not_taken(name, simulated, monkeypatch):
    aggregate = Server.aggregate

    def infinite(self, t, *arguments):
        new = aggregate(self, t, *arguments)
        if t == 2:
            new.weights = {n: w / 0 for n, w in new.weights.items()}
        return new

    monkeypatch.setattr(Server, "aggregate", infinite)
    here, remote = run_both(name, Grid(simulated), rounds=4)
    assert remote == here
    assert [bool(row["untaken"]) for row in here.rows] == [False, True, False, False]


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda reply, values: [], "No answer within 0.3 s"),
        (lambda reply, values: [reply, reply], None),
        (lambda reply, values: values.update(message=7), "with bytes"),
        (lambda reply, values: values.update(refused="no room"), "no room"),
        ("a\nb", "Flower reports: b"),
    ],
)
def test_a_bad_answer_is_refused_and_the_others_are_used(change, reason):
    def bad(message, reply, context):
        if message.content[flower.RECORD].get("round") != 2 or context.node_id != 101:
            return None
        if isinstance(change, str):
            return [Message(Error(0, change), reply_to=message)]
        return change(reply, reply.content[flower.RECORD])

    first, second, third = refusals(
        Grid(change=bad, timeout=0.3 if reason else 5.0), "rpn"
    )
    assert not first
    assert not third
    assert list(second) == ([1] if reason else [])
    assert reason is None or reason in second[1]


def test_a_failing_client_is_named_and_keeps_what_it_had(monkeypatch):
    """In one process an error of a client's code would end the run."""
    train = local.train
    why = "Client 1 raised MemoryError: no room"
    errors = iter([WireError(why), MemoryError("no room")])

    def failing(net, method, ctx, settings):
        if (ctx.round, ctx.client) == (2, 1):
            raise next(errors)
        return train(net, method, ctx, settings)

    monkeypatch.setattr(local, "train", failing)
    here, remote = run_both("stc", Grid())
    assert [row["refused"] for row in remote.rows] == [{}, {1: why}, {}]
    assert here == remote


def test_clients_may_come_late_leave_and_come_back_as_another_node():
    class Moving(Grid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            return [n for n in super().get_node_ids() if n != 100 or self.looks > 3]

        def move(self, row, state):
            if row["round"] == 1:
                del self.contexts[102]
            if row["round"] == 2:
                self.join(2, node=7)

    grid = Moving()
    remote = fl.run("rpn", small(), 3, threads=1, engine=grid, on_round=grid.move)
    assert [row["refused"] for row in remote.rows] == [{}, {2: "not connected"}, {}]


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"client": 0}, "already"),
        ({"client": 4}, "partition-id"),
        ({"method": "rpn"}, "method is rpn there and fedavg here"),
        ({"data.images (a hash)": "0"}, "data.images"),
    ],
)
def test_a_node_that_cannot_take_part_is_turned_away_and_named(change, reason, caplog):
    def strange(message, reply, context):
        question = message.content[flower.RECORD]["question"]
        if context.node_id == 103 and question == flower.JOIN:
            reply.content[flower.RECORD].update(change)

    remote = fl.run("fedavg", small(), 1, threads=1, engine=Grid(change=strange))
    assert remote.rows[0]["refused"] == {3: "not connected"}
    assert reason in caplog.text


def test_the_run_config_states_an_experiment():
    config = {
        "method": "rpn",
        "options": "share=0.5 by=samples",
        "clients": 3,
        "rounds": 4,
    }
    config |= {
        "batch_size": 16,
        "augment": "crop flip",
        "train": "",
        "out": "x",
        "wait": 600,
    }
    e = experiment(config)
    assert e.options == {"share": 0.5, "by": "samples"}
    assert e.augment == (
        "crop",
        "flip",
    )
    assert (e.method, e.clients, e.rounds, e.batch_size, e.train) == (
        "rpn",
        3,
        4,
        16,
        None,
    )


def test_a_client_app_trains_on_data_of_its_machine(monkeypatch):
    monkeypatch.setattr(client_app, "task", lambda context: small())
    context = Context(
        1, 5, {"partition-id": 2}, RecordDict(), {"clients": 3, "threads": 1}
    )
    content = RecordDict({flower.RECORD: ConfigRecord({"question": flower.JOIN})})
    reply = client_app.app(Message(content, 5, "query"), context).content[flower.RECORD]
    head = flower.Job(fl.methods.fedavg(), small(), fl.Settings(), 1).head()
    assert dict(reply) == {"client": 2} | head

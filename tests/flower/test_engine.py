"""Clients behind a Flower grid, without Flower's processes: the history of one process, whoever is
missing named, and nothing lost in silence."""

import doctest
import json

import pytest
from torch import nn

import fedlearn as fl
from fedlearn import flower

from .conftest import Grid, small

pytestmark = pytest.mark.filterwarnings("ignore:.*refused or missing")


def both(name, grid, rounds=3, task=None, **how):
    """The history of one process, and that on the grid."""
    task = task or small()
    here = fl.run(name, task, rounds, threads=1, **how)
    return here, fl.run(name, task, rounds, threads=1, engine=grid, **how)


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("name", ["fedavg", "dgc", "fed_gkt", "split_learning"])
def test_history_is_that_of_one_process(name, simulated):
    """Of a method that keeps nothing, of one that does, and of rounds of their own."""
    share = 1.0 if name == "fed_gkt" else 0.5  # which needs every client in every round
    grid = Grid(simulated)
    here, there = both(name, grid, participation=share, epochs=2, evaluate_every=2)
    assert there == here
    assert not any(row["refused"] or row["unevaluated"] for row in there.rows)
    if name == "fedavg":  # messages hold the bytes of the run in one process
        asked = [dict(m.content[flower.RECORD]) for m in grid.sent]
        sizes = [len(values["message"]) for values in asked if values["what"] == "train"]
        assert sum(sizes) == there.bytes_down.sum()


@pytest.mark.parametrize("kind, name", [("detection", "fed_kgf"), ("segmentation", "stc")])
def test_boxes_and_masks_are_learned_too(kind, name):
    task = getattr(fl.tasks, kind)(clients=2, train=16, test=8)
    here, there = both(name, Grid(), 2, task, batch_size=4)
    assert there == here and there.loss[-1] > 0


@pytest.mark.parametrize("name", ["fedavg", "fed_gkt"])
def test_metrics_are_those_of_one_process(name):
    names = ("per_class", "per_client", "client_spread", "worst_client", "per_class_mix")
    source = fl.data.sources.load("digits")
    dataset = source.train_x[:180], source.train_y[:180]
    task = fl.tasks.classification(dataset, [range(k, 180, 3) for k in range(3)], metrics=names)
    here, there = both(name, Grid(), 2, task)
    assert there == here and set(names) <= set(there.rows[-1])


@pytest.mark.parametrize("engines", ["grid grid", "grid loop", "loop grid"])
def test_a_stopped_simulation_goes_on_from_its_checkpoint_on_any_engine(engines, tmp_path):
    task, path = small(), tmp_path / "c"
    first, second = [Grid(True) if e == "grid" else "sequential" for e in engines.split()]
    expected = fl.run("dgc", task, 4, threads=1)
    fl.run("dgc", task, 2, threads=1, engine=first, checkpoint=path)
    assert fl.run("dgc", task, 4, threads=1, engine=second, checkpoint=path) == expected


class Restarted(Grid):
    def deliver(self, message, context):
        if message.content[flower.RECORD].get("round") == 3:
            context.state.clear()
        return super().deliver(message, context)


def test_what_a_client_has_lost_is_not_silently_begun_anew():
    there = fl.run("dgc", small(), 3, threads=1, engine=Restarted())
    assert all("has been lost" in why for why in there.rows[2]["refused"].values())
    assert len(there.rows[2]["refused"]) == 4 and not there.rows[1]["refused"]
    here, there = both("fedavg", Restarted())  # whose clients keep nothing
    assert there == here


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda reply, values: [], "No answer within 0.3 s."),
        (lambda reply, values: [reply, reply], None),
        (lambda reply, values: values.update(message=values["message"][:-9]), "checksum"),
        (lambda reply, values: values.update(message=7), "bytes, not with int"),
        (lambda reply, values: values.clear(), "bytes, not with NoneType"),
        (lambda reply, values: reply.content.clear(), "bytes, not with NoneType"),
        (lambda reply, values: values.update(refused="no\x1b[2J room"), "no [2J room"),
    ],
)
def test_a_bad_answer_is_refused_and_the_others_are_used(change, reason):
    class Bad(Grid):
        def deliver(self, message, context):
            (reply,) = super().deliver(message, context)
            second = message.content[flower.RECORD].get("round") == 2
            if not second or context.node_config["partition-id"] != 1:
                return [reply]
            changed = change(reply, reply.content[flower.RECORD])
            return [reply] if changed is None else changed

    there = fl.run("rpn", small(), 3, threads=1, engine=Bad(timeout=0.3 if reason else 5.0))
    refused = [row["refused"] for row in there.rows]
    assert not refused[0] and not refused[2] and set(refused[1]) == ({1} if reason else set())
    assert reason is None or reason in refused[1][1]


def test_a_failing_client_is_named_and_keeps_what_it_had():
    def network(shape, classes):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

        def hook(*_):
            if grid.failing:
                raise MemoryError("no room")

        net.register_forward_pre_hook(hook)
        return net

    class Failing(Grid):
        failing = False

        def deliver(self, message, context):
            asked = message.content[flower.RECORD]
            self.failing = asked.get("round") == 2 and context.node_id == 101
            try:
                return super().deliver(message, context)
            finally:
                self.failing = False

    grid = Failing()
    there = fl.run("stc", small(network=network), 3, threads=1, engine=grid)
    refused = [row["refused"] for row in there.rows]
    assert refused == [{}, {1: "Client 1 raised MemoryError: no room"}, {}]


def test_a_dead_worker_ends_the_run():
    from flwr.app import Error, Message

    class Dead(Grid):
        def deliver(self, message, context):
            return [Message(Error(0, "ray.exceptions.ActorDiedError"), reply_to=message)]

    with pytest.raises(ConnectionError, match="worker process of the simulation has died"):
        fl.run("fedavg", small(), 1, engine=Dead())


def test_clients_may_come_late_leave_and_come_back_as_another_node():
    class Moving(Grid):
        def move(self, row, state):
            if row["round"] == 1:
                del self.contexts[102]
            if row["round"] == 2:
                self.join(2, node=7)

    grid = Moving()
    there = fl.run("rpn", small(), 3, threads=1, engine=grid, on_round=grid.move)
    assert [row["refused"] for row in there.rows] == [{}, {2: "not connected"}, {}]


def test_without_any_client_the_run_ends_and_says_so():
    class Empty(Grid):
        def join(self, k, node=None):
            pass

    with pytest.raises(ConnectionError, match="none of the 4 clients came within 0.2 s"):
        fl.run("fedavg", small(), 1, engine=Empty(wait=0.2))


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"client": 9}, "client 9 is not one of this run"),
        ({"client": 0}, "client 0 is already here"),
        ({"client": "x"}, "invalid literal"),
        ({"head": "{}"}, "method is None there and fedavg here"),
        ({"head": {"data.images (a hash)": "0"}}, "data.images (a hash) is 0 there"),
        ({"head": "[" * 100_000}, "recursion"),
    ],
)
def test_a_node_that_cannot_take_part_is_turned_away_and_named(change, reason, caplog):
    class Strange(Grid):
        def deliver(self, message, context):
            (reply,) = super().deliver(message, context)
            if context.node_id == 103 and message.content[flower.RECORD]["what"] == flower.JOIN:
                values = reply.content[flower.RECORD]
                head = change.get("head")
                if isinstance(head, dict):
                    values["head"] = json.dumps(json.loads(values["head"]) | head)
                else:
                    values.update(change)
            return [reply]

    there = fl.run("fedavg", small(), 1, threads=1, engine=Strange())
    assert there.rows[0]["refused"] == {3: "not connected"} and reason in caplog.text


@pytest.mark.parametrize("k", [-1, 4, True, "0", None])
def test_a_node_without_a_clients_number_is_turned_away(k):
    class Unnumbered(Grid):
        def join(self, own, node=None):
            super().join(own, node)
            self.contexts[100 + own].node_config["partition-id"] = k

    with pytest.raises(ConnectionError, match="partition-id is a client's number, 0 to 3"):
        fl.run("fedavg", small(), 1, engine=Unnumbered())


def test_the_run_config_states_an_experiment():
    config = {"method": "rpn", "options": "share=0.5 by=samples", "clients": 3, "rounds": 4}
    config |= {"batch_size": 16, "augment": "crop flip", "train": "", "out": "x", "wait": 600}
    e = flower.experiment(config)
    assert e.options == {"share": 0.5, "by": "samples"} and e.augment == ("crop", "flip")
    assert (e.method, e.clients, e.rounds, e.batch_size, e.train) == ("rpn", 3, 4, 16, None)


@pytest.mark.parametrize(
    "engine, noun",
    [(3, "engine"), ("flower", "engine 'flower'"), (lambda: flower.Simulation(0), "CPUs above 0")],
)
def test_what_is_no_engine_is_refused(engine, noun):
    with pytest.raises(ValueError, match=noun):
        fl.run("fedavg", small(), 1, engine=engine() if callable(engine) else engine)


@pytest.mark.parametrize("version", ["1.40.3", "2.0.0"])
def test_flowers_version_is_checked(version, monkeypatch):
    monkeypatch.setattr(flower.metadata, "version", lambda name: version)
    with pytest.raises(ImportError, match=f"Flower {version} is installed"):
        flower.require()


def test_examples():
    failed, tried = doctest.testmod(flower, optionflags=doctest.ELLIPSIS)
    assert tried and not failed

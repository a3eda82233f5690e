"""Clients behind a Flower grid, without Flower's processes: the history of one process, whoever is
missing named, and nothing lost in silence."""

import doctest

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from safetensors.torch import load_file
from torch import nn

import fedlearn as fl
from fedlearn import flower

from .conftest import Grid, small

pytestmark = pytest.mark.filterwarnings("ignore:.*refused or missing")


def both(name, grid, rounds=3, task=None, **options):
    """The history of one process, and that on the grid."""
    task = task or small()
    local = fl.run(name, task, rounds, threads=1, **options)
    return local, fl.run(name, task, rounds, threads=1, engine=grid, **options)


def refusals(grid, name="fedavg", task=None):
    """Whom three rounds on the grid refuse, and why."""
    return [row["refused"] for row in both(name, grid, task=task)[1].rows]


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("name", ["fedavg", "dgc", "fed_gkt", "split_learning"])
def test_history_is_that_of_one_process(name, simulated):
    """Of a method that keeps nothing, of one that does, and of rounds of their own."""
    share = 1.0 if name == "fed_gkt" else 0.5  # which needs every client in every round
    grid = Grid(simulated)
    local, remote = both(name, grid, participation=share, epochs=2, evaluate_every=2)
    assert remote == local
    assert not any(row["refused"] or row["unevaluated"] for row in remote.rows)
    if name == "fedavg":  # messages hold the bytes of the run in one process
        sizes = [len(q["message"]) for q in grid.sent if q["question"] == "train"]
        assert sum(sizes) == remote.bytes_down.sum()


@pytest.mark.parametrize("engines", ["grid grid", "grid loop", "loop grid"])
def test_a_stopped_simulation_goes_on_from_its_checkpoint_on_any_engine(engines, tmp_path):
    task, path = small(), tmp_path / "c"
    first, second = [Grid(True) if e == "grid" else "sequential" for e in engines.split()]
    expected = fl.run("dgc", task, 4, threads=1)
    fl.run("dgc", task, 2, threads=1, engine=first, checkpoint=path)
    assert fl.run("dgc", task, 4, threads=1, engine=second, checkpoint=path) == expected


def test_what_a_client_has_lost_is_not_silently_begun_anew():
    class Restarted(Grid):
        def deliver(self, message, context, question):
            if question.get("round") == 3:
                context.state.clear()
            return super().deliver(message, context, question)

    first, second, third = refusals(Restarted(), "dgc")
    assert not first and not second and list(third) == [0, 1, 2, 3]
    assert all("lost" in why for why in third.values())
    assert refusals(Restarted()) == [{}, {}, {}]  # of a method whose clients keep nothing


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda reply, values: [], "No answer within 0.3 s"),
        (lambda reply, values: [reply, reply], None),
        (lambda reply, values: values.update(message=values["message"][:-9]), "checksum"),
        (lambda reply, values: values.update(message=7), "bytes, not with int"),
        (lambda reply, values: reply.content.clear(), "bytes, not with NoneType"),
        (lambda reply, values: values.update(refused="no room"), "no room"),
        ("a\nb", "Flower reports: b"),
    ],
)
def test_a_bad_answer_is_refused_and_the_others_are_used(change, reason):
    class Bad(Grid):
        def deliver(self, message, context, question):
            (reply,) = super().deliver(message, context, question)
            if question.get("round") != 2 or context.node_config["partition-id"] != 1:
                return [reply]
            if isinstance(change, str):
                return [Message(Error(0, change), reply_to=message)]
            changed = change(reply, reply.content[flower.RECORD])
            return [reply] if changed is None else changed

    first, second, third = refusals(Bad(timeout=0.3 if reason else 5.0), "rpn")
    assert not first and not third and list(second) == ([1] if reason else [])
    assert reason is None or reason in second[1]


def test_a_message_that_flower_does_not_take():
    class Full(Grid):
        def push_messages(self, messages):
            pushed = list(super().push_messages(messages))
            return [None] if self.sent[-1].get("round") == 2 else pushed

    assert ["take" in why for why in refusals(Full())[1].values()] == [True] * 4


def test_a_failing_client_is_named_and_keeps_what_it_had():
    class Failing(Grid):
        failing = False

        def deliver(self, message, context, question):
            self.failing = question.get("round") == 2 and context.node_id == 101
            try:
                return super().deliver(message, context, question)
            finally:
                self.failing = False

    def network(shape, classes):
        def hook(*_):
            if grid.failing:
                raise MemoryError("no room")

        net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
        net.register_forward_pre_hook(hook)
        return net

    grid = Failing()
    refused = refusals(grid, "stc", small(network=network))
    assert refused == [{}, {1: "Client 1 raised MemoryError: no room"}, {}]


def test_a_dead_worker_ends_the_run():
    class Dead(Grid):
        def deliver(self, message, context, question):
            return [Message(Error(0, "ray.exceptions.ActorDiedError"), reply_to=message)]

    with pytest.raises(ConnectionError, match="worker"):
        fl.run("fedavg", small(), 1, engine=Dead())


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


def test_without_any_client_the_run_ends_and_says_so():
    class Empty(Grid):
        def join(self, k, node):
            pass

    with pytest.raises(ConnectionError, match="none of its 4 clients"):
        fl.run("fedavg", small(), 1, engine=Empty(wait=0.2))

    def ended():
        raise ConnectionError("Flower has ended.")

    grid = Empty()
    grid.options = *grid.options, ended
    with pytest.raises(ConnectionError, match="ended"):
        fl.run("fedavg", small(), 1, engine=grid)


def test_a_server_app_leaves_the_history_and_the_model_of_one_process(tmp_path):
    config = {"clients": 2, "train": 60, "test": 30, "threads": 1, "rounds": 2, "wait": 5}
    files = {"out": f"{tmp_path / 'h.json'}", "model": f"{tmp_path / 'm.safetensors'}"}
    grid = Grid()
    grid.app = flower.client_app()
    for k in range(2):
        grid.contexts[k] = Context(1, k, {"partition-id": k}, RecordDict(), config)
    flower._serve(grid, Context(1, 9, {}, RecordDict(), config | files))
    local = fl.run("fedavg", flower.experiment(config).make_task(), 2, threads=1)
    assert fl.History.from_json(files["out"]) == local
    model = load_file(files["model"])
    assert all(model[name].equal(t) for name, t in local.state.items())


def test_heads_tell_one_thread_from_several():
    one, two, three = (
        flower.Job(fl.methods.fedavg(), small(), fl.Settings(), n) for n in (1, 2, 3)
    )
    assert one.head() != two.head() == three.head()


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"client": 0}, "already"),
        ({"refused": "no room"}, "no room"),
        ({"client": 4}, "partition-id"),
        ({"method": "rpn"}, "method is rpn there and fedavg here"),
        ({"data.images (a hash)": "0"}, "data.images"),
        ({"data.images (a hash)": "0", "task.seed": "1"}, "task.seed"),
    ],
)
def test_a_node_that_cannot_take_part_is_turned_away_and_named(change, reason, caplog):
    class Strange(Grid):
        def deliver(self, message, context, question):
            (reply,) = super().deliver(message, context, question)
            if context.node_id == 103 and question["question"] == flower.JOIN:
                reply.content[flower.RECORD].update(change)
            return [reply]

    remote = fl.run("fedavg", small(), 1, threads=1, engine=Strange())
    assert remote.rows[0]["refused"] == {3: "not connected"} and reason in caplog.text
    assert "images" in reason or "data.images" not in caplog.text


@pytest.mark.parametrize("config", [{"partition-id": k} for k in (-1, 4, True, "0")] + [{}])
def test_a_node_without_a_clients_number_is_turned_away(config):
    class Unnumbered(Grid):
        def join(self, k, node):
            super().join(k, node)
            self.contexts[node].node_config = config

    with pytest.raises(ConnectionError, match="partition-id is a client's number, 0 to 3"):
        fl.run("fedavg", small(), 1, engine=Unnumbered())


def test_the_run_config_states_an_experiment():
    config = {"method": "rpn", "options": "share=0.5 by=samples", "clients": 3, "rounds": 4}
    config |= {"batch_size": 16, "augment": "crop flip", "train": "", "out": "x", "wait": 600}
    e = flower.experiment(config)
    assert e.options == {"share": 0.5, "by": "samples"} and e.augment == ("crop", "flip")
    assert (e.method, e.clients, e.rounds, e.batch_size, e.train) == ("rpn", 3, 4, 16, None)


def test_a_client_app_trains_on_the_stated_run_or_on_data_of_its_machine():
    config = {"clients": 3, "train": 60, "test": 30, "threads": 1, "lr": ""}
    context = Context(1, 5, {"partition-id": 2}, RecordDict(), config)
    message = Message(
        RecordDict({flower.RECORD: ConfigRecord({"question": flower.JOIN})}), 5, "query"
    )
    for task in (None, lambda context: small()):
        data = small() if task else flower.experiment(config).make_task()
        reply = flower.client_app(task)(message, context).content[flower.RECORD]
        head = flower.Job(fl.methods.fedavg(), data, fl.Settings(), 1).head()
        assert dict(reply) == {"client": 2} | head


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

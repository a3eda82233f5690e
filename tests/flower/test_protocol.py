"""What server and clients say to each other over Flower, without Flower's processes: the messages, contexts and apps are real,
the way between them is a list in this process (``conftest.Loop``)."""

import re
import threading

import pytest
import torch
from flwr.app import ConfigRecord, Error, RecordDict
from flwr.app import Message as Envelope

import fedlearn as fl
from fedlearn import flower
from fedlearn.wire import UP, Message, pack, unpack

from .conftest import Loop, small

METHODS = sorted(fl.methods.METHODS)
KEEPING = [
    "stc",
    "fedcomgate",
    "fed_gkt",
    "fed_repopt",
    "fedfusion personal",
]  # their clients keep something, each something else


def job(name="fedavg", task=None, rounds=3, **settings):
    name, *personal = name.split()
    return flower.Job(
        fl.methods.get(name, **dict.fromkeys(personal, True)),
        task or small(),
        rounds,
        fl.Settings(**settings),
        1,
    )


def here(job, rounds=None, **settings):
    """The same run in one process."""
    return fl.run(job.method, job.task, rounds or job.rounds, threads=1, **settings)


def lead(job, grid, **more):
    return flower.lead(job, grid, engine="loop", **({"progress": False} | more))


@pytest.fixture(autouse=True)
def time_is_up_when_nothing_more_comes(monkeypatch):
    """In place of seconds, of which a slow machine needs more: what is sent over a ``Loop`` is
    answered at once or never. After a look that has asked for every answer and changed nothing,
    there is nothing to wait for."""
    original = flower.Remote.until

    def until(self, condition, seconds):
        seen = []

        def over():
            if condition():
                return True
            seen.append([dict(d) for d in (self.nodes, self.away, self.greeted, self.asked)])
            return set(self.pulls) <= self.grid.stuck and seen[-2:-1] == seen[-1:]

        original(self, over, 3600)

    monkeypatch.setattr(flower.Remote, "until", until)


def sections(grid):
    """The bytes of the round's messages, in both directions, by (round, client)."""
    found = {}
    for m in grid.sent:
        if m.metadata.message_type == "train":
            (record,) = m.content.values()
            (data,) = record.values()
            assert type(data) is bytes
            found[int(m.metadata.group_id.split(".")[1]), m.metadata.dst_node_id - 100] = data
    return found


# ---- the same numbers


@pytest.mark.parametrize("name", METHODS)
def test_history_is_that_of_one_process_whatever_the_order_of_replies(name):
    j = job(name)
    assert lead(j, Loop(j)) == here(j)


@pytest.mark.parametrize("name", ["fedavg", "stc", "fed_repopt"])
def test_partial_participation_and_rare_evaluation(name):
    j = job(name, rounds=5, participation=0.5, evaluate_every=2, epochs=2, batch_size=16)
    assert lead(j, Loop(j)) == here(j, participation=0.5, evaluate_every=2, epochs=2, batch_size=16)


@pytest.mark.parametrize("name", ["rpn", "fed_gkt"])
def test_messages_hold_the_bytes_of_the_run_in_one_process(name):
    j, seen, up = job(name, rounds=2), {}, {}
    grid = Loop(j)
    deliver = grid.deliver

    def watch(message, context):
        (reply,) = deliver(message, context)
        if message.metadata.message_type == "train":
            (record,) = reply.content.values()
            (data,) = record.values()
            up[
                int(message.metadata.group_id.split(".")[1]), context.node_config["partition-id"]
            ] = data
        return [reply]

    grid.deliver = watch
    lead(j, grid)
    server, clients = (
        fl.Server(j.method, j.task, j.settings),
        fl.Clients(j.method, j.task, j.settings),
    )
    with fl.local.threads(1):
        for t in (1, 2):
            messages = {k: server.send(t, k) for k in range(4)}
            answers = {k: clients.answer(t, k, data) for k, data in messages.items()}
            seen |= {(t, k): data for k, data in messages.items()}
            assert answers == {k: up[t, k] for k in range(4)}
            server.aggregate(t, [server.receive(t, k, a) for k, a in answers.items()])
    assert seen == sections(grid)


def test_no_message_is_longer_than_its_schema_allows():
    for name in METHODS:
        method, task = fl.methods.get(name), small()
        server, clients = (
            fl.Server(method, task, fl.Settings()),
            fl.Clients(method, task, fl.Settings()),
        )
        down = server.send(1, 0)
        assert len(down) <= server.down.limit and len(clients.answer(1, 0, down)) <= server.up.limit


# ---- stop and go on


@pytest.mark.parametrize("name", ["fedavg", *KEEPING])
def test_a_restarted_server_goes_on_and_clients_remember(name, tmp_path):
    j = job(name)
    whole = here(j)
    first = flower.Job(j.method, j.task, 2, j.settings, 1)
    lead(first, Loop(first, tmp_path / "kept"), checkpoint=tmp_path / "c")
    again = Loop(j, tmp_path / "kept")  # new processes: nothing is in a context
    assert lead(j, again, checkpoint=tmp_path / "c") == whole


@pytest.mark.parametrize("name", KEEPING)
def test_a_round_that_was_begun_is_asked_for_again(name, tmp_path):
    """The server dies after the clients have answered round 2 and before it has saved it."""
    j, grid = job(name), None
    one = flower.Job(j.method, j.task, 1, j.settings, 1)
    grid = Loop(one)
    lead(one, grid, checkpoint=tmp_path / "c")
    saved = (tmp_path / "c").read_bytes()
    two = flower.Job(j.method, j.task, 2, j.settings, 1)
    lead(two, grid, checkpoint=tmp_path / "c")
    (tmp_path / "c").write_bytes(saved)
    assert lead(j, grid, checkpoint=tmp_path / "c") == here(j)


def test_a_server_set_back_further_is_refused(tmp_path):
    j, one, grid = job("stc"), job("stc", rounds=1), None
    grid = Loop(j)
    lead(one, grid, checkpoint=tmp_path / "c")
    saved = (tmp_path / "c").read_bytes()
    lead(j, grid, checkpoint=tmp_path / "c")
    (tmp_path / "c").write_bytes(saved)
    with pytest.warns(UserWarning, match="refused or missing"):
        history = lead(job("stc", rounds=2), grid, checkpoint=tmp_path / "c")
    assert all(
        "has answered round 3 and is now asked for round 2" in why
        for why in history.rows[1]["refused"].values()
    )


@pytest.mark.parametrize("name", KEEPING)
def test_what_a_client_has_lost_is_not_silently_begun_anew(name, tmp_path):
    j, two = job(name), job(name, rounds=2)
    grid = Loop(j)
    lead(two, grid, checkpoint=tmp_path / "c")
    grid.join(3)  # its process was restarted without a folder
    if name == "fed_gkt":  # which cannot go on without one of its clients
        with pytest.raises(fl.WireError, match=r"nothing usable came from clients \[3\]"):
            lead(j, grid, checkpoint=tmp_path / "c")
    else:
        with pytest.warns(UserWarning, match="1 uploads"):
            history = lead(j, grid, checkpoint=tmp_path / "c")
        assert list(history.rows[2]["refused"]) == [3]
        assert re.search(
            "what it kept has been lost|have not come|this client knows the model of round 0",
            history.rows[2]["refused"][3],
        )


def test_a_client_that_keeps_nothing_may_be_restarted():
    j = job("fedavg")
    grid = Loop(j)
    deliver = grid.deliver
    grid.deliver = lambda message, context: (context.state.clear(), deliver(message, context))[1]
    assert lead(j, grid) == here(j)


def test_notes_of_another_run_are_not_used(tmp_path):
    j = job("stc")
    for _ in range(2):
        assert lead(j, Loop(j, tmp_path)) == here(j)


def test_checkpoints_of_one_process_and_of_flower_are_not_mixed(tmp_path):
    j = job("stc")
    here(j, rounds=2, checkpoint=tmp_path / "here")
    with pytest.raises(ValueError, match="belongs to another run: clients differ"):
        lead(j, Loop(j), checkpoint=tmp_path / "here")
    two = job("stc", rounds=2)
    lead(two, Loop(two), checkpoint=tmp_path / "there")
    with pytest.raises(ValueError, match="belongs to another run: clients differ"):
        here(j, checkpoint=tmp_path / "there")


# ---- faults


def expected(j, lost):
    """The run in one process in which the uploads ``lost`` {round: clients} train and are not used, and those of ``away``
    (negative rounds) are not even asked."""
    server, clients = (
        fl.Server(j.method, j.task, j.settings),
        fl.Clients(j.method, j.task, j.settings),
    )
    accuracy = []
    with fl.local.threads(1):
        for t in range(1, j.rounds + 1):
            there = [k for k in range(j.task.clients) if k not in lost.get(-t, ())]
            answers = {k: clients.answer(t, k, server.send(t, k)) for k in there}
            server.aggregate(
                t, [server.receive(t, k, a) for k, a in answers.items() if k not in lost.get(t, ())]
            )
            accuracy.append(server.evaluate(t)["accuracy"])
    return accuracy


def corrupt(data, how):
    return {
        "cut": data[:-9],
        "altered": data[:40] + bytes([data[40] ^ 1]) + data[41:],
        "empty": b"",
        "foreign": b"hello" * 9,
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        "altered",
        "empty",
        "foreign",
        "error",
        "raises",
        "no record",
        "text",
        "another round",
        "another client",
        "too long",
    ],
)
def test_a_bad_answer_is_refused_and_the_others_are_used(how):
    j = job("stc")
    grid = Loop(j)
    deliver = grid.deliver

    def bad(message, context):
        (reply,) = deliver(message, context)
        bad_one = (
            message.metadata.message_type == "train" and context.node_config["partition-id"] == 2
        )
        if not bad_one or message.metadata.group_id.split(".")[1] != "2":
            return [reply]
        data = reply.content["fedlearn"]["message"]
        server = fl.Server(j.method, j.task, j.settings)
        own = unpack(data, server.up, kind=UP, round=2, client=2)
        match how:
            case "error":
                return [Envelope(Error(code=0, reason="Out of memory"), reply_to=message)]
            case "raises":
                return [
                    Envelope(Error(code=2, reason="Traceback ...\nKeyError: 'x'"), reply_to=message)
                ]
            case "no record":
                return [Envelope(RecordDict(), reply_to=message)]
            case "text":
                return [
                    Envelope(
                        RecordDict({"fedlearn": ConfigRecord({"message": "text"})}),
                        reply_to=message,
                    )
                ]
            case "another round":
                data = pack(Message(UP, 1, 2, own.samples, own.sections), server.up)
            case "another client":
                data = pack(Message(UP, 2, 1, own.samples, own.sections), server.up)
            case "too long":
                data = data + bytes(server.up.limit)
            case _:
                data = corrupt(data, how)
        return [
            Envelope(RecordDict({"fedlearn": ConfigRecord({"message": data})}), reply_to=message)
        ]

    grid.deliver = bad
    with pytest.warns(UserWarning, match="1 uploads of stc were refused or missing"):
        history = lead(j, grid)
    reason = {
        "cut": "checksum",
        "altered": "checksum|schema|made for",
        "empty": "shorter",
        "foreign": "not a fedlearn message",
        "error": "Out of memory",
        "raises": "KeyError: 'x'",
        "no record": "does not hold",
        "text": "does not hold",
        "another round": "Expected kind 1 of round 2",
        "another client": "Expected kind 1 of round 2, client 2",
        "too long": "longer than",
    }
    assert [list(row["refused"]) for row in history.rows] == [[], [2], []]
    assert re.search(reason[how], history.rows[1]["refused"][2])
    assert history.accuracy.tolist() == expected(j, {2: [2]})


def test_an_answer_that_comes_twice_counts_once():
    j = job("stc")
    grid = Loop(j)
    deliver = grid.deliver
    grid.deliver = lambda message, context: deliver(message, context) * 2
    assert lead(j, grid) == here(j)


def test_an_answer_that_never_comes_is_waited_for_and_named():
    j = job("stc")
    grid = Loop(j)
    deliver = grid.deliver

    def silent(message, context):
        lost = (
            message.metadata.group_id.split(".")[1:2] == ["2"]
            and context.node_config["partition-id"] == 1
        )
        return [] if lost else deliver(message, context)

    grid.deliver = silent
    with pytest.warns(UserWarning, match="1 uploads"):
        history = lead(j, grid, timeout=500)
    assert history.rows[1]["refused"] == {1: "No answer within 500 s."}
    assert history.accuracy.tolist() == expected(j, {-2: [1]})


def test_a_client_that_joins_late_takes_part_from_then_on():
    j, heard = job("stc"), []
    grid = Loop(j, clients=[0, 1, 2])
    deliver, pull = grid.deliver, grid.pull_messages

    def second(message):
        return message.metadata.group_id.split(".")[1:2] == ["2"]

    def late(message, context):
        if second(message) and 103 not in grid.contexts:
            grid.join(3)
        return deliver(message, context)

    def slow(ids):  # round 2 does not end before client 3 is here
        (message,) = (m for m in grid.sent if m.metadata.message_id == ids[0])
        return pull(ids) if not second(message) or "Client 3 is here." in heard else []

    grid.deliver, grid.pull_messages = late, slow
    with pytest.warns(UserWarning, match="2 uploads"):
        history = lead(j, grid, start_with=3, say=heard.append)
    assert [row["refused"] for row in history.rows] == [
        {3: "not connected"},
        {3: "not connected"},
        {},
    ]
    assert history.accuracy.tolist() == expected(j, {-1: [3], -2: [3]})


def test_the_first_round_begins_with_as_many_clients_as_were_asked_for(monkeypatch):
    """Two of four are enough if one of those that were drawn for the round is there."""

    def until(self, condition, seconds):
        while not condition():
            pass

    monkeypatch.setattr(flower.Remote, "until", until)
    j, heard = job("stc", rounds=1, participation=0.5), []
    one, other = fl.Server(j.method, j.task, j.settings).participants(1)
    grid = Loop(j, clients={0, 1, 2, 3} - {one, other})
    get_nodes = grid.get_nodes

    def come():
        if len(heard) == 2 and len(grid.contexts) == 2:  # the two that were not drawn are here
            grid.join(one)
        return get_nodes()

    grid.get_nodes = come
    with pytest.warns(UserWarning, match="1 uploads"):
        history = lead(j, grid, start_with=2, say=heard.append)
    assert history.rows[0]["refused"] == {other: "not connected"}
    for n in (0, 5, 1.5):
        with pytest.raises(ValueError, match=f"A run starts with 1 to 4 clients, not {n}."):
            lead(j, grid, start_with=n)


def test_nodes_that_go_and_come_back_under_another_number_of_flowers():
    j, two = job("stc"), job("stc", rounds=2)
    grid = Loop(j)
    lead(two, grid)
    context = grid.contexts.pop(102)
    grid.contexts[999] = context  # the same client, a new node for Flower
    assert lead(j, grid).accuracy.tolist() == here(j).accuracy.tolist()


def test_without_any_client_the_run_ends_and_says_so(tmp_path):
    j = job("fedavg")
    with pytest.raises(
        ConnectionError, match=r"Round 1: none of the 4 clients came within 500 s\."
    ):
        lead(j, Loop(j, clients=[]), wait=500)
    grid = Loop(j)
    deliver = grid.deliver

    def all_go(message, context):
        if message.metadata.group_id.split(".")[1:2] == ["2"]:
            grid.contexts.clear() if context.node_config["partition-id"] == 3 else None
        return deliver(message, context)

    grid.deliver = all_go
    with pytest.raises(ConnectionError, match="Round 3: none of the 4 clients came"):
        lead(j, grid, checkpoint=tmp_path / "c")
    assert lead(j, Loop(j), checkpoint=tmp_path / "c") == here(j)  # the finished rounds are there


def test_a_stopped_flower_ends_all_waiting():
    j, stop = job("fedavg"), threading.Event()
    stop.set()
    with pytest.raises(ConnectionError, match="Flower has stopped"):
        lead(j, Loop(j, clients=[]), stop=stop)


def test_what_clients_write_is_shown_without_control_characters(tmp_path):
    flower.say(tmp_path, "x\rStopped: y\u2028Stopped: z\x1b[2J\ud800" + 5000 * "a")
    (line,) = (tmp_path / "run.log").read_text().splitlines()
    assert line.startswith("x Stopped: y Stopped: z [2J") and len(line) <= 2000


def test_an_answer_that_flower_cannot_read_or_fetch_holds_up_nobody_else():
    j = job("stc")
    for fault in ("unreadable", "endless"):
        grid, release = Loop(j), threading.Event()
        pull = grid.pull_messages

        def bad(ids, grid=grid, pull=pull, release=release, fault=fault):
            (message,) = (m for m in grid.sent if m.metadata.message_id == ids[0])
            if message.metadata.dst_node_id == 101 and message.metadata.group_id.split(".")[
                1:2
            ] == ["2"]:
                if fault == "unreadable":
                    raise KeyError("0abc")
                grid.stuck.add(message.metadata.message_id)
                release.wait()
            return pull(ids)

        grid.pull_messages = bad
        try:
            with pytest.warns(UserWarning, match="1 uploads"):
                history = lead(j, grid, timeout=500)
        finally:
            release.set()
        reason = (
            "Flower cannot read the answer: '0abc'"
            if fault == "unreadable"
            else "No answer within 500 s."
        )
        assert [row["refused"] for row in history.rows] == [{}, {1: reason}, {}]
        assert history.accuracy.tolist() == expected(j, {2: [1]})


def test_a_client_that_changes_its_run_after_the_greeting_is_noticed():
    j = job("stc")
    grid, other = Loop(j), Loop(job("stc", task=small(seed=5)))
    deliver = grid.deliver

    def changed(message, context):
        if message.metadata.group_id.split(".")[1:2] == ["2"] and context.node_id == 101:
            return [other.app(message, other.contexts[101])]
        return deliver(message, context)

    grid.deliver = changed
    with pytest.warns(UserWarning, match="1 uploads"):
        history = lead(j, grid)
    assert history.rows[1]["refused"] == {1: "Client 1 means another run than when it was greeted."}
    assert history.accuracy.tolist() == expected(j, {-2: [1]})


def test_a_restarted_server_judges_absent_clients_by_what_they_showed_last(tmp_path):
    method = fl.methods.fed_gkt(asynchronous=True)
    j = flower.Job(method, small(), 3, fl.Settings(participation=0.5), 1)
    two = flower.Job(method, small(), 2, fl.Settings(participation=0.5), 1)
    grid = Loop(j, tmp_path)
    lead(two, grid, checkpoint=tmp_path / "c")
    drawn = fl.Server(method, j.task, j.settings).participants(3)
    again = Loop(j, tmp_path, clients=drawn)  # only they come back
    with pytest.warns(
        UserWarning, match="is judged by what it showed last, if anything: not connected"
    ):
        history = lead(j, again, checkpoint=tmp_path / "c")
    assert history == here(j, participation=0.5)


# ---- who may join


@pytest.mark.parametrize(
    "other, words",
    [
        (dict(task=small(seed=1)), "task.seed is 1 there and 0 here"),
        (dict(name="rpn"), "method is rpn there and fedavg here; parts.uplink is"),
        (dict(batch_size=8), "settings.batch_size is 8 there and 32 here"),
        (dict(task=small(partition="dirichlet:0.5")), "task.partition is Dirichlet"),
    ],
)
def test_a_client_of_another_run_is_turned_away_by_name(other, words):
    j = job()
    with pytest.raises(ConnectionError, match="none of the 4 clients could join") as error:
        lead(j, Loop(job(**other)))
    assert words in str(error.value) and "Client 0 was turned away" in str(error.value)


def test_one_client_of_another_run_is_left_out():
    j, heard = job("stc"), []
    grid, other = Loop(j), Loop(job("stc", task=small(seed=5)))
    deliver = grid.deliver
    grid.deliver = lambda m, context: (
        (other.app if context.node_id == 101 else deliver)(m, context)
        if context.node_id != 101
        else [other.app(m, other.contexts[101])]
    )
    with pytest.warns(UserWarning, match="3 uploads"):
        history = lead(j, grid, say=heard.append)
    assert all(row["refused"] == {1: "not connected"} for row in history.rows)
    assert "Client 1 was turned away: task.seed is 5 there and 0 here." in heard
    assert history.accuracy.tolist() == expected(j, {-t: [1] for t in (1, 2, 3)})


def test_a_second_node_that_says_it_is_the_same_client_is_turned_away():
    j, heard = job("stc"), []
    grid = Loop(j)
    grid.join(2, node=500)
    assert lead(j, grid, say=heard.append) == here(j)
    assert "A node was turned away: client 2 is already here." in heard


@pytest.mark.parametrize(
    "head",
    [
        "{",
        "[" * 100_000,
        "[1, 2]",
        '{"method": "fedavg"}',
        "null",
        '{"method": "\\ud800"}',
        '{"method": "x\\rStopped: y\\u001b[2J"}',
        '"' + "x" * 5_000_000 + '"',
    ],
)
def test_a_node_that_says_nonsense_is_turned_away(head):
    j, heard = job("stc"), []
    grid = Loop(j)
    deliver = grid.deliver

    def nonsense(message, context):
        if message.metadata.message_type == "query.hello" and context.node_id == 102:
            return [
                Envelope(
                    RecordDict({"fedlearn": ConfigRecord({"client": 2, "head": head})}),
                    reply_to=message,
                )
            ]
        return deliver(message, context)

    grid.deliver = nonsense
    with pytest.warns(UserWarning, match="3 uploads"):
        history = lead(j, grid, say=heard.append)
    assert all(list(row["refused"]) == [2] for row in history.rows)
    strange = [
        text
        for text in heard
        if not text.startswith(("Client 0 is", "Client 1 is", "Client 3 is", "Round "))
    ]
    assert len(strange) == 1 and strange[0].isprintable() and len(strange[0]) <= 2000


def test_notes_that_cannot_be_read_are_an_error_not_a_new_start(tmp_path):
    j = job("stc", rounds=2)
    lead(j, Loop(j, tmp_path), checkpoint=tmp_path / "c")
    (tmp_path / "client-1.safetensors").write_bytes(b"broken")
    j = job("stc")
    with pytest.warns(UserWarning, match="1 uploads"):
        history = lead(j, Loop(j, tmp_path), checkpoint=tmp_path / "c")
    assert "client-1.safetensors cannot be read" in history.rows[2]["refused"][1]


def test_a_key_belongs_to_one_client():
    j, heard = job("stc"), []
    grid = Loop(j)
    grid.names = {100: "0", 101: "1", 102: "2", 103: "3"}
    assert lead(j, grid, say=heard.append) == here(j)
    grid = Loop(j)
    grid.names = {100: "0", 101: "2", 102: "alice"}
    with pytest.warns(UserWarning, match="3 uploads"):
        history = lead(j, grid, say=heard.append)
    assert all(list(row["refused"]) == [1] for row in history.rows)
    assert (
        "A node was turned away: it says that it is client 1 and has the key of client 2." in heard
    )


@pytest.mark.parametrize("k", [4, -1, None, "0"])
def test_a_node_without_a_clients_number_is_turned_away(k):
    j = job()
    grid = Loop(j, clients=[])
    grid.join(k, node=7)
    with pytest.raises(ValueError, match="partition-id must be a client's number, 0 to 3"):
        lead(j, grid)  # here the app's error is not caught by Flower's processes


# ---- arguments


def test_a_job_and_flowers_version_are_checked(monkeypatch):
    with pytest.raises(ValueError, match="rounds must be"):
        job(rounds=0)
    from importlib import metadata

    monkeypatch.setattr(metadata, "version", lambda name: "1.20.0rc1")
    with pytest.raises(
        ImportError,
        match=r"Flower 1.20.0rc1 is installed; fedlearn works with 1.41 or newer, before 2",
    ):
        flower.require()

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(
        ImportError, match=r'Flower is not installed: pip install "fedlearn\[flower\]"'
    ):
        fl.run(fl.methods.fedavg(), small(), 1, engine="flower-sim")


def test_waiting_takes_time():
    with pytest.raises(ValueError, match="Seconds to wait must be above 0"):
        lead(job(), Loop(job()), timeout=0)


def test_only_what_a_simulation_made_is_removed(tmp_path):
    folder = tmp_path / "c.clients"
    folder.mkdir()
    for name in ("client-0.safetensors", "thesis.txt"):
        (folder / name).write_text("x")
    flower.forget(tmp_path / "c")
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    (folder / "thesis.txt").unlink()
    flower.forget(tmp_path / "c")
    assert not folder.exists()


def test_resources_are_checked_before_anything_is_started():
    with pytest.raises(ValueError, match="CPUs above 0"):
        flower.simulate(job(), cpus_per_client=0)
    with pytest.raises(ValueError, match="memory_limit is for stacked training"):
        fl.run(fl.methods.fedavg(), small(), 1, engine="flower-sim", memory_limit=1e9)


def test_a_long_message_is_refused_before_memory_is_taken():
    import tracemalloc

    j = job()
    server = fl.Server(j.method, j.task, j.settings)
    data = bytes(50_000_000)
    tracemalloc.start()
    with pytest.raises(fl.WireError, match="50000000 bytes is longer than"):
        server.receive(1, 0, data)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_memory_of_clients_is_shown_in_an_envelope_of_its_own():
    j = job("fed_gkt", rounds=1)
    grid = Loop(j)
    lead(j, grid)
    kept = [m for m in grid.sent if m.metadata.message_type == "query.kept"]
    assert len(kept) == 4 and all(dict(m.content["fedlearn"]) == {"message": b""} for m in kept)
    schema = flower.shown(fl.Server(j.method, j.task, j.settings), j.method)
    reply = grid.app(kept[0], grid.contexts[100])
    message = unpack(reply.content["fedlearn"]["message"], schema, kind=UP, round=1, client=0)
    assert message.sections.keys() == schema.shapes.keys()
    assert all(
        torch.isfinite(t).all() for t in fl.method.Link().unpack(message.sections, schema).values()
    )

"""What server and clients say to each other over Flower, without Flower's processes: the messages,
contexts and apps are real, the way between them is a list in this process (``conftest.Loop``)."""

import io
import re
import threading
from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, Error, RecordDict
from flwr.app import Message as Envelope

import fedlearn as fl
from fedlearn import flower
from fedlearn.flower.client import Notes
from fedlearn.flower.envelope import Question
from fedlearn.wire import DOWN, UP, Message, pack, unpack

from .conftest import Loop, small

METHODS = sorted(fl.methods.METHODS)
KEEPING = [
    "stc",
    "fedcomgate",
    "fed_gkt",
    "fed_repopt",
    "fedfusion personal",
    "scaffold",
    "feddyn",
    "local",
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


class Engine(fl.engines.Loop):
    """Clients of this process, whose messages are noted by (round, number, asked for, client): what
    came, what went back. The answers ``lost`` {round: clients} are given and do not arrive; who is
    in it under the round's negative number is not even asked."""

    def __init__(self, job, lost=None):
        super().__init__(job.method.client_side(job.task, job.settings))
        self.lost, self.seen = lost or {}, {}

    def answer(self, t, client, data, what="train"):
        number = sum((r, k) == (t, client) and w != "evaluate" for r, _, w, k in self.seen)
        answer = super().answer(t, client, data, what)
        self.seen[t, number, what, client] = data, answer
        return answer

    def exchange(self, t, what, clients, write):
        for k in clients:
            if k in self.lost.get(-t, ()):
                yield k, fl.WireError("not asked")
            else:
                answer = self.answer(t, k, write(k), what)
                yield k, fl.WireError("lost") if k in self.lost.get(t, ()) else answer


def rows(job, engine):
    """The history's rows of a run with this engine."""
    server, heard, found = job.method.server_side(job.task, job.settings), {}, []
    state = server.start()
    with fl.training.threads(1):
        for t in range(1, job.rounds + 1):
            state, row = fl.round.one_round(server, engine, t, state, heard, t == job.rounds)
            found.append(row)
    return found


def expected(job, lost):
    """The accuracies of the run in one process with these faults."""
    return [row["accuracy"] for row in rows(job, Engine(job, lost))]


def question(message):
    """The name of a message's question, or nothing if it is not one."""
    one = message.metadata.message_type == "query.ask"
    return Question.parse(message.metadata.group_id) if one else None


def asks(message, t, what=None):
    """Whether a message is a question of round ``t``, and for this."""
    q = question(message)
    return bool(q) and q.round == t and what in (None, q.what)


def data_of(message):
    """The one ``bytes`` value that a message holds."""
    (record,) = message.content.values()
    (data,) = record.values()
    assert type(data) is bytes
    return data


# ---- the same numbers


@pytest.mark.parametrize("name", METHODS)
def test_history_is_that_of_one_process_whatever_the_order_of_replies(name):
    j = job(name)
    assert lead(j, Loop(j)) == here(j)


@pytest.mark.parametrize("name", ["fedavg", "stc", "fed_repopt"])
def test_partial_participation_and_rare_evaluation(name):
    j = job(name, rounds=5, participation=0.5, evaluate_every=2, epochs=2, batch_size=16)
    assert lead(j, Loop(j)) == here(j, participation=0.5, evaluate_every=2, epochs=2, batch_size=16)


@pytest.mark.parametrize("name", ["fedavg", "fed_gkt"])
def test_metrics_are_those_of_one_process(name):
    names = ("per_class", "per_client", "client_spread", "worst_client")
    task = fl.tasks.classification("digits", 3, train=120, test=60, metrics=names)
    j = job(name, task, rounds=2)
    there = lead(j, Loop(j))
    assert there == here(j) and set(names) <= set(there.rows[-1])


@pytest.mark.parametrize("name", ["rpn", "fed_gkt", "split_learning"])
def test_messages_hold_the_bytes_of_the_run_in_one_process(name):
    """Evaluation's too, where the method asks clients for it."""
    j, up = job(name, rounds=2, batch_size=16), {}
    grid, engine = Loop(j), Engine(j)
    deliver = grid.deliver

    def watch(message, context):
        (reply,) = deliver(message, context)
        up[message.metadata.message_id] = reply
        return [reply]

    grid.deliver = watch
    assert lead(j, grid).rows[1]["bytes_up"] == rows(j, engine)[1]["bytes_up"]
    found = {}
    for message in grid.sent:
        q, k = question(message), message.metadata.dst_node_id - 100
        if q:
            answer = data_of(up[message.metadata.message_id])
            found[q.round, q.number, q.what, k] = data_of(message), answer
    assert found == engine.seen
    whats = {"rpn": {"train"}, "fed_gkt": {"train", "evaluate"}}
    assert {what for _, _, what, _ in found} == whats.get(name, {"hand over", "step"})


def test_no_message_is_longer_than_its_schema_allows():
    for name in METHODS:
        j = job(name, rounds=1, batch_size=16)
        server, engine = j.method.server_side(j.task, j.settings), Engine(j)
        rows(j, engine)
        for (_, _, _, k), (down, up) in engine.seen.items():
            assert k in range(4) and len(up) <= server.longest()
            if isinstance(j.method, fl.Averaging):
                assert len(down) <= server.down.limit and server.longest() == server.up.limit


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
        with pytest.warns(UserWarning, match="1 answers"):
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
        if not asks(message, 2) or context.node_config["partition-id"] != 2:
            return [reply]
        data = reply.content["fedlearn"]["message"]
        server = j.method.server_side(j.task, j.settings)
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
    with pytest.warns(UserWarning, match="1 answers of stc were refused or missing"):
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
        lost = asks(message, 2) and context.node_config["partition-id"] == 1
        return [] if lost else deliver(message, context)

    grid.deliver = silent
    with pytest.warns(UserWarning, match="1 answers"):
        history = lead(j, grid, timeout=500)
    assert history.rows[1]["refused"] == {1: "No answer within 500 s."}
    assert history.accuracy.tolist() == expected(j, {-2: [1]})


def test_a_client_that_joins_late_takes_part_from_then_on():
    j, heard = job("stc"), []
    grid = Loop(j, clients=[0, 1, 2])
    deliver, pull = grid.deliver, grid.pull_messages

    def late(message, context):
        if asks(message, 2) and 103 not in grid.contexts:
            grid.join(3)
        return deliver(message, context)

    def slow(ids):  # round 2 does not end before client 3 is here
        (message,) = (m for m in grid.sent if m.metadata.message_id == ids[0])
        return pull(ids) if not asks(message, 2) or "Client 3 is here." in heard else []

    grid.deliver, grid.pull_messages = late, slow
    with pytest.warns(UserWarning, match="2 answers"):
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
    one, other = j.method.server_side(j.task, j.settings).participants(1)
    grid = Loop(j, clients={0, 1, 2, 3} - {one, other})
    get_nodes = grid.get_nodes

    def come():
        if len(heard) == 2 and len(grid.contexts) == 2:  # the two that were not drawn are here
            grid.join(one)
        return get_nodes()

    grid.get_nodes = come
    with pytest.warns(UserWarning, match="1 answers"):
        history = lead(j, grid, start_with=2, say=heard.append)
    assert history.rows[0]["refused"] == {other: "not connected"}
    for n in (0, 5, 1.5):
        with pytest.raises(ValueError, match=f"A run starts with 1 to 4 clients, not {n}."):
            lead(j, grid, start_with=n)


def test_why_a_client_was_turned_away_is_said_even_if_it_has_gone():
    """Client 1 means another seed and leaves when it has said so, client 2 leaves without a word,
    client 3 after a greeting that fits."""
    j, heard = job("stc"), []
    grid, other = Loop(j), Loop(job("stc", task=small(seed=5)))
    deliver, pull = grid.deliver, grid.pull_messages

    def answers(message, context):
        if context.node_id == 101:
            return [other.app(message, other.contexts[101])]
        if context.node_id == 102:
            return [Envelope(Error(code=0, reason="Node Unavailable"), reply_to=message)]
        return deliver(message, context)

    def pulled(ids):
        (message,) = (m for m in grid.sent if m.metadata.message_id == ids[0])
        node = message.metadata.dst_node_id
        return [] if node != 100 and grid.contexts.pop(node, None) else pull(ids)

    grid.deliver, grid.pull_messages = answers, pulled
    with pytest.warns(UserWarning, match="9 answers"):
        history = lead(j, grid, start_with=1, say=heard.append)
    assert history.rows[0]["refused"] == dict.fromkeys([1, 2, 3], "not connected")
    away = "Client 1 was turned away: task.seed is 5 there and 0 here."
    assert {*heard[:2]} == {"Client 0 is here.", away}
    assert all(line.startswith("Round ") for line in heard[2:])


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
        if asks(message, 2):
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


@pytest.mark.parametrize("letters", ["utf-8", "ascii"])
def test_what_clients_write_is_shown_without_control_characters(letters, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, letters))
    flower.say("x\rStopped: y\u2028Stopped: z\x1b[2J\ud800\u00e9" + 5000 * "a")
    (line,) = raw.getvalue().decode(letters).splitlines()
    assert line.startswith("x Stopped: y Stopped: z [2J") and len(line) <= 2000


def test_an_answer_that_flower_cannot_read_or_fetch_holds_up_nobody_else():
    j = job("stc")
    for fault in ("unreadable", "endless"):
        grid, release = Loop(j), threading.Event()
        pull = grid.pull_messages

        def bad(ids, grid=grid, pull=pull, release=release, fault=fault):
            (message,) = (m for m in grid.sent if m.metadata.message_id == ids[0])
            if message.metadata.dst_node_id == 101 and asks(message, 2):
                if fault == "unreadable":
                    raise KeyError("0abc")
                grid.stuck.add(message.metadata.message_id)
                release.wait()
            return pull(ids)

        grid.pull_messages = bad
        try:
            with pytest.warns(UserWarning, match="1 answers"):
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
        if asks(message, 2) and context.node_id == 101:
            return [other.app(message, other.contexts[101])]
        return deliver(message, context)

    grid.deliver = changed
    with pytest.warns(UserWarning, match="1 answers"):
        history = lead(j, grid)
    assert history.rows[1]["refused"] == {1: "Client 1 means another run than when it was greeted."}
    assert history.accuracy.tolist() == expected(j, {-2: [1]})


# ---- several questions a round


def split(rounds=2, **settings):
    """Split learning with momentum: two batches a client and epoch, two epochs, five questions a
    turn."""
    method = fl.methods.split_learning().but(optimizer=fl.SGD(0.1, momentum=0.9))
    settings = fl.Settings(epochs=2, batch_size=16, **settings)
    return flower.Job(method, small(), rounds, settings, 1)


def test_a_turn_may_go_from_process_to_process():
    """What a client needs for its next answer lies in its notes, not in the process that gave the
    last."""
    j = split()
    grid = Loop(j)
    deliver = grid.deliver

    def elsewhere(message, context):
        flower.client._HERE.clear()
        return deliver(message, context)

    grid.deliver = elsewhere
    assert lead(j, grid) == here(j, **vars(j.settings))
    asked = [q for q in map(question, grid.sent) if q]
    assert [q.number for q in asked] == 2 * 4 * [0, 1, 2, 3, 4]
    assert [q.heard for q in asked] == 20 * [0] + 20 * [1]


@pytest.mark.parametrize("given", [0, 1, 4])
def test_a_client_that_is_lost_in_its_turn_takes_part_in_the_next_round(given):
    """Client 1 is restarted without a folder after so many answers of round 2. It cannot go on with
    a turn that it has begun; but it keeps nothing from one turn to the next."""
    j = split(3)
    grid = Loop(j)
    deliver = grid.deliver

    def restarted(message, context):
        if asks(message, 2) and context.node_id == 101 and question(message).number == given:
            context.state.clear()
        return deliver(message, context)

    class Broken(Engine):
        def exchange(self, t, what, clients, write):
            for k, answer in super().exchange(t, what, clients, write):
                here = sum(key[::3] == (2, 1) for key in self.seen) > given > 0
                yield k, fl.WireError("lost") if here and (t, k) == (2, 1) else answer

    grid.deliver = restarted
    if given == 0:
        assert lead(j, grid) == here(j, **vars(j.settings))
        return
    with pytest.warns(UserWarning, match="1 answers"):
        history = lead(j, grid)
    why = f"Client 1 has answered 0 questions of round 2, and the server means {given}."
    assert [row["refused"] for row in history.rows] == [{}, {1: why}, {}]
    for row, want in zip(history.rows, rows(j, Broken(j)), strict=True):
        for column in ("accuracy", "loss", "bytes_up", "bytes_down", "bytes_handover"):
            assert row[column] == want[column]


@pytest.mark.parametrize(
    "name, sent",
    [("split_learning", 1), ("split_learning", 8), ("split_learning", 20), ("fed_gkt", 6)],
)
def test_a_round_that_was_partly_asked_is_asked_again_from_its_first_question(name, sent, tmp_path):
    """The server is killed after so many questions of round 2 (20 are all, and 6 are in the middle
    of evaluation) and goes on from its checkpoint of round 1."""
    j = split(3) if name == "split_learning" else job(name)
    whole, grid = here(j, **vars(j.settings)), Loop(j, tmp_path / "kept")
    push, save = grid.push_messages, fl.checkpoint.save

    def count():
        return sum(asks(m, 2) for m in grid.sent)

    def pushes(messages):
        if count() == sent and asks(messages[0], 2):
            raise KeyboardInterrupt
        return push(messages)

    def saves(*args):
        if count() == sent:
            raise KeyboardInterrupt
        save(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(grid, "push_messages", pushes)
        patch.setattr(fl.checkpoint, "save", saves)
        lead(j, grid, checkpoint=tmp_path / "c")
    assert count() == sent
    first = len(grid.sent)
    assert lead(j, grid, checkpoint=tmp_path / "c") == whole
    again = next(filter(None, map(question, grid.sent[first:])))
    assert (again.round, again.number) == (2, 0)


@pytest.mark.parametrize("how", ["silent", "refused"])
def test_a_question_without_an_answer_has_no_number(how):
    """The next one has its number, and begins where it would have begun."""
    j = job("fed_gkt", rounds=1)
    grid = Loop(j)
    remote = flower.Remote(j, grid, history_of(j), 1, 1)
    remote.ready(1, range(4))
    server = j.method.server_side(j.task, j.settings)
    write = {k: server.letters.down(k).write(DOWN, 1, k, {}) for k in range(4)}.__getitem__
    deliver = grid.deliver

    def bad(message, context):
        if not asks(message, 1, "train") or context.node_id != 101:
            return deliver(message, context)
        refused = ConfigRecord({"refused": "Not today."})
        answers = [Envelope(RecordDict({"fedlearn": refused}), reply_to=message)]
        return [] if how == "silent" else answers

    grid.deliver = bad
    answers = dict(remote.exchange(1, "train", range(4), write))
    assert str(answers[1]) == {"silent": "No answer within 1 s.", "refused": "Not today."}[how]
    shown = dict(remote.exchange(1, "evaluate", range(4), write))
    assert [question(m).number for m in grid.sent[-4:]] == [1, 0, 1, 1]
    edges = [server.letters.edge.read(UP, 1, k, shown[k]) for k in range(4)]
    assert [bool(edge) for edge in edges] == [True, False, True, True]


def history_of(j):
    return fl.History(j.method.name, {"engine": {"name": "loop"}, "run": "a"})


def test_an_answer_is_handed_on_before_later_clients_have_answered():
    """And in the order of the clients, whatever the order in which they answer."""
    j, taken, waits_for = job("fedavg"), [], {0: 2, 1: 0}
    grid = Loop(j)
    remote = flower.Remote(j, grid, history_of(j), 1, 3600)
    remote.ready(1, range(4))
    pull, server = grid.pull_messages, j.method.server_side(j.task, j.settings)

    def pulled(ids):
        (message,) = (m for m in grid.sent if m.metadata.message_id == ids[0])
        first = waits_for.get(message.metadata.dst_node_id - 100)
        return pull(ids) if first in (None, *taken) else []

    grid.pull_messages = pulled
    write = {k: server.send(1, k, server.start())[0] for k in range(4)}.__getitem__
    for k, answer in remote.exchange(1, "train", [2, 0, 1, 3], write):
        assert isinstance(answer, bytes)
        taken.append(k)
    assert taken == [2, 0, 1, 3]


@pytest.mark.parametrize(
    "round, number, found",
    [
        (4, 0, (3, "before", "before")),  # from the first question on: the server was set back
        (4, 2, (4, "before", "after")),
        (5, 0, (4, "after", "after")),
        (9, 0, (4, "after", "after")),
        (4, 1, "Client 3 has answered 2 questions of round 4, and the server means 1."),
        (4, 3, "Client 3 has answered 2 questions of round 4, and the server means 3."),
        (5, 2, "Client 3 has answered 0 questions of round 5, and the server means 2."),
        (3, 0, "Client 3 has answered round 4 and is now asked for round 3; resume from"),
        (3, 2, "Client 3 has answered round 4 and is now asked for round 3; resume from"),
    ],
)
def test_where_an_answer_begins(round, number, found, tmp_path):
    """From the context's notes, and from the file's."""
    context = Loop(job()).contexts[103]
    notes = Notes(context, tmp_path, 3)
    memory = {name: {name: torch.ones(2)} for name in ("before", "after")}
    notes.write(Question("a", "0", 4, 3, 1, "train"), memory["before"], memory["after"])
    for _ in range(2):
        asked = Question("a", "0", round, 3, number, "train")
        if isinstance(found, str):
            with pytest.raises(fl.WireError, match=re.escape(found)):
                notes.start(asked)
        else:
            known, before, after = notes.start(asked)
            assert (known, *before, *after) == found
        other = Question("b", "0", round, 3, 0, "train")
        assert notes.start(other) == (0, {}, {})
        context.state.clear()
    (tmp_path / "client-3.safetensors").unlink()
    assert notes.start(Question("a", "0", 4, 0, 0, "train")) == (0, {}, {})


@pytest.mark.parametrize(
    "name", ["", "a", "a-b.1.2.3", "a-b.1.2.x.train", "a-b.1.2.-3.train", "\n"]
)
def test_a_question_without_a_proper_name_is_refused(name):
    asked = Question("0a", "1b", 12, 3, 0, "hand over")
    assert Question.parse(str(asked)) == asked
    j = job()
    grid = Loop(j)
    message = flower.envelope.envelope({"message": b""}, 100, "query.ask", group_id=name)
    reply = grid.app(message, grid.contexts[100])
    assert "is not the name of a question." in reply.content["fedlearn"]["refused"]


# ---- evaluation


def test_evaluation_is_a_question_of_the_round_and_changes_no_notes(tmp_path):
    method = fl.methods.fed_gkt(asynchronous=True)
    j = flower.Job(method, small(), 3, fl.Settings(participation=0.5), 1)
    grid, kept = Loop(j, tmp_path), {}
    deliver = grid.deliver

    def watch(message, context):
        before = context.state.get("fedlearn")
        replies = deliver(message, context)
        if q := question(message):
            changed = context.state.get("fedlearn") is not before
            kept.setdefault((q.what, q.round), {})[context.node_id - 100] = q.number, changed
        return replies

    grid.deliver = watch
    history = lead(j, grid)
    assert history == here(j, participation=0.5) and (history.bytes_evaluation_up > 0).all()
    for row in history.rows:
        t, drawn = row["round"], row["clients"]
        assert kept["train", t] == {k: (0, True) for k in drawn}
        assert kept["evaluate", t] == {k: (int(k in drawn), False) for k in range(4)}


def test_clients_that_are_not_there_are_left_out_of_evaluation(tmp_path):
    """Only those that were drawn come back to a restarted server."""
    method = fl.methods.fed_gkt(asynchronous=True)
    j = flower.Job(method, small(), 3, fl.Settings(participation=0.5), 1)
    two = flower.Job(method, j.task, 2, j.settings, 1)
    lead(two, Loop(j, tmp_path), checkpoint=tmp_path / "c")
    drawn = method.server_side(j.task, j.settings).participants(3)
    away = sorted({0, 1, 2, 3} - set(drawn))
    with pytest.warns(UserWarning, match="2 answers to evaluation of fed_gkt were refused"):
        history = lead(j, Loop(j, tmp_path, clients=drawn), checkpoint=tmp_path / "c")
    whole, last = here(j, participation=0.5), history.rows[2]
    assert history.rows[2].keys() == whole.rows[2].keys()
    assert last["refused"] == {} and last["unevaluated"] == dict.fromkeys(away, "not connected")
    assert last["bytes_evaluation_down"] == whole.rows[2]["bytes_evaluation_down"] / 2

    class Away(Engine):  # in one process: the mean over those that show their network
        def exchange(self, t, what, clients, write):
            for k in clients:
                gone = (t, what) == (3, "evaluate") and k in away
                yield k, fl.WireError("") if gone else self.answer(t, k, write(k), what)

    for row, want in zip(history.rows, rows(j, Away(j)), strict=True):
        same = row.keys() - {"seconds", "unevaluated"}
        assert {n: row[n] for n in same} == {n: want[n] for n in same}


def test_who_has_lost_what_evaluation_asks_for_says_so():
    method = fl.methods.fed_gkt(asynchronous=True)
    j = flower.Job(method, small(), 3, fl.Settings(participation=0.5), 1)
    server = method.server_side(j.task, j.settings)
    lost = min(set(server.participants(2)) - set(server.participants(3)))
    grid = Loop(j)
    deliver = grid.deliver

    def restarted(message, context):
        if asks(message, 3) and context.node_id == 100 + lost:
            context.state.clear()
        return deliver(message, context)

    grid.deliver = restarted
    with pytest.warns(UserWarning, match="1 answers to evaluation"):
        history = lead(j, grid)
    why = f"Client {lost} answered round 2, but what it kept has been lost; it needs its folder."
    assert [row["unevaluated"] for row in history.rows] == [{}, {}, {lost: why}]


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


@pytest.mark.parametrize("what", ["images", "clients", "permutations"])
def test_clients_and_server_with_other_data_of_the_same_name_refuse_one_another(what):
    """Such as those who have the official CIFAR-100 and those who have the lossy one."""
    permuted = small(partition="permuted")
    x, y = permuted.train
    split = permuted.split
    other = {
        "images": dict(train=(x ^ 1, y)),
        "clients": dict(split=replace(split, indices=split.indices[::-1])),
        "permutations": dict(split=replace(split, permutations=split.permutations[::-1])),
    }[what]
    j, theirs = job(task=permuted), job(task=replace(permuted, **other))
    assert j.task.describe() == theirs.task.describe()
    a, b = (task.digests[what] for task in (theirs.task, j.task))
    grid, told = Loop(j), []
    grid.app = flower.client_app(lambda context: theirs, tell=told.append)
    with pytest.raises(ConnectionError) as error:
        lead(j, grid)
    name = f"data.{what} (a hash)"
    assert f"Client 0 was turned away: {name} is {a} there and {b} here." in str(error.value)
    assert f"turned this client away: {name} is {b} at the server and {a} here." in told[0]


def test_one_client_of_another_run_is_left_out():
    j, heard = job("stc"), []
    grid, other = Loop(j), Loop(job("stc", task=small(seed=5)))
    deliver = grid.deliver
    grid.deliver = lambda m, context: (
        (other.app if context.node_id == 101 else deliver)(m, context)
        if context.node_id != 101
        else [other.app(m, other.contexts[101])]
    )
    with pytest.warns(UserWarning, match="3 answers"):
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
    with pytest.warns(UserWarning, match="3 answers"):
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
    with pytest.warns(UserWarning, match="1 answers"):
        history = lead(j, Loop(j, tmp_path), checkpoint=tmp_path / "c")
    assert "client-1.safetensors cannot be read" in history.rows[2]["refused"][1]


def test_a_key_belongs_to_one_client():
    j, heard = job("stc"), []
    grid = Loop(j)
    grid.names = {100: "0", 101: "1", 102: "2", 103: "3"}
    assert lead(j, grid, say=heard.append) == here(j)
    grid = Loop(j)
    grid.names = {100: "0", 101: "2", 102: "alice"}
    with pytest.warns(UserWarning, match="3 answers"):
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
        ImportError,
        match=r'Flower is not installed in this environment: .*pip install "\.\[flower\]"',
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
    server = j.method.server_side(j.task, j.settings)
    data = bytes(50_000_000)
    tracemalloc.start()
    with pytest.raises(fl.WireError, match="50000000 bytes is longer than"):
        server.receive(1, 0, data, server.start())
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


SEEING = ("fedavg", "rpn", "fed_kgf", "stc", "signsgd", "dgc", "fedcams", "qsgd")


@pytest.mark.parametrize("name", SEEING)
@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_boxes_and_masks_are_learned_over_flower_too(kind, name):
    one = job(name, getattr(fl.tasks, kind)(clients=2, train=12, test=4), 2, batch_size=4)
    history = lead(one, Loop(one))
    assert history == here(one, batch_size=4)
    assert len(history) == 2 and not any(row["refused"] for row in history.rows)

"""The round: against plain PyTorch, against itself after stop and resume, and with bad input."""

import copy
import json
import math
import random
import struct
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import checkpoint, local, rng
from fedlearn.method import Exchange
from fedlearn.models import state_of
from fedlearn.parts import Code, State, Step, Update
from fedlearn.round import good_threads, one_round, same_body
from fedlearn.wire import UP, Message, pack

FEDAVG = fl.methods.fedavg()


def scratch_fedavg(task, rounds, lr, epochs, batch_size):
    """Federated averaging in plain PyTorch: models are averaged, nothing is encoded."""
    net = fl.initial_network(FEDAVG, task)
    w = {n: t.clone() for n, t in state_of(net).items()}
    for t in range(1, rounds + 1):
        models, sizes = [], []
        for k in range(task.clients):
            mine = copy.deepcopy(net)
            mine.load_state_dict(w, strict=False)
            optimiser = torch.optim.SGD(mine.parameters(), lr)
            x, y = task.train[0][task.split.indices[k]], task.train[1][task.split.indices[k]]
            shuffle = rng.generator(task.seed, "shuffle", t, k)
            for _ in range(epochs):
                order = torch.randperm(len(y), generator=shuffle)
                for picked in order.split(batch_size):
                    optimiser.zero_grad()
                    F.cross_entropy(mine(task.inputs(x[picked])), y[picked]).backward()
                    optimiser.step()
            models.append({n: v.clone() for n, v in state_of(mine).items()})
            sizes.append(len(y))
        w = {n: sum(s / sum(sizes) * m[n] for s, m in zip(sizes, models, strict=True)) for n in w}
    return w


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


def test_fedavg_is_the_average_of_the_models(task):
    history = fl.run(fl.methods.fedavg(0.05), task, 2, epochs=2, batch_size=16)
    expected = scratch_fedavg(task, 2, 0.05, 2, 16)
    assert set(expected) == set(history.state)
    for name, w in expected.items():
        torch.testing.assert_close(history.state[name], w, rtol=1e-4, atol=1e-5)


def test_same_seed_same_history_whatever_the_global_generators_do(task):
    first = fl.run("rpn", task, 2)
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state()
    second = fl.run("rpn", task, 2)
    assert first == second and equal(first.state, second.state)
    assert torch.equal(before, torch.get_rng_state()), "a run must leave the global generator alone"
    assert first != fl.run("rpn", replace(task, seed=1), 2)


def test_dropout_has_named_randomness():
    task = fl.tasks.classification("digits", 2, network="mcmahan_cnn", train=40, test=20)
    histories = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        histories.append(fl.run(FEDAVG, task, 1))
    assert histories[0] == histories[1]


def test_both_sides_draw_the_same_clients_anew_each_round_and_at_least_one():
    task = fl.tasks.classification("digits", 10, train=100, test=20)
    settings = fl.Settings(participation=0.3)
    server, clients = FEDAVG.server_side(task, settings), FEDAVG.client_side(task, settings)
    drawn = [server.participants(t) for t in range(1, 30)]
    assert all(len(set(d)) == 3 and list(d) == sorted(d) for d in drawn) and len(set(drawn)) > 10
    assert [clients.participants(t) for t in range(1, 30)] == drawn
    few = FEDAVG.server_side(task, fl.Settings(participation=1e-9))
    assert len(few.participants(1)) == 1


def test_the_test_set_is_looked_at_every_n_rounds_and_at_the_end(task):
    history = fl.run(FEDAVG, task, 3, evaluate_every=2)
    assert [row["accuracy"] is not None for row in history.rows] == [False, True, True]
    assert fl.run(FEDAVG, task, 3).accuracy[1] == history.accuracy[1], "to look changes nothing"


# ---- every byte crosses in an exchange -----------------------------------------------------------


class Scripted:
    """Clients that answer what they are told, whatever they are asked; what was asked is kept."""

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


@pytest.mark.parametrize("question", ["train", "evaluate"])
def test_an_exchange_counts_every_byte_and_notes_who_is_refused_and_who_was_seen(question):
    away = fl.WireError("Nobody there.")
    engine = Scripted(**{question: {0: b"abc", 1: b"defg", 2: away, 3: "text"}})
    row, seen, train = blank_row(), {0: 1}, question == "train"
    ask = Exchange(7, engine, row, seen)
    answers = ask(range(4), lambda k: (b"x" * (10 + k), k), question)
    assert list(ask.read(answers, odd, question)) == [(0, 3)]
    why = {
        1: "That is even.",
        2: "Nobody there.",
        3: "Client 3 must answer with bytes, not with str.",
    }
    assert row["refused" if train else "unevaluated"] == why
    assert not row["unevaluated" if train else "refused"]
    way, other = ("bytes", "bytes_evaluation")[:: 1 if train else -1]
    assert (row[f"{way}_up"], row[f"{way}_down"]) == (3 + 4, 10 + 11 + 12 + 13), "refused, too"
    assert row[f"{way}_down_buffers"] == 1 + 2 + 3 and not row[f"{other}_up"] + row[f"{other}_down"]
    assert seen == {0: 7 if train else 1}
    assert engine.asked == [(7, question, k, b"x" * (10 + k)) for k in range(4)]
    ask.note("a column of its own", 2)
    assert row["a column of its own"] == 2
    with pytest.raises(ZeroDivisionError):  # no refusal is not swallowed
        list(ask.read([(0, b"")], lambda k, data: 1 / 0))


def test_history_counts_real_bytes(task):
    history = fl.run(FEDAVG, task, 2, participation=0.5)
    net = fl.initial_network(FEDAVG, task)
    numbers = sum(t.numel() for t in state_of(net).values())
    buffers = numbers - fl.models.parameter_count(net)
    for row in history.rows:
        assert len(row["clients"]) == 2 and row["seconds"] > 0
        assert row["bytes_up_buffers"] == row["bytes_down_buffers"] == 2 * 4 * buffers
        for key in ("bytes_up", "bytes_down"):
            assert 2 * 4 * numbers < row[key] <= 2 * (4 * numbers + 1024)


def test_an_upload_from_no_samples_or_of_nobody_who_was_drawn_is_refused(task):
    """It would weigh nothing, and a round of such uploads would divide by zero."""
    server = FEDAVG.server_side(task, fl.Settings(participation=0.5))
    [one, _], state = server.participants(1), server.start()
    sections = {n: fl.wire.Dense().encode(torch.zeros_like(t)) for n, t in server.initial.items()}
    none, some = (pack(Message(UP, 1, one, n, sections), server.up) for n in (0, 1))
    assert server.receive(1, one, some, state).samples == 1
    with pytest.raises(fl.WireError, match="no samples"):
        server.receive(1, one, none, state)
    other = next(k for k in range(4) if k not in server.participants(1))
    with pytest.raises(fl.WireError, match="not drawn"):
        server.receive(1, other, pack(Message(UP, 1, other, 1, sections), server.up), state)


@pytest.fixture(scope="module")
def uneven():
    """Seven clients, of whom neither the first nor the last has most samples."""
    return fl.tasks.classification("digits", 7, "dirichlet:0.5", seed=2, train=140, test=40)


@pytest.mark.parametrize("together", [1, 3])
def test_answers_come_and_are_summed_in_the_order_of_the_clients(uneven, together):
    came = []

    class Watched(fl.Mean):
        def aggregate(self, state, arrivals, ctx):
            came.extend(arrivals)
            return super().aggregate(state, came, ctx)

    method = FEDAVG.but(server=Watched())
    server = method.server_side(uneven)
    start = server.start()
    state, row = one_round(server, fl.clients(method, uneven, together=together), 1, start, {})
    assert [a.client for a in came] == row["clients"] == list(range(7))
    new = {n: w.clone() for n, w in start.weights.items()}
    for a in came:
        for n, u in a.update.items():
            new[n].add_(u, alpha=a.samples / sum(uneven.sizes))
    assert equal(state.weights, new), "bit for bit"


# ---- what a round does to the state --------------------------------------------------------------


def copied(state):
    return [{n: t.clone() for n, t in tensors.items()} for tensors in (state.weights, state.memory)]


def unchanged(state, before):
    return equal(state.weights, before[0]) and equal(state.memory, before[1])


@pytest.mark.parametrize("name", fl.methods.METHODS)
def test_a_round_leaves_the_state_it_was_given_and_one_of_refusals_all_state(task, name):
    """So that a round can be played again from where it began, and gives the same."""
    options = {"asynchronous": True} if name == "fed_gkt" else {}
    method = fl.methods.get(name, **options)
    server, clients, seen = method.server_side(task), fl.clients(method, task), {}
    state = server.start()
    for t in (1, 2):
        before = copied(state)
        new, row = one_round(server, clients, t, state, seen, last=True)
        assert not row["refused"] and unchanged(state, before)
        alone = name == "local"  # whose server has nothing to keep
        assert (new is state) is alone and unchanged(new, before) is alone
        state = new
    before, seen_before = copied(state), dict(seen)
    nonsense = dict.fromkeys(range(4), b"nonsense")
    nobody = Scripted(**{"train": nonsense, "hand over": nonsense, "evaluate": nonsense})
    new, row = one_round(server, nobody, 3, state, seen)
    assert list(row["refused"]) == [0, 1, 2, 3] and row["bytes_up"] == 4 * len(b"nonsense")
    assert unchanged(new, before) and unchanged(state, before) and seen == seen_before
    assert new is state or not isinstance(method, fl.Averaging)
    if name in ("fed_gkt", "local"):  # which cannot be evaluated without clients, either
        assert row["accuracy"] is None and list(row["unevaluated"]) == [0, 1, 2, 3]


def test_a_broadcast_is_decoded_once_and_undone_for_each_client(task):
    undone, decoded = [], []

    class Shifted(Step):
        def decode(self, x, ctx):
            undone.append(ctx.client)
            return {n: t + ctx.memory.get("shift", 0) for n, t in x.items()}

    class Counting(fl.wire.Dense):
        def decode(self, section, shape):
            decoded.append(shape)
            return super().decode(section, shape)

    method = FEDAVG.but(downlink=fl.Downlink(Shifted(), Code(Counting())))
    server, side = method.server_side(task), method.client_side(task)
    state, memories = server.start(), [{"shift": torch.tensor(1.0)}, {}, {}]
    other = State({n: w + 1 for n, w in state.weights.items()})
    downloads = [
        side.download(1, k, server.send(1, k, state)[0], memories[k]).start for k in range(3)
    ]
    assert undone == [0, 1, 2] and len(decoded) == len(state.weights)
    for start, shift in zip(downloads, (1, 0, 0), strict=True):
        assert equal(start, {n: w + shift for n, w in state.weights.items()})
    for t, sent in ((1, other), (2, other)):  # another message is decoded again
        assert equal(side.download(t, 1, server.send(t, 1, sent)[0], {}).start, sent.weights)
    assert len(decoded) == 3 * len(state.weights)
    assert not same_body(b"a" * 200000, b"a" * 199970 + b"b" + b"a" * 29)
    assert same_body(b"a" * 26 + b"body" + b"1234", b"b" * 26 + b"body" + b"4321")
    assert not same_body(bytes(40), bytes(41))


# ---- stop and resume -----------------------------------------------------------------------------


def test_resume_gives_the_same_history(task, tmp_path):
    method, path = fl.methods.rpn(momentum=0.5), tmp_path / "run.checkpoint"
    whole = fl.run(method, task, 4, participation=0.5)
    fl.run(method, task, 2, participation=0.5, checkpoint=path)
    resumed = fl.run(method, task, 4, participation=0.5, checkpoint=path)
    assert resumed == whole and equal(whole.state, resumed.state)
    assert list(tmp_path.iterdir()) == [path], "no half-written file may stay behind"


def test_a_checkpoint_of_a_longer_run_is_refused_and_one_that_was_not_tested_is(task, tmp_path):
    path, how = tmp_path / "run.checkpoint", {"evaluate_every": 3, "checkpoint": tmp_path / "r"}
    fl.run(FEDAVG, task, 3, checkpoint=path)
    with pytest.raises(ValueError, match="3 rounds already"):
        fl.run(FEDAVG, task, 2, checkpoint=path)

    def stop(row, state):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fl.run(FEDAVG, task, 4, on_round=stop, **how)
    cut, whole = fl.run(FEDAVG, task, 2, **how), fl.run(FEDAVG, task, 2)
    assert cut.final == whole.final | {"seconds": cut.final["seconds"]} and len(cut) == 2
    assert cut.rows[0]["accuracy"] is None


def test_checkpoints_of_other_runs_data_or_owners_are_refused(task, tmp_path):
    path = tmp_path / "run.checkpoint"
    fl.run(FEDAVG, task, 1, checkpoint=path)
    first, second, *rest = task.split.indices
    swapped = replace(task, split=replace(task.split, indices=[second, first, *rest]))
    changed = replace(task, train=(task.train[0] ^ 1, task.train[1]))
    for method, other, how, word in (
        ("rpn", task, {}, "method, parts differ"),
        (FEDAVG, task, {"batch_size": 8}, "settings differ"),
        (FEDAVG, changed, {}, "data differ"),
        (FEDAVG, swapped, {}, "data differ"),
    ):
        with pytest.raises(ValueError, match=word):
            fl.run(method, other, 2, checkpoint=path, **how)
    path.write_bytes(b"nonsense")
    for file in (path, tmp_path):  # a folder is none either
        with pytest.raises(ValueError, match="readable checkpoint"):
            fl.run(FEDAVG, task, 2, checkpoint=file)


def test_a_flipped_bit_of_a_checkpoint_is_never_another_result(task, tmp_path):
    """Wherever it is: 10 places of the head, which is text, 30 of the tensors."""
    path, method = tmp_path / "run.checkpoint", fl.methods.rpn(momentum=0.5)
    meta = fl.run(method, task, 1, participation=0.5, checkpoint=path).meta
    start = method.server_side(task).start()
    whole, refused = path.read_bytes(), 0

    def resumed():
        history, memories = fl.History(method.name, meta), {}
        state = checkpoint.resume(path, history, start, memories, task.device)
        return history.rows, dict(enumerate(state.weights.values())) | memories.get(0, {})

    rows, tensors = resumed()
    head, draw = 8 + int.from_bytes(whole[:8], "little"), np.random.default_rng(0)
    for at in [*draw.integers(0, head, 10), *draw.integers(head, len(whole), 30)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        try:
            after = resumed()
        except ValueError as error:
            refused += 1
            assert "readable checkpoint" in str(error)
        else:  # a blank of the head's padding
            assert after[0] == rows and equal(after[1], tensors)
    assert refused >= 37


# ---- histories -----------------------------------------------------------------------------------


def by_hand(rounds=3):
    rows = [
        {"round": t, "accuracy": t / 10 if t > 1 else None, "bytes_up": 10**6 * t}
        | {"bytes_down": 10**7, "bytes_evaluation_up": 10**9, "loss": 1.0, "refused": {t: "why"}}
        | {"clients": [1, t], "per_class": [0.5, t] if t > 1 else None, "seconds": 0.5 * t}
        for t in range(1, rounds + 1)
    ]
    return fl.History("by hand", {"task": {}}, rows)


def test_what_a_history_says_of_accuracy_and_megabytes():
    history = by_hand()
    assert history.megabytes.tolist() == [11, 23, 36]
    assert history.megabytes_to(0.2) == 23 and history.megabytes_to(0.5) is None
    assert history.accuracy_at(35.9) == 0.2 and history.accuracy_at(36) == 0.3
    assert history.accuracy_at(1) is None
    assert history.rounds_to(0.0) == 2 and history.rounds_to(1.1) is None
    assert history.final["round"] == 3 and history.late_accuracy(5) == 0.25
    assert history.late_accuracy(1) == 0.3 and history.last_seen() == {1: 3}
    assert np.isnan(history.per_class[0]).all() and history.per_class[2].tolist() == [0.5, 3]
    with pytest.raises(AttributeError, match="acuracy"):
        _ = history.acuracy
    with pytest.raises(ValueError, match="evaluated"):
        _ = fl.History("x", rows=history.rows[:1]).final


def test_a_history_shows_itself_and_goes_to_json_and_pandas_and_back(tmp_path):
    history, slower, other = by_hand(12), by_hand(12), by_hand(12)
    slower.rows[0]["seconds"], other.rows[0]["loss"] = 9.0, 9.0
    assert history == slower and history != other and history != replace(history, method="x")
    assert repr(history).startswith("History('by hand', 12 rounds, accuracy 1.2000, 78.000 MB up")
    page = history._repr_html_()
    assert page.count("<tr") == 1 + 10 and "1.2000" in page and "198.000" in page
    assert "no rounds yet" in repr(fl.History("x")) and fl.History("x")._repr_html_()
    history.to_json(tmp_path / "h.json")
    for source in (tmp_path / "h.json", history.to_json()):
        back = fl.History.from_json(source)
        assert back == history and back.meta == history.meta and back.rows == history.rows
    frame = history.to_pandas()
    assert list(frame.index) == list(range(1, 13)) and np.isnan(frame.accuracy[1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d["rows"].reverse(),
        lambda d: d["rows"].append(d["rows"][-1]),
        lambda d: d["rows"].pop(0),
        lambda d: d.pop("rows"),
        lambda d: d["rows"][0].pop("round"),
        lambda d: d["rows"][0].update(refused=[]),
        lambda d: d.update(rows=3),
        lambda d: d.update(meta=3),
    ],
)
def test_a_history_that_is_none_is_refused(tmp_path, damage):
    data = json.loads(by_hand().to_json())
    damage(data)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="run.json is no history"):
        fl.History.from_json(path)
    path.write_text(json.dumps(data)[:-9])
    with pytest.raises(ValueError, match="is no history"):
        fl.History.from_json(path)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_upload_with_nan_is_refused_and_the_round_goes_on(task, value):
    class Poison(fl.Uplink):
        def encode(self, trained, ctx):
            if ctx.client == 2:
                trained = {n: t.clone() for n, t in trained.items()}
                trained["classifier.2.bias"][0] = value
            return super().encode(trained, ctx)

    with pytest.warns(UserWarning, match="2 answers of fedavg were refused"):
        history = fl.run(FEDAVG.but(uplink=Poison()), task, 2)
    plain = fl.run(FEDAVG, task, 1)
    assert [list(row["refused"]) for row in history.rows] == [[2], [2]]
    assert "NaN or infinite" in history.rows[0]["refused"][2]
    assert all(torch.isfinite(t).all() for t in history.state.values())
    assert history.rows[0]["bytes_up"] == plain.rows[0]["bytes_up"], "somebody paid for them"
    assert history.rows[0]["bytes_up_buffers"] == plain.rows[0]["bytes_up_buffers"] * 3 // 4


@pytest.mark.parametrize("method", [FEDAVG, fl.methods.rpn(threshold=0.05)])
def test_fuzz_messages(task, method):
    """Random, cut and flipped: ``WireError`` or a right decode, and the model as it was."""
    server, clients = method.server_side(task), fl.clients(method, task)
    state = server.start()
    good = {k: clients.answer(1, k, server.send(1, k, state)[0]) for k in range(2)}
    right, before = server.receive(1, 0, good[0], state).update, copied(state)
    dice, refused = random.Random(0), 0
    for i in range(600):
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
            assert all(t.shape == right[n].shape for n, t in update.items())
            assert all(torch.isfinite(t).all() for t in update.values())
        except fl.WireError:
            refused += 1
    assert refused > 400 and unchanged(state, before)
    assert equal(server.receive(1, 0, good[0], state).update, right)


def test_a_damaged_download_is_an_error_at_the_client(task):
    server, clients = FEDAVG.server_side(task), fl.clients(FEDAVG, task)
    state = server.start()
    message = server.send(1, 0, state)[0]
    for bad in (message[:-1], server.send(1, 1, state)[0], server.send(2, 0, state)[0]):
        with pytest.raises(fl.WireError):
            clients.answer(1, 0, bad)
    with pytest.raises(fl.WireError, match="cannot answer 'dance'"):
        clients.answer(1, 0, message, "dance")
    with pytest.raises(fl.WireError, match="not asked to evaluate"):
        clients.answer(1, 0, message, "evaluate")


def test_small_steps_get_one_thread_and_large_ones_all(task):
    """The limit is 50 million multiply-adds in the largest batch that a client can have."""
    small, large = fl.models.digits_cnn(), fl.models.resnet18((1, 8, 8))
    batch = math.ceil(50e6 / fl.models.multiply_adds(small, task.shape))
    many = SimpleNamespace(shape=task.shape, sizes=[1, 10**6])
    few = SimpleNamespace(shape=task.shape, sizes=[1, batch - 1])
    with local.threads(3):
        assert good_threads(small, task, 4) == 1 and good_threads(large, task, 64) == 3
        assert (good_threads(small, many, batch - 1), good_threads(small, many, batch)) == (1, 3)
        assert good_threads(small, few, 10**6) == 1, "no client has so large a batch"


def test_refit_measures_statistics_and_touches_no_weight():
    task = fl.tasks.classification("digits", 3, train=200, test=60)
    state = fl.run(FEDAVG, task, 2).state
    spoiled = {n: t * 100 if n.endswith("running_mean") else t.clone() for n, t in state.items()}
    before = {n: t.clone() for n, t in spoiled.items()}
    assert fl.refit(FEDAVG, task, spoiled) == fl.refit(FEDAVG, task, state)
    assert equal(spoiled, before)


def test_without_flower_its_engine_says_how_to_get_it(task, monkeypatch):
    from importlib import metadata

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(ImportError, match="pip install"):
        fl.run(FEDAVG, task, 1, engine="flower-sim")


def test_update_is_the_difference_that_local_training_makes(task):
    server, clients = FEDAVG.server_side(task), fl.clients(FEDAVG, task)
    state = State(server.start().weights)
    arrival = server.receive(1, 0, clients.answer(1, 0, server.send(1, 0, state)[0]), state)
    trained = state_of(clients.side.net)
    expected = {n: t - state.weights[n] for n, t in trained.items()}
    assert equal(arrival.update, {n: t.contiguous() for n, t in expected.items()})
    assert arrival.samples == task.sizes[0]
    half = FEDAVG.but(uplink=fl.Uplink(Update(), Code(fl.wire.Dense(16))), name="half")
    assert half.name == "half" and half.downlink == FEDAVG.downlink

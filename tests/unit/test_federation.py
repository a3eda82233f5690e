"""The round: against plain PyTorch, against itself after stop and resume, and with every kind of bad input."""

import copy
import dataclasses
import random
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import rng
from fedlearn.federation import good_threads, one_round
from fedlearn.models import state_of


def scratch_fedavg(task, rounds, lr, epochs, batch_size):
    """Federated averaging in plain PyTorch: models are averaged, nothing is encoded, torch's own optimiser."""
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
    stacked = fl.method.cross_entropy(logits, y)
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
    server = fl.Server(fl.methods.fedavg(), task, fl.Settings(participation=0.3))
    drawn = [tuple(server.participants(t)) for t in range(1, 30)]
    assert all(len(set(d)) == 3 for d in drawn) and len(set(drawn)) > 10
    assert drawn[0] == tuple(server.participants(1))
    assert (
        len(fl.Server(fl.methods.fedavg(), task, fl.Settings(participation=1e-9)).participants(1))
        == 1
    )


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
        fl.method.Arrival(0, 30, {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([5.0])}, 0),
        fl.method.Arrival(1, 10, {"a": torch.tensor([0.0, 1.0])}, 0),
    ]
    by_samples = fl.Mean().aggregate(w, arrivals, None)
    assert torch.equal(by_samples["a"], torch.tensor([0.75, 0.25]))
    assert by_samples["b"] == 5 and by_samples["c"] == 1 and w["a"].sum() == 0
    assert torch.equal(
        fl.Mean("clients").aggregate(w, arrivals, None)["a"], torch.tensor([0.5, 0.5])
    )


# ------------------------------------------------------------------------------------------------ stop and resume


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
        open(path, "wb").write(b"half a file"); os._exit(9)   # the machine dies in the middle of a write
    left[0] -= 1
    real(tensors, path, metadata)
s.save_file = dying
fl.run(fl.methods.fedavg(), task, 4, checkpoint=sys.argv[1])
"""


@pytest.mark.parametrize("writes", [0, 1, 3])
def test_killed_while_writing(task, tmp_path, writes):
    path = tmp_path / "run.checkpoint"
    died = subprocess.run([sys.executable, "-c", KILLED, str(path), str(writes)])
    assert died.returncode == 9 and path.exists() == (writes > 0)
    assert fl.run(fl.methods.fedavg(), task, 4, checkpoint=path) == fl.run(
        fl.methods.fedavg(), task, 4
    )


def test_checkpoints_of_other_runs_are_refused(task, tmp_path):
    path = tmp_path / "run.checkpoint"
    fl.run(fl.methods.fedavg(), task, 1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: method, parts differ"):
        fl.run(fl.methods.rpn(), task, 2, checkpoint=path)
    with pytest.raises(ValueError, match="settings differ"):
        fl.run(fl.methods.fedavg(), task, 2, batch_size=8, checkpoint=path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        fl.run(fl.methods.fedavg(), task, 2, checkpoint=path)


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


# ------------------------------------------------------------------------------------------------ bad input


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
    with pytest.warns(UserWarning, match="2 uploads of fedavg were refused"):
        history = fl.run(poisoned(value), task, 2)
    assert [list(row["refused"]) for row in history.rows] == [[2], [2]]
    assert "NaN or infinite" in history.rows[0]["refused"][2]
    assert all(torch.isfinite(t).all() for t in history.state.values())
    assert fl.History.from_json(history.to_json()).rows[0]["refused"] == history.rows[0]["refused"]


def test_if_all_are_refused_the_model_stays(task):
    class Silent(fl.Uplink):
        def decode(self, sections, ctx):
            raise fl.WireError("no")

    with pytest.warns(UserWarning, match="4 uploads"):
        history = fl.run(fl.methods.fedavg().but(uplink=Silent()), task, 1)
    initial = state_of(fl.initial_network(fl.methods.fedavg(), task))
    assert all(torch.equal(history.state[n], initial[n]) for n in initial)


@pytest.mark.parametrize(
    "method", [fl.methods.fedavg(), fl.methods.rpn(), fl.methods.rpn(threshold=0.05)]
)
def test_fuzz_ten_thousand_messages(task, method):
    """Random, cut and flipped messages: ``WireError`` or a right decode, and the model as it was. 10,000 in all."""
    settings = fl.Settings()
    server, clients = fl.Server(method, task, settings), fl.Clients(method, task, settings)
    good = {k: clients.answer(1, k, server.send(1, k)) for k in range(2)}
    right = server.receive(1, 0, good[0]).update
    before = {n: t.clone() for n, t in server.state.items()}
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
            update = server.receive(1, 0, bytes(data)).update
            assert kind == 3, "only an altered value behind a fitting checksum can pass"
            assert {n: t.shape for n, t in update.items()}.items() <= {
                n: t.shape for n, t in right.items()
            }.items()
            assert all(torch.isfinite(t).all() for t in update.values())
        except fl.WireError:
            refused += 1
    assert refused > 2000
    assert all(torch.equal(before[n], t) for n, t in server.state.items())
    assert all(torch.equal(right[n], t) for n, t in server.receive(1, 0, good[0]).update.items())


def test_a_damaged_download_is_an_error_at_the_client(task):
    server, clients = (
        party(fl.methods.fedavg(), task, fl.Settings()) for party in (fl.Server, fl.Clients)
    )
    message = server.send(1, 0)
    for bad in (message[:-1], server.send(1, 1), server.send(2, 0)):
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
            "participation is a share",
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
            "cannot be a method's uplink: it has no schema",
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
    mine = base.but(uplink=fl.Uplink(fl.wire.Dense(16)), name="half")
    assert mine.name == "half" and mine.downlink == base.downlink and base.uplink == fl.Uplink()
    assert list(mine.parts()) == ["model", "objective", "optimizer", "uplink", "downlink", "server"]


def test_small_networks_get_one_thread(task):
    small = fl.initial_network(fl.methods.fedavg(), task)
    assert good_threads(small, task, 4) == 1
    assert good_threads(fl.models.resnet18((1, 8, 8)), task, 64) >= 1


def test_one_round_is_the_loop_of_the_docstring(task):
    server, clients = (
        party(fl.methods.fedavg(), task, fl.Settings()) for party in (fl.Server, fl.Clients)
    )
    row = one_round(server, clients, 1, last=True)
    assert row["clients"] == [0, 1, 2, 3] and 0 <= row["accuracy"] <= 1 and row["seconds"] > 0


def test_a_broadcast_is_decoded_once_unless_the_downlink_is_personal(task):
    @dataclasses.dataclass(frozen=True)
    class Personal(fl.Downlink):
        def decode(self, sections, ctx):
            decoded.append(ctx.client)
            return {
                n: t + ctx.memory.get("shift", 0) for n, t in super().decode(sections, ctx).items()
            }

    decoded, method = [], fl.methods.fedavg().but(downlink=Personal())
    server, clients = (
        fl.Server(method, task, fl.Settings()),
        fl.Clients(method, task, fl.Settings()),
    )
    clients.memories[0] = {"shift": torch.tensor(1.0)}
    starts = [clients._download(1, k, server.send(1, k)).start for k in (0, 1, 2, 0)]
    assert decoded == [0, 1, 2, 0]
    for name, t in starts[1].items():
        assert (
            torch.equal(t, server.state[name])
            and torch.equal(starts[0][name], t + 1)
            and torch.equal(starts[3][name], t + 1)
        )
    plain = fl.Clients(fl.methods.fedavg(), task, fl.Settings())
    server = fl.Server(fl.methods.fedavg(), task, fl.Settings())
    assert (
        plain._download(1, 0, server.send(1, 0)).start
        is plain._download(1, 1, server.send(1, 1)).start
    )


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

    class Elsewhere(fl.Clients):
        absent = {0: "not connected"}

        def groups(self, clients):
            return [[k for k in clients if k != 0]]

        def answers(self, round, messages):
            return {k: self.answer(round, k, data) for k, data in messages.items()} | {
                1: fl.WireError("No answer.")
            }

    server, clients = fl.Server(method, task, fl.Settings()), Elsewhere(method, task, fl.Settings())
    row = one_round(server, clients, 1)
    assert row["clients"] == [0, 1, 2] and row["refused"] == {0: "not connected", 1: "No answer."}
    alone, only = fl.Server(method, task, fl.Settings()), fl.Clients(method, task, fl.Settings())
    answer = only.answer(1, 2, alone.send(1, 2))
    alone.aggregate(1, [alone.receive(1, 2, answer)])
    assert all(torch.equal(t, server.state[n]) for n, t in alone.state.items())
    assert row["bytes_up"] == len(answer) and row["bytes_down"] == 2 * len(alone.send(1, 2))


def test_without_flower_its_engine_says_how_to_get_it(monkeypatch, capsys):
    from importlib import metadata

    from fedlearn import cli

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(ImportError, match=r'pip install "fedlearn\[flower\]"'):
        fl.run(fl.methods.fedavg(), fl.tasks.classification("digits", 2), 1, engine="flower-sim")
    for argv in (
        ["run", "fedavg", "--engine", "flower-sim"],
        ["serve", "rpn", "--insecure"],
        ["join", "a:1", "rpn", "--client", "0", "--insecure"],
    ):
        assert cli.main(argv) == 2
        assert capsys.readouterr().err.startswith("fedlearn: Flower is not installed: pip install")

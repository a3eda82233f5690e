"""Links: what fits into a chain, what a step is told, what error feedback keeps, and coders."""

import math
from dataclasses import dataclass

import pytest
import torch

import fedlearn as fl
from fedlearn.methods.fed_kgf import Modules
from fedlearn.parts import (
    Clip,
    Code,
    Context,
    Feedback,
    KeptSteps,
    Lossy,
    Momentum,
    Replay,
    Residual,
    Step,
    Update,
    WarmStart,
)
from fedlearn.wire import (
    EDEN,
    QSGD,
    CountSketch,
    Dense,
    LowRank,
    Mask,
    Natural,
    Pooled,
    RandomK,
    Schema,
    SharedRandomness,
    Signs,
    TernGrad,
    TopK,
    Uniform,
    Votes,
    Zipped,
)

FEDAVG, NAN = fl.methods.fedavg(), float("nan")
SCHEMA = Schema({"w": (2, 3), "b": (3,), "mean": (3,)}, frozenset({"mean"}))
ZERO = {name: torch.zeros(shape) for name, shape in SCHEMA.shapes.items()}


def context(task, memory, schema=SCHEMA, t=1, client=0):
    zero = {name: torch.zeros(shape) for name, shape in schema.shapes.items()}
    return Context(task, t, client, zero, zero, memory, schema, participants=(0, 1))


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- what fits -----------------------------------------------------------------------------------

UNFIT = {
    "few entries of the model": (lambda: fl.Downlink(Lossy(TopK(0.1))), "takes changes.*Replay"),
    "feedback on it": (lambda: fl.Downlink(Feedback(), Lossy(TopK(0.1))), "TopK.* takes changes"),
    "few of a residual": (lambda: fl.Downlink(Residual(), Lossy(RandomK())), "RandomK.* changes"),
    "momentum of the model": (lambda: fl.Downlink(Momentum()), "Momentum.* takes Update"),
    "clipped weights": (lambda: fl.Uplink(Clip(1.0), Update()), "Clip.* takes Update"),
    "feedback of weights": (lambda: fl.Uplink(Feedback(), Update()), "takes Update or Weights"),
    "residual of an update": (lambda: fl.Uplink(Update(), Residual()), "takes Weights"),
    "mask of an update": (lambda: fl.Uplink(Update(), Code(Mask())), "takes Masks.* gets Update"),
    "update on the way down": (lambda: fl.Downlink(Update()), "takes Trained"),
    "weights": (lambda: fl.Uplink(Code(Dense(16))), r"must begin .*: Update\(\)"),
    "votes of weights": (lambda: fl.Uplink(Code(Signs(False))), "must begin with"),
    "votes on the way down": (lambda: fl.Downlink(Code(Signs(False))), "state, not Votes"),
    "coder in the middle": (lambda: fl.Uplink(Update(), Code(), Feedback()), "last may be a Code"),
    "coder that is no step": (lambda: fl.Uplink(Update(), TopK(0.1)), "last may be a Code"),
    "step that is no coder": (lambda: Code(Update()), "coder"),
    "no link": (lambda: Replay("stc"), "Uplink"),
    "steps that are votes": (lambda: KeptSteps(fl.Uplink(Update(), Code(Signs(False)))), "updates"),
    "steps of no server": (lambda: KeptSteps(of=fl.SGD()), "Aggregator"),
    "no norm": (lambda: Clip(0), "norm"),
    "no momentum": (lambda: Momentum(1), "[Mm]omentum"),
    "no rank": (lambda: WarmStart(0), "rank"),
    "another rank": (lambda: fl.Uplink(Update(), WarmStart(4), Lossy(LowRank(2))), "just before"),
    "another coder": (lambda: fl.Uplink(Update(), WarmStart(2), Lossy(EDEN())), "just before"),
    "something between": (
        lambda: fl.Downlink(WarmStart(2), Feedback(), Lossy(LowRank(2))),
        "just before",
    ),
    "added to what is left out": (
        lambda: fl.Uplink(Modules(), *fl.methods.scaffold().uplink.steps),
        "Modules.* leaves tensors out, but Changes",
    ),
    "misspelt member": (lambda: fl.Uplink(type("Mine", (Step,), {"encod": None})()), "'encode'"),
}


@pytest.mark.parametrize("make, noun", UNFIT.values(), ids=UNFIT)
def test_what_does_not_fit_is_refused_with_one_sentence(make, noun):
    with pytest.raises(ValueError, match=noun) as error:
        make()
    assert str(error.value).count("\n") == 0 and str(error.value)[-1] in ".?"


def test_links_are_equal_if_their_steps_are_and_give_what_they_make():
    assert fl.Uplink() == fl.Uplink(Update(), Code()) and fl.Uplink() != fl.Downlink()
    assert Replay(fl.Uplink()) == Replay(fl.Uplink(Update())) != fl.Downlink()
    assert {Update, Votes} <= fl.Uplink().given()  # the signs of dense updates are votes
    assert Votes not in fl.Uplink(Update(), Code(TopK(0.1))).given()
    assert Votes not in fl.methods.fedpm().uplink.given()
    # by its text a schema, and so a message, is known again
    link = fl.Uplink(Update(), Feedback(), Lossy(TopK()))
    assert repr(link) == (
        "Uplink(Update(), Feedback(), Lossy(coder=TopK(ratio=0.03125, values='float32'), whole=2))"
    )
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    net[0].bias.requires_grad_(False)
    schema = link.schema(net)
    assert schema.coder == repr(link) and schema.shapes["0.weight"] == (2, 3)
    assert schema.buffers == {"0.bias", "1.running_mean", "1.running_var"}


# ---- coders in a link ----------------------------------------------------------------------------


def flips(generator, shape):
    """Signs of plus and minus one: to multiply by them loses no bit."""
    return torch.randint(0, 2, shape, generator=generator).float() * 2 - 1


class Flipped(SharedRandomness):
    """Every entry times a shared random sign: what is decoded is right only if both sides draw the
    same."""

    def __init__(self, of=None, log=None):
        self.of, self.log = of or Dense(), [] if log is None else log

    def __repr__(self):
        return f"Flipped({self.of!r})"

    def encode(self, tensor, generator):
        self.log.append(("encoded", generator.initial_seed()))
        return bytes(self.of.encode(tensor.cpu() * flips(generator, tensor.shape)))

    def decode(self, section, shape, generator):
        self.log.append(("decoded", generator.initial_seed()))
        return self.of.decode(section, shape) * flips(generator, shape)


def same(one, other):
    assert all(torch.equal(t, other.state[n]) for n, t in one.state.items())
    assert one == other and not any(row["refused"] for row in one.rows)


def test_a_shared_coder_draws_the_same_on_both_sides_up_and_down_without_a_byte(task):
    log = []
    flipped = FEDAVG.but(
        uplink=fl.Uplink(Update(), Code(Flipped(log=log))),
        downlink=fl.Downlink(Residual(), Code(Flipped(log=log))),
    )
    ours = fl.run(flipped, task, 2, participation=0.5)
    same(ours, fl.run(FEDAVG.but(downlink=fl.Downlink(Residual())), task, 2, participation=0.5))
    # another draw for each tensor of each of the two clients and of the server, in both rounds
    encoded, decoded = ({s for way, s in log if way == what} for what in ("encoded", "decoded"))
    assert decoded <= encoded and len(decoded) == 2 * 3 * len(ours.state)


@pytest.mark.parametrize("values", ["sign", "float32"])
def test_steps_are_replayed_with_the_draws_of_the_round_they_were_coded_in(task, values):
    """A client that missed rounds decodes their steps with the generators of these rounds."""

    def states(coder):
        link = fl.Uplink(Update(), Feedback(), Lossy(coder))
        method = FEDAVG.but(uplink=link, downlink=Replay(link), server=KeptSteps(link))
        server, clients = method.server_side(task), fl.clients(method, task)
        state, last_seen, sizes = server.start(), {}, {}
        for t, who in {1: [0, 1], 2: [0], 3: [0], 4: [0, 1], 5: [1, 2]}.items():
            arrivals = []
            for k in who:
                message = server.send(t, k, state, last_seen)[0]
                kept = dict(clients.memories.get(k, {}))
                start = clients.side.download(t, k, message, kept).start
                assert all(torch.equal(start[n], w) for n, w in state.weights.items())
                answer = clients.answer(t, k, message)
                sizes[t, k] = len(message), len(answer)
                arrivals.append(server.receive(t, k, answer, state))
            last_seen |= dict.fromkeys(who, t)
            state = server.aggregate(t, state, arrivals, last_seen)
        assert sizes[2, 0] < sizes[4, 1] < sizes[5, 2]  # one step, three, the whole model
        return state, sizes

    ours, our_sizes = states(Flipped(TopK(1 / 8, values)))
    assert all(n.split("/")[0] in ("step", "from", "error") for n in ours.memory)
    if values == "float32":  # which knows no sign of its own
        theirs, sizes = states(TopK(1 / 8, values))
        assert our_sizes == sizes
        assert all(torch.equal(ours.weights[n], w) for n, w in theirs.weights.items())


def test_a_replay_that_does_not_fit_is_refused_and_changes_nothing(task):
    link = fl.Uplink(Update(), Code(Signs()))
    memory, replay = {}, Replay(link)
    ctx = context(task, memory, t=3)
    step = {n: bytes(Signs().encode(t + 1)) for n, t in ZERO.items()}

    def section(n, first, count, end=b"", form=1):
        one = len(step[n]).to_bytes(4, "little") + step[n]
        return bytes([form]) + first.to_bytes(4, "little") + count * one + end

    def rebuilt(**change):
        return replay.undo({n: section(n, 0, 2) for n in ZERO} | change, ctx)

    bad = (b"", b"\2", section("w", 0, 1), section("w", 0, 3), section("w", 1, 1))
    for data in (*bad, section("w", 0, 2, b"\1"), section("w", 0, 2, b"\x09\0\0\0"), b"\0abc"):
        with pytest.raises(fl.WireError):
            rebuilt(w=data)
    with pytest.raises(fl.WireError, match="whole model"):
        replay.undo({"w": section("w", 0, 2)}, ctx)
    assert not memory
    assert rebuilt(w=b"\0" + bytes(24))["w"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert memory.pop("heard") == 2 and memory["model/b"].tolist() == [2, 2, 2]
    ctx.memory["heard"] = torch.tensor(1)
    memory["model/w"] = torch.full((2, 3), 5.0)
    assert rebuilt()["w"].tolist() == [[6, 6, 6], [6, 6, 6]]  # a step that comes twice counts once
    ctx.round = 4
    without = section("w", 0, 2, bytes(4))  # a round of which there is no step
    model = rebuilt(w=without, b=section("b", 2, 1), mean=section("mean", 2, 1))
    assert model["b"].tolist() == [4, 4, 4] and model["w"][0].tolist() == [6, 6, 6]


@dataclass(frozen=True)
class Mixed(Lossy):
    def coder_for(self, name, ctx):
        return Flipped() if name.endswith("bias") else super().coder_for(name, ctx)


def test_a_coder_that_draws_by_itself_and_one_that_shares_its_draws_go_together(task):
    runs = [
        fl.run(FEDAVG.but(uplink=fl.Uplink(Update(), code)), task, 2)
        for code in (Mixed(QSGD()), Lossy(QSGD()))
    ]
    same(*runs)


def test_another_client_and_another_round_draw_anew(task):
    for coder in (EDEN(), QSGD(1)):
        link, schema = fl.Uplink(Update(), Code(coder)), Schema({"w": (9, 9)})
        drawn = [context(task, {}, schema, t, k) for t in (1, 2) for k in (0, 1)]
        assert len({bytes(link.encode({"w": noise(9, 9)}, ctx)["w"]) for ctx in drawn}) == 4


class Louder(Pooled):
    def decode(self, section, shape):
        return 3 * super().decode(section, shape)


class Quieter(Dense):
    def encode(self, tensor):
        return super().encode(tensor / 2)


@pytest.mark.parametrize("coder, factor", [(Louder(), 3), (Quieter(), 0.5)])
def test_a_subclass_that_replaces_one_function_of_a_coder_is_obeyed(task, coder, factor):
    x, ctx = {n: t + 1 for n, t in ZERO.items()}, context(task, {})
    link, down = fl.Uplink(Update(), Code(coder)), fl.Downlink(Residual(), Code(coder))
    came = link.decode(link.encode(x, ctx), ctx)
    assert all(torch.equal(t, factor * x[n]) for n, t in came.items())
    came = down.undo(down.read(down.encode(x, ctx), ctx), ctx)
    assert all(torch.equal(t, factor * x[n]) for n, t in came.items())


def test_a_message_has_just_the_tensors_of_the_schema(task):
    ctx = context(task, {})
    up, down = fl.Uplink(), fl.Downlink(Residual())
    with pytest.raises(ValueError, match="schema: more"):
        fl.Downlink().encode(ZERO | {"more": torch.zeros(1)}, ctx)
    sections = up.encode(ZERO, ctx)
    del sections["b"]
    with pytest.raises(fl.WireError, match="Client 0 did not send"):
        up.decode(sections, ctx)
    with pytest.raises(fl.WireError, match="whole model"):
        down.undo(down.read(sections, ctx), ctx)


# ---- steps ---------------------------------------------------------------------------------------


def test_a_step_is_told_what_the_receiver_decodes(task):
    told = []

    class Curious(Step):
        def sent(self, x, sent, ctx):
            told.append((x, sent, ctx.lossy))

    link, ctx = fl.Uplink(Update(), Curious(), Lossy(TopK(0.5))), context(task, {})
    x = ZERO | {"w": noise(2, 3), "b": noise(3)}
    came = link.decode(link.encode(x, ctx), ctx)
    [(given, sent, lossy)] = told
    assert lossy == {"w"} and all(torch.equal(sent[n], t) for n, t in came.items())
    assert given["w"].equal(x["w"]) and sent["w"].count_nonzero() == 3


@pytest.mark.parametrize("coder", [Code(), Lossy(TopK(1 / 8)), Lossy(Uniform(4))])
def test_feedback_keeps_what_later_steps_leave_out(task, coder):
    """Of Fed-KGF's modules a client sends one group a round. With feedback in front, what was sent
    so far and what is kept add up to what there was to send, whatever was sent when."""
    link = fl.Uplink(Update(), Feedback(), Modules(), coder)
    schema = Schema({"a": (4, 2), "b": (4,), "c": (9, 4), "mean": (4,)}, frozenset({"mean"}))
    memory, total, x = {}, {}, {n: noise(*s) for n, s in schema.shapes.items()}
    for t in range(1, 9):
        ctx = context(task, memory, schema, t)
        sections = link.encode(x, ctx)
        assert set(sections) == set(link.expected(ctx)) < set(x)
        for n, sent in link.decode(sections, ctx).items():
            total[n] = total.get(n, 0) + sent
        for n in x.keys() - schema.buffers:
            there = total.get(n, 0) + memory.get(f"error/{n}", 0)
            torch.testing.assert_close(there, t * x[n], atol=1e-4, rtol=1e-4)
    assert total.keys() == x.keys(), "every tensor had its turn"
    assert "error/mean" not in memory  # batch statistics are no sum of updates
    assert isinstance(coder, Lossy) or not memory["error/b"].any() or "b" not in sections


@pytest.mark.parametrize("length, clients", [(5.0, 1), (0.5, 1), (0.5, 4), (0.05, 1), (0.0, 1)])
def test_clip_scales_what_is_too_long_and_nothing_else(length, clients):
    """g min(1, norm / (sqrt(N) ||g||)); what travels whole is neither counted nor scaled."""
    g = {"a": length * torch.tensor([[0.6, 0.0]]), "b": length * torch.tensor([[0.0, 0.8]])}
    g["whole"] = torch.tensor([7.0])
    ctx = Context(None, 1, participants=tuple(range(clients)), lossy=frozenset({"a", "b"}))
    clipped = Clip(0.1).encode(g, ctx)
    factor = min(1.0, 0.1 / clients**0.5 / length) if length else 1.0
    for name in ("a", "b"):
        torch.testing.assert_close(clipped[name], factor * g[name])
    assert clipped["whole"] is g["whole"]


def test_momentum_masks_only_what_was_sent_and_batch_statistics_have_none(task):
    memory, g = (
        {},
        {"w": torch.arange(1.0, 7).reshape(2, 3), "b": torch.ones(3), "mean": torch.ones(3)},
    )
    link, ctx = fl.Uplink(Update(), Momentum(0.5), Lossy(TopK(1 / 6))), context(task, memory)
    assert link.decode(link.encode(g, ctx), ctx)["w"].tolist() == [[0, 0, 0], [0, 0, 6]]
    assert memory["u/w"].tolist() == [[1, 2, 3], [4, 5, 0]] and memory["u/b"].tolist() == [1, 1, 1]
    second = link.decode(link.encode(g, ctx), ctx)
    assert second["w"].tolist() == [[0, 0, 0], [0, 7.5, 0]] and second["b"].tolist() == [1.5] * 3
    assert memory["u/w"].tolist() == [[1.5, 3, 4.5], [6, 0, 6]]
    assert second["mean"].tolist() == [1, 1, 1] and "u/mean" not in memory


def test_a_warm_start_comes_to_the_best_matrix_of_its_rank(task):
    schema, x, memory = Schema({"w": (24, 60)}), noise(24, 60), {}
    link = fl.Uplink(Update(), WarmStart(2), Lossy(LowRank(2)))
    s = torch.linalg.svdvals(x.double()).square()
    least, errors = float(s[2:].sum() / s.sum()), []
    for t in range(1, 60):
        ctx = context(task, memory, schema, t)
        arrived = link.decode(link.encode({"w": x}, ctx), ctx)["w"]
        errors.append(float((arrived - x).double().square().sum() / s.sum()))
    assert abs(errors[-1] - least) < 1e-3 < errors[0] - least
    assert list(memory) == ["Q/w"] and memory["Q/w"].shape == (60, 2)


@pytest.mark.parametrize("steps", [(Momentum(), Lossy(TopK())), (WarmStart(1), Lossy(LowRank(1)))])
def test_what_diverges_does_not_stay_in_a_memory(task, steps):
    memory, link = {}, fl.Uplink(Update(), *steps)
    with pytest.raises(fl.errors.Diverged):
        link.encode({"w": torch.full((9, 9), NAN)}, context(task, memory, Schema({"w": (9, 9)})))
    assert not memory


# ---- in a round ----------------------------------------------------------------------------------

CHAINS = {
    "EDEN": (Lossy(EDEN(2)),),
    "DRIVE, feedback": (Feedback(), Lossy(EDEN())),
    "natural": (Lossy(Natural()),),
    "TernGrad": (Lossy(TernGrad()),),
    "random-k": (Lossy(RandomK(1 / 4)),),
    "PowerSGD": (Feedback(), WarmStart(2), Lossy(LowRank(2))),
    "sketch": (Feedback(), Lossy(CountSketch())),
    "zipped": (Lossy(Zipped()),),
}


@pytest.mark.parametrize("steps", CHAINS.values(), ids=CHAINS)
def test_up_and_down_and_stacked(task, steps):
    """Up: fewer bytes than dense. Down: the steps of the server through the same chain. Stacked and
    one by one agree on bytes."""
    link = fl.Uplink(Update(), *steps)
    one_way = FEDAVG.but(uplink=link)
    both = one_way.but(downlink=Replay(link), server=KeptSteps(link))
    dense, up, down = (fl.run(m, task, rounds=2) for m in (FEDAVG, one_way, both))
    assert (up.bytes_up < dense.bytes_up).all() and (up.bytes_down == dense.bytes_down).all()
    assert (down.bytes_up < dense.bytes_up).all() and down.bytes_down[1] < dense.bytes_down[1]
    stacked = fl.run(both, task, rounds=2, engine="stacked")
    assert abs(1 - stacked.bytes_up[-1] / down.bytes_up[-1]) < 0.01
    assert math.isclose(stacked.loss[-1], down.loss[-1], rel_tol=0.05)


@pytest.mark.parametrize("coder", [EDEN(8), Natural(), Zipped(), Uniform(8), Dense(16)], ids=repr)
def test_the_model_itself_may_come_down_coded(task, coder):
    history = fl.run(FEDAVG.but(downlink=fl.Downlink(Lossy(coder))), task, rounds=3)
    assert history.bytes_down[0] < history.bytes_up[0] and history.loss[-1] < history.loss[0]

"""Parts: what is refused when a method is built, what both sides draw alike, what steps keep."""

import dataclasses
import math
import re

import pytest
import torch

import fedlearn as fl
from fedlearn.methods.fed_kgf import Modules
from fedlearn.methods.fedpm import Sample
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
)
from fedlearn.wire import Coder, Dense, Mask, RandomK, Schema, Signs, TopK, Votes

FEDAVG = fl.methods.fedavg()


def sentence(error):
    """The one sentence with which something was refused."""
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), text
    return text


# ---- misspelt members ----------------------------------------------------------------------------


def part(base, **members):
    return type("Mine", (base,), members)()


def nothing(*args):
    pass


STEPS = [
    (Step, "encod", "encode"),
    (Step, "sents", "sent"),
    (Step, "decoed", "decode"),
    (Step, "shape", "shapes"),
    (Step, "name", "names"),
    (Step, "gruop", "group"),
    (Step, "valdiate", "validate"),
    (Update, "make", "makes"),
    (Residual, "need", "needs"),
    (Code, "coder_of", "coder_for"),
    (Lossy, "coderfor", "coder_for"),
]


@pytest.mark.parametrize("link", [fl.Uplink, fl.Downlink])
@pytest.mark.parametrize("base, wrong, right", STEPS)
def test_a_misspelt_member_of_a_step_is_refused_when_the_link_is_built(link, base, wrong, right):
    with pytest.raises(ValueError, match=f"Mine has '{wrong}', .*did you mean '{right}'"):
        link(part(base, **{wrong: nothing}))


# ---- parts that do not fit -----------------------------------------------------------------------

STC, PM = fl.methods.stc(), fl.methods.fedpm()
UNFIT = {
    "votes of the weights": (
        lambda: fl.Uplink(Code(Signs(False))),
        r"must begin with what becomes of the weights: Update\(\)",
    ),
    "votes on the way down": (
        lambda: fl.Downlink(Code(Signs(False))),
        "Downlink.* must bring the client the server's state",
    ),
    "kept steps that are votes": (
        lambda: KeptSteps(fl.Uplink(Update(), Code(Signs(False)))),
        r"The server's steps travel as updates of the weights, not through Uplink\(Update\(\), ",
    ),
    "kept steps of no server part": (
        lambda: KeptSteps(STC.uplink, fl.SGD()),
        r"SGD.* is no server part \(Aggregator\)",
    ),
    "few entries of the model": (
        lambda: fl.Downlink(Lossy(TopK(1 / 16))),
        r"TopK\(ratio=0.0625.* takes changes, but gets the server's state: .* comes down as steps, "
        r"with downlink=Replay\(link\), server=KeptSteps\(link\) and a link such as Uplink\(Update",
    ),
    "few entries of the model, with feedback": (
        lambda: fl.Downlink(Feedback(), Lossy(TopK(1 / 16))),
        "TopK.* takes changes, but gets the server's state",
    ),
    "few entries of what has changed since the start": (
        lambda: fl.Downlink(Residual(), Feedback(), Lossy(RandomK(1 / 16))),
        "RandomK.* takes changes, but gets the server's state",
    ),
    "momentum of the model": (
        lambda: fl.Downlink(Momentum()),
        r"Momentum\(momentum=0.9\) takes changes, but gets the server's state",
    ),
    "clipped weights": (
        lambda: fl.Uplink(Clip(1.0), Update()),
        r"Clip\(norm=1.0\) takes changes, but gets what was trained: Update\(\) comes before it\.",
    ),
    "feedback of weights": (
        lambda: fl.Uplink(Feedback(), Update(), Lossy(TopK(1 / 16))),
        r"Feedback\(\) takes changes, but gets what was trained: Update\(\) comes before it\.",
    ),
    "a residual of an update": (
        lambda: fl.Uplink(Update(), Residual()),
        r"Residual\(\) takes the server's state, but gets updates of the weights",
    ),
    "a mask coder on updates": (
        lambda: fl.Uplink(Update(), Code(Mask())),
        r"Mask\(\) takes masks of zeros and ones, but gets updates of the weights",
    ),
    "a mask coder on the model": (
        lambda: fl.Downlink(Code(Mask())),
        r"Mask\(\) takes masks of zeros and ones, but gets the server's state",
    ),
    "an update on the way down": (
        lambda: fl.Downlink(Update()),
        r"Update\(\) takes what was trained, but gets the server's state",
    ),
    "an update of an update": (
        lambda: fl.Uplink(Update(), Update()),
        r"Update\(\) takes what was trained, but gets updates of the weights",
    ),
    "a mask of an update": (
        lambda: fl.Uplink(Update(), Sample()),
        "takes what was trained, but gets updates of the weights",
    ),
    "an uplink that sends weights": (
        lambda: fl.Uplink(Code(Dense(16))),
        r"must begin with what becomes of the weights: Update\(\)",
    ),
    "a coder in the middle": (
        lambda: fl.Uplink(Update(), Code(), Feedback()),
        "A link is steps, of which the last may be a Code, not Code",
    ),
    "a coder that is no step": (
        lambda: fl.Uplink(Update(), TopK(0.1)),
        "A link is steps, of which the last may be a Code, not TopK",
    ),
    "a step that is no coder": (lambda: Code(Update()), r"Update\(\) is no coder"),
    "a name in place of a coder": (lambda: Lossy("top-k"), "'top-k' is no coder"),
}


@pytest.mark.parametrize("make, says", UNFIT.values(), ids=UNFIT)
def test_parts_that_do_not_fit_are_refused_with_one_sentence(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    sentence(error)


def test_the_form_that_the_refusal_of_few_entries_names_trains():
    """The model's largest weights do not: 0.10 of all test images, as by chance."""
    with pytest.raises(ValueError) as error:
        fl.Downlink(Feedback(), Lossy(TopK(1 / 32)))
    named = re.search(r"Uplink\(.*\)\)\)", sentence(error))[0]
    link = eval(named, {**vars(fl.parts), **vars(fl.wire)})
    method = FEDAVG.but(downlink=Replay(link), server=KeptSteps(link))
    task = fl.tasks.classification("digits", 4)
    history = fl.run(method, task, 8, engine="stacked", threads=1, evaluate_every=8)
    assert history.final["accuracy"] > 0.8 and history.bytes_down[1] < history.bytes_up[1] / 4


# ---- randomness that both sides draw -------------------------------------------------------------


def flips(generator, shape):
    """Signs of plus and minus one: to multiply by them loses no bit."""
    return torch.randint(0, 2, shape, generator=generator).float() * 2 - 1


class Flipped(Coder):
    """Every entry times a shared random sign: what is decoded is right only if both sides draw the
    same."""

    shared = True

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
    assert one.state.keys() == other.state.keys()
    for n, t in one.state.items():
        assert torch.equal(t, other.state[n]), n
    for mine, its in zip(one.rows, other.rows, strict=True):
        assert not mine["refused"] and not its["refused"]
        assert {k: v for k, v in mine.items() if k != "seconds"} == {
            k: v for k, v in its.items() if k != "seconds"
        }


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_shared_coder_draws_the_same_on_both_sides_up_and_down_without_a_byte(task, engine):
    log = []
    flipped = FEDAVG.but(
        uplink=fl.Uplink(Update(), Code(Flipped(log=log))),
        downlink=fl.Downlink(Residual(), Code(Flipped(log=log))),
    )
    plain = FEDAVG.but(downlink=fl.Downlink(Residual()))
    ours = fl.run(flipped, task, 2, engine=engine, participation=0.5)
    theirs = fl.run(plain, task, 2, engine=engine, participation=0.5)
    if engine == "sequential":
        same(ours, theirs)
    for n, t in theirs.state.items():
        torch.testing.assert_close(ours.state[n], t, atol=1e-5, rtol=0)
    assert ours.bytes_up.tolist() == theirs.bytes_up.tolist()
    assert ours.bytes_down.tolist() == theirs.bytes_down.tolist()
    # another draw for each tensor of each of the two clients and of the server, in both rounds
    encoded, decoded = ({s for way, s in log if way == what} for what in ("encoded", "decoded"))
    assert decoded <= encoded and len(decoded) == 2 * 3 * len(ours.state)
    # and whether the last state could be sent was tried
    assert len(encoded - decoded) == len(ours.state)


@pytest.mark.parametrize("values", ["sign", "float32"])
def test_a_shared_coder_is_replayed_with_the_draws_of_the_round_it_coded_in(task, values):
    """A client that missed rounds decodes their steps with the generators of these rounds."""

    def method(coder):
        link = fl.Uplink(Update(), Feedback(), Lossy(coder))
        return fl.methods.stc().but(uplink=link, downlink=Replay(link), server=KeptSteps(link))

    inner = TopK(1 / 8, values)
    flipped, plain = method(Flipped(inner)), method(inner)
    states = []
    for m in (flipped, plain):
        server, clients = m.server_side(task), fl.clients(m, task)
        state, heard, sizes = server.start(), {}, []
        schedule = {1: [0, 1], 2: [0], 3: [0], 4: [0, 1], 5: [1, 2]}
        for t, who in schedule.items():
            arrivals = []
            for k in who:
                message = server.send(t, k, state, heard)[0]
                memory = clients.memories.setdefault(k, {})
                start = clients.side.download(t, k, message, memory).start
                assert all(torch.equal(start[n], w) for n, w in state.weights.items())
                answer = clients.answer(t, k, message)
                sizes += [len(message), len(answer)]
                arrivals.append(server.receive(t, k, answer, state))
            heard |= dict.fromkeys(who, t)
            state = server.aggregate(t, state, arrivals, heard)
        assert any(n.startswith("step/") for n in state.memory), "some steps were kept"
        states.append((state, sizes))
    (ours, our_sizes), (theirs, their_sizes) = states
    if values == "float32":  # which knows no sign of its own
        assert our_sizes == their_sizes
        assert all(torch.equal(ours.weights[n], w) for n, w in theirs.weights.items())
    same(fl.run(flipped, task, 4, participation=0.5), fl.run(flipped, task, 4, participation=0.5))


def test_a_coder_that_draws_by_itself_and_one_that_shares_its_draws_go_together(task):
    """One message may hold tensors of both: each coder gets what it asked for."""

    @dataclasses.dataclass(frozen=True)
    class Mixed(Lossy):
        def coder_for(self, name, ctx):
            return SHARED if name.endswith("bias") else super().coder_for(name, ctx)

    SHARED = Flipped()
    qsgd = fl.methods.qsgd()
    mixed = qsgd.but(uplink=fl.Uplink(Update(), Mixed(fl.wire.QSGD())))
    same(fl.run(mixed, task, 2), fl.run(qsgd, task, 2))


def test_what_adds_tensors_cannot_follow_what_leaves_some_out():
    changes = fl.methods.scaffold().uplink.steps[1]
    for steps in ((Modules(), Update(), changes), (Update(), changes, Modules())):
        with pytest.raises(ValueError, match=r"^Modules.* leaves tensors out, but Changes.* needs"):
            fl.Uplink(*steps)


def test_signs_of_dense_updates_are_votes_and_no_others_are():
    sparse = fl.Uplink(Update(), Code(TopK(0.1)))
    assert {Update, Votes} <= fl.Uplink().given()
    assert Votes not in sparse.given() | fl.methods.fedpm().uplink.given()


# ---- what is replaced is obeyed ------------------------------------------------------------------


class Doubling(TopK):
    def decode(self, section, shape):
        return 2 * super().decode(section, shape)


class Halving(Dense):
    def encode(self, tensor):
        return super().encode(tensor / 2)


class Plain(Dense):
    """Replaces both, with bytes of its own."""

    def encode(self, tensor):
        return b"!" + bytes(super().encode(tensor))

    def decode(self, section, shape):
        assert bytes(section[:1]) == b"!"
        return super().decode(section[1:], shape)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("way", ["uplink", "downlink"])
def test_a_subclass_of_a_coder_that_replaces_only_encode_or_decode_is_obeyed(task, engine, way):
    def run(coder):
        link = fl.Uplink(Update(), Code(coder)) if way == "uplink" else fl.Downlink(Code(coder))
        return fl.run(FEDAVG.but(**{way: link}), task, 1, engine=engine)

    plain, halved, odd = run(Dense()), run(Halving()), run(Plain())
    start = FEDAVG.server_side(task).initial
    if way == "uplink":
        for n, t in plain.state.items():
            expected = start[n] + (t - start[n]) / 2
            torch.testing.assert_close(halved.state[n], expected, atol=1e-6, rtol=1e-5)
    else:
        assert any(not torch.equal(halved.state[n], t) for n, t in plain.state.items())
    assert all(torch.equal(odd.state[n], t) for n, t in plain.state.items())
    column = f"bytes_{'up' if way == 'uplink' else 'down'}"
    assert odd.rows[0][column] == plain.rows[0][column] + 4 * len(start)


def test_a_sparse_coder_with_another_decode_is_obeyed_by_the_server(task):
    once, twice = (FEDAVG.but(uplink=fl.Uplink(Update(), Code(c(1.0)))) for c in (TopK, Doubling))
    once, twice = (fl.run(m, task, 1).state for m in (once, twice))
    start = FEDAVG.server_side(task).initial
    for n, t in once.items():
        expected = start[n] + 2 * (t - start[n])
        torch.testing.assert_close(twice[n], expected, atol=1e-6, rtol=1e-5)


def test_a_step_with_sent_hears_what_the_receiver_decodes(task):
    """Without a word about listening, and stacked too."""
    heard = []

    class Curious(Step):
        def sent(self, x, sent, ctx):
            heard.append({n: (x[n], t) for n, t in sent.items()})

    method = FEDAVG.but(uplink=fl.Uplink(Update(), Curious(), Code(TopK(0.25))))
    server, clients = method.server_side(task), fl.clients(method, task)
    state = server.start()
    answer = clients.answer(1, 0, server.send(1, 0, state)[0])
    update = server.receive(1, 0, answer, state).update
    assert len(heard) == 1
    for n, (x, sent) in heard[0].items():
        assert torch.equal(sent, update[n])
        kept = sent != 0
        assert torch.equal(sent[kept], x[kept]) and kept.sum() <= math.ceil(0.25 * x.numel())
    fl.run(method, task, 1, engine="stacked")
    assert len(heard) == 1 + task.clients


# ---- feedback ------------------------------------------------------------------------------------


def context(task, method, t, memory):
    side = method.client_side(task)
    return side.context(t, 0, side.up, memory, start=side.initial), side.initial


@pytest.mark.parametrize("coder", [Code(), Lossy(TopK(1 / 8)), Lossy(fl.wire.Uniform(4))])
def test_feedback_keeps_what_later_steps_leave_out(task, coder):
    """Of Fed-KGF's modules a client sends one group a round. With feedback in front, what was sent
    so far and what is kept add up to what there was to send, whatever was sent when."""
    method = FEDAVG.but(uplink=fl.Uplink(Update(), Feedback(), Modules(), coder))
    memory, total, count = {}, {}, 12
    for t in range(1, count + 1):
        ctx, w = context(task, method, t, memory)
        update = {n: torch.randn(x.shape, generator=fl.rng.generator(0, n)) for n, x in w.items()}
        sections = method.uplink.encode({n: w[n] + update[n] for n in w}, ctx)
        assert set(sections) == set(method.uplink.expected(ctx)) and len(sections) < len(w)
        for n, sent in method.uplink.decode(sections, ctx).items():
            total[n] = total.get(n, 0) + sent
        for n in w.keys() - ctx.schema.buffers:
            there = total.get(n, 0) + memory.get(f"error/{n}", 0)
            torch.testing.assert_close(there, t * update[n], atol=1e-4, rtol=1e-4)
    assert total.keys() == w.keys(), "every tensor had its turn"
    for n in ctx.schema.buffers:  # batch statistics are no sum of updates
        assert f"error/{n}" not in memory


def test_what_feedback_kept_travels_as_soon_as_it_may(task):
    """A dense tensor that was left out for two rounds comes with all that had been kept."""

    class OnlyInRound3(Step):
        def names(self, names, ctx):
            return [n for n in names if ctx.round == 3 or not n.endswith("weight")]

        def encode(self, x, ctx):
            return {n: x[n] for n in self.names(list(x), ctx)}

    method = FEDAVG.but(uplink=fl.Uplink(Update(), Feedback(), OnlyInRound3()))
    memory = {}
    for t in (1, 2, 3):
        ctx, w = context(task, method, t, memory)
        sections = method.uplink.encode({n: x + 1 for n, x in w.items()}, ctx)
        decoded = method.uplink.decode(sections, ctx)
    for n, sent in decoded.items():
        times = 3 if n.endswith("weight") else 1
        torch.testing.assert_close(sent, torch.full_like(sent, times), atol=1e-5, rtol=0)
        assert not memory.get(f"error/{n}", torch.zeros(1)).abs().max() > 1e-5


@pytest.mark.parametrize("length, clients", [(5.0, 1), (0.5, 1), (0.5, 4), (0.05, 1), (0.0, 1)])
def test_clip_scales_what_is_too_long_and_nothing_else(length, clients):
    """g min(1, norm / (sqrt(N) ||g||)), for gradients longer and shorter than 1 and than the norm;
    what travels whole is neither counted nor scaled."""
    g = {"a": length * torch.tensor([[0.6, 0.0]]), "b": length * torch.tensor([[0.0, 0.8]])}
    g["whole"] = torch.tensor([7.0])
    ctx = Context(None, 1, participants=tuple(range(clients)), lossy=frozenset({"a", "b"}))
    clipped = Clip(0.1).encode(g, ctx)
    factor = min(1.0, 0.1 / clients**0.5 / length) if length else 1.0
    for name in ("a", "b"):
        torch.testing.assert_close(clipped[name], factor * g[name])
    assert clipped["whole"] is g["whole"]


def test_momentum_masks_only_what_was_sent():
    schema = Schema({"w": (2, 3), "b": (3,)})
    task, memory = fl.tasks.classification("digits", 2, train=20, test=10), {}
    link = fl.Uplink(Update(), Momentum(0.5), Lossy(TopK(1 / 6)))
    start = {"w": torch.zeros(2, 3), "b": torch.zeros(3)}
    g = {"w": torch.tensor([[1.0, 2, 3], [4, 5, 6]]), "b": torch.ones(3)}
    ctx = Context(task, 1, 0, start, start, memory, schema)
    assert link.decode(link.encode(g, ctx), ctx)["w"].tolist() == [[0, 0, 0], [0, 0, 6]]
    assert memory["u/w"].tolist() == [[1, 2, 3], [4, 5, 0]] and memory["u/b"].tolist() == [1, 1, 1]
    second = link.decode(link.encode(g, ctx), ctx)
    assert second["w"].tolist() == [[0, 0, 0], [0, 7.5, 0]] and second["b"].tolist() == [1.5] * 3
    assert memory["u/w"].tolist() == [[1.5, 3, 4.5], [6, 0, 6]]


def test_what_travels_whole_has_momentum_too():
    """After 12 equal updates with momentum 0.9 a bias has moved by sum_t (1 - 0.9^t) / (1 - 0.9) =
    55 of them, and not by 12: what DGC's program, in which the receiver of what is dense adds
    momentum, makes of it. Batch statistics are no updates and have none."""
    schema = Schema({"w": (2, 3), "b": (3,), "mean": (3,)}, frozenset({"mean"}))
    task, memory = fl.tasks.classification("digits", 2, train=20, test=10), {}
    start = {name: torch.zeros(shape) for name, shape in schema.shapes.items()}
    ctx = Context(task, 9, 0, start, start, memory, schema, participants=(0, 1))
    link, ones = fl.methods.dgc(ratio=1 / 6).uplink, {n: t + 1 for n, t in start.items()}
    moved = {n: 0.0 for n in start}
    for _ in range(12):
        for n, t in link.decode(link.encode(ones, ctx), ctx).items():
            moved[n] = moved[n] + t
    buf, whole = 0.0, 0.0
    for _ in range(12):
        buf = 0.9 * buf + 1
        whole += buf
    torch.testing.assert_close(moved["b"], torch.full((3,), whole))
    assert 54 < whole < 56 and moved["mean"].tolist() == [12, 12, 12]
    assert "u/mean" not in memory and "error/b" not in memory

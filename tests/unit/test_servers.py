"""Server parts: means and robust means against formulas written out here, beside uplinks, and among
liars."""

import math
from itertools import pairwise

import pytest
import torch

import fedlearn as fl
from fedlearn import rng
from fedlearn.book.liars import FACTORS, lying
from fedlearn.parts import (
    Aggregator,
    Arrival,
    Clipped,
    Code,
    Context,
    Feedback,
    KeptSteps,
    Krum,
    Median,
    TrimmedMean,
    Update,
    mean_update,
    summed,
)
from fedlearn.wire import Schema, TopK

SHAPES = {"a": (3, 2), "b": (5,), "mean": (4,)}
SCHEMA = Schema(SHAPES, frozenset({"mean"}))


def noise(*seed):
    return {n: torch.randn(s, generator=rng.generator(0, n, *seed)) for n, s in SHAPES.items()}


def federation(count, **odd):
    """A state, and the updates of so many clients; ``odd``: those of some, as k3=..."""
    return noise(), [Arrival(k, 10 + k, odd.get(f"k{k}", noise(k))) for k in range(count)]


def context(count, task=None):
    return Context(task, 1, schema=SCHEMA, participants=tuple(range(count)))


def flat(tensors):
    return torch.cat([tensors[n].flatten() for n in SHAPES]).double()


def moved(part, state, arrivals):
    before = {n: w.clone() for n, w in state.items()}
    new = part.aggregate(state, arrivals, context(len(arrivals)))
    assert list(new) == list(state) and all(torch.equal(before[n], w) for n, w in state.items())
    return flat(new) - flat(state)


def near(got, expected):
    torch.testing.assert_close(got, torch.as_tensor(expected).double(), atol=1e-5, rtol=1e-5)


# ---- the formulas --------------------------------------------------------------------------------


class Sum(Aggregator):
    """w + sum u: what comes through a clip can be read off."""

    needs = frozenset({Update})

    def aggregate(self, state, arrivals, ctx):
        return {n: w + sum(a.update[n] for a in arrivals) for n, w in state.items()}


@pytest.mark.parametrize("by", ["samples", "clients"])
def test_the_mean_is_over_those_that_sent_the_tensor(by, task):
    state, arrivals = federation(4)
    arrivals[1] = arrivals[1]._replace(update={"a": arrivals[1].update["a"]})
    n = [10 + k if by == "samples" else 1 for k in range(4)]
    new = fl.Mean(by).aggregate(state, arrivals, context(4))
    for name, w in state.items():
        who = [k for k in range(4) if name in arrivals[k].update]
        mean = sum(n[k] * arrivals[k].update[name] for k in who) / sum(n[k] for k in who)
        torch.testing.assert_close(new[name], w + mean)
    assert torch.equal(fl.Mean(by).aggregate(state, [], context(4))["a"], state["a"])
    rest, sums = summed(arrivals, {"a"}, torch.sign)
    assert ["a" in a.update for a in rest] == [False] * 4 and rest[0].update.keys() == {"b", "mean"}
    assert sums["a"][1] == 4
    assert torch.equal(sums["a"][0], sum(a.update["a"].sign() for a in arrivals))
    update, share = mean_update(state, arrivals[:1], context(4, task))
    torch.testing.assert_close(update, arrivals[0].update)
    assert share == task.sizes[0] / sum(task.sizes)


def test_clipped_updates_have_that_norm_and_their_direction():
    state, arrivals = federation(4)
    c, expected, clipped = 2.5, 0, 0
    for a in arrivals:
        parameters = math.sqrt(sum(float(a.update[n].square().sum()) for n in ("a", "b")))
        statistics = float(a.update["mean"].norm())
        clipped += (parameters > c) + (statistics > c)
        factors = dict.fromkeys("ab", min(1, c / parameters)) | {"mean": min(1, c / statistics)}
        expected += flat({n: a.update[n] * factors[n] for n in SHAPES})
    assert 0 < clipped < 8, "some are clipped and some are not"
    near(moved(Clipped(c, Sum()), state, arrivals), expected)
    huge = Arrival(4, 10, {n: torch.full(shape, 1e30) for n, shape in SHAPES.items()})
    near(moved(Clipped(c, Sum()), state, [*arrivals, huge]), expected)  # overflows: counts as zero


@pytest.mark.parametrize(
    "part, count, cut",
    [(TrimmedMean(0.2), 10, 2), (TrimmedMean(0.25), 10, 3), (TrimmedMean(0.1), 7, 1)]
    + [(TrimmedMean(0), 5, 0), (TrimmedMean(0.49), 2, 0), (TrimmedMean(0.49), 1, 0)]
    + [(Median(), 1, 0), (Median(), 2, 0), (Median(), 5, 2), (Median(), 8, 3)],
)
def test_trimmed_means_and_medians_by_hand(part, count, cut):
    state, arrivals = federation(count)
    rows = torch.stack([flat(a.update) for a in arrivals])
    kept = [sorted(column)[cut : count - cut] for column in rows.T.tolist()]
    near(moved(part, state, arrivals), [sum(left) / len(left) for left in kept])


@pytest.mark.parametrize("part", [Median(), TrimmedMean(0.3)], ids=repr)
def test_coordinates_are_those_of_the_clients_that_sent_the_tensor(part):
    state, arrivals = federation(6)
    for k, a in enumerate(arrivals):
        left_out = "a" if k > 2 else "b"
        arrivals[k] = a._replace(update={n: t for n, t in a.update.items() if n != left_out})
    new = part.aggregate(state, arrivals, context(6))
    for name, senders in (("a", arrivals[:3]), ("b", arrivals[3:]), ("mean", arrivals)):
        alone = part.aggregate({name: state[name]}, senders, context(6))
        assert torch.equal(new[name], alone[name])
    none = part.aggregate(state, [arrivals[0]], context(6))
    assert torch.equal(none["b"], state["b"])


def scores(arrivals, liars):
    """s(i): the sum of the squared distances to the m - f - 2 closest others, in plain Python."""
    rows = [flat(a.update) for a in arrivals]
    apart = [sorted(float((x - y).square().sum()) for y in rows) for x in rows]
    return [sum(distances[1 : len(rows) - liars - 1]) for distances in apart]


@pytest.mark.parametrize("count, liars, keep", [(5, 1, 1), (9, 3, 1), (9, 2, 4), (10, 3, 10)])
def test_krum_by_hand(count, liars, keep):
    state, arrivals = federation(count)
    s = scores(arrivals, liars)
    assert min(b - a for a, b in pairwise(sorted(s))) > 1e-3, "no ties"
    best = sorted(range(count), key=s.__getitem__)[:keep]
    expected = torch.stack([flat(arrivals[i].update) for i in best]).mean(0)
    near(moved(Krum(liars, keep), state, arrivals), expected)


def test_krum_goes_on_when_some_are_refused_and_compares_whole_updates():
    state, arrivals = federation(5)
    for count in (1, 2, 3, 4):
        got = moved(Krum(3), state, arrivals[:count])
        assert min((got - flat(a.update)).abs().max() for a in arrivals[:count]) < 1e-5
    arrivals[3] = arrivals[3]._replace(update={"a": arrivals[3].update["a"]})
    with pytest.raises(ValueError, match="sent different tensors"):
        Krum(1).aggregate(state, arrivals, context(5))


def test_kept_steps_are_the_moves_of_another_server_and_old_ones_go(task):
    """s = C(mean + e), W <- W + s, e <- mean + e - s; a step that everybody knows is dropped."""
    link = fl.Uplink(Update(), Feedback(), Code(TopK(0.1)))
    schema, w, kept = Schema({"a": (8, 8)}), {"a": torch.zeros(8, 8)}, KeptSteps(link)
    total, memory = 0, {}
    for t in range(1, 7):
        update = torch.randn(8, 8, generator=rng.generator(0, t))
        known = dict.fromkeys(range(task.clients), t - 2)
        ctx = Context(task, t, initial=w, memory=memory, schema=schema, last_seen=known)
        w = kept.aggregate(w, [Arrival(0, 10, {"a": update})], ctx)
        total = total + update
        torch.testing.assert_close(w["a"] + memory["error/a"], total)
        assert w["a"].count_nonzero() <= 7 * t
    steps = sorted(name for name in memory if name.startswith("step/"))
    assert steps == ["step/a/4", "step/a/5", "step/a/6"] and memory["from/a"] == 4


# ---- as parts of methods -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build, noun",
    [
        *((lambda c=c: Clipped(c), "norm") for c in (0, math.inf, math.nan)),
        (lambda: Clipped(1, fl.methods.signsgd().server), "adds them"),
        *((lambda s=s: TrimmedMean(s), "share") for s in (0.5, -0.1)),
        (lambda: Krum(0), "liars"),
        (lambda: Krum(1, 0), "keep"),
        (lambda: fl.Mean("size"), "weighting"),
        (lambda: fl.methods.fedpm().but(server=Median()), "needs Update"),
    ],
)
def test_bad_values_are_one_sentence(build, noun):
    with pytest.raises(ValueError, match=noun) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("server", [Krum(1), Clipped(1.0, Krum(1)), Krum(1, 9)], ids=repr)
def test_krum_says_how_many_clients_it_needs(task, server):
    with pytest.raises(ValueError, match=r"needs at least [59] clients a round, not 4"):
        fl.run(fl.methods.fedavg().but(server=server), task, 1)


@pytest.fixture(scope="module")
def seven():
    return fl.tasks.classification("digits", 7, "dirichlet:1", train=280, test=60)


@pytest.mark.parametrize("lie", FACTORS)
def test_a_liar_sends_what_it_is_said_to_send(lie, seven):
    """Against the honest updates of the same round; and the others are not touched by it."""
    came = []

    class Watched(fl.Mean):
        def aggregate(self, state, arrivals, ctx):
            came.append(list(arrivals))
            return super().aggregate(state, arrivals, ctx)

    method = fl.methods.fedavg().but(server=Watched())
    fl.run(method, seven, 1)
    fl.run(lying(method, (2, 5), lie), seven, 1)
    factor = FACTORS[lie]
    for a, b in zip(*came, strict=True):
        lies = b.client in (2, 5)
        assert b.samples == a.samples * (factor if lies and lie == "inflate" else 1)
        for n, u in a.update.items():
            expected = u if not lies or lie == "inflate" else u * factor * (-1) ** (lie == "flip")
            near = {"atol": 1e-4 * factor, "rtol": 1e-3}
            if lies and lie == "random":
                torch.testing.assert_close(b.update[n].norm(), expected.norm(), **near)
                assert not torch.allclose(b.update[n], expected)
            else:
                torch.testing.assert_close(b.update[n], expected, **near)
    assert lying(method, [1], lie).parts()["liars"] == "(1,)"
    with pytest.raises(ValueError, match="flop"):
        lying(method, [1], "flop")

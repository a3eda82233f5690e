"""Server parts for clients that lie: against formulas written out here, beside every uplink, and
against liars."""

import math
from itertools import pairwise

import pytest
import torch

import fedlearn as fl
from fedlearn import rng
from fedlearn.book.liars import FACTORS, lying
from fedlearn.parts import (
    Arrival,
    Clipped,
    Code,
    Context,
    Feedback,
    KeptSteps,
    Krum,
    Lossy,
    Median,
    TrimmedMean,
    Update,
)
from fedlearn.wire import Dense, Schema, TopK

SHAPES = {"a": (3, 2), "b": (5,), "mean": (4,)}
SCHEMA = Schema(SHAPES, frozenset({"mean"}))


def noise(*shape, seed, scale=1.0):
    return scale * torch.randn(shape, generator=rng.generator(0, *seed))


def federation(count, **odd):
    """A state, and the updates of so many clients; ``odd``: those of some, as k3=..."""
    state = {n: noise(*shape, seed=(n,)) for n, shape in SHAPES.items()}
    arrivals = []
    for k in range(count):
        u = {n: noise(*shape, seed=(n, k)) for n, shape in SHAPES.items()}
        arrivals.append(Arrival(k, 10 + k, odd.get(f"k{k}", u)))
    return state, arrivals


def context(count, task=None):
    return Context(task, 1, schema=SCHEMA, participants=tuple(range(count)))


def flat(tensors):
    return torch.cat([tensors[n].flatten() for n in SHAPES]).double()


def moved(part, state, arrivals):
    before = {n: w.clone() for n, w in state.items()}
    new = part.aggregate(state, arrivals, context(len(arrivals)))
    assert list(new) == list(state) and all(torch.equal(before[n], w) for n, w in state.items())
    return flat(new) - flat(state)


# ---- the formulas


class Sum(fl.parts.Aggregator):
    """w + sum u: what comes through a clip can be read off."""

    needs = frozenset({fl.parts.Update})

    def aggregate(self, state, arrivals, ctx):
        updates = [a.update for a in arrivals]
        return {n: w + sum(u[n] for u in updates) for n, w in state.items()}


def test_clipped_updates_have_that_norm_and_their_direction():
    state, arrivals = federation(4)
    c, expected = 2.5, torch.zeros(15, dtype=torch.float64)
    clipped = 0
    for a in arrivals:
        parameters = math.sqrt(sum(float(a.update[n].square().sum()) for n in ("a", "b")))
        statistics = float(a.update["mean"].norm())
        clipped += (parameters > c) + (statistics > c)
        factors = {"a": min(1, c / parameters), "b": min(1, c / parameters)}
        factors["mean"] = min(1, c / statistics)
        expected += flat({n: a.update[n] * factors[n] for n in SHAPES})
    assert 0 < clipped < 8, "some are clipped and some are not"
    torch.testing.assert_close(
        moved(Clipped(c, Sum()), state, arrivals), expected, atol=1e-5, rtol=0
    )


def test_an_update_whose_norm_overflows_counts_as_zero():
    state, arrivals = federation(2, k1={n: torch.full(s, 1e30) for n, s in SHAPES.items()})
    alone = moved(Clipped(1e9, Sum()), state, arrivals[:1])
    torch.testing.assert_close(moved(Clipped(1e9, Sum()), state, arrivals), alone)


@pytest.mark.parametrize("count, share, cut", [(10, 0.2, 2), (10, 0.25, 3), (7, 0.1, 1), (5, 0, 0)])
def test_the_trimmed_mean_by_hand(count, share, cut):
    state, arrivals = federation(count)
    rows = torch.stack([flat(a.update) for a in arrivals])
    expected = []
    for column in rows.T.tolist():
        left = sorted(column)[cut : count - cut]
        expected.append(sum(left) / len(left))
    got = moved(TrimmedMean(share), state, arrivals)
    torch.testing.assert_close(got, torch.tensor(expected).double(), atol=1e-6, rtol=1e-5)


def test_somebody_is_always_left():
    state, arrivals = federation(2)
    got = moved(TrimmedMean(0.49), state, arrivals)
    mean = (flat(arrivals[0].update) + flat(arrivals[1].update)) / 2
    torch.testing.assert_close(got, mean, atol=1e-6, rtol=1e-5)
    one = moved(TrimmedMean(0.49), state, arrivals[:1])
    torch.testing.assert_close(one, flat(arrivals[0].update), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_median_by_hand(count):
    state, arrivals = federation(count)
    columns = torch.stack([flat(a.update) for a in arrivals]).T.tolist()
    middle = [(sorted(c)[(count - 1) // 2] + sorted(c)[count // 2]) / 2 for c in columns]
    got = moved(Median(), state, arrivals)
    torch.testing.assert_close(got, torch.tensor(middle).double(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("part", [Median(), TrimmedMean(0.3)], ids=repr)
def test_coordinates_are_those_of_the_clients_that_sent_the_tensor(part):
    state, arrivals = federation(6)
    arrivals = [
        a._replace(
            update={n: t for n, t in a.update.items() if n != ("a" if a.client > 2 else "b")}
        )
        for a in arrivals
    ]
    new = part.aggregate(state, arrivals, context(6))
    for name, senders in (("a", arrivals[:3]), ("b", arrivals[3:]), ("mean", arrivals)):
        alone = part.aggregate({name: state[name]}, senders, context(6))
        assert torch.equal(new[name], alone[name])
    none = part.aggregate(state, [arrivals[0]], context(6))
    assert torch.equal(none["b"], state["b"])


def scores(arrivals, liars):
    """s(i): the sum of the squared distances to the m - f - 2 closest others, in plain Python."""
    rows = [flat(a.update).tolist() for a in arrivals]
    found = []
    for i, x in enumerate(rows):
        distances = sorted(
            sum((p - q) ** 2 for p, q in zip(x, y, strict=True))
            for j, y in enumerate(rows)
            if j != i
        )
        found.append(sum(distances[: len(rows) - liars - 2]))
    return found


@pytest.mark.parametrize("count, liars, keep", [(5, 1, 1), (9, 3, 1), (9, 2, 4), (10, 3, 10)])
def test_krum_by_hand(count, liars, keep):
    state, arrivals = federation(count)
    s = scores(arrivals, liars)
    assert min(b - a for a, b in pairwise(sorted(s))) > 1e-3, "no ties"
    best = sorted(range(count), key=s.__getitem__)[:keep]
    expected = torch.stack([flat(arrivals[i].update) for i in best]).mean(0)
    got = moved(Krum(liars, keep), state, arrivals)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("value", [1e3, 1e30, 3e38])
def test_krum_takes_none_of_the_lies(value):
    lie = {n: torch.full(s, value) for n, s in SHAPES.items()}
    state, arrivals = federation(7, k0=lie, k4=lie)
    for keep in (1, 5):
        got = moved(Krum(2, keep), state, arrivals)
        assert got.abs().max() < 10


def test_krum_goes_on_when_some_are_refused():
    state, arrivals = federation(9)
    for count in (1, 2, 3, 4):
        got = moved(Krum(3), state, arrivals[:count])
        apart = [(got - flat(a.update)).abs().max() for a in arrivals[:count]]
        assert min(apart) < 1e-5, "one of them, whole"


def test_krum_refuses_updates_of_different_tensors():
    state, arrivals = federation(5)
    arrivals[3] = arrivals[3]._replace(update={"a": arrivals[3].update["a"]})
    with pytest.raises(ValueError, match="clients 0 and 3 sent different tensors"):
        Krum(1).aggregate(state, arrivals, context(5))


# ---- as parts of methods


@pytest.mark.parametrize(
    "build, sentence",
    [
        (lambda: Clipped(0), "norm to clip to is above 0 and finite, not 0"),
        (lambda: Clipped(math.inf), "a finite number, not inf"),
        (lambda: Clipped(math.nan), "a finite number, not nan"),
        (lambda: Clipped(1, fl.methods.signsgd().server), "Updates can be clipped for a part that"),
        (lambda: TrimmedMean(0.5), "at least 0 and below 0.5, not 0.5"),
        (lambda: TrimmedMean(-0.1), "at least 0 and below 0.5, not -0.1"),
        (lambda: Krum(0), "liars must be a whole number of at least 1, not 0"),
        (lambda: Krum(1, 0), "keep must be a whole number of at least 1, not 0"),
    ],
)
def test_bad_values_are_one_sentence(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_krum_says_how_many_clients_it_needs(task):
    method = fl.methods.fedavg().but(server=Krum(1))
    with pytest.raises(ValueError, match=r"Krum\(liars=1, keep=1\) needs at least 5 .* not 4"):
        fl.run(method, task, 1)
    with pytest.raises(ValueError, match="needs at least 5 clients a round, not 4"):
        fl.run(method.but(server=Clipped(1.0, Krum(1))), task, 1)


@pytest.fixture(scope="module")
def seven():
    return fl.tasks.classification("digits", 7, "dirichlet:1", train=280, test=60)


PARTS = [Clipped(1.0), TrimmedMean(0.2), Median(), Krum(2), Krum(2, 4), Clipped(1.0, Median())]
UPLINKS = {
    "dense": fl.Uplink(),
    "half": fl.Uplink(Update(), Code(Dense(16))),
    "top-k with feedback": fl.Uplink(Update(), Feedback(), Lossy(TopK(0.1))),
    "quantised": fl.methods.qsgd().uplink,
}


@pytest.mark.parametrize("part", PARTS, ids=repr)
@pytest.mark.parametrize("name", UPLINKS)
def test_robust_parts_work_with_every_uplink_of_updates(name, part, seven):
    h = fl.run(fl.methods.fedavg().but(uplink=UPLINKS[name], server=part), seven, 2)
    assert not any(row["refused"] or row["untaken"] for row in h.rows)
    start = fl.methods.fedavg().server_side(seven).initial
    assert any(not torch.equal(h.state[n], w) for n, w in start.items())


@pytest.mark.parametrize("name", ["rpn", "dgc", "fedcom", "fedmmd", "fed_repopt"])
def test_robust_parts_work_in_other_methods(name, seven):
    for part in (Median(), Krum(2)):
        h = fl.run(fl.methods.get(name).but(server=part), seven, 1)
        assert not h.rows[0]["refused"] and not h.rows[0]["untaken"]


def test_module_uploading_has_a_median_and_no_krum(seven):
    method = fl.methods.fed_kgf()
    assert not fl.run(method.but(server=Median()), seven, 1).rows[0]["untaken"]
    with pytest.raises(ValueError, match="sent different tensors"):
        fl.run(method.but(server=Krum(2)), seven, 1)


def test_steps_that_are_kept_may_be_robust_ones(seven):
    stc = fl.methods.stc()
    method = stc.but(server=KeptSteps(stc.server.link, Median()))
    assert not fl.run(method, seven, 2).rows[1]["untaken"]


def test_masks_are_no_updates():
    with pytest.raises(ValueError, match="needs updates of the weights"):
        fl.methods.fedpm().but(server=Median())


# ---- liars


@pytest.mark.parametrize("lie", FACTORS)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_liar_sends_what_it_is_said_to_send(lie, engine, seven):
    """Against the honest updates of the same round; and the others are not touched by it."""
    came = {}

    class Watched(fl.Mean):
        def aggregate(self, state, arrivals, ctx):
            came[len(came)] = list(arrivals)
            return super().aggregate(state, arrivals, ctx)

    method = fl.methods.fedavg().but(server=Watched())
    fl.run(method, seven, 1, engine=engine)
    fl.run(lying(method, (2, 5), lie), seven, 1, engine=engine)
    factor = FACTORS[lie]
    for a, b in zip(came[0], came[1], strict=True):
        lies = b.client in (2, 5)
        assert b.samples == a.samples * (factor if lies and lie == "inflate" else 1)
        for n, u in a.update.items():
            close = dict(atol=1e-4 * factor, rtol=1e-3)
            if not lies or lie == "inflate":
                torch.testing.assert_close(b.update[n], u, atol=1e-5, rtol=1e-4)
            elif lie in ("flip", "scale"):
                sign = -1 if lie == "flip" else 1
                torch.testing.assert_close(b.update[n], sign * factor * u, **close)
            else:
                torch.testing.assert_close(b.update[n].norm(), factor * u.norm(), **close)
                assert not torch.allclose(b.update[n], factor * u)


def test_liars_are_named_in_the_history_and_unknown_lies_are_refused():
    method = lying(fl.methods.fedavg(), [1], "scale")
    assert method.parts()["liars"] == "(1,)" and method.parts()["lie"] == "'scale'"
    with pytest.raises(ValueError, match="There is no lie 'flop'. Did you mean 'flip'"):
        lying(fl.methods.fedavg(), [1], "flop")


def test_two_liars_of_seven_ruin_the_mean_and_not_the_robust_parts(seven):
    """Eight rounds; the lie turns the mean around: (5 - 2 * 5) / 7 < 0."""

    def accuracy(server):
        method = lying(fl.methods.fedavg().but(server=server), (0, 3), "flip", 5.0)
        return fl.run(method, seven, 8, epochs=2, batch_size=16, evaluate_every=8).final["accuracy"]

    mean = accuracy(fl.Mean("clients"))
    assert mean < 0.3
    for part in (TrimmedMean(0.3), Median(), Krum(2, 4)):
        assert accuracy(part) > mean + 0.3, part

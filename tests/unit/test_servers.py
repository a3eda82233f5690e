"""Server parts: means and robust means against formulas written out here, and among liars."""

import math

import pytest
import torch

import fedlearn as fl
from fedlearn import rng
from fedlearn.book.liars import lying
from fedlearn.parts import (
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
)
from fedlearn.wire import Schema, TopK

SHAPES = {"a": (3, 2), "b": (5,), "mean": (4,)}
SCHEMA = Schema(SHAPES, frozenset({"mean"}))


def noise(*seed):
    return {
        n: torch.randn(s, generator=rng.generator(0, n, *seed))
        for n, s in SHAPES.items()
    }


def federation(count):
    """A state, and the updates of so many clients."""
    return noise(), [Arrival(k, 10 + k, noise(k)) for k in range(count)]


def without(arrival, name):
    return arrival._replace(
        update={n: t for n, t in arrival.update.items() if n != name}
    )


def context(count):
    return Context(None, 1, schema=SCHEMA, participants=tuple(range(count)))


@pytest.mark.parametrize("by", ["samples", "clients"])
def test_the_mean_is_over_those_that_sent_the_tensor(by):
    state, arrivals = federation(4)
    arrivals[1] = without(arrivals[1], "b")
    n = [10 + k if by == "samples" else 1 for k in range(4)]
    new = fl.Mean(by).aggregate(state, arrivals, context(4))
    for name, w in state.items():
        who = [k for k in range(4) if name in arrivals[k].update]
        mean = sum(n[k] * arrivals[k].update[name] for k in who) / sum(
            n[k] for k in who
        )
        torch.testing.assert_close(new[name], w + mean)
    assert torch.equal(fl.Mean(by).aggregate(state, [], context(4))["a"], state["a"])


def test_coordinates_are_those_of_the_clients_that_sent_the_tensor():
    state, arrivals = federation(6)
    sent = [without(a, "a" if a.client > 2 else "b") for a in arrivals]
    new = Median().aggregate(state, sent, context(6))
    for name, senders in (("a", arrivals[:3]), ("b", arrivals[3:]), ("mean", arrivals)):
        assert torch.equal(
            new[name], Median().aggregate(state, senders, context(6))[name]
        )
    assert torch.equal(Median().aggregate(state, sent[:1], context(6))["b"], state["b"])


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


@pytest.mark.parametrize(
    "build, noun",
    [
        (lambda: Clipped(math.nan), "norm"),
        (lambda: Clipped(1, fl.methods.signsgd().server), "updates"),
        (lambda: TrimmedMean(0.5), "share"),
        (lambda: Krum(0), "liars"),
        (lambda: fl.Mean("size"), "weighting"),
    ],
)
def test_bad_values_are_refused(build, noun):
    with pytest.raises(ValueError, match=noun):
        build()


@pytest.mark.parametrize("server", [Clipped(1.0, Krum(1)), Krum(1, 9)], ids=repr)
def test_krum_says_how_many_clients_it_needs(task, server):
    with pytest.raises(ValueError, match=r"needs at least [59] clients a round, not 4"):
        fl.run(fl.methods.fedavg().but(server=server), task, 1)


@pytest.mark.parametrize(
    "lie, times", [("flip", -1), ("scale", 30), ("constant", 0), ("random", 0)]
)
def test_a_liar_sends_what_it_is_said_to_send(lie, times, task):
    """Against the honest updates of the same round; and the others are not touched by it."""
    came = []

    class Watched(fl.Mean):
        def aggregate(self, state, arrivals, ctx):
            came.append(list(arrivals))
            return super().aggregate(state, arrivals, ctx)

    method = fl.methods.fedavg().but(server=Watched())
    fl.run(method, task, 1)
    fl.run(lying(method, (2,), lie), task, 1)
    for honest, said in zip(*came, strict=True):
        lies = said.client == 2
        for n, u in honest.update.items():
            got, expected = said.update[n], u * times if lies else u
            if lies and n.endswith("running_var"):  # not below zero
                expected = got
            elif lies and lie == "constant":
                expected = torch.full_like(u, 1000.0)
            elif lies and lie == "random":
                got, expected = got.norm(), 10 * u.norm()
            torch.testing.assert_close(got, expected, atol=3e-3, rtol=1e-3)


@pytest.mark.parametrize("lie, noun", [("inflate", "samples")])
def test_claims_that_cannot_be_are_refused(lie, noun, task):
    with pytest.warns(UserWarning, match="Round 1 of fedavg: the answer of client 2"):
        history = fl.run(lying(fl.methods.fedavg(), (2, 3), lie), task, 1)
    refused = history.rows[0]["refused"]
    assert (
        list(refused) == [2, 3]
        and noun in refused[2]
        and math.isfinite(history.loss[0])
    )

"""Server parts: the mean, and what robust means refuse."""

import math

import pytest
import torch

import fedlearn as fl
from fedlearn import rng
from fedlearn.book.liars import lying
from fedlearn.parts import (
    Arrival,
    Clipped,
    Context,
    Krum,
    Median,
    TrimmedMean,
)
from fedlearn.wire import Schema

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
        senders = [k for k in range(4) if name in arrivals[k].update]
        mean = sum(n[k] * arrivals[k].update[name] for k in senders) / sum(
            n[k] for k in senders
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


@pytest.mark.parametrize(
    "build, noun",
    [
        (lambda: Clipped(math.nan), "norm"),
        (lambda: TrimmedMean(0.6), "share"),
        (lambda: Krum(0), "liars"),
        (lambda: fl.Mean("size"), "weighting"),
    ],
)
def test_bad_values_are_refused(build, noun):
    with pytest.raises(ValueError, match=noun):
        build()


@pytest.mark.parametrize("server", [Krum(1), Krum(1, 9)], ids=repr)
def test_krum_says_how_many_clients_it_needs(task, server):
    with pytest.raises(ValueError, match="at least [59] clients"):
        fl.run(fl.methods.fedavg().but(server=server), task, 1)


def test_claims_that_cannot_be_are_refused(task):
    with pytest.warns(UserWarning, match="client 2"):
        history = fl.run(lying(fl.methods.fedavg(), (2, 3), "inflate"), task, 1)
    assert [*history.rows[0]["refused"]] == [2, 3]
    assert math.isfinite(history.loss[0])

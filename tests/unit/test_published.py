"""Pascal VOC and COCO: what is read of made-up copies and of the packed subsets, what is ignored,
and what is wrong with a copy."""

import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedlearn as fl
from fedlearn import DataError
from fedlearn.data import published, sources
from fedlearn.data.annotated import CROWD, NOTHING, VOID
from fedlearn.data.published import VOC, named
from fedlearn.tasks.detection import average_precision

OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><part><name>head</name></part><bndbox>"
    "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
DOG, HARD = ("dog", 0, 1, 1, 40, 40), ("person", 1, 11, 21, 60, 30)


def picture(path, width=80, height=40):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((height, width, 3), 200, np.uint8)
    Image.fromarray(pixels).save(path, quality=95)


def annotation(path, *objects):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(OBJECT.format(*own) for own in objects)
    path.write_text(f"<annotation><filename>x</filename>{text}</annotation>")


def mask(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Image.fromarray(np.asarray(pixels, np.uint8))
    made.putpalette(list(range(256)) * 3)
    made.save(path)


def kinds(of=(12,), width=80, height=40):
    pixels = np.zeros((height, width), np.uint8)
    for i, kind in enumerate(of):
        pixels[10:30, 10 + 20 * i : 20 + 20 * i] = kind
        pixels[30:32, 10 + 20 * i : 20 + 20 * i] = VOID
    return pixels


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """VOC and COCO of two pictures to train and one to test."""
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path))
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for kind in ("Main", "Segmentation"):
        lists = root / "ImageSets" / kind
        lists.mkdir(parents=True)
        (lists / "train.txt").write_text("a\nb\n")
        (lists / "val.txt").write_text("c\n")
    for name in "abc":
        picture(root / "JPEGImages" / f"{name}.jpg")
        annotation(root / "Annotations" / f"{name}.xml", DOG, *[HARD] * (name != "a"))
        mask(root / "SegmentationClass" / f"{name}.png", kinds((12, 15) if name == "b" else (12,)))
    coco = tmp_path / "coco"
    for part, names in (("train", "ab"), ("val", "c")):
        images = [
            {"id": 7 * i, "file_name": f"{n}.jpg", "width": 80, "height": 40}
            for i, n in enumerate(names)
        ]
        for n in names:
            picture(coco / f"{part}2017" / f"{n}.jpg")
        own = {"image_id": 0, "category_id": 90, "bbox": [0, 0, 40.5, 20], "iscrowd": 0}
        crowd = own | {"category_id": 1, "bbox": [10, 5, 20, 30], "iscrowd": 1}
        table = {
            "images": images,
            "annotations": [own, crowd],
            "categories": [{"id": 90, "name": "brush"}, {"id": 1, "name": "person"}],
        }
        file = coco / "annotations" / f"instances_{part}2017.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(table))
    return tmp_path


def test_boxes_of_voc(copies):
    source = fl.data.voc(size=40)
    assert source.name == "voc:40" and source.names == VOC and source.classes == 20
    assert source.note == (
        "a subset of VOC 2012, scaled to 40 pixels: 2 of 5,717 pictures to train, 1 of 5,823 to "
        "test"
    )
    x, y = source.train_x, source.train_y
    assert x.shape == (2, 3, 40, 40) and x.dtype == torch.uint8
    assert (x[:, :, :20] > 190).all() and not x[:, :, 20:].any()  # in proportion, at the top left
    dog, person = VOC.index("dog"), VOC.index("person")
    # pixels 1 to 40 of 80, the last one included, are half of the picture's width
    assert y[0].tolist() == [[0, 0, 20, 20, dog, 0], [0, 0, 0, 0, NOTHING, 0]]
    assert y[1, 1].tolist() == [5, 10, 30, 15, person, 1]
    assert source.labels.tolist() == [dog, dog] and source.counts.tolist() == [1, 2]


def test_masks_of_voc(copies):
    source = fl.data.voc("masks", 40)
    assert source.names == ("background", *VOC) and source.classes == 21
    assert "2 of 1,464 pictures" in source.note
    y = source.train_y
    assert y.shape == (2, 40, 40) and (y[:, 20:] == VOID).all()
    assert set(y[0, :20].unique().tolist()) == {0, 12, VOID}, "borders are void"
    assert (y[0, 5:15, 5:10] == 12).all() and (y[1, 5:15, 15:20] == 15).all()


def test_boxes_of_coco(copies):
    source = fl.data.coco(80)
    assert source.names == ("person", "brush"), "in the order of their ids"
    assert source.train_y[0].tolist() == [[0, 0, 40.5, 20, 1, 0], [10, 5, 30, 35, 0, CROWD]]
    assert (source.train_y[1, :, 4] == NOTHING).all(), "a picture without an object stays"
    assert source.labels.tolist() == [1, 2] and "1 of 5,000 to test" in source.note


@pytest.mark.parametrize("name, kind", [("voc:48", "detection"), ("voc:48", "segmentation"),
                                        ("coco:64", "detection")])  # fmt: skip
def test_they_train(copies, name, kind):
    task = getattr(fl.tasks, kind)(name, 2)
    assert task.describe()["dataset"] == name and "a subset of" in task.describe()["note"]
    rows = fl.run(fl.methods.fedavg(), task, 1, batch_size=2).rows
    assert 0 <= rows[0]["accuracy"] <= 1 and rows[0]["loss"] > 0


A, LIST = "VOCdevkit/VOC2012/Annotations/b.xml", "coco/annotations/instances_train2017.json"
MASK, JPEG = "VOCdevkit/VOC2012/SegmentationClass/b.png", "VOCdevkit/VOC2012/JPEGImages/b.jpg"


def text(what):
    return lambda path: path.write_text(what)


def objects(*own):
    return lambda path: annotation(path, *own)


def pixels(made, **how):
    return lambda path: mask(path, made)


def table(**changes):
    def change(path):
        rows = json.loads(path.read_text())
        for where, value in changes.items():
            name, _, key = where.partition("_")
            if key:
                rows[name][0][key] = value
            else:
                rows[name] = value
        path.write_text(json.dumps(rows))

    return change


WRONG = [
    ("voc", JPEG, text("no picture"), "b.jpg is no picture that can be read"),
    ("voc", JPEG, lambda path: path.unlink(), "b.jpg is no picture that can be read"),
    ("voc", A, text("<annotation>"), "b.xml is no annotation that can be read"),
    ("voc", A, text("<annotation><a/></annotation>"), "b.xml (has no object|is no annotation)"),
    ("voc", A, objects(), "b.xml has no object"),
    ("voc", A, objects(("cat", 0, 5, 5, 4, 9)), r"b.xml has a box \(4, 4, 4, 9\) of no area"),
    ("voc", A, objects(("cat", 0, 5, 5, 99, 9)), "b.xml has a box .* not inside its 80 x 40"),
    ("voc", A, objects(("cat", 0, "nan", 5, 9, 9)), "b.xml has a box .* of no area"),
    ("voc", A, objects(("elk", 0, 1, 1, 9, 9)), "b.xml has an object of class 'elk', which VOC"),
    ("masks", MASK, pixels(kinds((21,))), "b.png has a pixel of class 21; classes are 0"),
    ("masks", MASK, pixels(kinds(())), "b.png has no object"),
    ("masks", MASK, pixels(kinds(width=40)), "b.png is 40 x 40 pixels, but its picture is 80 x 40"),
    ("masks", MASK, picture, "b.png is a picture of mode RGB, not a mask"),
    ("masks", MASK, text("no mask"), "b.png is no annotation that can be read"),
    ("coco", LIST, text("[1, 2]"), "train2017.json is no COCO: it needs 'images', a list of"),
    ("coco", LIST, text("{"), "train2017.json is no JSON that can be read"),
    ("coco", LIST, table(annotations=[{"bbox": 1}]), "is no COCO: it needs 'annotations'"),
    ("coco", LIST, table(annotations_image_id=5), "an object in an image 5, which it lacks"),
    ("coco", LIST, table(annotations_category_id=2), "image a.jpg, has an object of category 2"),
    ("coco", LIST, table(annotations_bbox=[0, 0, 0, 9]), r"image a.jpg, has a box .* of no area"),
    ("coco", LIST, table(annotations_bbox=[0, 0, 99, 9]), "image a.jpg, .* not inside its 80 x 40"),
    ("coco", LIST, table(annotations_bbox=[0, 0]), "train2017.json is no annotation that can be"),
    ("coco", LIST, table(images_width=640), "image a.jpg, says .640, 40., but the picture is"),
]  # fmt: skip


@pytest.mark.parametrize("kind, file, spoil, says", WRONG)
def test_what_is_wrong_is_said_with_its_file(copies, kind, file, spoil, says):
    spoil(copies / file)
    make = fl.tasks.segmentation if kind == "masks" else fl.tasks.detection
    name = "coco" if kind == "coco" else "voc"
    with pytest.raises(DataError, match=says) as raised:
        make(f"{name}:40", 1)
    assert str(copies) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("kind, file, spoil", [(*row[:3],) for row in WRONG if row[0] != "coco"])
def test_what_is_wrong_is_left_out_if_asked(copies, kind, file, spoil):
    spoil(copies / file)
    make = fl.tasks.segmentation if kind == "masks" else fl.tasks.detection
    task = make("voc:40,skip", 1)
    assert task.sizes == [1] and "; 1 that are wrong were left out" in task.source.note


def test_an_object_of_coco_is_left_out_if_asked(copies):
    table(annotations_bbox=[0, 0, 99, 9])(copies / LIST)
    source = fl.data.coco(40, skip=True)
    assert len(source.train_x) == 1 and "1 that are wrong" in source.note


@pytest.mark.parametrize(
    "wrong, says",
    [
        ("voc:big", "written like 'voc:160', not 'big'"),
        ("voc:40,50", "written like"),
        ("voc:8", "from 32 to 2048, not 8"),
        ("vox", "no data set of this task 'vox'. Did you mean 'voc'"),
    ],
)
def test_names_that_mean_nothing(copies, wrong, says):
    with pytest.raises(ValueError, match=says):
        fl.tasks.detection(wrong, 1)
    with pytest.raises(ValueError, match="no year of VOC here '1999'"):
        fl.data.voc(year="1999")
    with pytest.raises(ValueError, match="Allowed: digits, voc"):
        fl.tasks.segmentation("coco")
    with pytest.raises(DataError, match="is no VOC 2007 with boxes"):
        fl.data.voc(year="2007")


def test_a_set_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path))
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setattr(sources, "CACHE", tmp_path)
    with pytest.raises(DataError, match="The data set voc .* FEDLEARN_OFFLINE forbids"):
        fl.tasks.detection("voc")
    assert sources.missing(["coco:96", "digits:0.2", "coco:64"]) == [
        "coco: 19900 MB from cocodataset.org, to be unpacked as coco in FEDLEARN_DATA"
    ]
    (tmp_path / "voc_subset.zip").write_text("no zip")
    with pytest.raises(DataError, match="voc_subset.zip is no zip file that can be read"):
        fl.tasks.detection("voc")


def test_a_packed_copy_is_the_same(copies, tmp_path_factory, monkeypatch):
    packed = tmp_path_factory.mktemp("packed")
    for name, folder in (("voc", "VOCdevkit"), ("coco", "coco")):
        with zipfile.ZipFile(packed / f"{name}_subset.zip", "w") as pack:
            for file in (copies / folder).rglob("*.*"):
                pack.write(file, file.relative_to(copies))
    for name in ("voc", "coco"):
        here = named(name, "boxes", "40")
        with monkeypatch.context() as other:
            other.setenv("FEDLEARN_DATA", str(packed))
            there = named(name, "boxes", "40")
        assert here is not there and torch.equal(here.train_x, there.train_x)
        assert torch.equal(here.train_y, there.train_y)


def found(*boxes):
    t = torch.tensor(boxes).view(-1, 6)
    return {"boxes": t[:, :4], "labels": t[:, 4].long(), "scores": t[:, 5]}


@pytest.mark.parametrize(
    "mark, second, map_50",
    [
        (1, [20.0, 0, 40, 18], 1.0),  # finds the difficult one: neither right nor wrong
        (1, [20.0, 0, 25, 5], 0.5),  # lies in it, overlaps little: wrong
        (CROWD, [20.0, 0, 25, 5], 1.0),  # lies in a crowd
        (CROWD, [0.0, 30, 9, 40], 0.5),
    ],
)
def test_difficult_objects_and_crowds_in_evaluation(mark, second, map_50):
    y = torch.tensor([[[0.0, 0, 10, 10, 0, 0], [20, 0, 40, 20, 0, mark]]])
    measured = average_precision([found([0.0, 0, 10, 10, 0, 0.5], [*second, 0, 0.9])], y)
    assert measured["map_50"] == pytest.approx(map_50, abs=1e-3)


def test_how_many_are_there(copies):
    """Of what is listed, what has its picture; nothing is read."""
    kinds = ("detection", "voc:96"), ("segmentation", "voc:96"), ("detection", "coco:96")
    assert [published.there(*kind) for kind in kinds] == 3 * [(2, 1)]
    for folder in ("VOCdevkit/VOC2012/JPEGImages", "coco/train2017"):
        (copies / folder / "b.jpg").unlink()
    assert [published.there(*kind) for kind in kinds] == 3 * [(1, 1)]
    with zipfile.ZipFile(copies / "voc_subset.zip", "w") as packed:
        for file in sorted((copies / "VOCdevkit").rglob("*")):
            packed.write(file, file.relative_to(copies))
    shutil.rmtree(copies / "VOCdevkit")
    assert published.there("detection", "voc:96") == (1, 1)
    (copies / "voc_subset.zip").write_bytes(b"x")
    with pytest.raises(DataError, match=r"voc_subset.zip is no voc that can be read \("):
        published.there("detection", "voc:96")
    assert published.there("detection", "digits") is None
    shutil.rmtree(copies / "coco")
    assert published.there("detection", "coco:96") is None


def pack(name):
    """A folder that holds the packed subset, or a reason."""
    folder = Path(os.environ.get("FEDLEARN_DATA", "nowhere"))
    if not any((folder / place).exists() for place in (f"{name}_subset.zip", "VOCdevkit", name)):
        pytest.skip(f"{name} is not in FEDLEARN_DATA")
    return folder


@pytest.mark.parametrize(
    "name, targets, sizes, objects, classes",
    [
        ("voc", "boxes", (352, 348), 1365, 20),
        ("voc", "masks", (437, 445), None, 21),
        ("coco", "boxes", (122, 106), 2307, 80),
    ],
)
def test_the_packed_subsets(name, targets, sizes, objects, classes):
    pack(name)
    source = named(name, targets, "32")
    if not source.note.startswith("a subset"):
        pytest.skip(f"{name} in FEDLEARN_DATA is whole")
    assert (len(source.train_y), len(source.test_y)) == sizes and source.classes == classes
    if objects:
        there = sum(int((y[..., 4] >= 0).sum()) for y in (source.train_y, source.test_y))
        assert there == objects
    else:
        assert (source.train_y == VOID).any() and int(
            source.train_y[source.train_y < VOID].max()
        ) <= 20


def test_the_split_of_rpn_for_a_part_of_voc(copies):
    """Table 5 is for ten clients; its proportions hold where a class is absent."""
    split = fl.partition.parse("table:rpn_table5")
    assert split.counts().shape == (10, 20) and split.counts()[0, :3].tolist() == [53, 21, 61]
    labels = np.repeat([7, 11, 14], 100)
    owners = split.owners(labels, 10, np.random.default_rng(0), None)
    person = split.counts()[:, 14]
    counts = np.bincount(owners[labels == 14], minlength=10)
    assert np.abs(counts - 100 * person / person.sum()).max() < 1
    shutil.rmtree(copies)

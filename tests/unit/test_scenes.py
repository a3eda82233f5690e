"""Pictures with boxes and masks: digit scenes, own pictures, and what is wrong with them."""

import numpy as np
import pytest
import torch

from fedlearn import DataError, rng
from fedlearn.data import partition
from fedlearn.data.annotated import NOTHING, VOID, from_boxes, from_masks, source_of
from fedlearn.data.scenes import NAMES, digit_scenes, named

FEW = {"train": 60, "test": 20}


def objects(rows):
    return rows[rows[:, 4] > NOTHING]


def test_boxes_and_masks_belong_to_the_same_scenes_and_are_exact():
    boxes, masks = digit_scenes("boxes", **FEW), digit_scenes("masks", **FEW)
    assert torch.equal(boxes.train_x, masks.train_x) and torch.equal(boxes.test_x, masks.test_x)
    assert boxes.train_x.shape == (60, 1, 64, 64) and boxes.train_x.dtype == torch.uint8
    assert boxes.names == NAMES and masks.names[1:] == NAMES and masks.classes == 11
    for rows, mask, count in zip(boxes.train_y, masks.train_y, boxes.counts, strict=True):
        own, inside = objects(rows), torch.zeros(64, 64, dtype=torch.bool)
        assert 1 <= len(own) == count <= 6 and not own[:, 5].any()
        for x1, y1, x2, y2, kind in own[:, :5].int().tolist():
            part = mask[y1:y2, x1:x2]
            assert set(part.unique().tolist()) == {0, kind + 1}, "squares do not overlap"
            digit = part > 0  # the tight rectangle: ink on each of its four sides
            assert digit[0].any() and digit[-1].any() and digit[:, 0].any() and digit[:, -1].any()
            inside[y1:y2, x1:x2] = True
        assert not mask[~inside].any(), "no ink without a box"


def test_scenes_are_the_same_every_time_and_other_scenes_with_another_seed():
    again = digit_scenes.__wrapped__("boxes", **FEW)
    one, other = digit_scenes("boxes", **FEW), digit_scenes("boxes", seed=1, **FEW)
    assert torch.equal(one.train_x, again.train_x) and torch.equal(one.train_y, again.train_y)
    assert not torch.equal(one.train_x, other.train_x)


def test_difficulty_adds_clutter_and_moves_no_box():
    scenes = {d: digit_scenes("masks", d, **FEW) for d in (0.0, 0.5, 1.0)}
    assert {s.name for s in scenes.values()} == {"digit_scenes:0", "digit_scenes", "digit_scenes:1"}
    behind = {}
    for d, s in scenes.items():
        assert torch.equal(s.train_y, scenes[0.0].train_y)
        behind[d] = s.train_x[:, 0][s.train_y == 0].float()
    ink = [float((b > 100).float().mean()) for b in behind.values()]
    assert ink[0] == 0 < ink[1] < ink[2] < 0.1
    assert behind[0.0].std() < behind[0.5].std() < behind[1.0].std()


@pytest.mark.parametrize(
    "wrong", [{"difficulty": 1.5}, {"train": 0}, {"targets": "box"}, {"difficulty": float("nan")}]
)
def test_scenes_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="(?i)digit.scenes"):
        digit_scenes(**wrong)


def test_a_name_carries_its_difficulty():
    assert source_of("digits", {"digits": lambda a: named("boxes", a)}, from_boxes).classes == 10
    with pytest.raises(ValueError, match="'digits:0.8'"):
        named("boxes", "hard")
    with pytest.raises(ValueError, match="'digits:0.8'.*from 0 to 1"):
        named("boxes", "2")


X = np.zeros((3, 8, 10), np.uint8)
GOOD = [[1, 2, 5, 6, 0, 0], [0, 0, 10, 8, 1, 1]]


def boxes(bad, **more):
    return from_boxes(X, [GOOD[:1], [[0, 0, 1, 1, 1]], bad], 2, **{"test": 0.4} | more)


@pytest.mark.parametrize(
    "bad, says",
    [
        ([], "Image 2 has no object: leave it out, or allow empty=True"),
        ([[1, 2, 1, 6, 0]], r"Image 2 has a box \(1, 2, 1, 6\) of no area"),
        ([[5, 2, 1, 6, 0]], "of no area"),
        ([[np.nan, 2, 1, 6, 0]], "of no area"),
        ([[1, 2, 11, 6, 0]], "not inside its 10 x 8 pixels"),
        ([[1, -1, 5, 6, 0]], "not inside its 10 x 8 pixels"),
        ([[1, 2, 5, 6, 2]], "an object of class 2; classes are 0 to 1"),
        ([[1, 2, 5, 6, 1], [1, 2]], "Objects are rows"),
        ([[1, 2, 5, 6, 0.5]], "an object of class 0.5"),
        ([[1, 2, 5, 6, 0, 3]], "ignored as 3: that is 0, 1 or 2"),
        ([[1, 2, 5]], "Objects are rows of x1, y1, x2, y2, class"),
    ],
)
def test_boxes_that_cannot_be_learned_from(bad, says):
    with pytest.raises(DataError, match=says):
        boxes(bad)


def test_the_sentence_names_the_file():
    with pytest.raises(DataError, match=r"^Image 2 \(c.png\) has an object of class 7"):
        boxes([[0, 0, 1, 1, 7]], files=["a.png", "b.png", "c.png"])
    with pytest.raises(DataError, match="3 images cannot have 2 lists of objects"):
        from_boxes(X, [GOOD, GOOD], 2)
    with pytest.raises(DataError, match="3 images cannot have 1 masks"):
        from_masks(X, X[:1], 2)


def test_numbers_of_classes_that_cannot_be():
    with pytest.raises(ValueError, match="classes must be a whole number of at least 1, not 0"):
        from_boxes(X, [GOOD] * 3, 0)
    for classes in (1, 256):
        with pytest.raises(ValueError, match="2 to 255 classes with the background"):
            from_masks(X, X + 1, classes)


def test_pictures_of_floats_and_of_one_colour_are_normalised():
    x = np.random.RandomState(0).rand(4, 3, 8, 10).astype(np.float32)
    source = from_boxes(x, [GOOD] * 4, 2, 0.5)
    assert source.train_x.dtype == torch.float32
    assert source.mean == pytest.approx(source.train_x.mean((0, 2, 3)).tolist())
    assert source.std == pytest.approx(source.train_x.std((0, 2, 3), correction=0).tolist())
    assert from_boxes(X, [GOOD] * 3, 2, 0.4).std == (1.0,)


def test_own_boxes_are_padded_and_the_largest_class_is_the_main_one():
    source = from_boxes(X, [GOOD, [], GOOD[:1]], 2, (X[:1], [GOOD]), empty=True)
    assert source.train_y.shape == (3, 2, 6) and source.train_y.dtype == torch.float32
    assert source.train_y[0, 1].tolist() == [0, 0, 10, 8, 1, 1]
    assert (source.train_y[1, :, 4] == NOTHING).all() and source.train_y[2, 1, 4] == NOTHING
    assert source.labels.tolist() == [1, 2, 0] and source.counts.tolist() == [2, 0, 1]
    assert torch.equal(source.test_y[0], source.train_y[0])


@pytest.mark.parametrize(
    "bad, says",
    [
        (np.zeros((8, 10), int), "Image 2 has no object"),
        (np.full((8, 10), VOID), "Image 2 has no object"),
        (np.ones((10, 8), int), "Image 2 is 10 x 8, but its mask is 8 x 10"),
        (np.full((8, 10), 3), "a pixel of class 3; classes are 0 .background. to 2, and 255"),
        (np.full((8, 10), -1), "a pixel of class -1"),
        (np.ones((8, 10)), "a mask of float64"),
    ],
)
def test_masks_that_cannot_be_learned_from(bad, says):
    good = np.ones((8, 10), int)
    with pytest.raises(DataError, match=says):
        from_masks(X, [good, good, bad], 3)
    whole = from_masks(X, [good, good, good * 2], 3, (X[:1], [good]))
    assert whole.labels.tolist() == [0, 0, 1] and whole.train_y.dtype == torch.uint8


@pytest.mark.parametrize("text", ["iid", "dirichlet:0.5", "main_class:0.8", "classes", "objects"])
def test_splits_of_scenes(text):
    scenes, split = digit_scenes("boxes", train=200, test=20), partition.parse(text)
    column = getattr(scenes, split.by)
    own = split(column, 5, rng.numpy_generator(0, "x")).indices
    assert sorted(np.concatenate(own).tolist()) == list(range(200))
    if text == "objects":
        assert {len(i) for i in own} == {40}
        ends = [(column[i].min(), column[i].max()) for i in own]
        assert all(a[1] <= b[0] for a, b in zip(ends, ends[1:], strict=False))
        assert ends[0][0] == 1 and ends[-1][1] >= 5
    if text == "classes":
        assert all(set(scenes.labels[i]) <= {2 * k, 2 * k + 1} for k, i in enumerate(own))

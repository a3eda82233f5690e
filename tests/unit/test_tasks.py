"""Tasks: passes over images, augmentation, permuted pixels, losses, evaluation, what is refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import masks_to_boxes

import fedlearn as fl
from fedlearn import rng
from fedlearn.data.annotations import CROWD, NOTHING, VOID, from_boxes, from_masks
from fedlearn.data.scenes import digit_scenes
from fedlearn.models.heads import Centre
from fedlearn.tasks import augment
from fedlearn.tasks.base import find_device
from fedlearn.tasks.kinds import average_precision, best, pixel_cross_entropy


@pytest.mark.parametrize("count", [0, 2])
def test_a_device_is_found_or_the_sentence_says_what_there_is(count, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert find_device() == torch.device("cuda" if count else "cpu")
    known = ["cpu", *["cuda", "cuda:0", "cuda:1"] * (count > 0)]
    assert [find_device(name) for name in known] == [*map(torch.device, known)]
    for name in {"cuda", "cuda:1", "cuda:2", "gpu"} - {*known}:
        with pytest.raises(ValueError, match=f"no device '{name}'.* {', '.join(known)}"):
            fl.tasks.classification(device=name)


# ---- classification


@pytest.mark.parametrize("kind", ["classification", "detection", "segmentation"])
def test_validation_images_are_of_the_training_images_and_train_nobody(kind):
    make = getattr(fl.tasks, kind)
    plain, held = (make("digits", 2, train=60, seed=3, validation=v) for v in (False, True))
    assert (len(held.train[1]), len(held.test[1])) == (54, 6) and sum(held.sizes) == 54
    both = {x.numpy().tobytes() for x in (*held.train[0], *held.test[0])}
    assert both == {x.numpy().tobytes() for x in plain.train[0]} and len(both) == 60
    assert held.describe()["validation"] and "validation" not in plain.describe()
    again = make("digits", 3, "main_class:0.8", 3, train=60, validation=True)
    assert again.test[0].equal(held.test[0])  # whatever the clients


@pytest.mark.parametrize(
    "how, noun",
    [({"train": 9}, "tenth"), ({"test": 20}, "test"), ({"clients": [[0], [1, 2]]}, "validation")],
)
def test_a_validation_split_that_cannot_be_is_refused(how, noun):
    with pytest.raises(ValueError, match=noun):
        fl.tasks.classification("digits", **{"clients": 2} | how, validation=True)


def test_crop_shifts_and_flip_mirrors_every_image_by_its_own_draw():
    x = torch.randint(1, 256, (50, 3, 12, 12), dtype=torch.uint8, generator=rng.generator(0))
    labels = torch.arange(50)
    cropped, y = augment.crop(x, labels, rng.generator(1))
    assert cropped.shape == x.shape and cropped.dtype == torch.uint8 and y is labels
    cuts = F.pad(x, [4] * 4).unfold(2, 12, 1).unfold(3, 12, 1)  # [images, channels, 9, 9, 12, 12]
    same = (cuts == cropped[:, :, None, None]).flatten(4).all(4).all(1)
    assert (same.flatten(1).sum(1) == 1).all(), "each is one cut of its own image"
    assert same.any(0).sum() > 25 and same.any(0).any(0).all() and same.any(0).any(1).all()
    flipped, y = augment.flip(x, labels, rng.generator(1))
    mirrored = (flipped == x.flip(-1)).flatten(1).all(1)
    assert 12 < mirrored.sum() < 38 and y is labels
    assert torch.equal(flipped[~mirrored], x[~mirrored])


def test_a_pass_is_augmented_normalised_and_in_the_order_asked_for():
    task = fl.tasks.classification("digits", 2, augment=("crop", "flip"), train=100, test=50)
    order = torch.randperm(task.sizes[1], generator=rng.generator(5))
    x, y = task.epoch(1, order, rng.generator(6))
    assert torch.equal(y, task.train[1][task.owned[1][order]])
    again, draw = task.train[0][task.owned[1][order]], rng.generator(6)
    for change in (augment.crop, augment.flip):
        again, _ = change(again, y, draw)
    assert torch.equal(x, (again - task.source.mean[0]) / torch.tensor(task.source.std[0]))
    both, _ = task.gather([0, 1], [torch.arange(n) for n in task.sizes], [rng.generator(6)] * 2)
    assert both.shape == (100, 1, 8, 8) and both.dtype == torch.uint8


def test_permuted_pixels_are_the_same_permutation_in_training_and_test():
    task = fl.tasks.classification("digits", 3, partition="permuted", train=300, test=80)
    x, _ = task.epoch(1, torch.arange(task.sizes[1]), rng.generator(0))
    stored = task.train[0][task.owned[1]]
    plain = (stored.float() - task.source.mean[0]) / task.source.std[0]
    torch.testing.assert_close(x.flatten(1), plain.flatten(1)[:, task.split.permutations[1]])

    net, (x, y) = fl.initial_network(fl.methods.fedavg(), task), task.test
    each = [task.evaluate(net, client=k) for k in range(3)]
    for k, score in enumerate(each):  # the test set is seen with the eyes of the client named
        with torch.no_grad():
            logits = net.eval()(task.inputs(x.flatten(1)[:, task.split.permutations[k]].view_as(x)))
        assert score["accuracy"] == float((logits.argmax(1) == y).double().mean())
        assert abs(score["loss"] - float(F.cross_entropy(logits, y))) < 1e-5
    for name, value in task.evaluate(net).items():  # if nobody is, the mean over all of them
        assert abs(value - sum(score[name] for score in each) / 3) < 1e-9


@pytest.mark.parametrize("kind", ["classification", "segmentation"])
def test_evaluation_in_batches_is_evaluation_at_once(kind, monkeypatch):
    task = getattr(fl.tasks, kind)("digits", 2, train=20, test=40)
    net = fl.initial_network(fl.methods.fedavg(), task)
    whole = task.evaluate(net)
    monkeypatch.setattr(type(task), "batch", 7)
    assert task.evaluate(net) == pytest.approx(whole, abs=1e-5)
    assert net.training, "evaluation leaves the mode as it was"


# ---- detection

NONE = [0.0, 0, 0, 0, NOTHING, 0]


def test_what_is_predicted_twice_is_predicted_once():
    boxes = torch.tensor(
        [[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 10], [20, 0, 30, 9], [0, 0, 5, 5]]
    )
    scores = torch.tensor([[0.6, 0], [0.9, 0], [0, 0.8], [0.5, 0], [0.005, 0]])
    kept = best(boxes, scores)
    assert kept["boxes"].tolist() == boxes[[1, 2, 3]].tolist()
    assert kept["labels"].tolist() == [0, 1, 0]


ONE, FAR = [0.0, 0, 10, 10, 0, 0], [20.0, 0, 40, 20, 0]
FIND = [0.0, 0, 10, 10, 0, 0.9]


@pytest.mark.parametrize(
    "predictions, truth, map_50, map_50_95",
    [
        ([[[0.0, 0, 10, 6.2, 0, 0.9]]], [[ONE]], 1, 0.3),  # IoU 0.62: three of ten limits
        ([[FIND]], [[[0.0, 0, 10, 10, 0, 1]]], -1, -1),  # all ignored
        # what finds a difficult object is neither right nor wrong; what only lies in it is wrong
        ([[FIND, [20.0, 0, 40, 20, 0, 0.95]]], [[ONE, [*FAR, 1]]], 1, 1),
        ([[FIND, [20.0, 0, 25, 5, 0, 0.95]]], [[ONE, [*FAR, CROWD]]], 1, 1),  # lies in a crowd
        ([[FIND, [0.0, 30, 9, 40, 0, 0.95]]], [[ONE, [*FAR, CROWD]]], 0.5, 0.5),
    ],
)
def test_average_precision(predictions, truth, map_50, map_50_95):
    boxes = [torch.tensor(rows).view(-1, 6) for rows in predictions]
    said = [{"boxes": t[:, :4], "labels": t[:, 4].long(), "scores": t[:, 5]} for t in boxes]
    y = torch.tensor([(rows + [NONE] * 2)[:2] for rows in truth])
    expected = {"map_50": map_50, "map_50_95": map_50_95}
    assert average_precision(said, y) == pytest.approx(expected, abs=1e-3)


# ---- segmentation


def test_pixel_cross_entropy_counts_every_image_alike_and_no_void():
    scores = torch.randn(2, 3, 4, 4, generator=rng.generator(0), dtype=torch.float64)
    y = torch.randint(0, 3, (2, 4, 4), generator=rng.generator(1)).to(torch.uint8)
    y[0, :2] = VOID
    each = [
        F.cross_entropy(scores[i].flatten(1).T[labels != VOID], labels[labels != VOID].long())
        for i, labels in enumerate(y.flatten(1))
    ]
    torch.testing.assert_close(pixel_cross_entropy(scores, y), torch.stack(each).mean())
    torch.testing.assert_close(pixel_cross_entropy(scores[:, None], y[:, None]), torch.stack(each))
    y[1] = VOID
    scores.requires_grad_()
    assert not torch.autograd.grad(pixel_cross_entropy(scores, y), scores)[0][1].any()


class Says(nn.Module):
    """Gives these classes, whatever it sees."""

    def __init__(self, kinds, classes):
        super().__init__()
        self.scores = nn.Parameter(F.one_hot(kinds, classes).movedim(-1, 1).float())

    def forward(self, x):
        return self.scores


def test_mean_iou_and_pixel_accuracy_by_hand():
    truth = torch.tensor([[[0, 0, 1, 1], [0, 0, 1, VOID]]], dtype=torch.uint8)
    said = torch.tensor([[[0, 0, 1, 0], [0, 2, 1, 1]]])
    x = np.zeros((1, 2, 4), np.uint8)
    source = from_masks(x, truth.numpy(), 4, (x, truth.numpy()))
    task = fl.tasks.segmentation(source, 1, network=lambda s, c: Says(said, c), metrics="per_class")
    score = task.evaluate(task.network())
    # class 0: 3 of 5 (one missed, one too many); 1: 2 of 3; 2: 0 of 1; 3 is nowhere
    assert score["accuracy"] == pytest.approx((3 / 5 + 2 / 3 + 0) / 3)
    assert score["pixel_accuracy"] == pytest.approx(5 / 7)
    assert score["per_class"] == [3 / 4, 2 / 3, None, None]
    assert task.held.tolist() == [[4, 3, 0, 0]]


# ---- augmentation of pictures with boxes or masks


@pytest.mark.parametrize("name, limit", [("flip", 0), ("crop", 0), ("scale", 1)])
def test_boxes_and_masks_move_with_the_picture(name, limit):
    ends = torch.randint(10, 16, (60, 4), generator=rng.generator(0)) + torch.tensor([0, 0, 6, 6])
    x = torch.zeros(60, 1, 32, 32, dtype=torch.uint8)
    for picture, (left, top, right, bottom) in zip(x, ends.tolist(), strict=True):
        picture[:, top:bottom, left:right] = 200
    y = torch.cat([ends, torch.zeros(60, 2)], 1)[:, None]
    new, moved = augment.ANNOTATED[name](x, y, rng.generator(1))
    same, mask = augment.ANNOTATED[name](x, (x > 0)[:, 0].to(torch.uint8), rng.generator(1))
    assert torch.equal(new, same) and new.dtype == mask.dtype == torch.uint8
    tight = masks_to_boxes(mask == 1) + torch.tensor([0, 0, 1, 1])
    assert (tight - moved[:, 0, :4]).abs().max() <= limit and not moved[..., 4:].any()
    changed = (moved != y).flatten(1).any(1)
    assert 15 < changed.sum() < 45 if name == "flip" else changed.sum() > 50
    assert (mask == VOID).any() == (name != "flip")
    if name == "scale":
        sides = (tight[:, 2:] - tight[:, :2]) / (ends[:, 2:] - ends[:, :2])
        assert 0.6 < sides.min() < 0.85 and 1.2 < sides.max() < 1.6
    else:
        assert torch.equal(new[:, 0] == 200, mask == 1), "black and void outside"
        away = (moved[:, 0, :2] - y[:, 0, :2]).abs().amax(0).tolist()
        assert away == [4, 4] if name == "crop" else away[1] == 0


def test_what_leaves_the_picture_is_ignored_and_then_gone():
    x, y = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(3, 2, 6)
    y[:, 0, :4] = torch.tensor([4.0, 0, 8, 8])
    y[:, 1, 4] = NOTHING
    _, y = augment.affine(x, y, torch.ones(3, 2), torch.tensor([[2.0, 0], [3.5, 0], [4, 0]]))
    assert y[:, 0].tolist() == [[6, 0, 8, 8, 0, 0], [7.5, 0, 8, 8, 0, 1], [8, 0, 8, 8, NOTHING, 1]]
    assert y[:, 1].tolist() == [NONE] * 3


# ---- what a task says of itself, and what cannot be one

X = np.zeros((4, 64, 64), np.uint8)
BOX = [[1.0, 1, 9, 9, 0, 0]]


def test_own_boxes_and_what_a_task_says_of_itself():
    task = fl.tasks.detection((X, [BOX] * 4, 2, 0.5), 2, seed=3)
    assert task.held.tolist() == [[1, 0], [1, 0]] and isinstance(task.head, Centre)
    digits = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=240, test=100)
    stored = {"images": "58ba914eb4ab10f4", "clients": "8d835315282c7374"}
    assert digits.digests == stored, "stored runs hold them"


@pytest.mark.parametrize(
    "make, wrong, says",
    [
        ("detection", {"dataset": "mnist"}, "Allowed: digits"),
        ("detection", {"dataset": digit_scenes("masks", train=20, test=4)}, "no boxes"),
        ("segmentation", {"dataset": from_boxes(X, [BOX] * 4, 2, 0.5)}, "no masks"),
        ("detection", {"metrics": "per_class"}, "metric"),
        ("detection", {"partition": "permuted"}, "permuted is for classification"),
        ("classification", {"partition": "objects"}, "nothing to count"),
        ("detection", {"dataset": (X, [BOX] * 4, 2, (X, [[[1, 1, 9, 9, 0, 1]]] * 4))}, "no object"),
        ("detection", {"train": 0}, "kept"),
    ],
)
def test_tasks_that_cannot_be(make, wrong, says):
    with pytest.raises(ValueError, match=says):
        getattr(fl.tasks, make)(**{"dataset": "digits", "clients": 2} | wrong)

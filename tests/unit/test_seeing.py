"""Detection and segmentation: losses, assignment, metrics, augmentation, what is refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import generalized_box_iou, masks_to_boxes, nms

import fedlearn as fl
from fedlearn import rng
from fedlearn.data.annotated import NOTHING, VOID, from_boxes, from_masks
from fedlearn.data.scenes import digit_scenes
from fedlearn.models.heads import Centre
from fedlearn.tasks import Detection, moves
from fedlearn.tasks.detection import average_precision, best
from fedlearn.tasks.segmentation import pixel_cross_entropy

NONE = [0.0, 0, 0, 0, NOTHING, 0]
SIZE = 16, 32  # pixels, on a map of 2 rows and 4 columns: cells of 8 x 8


def rows(*objects, most=3):
    """y of one image."""
    return torch.tensor([*objects, *[NONE] * (most - len(objects))], dtype=torch.float64)


def outputs(seed=0, batch=1, classes=3):
    return torch.randn(batch, 5 + classes, 2, 4, generator=rng.generator(seed), dtype=torch.float64)


def by_hand(head, out, y):
    """The loss of one image, cell after cell and object after object."""
    total = out.new_zeros(())
    counted = [o for o in y.tolist() if o[4] >= 0 and not o[5]]
    ignored = [o for o in y.tolist() if o[4] >= 0 and o[5]]
    places = {}
    for x1, y1, x2, y2, kind, _ in counted:
        i, j = int((y1 + y2) / 2 // 8), int((x1 + x2) / 2 // 8)
        places[i, j] = True
        tx, ty, tw, th = out[:4, i, j]
        cx, cy, w, h = (j + tx.sigmoid()) * 8, (i + ty.sigmoid()) * 8, 8 * tw.exp(), 8 * th.exp()
        box = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2])[None]
        truth = torch.tensor([[x1, y1, x2, y2]], dtype=out.dtype)
        total += head.box * (1 - generalized_box_iou(box, truth)[0, 0])
        total -= head.kind * out[5:, i, j].log_softmax(0)[int(kind)]
    for i in range(2):
        for j in range(4):
            x, y = 8 * j + 4, 8 * i + 4
            hidden = any(a < x < c and b < y < d for a, b, c, d, *_ in ignored)
            p = out[4, i, j].sigmoid()
            if (i, j) in places:
                total -= head.objectness * p.log()
            elif not hidden:
                total -= head.objectness * (1 - p).log()
    return total / max(len(counted), 1)


A, B = [1.0, 2, 9, 12, 0, 0], [20.0, 1, 31, 15, 2, 0]
CASES = {
    "nothing": rows(),
    "one": rows(A),
    "two": rows(A, B),
    "two in one cell": rows(A, [2.0, 1, 7, 13, 1, 0]),
    "whole picture": rows([0.0, 0, 32, 16, 1, 0]),
    "the last pixel": rows([31.0, 15, 32, 16, 1, 0]),
    "ignored": rows([0.0, 0, 32, 16, 1, 1]),
    "one over an ignored one": rows(A, [0.0, 0, 17, 16, 1, 1]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_that_computed_by_hand(name):
    head = Centre(1.5, 2.5, 0.5)
    y, out = CASES[name], outputs()
    torch.testing.assert_close(
        head.loss(out, y[None], SIZE), by_hand(head, out[0], y), atol=1e-6, rtol=0
    )


def test_losses_are_means_over_images_and_leading_clients_are_apart():
    head, y = Centre(), torch.stack(list(CASES.values()))
    out = outputs(batch=8)
    alone = torch.stack(
        [head.loss(o[None], own[None], SIZE) for o, own in zip(out, y, strict=True)]
    )
    torch.testing.assert_close(head.loss(out, y, SIZE), alone.mean(), atol=1e-9, rtol=0)
    both = head.loss(out.unflatten(0, (2, 4)), y.unflatten(0, (2, 4)), SIZE)
    torch.testing.assert_close(both, alone.view(2, 4).mean(1), atol=1e-9, rtol=0)


def test_more_rows_for_objects_change_nothing():
    wide = rows(A, B, most=9)
    out = outputs()
    assert Centre().loss(out, wide[None], SIZE) == Centre().loss(out, rows(A, B)[None], SIZE)


def test_an_image_that_counts_for_nothing_has_neither_loss_nor_gradient():
    out = outputs(batch=2).requires_grad_()
    y = torch.stack([rows(A), torch.full((3, 6), -100.0).double()])
    loss = Centre().loss(out, y, SIZE)
    torch.testing.assert_close(2 * loss, Centre().loss(out[:1], y[:1], SIZE), atol=1e-9, rtol=0)
    g = torch.autograd.grad(loss, out)[0]
    assert g[0].abs().sum() > 0 and not g[1].any() and g.isfinite().all()


def test_assignment():
    y = torch.stack([rows(A, [8.0, 8, 16, 16, 1, 0]), rows([16.0, 0, 32, 16, 1, 1])])
    cell, there, taken, asked = Centre().cells(y, SIZE, 2, 4)
    assert cell[0, :2].tolist() == [0, 5] and there[0].tolist() == [True, True, False]
    assert taken[0].nonzero().flatten().tolist() == [0, 5] and asked[0].all()
    assert not taken[1].any() and asked[1].tolist() == [True, True, False, False] * 2


def test_decoding_is_the_inverse_of_the_equations():
    out = outputs()
    out[0, :4, 1, 2] = torch.tensor([0.0, 0, 0, torch.tensor(2.0).log()])
    boxes, scores = Centre().decode(out, SIZE)
    assert boxes.shape == (1, 8, 4) and scores.shape == (1, 8, 3)
    torch.testing.assert_close(boxes[0, 6], torch.tensor([16.0, 4, 24, 20]).double())
    expected = out[0, 4, 1, 2].sigmoid() * out[0, 5:, 1, 2].softmax(0)
    torch.testing.assert_close(scores[0, 6], expected)
    out[0, 2] = 1e9  # a network that diverges
    assert Centre().decode(out, SIZE)[0].isfinite().all()


def test_what_is_said_twice_is_said_once():
    boxes = torch.tensor(
        [[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 10], [20, 0, 30, 9], [0, 0, 5, 5]]
    )
    scores = torch.tensor([[0.6, 0], [0.9, 0], [0, 0.8], [0.5, 0], [0.005, 0]])
    found = best(boxes, scores)
    assert found["boxes"].tolist() == boxes[[1, 2, 3]].tolist()
    assert found["labels"].tolist() == [0, 1, 0]
    own = scores[:, 0] > 0.01
    assert torch.equal(
        found["boxes"][found["labels"] == 0], boxes[own][nms(boxes[own], scores[own, 0], 0.5)]
    )
    assert best(boxes, scores * 0)["boxes"].shape == (0, 4)


def said(*boxes):
    """Predictions for one image from rows x1, y1, x2, y2, class, score."""
    t = torch.tensor(boxes).view(-1, 6)
    return {"boxes": t[:, :4], "labels": t[:, 4].long(), "scores": t[:, 5]}


ONE = [0.0, 0, 10, 10, 0, 0]
FIND = [0.0, 0, 10, 10, 0, 0.9]


@pytest.mark.parametrize(
    "predictions, truth, map_50, map_50_95",
    [
        ([said(FIND)], [[ONE]], 1, 1),
        ([said()], [[ONE]], 0, 0),
        ([said([0.0, 0, 10, 10, 1, 0.9])], [[ONE]], 0, 0),  # another class
        ([said([0.0, 0, 10, 6.2, 0, 0.9])], [[ONE]], 1, 0.3),  # IoU 0.62: three of ten limits
        ([said(FIND, [0.0, 0, 10, 10, 0, 0.8])], [[ONE]], 1, 1),  # a duplicate behind it
        # better ones are wrong: precision 1/2 wherever the object is recalled
        ([said(FIND, [20.0, 0, 30, 10, 0, 0.95])], [[ONE]], 0.5, 0.5),
        ([said(FIND), said()], [[ONE], []], 1, 1),  # an image without objects
        ([said(FIND), said(FIND)], [[ONE], []], 1, 1),  # something in it, no better than the right
        ([said(FIND), said()], [[ONE], [ONE]], 51 / 101, 51 / 101),  # recall 1/2, 101 points
        ([said(FIND, [20.0, 0, 30, 10, 0, 0.95])], [[ONE, [20.0, 0, 30, 10, 0, 1]]], 1, 1),
        ([said(FIND)], [[[0.0, 0, 10, 10, 0, 1]]], -1, -1),  # all ignored
        ([said(FIND)], [[]], -1, -1),
    ],
)
def test_average_precision(predictions, truth, map_50, map_50_95):
    y = torch.stack([rows(*own).float() for own in truth])
    found = average_precision(predictions, y)
    assert found["map_50"] == pytest.approx(map_50, abs=1e-3)
    assert found["map_50_95"] == pytest.approx(map_50_95, abs=1e-3)


def test_evaluation_of_a_detector_is_that_of_what_it_predicts():
    task = fl.tasks.detection(clients=2, train=20, test=12)
    net = fl.initial_network(fl.methods.fedavg(), task)
    result = task.evaluate(net)
    assert list(result) == ["accuracy", "loss", "map_50_95"] and net.training
    many = task.evaluate(net, 5)
    assert many == pytest.approx(result, abs=1e-5)

    def perfect(self, net, y=task.test[1]):
        kept = [own[own[:, 4] >= 0] for own in y]
        return [said(*[[*o[:5], 1.0] for o in own.tolist()]) for own in kept]

    assert average_precision(perfect(task, net), task.test[1])["map_50_95"] == pytest.approx(1)
    x = task.test[0][:3]
    with torch.no_grad():
        found = task.predict(net.eval(), x)
    assert len(found) == 3 and all(set(own) == {"boxes", "scores", "labels"} for own in found)


def test_pixel_cross_entropy_counts_every_image_alike_and_no_void():
    scores = torch.randn(2, 3, 4, 4, generator=rng.generator(0), dtype=torch.float64)
    y = torch.randint(0, 3, (2, 4, 4), generator=rng.generator(1)).to(torch.uint8)
    y[0, :2] = VOID
    each = [
        F.cross_entropy(scores[i].flatten(1).T[own != VOID], own[own != VOID].long())
        for i, own in enumerate(y.flatten(1))
    ]
    loss = pixel_cross_entropy(scores, y)
    torch.testing.assert_close(loss, torch.stack(each).mean())
    apart = pixel_cross_entropy(scores[:, None], y[:, None])
    torch.testing.assert_close(apart, torch.stack(each))
    y[1] = VOID
    scores.requires_grad_()
    loss = pixel_cross_entropy(scores, y)
    assert not torch.autograd.grad(loss, scores)[0][1].any()


class Says(nn.Module):
    """Gives these classes, whatever it sees."""

    def __init__(self, kinds, classes):
        super().__init__()
        self.scores = nn.Parameter(F.one_hot(kinds.long(), classes).movedim(-1, 1).float())

    def forward(self, x):
        return self.scores[: len(x)]


def test_mean_iou_and_pixel_accuracy_by_hand():
    truth = torch.tensor([[[0, 0, 1, 1], [0, 0, 1, VOID]]], dtype=torch.uint8)
    said = torch.tensor([[[0, 0, 1, 0], [0, 2, 1, 1]]])
    x = np.zeros((1, 2, 4), np.uint8)
    source = from_masks(x, truth.numpy(), 4, (x, truth.numpy()))
    task = fl.tasks.segmentation(source, 1, network=lambda s, c: Says(said, c), metrics="per_class")
    found = task.evaluate(task.network())
    # class 0: 3 of 5 (one missed, one too many); 1: 2 of 3; 2: 0 of 1; 3 is nowhere
    assert found["accuracy"] == pytest.approx((3 / 5 + 2 / 3 + 0) / 3)
    assert found["pixel_accuracy"] == pytest.approx(5 / 7)
    assert found["per_class"] == [3 / 4, 2 / 3, None, None]
    assert task.held.tolist() == [[4, 3, 0, 0]]


def moved_both_ways(name, seed=0):
    """The same moves for boxes and for masks of twenty scenes."""
    few = {"train": 20, "test": 1}
    boxes, masks = digit_scenes("boxes", **few), digit_scenes("masks", **few)
    x, y = moves.MOVES[name](boxes.train_x, boxes.train_y, rng.generator(seed))
    same, mask = moves.MOVES[name](masks.train_x, masks.train_y, rng.generator(seed))
    assert torch.equal(x, same) and x.dtype == mask.dtype == torch.uint8
    return boxes, masks, x, y, mask


@pytest.mark.parametrize("name, limit", [("flip", 0), ("crop", 0), ("scale", 1.5)])
def test_boxes_and_masks_move_with_the_picture(name, limit):
    boxes, masks, x, y, mask = moved_both_ways(name)
    changed = checked = 0
    for before, after, own in zip(boxes.train_y, y, mask, strict=True):
        changed += not torch.equal(before, after)
        assert torch.equal(after[:, 4] < 0, (before[:, 4] < 0) | (after[:, 4] < 0))
        for box in after[after[:, 4] >= 0]:
            left, top, right, bottom = box[:4].round().int().tolist()
            near = own[max(top - 1, 0) : bottom + 1, max(left - 1, 0) : right + 1]
            its = (near == box[4] + 1)[None]
            twins = (after[:, 4] == box[4]).sum() > 1  # two of a kind may be neighbours
            cut = box[:2].min() == 0 or box[2:4].max() == 64  # of what is left the box may be wide
            if its.any() and not twins and not cut:
                tight = masks_to_boxes(its)[0] + torch.tensor([0, 0, 1, 1])
                tight += torch.tensor([max(left - 1, 0), max(top - 1, 0)] * 2)
                assert (tight - box[:4]).abs().max() <= limit
                checked += 1
    assert changed >= 5 and checked >= 20


def test_a_flip_is_a_flip_and_a_crop_is_black_and_void_outside():
    boxes, masks, x, y, mask = moved_both_ways("flip")
    flipped = torch.tensor(
        [torch.equal(a, b.flip(-1)) for a, b in zip(x, boxes.train_x, strict=True)]
    )
    assert 3 < flipped.sum() < 17 and torch.equal(x[~flipped], boxes.train_x[~flipped])
    assert torch.equal(mask[flipped], masks.train_y[flipped].flip(-1))
    _, masks, x, y, mask = moved_both_ways("crop")
    outside = mask == VOID
    assert outside.any() and not x[:, 0][outside].any()
    assert not (masks.train_y == VOID).any()


def test_what_leaves_the_picture_is_ignored_and_then_gone():
    x, y = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(3, 2, 6)
    y[:, 0, :4] = torch.tensor([4.0, 0, 8, 8])
    y[:, 1, 4] = NOTHING
    shift = torch.tensor([[2.0, 0], [3.5, 0], [4, 0]])
    _, y = moves.moved(x, y, torch.ones(3, 2), shift)
    assert y[:, 0].tolist() == [[6, 0, 8, 8, 0, 0], [7.5, 0, 8, 8, 0, 1], [8, 0, 8, 8, NOTHING, 1]]
    assert y[:, 1].tolist() == [NONE] * 3


X = np.zeros((4, 64, 64), np.uint8)
BOX = [[1.0, 1, 9, 9, 0, 0]]


@pytest.mark.parametrize(
    "make, wrong, says",
    [
        ("detection", {"dataset": "mnist"}, "no data set of this task 'mnist'.* Allowed: digits"),
        ("detection", {"dataset": 3}, "first arguments of from_boxes, not 3"),
        ("detection", {"dataset": "masks"}, "has no boxes"),
        ("segmentation", {"dataset": "boxes"}, "has no masks"),
        ("classification", {"dataset": "boxes"}, "for fl.tasks.detection or segmentation"),
        ("detection", {"network": "scene_fcn"}, "no network 'scene_fcn'"),
        ("detection", {"network": fl.models.scene_fcn}, "has a head .*unlike Network"),
        ("detection", {"metrics": "per_class"}, "Detection measures mAP"),
        ("detection", {"partition": "permuted"}, "would tear boxes"),
        ("detection", {"augment": "mixup"}, "no augmentation 'mixup'"),
        ("classification", {"partition": "objects"}, "nothing to count"),
        ("detection", {"dataset": "blind"}, "no object that counts"),
        ("detection", {"train": 0}, "cannot be kept"),
        ("detection", {"clients": "users"}, "names no users"),
    ],
)
def test_tasks_that_cannot_be(make, wrong, says):
    few = {"train": 20, "test": 4}
    own = {
        "masks": lambda: digit_scenes("masks", **few),
        "boxes": lambda: digit_scenes("boxes", **few),
        "blind": lambda: from_boxes(X, [BOX] * 4, 2, (X, [[[1, 1, 9, 9, 0, 1]]] * 4)),
    }
    given = {"dataset": digit_scenes("boxes", **few), "clients": 2} | wrong
    if make == "classification" and "dataset" not in wrong:
        given.pop("dataset")
    if isinstance(given.get("dataset"), str) and given["dataset"] in own:
        given["dataset"] = own[given["dataset"]]()
    with pytest.raises(ValueError, match=says):
        getattr(fl.tasks, make)(**given)


def test_own_boxes_and_what_a_task_says_of_itself():
    task = fl.tasks.detection((X, [BOX] * 4, 2, 0.5), 2, seed=3, augment="flip")
    assert task.describe() == {
        "dataset": "own",
        "clients": 2,
        "partition": "Iid()",
        "seed": 3,
        "network": "scene_detector",
        "augment": ["flip"],
        "train": 2,
        "test": 2,
        "task": "detection",
        "accuracy": "mAP@0.5",
    }
    assert task.held.tolist() == [[1, 0], [1, 0]]
    assert isinstance(task, Detection) and task.head == Centre()


@pytest.mark.parametrize("network, count", [("scene_detector", 98_367), ("scene_fcn", 99_372)])
def test_networks_are_small_and_almost_all_convolution(network, count):
    net = getattr(fl.models, network)()
    kernels = sum(
        fl.models.state_of(net)[n].numel() for n in fl.models.kernel_names(fl.models.state_of(net))
    )
    assert fl.models.parameter_count(net) == count and kernels > 0.98 * count
    out = net(torch.zeros(2, 1, 64, 64))
    assert out.shape == ((2, 15, 8, 8) if network == "scene_detector" else (2, 11, 64, 64))

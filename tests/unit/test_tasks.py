"""Tasks: passes over images, augmentation, permuted pixels, losses, evaluation, what is refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import generalized_box_iou, masks_to_boxes, nms

import fedlearn as fl
from fedlearn import rng
from fedlearn.data.arrays import CROWD, NOTHING, VOID, from_boxes, from_masks
from fedlearn.data.scenes import digit_scenes
from fedlearn.models.heads import Centre
from fedlearn.tasks import Detection, augment
from fedlearn.tasks.base import find_device
from fedlearn.tasks.detection import average_precision, best
from fedlearn.tasks.segmentation import pixel_cross_entropy


@pytest.mark.parametrize("count", [0, 2])
def test_a_device_is_found_or_the_sentence_says_what_there_is(count, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: f"GPU {name[-1]}")
    assert find_device() == torch.device("cuda" if count else "cpu")
    assert find_device(torch.device("cpu")) == find_device("cpu") == torch.device("cpu")
    known = ["cuda", "cuda:1"] * (count > 0)
    assert [find_device(name) for name in known] == [*map(torch.device, known)]
    listed = r"cpu and cuda:0 \(GPU 0\), cuda:1 \(GPU 1\)\." if count else "cpu and no CUDA"
    for name in {"cuda", "cuda:1", "cuda:2", "gpu", "CUDA:0"} - {*known}:
        with pytest.raises(ValueError, match=f"'{name}' here: this machine has {listed}"):
            fl.tasks.classification(device=name)


# ---- classification


def test_crop_shifts_and_flip_mirrors_every_image_by_its_own_draw():
    x = torch.randint(1, 256, (50, 3, 12, 12), dtype=torch.uint8, generator=rng.generator(0))
    labels = torch.arange(50)
    cropped, y = augment.crop(x, labels, rng.generator(1))
    assert cropped.shape == x.shape and cropped.dtype == torch.uint8 and y is labels
    places = [(i, j) for i in range(9) for j in range(9)]
    shifts = set()
    for before, after in zip(F.pad(x, [4] * 4), cropped, strict=True):
        cuts = {(i, j): before[:, i : i + 12, j : j + 12] for i, j in places}
        [place] = [place for place, cut in cuts.items() if torch.equal(cut, after)]
        shifts.add(place)
    assert len(shifts) > 25
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
    assert torch.equal(x, task.inputs(again))
    assert torch.equal(x, (again - task.source.mean[0]) / torch.tensor(task.source.std[0]))
    both, _ = task.gather([0, 1], [torch.arange(n) for n in task.sizes], [rng.generator(6)] * 2)
    assert both.shape == (100, 1, 8, 8) and both.dtype == torch.uint8
    plain = fl.tasks.classification("digits", 2).inputs(fl.data.sources.load("digits").train_x)
    assert abs(plain.mean()) < 1e-4 and abs(plain.std() - 1) < 1e-3
    assert fl.run("fedavg", task, 1) == fl.run("fedavg", task, 1)


def test_permuted_pixels_are_the_same_permutation_in_training_and_test():
    task = fl.tasks.classification("digits", 3, partition="permuted", train=300, test=80)
    x, y = task.epoch(1, torch.arange(task.sizes[1]), rng.generator(0))
    stored = task.train[0][task.owned[1]]
    plain = (stored.float() - task.source.mean[0]) / task.source.std[0]
    permutation = torch.as_tensor(task.split.permutations[1])
    torch.testing.assert_close(x.flatten(1), plain.flatten(1)[:, permutation])
    torch.testing.assert_close(task.inputs(stored, 1), x)
    assert set(task.digests) == {"images", "clients", "permutations"}

    history = fl.run("fedavg", task, 2, batch_size=10)
    net = fl.initial_network(fl.methods.fedavg(), task)
    net.load_state_dict(history.state, strict=False)
    each = [task.evaluate(net, client=k) for k in range(3)]
    x, y = task.test
    for k, found in enumerate(each):  # the test set is seen with the eyes of the client named
        with torch.no_grad():
            logits = net.eval()(task.inputs(x.flatten(1)[:, task.split.permutations[k]].view_as(x)))
        assert found["accuracy"] == float((logits.argmax(1) == y).double().mean())
        assert abs(found["loss"] - float(F.cross_entropy(logits, y))) < 1e-5
    assert len({found["loss"] for found in each}) == 3, "the permutations show"
    for name, value in task.evaluate(net).items():  # if nobody is, the mean over all of them
        assert abs(value - sum(found[name] for found in each) / 3) < 1e-9
        assert abs(history.rows[-1][name] - value) < 1e-9


SLOW = pytest.mark.slow  # it loads torchmetrics


@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        pytest.param("detection", marks=SLOW),
        pytest.param("segmentation", marks=SLOW),
    ],
)
def test_evaluation_in_batches_is_evaluation_at_once(kind):
    task = getattr(fl.tasks, kind)("digits", 2, train=20, test=40)
    net = fl.initial_network(fl.methods.fedavg(), task)
    small, large = task.evaluate(net, 7), task.evaluate(net)
    assert small == pytest.approx(large, abs=1e-5)
    extra = {"detection": ["map_50_95"], "segmentation": ["pixel_accuracy"]}.get(kind, [])
    assert list(large) == ["accuracy", "loss", *extra]
    assert net.training, "evaluation leaves the mode as it was"


def test_networks_of_a_task():
    task = fl.tasks.classification("digits", 2, network=lambda shape, classes: nn.Flatten())
    assert isinstance(task.network(), nn.Flatten) and task.describe()["network"] == "<lambda>"
    assert task.network("mlp", (3, 4, 4))(torch.zeros(2, 3, 4, 4)).shape == (2, 10)
    for wrong, says in ((lambda s, c: 3, "int"), (lambda s: None, "cannot be built")):
        with pytest.raises(ValueError, match=says):
            task.network(wrong)


def test_refit_measures_batch_statistics_anew():
    task = fl.tasks.classification("digits", 2, train=60, test=40, network="digits_resnet")
    net = fl.initial_network(fl.methods.fedavg(), task)
    state = {name: t.clone() for name, t in fl.models.state_of(net).items()}
    norm = next(m for m in net.modules() if isinstance(m, nn.BatchNorm2d))
    for name in state:
        if name.endswith("running_mean"):
            state[name] += 100.0
    before = {name: t.clone() for name, t in state.items()}
    there = fl.refit(fl.methods.fedavg(), task, state, images=60)
    assert all(torch.equal(t, before[name]) for name, t in state.items())
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        net.train()(task.inputs(task.train[0]))
    assert there == task.evaluate(net) and norm.momentum == 1.0
    with pytest.raises(ValueError, match="refit"):
        fl.refit(fl.methods.fedavg(), task, {"x": torch.zeros(1)})


# ---- detection

NONE = [0.0, 0, 0, 0, NOTHING, 0]
SIZE = 16, 32  # pixels, on a map of 2 rows and 4 columns: cells of 8 x 8


def rows(*objects, most=3):
    """y of one image."""
    return torch.tensor([*objects, *[NONE] * (most - len(objects))], dtype=torch.float64)


def outputs(batch=1, classes=3):
    return torch.randn(batch, 5 + classes, 2, 4, generator=rng.generator(0), dtype=torch.float64)


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


def test_the_loss_is_that_computed_by_hand_for_each_image_and_client():
    head, y, out = Centre(1.5, 2.5, 0.5), torch.stack(list(CASES.values())), outputs(batch=8)
    hand = torch.stack([by_hand(head, o, own) for o, own in zip(out, y, strict=True)])
    for i, name in enumerate(CASES):
        own = head.loss(out[i : i + 1], y[i : i + 1], SIZE)
        torch.testing.assert_close(own, hand[i], atol=1e-6, rtol=0, msg=name)
    both = head.loss(out.unflatten(0, (2, 4)), y.unflatten(0, (2, 4)), SIZE)
    torch.testing.assert_close(both, hand.view(2, 4).mean(1), atol=1e-6, rtol=0)
    wide = rows(A, B, most=9)
    assert head.loss(out[:1], wide[None], SIZE) == head.loss(out[:1], CASES["two"][None], SIZE)


def test_an_image_that_counts_for_nothing_has_neither_loss_nor_gradient():
    out = outputs(batch=2).requires_grad_()
    y = torch.stack([rows(A), torch.full((3, 6), float(Detection.ignored)).double()])
    loss = Centre().loss(out, y, SIZE)
    torch.testing.assert_close(2 * loss, Centre().loss(out[:1], y[:1], SIZE), atol=1e-9, rtol=0)
    g = torch.autograd.grad(loss, out)[0]
    assert g[0].abs().sum() > 0 and not g[1].any() and g.isfinite().all()


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


def test_what_is_predicted_twice_is_predicted_once():
    boxes = torch.tensor(
        [[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 10], [20, 0, 30, 9], [0, 0, 5, 5]]
    )
    scores = torch.tensor([[0.6, 0], [0.9, 0], [0, 0.8], [0.5, 0], [0.005, 0]])
    found = best(boxes, scores)
    assert found["boxes"].tolist() == boxes[[1, 2, 3]].tolist()
    assert found["labels"].tolist() == [0, 1, 0]
    first = scores[:, 0] > 0.01
    alone = boxes[first][nms(boxes[first], scores[first, 0], 0.5)]
    assert torch.equal(found["boxes"][found["labels"] == 0], alone)
    assert best(boxes, scores * 0)["boxes"].shape == (0, 4)
    many = best(
        torch.arange(150.0)[:, None] * 20 + torch.tensor([0.0, 0, 9, 9]), torch.ones(150, 1)
    )
    assert len(many["boxes"]) == 100


def predicted(*boxes):
    """Predictions for one image from rows x1, y1, x2, y2, class, score."""
    t = torch.tensor(boxes).view(-1, 6)
    return {"boxes": t[:, :4], "labels": t[:, 4].long(), "scores": t[:, 5]}


ONE, FAR = [0.0, 0, 10, 10, 0, 0], [20.0, 0, 40, 20, 0]
FIND, WRONG = [0.0, 0, 10, 10, 0, 0.9], [20.0, 0, 30, 10, 0, 0.95]


@pytest.mark.parametrize(
    "predictions, truth, map_50, map_50_95",
    [
        ([[FIND]], [[ONE]], 1, 1),
        ([[]], [[ONE]], 0, 0),
        ([[[0.0, 0, 10, 10, 1, 0.9]]], [[ONE]], 0, 0),  # another class
        ([[[0.0, 0, 10, 6.2, 0, 0.9]]], [[ONE]], 1, 0.3),  # IoU 0.62: three of ten limits
        ([[FIND, [0.0, 0, 10, 10, 0, 0.8]]], [[ONE]], 1, 1),  # a duplicate behind it
        # better ones are wrong: precision 1/2 wherever the object is recalled
        ([[FIND, WRONG]], [[ONE]], 0.5, 0.5),
        ([[FIND], [FIND]], [[ONE], []], 1, 1),  # something in an image without objects, no better
        ([[FIND], []], [[ONE], [ONE]], 51 / 101, 51 / 101),  # recall 1/2, 101 points
        ([[FIND]], [[[0.0, 0, 10, 10, 0, 1]]], -1, -1),  # all ignored
        # what finds a difficult object is neither right nor wrong; what only lies in it is wrong
        ([[FIND, [20.0, 0, 40, 20, 0, 0.95]]], [[ONE, [*FAR, 1]]], 1, 1),
        ([[FIND, [20.0, 0, 25, 5, 0, 0.95]]], [[ONE, [*FAR, 1]]], 0.5, 0.5),
        ([[FIND, [20.0, 0, 25, 5, 0, 0.95]]], [[ONE, [*FAR, CROWD]]], 1, 1),  # lies in a crowd
        ([[FIND, [0.0, 30, 9, 40, 0, 0.95]]], [[ONE, [*FAR, CROWD]]], 0.5, 0.5),
    ],
)
def test_average_precision(predictions, truth, map_50, map_50_95):
    y = torch.stack([rows(*own).float() for own in truth])
    found = average_precision([predicted(*own) for own in predictions], y)
    assert found["map_50"] == pytest.approx(map_50, abs=1e-3)
    assert found["map_50_95"] == pytest.approx(map_50_95, abs=1e-3)


# ---- segmentation


def test_pixel_cross_entropy_counts_every_image_alike_and_no_void():
    scores = torch.randn(2, 3, 4, 4, generator=rng.generator(0), dtype=torch.float64)
    y = torch.randint(0, 3, (2, 4, 4), generator=rng.generator(1)).to(torch.uint8)
    y[0, :2] = VOID
    each = [
        F.cross_entropy(scores[i].flatten(1).T[own != VOID], own[own != VOID].long())
        for i, own in enumerate(y.flatten(1))
    ]
    torch.testing.assert_close(pixel_cross_entropy(scores, y), torch.stack(each).mean())
    apart = pixel_cross_entropy(scores[:, None], y[:, None])
    torch.testing.assert_close(apart, torch.stack(each))
    y[1] = VOID
    scores.requires_grad_()
    assert not torch.autograd.grad(pixel_cross_entropy(scores, y), scores)[0][1].any()


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


# ---- augmentation of pictures with boxes or masks


def moved_both_ways(name):
    """The same moves for boxes and for masks of twenty scenes."""
    few = {"train": 20, "test": 1}
    boxes, masks = digit_scenes("boxes", **few), digit_scenes("masks", **few)
    x, y = augment.ANNOTATED[name](boxes.train_x, boxes.train_y, rng.generator(0))
    same, mask = augment.ANNOTATED[name](masks.train_x, masks.train_y, rng.generator(0))
    assert torch.equal(x, same) and x.dtype == mask.dtype == torch.uint8
    return boxes, masks, x, y, mask


@pytest.mark.parametrize("name, limit", [("flip", 0), ("crop", 0), ("scale", 1.5)])
def test_boxes_and_masks_move_with_the_picture(name, limit):
    boxes, masks, x, y, mask = moved_both_ways(name)
    changed = checked = 0
    for before, after, own in zip(boxes.train_y, y, mask, strict=True):
        changed += not torch.equal(before, after)
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
    if name == "flip":
        flipped = (x == boxes.train_x.flip(-1)).flatten(1).all(1)
        assert 3 < flipped.sum() < 17 and torch.equal(x[~flipped], boxes.train_x[~flipped])
        assert torch.equal(mask[flipped], masks.train_y[flipped].flip(-1))
    else:
        outside = mask == VOID
        assert outside.any() and not (masks.train_y == VOID).any()
        assert name == "scale" or not x[:, 0][outside].any(), "black and void outside"


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
    assert task.held.tolist() == [[1, 0], [1, 0]] and task.head == Centre()
    assert len(task.predict(task.network().eval(), task.test[0])) == 2
    digits = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=240, test=100)
    stored = {"images": "58ba914eb4ab10f4", "clients": "8d835315282c7374"}
    assert digits.digests == stored, "stored runs hold them"


@pytest.mark.parametrize(
    "make, wrong, says",
    [
        ("detection", {"dataset": "mnist"}, "no data set of this task 'mnist'.* Allowed: digits"),
        ("detection", {"dataset": 3}, "from_boxes, not 3"),
        ("detection", {"dataset": "masks"}, "has no boxes"),
        ("segmentation", {"dataset": "boxes"}, "has no masks"),
        ("classification", {"dataset": "boxes"}, "for fl.tasks.detection or segmentation"),
        ("detection", {"network": "scene_fcn"}, "no network 'scene_fcn'"),
        ("detection", {"network": fl.models.scene_fcn}, "has a head"),
        ("detection", {"metrics": "per_class"}, "leave metrics out"),
        ("detection", {"partition": "permuted"}, "would tear boxes"),
        ("detection", {"augment": "mixup"}, "no augmentation 'mixup'"),
        ("classification", {"partition": "objects"}, "nothing to count"),
        ("detection", {"dataset": "blind"}, "no object that counts"),
        ("detection", {"train": 0}, "cannot be kept"),
        ("detection", {"clients": "users"}, "names no users"),
        ("detection", {"dataset": (X, [BOX] * 4, 2), "clients": [0, 0, 1, 1]}, "names no users"),
    ],
)
def test_tasks_that_cannot_be(make, wrong, says):
    few = {"train": 20, "test": 4}
    made = {
        "masks": lambda: digit_scenes("masks", **few),
        "boxes": lambda: digit_scenes("boxes", **few),
        "blind": lambda: from_boxes(X, [BOX] * 4, 2, (X, [[[1, 1, 9, 9, 0, 1]]] * 4)),
    }
    how = {"dataset": "digits" if make == "classification" else "boxes", "clients": 2} | wrong
    if how["dataset"] in [*made]:
        how["dataset"] = made[how["dataset"]]()
    with pytest.raises(ValueError, match=says):
        getattr(fl.tasks, make)(**how)

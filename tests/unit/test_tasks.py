"""Tasks: passes over images, augmentation, permuted pixels, losses, evaluation, what is refused."""

import pytest
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import rng
from fedlearn.tasks import crop, find_device, flip


@pytest.mark.parametrize("count", [0, 2])
def test_a_device_is_found_or_the_sentence_says_what_there_is(count, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert find_device() == torch.device("cuda" if count else "cpu")
    names = ["cpu", *["cuda", "cuda:0", "cuda:1"] * (count > 0)]
    assert [find_device(name) for name in names] == [*map(torch.device, names)]
    for name in {"cuda", "cuda:1", "cuda:2", "gpu"} - {*names}:
        with pytest.raises(
            ValueError, match=f"no device '{name}'.* {', '.join(names)}"
        ):
            fl.tasks.classification(device=name)


# ---- classification


def test_validation_images_are_of_the_training_images_and_train_nobody():
    make = fl.tasks.classification
    plain, validated = (
        make("digits", 2, train=60, seed=3, validation=v) for v in (False, True)
    )
    assert (len(validated.train[1]), len(validated.test[1])) == (54, 6)
    assert sum(validated.sizes) == 54
    images = {x.numpy().tobytes() for x in (*validated.train[0], *validated.test[0])}
    assert images == {x.numpy().tobytes() for x in plain.train[0]}
    assert len(images) == 60
    assert validated.describe()["validation"]
    assert "validation" not in plain.describe()
    again = make("digits", 3, "main_class:0.8", 3, train=60, validation=True)
    assert again.test[0].equal(validated.test[0])  # whatever the clients


@pytest.mark.parametrize(
    "how, noun",
    [
        ({"train": 9}, "tenth"),
        ({"test": 20}, "test"),
        ({"clients": [[0], [1, 2]]}, "validation"),
    ],
)
def test_a_validation_split_that_cannot_be_is_refused(how, noun):
    with pytest.raises(ValueError, match=noun):
        fl.tasks.classification("digits", **{"clients": 2} | how, validation=True)


def test_crop_shifts_and_flip_mirrors_every_image_by_its_own_draw():
    x = torch.randint(
        1, 256, (50, 3, 12, 12), dtype=torch.uint8, generator=rng.generator(0)
    )
    labels = torch.arange(50)
    cropped, _ = crop(x, labels, rng.generator(1))
    cuts = F.pad(x, [4] * 4).unfold(2, 12, 1).unfold(3, 12, 1)
    matches = (cuts == cropped[:, :, None, None]).flatten(4).all(4).all(1)
    assert (matches.flatten(1).sum(1) == 1).all(), "each is one cut of its own image"
    assert matches.any(0).sum() > 25
    flipped, _ = flip(x, labels, rng.generator(1))
    mirrored = (flipped == x.flip(-1)).flatten(1).all(1)
    assert 12 < mirrored.sum() < 38
    assert torch.equal(flipped[~mirrored], x[~mirrored])


def test_permuted_pixels_are_the_same_permutation_in_training_and_test():
    task = fl.tasks.classification(
        "digits", 3, partition="permuted", train=300, test=80
    )
    x, _ = task.epoch(1, torch.arange(task.sizes[1]), rng.generator(0))
    stored = task.train[0][task.owned[1]]
    plain = (stored.float() - task.source.mean[0]) / task.source.std[0]
    permutation = task.split.permutations[1]
    torch.testing.assert_close(x.flatten(1), plain.flatten(1)[:, permutation])
    net = fl.initial_network(fl.methods.fedavg(), task)
    each = [task.evaluate(net, client=k)["accuracy"] for k in range(3)]
    assert task.evaluate(net)["accuracy"] == pytest.approx(sum(each) / 3)


def test_evaluation_in_batches_is_evaluation_at_once(monkeypatch):
    task = fl.tasks.classification("digits", 2, train=20, test=40)
    net = fl.models.NETWORKS["digits_resnet"](classes=12)
    net.classifier[-1].bias.data[11] = 100  # of a class beyond those of the data
    whole = task.evaluate(net)
    assert whole["accuracy"] > 0
    answers = task.predict(net, task.test[0])
    monkeypatch.setattr(type(task), "batch", 7)
    assert task.evaluate(net) == pytest.approx(whole, abs=1e-5)
    assert torch.equal(task.predict(net, task.test[0]), answers)
    assert net.training, "evaluation leaves the mode as it was"


# ---- what a task says of itself, and what cannot be one


def test_digests_of_a_task():
    digits = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=240, test=100)
    stored = {"images": "58ba914eb4ab10f4", "clients": "8d835315282c7374"}
    assert digits.digests == stored, "stored runs hold them"

"""Tasks: batches without per-sample Python, augmentation, permuted pixels, evaluation."""

import pytest
import torch

import fedlearn as fl
from fedlearn import rng
from fedlearn.tasks.base import find_device
from fedlearn.tasks.classification import crop, flip


@pytest.mark.parametrize("count", [0, 2])
def test_a_device_is_found_or_the_sentence_says_what_there_is(count, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: f"GPU {name[-1]}")
    assert find_device() == torch.device("cuda" if count else "cpu")
    assert find_device(torch.device("cpu")) == find_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        if count:
            assert find_device(name) == torch.device(name)
        else:
            with pytest.raises(ValueError, match=f"'{name}' here: .* cpu and no CUDA"):
                find_device(name)
    there = r"cpu and cuda:0 \(GPU 0\), cuda:1 \(GPU 1\)\." if count else "cpu and no CUDA"
    for name in ("cuda:2", "gpu", "CUDA:0"):
        with pytest.raises(ValueError, match=f"'{name}' here: this machine has {there}"):
            fl.tasks.classification(device=name)


def test_crop_shifts_every_image_by_its_own_offset():
    x = torch.randint(1, 256, (50, 3, 12, 12), dtype=torch.uint8, generator=rng.generator(0))
    y = crop(x, rng.generator(1))
    assert y.shape == x.shape and y.dtype == torch.uint8
    shifts = set()
    for before, after in zip(x, y, strict=True):
        padded = torch.nn.functional.pad(before, [4] * 4)
        found = [
            (i, j)
            for i in range(9)
            for j in range(9)
            if torch.equal(padded[:, i : i + 12, j : j + 12], after)
        ]
        assert len(found) == 1
        shifts |= set(found)
    assert len(shifts) > 25


def test_flip_mirrors_about_half():
    x = torch.rand(200, 1, 4, 4, generator=rng.generator(0))
    mirrored = [
        torch.equal(a, b.flip(-1)) for a, b in zip(flip(x, rng.generator(1)), x, strict=True)
    ]
    assert 60 < sum(mirrored) < 140
    assert torch.equal(
        torch.where(torch.tensor(mirrored)[:, None, None, None], x.flip(-1), x),
        flip(x, rng.generator(1)),
    )


def test_inputs_are_normalised():
    task = fl.tasks.classification("digits", 2)
    x = task.inputs(task.train[0])
    assert x.dtype == torch.float32 and abs(x.mean()) < 1e-4 and abs(x.std() - 1) < 1e-3


def test_permuted_pixels_are_the_same_permutation_in_training_and_test():
    task = fl.tasks.classification("digits", 3, partition="permuted")
    order = torch.arange(task.sizes[1])
    x, y = task.epoch(1, order, rng.generator(0))
    mine = task.split.indices[1]
    plain = (task.train[0][mine].float() - task.source.mean[0]) / task.source.std[0]
    permutation = torch.as_tensor(task.split.permutations[1])
    torch.testing.assert_close(x.flatten(1), plain.flatten(1)[:, permutation])
    torch.testing.assert_close(task.inputs(task.train[0][mine], 1), x)
    assert 0 <= task.evaluate(fl.initial_network(fl.methods.fedavg(), task))["accuracy"] <= 1


def test_evaluation_in_batches_is_evaluation_at_once():
    task = fl.tasks.classification("digits", 2)
    net = fl.initial_network(fl.methods.fedavg(), task)
    small, large = task.evaluate(net, 7), task.evaluate(net, 10_000)
    assert small["accuracy"] == large["accuracy"] and abs(small["loss"] - large["loss"]) < 1e-5
    assert net.training, "evaluation leaves the mode as it was"


def test_training_with_augmentation_runs_and_is_reproducible():
    task = fl.tasks.classification("digits", 2, augment=("crop", "flip"), train=100, test=50)
    assert fl.run(fl.methods.fedavg(), task, 1) == fl.run(fl.methods.fedavg(), task, 1)


def test_permuted_test_sets_are_seen_with_the_eyes_of_each_client():
    """Under the permutation of the client that is named; if none is, the mean over all of them."""
    task = fl.tasks.classification("digits", 3, partition="permuted", train=300, test=80)
    history = fl.run(fl.methods.fedavg(), task, 2, batch_size=10)
    net = fl.initial_network(fl.methods.fedavg(), task)
    net.load_state_dict(history.state, strict=False)
    each = [task.evaluate(net, client=k) for k in range(3)]
    x, y = task.test
    for k, found in enumerate(each):
        order = torch.as_tensor(task.split.permutations[k])
        seen = (x.float().flatten(1)[:, order].view(x.shape) - task.source.mean[0]) / (
            task.source.std[0]
        )
        with torch.no_grad():
            logits = net.eval()(seen)
        assert found["accuracy"] == float((logits.argmax(1) == y).double().mean())
        assert abs(found["loss"] - float(torch.nn.functional.cross_entropy(logits, y))) < 1e-5
    assert len({found["loss"] for found in each}) == 3, "the permutations show"
    for name, value in task.evaluate(net).items():
        assert abs(value - sum(found[name] for found in each) / 3) < 1e-9
        assert abs(history.rows[-1][name] - value) < 1e-9

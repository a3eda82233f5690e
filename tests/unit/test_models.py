"""Parameter counts printed in the papers, and what the networks must be able to do."""

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn import models
from fedlearn.models.cnn import cifar_cnn, digits_cnn, mcmahan_cnn, rpn_cnn
from fedlearn.models.resnet import digits_resnet, resnet18
from fedlearn.models.yolo import YOLOX


@pytest.mark.parametrize(
    ("build", "arguments", "parameters", "buffers"),
    [
        (digits_cnn, {}, 10_078, 136),
        (mcmahan_cnn, {}, 1_663_370, 0),
        (cifar_cnn, {}, 1_756_426, 0),
        (cifar_cnn, {"in_shape": (3, 24, 24)}, 1_068_298, 0),
        (rpn_cnn, {}, 1_199_882, 0),
        (resnet18, {}, 11_173_962, 9_600),
        (digits_resnet, {}, 42_938, 480),
    ],
)
def test_counts(build, arguments, parameters, buffers):
    net = build(**arguments)
    assert models.parameter_count(net) == parameters
    assert sum(t.numel() for t in models.state_of(net).values()) == parameters + buffers


@pytest.mark.parametrize("name", models.NETWORKS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_every_network_takes_every_image_size(name, shape):
    net = models.NETWORKS[name](shape, 7)
    assert net(torch.zeros(2, *shape)).shape == (2, 7)
    assert torch.equal(
        net.eval()(torch.ones(2, *shape)), net.classifier(net.extractor(torch.ones(2, *shape)))
    )


def test_building_on_the_meta_device_counts_without_memory():
    with torch.device("meta"):
        assert models.parameter_count(mcmahan_cnn()) == 1_663_370


def test_state_leaves_integer_buffers_out():
    assert not any("num_batches_tracked" in name for name in models.state_of(digits_cnn()))


def test_multiply_adds_of_layers_that_can_be_counted_by_hand():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 5)
    ).train()
    assert models.multiply_adds(net, (3, 6, 6)) == 4 * 36 * 27 + 5 * 144
    assert net.training


def test_kernel_names():
    names = models.kernel_names(models.state_of(resnet18()))
    assert len(names) == 17 + 3 and all("weight" in name for name in names)


def test_the_books_networks_have_channels_last_and_others_keep_the_default():
    own = fl.tasks.classification("digits", 2, train=20)
    other = fl.tasks.classification(
        "digits",
        2,
        train=20,
        network=lambda shape, classes: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)
        ),
    )
    first = [
        next(fl.initial_network(fl.methods.fedavg(), task).parameters()) for task in (own, other)
    ]
    assert first[0].stride() == (9, 1, 3, 1) and first[1].stride() == (9, 9, 3, 1)


@pytest.mark.parametrize(
    ("size", "parameters", "kernels", "buffers"),
    [
        ({}, 8_968_255, 8_944_896, 23_104),
        ({"blocks": 3, "width": 64}, 54_208_895, 54_139_392, 69_248),
    ],
)
def test_yolox_counts(size, parameters, kernels, buffers):
    with torch.device("meta"):
        net = YOLOX(**size)
    state = models.state_of(net)
    assert models.parameter_count(net) == parameters
    assert sum(state[name].numel() for name in models.kernel_names(state)) == kernels
    assert sum(t.numel() for t in state.values()) == parameters + buffers


def test_yolox_makes_three_maps_and_every_weight_learns():
    torch.manual_seed(0)
    net, x = YOLOX(classes=3, width=4), torch.randn(2, 3, 64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for _ in range(3):
        maps = net(x)
        loss = sum((y - 1).square().mean() for y in maps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [tuple(y.shape) for y in maps] == [(2, 8, 8, 8), (2, 8, 4, 4), (2, 8, 2, 2)]
    assert all(p.grad.abs().max() > 0 for p in net.parameters()) and losses[2] < losses[0]


def test_yolox_maps_follow_the_image():
    net = YOLOX(classes=3, width=4).eval()
    with torch.no_grad():
        assert [tuple(y.shape[2:]) for y in net(torch.zeros(1, 3, 64, 96))] == [
            (8, 12),
            (4, 6),
            (2, 3),
        ]

"""The networks: parameter counts printed in the papers, and every image size."""

import inspect

import pytest
import torch

from fedlearn import models, seeing

COUNTS = {  # parameters, and multiply-adds of an image of the network's own size
    "digits_cnn": (10_078, 76_352),
    "digits_narrow": (7_023, 45_694),
    "cifar_cnn": (1_756_426, 32_778_112),
    "rpn_cnn": (1_199_882, 11_992_448),
    "resnet18": (11_173_962, 555_422_720),
    "resnet56": (591_322, 87_214_592),
    "resnet4": (5_306, 5_161_120),
    "repvgg_b1": (55_775_816, 1_071_923_200),
    "repghost_05": (1_289_168, 4_339_520),
    "small_resnet": (308_650, 12_281_088),
    "small_narrow": (51_789, 2_080_520),
    "scene_detector": (98_367, 14_807_040),
    "fcn32s": (23_577_621, 8_345_395_200),
}
NETWORKS = models.NETWORKS | seeing.DETECTORS | seeing.SEGMENTERS


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_multiply_adds(name):
    shape = inspect.signature(NETWORKS[name]).parameters["in_shape"].default
    with torch.device("meta"):  # which takes no memory
        net = NETWORKS[name]()
        assert COUNTS[name] == (
            models.parameter_count(net),
            models.multiply_adds(net, shape),
        )


@pytest.mark.parametrize("name", sorted({*models.NETWORKS} - {"repvgg_b1"}))
def test_every_network_takes_every_image_size(name):
    for shape in (1, 8, 8), (3, 32, 32):
        net = models.NETWORKS[name](shape, 7)
        x = torch.ones(2, *shape)
        assert net(x).shape == (2, 7)
        assert torch.equal(net.eval()(x), net.classifier(net.extractor(x)))

"""Answers to the two-stream chapter: right ones, and typical wrong ones with their reasons."""

import torch

import fedlearn as fl
from fedlearn.methods.fedfusion import Convolution
from fedlearn.methods.fedmmd import WIDTHS, l2, mmd2
from fedlearn.models import parameter_count


def off(K):
    return (K.sum() - K.trace()) / (len(K) * (len(K) - 1))


def unbiased(Kxx, Kyy, Kxy):
    return off(Kxx) + off(Kyy) - 2 * Kxy.mean()


def spoil(Kxx, Kyy, Kxy):
    value = unbiased(Kxx, Kyy, Kxy)
    Kxx.fill_diagonal_(0)
    return value


def still_squares(Kxx, Kyy, Kxy):
    return sum((K.sum() - K.trace()) / K.numel() for K in (Kxx, Kyy)) - 2 * Kxy.mean()


def also_between(Kxx, Kyy, Kxy):
    return off(Kxx) + off(Kyy) - 2 * (off(Kxy) if len(Kxy) == len(Kyy) else Kxy.mean())


def fold(W, b):
    return W[:, : len(W)] + W[:, len(W) :], b


def half(W, b):
    return fold(W, b)[0] / 2, b


def overwrite(W, b):
    W[:, : len(W)] += W[:, len(W) :]
    return W[:, : len(W)], b


DIAGONAL, PAYLOAD, FOLD = (f"fed_mmd_fusion-{name}" for name in ("diagonal", "payload", "fold"))
RIGHT = {
    DIAGONAL: [unbiased, lambda *K: float(unbiased(*K))],
    PAYLOAD: [1_764_682, 1_764_682.0],
    FOLD: [fold, lambda W, b: list(fold(W, b))],
}
WRONG = [
    (DIAGONAL, spoil, "changes the matrices"),
    (DIAGONAL, lambda x, y, xy: x.mean() + y.mean() - 2 * xy.mean(), "still in it"),
    (DIAGONAL, still_squares, "divide by n * n"),
    (DIAGONAL, lambda x, y, xy: off(x) + off(y) - xy.mean(), "counts twice"),
    (DIAGONAL, lambda x, y, xy: off(x) + off(y) + 2 * xy.mean(), "subtracted"),
    (
        DIAGONAL,
        lambda x, y, xy: x.sum() - x.trace() + y.sum() - y.trace() - 2 * xy.sum(),
        "sums are not means",
    ),
    (DIAGONAL, also_between, "stays whole"),
    (DIAGONAL, lambda x, y, xy: xy, "shape"),
    (DIAGONAL, lambda x, y, xy: None, "returns nothing"),
    (DIAGONAL, lambda x, y, xy: 2 * unbiased(x, y, xy), "not right"),
    (PAYLOAD, 1_756_426, "operator is trained"),
    (PAYLOAD, 1_764_618, "biases"),
    (PAYLOAD, 8_256, "alone"),
    (PAYLOAD, 1_756_490, "multi"),
    (PAYLOAD, 1_760_586, "2C channels"),
    (PAYLOAD, 1_872_010, "never sent"),
    (PAYLOAD, 3_521_108, "never sent"),
    (PAYLOAD, 7_058_728, "bytes"),
    (PAYLOAD, 1_000, "too small"),
    (PAYLOAD, None, "TypeError"),
    (FOLD, overwrite, "changes the matrix"),
    (FOLD, lambda W, b: fold(W, b)[0], "two tensors"),
    (FOLD, lambda W, b: (W, b), "shapes"),
    (FOLD, lambda W, b: (W[:, len(W) :], b), "global half"),
    (FOLD, lambda W, b: (W[:, : len(W)], b), "local half"),
    (FOLD, half, "not averaged"),
    (FOLD, lambda W, b: (fold(W, b)[0].T, b), "transposed"),
    (FOLD, lambda W, b: (fold(W, b)[0], 2 * b), "bias is added once"),
    (FOLD, lambda W, b: (3 * W[:, : len(W)], b), "does not do"),
]


def test_the_payload_is_that_of_the_network():
    assert (
        parameter_count(fl.models.cifar_cnn()) + parameter_count(Convolution(64))
        == RIGHT[PAYLOAD][0]
    )


def test_the_folded_operator_is_the_package_s_with_equal_streams():
    operator, maps = (
        Convolution(4),
        torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(3)),
    )
    W, b = fold(operator.mix.weight[..., 0, 0], operator.mix.bias)
    torch.testing.assert_close(
        operator(maps, maps), torch.einsum("oi,nihw->nohw", W, maps) + b[:, None, None]
    )


def test_one_image_has_the_distances_that_the_solution_names():
    a, b = torch.randn(2, 1, 10, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    squared, widths = (a - b).square().sum(), torch.tensor(WIDTHS, dtype=torch.float64)
    torch.testing.assert_close(mmd2(a, b), 2 * (1 - torch.exp(-squared / (2 * widths))).sum())
    torch.testing.assert_close(l2(a, b), squared / 2)
    text = fl.solution("fed_mmd_fusion-think").text
    assert f"{2 * len(WIDTHS)} in all" in text and mmd2(a, 1e6 * b) <= 2 * len(WIDTHS)

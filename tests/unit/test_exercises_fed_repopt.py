"""Answers to FedRepOpt's exercises: right ones, and typical wrong ones with their reasons."""

import pytest
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn.models import reparam


def each(s):
    return s[:, None, None, None]


def fold(W, b, gamma, beta, mean, var, eps):
    factor = gamma / (var + eps).sqrt()
    return each(factor) * W, beta + factor * (b - mean)


def other_kernel(change):
    return lambda W, b, *rest: (change(W, *rest), fold(W, b, *rest)[1])


def other_bias(change):
    def answer(W, b, gamma, beta, mean, var, eps):
        return fold(W, b, gamma, beta, mean, var, eps)[0], change(
            b, beta, mean, gamma / (var + eps).sqrt()
        )

    return answer


def depthwise(s, power=2, more=1.0, channels=slice(None)):
    M = each(s**power).repeat(1, 1, 3, 3)
    M[channels, 0, 1, 1] += more
    return M


def adam(u, s3, s1, copies, lr, power=1, one=True, inner=True):
    M = each(s3**power).repeat(1, u.shape[1], 3, 3)
    if inner:
        M[:, :, 1, 1] += s1[:, None] ** power
    if copies and one:
        M[:, :, 1, 1] += torch.eye(len(s3), dtype=u.dtype)
    return -lr * M * u


def always(u, s3, s1, copies, lr):
    return (
        adam(u, s3, s1, False, lr)
        - lr * F.pad(torch.eye(*u.shape[:2], dtype=u.dtype)[:, :, None, None], [1] * 4) * u
    )


def where_square(u, s3, s1, copies, lr):
    return adam(u, s3, s1, u.shape[0] == u.shape[1], lr)


def everywhere(u, s3, s1, copies, lr):
    return (
        adam(u, s3, s1, False, lr)
        - lr * F.pad(torch.ones(*u.shape[:2], 1, 1, dtype=u.dtype), [1] * 4) * u
    )


RIGHT = {"fed_repopt-fold": [fold], "fed_repopt-depthwise": [depthwise], "fed_repopt-adam": [adam]}
WRONG = [
    ("fed_repopt-fold", lambda W, b, *rest: (W[:1], b), "shapes"),
    (
        "fed_repopt-fold",
        other_kernel(lambda W, g, be, m, v, e: g / (v + e).sqrt() * W),
        "not to the last",
    ),
    (
        "fed_repopt-fold",
        other_kernel(lambda W, g, be, m, v, e: each(g / (v + e)) * W),
        "square root",
    ),
    (
        "fed_repopt-fold",
        other_kernel(lambda W, g, be, m, v, e: each(g / v.sqrt()) * W),
        "eps is missing",
    ),
    (
        "fed_repopt-fold",
        other_kernel(lambda W, g, be, m, v, e: each(g / (v.sqrt() + e)) * W),
        "eps stands under",
    ),
    (
        "fed_repopt-fold",
        other_kernel(lambda W, g, be, m, v, e: W / each((v + e).sqrt())),
        "gamma is missing",
    ),
    ("fed_repopt-fold", other_kernel(lambda W, *rest: 2 * W), "not the one that does both"),
    ("fed_repopt-fold", other_bias(lambda b, beta, mean, f: beta - f * mean), "own bias b"),
    (
        "fed_repopt-fold",
        other_bias(lambda b, beta, mean, f: beta + b - f * mean),
        "scales the convolution's bias",
    ),
    (
        "fed_repopt-fold",
        other_bias(lambda b, beta, mean, f: b + f * (beta - mean)),
        "behind the scaling",
    ),
    ("fed_repopt-fold", other_bias(lambda b, beta, mean, f: f * (b - mean)), "beta is missing"),
    (
        "fed_repopt-fold",
        other_bias(lambda b, beta, mean, f: beta + f * b),
        "running mean is missing",
    ),
    ("fed_repopt-fold", other_bias(lambda b, beta, mean, f: beta + f * (b + mean)), "subtracted"),
    ("fed_repopt-fold", other_bias(lambda b, beta, mean, f: 0 * b), "the bias is not"),
    ("fed_repopt-fold", None, "TypeError"),
    ("fed_repopt-depthwise", lambda s: s**2, "shape of the kernel"),
    ("fed_repopt-depthwise", lambda s: depthwise(s, more=0), "branch with t is missing"),
    ("fed_repopt-depthwise", lambda s: depthwise(s, more=1 + s**2), "no 1 x 1 branch"),
    ("fed_repopt-depthwise", lambda s: depthwise(s, more=s**2), "has the one with t"),
    ("fed_repopt-depthwise", lambda s: depthwise(s, channels=0), "its own input"),
    (
        "fed_repopt-depthwise",
        lambda s: each(s**2 + 1).expand(-1, 1, 3, 3),
        "middle of the kernel only",
    ),
    ("fed_repopt-depthwise", lambda s: depthwise(s, more=1 - s**2), "does not replace"),
    ("fed_repopt-depthwise", lambda s: depthwise(s, power=1), "acts twice"),
    ("fed_repopt-depthwise", lambda s: depthwise(s.abs(), power=1), "acts twice"),
    ("fed_repopt-depthwise", lambda s: depthwise(s, more=2), "not those"),
    ("fed_repopt-adam", lambda u, *rest: u.mul_(2), "changes u"),
    ("fed_repopt-adam", lambda u, *rest: adam(u, *rest)[0], "shape"),
    ("fed_repopt-adam", lambda *of: -adam(*of), "against the gradient"),
    ("fed_repopt-adam", lambda u, s3, s1, copies, lr: adam(u, s3, s1, copies, 1), "learning rate"),
    ("fed_repopt-adam", lambda u, s3, s1, copies, lr: -lr * u, "plain kernel"),
    ("fed_repopt-adam", lambda *of: adam(*of, power=2), "only once"),
    ("fed_repopt-adam", lambda *of: adam(*of, one=False), "copies its input moves"),
    ("fed_repopt-adam", lambda *of: adam(*of, inner=False, one=False), "other two branches"),
    ("fed_repopt-adam", lambda *of: adam(*of, inner=False), "1 x 1 branch is missing"),
    (
        "fed_repopt-adam",
        lambda u, s3, s1, i, lr: adam(u, s3 + s1, s1, i, lr, inner=False),
        "middle of the kernel only",
    ),
    ("fed_repopt-adam", everywhere, "from a channel to itself"),
    ("fed_repopt-adam", always, "not every block"),
    ("fed_repopt-adam", where_square, "not every block"),
    ("fed_repopt-adam", lambda *of: 3 * adam(*of), "not those"),
]


def test_right_answers_in_single_precision():
    assert fl.check(
        "fed_repopt-fold", lambda *of: fold(*(t.float() for t in of[:-1]), of[-1])
    ).right
    assert fl.check("fed_repopt-adam", lambda u, *of: adam(u, *of).float()).right


def block(form, inputs=3, **options):
    torch.manual_seed(0)
    return reparam.Branches(inputs, 3, 1, form, scale=0.7, **options).double()


def gradients(it, params):
    """Of a loss of the sum of the branches, by the kernels and the trained scale."""
    x = torch.randn(
        6,
        it.conv3.in_channels,
        5,
        5,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    y = (
        it.s3(it.conv3(x))
        + (it.s_id(x) if it.s_id else 0)
        + (it.s1(it.conv1(x)) if it.conv1 else 0)
    )
    return torch.autograd.grad(F.cross_entropy(y.relu().mean((2, 3)), torch.arange(6) % 3), params)


@pytest.mark.parametrize("inputs", [3, 2])
def test_adams_change_is_that_of_the_branches(inputs):
    it, lr = block("csla", inputs), 0.01
    params = [
        p for p in (it.conv3.weight, it.conv1.weight, it.s_id and it.s_id.value) if p is not None
    ]
    before, grads = reparam._sum(it)[0], gradients(it, params)
    optimizer = torch.optim.Adam(params, lr, eps=1e-30)
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    optimizer.step()
    u = grads[0].sign()  # of the first step: m / sqrt(v) of s_3 G is that of G
    expected = adam(u, it.s3.value, it.s1.value, it.s_id is not None, lr)
    torch.testing.assert_close(reparam._sum(it)[0] - before, expected, atol=1e-12, rtol=1e-9)


def test_the_depthwise_multiplier_is_that_of_the_branches():
    it = block("csla", 3, groups=3, pointwise=False)
    params, lr = [it.conv3.weight, it.s_id.value], 0.1
    before, (G3, g_id) = reparam._sum(it)[0], gradients(it, params)
    G = G3 / each(it.s3.value)
    params[0].data -= lr * G3
    params[1].data -= lr * g_id
    torch.testing.assert_close(reparam._sum(it)[0] - before, -lr * depthwise(it.s3.value) * G)

"""Exercises of the chapter on FedRepOpt."""

import torch
import torch.nn.functional as F

from . import Function


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def each(s: torch.Tensor) -> torch.Tensor:
    """[out] -> [out, 1, 1, 1], one factor for each kernel of an output channel."""
    return s[:, None, None, None]


def fold(answer: Function) -> str | None:
    """fold(W [out, in, 3, 3], b, gamma, beta, mean, var [out], eps) -> W, b of the one convolution,
    in evaluation mode."""
    W, (b, gamma, beta, mean) = drawn(3, 3, 3, 3), drawn(4, 3, seed=1)
    var, eps = drawn(3, seed=2).square() + 0.5, 0.1
    kernel, bias = answer(W, b, gamma, beta, mean, var, eps)
    if kernel.shape != W.shape or bias.shape != b.shape:
        return f"it returns the shapes {list(kernel.shape)} and {list(bias.shape)}"
    kernel, bias = kernel.double(), bias.double()
    factor = gamma / (var + eps).sqrt()
    for scale, reason in (
        (factor, "the factor belongs to the output channel, the first axis, and not to the last"),
        (
            each(gamma / (var + eps)),
            "the kernel is divided by the variance, not by its square root",
        ),
        (each(gamma / var.sqrt()), "eps is missing under the root"),
        (each(gamma / (var.sqrt() + eps)), "eps stands under the root"),
        (each(1 / (var + eps).sqrt()), "gamma is missing"),
    ):
        if torch.allclose(kernel, scale * W):
            return reason
    if not torch.allclose(kernel, each(factor) * W):
        return "the kernel is not the one that does both"
    for other, reason in (
        (beta - factor * mean, "the convolution's own bias b is missing"),
        (beta + b - factor * mean, "normalisation scales the convolution's bias, too"),
        (b + factor * (beta - mean), "beta is added behind the scaling, and b before it"),
        (factor * (b - mean), "beta is missing"),
        (beta + factor * b, "the running mean is missing"),
        (beta + factor * (b + mean), "the running mean is subtracted"),
    ):
        if torch.allclose(bias, other):
            return reason
    return (
        None
        if torch.allclose(bias, beta + factor * (b - mean))
        else "the kernel is right, but the bias is not"
    )


def middle(value: torch.Tensor | float, outputs: int, inputs: int) -> torch.Tensor:
    """[out, in] or a number in the middle of 3 x 3 kernels."""
    value = torch.as_tensor(value, dtype=torch.float64).expand(outputs, inputs)
    return F.pad(value[:, :, None, None], [1] * 4)


def depthwise(answer: Function) -> str | None:
    """answer(s [C]) -> the multiplier [C, 1, 3, 3]."""
    s = drawn(4, seed=3)
    M, before = answer(s.clone()), each(s**2).expand(4, 1, 3, 3)
    if M.shape != before.shape:
        return (
            f"it returns the shape {list(M.shape)} for 4 channels; "
            "a multiplier has the shape of the kernel, [4, 1, 3, 3]"
        )
    one, square = middle(1, 4, 1), middle(s[:, None] ** 2, 4, 1)
    first = middle(torch.tensor([[1.0], [0], [0], [0]]), 4, 1)
    once = "s acts twice: on the gradient and on what the kernel contributes"
    for other, reason in (
        (before, "the branch with t is missing: it is trained as well"),
        (before + one + square, "a depth-wise block has no 1 x 1 branch"),
        (before + square, "a depth-wise block has no 1 x 1 branch, but it has the one with t"),
        (
            before + first,
            "every channel is its own input: the 1 is there for all of them, "
            "not for the first only",
        ),
        (
            before + 1,
            "the copy of the input acts on the middle of the kernel only "
            "(expand shares one number, repeat copies it)",
        ),
        (
            before + one - square,
            "in the middle the 1 is added to s squared; it does not replace it",
        ),
        (each(s).expand(4, 1, 3, 3) + one, once),
        (each(s.abs()).expand(4, 1, 3, 3) + one, once),
    ):
        if torch.allclose(M.double(), other.double()):
            return reason
    return (
        None
        if torch.allclose(M.double(), before + one)
        else "the values are not those of the derivation"
    )


def adam(answer: Function) -> str | None:
    """answer(u [out, in, 3, 3], s3, s1 [out], copies, lr) -> what one step of Adam on the
    branches changes in W'."""
    s3, s1 = drawn(2, 3, seed=4).abs() + 0.2
    for inputs, copies in ((3, True), (3, False), (2, False)):
        u, lr = drawn(3, inputs, 3, 3, seed=5), 0.5
        before, got = u.clone(), answer(u, s3, s1, copies, lr)
        if not torch.equal(u, before):
            return "it changes u, which it is given"
        if got.shape != u.shape:
            return f"it returns the shape {list(got.shape)} for u of shape {list(u.shape)}"
        unit = middle(torch.eye(3, inputs), 3, inputs)
        one = unit * copies
        outer, inner = each(s3).expand(u.shape), middle(s1[:, None], 3, inputs)
        expected, got = -lr * (outer + inner + one) * u, got.double()
        if torch.allclose(got, expected):
            continue
        for other, reason in (
            (-expected, "a step goes against the gradient: the sign is missing"),
            (expected / lr, "the learning rate is missing"),
            (-lr * u, "that is the step of a plain kernel: each branch takes one, and they add up"),
            (
                -lr * (outer**2 + inner**2 + one) * u,
                "Adam divides the factor in the gradient out, so each s acts only once",
            ),
            (-lr * (outer + inner) * u, "the branch that copies its input moves, too"),
            (-lr * outer * u, "the other two branches move, too"),
            (-lr * (outer + one) * u, "the 1 x 1 branch is missing"),
            (
                -lr * (outer + each(s1) + one) * u,
                "the 1 x 1 branch acts on the middle of the kernel only",
            ),
            (
                -lr * (outer + inner + middle(1, 3, inputs)) * u,
                "the copy of the input leads from a channel to itself only,"
                " and only where the block has that branch",
            ),
            (
                -lr * (outer + inner + unit) * u,
                "not every block has the branch that copies its input",
            ),
        ):
            if torch.allclose(got, other):
                return reason
        return "the values are not those of three branches that each take a step of Adam"
    return None


EXERCISES = {"fed_repopt-fold": fold, "fed_repopt-depthwise": depthwise, "fed_repopt-adam": adam}

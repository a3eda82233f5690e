"""Exercises of the chapter on Fed-KGF."""

import torch

from . import Function, number


def drawn(shape: tuple[int, ...], low: float, high: float, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def kernels(generate: Function) -> str | None:
    """generate(w [m, in, k, k], alpha [n, in, k, k], beta [n, in, k, k]) -> [n, in, k, k], Eq. (2)
    of copies of w."""
    for m, n in ((3, 6), (3, 7), (4, 2)):
        w = drawn((m, 2, 3, 3), -0.5, 0.5, 1)
        w[0, 0, 0, 0] = 0.0
        alpha, beta = drawn((n, 2, 3, 3), 1e-5, 0.1, 2), drawn((n, 2, 3, 3), 2.0, 10.0, 3)
        before, got = w.clone(), generate(w, alpha, beta)
        if not torch.equal(w, before):
            return "it changes the base kernels that it is given"
        if tuple(got.shape) == (m + n, 2, 3, 3):
            return "only the generated kernels are asked for, without the base kernels in front"
        if tuple(got.shape) != (n, 2, 3, 3):
            return (
                f"it returns the shape {list(got.shape)} "
                f"for {m} base kernels and {n} generated ones"
            )
        copies, blocks = w[torch.arange(n) % m], w.repeat_interleave(-(-n // m), 0)[:n]
        sign, power = copies.sign(), copies.abs() ** beta
        if torch.allclose(got, sign * (power + alpha), atol=1e-6):
            continue
        for other, reason in (
            (power + alpha, "the sign of the base kernel is missing"),
            (sign * power + alpha, "the sign stands in front of the bias, too"),
            (sign * power, "the bias alpha is missing"),
            (
                torch.where(copies < 0, -1.0, 1.0) * (power + alpha),
                "an entry that is zero has to stay zero",
            ),
            (
                blocks.sign() * (blocks.abs() ** beta + alpha),
                "the copies follow one another: kernel i comes from base kernel i mod m",
            ),
        ):
            if torch.allclose(got, other, atol=1e-6):
                return reason
        return f"with {m} base kernels and {n} generated ones the values are not those of Eq. (2)"
    return None


BASE, STATISTICS, DENSE = 16 * 512 * 9, 2 * 512, 512 * 10 + 10
WHOLE, NORM = 512 * 512 * 9, 2 * STATISTICS
# the last two modules of ResNet-18 with 16 base kernels, batch statistics included
upload = number(
    BASE + NORM + DENSE,
    wrong=[
        (
            BASE + STATISTICS + DENSE,
            "the running mean and variance of batch normalisation travel, too",
        ),
        (BASE + DENSE, "batch normalisation belongs to the module"),
        (BASE + NORM + 512 * 10, "the dense layer has biases"),
        (BASE + NORM, "the dense layer is the second module of the group"),
        (WHOLE + NORM + DENSE, "that is the whole convolution; only its base kernels travel"),
        (BASE + 4 * 16 + DENSE, "batch normalisation has all 512 channels, whoever made them"),
        (4 * (BASE + NORM + DENSE), "that is the number of bytes; the question is for numbers"),
    ],
)


def smooth(function: Function) -> str | None:
    """function(w, alpha, beta), entry by entry: odd, without the jump at 0, and at least alpha / 2
    in size where |w| >= 0.1."""
    w, tiny = drawn((200,), 0.1, 1.0, 4), torch.full((200,), 1e-6)
    alpha, beta = drawn((200,), 1e-3, 0.1, 5), drawn((200,), 2.0, 10.0, 6)
    there, back = function(w, alpha, beta), function(-w, alpha, beta)
    if there.shape != w.shape:
        return f"it returns the shape {list(there.shape)} for entries of shape {list(w.shape)}"
    if not torch.allclose(there, -back, atol=1e-6):
        return "it is not odd: w and -w have to give opposite values"
    if float((function(tiny, alpha, beta) - function(-tiny, alpha, beta)).abs().max()) > 1e-4:
        return "it still jumps at zero"
    if (there < 0).any():
        return "the sign of the result is not that of w"
    least = function(torch.full_like(w, 0.1), alpha, beta)
    if (least < alpha / 2).any() or (there < alpha / 2).any():
        return "for some |w| of at least 0.1 the result is smaller than alpha / 2"
    if torch.allclose(there, function(w, alpha, beta + 1), atol=1e-7):
        return "the power |w|^beta is gone"
    return None


EXERCISES = {"fed_kgf-kernels": kernels, "fed_kgf-upload": upload, "fed_kgf-smooth": smooth}

"""Exercises of the chapter on Fed-KGF."""

import torch

from . import Function, number


def drawn(shape: tuple[int, ...], low: float, high: float, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def gradient(answer: Function) -> str | None:
    """answer(w [m, in, k, k], beta [n, in, k, k], g [n, in, k, k]) -> [m, in, k, k]: g is the
    gradient by the generated kernels; what reaches w is g times Eq. (5.2), summed over copies."""
    for m, n in ((3, 6), (3, 7), (4, 2)):
        w, g = drawn((m, 2, 3, 3), -0.9, 0.9, 1), drawn((n, 2, 3, 3), -1, 1, 2)
        w[0, 0, 0, 0] = 0.0
        beta, which = drawn((n, 2, 3, 3), 2.0, 10.0, 3), torch.arange(n) % m
        before, got = w.clone(), answer(w, beta, g)
        if not torch.equal(w.detach(), before):
            return "it changes the base kernels that it is given"
        if tuple(got.shape) == (n, 2, 3, 3):
            return "a base kernel has one gradient, and it is the sum over its copies"
        if tuple(got.shape) != (m, 2, 3, 3):
            return f"it returns the shape {list(got.shape)} for {m} base kernels"
        copies, blocks = w[which], torch.arange(n) // -(-n // m)
        slope = beta * copies.abs() ** (beta - 1)

        def heard(each: torch.Tensor, by: torch.Tensor = which) -> torch.Tensor:
            return torch.zeros_like(w).index_add_(0, by, each)  # noqa: B023

        if torch.allclose(got, heard(g * slope), atol=1e-6):
            continue
        last = torch.zeros_like(w)
        last[which] += g * slope  # of equal indices one counts
        other = beta * w[blocks].abs() ** (beta - 1)
        count = which.bincount(minlength=m).clamp(min=1)[:, None, None, None]
        for wrong, reason in (
            (heard(g * slope) / count, "that is the mean over the copies; their gradients add up"),
            (
                last,
                "`out[index] += ...` keeps only one of several equal indices; "
                "use `index_add_`, or a loop",
            ),
            (heard(slope), "the slopes still have to be multiplied by g"),
            (
                heard(g * slope * copies.sign()),
                "the slope has no sign: that of w stands in (5.1) and in the derivative of |w|",
            ),
            (heard(g * copies.abs() ** (beta - 1)), "the factor beta is missing"),
            (heard(g * beta * copies.abs() ** beta), "the exponent falls by one"),
            (heard(g * other, blocks), "kernel i comes from base kernel i mod m"),
        ):
            if torch.allclose(got, wrong, atol=1e-6):
                return reason
        return f"with {m} base kernels and {n} generated ones the values are not those of (5.2)"
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
    """function(w, alpha, beta), entry by entry: odd, with the sign of w, a change of at most
    alpha / 10 from -1e-6 to 1e-6, at least alpha / 2 in size where
    |w| >= 0.1, and with a power in it."""
    w, tiny = drawn((200,), 0.1, 1.0, 4), torch.full((200,), 1e-6)
    alpha, beta = drawn((200,), 1e-3, 0.1, 5), drawn((200,), 2.0, 10.0, 6)
    there, back = function(w, alpha, beta), function(-w, alpha, beta)
    if there.shape != w.shape:
        return f"it returns the shape {list(there.shape)} for entries of shape {list(w.shape)}"
    if not torch.allclose(there, -back, atol=1e-6):
        return "it is not odd: w and -w have to give opposite values"
    jump = (function(tiny, alpha, beta) - function(-tiny, alpha, beta)).abs()
    if (jump > alpha / 10).any():
        return "it still jumps at zero, by more than alpha / 10"
    if (there < 0).any():
        return "the sign of the result is not that of w"
    least = function(torch.full_like(w, 0.1), alpha, beta)
    if (least < alpha / 2).any() or (there < alpha / 2).any():
        return "for some |w| of at least 0.1 the result is smaller than alpha / 2"
    grid = torch.arange(50_001, dtype=torch.float64) * 2e-6
    for a, b in ((0.05, 2.0), (0.1, 10.0), (0.001, 5.0)):
        y = function(grid, torch.full_like(grid, a), torch.full_like(grid, b))
        if (y[1:] <= 0).any():
            return "the sign of the result is not that of w near zero"
        if (y.diff().abs() > a / 10 + 2e-6 * b * grid[1:] ** (b - 1)).any():
            return "the jump is gone from zero and stands elsewhere"
    if torch.allclose(there, function(w, alpha, beta + 1), atol=1e-7):
        return "the power |w|^beta is gone"
    return None


EXERCISES = {"fed_kgf-gradient": gradient, "fed_kgf-upload": upload, "fed_kgf-smooth": smooth}

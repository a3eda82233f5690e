"""Chapter 5, Fed-KGF: the explorer of kernel generation, and the checks of the exercises."""

from typing import Any

import torch

from .check import Function, compared, number


def kernel_generation(low: float, high: float) -> dict[str, Any]:
    """Fed-KGF's ``w' = sign(w) (|w|^beta + alpha)`` under sliders for w, alpha and beta. Grey:
    where the size of w lies from ``low`` to ``high``."""
    from .vega import BLUE, BOLD, GREY, ONE, ORANGE, alt, layered, point_at, slider

    x = alt.X("x:Q", title="w", scale=alt.Scale(domain=[-0.6, 0.6], nice=False))
    y = alt.Y("y:Q", title="w\u2032", scale=alt.Scale(domain=[-0.5, 0.5]))
    kernel = "({0} < 0 ? -1 : 1) * (pow(abs({0}), beta) + alpha)"
    at_zero = "abs(w) < 0.001"
    value = f"({at_zero} ? 0 : {kernel.format('w')})"
    slope = f"({at_zero} ? 0 : beta * pow(abs(w), beta - 1))"
    share = f"({at_zero} ? 0 : pow(abs(w), beta) / (pow(abs(w), beta) + alpha))"
    text = (
        f"['w\u2032 = ' + format({value}, '+.4f') + ', from the power: ' + format({share}, '.1%'), "
        f"'slope: ' + format({slope}, '.2~g') + ', jump at 0: ' + format(2 * alpha, '.2f')]"
    )
    sizes = alt.InlineData(values=[{"x": -high, "x2": -low}, {"x": low, "x2": high}])
    return layered(
        260,
        [
            slider("w", "base weight w", 0.1, -0.6, 0.6, 0.01),
            slider("alpha", "bias \u03b1", 0.05, 0.005, 0.1, 0.005),
            slider("beta", "exponent \u03b2", 4, 2, 10, 0.25),
        ],
        [
            alt.Chart(sizes).mark_rect(color=GREY, opacity=0.25).encode(x, alt.X2("x2")),
            alt.Chart(alt.sequence(-0.5975, 0.5985, 0.005, as_="x"))  # 0 itself is between two
            .transform_calculate(y=kernel.format("datum.x"), half="datum.x < 0 ? 'left' : 'right'")
            .mark_line(color=BLUE, strokeWidth=2.5)
            .encode(x, y, detail="half:N"),
            alt.Chart(alt.InlineData(values=[{"end": -0.15}, {"end": 0.15}]))
            .transform_calculate(x="w + datum.end", y=f"{value} + {slope} * datum.end")
            .mark_line(color=ORANGE, strokeDash=[5, 3], clip=True)
            .encode(x, y),
            point_at("w", value)
            .mark_point(filled=True, size=110, color=ORANGE, opacity=1)
            .encode(x, y),
            alt.Chart(ONE)
            .mark_text(**BOLD, baseline="top", lineHeight=18, text=alt.ExprRef(text))
            .encode(x=alt.value(6), y=alt.value(6)),
        ],
        grid=False,
    )


# ---- exercises -----------------------------------------------------------------------------------


def uniform(shape: tuple[int, ...], low: float, high: float, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def gradient(answer: Function) -> str | None:
    """answer(w [m, in, k, k], beta [n, in, k, k], g [n, in, k, k]) -> [m, in, k, k]: g is the
    gradient by the generated kernels; what reaches w is g times Eq. (5.2), summed over copies."""
    for m, n in ((3, 6), (3, 7), (4, 2)):
        w, g = uniform((m, 2, 3, 3), -0.9, 0.9, 1), uniform((n, 2, 3, 3), -1, 1, 2)
        w[0, 0, 0, 0] = 0.0
        beta, which = uniform((n, 2, 3, 3), 2.0, 10.0, 3), torch.arange(n) % m
        before, got = w.clone(), answer(w, beta, g)
        if not torch.equal(w.detach(), before):
            return "it changes the base kernels that it is given"
        if tuple(got.shape) == (n, 2, 3, 3):
            return "a base kernel has one gradient, and it is the sum over its copies"
        if tuple(got.shape) != (m, 2, 3, 3):
            return f"it returns the shape {list(got.shape)} for {m} base kernels"
        copies, blocks = w[which], torch.arange(n) // -(-n // m)
        slope = beta * copies.abs() ** (beta - 1)

        def summed(each: torch.Tensor, by: torch.Tensor = which) -> torch.Tensor:
            return torch.zeros_like(w).index_add_(0, by, each)  # noqa: B023

        last = torch.zeros_like(w)
        last[which] += g * slope  # of equal indices one counts
        in_blocks = beta * w[blocks].abs() ** (beta - 1)
        count = which.bincount(minlength=m).clamp(min=1)[:, None, None, None]
        wrong = {
            "that is the mean over the copies; their gradients add up": summed(g * slope) / count,
            "`out[index] += ...` keeps only one of several equal indices; "
            "use `index_add_`, or a loop": last,
            "the slopes still have to be multiplied by g": summed(slope),
            "the slope has no sign: that of w stands in (5.1) and in the derivative of |w|": summed(
                g * slope * copies.sign()
            ),
            "the factor beta is missing": summed(g * copies.abs() ** (beta - 1)),
            "the exponent falls by one": summed(g * beta * copies.abs() ** beta),
            "kernel i comes from base kernel i mod m": summed(g * in_blocks, blocks),
        }
        otherwise = (
            f"with {m} base kernels and {n} generated ones the values are not those of (5.2)"
        )
        if reason := compared(got, summed(g * slope), wrong, otherwise):
            return reason
    return None


BASE, STATISTICS, DENSE = 16 * 512 * 9, 2 * 512, 512 * 10 + 10
WHOLE, NORM = 512 * 512 * 9, 2 * STATISTICS
# the last two modules of ResNet-18 with 16 base kernels, batch statistics included
upload = number(
    BASE + NORM + DENSE,
    {
        BASE + STATISTICS + DENSE: "the running mean and variance of batch normalisation travel,"
        " too",
        BASE + DENSE: "batch normalisation belongs to the module",
        BASE + NORM + 512 * 10: "the dense layer has biases",
        BASE + NORM: "the dense layer is the second module of the group",
        WHOLE + NORM + DENSE: "that is the whole convolution; only its base kernels travel",
        BASE + 4 * 16 + DENSE: "batch normalisation has all 512 channels, whoever made them",
        4 * (BASE + NORM + DENSE): "that is the number of bytes; the question is for numbers",
    },
)


def smooth(function: Function) -> str | None:
    """function(w, alpha, beta), entry by entry: odd, with the sign of w, a change of at most
    alpha / 10 from -1e-6 to 1e-6, at least alpha / 2 in size where
    w is 0.1 or more, and with a power in it."""
    w, tiny = uniform((200,), 0.1, 1.0, 4), torch.full((200,), 1e-6)
    alpha, beta = uniform((200,), 1e-3, 0.1, 5), uniform((200,), 2.0, 10.0, 6)
    right, left = function(w, alpha, beta), function(-w, alpha, beta)
    if right.shape != w.shape:
        return f"it returns the shape {list(right.shape)} for entries of shape {list(w.shape)}"
    if not torch.allclose(right, -left, atol=1e-6):
        return "it is not odd: w and -w have to give opposite values"
    jump = (function(tiny, alpha, beta) - function(-tiny, alpha, beta)).abs()
    if (jump > alpha / 10).any():
        return "it still jumps at zero, by more than alpha / 10"
    if (right < 0).any():
        return "the sign of the result is not that of w"
    least = function(torch.full_like(w, 0.1), alpha, beta)
    if (least < alpha / 2).any() or (right < alpha / 2).any():
        return "for some |w| of at least 0.1 the result is smaller than alpha / 2"
    grid = torch.arange(50_001, dtype=torch.float64) * 2e-6
    for a, b in ((0.05, 2.0), (0.1, 10.0), (0.001, 5.0)):
        y = function(grid, torch.full_like(grid, a), torch.full_like(grid, b))
        if (y[1:] <= 0).any():
            return "the sign of the result is not that of w near zero"
        if (y.diff().abs() > a / 10 + 2e-6 * b * grid[1:] ** (b - 1)).any():
            return "the jump is gone from zero and stands elsewhere"
    if torch.allclose(right, function(w, alpha, beta + 1), atol=1e-7):
        return "the power |w|^beta is gone"
    return None


EXERCISES = {"fed_kgf-gradient": gradient, "fed_kgf-upload": upload, "fed_kgf-smooth": smooth}

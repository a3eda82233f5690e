"""Exercises of the chapter on FedMMD and FedFusion."""

import torch

from . import Function, number


def drawn(*shape: int, seed: int = 11) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def grams(n: int, m: int, seed: int = 11) -> tuple[torch.Tensor, ...]:
    """Kernel matrices [n, n], [m, m] and [n, m] of two small samples."""
    x, y = drawn(n, 2, seed=seed), drawn(m, 2, seed=seed + 1) + 1
    return tuple(torch.exp(-torch.cdist(a, b).square() / 2) for a, b in ((x, x), (y, y), (x, y)))


def diagonal(unbiased: Function) -> str | None:
    """unbiased(Kxx [n, n], Kyy [m, m], Kxy [n, m]) -> MMD^2 without pairs of a point and itself."""
    for n, m in ((4, 6), (5, 5)):
        Kxx, Kyy, Kxy = grams(n, m)
        before, got = Kxx.clone(), unbiased(Kxx, Kyy, Kxy)
        if not torch.equal(Kxx, before):
            return "it changes the matrices that it is given"
        if got is None:
            return "it returns nothing"
        if torch.as_tensor(got).numel() != 1:
            return f"one number is asked for, not a tensor of shape {list(got.shape)}"
        off = [K.sum() - K.trace() for K in (Kxx, Kyy)]
        pairs, between = [n * (n - 1), m * (m - 1)], 2 * Kxy.mean()
        within = off[0] / pairs[0] + off[1] / pairs[1]
        answers = [
            (within - between, None),
            (Kxx.mean() + Kyy.mean() - between, "the pairs of a point with itself are still in it"),
            (
                off[0] / n**2 + off[1] / m**2 - between,
                "the sums leave the diagonal out, but the means divide by n * n",
            ),
            (within - between / 2, "the mean between the two samples counts twice"),
            (within + between, "the mean between the two samples is subtracted"),
            (off[0] + off[1] - 2 * Kxy.sum(), "sums are not means"),
        ]
        if n == m:
            cross = (Kxy.sum() - Kxy.trace()) / pairs[0]
            whole = (
                "between the two samples there are no pairs of a point with itself: "
                "that mean stays whole"
            )
            answers.append((within - 2 * cross, whole))
        for value, reason in answers:
            if abs(float(got) - float(value)) < 1e-5:
                if reason:
                    return reason
                break
        else:
            return f"for samples of {n} and {m} points the value is not right"
    return None


NETWORK, EXTRACTOR, CHANNELS = 1_756_426, 4_864 + 102_464, 64  # models.cifar_cnn
WEIGHT = 2 * CHANNELS * CHANNELS
OPERATOR = WEIGHT + CHANNELS
payload = number(  # what a client of FedFusion with conv sends for models.cifar_cnn
    NETWORK + OPERATOR,
    wrong=[
        (NETWORK, "the operator is trained and travels, too"),
        (NETWORK + WEIGHT, "the 1 x 1 convolution has biases"),
        (OPERATOR, "that is the operator alone"),
        (NETWORK + CHANNELS, "that is multi; conv has a matrix"),
        (
            NETWORK + CHANNELS * CHANNELS + CHANNELS,
            "the operator has 2C channels in, those of both streams",
        ),
        (
            NETWORK + EXTRACTOR + OPERATOR,
            "the frozen extractor is never sent: it is the last download",
        ),
        (2 * NETWORK + OPERATOR, "the frozen stream is never sent: it is the last download"),
        (4 * (NETWORK + OPERATOR), "that is the number of bytes; the question is for numbers"),
    ],
)


def fold(answer: Function) -> str | None:
    """fold(W [C, 2C], b [C]) -> (W' [C, C], b' [C]) with W' E + b' = W (E || E) + b."""
    for C in (3, 5):
        W, b, E = drawn(C, 2 * C), drawn(C, seed=12), drawn(C, 7, seed=13)
        before, got = W.clone(), answer(W, b)
        if not torch.equal(W, before):
            return "it changes the matrix that it is given"
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            return "two tensors are asked for, the matrix and the bias"
        matrix, bias = got
        if tuple(matrix.shape) != (C, C) or tuple(bias.shape) != (C,):
            shapes = f"{list(matrix.shape)} and {list(bias.shape)}"
            return f"the shapes are {shapes}, not {[C, C]} and {[C]}"
        if torch.allclose(
            matrix @ E + bias[:, None], W @ torch.cat([E, E]) + b[:, None], atol=1e-5
        ):
            continue
        both = W[:, :C] + W[:, C:]
        for other, reason in (
            (W[:, C:], "the global half of W is left out, but it meets the same maps"),
            (W[:, :C], "the local half of W is left out, but it meets the same maps"),
            (both / 2, "the two halves are added, not averaged"),
            (both.T, "the matrix is transposed"),
            (both, "the bias is added once, as it is"),
        ):
            if torch.allclose(matrix, other, atol=1e-5):
                return reason
        return f"with {C} channels the folded operator does not do what the operator does"
    return None


EXERCISES = {
    "fed_mmd_fusion-diagonal": diagonal,
    "fed_mmd_fusion-payload": payload,
    "fed_mmd_fusion-fold": fold,
}

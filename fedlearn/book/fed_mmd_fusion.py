"""Chapter 6, FedMMD and FedFusion: the checks of its exercises."""

import math
from typing import Any

import torch

from .check import Function, Reasons, compared, drawn, labelled, number, varied


def grams(n: int, m: int, seed: int = 11) -> tuple[torch.Tensor, ...]:
    """Kernel matrices [n, n], [m, m] and [n, m] of two small samples."""
    x = drawn(n, 2, seed=seed)
    y = drawn(m, 2, seed=seed + 1) + 1
    return tuple(
        torch.exp(-torch.cdist(a, b).square() / 2) for a, b in ((x, x), (y, y), (x, y))
    )


def diagonal(unbiased: Function) -> Reasons:
    """unbiased(Kxx [n, n], Kyy [m, m], Kxy [n, m]) -> MMD^2 without pairs of a point
    and itself."""
    for n, m in ((4, 6), (5, 5)):
        Kxx, Kyy, Kxy = grams(n, m)
        before = Kxx.clone()
        got = unbiased(Kxx, Kyy, Kxy)
        yield (
            not torch.equal(Kxx, before) and "it changes the matrices that it is given"
        )
        if torch.as_tensor(got).numel() != 1:
            yield f"one number is asked for, not a tensor of shape {list(got.shape)}"
        x = Kxx.sum() - Kxx.trace()
        y = Kyy.sum() - Kyy.trace()
        between = 2 * Kxy.mean()
        within = x / (n * (n - 1)) + y / (m * (m - 1))
        whole = Kxx.mean() + Kyy.mean()
        wrong = {
            "the pairs of a point with itself are still in it": whole - between,
            "the sums leave the diagonal out, but the means divide by n * n": (
                x / n**2 + y / m**2 - between
            ),
            "the mean between the two samples counts twice": within - between / 2,
        }
        if n == m:
            reason = (
                "between the two samples there are no pairs of a point with itself: "
                "that mean stays whole"
            )
            cross = (Kxy.sum() - Kxy.trace()) / (n * (n - 1))
            wrong[reason] = within - 2 * cross
        otherwise = f"for samples of {n} and {m} points the value is not right"
        yield compared(float(got), within - between, wrong, otherwise)


@varied(
    numbers_in_all=(1_756_426, range(1_000_000, 2_000_000)),
    channels=(64, range(16, 200)),
)
def payload(numbers_in_all: int, channels: int) -> Any:
    """What a client of FedFusion with conv sends for models.cifar_cnn."""
    network = numbers_in_all
    extractor = 4_864 + 102_464
    weight = 2 * channels**2
    operator = weight + channels
    sent = network + operator
    return number(
        sent,
        {
            network: "the operator is trained and travels, too",
            network + weight: "the 1 x 1 convolution has biases",
            operator: "that is the operator alone",
            network + channels: "that is multi; conv has a matrix",
            network + channels**2 + channels: (
                "the operator has 2C channels in, those of both streams"
            ),
            sent + extractor: (
                "the frozen extractor is never sent: it is the last download"
            ),
            sent + network: "the frozen stream is never sent: it is the last download",
            4 * sent: "that is the number of bytes; the question is for numbers",
        },
    )


def fold(answer: Function) -> Reasons:
    """fold(W [C, 2C], b [C]) -> (W' [C, C], b' [C]) with W' E + b' = W (E || E) + b."""
    for C in (3, 5):
        W = drawn(C, 2 * C, seed=11)
        b = drawn(C, seed=12)
        E = drawn(C, 7, seed=13)
        before = W.clone()
        got = answer(W, b)
        yield not torch.equal(W, before) and "it changes the matrix that it is given"
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            yield "two tensors are asked for, the matrix and the bias"
        matrix, bias = got
        if tuple(matrix.shape) != (C, C) or tuple(bias.shape) != (C,):
            shapes = f"{list(matrix.shape)} and {list(bias.shape)}"
            yield f"the shapes are {shapes}, not {[C, C]} and {[C]}"
        right = W[:, :C] + W[:, C:]
        wrong = {
            "the global half of W is left out, but it meets the same maps": W[:, C:],
            "the local half of W is left out, but it meets the same maps": W[:, :C],
            "the matrix is transposed": right.T,
        }
        otherwise = (
            f"with {C} channels the folded operator does not do what the operator does"
        )
        yield compared(matrix, right, wrong, otherwise, 1e-5)
        maps = W @ torch.cat([E, E]) + b[:, None]
        once = "the bias is added once, as it is"
        yield compared(matrix @ E + bias[:, None], maps, {}, once, 1e-5)


def weights(answer: Any) -> Reasons:
    """{label: method}: FedMMD with a tenth of the paper's weight and with ten times as
    much; FedAvg may stand beside them."""
    example = '{"weak": fl.methods.fedmmd(0.3, lam=0.01)}'
    call = "fl.methods.fedmmd(0.3, lam=...)"
    race = "the race is between fedmmd and fedavg"
    yield labelled(answer, example, call, ("fedmmd", "fedavg"), race)
    bands = [m.objective.lam for m in answer.values() if m.name == "fedmmd"]
    for times, weight in {"a tenth of": 0.01, "ten times": 1.0}.items():
        if not any(math.isclose(band, weight) for band in bands):
            yield f"no FedMMD here has {times} the paper's weight of 0.1"
    rates = {m.optimizer.lr for m in answer.values()}
    yield rates != {0.3} and "the race has the rate 0.3 for everybody"


EXERCISES = {
    "fed_mmd_fusion-weights": weights,
    "fed_mmd_fusion-diagonal": diagonal,
    "fed_mmd_fusion-payload": payload,
    "fed_mmd_fusion-fold": fold,
}

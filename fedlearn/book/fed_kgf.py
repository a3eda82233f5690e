"""Chapter 5, Fed-KGF: a moving picture, tables of stored runs, and the checks of the
exercises."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from ..history import History
from .check import Function, Reasons, compared, generator, number, varied
from .drawings import drawing

if TYPE_CHECKING:
    import pandas


def watch_round() -> dict[str, Any]:
    """A layer of eight kernels, and the deal of ten modules to ten clients."""
    dice = Random(5)

    def cells(draw: Callable[..., float], *limits: float, digits: int) -> Any:
        return [[round(draw(*limits), digits) for _ in range(9)] for _ in range(8)]

    return drawing(
        "fed_kgf/layer",
        born=cells(dice.gauss, 0, 0.15, digits=3),
        alpha=cells(dice.uniform, 1e-5, 0.1, digits=4),
        beta=cells(dice.uniform, 2, 10, digits=2),
        deals=[Random(t).sample(range(10), 10) for t in range(20)],
    )


def beside_paper() -> "pandas.DataFrame":
    """Accuracies that the paper prints, and those of stored runs, a row a split."""
    import pandas

    from .claims import ends, printed

    methods = [
        "Fed-KGF",
        "FedPM",
        "FedAvg",
        "Fed-KGF without MU",
        "module uploading alone",
    ]
    accuracies = [printed("fed_kgf-cifar-accuracies", k) / 100 for k in (0, 1)]
    paper = pandas.DataFrame([accuracies], ["paper, CIFAR-10"], methods[:2])
    digits = ends("fed_kgf_digits", dataset="digits").loc[methods].T
    pictures = ends("fed_kgf_small", dataset="cifar10").loc[methods].T
    rows = [
        paper,
        digits.rename("digits, {}".format),
        pictures.rename("CIFAR-10, small, {}".format),
    ]
    return pandas.concat(rows).fillna("")


NAMES = {  # by label of the stored runs: its name in the lesson
    "FedAvg": "FedAvg",
    "Fed-KGF without MU": "few kernels",
    "module uploading alone": "module each",
    "Fed-KGF": "Fed-KGF",
    "Fed-KGF without alpha": "no \u03b1",
    "random kernels": "random kernels",
    "narrow network": "narrow network",
    "FedCOM": "FedCOMGATE",
    "SmartIdx": "SmartIdx",
    "DGC": "DGC",
    "FedCAMS": "FedCAMS",
    "FedPM": "FedPM",
    "STC": "STC",
    "signSGD": "signSGD",
}


def both_ways(history: History) -> Any:
    """Bytes of each round, up and down."""
    return history.bytes_up + history.bytes_down


def up_alone(history: History) -> Any:
    """Bytes of each round, up."""
    return history.bytes_up


def alike(dataset: str) -> dict[str, list[History]]:
    """The stored runs where clients are alike, by label."""
    from .claims import by_label

    name = "fed_kgf_digits" if dataset == "digits" else "fed_kgf_small"
    return by_label(name, dataset=dataset, partition="Iid()")


def within(
    runs: dict[str, list[History]], sent: Callable[[History], Any]
) -> dict[str, list[float]]:
    """The last accuracy of each run within the bytes that Fed-KGF sends in its whole
    run, by label; a run whose first test comes later has none."""
    limit = max(sent(h).sum() for h in runs["Fed-KGF"]) * 1.0001
    last: dict[str, list[float]] = {label: [] for label in runs}
    for label, histories in runs.items():
        for history in histories:
            total = sent(history).cumsum()
            tests = [
                row["accuracy"]
                for row in history.evaluated
                if total[row["round"] - 1] <= limit
            ]
            last[label] += tests[-1:]
    return last


def equal_bytes(dataset: str = "cifar10") -> list[dict[str, str]]:
    """Stored runs where clients are alike: accuracy late in the run, and where each
    stands when it has sent as much as Fed-KGF in its whole run, up and down or up
    alone."""
    from ..lab.results import spread

    runs = alike(dataset)
    last = within(runs, both_ways)
    last_up = within(runs, up_alone)
    rows = []
    for label, method in NAMES.items():
        if label not in runs:
            continue
        histories = runs[label]
        rows.append(
            {
                "method": method,
                "up": f"{histories[0].bytes_up.mean() / 1e6:.2f}",
                "down": f"{histories[0].bytes_down.mean() / 1e6:.2f}",
                "all rounds": spread([h.late_accuracy() for h in histories]),
                "both ways": spread(last[label]),
                "up alone": spread(last_up[label]) if last_up[label] else "",
            }
        )
    return rows


def longer() -> dict[str, list[History]]:
    """The stored runs on 20,000 pictures, by method."""
    from .claims import by_label

    runs = by_label("fed_kgf_small", train=20_000)
    return {label.split(",")[0]: histories for label, histories in runs.items()}


def cut(history: History, rounds: int) -> History:
    """The first rounds of a run."""
    return History(history.method, history.meta, history.rows[:rounds])


def more_training() -> list[dict[str, Any]]:
    """What the runs on 20,000 pictures reached after some rounds, and after what share
    of the paper's passes over its images."""
    from .claims import reached

    rows = []
    for rounds in (40, 100, 200):
        row: dict[str, Any] = {"rounds": rounds}
        row["passes"] = rounds * 20_000 / (400 * 50_000)
        for method, histories in longer().items():
            row[method] = reached([cut(history, rounds) for history in histories])
        rows.append(row)
    return rows


# ---- exercises -----------------------------------------------------------------------


def uniform(shape: tuple[int, ...], low: float, high: float, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=generator(seed)) * (high - low) + low


def summed(values: torch.Tensor, index: torch.Tensor, m: int) -> torch.Tensor:
    """The sums over the copies of each of m base kernels; copy i is of index[i]."""
    return values.new_zeros(m, *values.shape[1:]).index_add_(0, index, values)


def gradient(answer: Function) -> Reasons:
    """answer(w [m, in, k, k], beta [n, in, k, k], g [n, in, k, k]) -> [m, in, k, k]: g
    is the gradient by the generated kernels; what reaches w is g times Eq. (5.2),
    summed over copies."""
    for m, n in ((3, 6), (3, 7), (4, 2)):
        w = uniform((m, 2, 3, 3), -0.9, 0.9, 1)
        g = uniform((n, 2, 3, 3), -1, 1, 2)
        w[0, 0, 0, 0] = 0.0
        beta = uniform((n, 2, 3, 3), 2.0, 10.0, 3)
        before = w.clone()
        got = answer(w, beta, g)
        if not torch.equal(w.detach(), before):
            yield "it changes the base kernels that it is given"
        if tuple(got.shape) == (n, 2, 3, 3):
            yield "a base kernel has one gradient, and it is the sum over its copies"
        if tuple(got.shape) != (m, 2, 3, 3):
            yield f"it returns the shape {list(got.shape)} for {m} base kernels"
        bases = torch.arange(n) % m
        blocks = torch.arange(n) // -(-n // m)
        copies = w[bases]
        power = copies.abs() ** (beta - 1)
        slope = beta * power
        right = summed(g * slope, bases, m)
        last = torch.zeros_like(w)
        last[bases] += g * slope  # of equal indices one counts
        in_blocks = beta * w[blocks].abs() ** (beta - 1)
        count = bases.bincount(minlength=m).clamp(min=1)[:, None, None, None]
        wrong = {
            "that is the mean over the copies; their gradients add up": right / count,
            "`out[index] += ...` keeps only one of several equal indices; "
            "use `index_add_`, or a loop": last,
            "the slopes still have to be multiplied by g": summed(slope, bases, m),
            "the slope has no sign: that of w stands in (5.1) and in the "
            "derivative of |w|": summed(g * slope * copies.sign(), bases, m),
            "the factor beta is missing": summed(g * power, bases, m),
            "the exponent falls by one": (
                summed(g * beta * copies.abs() ** beta, bases, m)
            ),
            "kernel i comes from base kernel i mod m": summed(g * in_blocks, blocks, m),
        }
        otherwise = (
            f"with {m} base kernels and {n} generated ones the values are "
            f"not those of (5.2)"
        )
        yield compared(got, right, wrong, otherwise)


@varied(
    base_kernels=(16, range(4, 64)),
    channels=(512, range(128, 800)),
    classes=(10, range(2, 200)),
)
def upload(base_kernels: int, channels: int, classes: int) -> Any:
    """The last two modules of ResNet-18 with base kernels, batch statistics
    included."""
    base = base_kernels * channels * 9
    whole = channels * channels * 9
    norm = 4 * channels
    dense = channels * classes + classes
    sent = base + norm + dense
    return number(
        sent,
        {
            sent - norm // 2: (
                "the running mean and variance of batch normalisation travel, too"
            ),
            base + dense: "batch normalisation belongs to the module",
            sent - classes: "the dense layer has biases",
            base + norm: "the dense layer is the second module of the group",
            whole + norm + dense: (
                "that is the whole convolution; only its base kernels travel"
            ),
            base + 4 * base_kernels + dense: (
                f"batch normalisation has all {channels} channels, whoever made them"
            ),
            4 * sent: "that is the number of bytes; the question is for numbers",
        },
    )


def smooth(function: Function) -> Reasons:
    """function(w, alpha, beta), entry by entry: odd, with the sign of w, a change of at
    most alpha / 10 from -1e-6 to 1e-6, at least alpha / 2 in size where w is 0.1 or
    more, and with a power in it."""
    w = uniform((200,), 0.1, 1.0, 4)
    tiny = torch.full((200,), 1e-6)
    alpha = uniform((200,), 1e-3, 0.1, 5)
    beta = uniform((200,), 2.0, 10.0, 6)
    right = function(w, alpha, beta)
    left = function(-w, alpha, beta)
    if right.shape != w.shape:
        shape = list(right.shape)
        yield f"it returns the shape {shape} for entries of shape {list(w.shape)}"
    if not torch.allclose(right, -left, atol=1e-6):
        yield "it is not odd: w and -w have to give opposite values"
    jump = (function(tiny, alpha, beta) - function(-tiny, alpha, beta)).abs()
    if (jump > alpha / 10).any():
        yield "it still jumps at zero, by more than alpha / 10"
    if (right < 0).any():
        yield "the sign of the result is not that of w"
    least = function(torch.full_like(w, 0.1), alpha, beta)
    if (least < alpha / 2).any() or (right < alpha / 2).any():
        yield "for some |w| of at least 0.1 the result is smaller than alpha / 2"
    grid = torch.arange(50_001, dtype=torch.float64) * 2e-6
    for a, b in ((0.05, 2.0), (0.1, 10.0), (0.001, 5.0)):
        y = function(grid, torch.full_like(grid, a), torch.full_like(grid, b))
        if (y[1:] <= 0).any():
            yield "the sign of the result is not that of w near zero"
        if (y.diff().abs() > a / 10 + 2e-6 * b * grid[1:] ** (b - 1)).any():
            yield "the jump is gone from zero and stands elsewhere"
    if torch.allclose(right, function(w, alpha, beta + 1), atol=1e-7):
        yield "the power |w|^beta is gone"


@varied(beta=(10, range(3, 13)), largest_weight=(0.5, [k / 100 for k in range(70, 98)]))
def mean_slope(beta: int, largest_weight: float) -> Any:
    """Of beta |w|^(beta - 1) over w from -largest_weight to largest_weight."""
    return number(
        largest_weight ** (beta - 1),
        {
            0.0: "the slope is that of Eq. (5.2); it has no sign",
            1.0: "that is the mean of weights up to 1; here they are smaller",
        },
        tolerance=0.03,
    )


EXERCISES = {
    "fed_kgf-bytes": number(3.5, {2.5: "that is how many more, not how many times"}),
    "fed_kgf-uniform": mean_slope,
    "fed_kgf-gradient": gradient,
    "fed_kgf-upload": upload,
    "fed_kgf-smooth": smooth,
}

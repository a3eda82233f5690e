"""Chapter 5, Fed-KGF: its explorers, a table of stored runs, and the checks of the
exercises."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from ..history import History
from .check import Function, Reasons, compared, generator, number, varied

if TYPE_CHECKING:
    import pandas


def kernel_generation(low: float = 0.01, high: float = 0.16) -> dict[str, Any]:
    """Fed-KGF's ``w' = sign(w) (|w|^beta + alpha)`` under sliders for w, alpha and
    beta. Grey: where the size of w lies from ``low`` to ``high``."""
    from .vega import BLUE, BOLD, GREY, ONE, ORANGE, alt, layered, point_at, slider

    x = alt.X("x:Q", title="w", scale=alt.Scale(domain=[-0.6, 0.6], nice=False))
    y = alt.Y("y:Q", title="w\u2032", scale=alt.Scale(domain=[-0.5, 0.5]))
    kernel = "({0} < 0 ? -1 : 1) * (pow(abs({0}), beta) + alpha)"
    at_zero = "abs(w) < 0.001"
    value = f"({at_zero} ? 0 : {kernel.format('w')})"
    slope = f"({at_zero} ? 0 : beta * pow(abs(w), beta - 1))"
    share = f"({at_zero} ? 0 : pow(abs(w), beta) / (pow(abs(w), beta) + alpha))"
    text = (
        f"['w\u2032 = ' + format({value}, '+.4f') + ', from the power: "
        f"' + format({share}, '.1%'), "
        f"'slope: ' + format({slope}, '.2~g') + ', jump at 0: ' + "
        f"format(2 * alpha, '.2f')]"
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
            alt.Chart(sizes)
            .mark_rect(color=GREY, opacity=0.25)
            .encode(x, alt.X2("x2")),
            alt.Chart(
                alt.sequence(-0.5975, 0.5985, 0.005, as_="x")
            )  # 0 itself is between two
            .transform_calculate(
                y=kernel.format("datum.x"), half="datum.x < 0 ? 'left' : 'right'"
            )
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


# ---- a layer that learns a few kernels, and who sends which module -------------------

# rounds; what a round leaves of the way to the shape that is learned
LAST = 20
PULL = 0.88
SHAPES = [
    [0.25, 0.05, -0.25, 0.25, 0.05, -0.25, 0.25, 0.05, -0.25],
    [-0.15, 0.25, -0.15, -0.15, 0.25, -0.15, -0.15, 0.25, -0.15],
    [-0.25, -0.25, -0.25, 0.05, 0.05, 0.05, 0.25, 0.25, 0.25],
    [-0.1, -0.1, -0.1, -0.1, 0.3, -0.1, -0.1, -0.1, -0.1],
]


def watch_round() -> dict[str, Any]:
    """A layer of eight kernels, of which m are learned and the others made from them,
    and below it the deal of ten modules to ten clients, under sliders for the round and
    for m."""
    from .vega import BOLD, GREY, ONE, WORDS, alt, layered, signed, slider

    dice = Random(5)
    born = [[round(dice.gauss(0, 0.15), 3) for _ in range(9)] for _ in SHAPES * 2]
    alpha = [[round(dice.uniform(1e-5, 0.1), 4) for _ in range(9)] for _ in born]
    beta = [[round(dice.uniform(2, 10), 2) for _ in range(9)] for _ in born]
    fixed = {"born": born, "alpha": alpha, "beta": beta, "shapes": SHAPES}
    fixed["deals"] = [Random(t).sample(range(10), 10) for t in range(LAST)]
    params = [
        slider("round", "round", 1, 1, LAST, 1),
        slider("m", "base kernels m", 2, 1, 7, 1),
        *({"name": name, "value": value} for name, value in fixed.items()),
    ]
    wide = {"axis": None, "scale": {"domain": [0, 29], "nice": False}}
    high = {
        "axis": None,
        "scale": {"domain": [17.2, -1.1], "nice": False, "zero": False},
    }

    def at(x: str, y: str, *ends: Any) -> tuple[Any, ...]:
        return alt.X(f"{x}:Q", **wide), alt.Y(f"{y}:Q", **high), *ends

    def left(y: float) -> dict[str, Any]:
        spots = {"x": alt.XDatum(0, **wide), "y": alt.YDatum(y, **high)}
        return {channel: spot.type("quantitative") for channel, spot in spots.items()}

    size = alt.X2("x2"), alt.Y2("y2")
    wanted = "shapes[datum.p % m % 4][datum.c]"
    weight = f"{wanted} + pow({PULL}, {{}}) * (born[datum.p % m][datum.c] - {wanted})"
    kernels = alt.Chart(alt.sequence(72, as_="i")).transform_calculate(
        p="floor(datum.i / 9)",
        c="datum.i % 9",
        w=weight.format("round"),
        copy="datum.p >= m",
        b="beta[datum.p][datum.c]",
        jump=f"datum.copy && datum.w * ({weight.format('(round - 1)')}) < 0 ? 1 : 0",
        made=(
            "(datum.w < 0 ? -1 : 1) * (pow(abs(datum.w), datum.b) + "
            "alpha[datum.p][datum.c])"
        ),
        slope="datum.b * pow(abs(datum.w), datum.b - 1)",
        value="datum.copy ? datum.made : datum.w",
        x="datum.p * 3.65 + datum.c % 3",
        y="floor(datum.c / 3)",
        x2="datum.x + 0.95",
        y2="datum.y + 0.95",
        mx="datum.x + 0.47",
        my="datum.y + 0.47",
        above="-0.5",
        name="(datum.copy ? 'of w' : 'w') + (datum.p % m + 1)",
    )
    deal = alt.Chart(alt.sequence(100, as_="i")).transform_calculate(
        k="floor(datum.i / 10)",
        j="datum.i % 10",
        sent="datum.j == deals[round - 1][datum.k]",
        x="6.5 + datum.j * 2.2 + (datum.j == 9 ? 0.4 : 0)",
        y="6.2 + datum.k",
        x2="datum.x + 2.05",
        y2="datum.y + 0.88",
        mx="datum.x + 1.02",
        my="datum.y + 0.45",
        above="5.7",
        begin="0",
        client="'mostly ' + datum.k + 's'",
        module="'' + (datum.j + 1)",
    )
    summary = (
        "datum.jumps + ' copied cells jump, the rest move ' + "
        "format(datum.slope, '.2f') + "
        "' as far as w'"
    )
    owner = (
        "'10 comes from the client with mostly ' + indexof(deals[round - 1], 9) + 's'"
    )
    colour = alt.Color("value:Q", scale=alt.Scale(**signed(0.3)), legend=None)
    sends = alt.condition("datum.sent", alt.value(GREY), alt.value("transparent"))
    middle = {"align": "center", "baseline": "middle", "fontSize": 12, "color": GREY}
    layers = [
        kernels.mark_rect(stroke="#888").encode(*at("x", "y", *size), colour),
        kernels.transform_filter("!datum.copy && datum.c == 0")
        .transform_calculate(x2="datum.x + 2.95", y2="2.95")
        .mark_rect(fill="transparent", stroke=GREY, strokeWidth=3)
        .encode(*at("x", "y", *size)),
        kernels.transform_filter("datum.jump == 1")
        .mark_point(filled=True, size=40, color="#111", opacity=1)
        .encode(*at("mx", "my")),
        kernels.transform_filter("datum.c == 1")
        .mark_text(**middle)
        .encode(*at("mx", "above"), text="name:N"),
        kernels.transform_filter("datum.copy")
        .transform_aggregate(jumps="sum(jump)", slope="mean(slope)")
        .transform_calculate(words=summary)
        .mark_text(**BOLD)
        .encode(**left(3.8), text="words:N"),
        deal.mark_rect(stroke="#888").encode(*at("x", "y", *size), color=sends),
        deal.transform_filter("datum.sent")
        .mark_text(**middle | {"color": "#fff", "fontWeight": "bold"}, text="\u2191")
        .encode(*at("mx", "my")),
        deal.transform_filter("datum.j == 0")
        .mark_text(**WORDS, baseline="middle")
        .encode(*at("begin", "my"), text="client:N"),
        deal.transform_filter("datum.k == 0")
        .mark_text(**middle)
        .encode(*at("mx", "above"), text="module:N"),
        alt.Chart(ONE)
        .mark_text(**WORDS, baseline="middle", text="module")
        .encode(**left(5.7)),
        alt.Chart(ONE).mark_text(**BOLD, text=alt.ExprRef(owner)).encode(**left(16.8)),
    ]
    return layered(320, params, layers, view={"stroke": None})


def beside_paper() -> "pandas.DataFrame":
    """Accuracies that the paper prints, and those of stored runs, a row a split."""
    import pandas

    from .claims import ends, printed

    methods = (
        "Fed-KGF",
        "FedPM",
        "FedAvg",
        "Fed-KGF without MU",
        "module uploading alone",
    )
    said = [printed("fed_kgf-cifar-accuracies", k) / 100 for k in (0, 1)]
    paper = pandas.DataFrame([[*said, "", "", ""]], ["paper, CIFAR-10"], methods)
    here = [
        ends(name, dataset=data).loc[[*methods]].T.rename(f"{place}, {{}}".format)
        for place, name, data in (
            ("digits", "fed_kgf_digits", "digits"),
            ("CIFAR-10, small", "fed_kgf_small", "cifar10"),
        )
    ]
    return pandas.concat([paper, *here])


SENDS = {  # by label of the stored runs: its name in the lesson, and what goes up
    "FedAvg": ("FedAvg", "everything"),
    "Fed-KGF without MU": ("few kernels", "the few kernels"),
    "module uploading alone": ("module each", "a module"),
    "Fed-KGF": ("Fed-KGF", "a module of few kernels"),
    "Fed-KGF without alpha": ("no \u03b1", "a module of few kernels"),
    "random kernels": ("random kernels", "a module of few kernels"),
    "narrow network": ("narrow network", "everything"),
    "FedCOM": ("FedCOM", "eight bits a number"),
    "SmartIdx": ("SmartIdx", "signs of the largest changes"),
    "DGC": ("DGC", "the largest changes"),
    "FedCAMS": ("FedCAMS", "signs and a scale"),
    "FedPM": ("FedPM", "a mask over random weights"),
    "STC": ("STC", "a few large changes"),
    "signSGD": ("signSGD", "signs"),
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
    most = max(sent(h).sum() for h in runs["Fed-KGF"]) * 1.0001
    last = {}
    for label, histories in runs.items():
        last[label] = []
        for h in histories:
            total = sent(h).cumsum()
            tests = [
                r["accuracy"] for r in h.evaluated if total[r["round"] - 1] <= most
            ]
            last[label] += tests[-1:]
    return last


def equal_bytes(dataset: str = "cifar10") -> list[dict[str, str]]:
    """Stored runs where clients are alike: accuracy late in the run, and where each
    stands when it has sent as much as Fed-KGF in its whole run, up and down or up
    alone."""
    from ..lab.results import spread
    from .claims import dagger, reached

    runs = alike(dataset)
    if "Fed-KGF" not in runs:
        return []
    equal = {"both ways": within(runs, both_ways), "up alone": within(runs, up_alone)}
    rows = []
    for label, (method, sends) in SENDS.items():
        if histories := runs.get(label, []):
            sign = dagger(h.chosen_on for h in histories)
            row = {"method": method + sign, "sends up": sends}
            row |= {
                way: f"{getattr(histories[0], f'bytes_{way}').mean() / 1e6:.2f}"
                for way in ("up", "down")
            }
            row["all rounds"] = reached(histories)
            row |= {
                way: spread(last[label]) if last[label] else ""
                for way, last in equal.items()
            }
            rows.append(row)
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
    """What they have reached on the way, and after what share of the paper's passes
    over its images."""
    from .claims import reached

    runs = longer()
    return [
        {"rounds": t, "passes": t * 20_000 / (400 * 50_000)}
        | {method: reached([cut(h, t) for h in its]) for method, its in runs.items()}
        for t in (40, 100, 200)
    ]


# ---- exercises -----------------------------------------------------------------------


def uniform(shape: tuple[int, ...], low: float, high: float, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=generator(seed)) * (high - low) + low


def gradient(answer: Function) -> Reasons:
    """answer(w [m, in, k, k], beta [n, in, k, k], g [n, in, k, k]) -> [m, in, k, k]: g
    is the gradient by the generated kernels; what reaches w is g times Eq. (5.2),
    summed over copies."""
    for m, n in ((3, 6), (3, 7), (4, 2)):
        w = uniform((m, 2, 3, 3), -0.9, 0.9, 1)
        g = uniform((n, 2, 3, 3), -1, 1, 2)
        w[0, 0, 0, 0] = 0.0
        beta = uniform((n, 2, 3, 3), 2.0, 10.0, 3)
        bases = torch.arange(n) % m
        before = w.clone()
        got = answer(w, beta, g)
        yield (
            not torch.equal(w.detach(), before)
            and "it changes the base kernels that it is given"
        )
        if tuple(got.shape) == (n, 2, 3, 3):
            yield "a base kernel has one gradient, and it is the sum over its copies"
        if tuple(got.shape) != (m, 2, 3, 3):
            yield f"it returns the shape {list(got.shape)} for {m} base kernels"
        copies = w[bases]
        blocks = torch.arange(n) // -(-n // m)
        slope = beta * copies.abs() ** (beta - 1)

        def summed(each: torch.Tensor, index: torch.Tensor = bases) -> torch.Tensor:
            return torch.zeros_like(w).index_add_(0, index, each)  # noqa: B023

        last = torch.zeros_like(w)
        last[bases] += g * slope  # of equal indices one counts
        in_blocks = beta * w[blocks].abs() ** (beta - 1)
        count = bases.bincount(minlength=m).clamp(min=1)[:, None, None, None]
        wrong = {
            "that is the mean over the copies; their gradients add up": summed(
                g * slope
            )
            / count,
            "`out[index] += ...` keeps only one of several equal indices; "
            "use `index_add_`, or a loop": last,
            "the slopes still have to be multiplied by g": summed(slope),
            (
                "the slope has no sign: that of w stands in (5.1) and in the "
                "derivative of |w|"
            ): summed(g * slope * copies.sign()),
            "the factor beta is missing": summed(g * copies.abs() ** (beta - 1)),
            "the exponent falls by one": summed(g * beta * copies.abs() ** beta),
            "kernel i comes from base kernel i mod m": summed(g * in_blocks, blocks),
        }
        otherwise = (
            f"with {m} base kernels and {n} generated ones the values are "
            f"not those of (5.2)"
        )
        yield compared(got, summed(g * slope), wrong, otherwise)


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
    return number(
        base + norm + dense,
        {
            base
            + norm // 2
            + dense: "the running mean and variance of batch normalisation travel, too",
            base + dense: "batch normalisation belongs to the module",
            base + norm + channels * classes: "the dense layer has biases",
            base + norm: "the dense layer is the second module of the group",
            whole
            + norm
            + dense: "that is the whole convolution; only its base kernels travel",
            base
            + 4 * base_kernels
            + dense: f"batch normalisation has all {channels} channels,"
            " whoever made them",
            4
            * (
                base + norm + dense
            ): "that is the number of bytes; the question is for numbers",
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
        yield (
            f"it returns the shape {list(right.shape)} for entries of shape "
            f"{list(w.shape)}"
        )
    odd = torch.allclose(right, -left, atol=1e-6)
    yield not odd and "it is not odd: w and -w have to give opposite values"
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
    same = torch.allclose(right, function(w, alpha, beta + 1), atol=1e-7)
    yield same and "the power |w|^beta is gone"


@varied(beta=(10, range(3, 13)), largest_weight=(1.0, [k / 100 for k in range(70, 98)]))
def mean_slope(beta: int, largest_weight: float) -> Any:
    """Of beta |w|^(beta - 1) over w from -largest_weight to largest_weight."""
    return number(
        largest_weight ** (beta - 1),
        {
            0.0: "the slope is that of Eq. (5.2); it has no sign",
            largest_weight / 2: "that is the mean of |w|; put it through Eq. (5.2)",
        },
        tolerance=0.03,
    )


EXERCISES = {
    "fed_kgf-uniform": mean_slope,
    "fed_kgf-gradient": gradient,
    "fed_kgf-upload": upload,
    "fed_kgf-smooth": smooth,
}

"""Chapter 7, FedGKT: its explorers, its figures, and the checks of its exercises."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ..data.sources import data_path
from .check import Function, Reasons, compared, drawn, generator, number, varied

if TYPE_CHECKING:
    from .show import Chart, Shown  # pictures take long to load, and a check needs none


# ---- what crosses the wire -----------------------------------------------------------


def watch_maps(number: str) -> "Chart":
    """A digit, four of the maps that cross, and what a server can paint back from all
    sixteen, under a slider for noise; bars for how much of the picture is back and how
    many digits are read. The numbers are those of data/fed_gkt/noise.py."""
    from .show import chart
    from .vega import GREY, ONE, WORDS, alt, choice, layered, slider

    columns = json.loads(data_path("fed_gkt", "noise.json").read_text("utf-8"))[
        "columns"
    ]
    cells = [
        {"panel": k, "row": c // 8, "column": c % 8}
        for k in range(3)
        for c in range(64)
    ]
    index = "indexof(labels, digit)"
    pixel = "8 * datum.row + datum.column"
    # four maps of 4 x 4, two by two
    corner = "32 * floor(datum.row / 4) + 16 * floor(datum.column / 4)"
    place = f"{corner} + 4 * (datum.row % 4) + datum.column % 4"
    shades = (
        f"pictures[{index}][{pixel}]",
        f"maps[{index}][{place}] + noise * grain[{index}][{place}]",
        f"painted[round(2 * noise)][{index}][{pixel}]",
    )
    wide = {"axis": None, "scale": {"domain": [-0.2, 26.2], "nice": False}}
    high = {
        "axis": None,
        "scale": {"domain": [14.4, -1.4], "nice": False, "zero": False},
    }
    shared = alt.Chart(alt.InlineData(values=cells)).transform_calculate(
        shade=f"[{', '.join(shades)}][datum.panel]",
        x=(
            "datum.panel * 9 + datum.column + (datum.panel == 1 && "
            "datum.column > 3 ? 0.15 : 0)"
        ),
        x2="datum.x + 1",
        y="datum.row + (datum.panel == 1 && datum.row > 3 ? 0.15 : 0)",
        y2="datum.y + 1",
    )
    grey = alt.Scale(domain=[0, 100], range=["#ffffff", "#111111"], clamp=True)
    x = alt.X("x:Q", **wide)
    y = alt.Y("y:Q", **high)

    def word(at: float, line: float, text: Any, **more: Any) -> Any:
        place = alt.Chart(alt.InlineData(values=[{"x": at, "y": line}]))
        return place.mark_text(**WORDS | more, text=text).encode(x, y)

    layers = [
        alt.Chart()
        .mark_rect(stroke="#999", strokeWidth=0.3)
        .encode(
            x,
            alt.X2("x2"),
            y,
            alt.Y2("y2"),
            alt.Color("shade:Q", scale=grey, legend=None),
        )
    ]
    for k, title in enumerate(("stays at home", "crosses", "painted back")):
        layers.append(word(9 * k, -0.6, title, fontWeight="bold"))
    bars = {"digits read": "accuracy", "picture painted back": "recovered"}
    for k, (name, values) in enumerate(bars.items()):
        share = f"{values}[round(2 * noise)]"
        line = 9.4 + 2.7 * k
        bar = alt.Chart(ONE).transform_calculate(
            x="0", x2=f"26 * {share}", full="26", y=str(line + 0.6), y2=str(line + 1.4)
        )
        ends = alt.Y("y:Q", **high), alt.Y2("y2")
        layers += [
            bar.mark_rect(color="#c9ced6", opacity=0.5).encode(
                x, alt.X2("full"), *ends
            ),
            bar.mark_rect(color=("#0072B2", "#D55E00")[k]).encode(
                x, alt.X2("x2"), *ends
            ),
            word(
                0, line, alt.ExprRef(f"'{name}: ' + format({share}, '.0%')"), color=GREY
            ),
        ]
    names = "labels", "pictures", "maps", "grain", "painted", "accuracy", "recovered"
    params = [
        slider("noise", "noise on the maps", 0, 0, columns["noise"][-1], 0.5),
        choice("digit", "digit", columns["labels"]),
        *({"name": name, "value": columns[name]} for name in names),
    ]
    return chart(
        number,
        layered(330, params, layers, shared, view={"stroke": None}),
        caption="""What crosses, and what it gives away. A unit of noise is the standard
        deviation of the maps. *Digits read*: test accuracy after six rounds, mean of
        three seeds. *Painted back*: the share of an average picture's error that the
        painting removes.""",
        alt="""Three pictures in a row: a digit of 8 x 8 pixels, four coarse maps of it,
        and a painting that without noise looks nearly like the digit. Two bars below.
        As the noise grows, the painting fades into an average digit, and both bars
        shrink.""",
        units={"noise": "standard deviations"},
    )


# ---- soft labels ---------------------------------------------------------------------


# ten logits of one image, a 3 that looks like an 8 and a little like a 5 or a 9
TEACHER = [-2.0, -3.0, 0.5, 6.0, -3.5, 2.5, -3.0, -0.5, 4.5, 2.0]
STUDENT = [0.5, 0.2, 1.5, 1.0, -0.5, 1.2, 0.3, 2.0, 0.4, -0.2]


def teaching(number: str) -> "Chart":
    """A teacher's and a student's soft labels of one image, under sliders for the
    temperature and for how much of the teacher's logits the student has taken over;
    with the loss, Eq. (7.1)."""
    from .show import chart
    from .vega import BLUE, GREY, WORDS, alt, layered, slider

    rows = [
        {
            "panel": k,
            "class": c,
            "z": z,
            "start": start,
            "true": int(c == 3),
            "student": k,
        }
        for k in range(2)
        for c, (z, start) in enumerate(zip(TEACHER, STUDENT, strict=True))
    ]
    params = [
        slider("T", "temperature T", 1, 0.5, 20, 0.5),
        slider("learned", "the student has learned", 0, 0, 1, 0.05),
    ]
    title = (
        "datum.panel ? 'student: loss ' + format(T * T * datum.kl, '.2f') : 'teacher'"
    )
    wide = {"axis": None, "scale": {"domain": [-0.3, 22.0], "nice": False}}
    high = {"scale": {"domain": [-0.14, 1.16], "nice": False}, "title": "soft label"}
    left = alt.X("x:Q", **wide)
    shared = (
        alt.Chart(alt.InlineData(values=rows))
        .transform_calculate(own="(1 - learned) * datum.start + learned * datum.z")
        .transform_joinaggregate(top="max(z)", own_top="max(own)", groupby=["panel"])
        .transform_calculate(
            e="exp((datum.z - datum.top) / T)",
            own_e="exp((datum.own - datum.own_top) / T)",
        )
        .transform_joinaggregate(all="sum(e)", own_all="sum(own_e)", groupby=["panel"])
        .transform_calculate(
            taught="datum.e / datum.all", said="datum.own_e / datum.own_all"
        )
        .transform_calculate(
            part="datum.taught * log((datum.taught + 1e-9) / (datum.said + 1e-9))"
        )
        .transform_joinaggregate(kl="sum(part)", groupby=["panel"])
        .transform_calculate(
            p="datum.student ? datum.said : datum.taught",
            x="datum.panel * 11.5 + datum.class",
            right="datum.x + 0.8",
            middle="datum.x + 0.4",
            floor="0",
            below="-0.07",
            above="1.09",
            title=title,
        )
    )
    blue = (
        alt.when("datum.true == 1")
        .then(alt.value(BLUE))
        .otherwise(alt.value("#9aa4b2"))
    )
    layers = [
        alt.Chart()
        .mark_rect()
        .encode(
            *(left, alt.X2("right"), alt.Y2("floor")),
            alt.Y("p:Q", **high, axis=alt.Axis(values=[0, 0.5, 1], grid=True)),
            color=blue,
            tooltip=["class:N", alt.Tooltip("p:N", title="soft label", format=".3f")],
        ),
        alt.Chart()
        .mark_text(fontSize=12, color=GREY)
        .encode(alt.X("middle:Q", **wide), alt.Y("below:Q", **high), text="class:N"),
        alt.Chart()
        .transform_filter("datum.class == 0")
        .mark_text(**WORDS, fontWeight="bold")
        .encode(left, alt.Y("above:Q", **high), text="title:N"),
    ]
    return chart(
        number,
        layered(220, params, layers, shared),
        caption="""The soft labels of a teacher and of a student for one image, a 3
        (blue). The logits are made up. The student begins with a wrong idea and takes
        over the teacher's logits step by step. The loss is Eq. (7.1).""",
        alt="""Two groups of ten bars. At temperature 1 the teacher's bar for 3 is high
        and the one for 8 is small but visible; at a high temperature all bars are
        nearly equal. As the student learns, its bars become the teacher's and the loss
        falls to zero.""",
        units={"T": "temperature"},
    )


# ---- figures of the lesson -----------------------------------------------------------


def crossing(number: str, traffic: Callable[..., dict[str, Any]]) -> "Shown":
    """``traffic(n, h, C, P)``, bytes of a client by method, against its images n: for
    the network of the digits and for the paper's."""
    from .. import plot
    from ..models import NETWORKS, state_of
    from .show import figure

    images = torch.logspace(0.5, 4.5, 50)
    panels = []
    for name, shape, stem in (
        ("digits_resnet", (1, 8, 8), 4),
        ("resnet56", (3, 32, 32), 3),
    ):
        net = NETWORKS[name](shape).eval()
        h = net.extractor[:stem](torch.zeros(1, *shape)).numel()
        lines = traffic(images, h, 10, sum(w.numel() for w in state_of(net).values()))
        lines |= {"the images, once": images * torch.Size(shape).numel()}
        ax = plot.axes(size=(4.6, 3.2))
        for (label, line), style in zip(
            lines.items(), plot.styles([*lines]), strict=True
        ):
            ax.loglog(
                images,
                line / 1e6 + 0 * images,
                label=label,
                **style | {"markevery": 10},
            )
        ax.set(xlabel=f"images of a client, {name}", ylabel="MB a client and round")
        ax.grid(alpha=0.3)
        ax.legend(fontsize=9)
        panels.append(ax)
    return figure(
        number,
        panels,
        caption="""Bytes of a client in a round against its number of images. Left the
        network of the digits, right the paper's for colour pictures. An image has one
        byte a pixel and colour.""",
        alt="""Two panels on logarithmic axes. FedAvg is a level line. FedGKT rises with
        the images and crosses it, on the right at far fewer images. The images
        themselves, sent once, lie below FedGKT everywhere.""",
    )


def painted(
    number: str, pictures: torch.Tensor, maps: torch.Tensor, seen: torch.Tensor
) -> "Shown":
    """Six of a client's images [n, 64], two of the maps [n, 16, 4, 4] that it sent, and
    what a server has made of them."""
    import matplotlib.pyplot as plt

    from .show import figure

    six = torch.linspace(0, len(seen) - 1, 6).long()
    rows = {"image": pictures[six].unflatten(1, (8, 8))}
    rows |= {f"map {c + 1}": maps[six, c] for c in (0, 5)}
    rows["painted"] = seen[six].unflatten(1, (8, 8)).clamp(0, 1)
    picture, axs = plt.subplots(4, 6, figsize=(5.2, 3.2), layout="constrained")
    for line, (label, row) in zip(axs, rows.items(), strict=True):
        for ax, one in zip(line, row.cpu(), strict=True):
            ax.imshow(one, cmap="Greys", vmin=0, vmax=max(1e-6, float(row.max())))
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    return figure(
        number,
        picture,
        caption="""Images of a client, two of the sixteen maps that it sent in the first
        round, and what the least-squares painter, fitted on another client, paints from
        all sixteen.""",
        alt="""Four rows of six small pictures: digits, two rows of coarser maps, and a
        last row that looks nearly like the first.""",
    )


def twenty_rounds() -> list[dict[str, str]]:
    """Where FedAvg and FedGKT end in the stored runs of twenty rounds, per cent
    right."""
    from .claims import ends

    digits, pictures = (
        ends(f"fed_gkt_{name}", form=".1f", times=100, dataset=data)
        for name, data in (("digits", "digits"), ("small", "cifar10"))
    )
    tasks = {
        "digits, clients alike": digits["iid"],
        "digits, clients differ": digits["dirichlet:0.5"],
        "colour pictures, clients differ": pictures["dirichlet:0.5"],
        "colour pictures, clients alike": pictures["iid"],
    }
    return [
        {"": task} | dict(column[["FedAvg", "FedGKT"]])
        for task, column in tasks.items()
    ]


def who_teaches() -> list[dict[str, str]]:
    """Stored runs on CIFAR-10 where clients are alike, by who is taught."""
    from .claims import ends

    cells = ends("fed_gkt_small", form=".1f", times=100, dataset="cifar10")["iid"]
    columns = ("", "clients not taught", "clients taught")
    rows = (
        ("server not taught", cells["none"], cells["only S->E"]),
        ("server taught", cells["only E->S"], cells["FedGKT"]),
    )
    return [dict(zip(columns, row, strict=True)) for row in rows]


# ---- exercises -----------------------------------------------------------------------


def no_tensor(got: object) -> str | None:
    """What is wrong with an answer that is no tensor, or None."""
    if not isinstance(got, torch.Tensor):
        return (
            f"it returns "
            f"{'nothing' if got is None else f'a {type(got).__name__}'}, not a tensor"
        )
    return None


def gradient(function: Function) -> Reasons:
    """function(teacher [n, C], student [n, C], T) -> the gradient of T^2 KL(teacher ||
    student), mean over n, by the student."""
    for n, T in ((6, 3.0), (4, 1.0), (5, 10.0)):
        teacher = 4 * drawn(n, 5, seed=1)
        student = 4 * drawn(n, 5, seed=2)
        p = F.softmax(teacher / T, 1)
        q = F.softmax(student / T, 1)
        before = student.clone()
        got = function(teacher, student, T)
        yield (
            not torch.equal(student, before)
            and "it changes the logits that it is given"
        )
        yield no_tensor(got)
        if (shape := got.shape) != student.shape:
            yield (
                f"it returns the shape {list(shape)} for logits of shape "
                f"{list(student.shape)}"
            )
        undivided = F.softmax(student, 1) - F.softmax(teacher, 1)
        by_images = F.softmax(student / T, 0) - F.softmax(teacher / T, 0)
        one_left = "of T^2 and the 1/T of the divided logits one T is left"
        wrong = {
            (
                "its sign is turned round: this is the direction of the step, "
                "not the gradient"
            ): (T * (p - q) / n),
            "the factor T^2 is missing": (q - p) / (T * n),
            "the logits are divided by T, which gives a factor 1/T": T**2 * (q - p) / n,
            one_left: (q - p) / n,
            (
                "that is one image without T^2: the factor T^2 and the mean "
                "over n are missing"
            ): ((q - p) / T),
            f"{one_left}, and the mean over the images is missing": q - p,
            "it is the sum over the images, not the mean": T * (q - p),
            "it is the mean over images and classes; classes are summed": T
            * (q - p)
            / (n * 5),
            "the softmax needs logits divided by T": T * undivided / n,
            "the softmax runs over classes, dimension 1": T * by_images / n,
            "it compares logits; the softmax is missing": T * (student - teacher) / n,
        }
        otherwise = f"for T = {T:g} the values differ from those of autograd"
        yield compared(got, T * (q - p) / n, wrong, otherwise)


def match(function: Function) -> Reasons:
    """function(z_s [n, C], order [n], batch [b]) -> the rows of z_s for the images in
    batch; row i is image order[i]."""
    for n, seed in ((7, 3), (20, 4)):
        dice = generator(seed)
        z_s = 4 * drawn(n, 5, seed=seed)
        order = torch.randperm(n, generator=dice)
        batch = torch.randperm(n, generator=dice)[:5]
        expected = torch.stack([z_s[(order == j).nonzero()[0, 0]] for j in batch])
        got = function(z_s, order, batch)
        yield no_tensor(got)
        if got.shape != expected.shape:
            yield (
                f"it returns the shape {list(got.shape)} for a batch of "
                f"{len(batch)} images"
            )
        wrong = {
            (
                "it takes z_s to be in the order of the images; row i belongs "
                "to image order[i]"
            ): (z_s[batch]),
            "order leads from rows to images; here the way back is needed": z_s[
                order[batch]
            ],
            "it matches by position in the batch, as if nobody had shuffled": z_s[:5],
        }
        otherwise = "some images are given the logits of another"
        yield compared(got, expected, wrong, otherwise, 0.0)


@varied(
    weights=(1_147_738, range(800_000, 3_000_000)),
    classes=(10, range(2, 101)),
    channels=(16, range(8, 33)),
    side=(32, range(16, 41)),
)
def crossover(weights: int, classes: int, channels: int, side: int) -> Any:
    """Images of a client up to which a round of FedGKT sends less than one of FedAvg
    with ResNet-110."""
    statistics = 17_056
    H = channels * side * side
    each = 4 * H + 8 * classes + 6
    return number(
        8 * weights // each,
        {
            8 * weights // each
            + 1: "with that many FedGKT sends more: count the logits both ways,"
            " and round down",
            8 * (weights + statistics) // each: "batch statistics are left out here",
            4 * weights // each: "FedAvg's model travels both ways",
            8 * weights // H: "each number of H has four bytes, too",
            weights // H: (
                "each number of H has four bytes, and FedAvg's model travels both ways"
            ),
        },
    )


def still(function: Function) -> Reasons:
    """function(net, x, y, z_s) -> (H, y, None), from a network that has not changed."""
    from ..models import digits_edge

    x = drawn(6, 1, 8, 8, seed=1)
    y = torch.arange(6)
    z_s = drawn(6, 10, seed=2)
    torch.manual_seed(0)
    net = digits_edge()
    start = {name: w.clone() for name, w in net.state_dict().items()}
    message = function(net, x, y, z_s)
    if any(not torch.equal(w, start[name]) for name, w in net.state_dict().items()):
        yield "the network has changed: leave out `learn`, and keep `net.eval()`"
    if not isinstance(message, tuple) or len(message) != 3:
        yield "the message has three parts, H, y and None"
    H, labels, opinions = message
    if reason := no_tensor(H):
        yield f"of the maps {reason}"
    yield (
        H.requires_grad
        and "the maps still hold their gradients: keep `torch.no_grad()`"
    )
    expected = net.eval().extractor(x)
    if H.shape != expected.shape or not torch.allclose(H, expected, atol=1e-5):
        yield "the first part is not the maps, `net.extractor(x)`"
    yield labels is not y and "the second part is not the labels y"
    if opinions is not None:
        yield "the client's opinions are worthless here: send None in their place"


EXERCISES = {
    "fed_gkt-gradient": gradient,
    "fed_gkt-match": match,
    "fed_gkt-crossover": crossover,
    "fed_gkt-still": still,
}

"""Chapter 7, FedGKT: its figures, its tables, and the checks of its exercises."""

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ..data import data_path
from .check import Function, Reasons, compared, drawn, generator, number, varied
from .drawings import drawing

if TYPE_CHECKING:  # pictures take long to load, and a check needs none
    from matplotlib.figure import Figure

    from .show import Shown


def watch_maps() -> dict[str, Any]:
    """What crosses, and what a server can paint back, under noise."""
    text = data_path("fed_gkt", "noise.json").read_text(encoding="utf-8")
    columns = json.loads(text)["columns"]
    del columns["noise"]
    return drawing("fed_gkt/maps", **columns)


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
        weights = sum(w.numel() for w in state_of(net).values())
        lines = traffic(images, h, 10, weights)
        lines["the images, once"] = images * math.prod(shape)
        ax = plot.axes(size=(4.6, 3.2))
        for (label, line), style in zip(
            lines.items(), plot.styles([*lines]), strict=True
        ):
            ax.loglog(
                images, line / 1e6 + 0 * images, label=label, markevery=10, **style
            )
        ax.set(xlabel=f"images of a client, {name}", ylabel="MB a client and round")
        ax.grid(alpha=0.3)
        ax.legend()
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


def painted(pictures: torch.Tensor, maps: torch.Tensor, seen: torch.Tensor) -> "Figure":
    """Six of a client's images [n, 64], two of the maps [n, 16, 4, 4] that it sent, and
    what a server has made of them."""
    from .pictures import kernel_rows

    six = torch.linspace(0, len(seen) - 1, 6).long()
    rows = {
        "image": pictures[six].unflatten(1, (1, 8, 8)),
        "map 1": maps[six, :1],
        "map 6": maps[six, 5:6],
        "painted": seen[six].unflatten(1, (1, 8, 8)).clamp(0, 1),
    }
    return kernel_rows(rows, apart=rows, size=0.5, grey=True)


def twenty_rounds() -> list[dict[str, str]]:
    """Where FedAvg and FedGKT end in the stored runs of twenty rounds, per cent
    right."""
    from .claims import ends

    digits = ends("fed_gkt_digits", ".1f", 100, brief=True)
    pictures = ends("fed_gkt_small", ".1f", 100, brief=True, dataset="cifar10")
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

    cells = ends("fed_gkt_small", ".1f", 100, brief=True, dataset="cifar10")["iid"]
    rows = {
        "server not taught": ("none", "only S->E"),
        "server taught": ("only E->S", "FedGKT"),
    }
    return [
        {"": row, "clients not taught": cells[alone], "clients taught": cells[taught]}
        for row, (alone, taught) in rows.items()
    ]


# ---- exercises -----------------------------------------------------------------------


def no_tensor(got: object) -> str | None:
    """What is wrong with an answer that is no tensor, or None."""
    if isinstance(got, torch.Tensor):
        return None
    kind = "nothing" if got is None else f"a {type(got).__name__}"
    return f"it returns {kind}, not a tensor"


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
        if not torch.equal(student, before):
            yield "it changes the logits that it is given"
        yield no_tensor(got)
        if got.shape != student.shape:
            shape = list(got.shape)
            yield f"it returns the shape {shape} for logits of shape {[n, 5]}"
        undivided = F.softmax(student, 1) - F.softmax(teacher, 1)
        by_images = F.softmax(student / T, 0) - F.softmax(teacher / T, 0)
        one_left = "of T^2 and the 1/T of the divided logits one T is left"
        right = T * (q - p) / n
        wrong = {
            "its sign is turned round: this is the direction of the step, "
            "not the gradient": -right,
            "the factor T^2 is missing": right / T**2,
            "the logits are divided by T, which gives a factor 1/T": right * T,
            one_left: right / T,
            "that is one image without T^2: the factor T^2 and the mean "
            "over n are missing": (q - p) / T,
            f"{one_left}, and the mean over the images is missing": q - p,
            "it is the sum over the images, not the mean": right * n,
            "it is the mean over images and classes; classes are summed": right / 5,
            "the softmax needs logits divided by T": T * undivided / n,
            "the softmax runs over classes, dimension 1": T * by_images / n,
            "it compares logits; the softmax is missing": T * (student - teacher) / n,
        }
        otherwise = f"for T = {T:g} the values differ from those of autograd"
        yield compared(got, right, wrong, otherwise)


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
            yield f"it returns the shape {list(got.shape)} for a batch of 5 images"
        wrong = {
            "it takes z_s to be in the order of the images; row i belongs "
            "to image order[i]": z_s[batch],
            "order leads from rows to images; here the way back is needed": (
                z_s[order[batch]]
            ),
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
    images = 8 * weights // each
    return number(
        images,
        {
            images + 1: (
                "with that many FedGKT sends more: count the logits both ways,"
                " and round down"
            ),
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
    if H.requires_grad:
        yield "the maps still hold their gradients: keep `torch.no_grad()`"
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

"""Chapter 7, FedGKT: the explorer of soft labels, and the checks of the exercises."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .check import Function, compared, drawn, number


def soft_labels(logits: Sequence[Sequence[float]], truth: Sequence[int]) -> dict[str, Any]:
    """softmax(z / T) of a few images' logits [n, classes] under a slider for T, surest first; the
    bars of the classes in ``truth`` stand out."""
    from .vega import BLUE, GREY, WORDS, alt, layered, slider

    bars = [
        {"panel": k, "class": c, "z": round(float(v), 4), "true": int(c == truth[k])}
        for k, z in enumerate(logits)
        for c, v in enumerate(z)
    ]
    apart, last = len(logits[0]) + 1.5, len(logits) - 1
    wide = {"axis": None, "scale": {"domain": [-0.3, apart * len(logits) - 1], "nice": False}}
    high = {"scale": {"domain": [-0.14, 1.16], "nice": False}, "title": "soft label"}
    left = alt.X("x:Q", **wide)
    kinds = ["surest", *["middle"] * (last - 1), "least sure"]
    titles = [f"a {y}: {kind}" for y, kind in zip(truth, kinds, strict=False)]
    shared = (
        alt.Chart(alt.InlineData(values=bars))
        .transform_joinaggregate(top="max(z)", groupby=["panel"])
        .transform_calculate(e="exp((datum.z - datum.top) / T)")
        .transform_joinaggregate(all="sum(e)", groupby=["panel"])
        .transform_calculate(
            p="datum.e / datum.all",
            x=f"datum.panel * {apart} + datum.class",
            right="datum.x + 0.8",
            middle="datum.x + 0.4",
            floor="0",
            below="-0.07",
            above="1.09",
            title="titles[datum.panel]",
        )
    )
    layers = [
        alt.Chart()
        .mark_rect()
        .encode(
            *(left, alt.X2("right"), alt.Y2("floor")),
            alt.Y("p:Q", **high, axis=alt.Axis(values=[0, 0.5, 1], grid=True)),
            color=alt.when("datum.true == 1").then(alt.value(BLUE)).otherwise(alt.value("#9aa4b2")),
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
    params = [slider("T", "temperature T", 3, 0.1, 30, 0.1), {"name": "titles", "value": titles}]
    return layered(220, params, layers, shared)


# ---- exercises -----------------------------------------------------------------------------------


def no_tensor(got: object) -> str | None:
    """What is wrong with an answer that is no tensor, or None."""
    if not isinstance(got, torch.Tensor):
        return f"it returns {'nothing' if got is None else f'a {type(got).__name__}'}, not a tensor"
    return None


def gradient(function: Function) -> str | None:
    """function(teacher [n, C], student [n, C], T) -> the gradient of T^2 KL(teacher || student),
    mean over n, by the student."""
    for n, T in ((6, 3.0), (4, 1.0), (5, 10.0)):
        teacher, student = 4 * drawn(n, 5, seed=1), 4 * drawn(n, 5, seed=2)
        p, q = F.softmax(teacher / T, 1), F.softmax(student / T, 1)
        before, got = student.clone(), function(teacher, student, T)
        if not torch.equal(student, before):
            return "it changes the logits that it is given"
        if reason := no_tensor(got):
            return reason
        if got.shape != student.shape:
            return (
                f"it returns the shape {list(got.shape)} for logits of shape {list(student.shape)}"
            )
        undivided = F.softmax(student, 1) - F.softmax(teacher, 1)
        by_images = F.softmax(student / T, 0) - F.softmax(teacher / T, 0)
        one_left = "of T^2 and the 1/T of the divided logits one T is left"
        wrong = {
            "its sign is turned round: this is the direction of the step, not the gradient": (
                T * (p - q) / n
            ),
            "the factor T^2 is missing": (q - p) / (T * n),
            "the logits are divided by T, which gives a factor 1/T": T**2 * (q - p) / n,
            one_left: (q - p) / n,
            "that is one image without T^2: the factor T^2 and the mean over n are missing": (
                (q - p) / T
            ),
            f"{one_left}, and the mean over the images is missing": q - p,
            "it is the sum over the images, not the mean": T * (q - p),
            "it is the mean over images and classes; classes are summed": T * (q - p) / (n * 5),
            "the softmax needs logits divided by T": T * undivided / n,
            "the softmax runs over classes, dimension 1": T * by_images / n,
            "it compares logits; the softmax is missing": T * (student - teacher) / n,
        }
        otherwise = f"for T = {T:g} the values differ from those of autograd"
        if reason := compared(got, T * (q - p) / n, wrong, otherwise):
            return reason
    return None


def match(function: Function) -> str | None:
    """function(z_s [n, C], sent [n], batch [b]) -> the rows of z_s for the images in batch; row i
    is image sent[i]."""
    for n, seed in ((7, 3), (20, 4)):
        dice = torch.Generator().manual_seed(seed)
        z_s, sent = 4 * drawn(n, 5, seed=seed), torch.randperm(n, generator=dice)
        batch = torch.randperm(n, generator=dice)[:5]
        expected = torch.stack([z_s[(sent == j).nonzero()[0, 0]] for j in batch])
        got = function(z_s, sent, batch)
        if reason := no_tensor(got):
            return reason
        if got.shape != expected.shape:
            return f"it returns the shape {list(got.shape)} for a batch of {len(batch)} images"
        wrong = {
            "it takes z_s to be in the order of the images; row i belongs to image sent[i]": (
                z_s[batch]
            ),
            "sent leads from rows to images; here the way back is needed": z_s[sent[batch]],
            "it matches by position in the batch, as if nobody had shuffled": z_s[:5],
        }
        otherwise = "some images are given the logits of another"
        if reason := compared(got, expected, wrong, otherwise, 0.0):
            return reason
    return None


FLOATS, STATISTICS, H, C = 1_147_738, 17_056, 16 * 32 * 32, 10
EACH = 4 * H + 8 * C + 6
CROSSOVER = 8 * FLOATS // EACH
# images of a client up to which a round of FedGKT sends less than one of FedAvg with ResNet-110
_crossover = number(
    CROSSOVER,
    {
        CROSSOVER + 1: "with that many FedGKT sends more: count the logits both ways, and round"
        " down",
        8 * (FLOATS + STATISTICS) // EACH: "batch statistics are left out here",
        4 * FLOATS // EACH: "FedAvg's model travels both ways",
        8 * FLOATS // H: "each float of H has four bytes, too",
        FLOATS // H: "each float of H has four bytes, and FedAvg's model travels both ways",
    },
)


def crossover(answer: Any) -> str | None:
    if float(answer) % 1:
        return "a number of images is whole"
    return _crossover(answer)


EXERCISES = {"fed_gkt-gradient": gradient, "fed_gkt-match": match, "fed_gkt-crossover": crossover}

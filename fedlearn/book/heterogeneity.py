"""Chapter 2, clients that differ: the explorers of a Dirichlet split and of two
parabolas, and the checks of the exercises."""

from typing import Any

import numpy as np
import torch

from .check import TWICE, Function, Reasons, compared, drawn

CLASSES = 10
CLIENTS = 20


def dirichlet_shares(draws: int = 3) -> dict[str, Any]:
    """Dirichlet(alpha) shares of ten equal classes under sliders for alpha and the
    clients.

        A share is a Gamma(alpha) number over the sum of its class. Marsaglia and Tsang
        (2000) make one from a normal number x and uniform ones: g = d (1 + x / sqrt(9
        d))^3 u^(1 / alpha) with d = alpha + 2/3, if w passes their test. There are two
        pairs (x, w) for each, of which the second is taken as it is: one in four
        hundred at most should have had a third.
    """
    from .vega import BLUE, BOLD, alt, choice, layered, slider

    rng = np.random.default_rng(0)
    shape = (draws * CLASSES * CLIENTS,)
    noise = {
        "x": rng.normal(size=shape),
        "x2": rng.normal(size=shape),
        "w": rng.random(shape),
    }
    noise |= {"u": rng.random(shape).clip(0.001)}
    at = f"[(draw - 1) * {CLASSES * CLIENTS} + datum.i]"
    cube = "pow(max(1 + {} / sqrt(9 * datum.d), 0.01), 3)"
    passes = (
        "log(w{0}) < x{0} * x{0} / 2 + datum.d * (1 - datum.v + log(datum.v))".format(
            at
        )
    )
    text = (
        "'\u03b1 = ' + format(alpha, '.2~r') + ': TV ' + format(datum.tv, '.2f') + "
        "', largest client ' + format(datum.most, '.0%')"
    )
    shared = (
        alt.Chart(alt.sequence(0, CLASSES * CLIENTS, as_="i"))
        .transform_calculate(
            client=f"datum.i % {CLIENTS} + 1",
            **{"class": f"floor(datum.i / {CLIENTS})"},
        )
        .transform_filter("datum.client <= clients")
        .transform_calculate(d="alpha + 2 / 3", v=cube.format(f"x{at}"))
        .transform_calculate(v=f"{passes} ? datum.v : {cube.format(f'x2{at}')}")
        .transform_calculate(gamma=f"datum.d * datum.v * pow(u{at}, 1 / alpha)")
        .transform_joinaggregate(all="sum(gamma)", groupby=["class"])
        .transform_calculate(share="datum.gamma / datum.all")
        .transform_joinaggregate(size="mean(share)", groupby=["client"])
        .transform_calculate(moved=f"abs(datum.share - datum.size) / {2 * CLASSES}")
        .transform_joinaggregate(tv="sum(moved)", most="max(size)")
    )
    x_scale = alt.Scale(
        domainMin=0.4, domainMax=alt.ExprRef("clients + 0.6"), nice=False
    )
    y_scale = alt.Scale(domain=[-0.7, 9.7], nice=False)
    return layered(
        260,
        [
            slider("power", "log10 of \u03b1", 0, -1.5, 2, 0.05),
            slider("clients", "clients", 10, 2, CLIENTS, 1),
            choice("draw", "draw", range(1, draws + 1)),
            {"name": "alpha", "expr": "pow(10, power)"},
            *(
                {"name": n, "value": [round(float(v), 3) for v in a]}
                for n, a in noise.items()
            ),
        ],
        [
            alt.Chart()
            .mark_circle(color=BLUE, opacity=1)
            .encode(
                alt.X(
                    "client:Q", scale=x_scale, axis=alt.Axis(tickMinStep=1, format="d")
                ),
                alt.Y(
                    "class:Q",
                    scale=y_scale,
                    axis=alt.Axis(values=[*range(10)], format="d"),
                ),
                alt.Size("share:Q", legend=None).scale(domain=[0, 1], range=[0, 900]),
                tooltip=[
                    *("client:N", "class:N"),
                    alt.Tooltip("share:N", title="share of the class", format=".1%"),
                ],
            ),
            alt.Chart()
            .transform_filter("datum.i == 0")
            .mark_text(**BOLD, baseline="bottom", text=alt.ExprRef(text))
            .encode(x=alt.value(0), y=alt.value(-8)),
        ],
        shared,
        grid=False,
        padding={"top": 26, "left": 5, "right": 5, "bottom": 5},
    )


def two_parabolas(rounds: int = 12) -> dict[str, Any]:
    """FedAvg of two clients, F_k(w) = a_k (w - c_k)^2 / 2 with c = (-1, 1) and a_2 =
    0.5, under sliders for the local steps, the learning rate and a_1: its rounds, where
    they lead, and the optimum."""
    from .vega import (
        BLUE,
        BOLD,
        GREEN,
        GREY,
        ONE,
        ORANGE,
        PINK,
        alt,
        layered,
        series,
        slider,
    )

    x = alt.X("w:Q", title="w", scale=alt.Scale(domain=[-1.7, 1.7], nice=False))
    y = alt.Y("loss:Q", title="loss", scale=alt.Scale(domain=[0, 4.2], nice=False))
    mean = "(a * pow({0} + 1, 2) + 0.5 * pow({0} - 1, 2)) / 4"
    curves = ["client 1", "client 2", "their mean F"]
    kinds = [*curves, "optimum", "FedAvg\u2019s rounds", "its end"]
    legend = {"orient": "top", "title": None, "labelFontSize": 12, "columns": 3}
    legend |= {"symbolSize": 90, "symbolOpacity": 1}
    forms = ["stroke", "stroke", "stroke", "diamond", "circle", "cross"]
    looks: dict[Any, list[Any]] = {
        alt.Color: [GREY, PINK, BLUE, GREEN, ORANGE, ORANGE],
        alt.Shape: forms,
        alt.StrokeDash: [[2, 3], [7, 3], *[[1, 0]] * 4],
    }
    colour, shape, dash = (
        series(c, "kind", kinds, look, legend) for c, look in looks.items()
    )
    text = (
        "['optimum ' + format(best, '+.2f'), 'FedAvg ends at ' + format(end, '+.2f'), "
        "'a round leaves ' + format(remains, '.0%')]"
    )
    ends = [{"kind": kinds[3], "at": "best"}, {"kind": kinds[5], "at": "end"}]
    return layered(
        270,
        [
            slider("steps", "local steps E", 5, 1, 30, 1),
            slider("rate", "learning rate \u03b7", 0.2, 0.01, 0.25, 0.01),
            slider("a", "curvature a\u2081", 4, 0.5, 4, 0.1),
            {"name": "r1", "expr": "pow(1 - rate * a, steps)"},
            {"name": "r2", "expr": "pow(1 - rate * 0.5, steps)"},
            {"name": "best", "expr": "(0.5 - a) / (0.5 + a)"},
            {"name": "end", "expr": "(r1 - r2) / (2 - r1 - r2)"},
            {"name": "remains", "expr": "(r1 + r2) / 2"},
        ],
        [
            alt.Chart(alt.sequence(-1.7, 1.71, 0.05, as_="w"))
            .transform_calculate(
                mean=mean.format("datum.w"),
                loss=(
                    "[a * pow(datum.w + 1, 2) / 2, 0.25 * pow(datum.w - 1, 2), "
                    "datum.mean]"
                ),
                kind=str(curves),
            )
            .transform_flatten(["loss", "kind"])
            .mark_line(strokeWidth=2, clip=True)
            .encode(x, y, colour, dash),
            alt.Chart(alt.sequence(0, rounds + 1, as_="t"))
            .transform_calculate(
                w="end + pow(remains, datum.t) * (1 - end)",
                loss=mean.format("datum.w"),
                kind=f"'{kinds[4]}'",
            )
            .mark_point(filled=True, size=45, opacity=0.75)
            .encode(
                *(x, y, colour, shape),
                tooltip=[
                    alt.Tooltip("t:N", title="round"),
                    alt.Tooltip("w:N", format="+.3f"),
                ],
            ),
            alt.Chart(alt.InlineData(values=ends))
            .transform_calculate(
                w="datum.at == 'best' ? best : end", loss=mean.format("datum.w")
            )
            .mark_point(filled=True, size=190, opacity=1)
            .encode(x, y, colour, shape),
            alt.Chart(ONE)
            .mark_text(**BOLD, baseline="top", lineHeight=18, text=alt.ExprRef(text))
            .encode(x=alt.value(6), y=alt.value(8)),
        ],
        grid=False,
    )


# ---- exercises -----------------------------------------------------------------------


def pure_shards(answer: Function) -> Reasons:
    """answer(labels, clients, rng) -> the owner of each sample; each client gets two
    classes, none a third."""
    for clients, classes, n in ((10, 10, 1347), (5, 10, 600), (12, 4, 401)):
        labels = np.random.default_rng(clients).permutation(np.arange(n) % classes)
        draws = []
        for seed in range(4):
            given, again = (
                answer(labels.copy(), clients, np.random.default_rng(seed))
                for _ in range(2)
            )
            try:
                owner = np.asarray(given)
            except ValueError:
                yield (
                    "one owner for each image is asked for, not one list for each "
                    "client"
                )
            if owner.shape != labels.shape:
                yield (
                    f"there should be one owner for each of the {n} samples, "
                    f"not an array of shape {owner.shape}"
                )
            if owner.min() < 0 or owner.max() >= clients:
                yield f"owners should be numbers from 0 to {clients - 1}"
            held = np.zeros((clients, classes), int)
            np.add.at(held, (owner, labels), 1)
            if (wrong := (held > 0).sum(1) != 2).any():
                k = int(wrong.argmax())
                yield (
                    f"client {k} of {clients} holds {(held[k] > 0).sum()} of the "
                    f"{classes} classes "
                    "instead of two"
                )
            for c, column in enumerate(held.T):
                if np.ptp(column[column > 0]) > 1:
                    yield (
                        f"class {c} is not shared evenly: "
                        f"its holders have {column[column > 0].tolist()} samples"
                    )
            yield not np.array_equal(owner, again) and TWICE
            draws.append(owner)
        if all(np.array_equal(draws[0], other) for other in draws[1:]):
            yield "four different generators gave one and the same split: draw from rng"


def layer_drift(answer: Function) -> Reasons:
    """answer(updates, samples) -> {name: drift}; updates: tensors by name, for each
    client."""
    shapes = {"conv.weight": (4, 2, 3, 3), "fc.weight": (5, 6), "fc.bias": (5,)}
    samples = [30, 10, 60]
    common = {name: drawn(*shape) for name, shape in shapes.items()}
    updates = [
        {n: t + (k + 1) * drawn(*t.shape, seed=k + 1) for n, t in common.items()}
        for k in range(3)
    ]

    def drift(stacked: torch.Tensor, weights: torch.Tensor) -> float:
        mean = (weights[:, None] * stacked).sum(0)
        return float(
            ((weights * (stacked - mean).square().sum(1)).sum().sqrt()) / mean.norm()
        )

    flat = {name: torch.stack([u[name].flatten() for u in updates]) for name in shapes}
    counts = torch.tensor(samples).float()
    p = counts / counts.sum()
    equal = torch.full((3,), 1 / 3)
    given = answer(updates, samples)
    if not isinstance(given, dict) or set(given) != set(shapes):
        yield (
            f"the answer should be a dictionary with a number for each of "
            f"{', '.join(shapes)}"
        )
    for name, stacked in flat.items():
        value = float(given[name])
        right = drift(stacked, p)
        wrong = {
            "every client counts the same in it: weigh by samples, "
            "in the mean and in the spread around it": drift(stacked, equal),
            "the p_k have to sum to one: divide by the sum of the samples": drift(
                stacked, counts
            ),
            "the square root is missing": right**2,
            (
                "it is the drift of all tensors together: treat each name on its own"
            ): drift(torch.cat(list(flat.values()), 1), p),
        }
        otherwise = f"for {name} it gives {value:.4g}, which is not its drift"
        yield compared(value, right, wrong, otherwise, 1e-4)


def expected_classes(answer: Function) -> Reasons:
    """answer(n, classes) -> the expected number of different classes among n random
    images."""
    for n, classes in ((1, 10), (2, 10), (10, 10), (30, 10), (5, 2), (3, 1)):
        value = float(answer(n, classes))
        missing = classes * (1 - 1 / classes) ** n
        wrong = {
            (
                "that is how many classes are missing: you want those that are there"
            ): missing,
            "images repeat classes: two images have the same class now and then": min(
                n, classes
            ),
        }
        otherwise = (
            f"for n = {n} and {classes} classes {value:.4g} is not the expected number"
        )
        yield compared(value, classes - missing, wrong, otherwise)


def round_leaves(answer: Function) -> Reasons:
    """answer(a, p, E, eta) -> the share of the distance to the end that a round of
    averaging leaves."""
    two = ([4.0, 0.5], [0.5, 0.5])
    three = ([1.0, 2.0, 0.5], [0.2, 0.5, 0.3])
    for (a, p), E, eta in ((two, 1, 0.2), (two, 20, 0.2), (three, 3, 0.1)):
        a_k = np.array(a)
        p_k = np.array(p)
        value = float(answer(a_k, p_k, E, eta))
        r = (1 - eta * a_k) ** E
        wrong = {
            "that is what a round walks: you want what it leaves": 1 - float(p_k @ r),
            (
                "one client with the mean curvature is another thing: average the r_k"
            ): float((1 - eta * p_k @ a_k) ** E),
            "every client counts the same in it: weigh by p": float(r.mean()),
        }
        otherwise = (
            f"for a = {a} and E = {E} it gives {value:.4g}, which is not "
            f"the share that is left"
        )
        yield compared(value, float(p_k @ r), wrong, otherwise)


EXERCISES = {
    "heterogeneity-shards": pure_shards,
    "heterogeneity-layers": layer_drift,
    "heterogeneity-classes": expected_classes,
    "heterogeneity-round": round_leaves,
}

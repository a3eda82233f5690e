"""Explorers of how clients differ, computed in the page by Vega: a Dirichlet split, and two clients
with a parabola each."""

from typing import Any

import numpy as np

from .vega import GREY, NUMBER, choice, frame, slider

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
CLASSES, CLIENTS = 10, 20


def _heading(text: str) -> dict[str, Any]:
    """A line above the picture; ``text`` is an expression."""
    mark = {"type": "text", "align": "left", "fontSize": 13, "fontWeight": "bold", "color": GREY}
    mark |= {"baseline": "bottom", "text": {"expr": text}}
    return {"mark": mark, "encoding": {"x": {"value": 0}, "y": {"value": -8}}}


def dirichlet_shares(draws: int = 3) -> dict[str, Any]:
    """Dirichlet(alpha) shares of ten equal classes under sliders for alpha and the clients.

    A share is a Gamma(alpha) number over the sum of its class. Marsaglia and Tsang (2000) make one
    from a normal number x and uniform ones: g = d (1 + x / sqrt(9 d))^3 u^(1 / alpha) with d =
    alpha + 2/3, if w passes their test. There are two pairs (x, w) for each, of which the second is
    taken as it is: one in four hundred at most should have had a third.
    """
    rng, shape = np.random.default_rng(0), (draws * CLASSES * CLIENTS,)
    drawn = {"x": rng.normal(size=shape), "x2": rng.normal(size=shape), "w": rng.random(shape)}
    drawn |= {"u": rng.random(shape).clip(0.001)}
    at = f"[(draw - 1) * {CLASSES * CLIENTS} + datum.i]"
    cube = "pow(max(1 + {} / sqrt(9 * datum.d), 0.01), 3)"
    passes = "log(w{0}) < x{0} * x{0} / 2 + datum.d * (1 - datum.v + log(datum.v))".format(at)
    says = (
        "'\u03b1 = ' + format(alpha, '.2~r') + ': TV ' + format(datum.tv, '.2f') + "
        "', largest client ' + format(datum.most, '.0%')"
    )
    x_scale = {"domainMin": 0.4, "domainMax": {"expr": "clients + 0.6"}, "nice": False}
    heading = _heading(says)
    heading["transform"] = [{"filter": "datum.i == 0"}]
    return frame(
        260,
        grid=False,
        padding={"top": 26, "left": 5, "right": 5, "bottom": 5},
        params=[
            slider("power", "log10 of \u03b1", 0, -1.5, 2, 0.05),
            slider("clients", "clients", 10, 2, CLIENTS, 1),
            choice("draw", "draw", range(1, draws + 1)),
            {"name": "alpha", "expr": "pow(10, power)"},
            *({"name": n, "value": [round(float(v), 3) for v in a]} for n, a in drawn.items()),
        ],
        data={"sequence": {"start": 0, "stop": CLASSES * CLIENTS, "as": "i"}},
        transform=[
            {"calculate": f"datum.i % {CLIENTS} + 1", "as": "client"},
            {"calculate": f"floor(datum.i / {CLIENTS})", "as": "class"},
            {"filter": "datum.client <= clients"},
            {"calculate": "alpha + 2 / 3", "as": "d"},
            {"calculate": cube.format(f"x{at}"), "as": "v"},
            {"calculate": f"{passes} ? datum.v : {cube.format(f'x2{at}')}", "as": "v"},
            {"calculate": f"datum.d * datum.v * pow(u{at}, 1 / alpha)", "as": "gamma"},
            {"joinaggregate": [{"op": "sum", "field": "gamma", "as": "all"}], "groupby": ["class"]},
            {"calculate": "datum.gamma / datum.all", "as": "share"},
            {
                "joinaggregate": [{"op": "mean", "field": "share", "as": "size"}],
                "groupby": ["client"],
            },
            {"calculate": f"abs(datum.share - datum.size) / {2 * CLASSES}", "as": "moved"},
            {
                "joinaggregate": [
                    {"op": "sum", "field": "moved", "as": "tv"},
                    {"op": "max", "field": "size", "as": "most"},
                ]
            },
        ],
        layer=[
            {
                "mark": {"type": "circle", "color": BLUE, "opacity": 1},
                "encoding": {
                    "x": {
                        "field": "client",
                        **NUMBER,
                        "scale": x_scale,
                        "axis": {"tickMinStep": 1, "format": "d"},
                    },
                    "y": {
                        "field": "class",
                        **NUMBER,
                        "scale": {"domain": [-0.7, 9.7], "nice": False},
                        "axis": {"values": [*range(CLASSES)], "format": "d"},
                    },
                    "size": {
                        "field": "share",
                        **NUMBER,
                        "scale": {"domain": [0, 1], "range": [0, 900]},
                        "legend": None,
                    },
                    "tooltip": [
                        {"field": "client"},
                        {"field": "class"},
                        {"field": "share", "title": "share of the class", "format": ".1%"},
                    ],
                },
            },
            heading,
        ],
    )


def two_parabolas(rounds: int = 12) -> dict[str, Any]:
    """FedAvg of two clients, F_k(w) = a_k (w - c_k)^2 / 2 with c = (-1, 1) and a_2 = 0.5, under
    sliders for the local steps, the learning rate and a_1: its rounds, where they lead, and the
    optimum."""
    x = {"field": "w", **NUMBER, "title": "w", "scale": {"domain": [-1.7, 1.7], "nice": False}}
    y = {"field": "loss", **NUMBER, "title": "loss", "scale": {"domain": [0, 4.2], "nice": False}}
    mean = "(a * pow({0} + 1, 2) + 0.5 * pow({0} - 1, 2)) / 4"
    curves = ["client 1", "client 2", "their mean F"]
    losses = "[a * pow(datum.w + 1, 2) / 2, 0.25 * pow(datum.w - 1, 2), datum.mean]"
    kinds = [*curves, "optimum", "FedAvg\u2019s rounds", "its end"]
    ends = [{"kind": kinds[3], "at": "best"}, {"kind": kinds[5], "at": "end"}]
    says = (
        "['optimum ' + format(best, '+.2f'), 'FedAvg ends at ' + format(end, '+.2f'), "
        "'a round leaves ' + format(remains, '.0%')]"
    )
    legend = {"orient": "top", "title": None, "labelFontSize": 12, "columns": 3}
    legend |= {"symbolSize": 90, "symbolOpacity": 1}
    colours = [GREY, "#CC79A7", BLUE, GREEN, ORANGE, ORANGE]
    forms = ["stroke", "stroke", "stroke", "diamond", "circle", "cross"]
    dashes = [[2, 3], [7, 3], *[[1, 0]] * 4]

    def by(range: list[Any]) -> dict[str, Any]:
        scale = {"domain": kinds, "range": range}
        return {"field": "kind", "type": "nominal", "scale": scale, "legend": legend}

    colour, shape, dash = by(colours), by(forms), by(dashes)
    heading = _heading(says) | {"data": {"values": [{}]}}
    heading["encoding"] = {"x": {"value": 6}, "y": {"value": 8}}
    heading["mark"] |= {"baseline": "top", "lineHeight": 18}
    return frame(
        270,
        grid=False,
        params=[
            slider("steps", "local steps E", 5, 1, 30, 1),
            slider("rate", "learning rate \u03b7", 0.2, 0.01, 0.25, 0.01),
            slider("a", "curvature a\u2081", 4, 0.5, 4, 0.1),
            {"name": "r1", "expr": "pow(1 - rate * a, steps)"},
            {"name": "r2", "expr": "pow(1 - rate * 0.5, steps)"},
            {"name": "best", "expr": "(0.5 - a) / (0.5 + a)"},
            {"name": "end", "expr": "(r1 - r2) / (2 - r1 - r2)"},
            {"name": "remains", "expr": "(r1 + r2) / 2"},
        ],
        layer=[
            {
                "data": {"sequence": {"start": -1.7, "stop": 1.71, "step": 0.05, "as": "w"}},
                "transform": [
                    {"calculate": mean.format("datum.w"), "as": "mean"},
                    {"calculate": losses, "as": "loss"},
                    {"calculate": str(curves), "as": "kind"},
                    {"flatten": ["loss", "kind"]},
                ],
                "mark": {"type": "line", "strokeWidth": 2, "clip": True},
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
            },
            {
                "data": {"sequence": {"start": 0, "stop": rounds + 1, "as": "t"}},
                "transform": [
                    {"calculate": "end + pow(remains, datum.t) * (1 - end)", "as": "w"},
                    {"calculate": mean.format("datum.w"), "as": "loss"},
                    {"calculate": f"'{kinds[4]}'", "as": "kind"},
                ],
                "mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.75},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    "shape": shape,
                    "tooltip": [{"field": "t", "title": "round"}, {"field": "w", "format": "+.3f"}],
                },
            },
            {
                "data": {"values": ends},
                "transform": [
                    {"calculate": "datum.at == 'best' ? best : end", "as": "w"},
                    {"calculate": mean.format("datum.w"), "as": "loss"},
                ],
                "mark": {"type": "point", "filled": True, "size": 190, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour, "shape": shape},
            },
            heading,
        ],
    )

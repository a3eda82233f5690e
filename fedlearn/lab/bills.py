"""Two explorers of what a round costs, computed in the page: on Flower, from the sizes of real
messages, and beside a bare PyTorch loop, from what ``tests/benchmarks/speed.py`` measured."""

from collections.abc import Sequence
from typing import Any

from .plot import COLOURS
from .vega import GREY, NUMBER, choice, frame, slider, tick

MEGABYTES, SHARE, SECONDS = "MB of a round", "% added by Flower", "seconds of a round"
GROWTH = "digits CNN, one batch each"


def carried(
    rows: Sequence[dict[str, Any]],
    rest: float,
    hidden: str | None = None,
    guess: float | None = None,
    start: tuple[str, str, int, float] = ("", SHARE, 10, 1.0),
) -> dict[str, Any]:
    """One round on Flower: megabytes, the share that Flower adds, or seconds, for each method.

    ``rows`` have ``network``, ``method``, ``message`` (bytes of a client's two messages) and
    ``added`` (what Flower adds to them). A round lasts ``rest`` seconds and as long as the slower
    of two links is busy: the client's, with its own messages, and the server's, with all of them.
    Links are powers of ten; ``saysLink`` and ``saysServer`` say them in words. ``hidden`` is a
    method that is not shown before its share was guessed, in percent. ``start``:
    network, view, clients, and the client's link as a power of ten in Mbit/s.
    """
    networks = list(dict.fromkeys(row["network"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    network, view, clients, link = start
    params = [
        choice("view", "show", [MEGABYTES, SHARE, SECONDS], view),
        slider("clients", "clients", clients, 2, 200, 2),
        slider("link", "a client's link", link, -1, 3, 0.1),
        slider("server", "the server's link", 3.0, 0, 4, 0.1),
    ]
    if len(networks) > 1:
        params.insert(0, choice("network", "network", networks, network or None))
    if hidden is not None:
        asked = f"your guess for {hidden}, % "
        params.insert(0, slider("guess", asked, 10 if guess is None else guess, 0, 100, 1))
        bind = {"input": "checkbox", "name": f"show {hidden} "}
        params.insert(1, {"name": "reveal", "value": guess is not None, "bind": bind})
    whole, mega = "(datum.message + datum.added)", f"view == '{MEGABYTES}'"
    busy = f"8e-6 * {whole} * max(pow(10, -link), clients * pow(10, -server))"
    parts = (
        f"{mega} ? clients * (datum.part ? datum.added : datum.message) / 1e6 : "
        f"view == '{SHARE}' ? (datum.part ? 100 * datum.added / {whole} : 0) : "
        f"datum.part ? {rest:.6g} : {busy}"
    )
    speed = "format(pow(10, {0}) * ({0} < 0 ? 1000 : 1), '.2r') + ({0} < 0 ? ' kbit/s' : ' Mbit/s')"
    params += [
        {"name": "saysLink", "expr": speed.format("link")},
        {"name": "saysServer", "expr": speed.format("server")},
    ]
    lines = (
        f"{mega} ? [clients + ' clients, both ways', 'blue: messages, orange: what Flower adds'] : "
        f"view == '{SHARE}' ? ['for any number of clients', "
        "'orange: added by Flower, % of all bytes'] : "
        f"[clients + ' clients at ' + {speed.format('link')} + ', server ' + "
        f"{speed.format('server')}, 'blue: a link is busy, orange: the rest of a round']"
    )
    says = (
        f"{mega} ? format(datum.total, '.3~r') + ' MB' : view == '{SHARE}' ? "
        "format(datum.total, '.1f') + ' %' : format(datum.total, '.3~r') + ' s, ' + "
        "format(datum.first / datum.total, '.0%') + ' link'"
    )
    y = {"field": "method", "type": "nominal", "sort": methods, "title": None}
    axis = {"title": None, "grid": True, "tickCount": 5}
    x = {"field": "value", **NUMBER, "stack": "zero", "axis": axis, "scale": {"domainMin": 0}}
    end = {"field": "total", **NUMBER}
    keep = [f"datum.method != '{hidden}' || reveal"] if hidden is not None else []
    keep += ["datum.network == network"] if len(networks) > 1 else []
    last = {"filter": "datum.part == 1"}
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {
                "x": x,
                "y": y,
                "order": {"field": "part"},
                "color": {
                    "field": "part",
                    "type": "nominal",
                    "scale": {"domain": [0, 1], "range": [COLOURS[0], COLOURS[5]]},
                    "legend": None,
                },
            },
        },
        {
            "transform": [last],
            "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 12, "color": GREY},
            "encoding": {"x": end, "y": y, "text": {"field": "says"}},
        },
        {  # room for the words at the longest bar
            "transform": [last, {"calculate": "1.6 * datum.total", "as": "wide"}],
            "mark": {"type": "point", "opacity": 0},
            "encoding": {"x": {"field": "wide", **NUMBER}, "y": y},
        },
    ]
    if hidden is not None:
        seen = f"view == '{SHARE}'"
        here = [
            {"aggregate": [{"op": "count", "as": "n"}]},
            {"calculate": f"{seen} ? guess : 0", "as": "asked"},
            {"calculate": f"{seen} ? 'your guess: ' + guess + ' %' : ''", "as": "says"},
        ]
        at = {"x": {"field": "asked", **NUMBER}}
        dashed = {
            "type": "rule",
            "strokeDash": [2, 3],
            "strokeWidth": 1.5,
            "color": GREY,
            "aria": False,
        }
        words = {"type": "text", "align": "left", "dx": 4, "fontSize": 12, "color": GREY}
        layers += [
            {
                "transform": here,
                "mark": {**dashed, "opacity": {"expr": f"{seen} ? 1 : 0"}},
                "encoding": at,
            },
            {
                "transform": here,
                "mark": {**words, "baseline": "bottom"},
                "encoding": {**at, "y": {"value": 0}, "text": {"field": "says"}},
            },
        ]
    return frame(
        40 * len(methods),
        params,
        title={"text": {"expr": lines}, "anchor": "start", "fontSize": 13, "color": GREY},
        data={"values": [row | {"part": part} for row in rows for part in (0, 1)]},
        transform=[
            *({"filter": its} for its in keep),
            {"calculate": parts, "as": "value"},
            {"calculate": "datum.part ? 0 : datum.value", "as": "blue"},
            {
                "joinaggregate": [
                    {"op": "sum", "field": "value", "as": "total"},
                    {"op": "sum", "field": "blue", "as": "first"},
                ],
                "groupby": ["method"],
            },
            {"calculate": says, "as": "says"},
        ],
        layer=layers,
    )


def ratio_rows(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of a round over the bare loop's, a row each network, number of clients and form, from
    the table and the growth of a file of ``speed.py``."""
    found = [(GROWTH, its) for its in measured.get("growth", {}).get("clients", [])]
    found += [(its["network"], its) for its in measured.get("table", {}).get("rows", [])]
    return [
        {
            "network": network,
            "clients": its["clients"],
            "form": form,
            "ratio": round(seconds / its["seconds"]["bare loop"], 4),
            "seconds": round(seconds, 5),
        }
        for network, its in found
        for form, seconds in its["seconds"].items()
        if isinstance(seconds, float) and form != "bare loop"
    ]


def ratios(measured: dict[str, Any], guess: float | None = None) -> dict[str, Any]:
    """Ratios to the bare loop against the number of clients, under a slider that reads them and a
    list of networks; a network that was not measured says so. Stacked training is shown when the
    reader asks, or has guessed its ratio."""
    rows = ratio_rows(measured)
    networks = [GROWTH, *dict.fromkeys(its["network"] for its in measured["table"]["rows"])]
    there = {row["network"] for row in rows}
    empty = [name for name in networks if name not in there]
    forms = list(dict.fromkeys(row["form"] for row in rows))
    near = [
        {"calculate": "abs(log(datum.clients) / LN10 - at)", "as": "off"},
        {"joinaggregate": [{"op": "min", "field": "off", "as": "least"}]},
        {"filter": "datum.off == datum.least"},
    ]
    x = {
        "field": "clients",
        **NUMBER,
        "scale": {"type": "log", "domain": [0.8, 1250], "nice": False},
        "axis": {"title": "clients", "values": [1, 10, 100, 1000], "grid": True},
    }
    y = {
        "field": "ratio",
        **NUMBER,
        "scale": {"type": "log", "domain": [0.2, 8], "clamp": True, "nice": False},
        "axis": {"title": "seconds, bare loop = 1", "values": [0.25, 0.5, 1, 2, 4, 8]},
    }
    legend = {
        "orient": "top",
        "title": None,
        "columns": {"expr": "width < 420 ? 2 : 3"},
        "symbolSize": 90,
        "symbolStrokeWidth": 0,
        "symbolOpacity": 1,
    }
    shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
    dashes = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [4, 4], [1, 3]]

    def by(its: list[Any], shown: bool = True) -> dict[str, Any]:
        scale = {"domain": forms, "range": its[: len(forms)]}
        return {"field": "form", "scale": scale, "legend": legend if shown else None}

    colour, shape = by(COLOURS), by(shapes)
    tooltip = [
        {"field": "form"},
        {"field": "clients"},
        {"field": "ratio", "title": "bare loop = 1", "format": ".2f"},
        {"field": "seconds", "title": "seconds a round", "format": ".3~g"},
    ]
    words = {"type": "text", "align": "left", "fontSize": 13, "fontWeight": "bold", "color": GREY}
    top = {"x": {"value": 8}, "y": {"value": 14}}
    read = (
        "datum.clients + (datum.clients > 1 ? ' clients' : ' client') + ': sequential ' + "
        "format(datum.sequential, '.2f') + "
        "(reveal ? ', stacked ' + format(datum.stacked, '.2f') : '')"
    )
    nothing = f"indexof({empty}, network) < 0 ? '' : 'not measured yet: the table has the command'"
    return frame(
        300,
        [
            slider("guess", "your guess for ten clients, loop = 1", guess or 0.8, 0.1, 2, 0.05),
            tick("reveal", "show stacked training", guess is not None),
            choice("network", "network", networks, GROWTH, "select"),
            slider("at", "clients", 1.0, 0, 3, 0.1),
            {"name": "saysAt", "expr": "format(pow(10, at), '.0f')"},
        ],
        data={"values": rows},
        transform=[
            {"filter": "datum.network == network"},
            {"filter": "reveal || indexof(['stacked', 'auto'], datum.form) < 0"},
        ],
        layer=[
            {
                "data": {"values": [{}]},
                "transform": [
                    {"calculate": "guess", "as": "ratio"},
                    {"calculate": "'your guess: ' + format(guess, '.2f')", "as": "says"},
                    {"calculate": "1200", "as": "clients"},
                ],
                "layer": [
                    {
                        "mark": {
                            "type": "rule",
                            "color": GREY,
                            "strokeDash": [6, 2],
                            "aria": False,
                        },
                        "encoding": {"y": y},
                    },
                    {
                        "mark": {**words, "align": "right", "fontWeight": "normal", "dy": -7},
                        "encoding": {"x": x, "y": y, "text": {"field": "says"}},
                    },
                ],
            },
            {
                "data": {"values": [{"ratio": 1}]},
                "mark": {"type": "rule", "color": GREY, "strokeDash": [2, 3], "aria": False},
                "encoding": {"y": y},
            },
            {
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": by(dashes, False)},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip},
            },
            {
                "transform": near,
                "mark": {"type": "point", "filled": False, "size": 220, "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {
                "transform": [
                    *near,
                    {"pivot": "form", "value": "ratio", "groupby": ["clients"]},
                    {"calculate": read, "as": "says"},
                ],
                "mark": words,
                "encoding": {**top, "text": {"field": "says"}},
            },
            {
                "data": {"values": [{}]},
                "mark": {**words, "text": {"expr": nothing}},
                "encoding": top,
            },
        ],
    )

"""Explorers of what a round costs, computed in the page: on Flower, in bytes and in seconds, from
the sizes of real messages, and beside a bare PyTorch loop, from what ``tests/benchmarks/speed.py``
measured."""

from collections.abc import Sequence
from typing import Any

from ..plot import COLOURS
from .vega import GREY, NUMBER, choice, frame, slider, tick

GROWTH = "digits CNN, one batch each"


def bars(
    names: Sequence[str], parts: Sequence[int], colours: Sequence[str]
) -> list[dict[str, Any]]:
    """Layers: a bar a name, of parts in this order, and the words of the field ``says`` behind it.

    Rows have ``method``, ``part``, ``value`` and the bar's ``total``.
    """
    y = {"field": "method", "type": "nominal", "sort": list(names), "title": None}
    axis = {"title": None, "grid": True, "tickCount": 5}
    x = {"field": "value", **NUMBER, "stack": "zero", "axis": axis, "scale": {"domainMin": 0}}
    scale = {"domain": list(parts), "range": list(colours)}
    colour = {"field": "part", "type": "nominal", "scale": scale, "legend": None}
    last = {"filter": f"datum.part == {parts[-1]}"}
    return [
        {
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {"x": x, "y": y, "order": {"field": "part"}, "color": colour},
        },
        {
            "transform": [last],
            "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 12, "color": GREY},
            "encoding": {"x": {"field": "total", **NUMBER}, "y": y, "text": {"field": "says"}},
        },
        {  # room for the words at the longest bar
            "transform": [
                last,
                {"calculate": "(width < 420 ? 2.5 : 1.6) * datum.total", "as": "wide"},
            ],
            "mark": {"type": "point", "opacity": 0},
            "encoding": {"x": {"field": "wide", **NUMBER}, "y": y},
        },
    ]


def framed(
    rows: Sequence[dict[str, Any]], typical: float, hidden: str, guess: float | None = None
) -> dict[str, Any]:
    """What share of a message's bytes Flower adds, for each method and for a length of one's own.

    ``rows`` have ``method``, ``message`` (bytes of a client's two messages) and ``added`` (what
    Flower adds to them); ``typical`` is what it adds to messages of any length. ``hidden`` is a
    method that is not shown before its share was guessed, in percent. The length is a power of
    ten; ``saysLength`` says it in words.
    """
    own = "your own"
    methods = [*(row["method"] for row in rows), own]
    asked = f"your guess for {hidden}, % "
    size = "format(pow(10, bytes), '.2s') + 'B'"
    params = [
        slider("guess", asked, 10 if guess is None else guess, 0, 100, 1),
        tick("reveal", f"show {hidden}", guess is not None),
        slider("bytes", "a length of your own", 4.0, 2, 7, 0.05),
        {"name": "saysLength", "expr": size},
    ]
    values = [{**row, "part": 1} for row in rows]
    values += [{"method": own, "message": 0, "added": typical, "part": 1}]
    message = f"(datum.method == '{own}' ? pow(10, bytes) : datum.message)"
    share = f"100 * datum.added / ({message} + datum.added)"
    here = [
        {"aggregate": [{"op": "count", "as": "n"}]},
        {"calculate": "guess", "as": "asked"},
        {"calculate": "'your guess: ' + guess + ' %'", "as": "says"},
    ]
    at = {"x": {"field": "asked", **NUMBER}}
    dashed = {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.5, "color": GREY}
    words = {"type": "text", "align": "left", "dx": 4, "fontSize": 12, "color": GREY}
    return frame(
        30 * len(methods),
        params,
        title={
            "text": "added by Flower, % of all bytes of a message",
            "anchor": "start",
            "fontSize": 13,
            "color": GREY,
        },
        data={"values": values},
        transform=[
            {"filter": f"datum.method != '{hidden}' || reveal"},
            {"calculate": share, "as": "value"},
            {"calculate": "datum.value", "as": "total"},
            {
                "calculate": f"format(datum.value, '.1f') + ' % of ' + "
                f"format({message} + datum.added, '.3s') + 'B'",
                "as": "says",
            },
        ],
        layer=[
            *bars(methods, [1], [COLOURS[5]]),
            {"transform": here, "mark": {**dashed, "aria": False}, "encoding": at},
            {
                "transform": here,
                "mark": {**words, "baseline": "bottom"},
                "encoding": {**at, "y": {"value": 0}, "text": {"field": "says"}},
            },
        ],
    )


def carried(
    rows: Sequence[dict[str, Any]],
    rest: float,
    network: str,
    clients: int = 10,
    link: float = 0.0,
    server: float = 2.0,
) -> dict[str, Any]:
    """Seconds of one round on Flower, for each method and a choice of networks.

    ``rows`` have ``network``, ``method``, ``message`` (bytes of a client's two messages) and
    ``added`` (what Flower adds to them). A round lasts ``rest`` seconds and as long as the slower
    of two links is busy: the client's, with its own messages, and the server's, with all of them.
    A spot on the bar says how long each is. Both are powers of ten in Mbit/s; ``saysLink`` and
    ``saysServer`` say them in words.
    """
    networks = list(dict.fromkeys(row["network"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    params = [
        choice("network", "network", networks, network),
        slider("clients", "clients", clients, 2, 200, 2),
        slider("link", "a client's link", link, -1, 3, 0.1),
        slider("server", "the server's link", server, 0, 4, 0.1),
    ]
    mega = "8e-6 * (datum.message + datum.added)"  # Mbit of a client
    own, all_of_them = f"{mega} * pow(10, -link)", f"{mega} * clients * pow(10, -server)"
    speed = "format(pow(10, {0}) * ({0} < 0 ? 1000 : 1), '.2r') + ({0} < 0 ? ' kbit/s' : ' Mbit/s')"
    params += [
        {"name": "saysLink", "expr": speed.format("link")},
        {"name": "saysServer", "expr": speed.format("server")},
    ]
    lines = [
        "seconds of a round",
        "blue: a link is busy, orange: the rest",
        "circle: a client's link is done, square: the server's",
    ]
    says = (
        "format(datum.total, '.3~r') + ' s, ' + format(datum.busy / datum.total, '.0%') + "
        "' link, ' + format(clients * (datum.message + datum.added) / 1e6, '.3~r') + ' MB'"
    )
    y = {"field": "method", "type": "nominal", "sort": methods, "title": None}

    def spots(field: str, shape: str, size: int) -> dict[str, Any]:
        """Where a link is done."""
        mark = {"type": "point", "shape": shape, "size": size, "filled": True, "opacity": 1}
        return {
            "transform": [{"filter": "datum.part == 1"}],
            "mark": {**mark, "fill": "white", "stroke": "#1b1f24", "strokeWidth": 1.2},
            "encoding": {"x": {"field": field, **NUMBER}, "y": y},
        }

    return frame(
        40 * len(methods),
        params,
        title={"text": lines, "anchor": "start", "fontSize": 13, "color": GREY},
        data={"values": [row | {"part": part} for row in rows for part in (0, 1)]},
        transform=[
            {"filter": "datum.network == network"},
            {"calculate": own, "as": "own"},
            {"calculate": all_of_them, "as": "all"},
            {"calculate": "max(datum.own, datum.all)", "as": "busy"},
            {"calculate": f"datum.part ? {rest:.6g} : datum.busy", "as": "value"},
            {"calculate": f"datum.busy + {rest:.6g}", "as": "total"},
            {"calculate": says, "as": "says"},
        ],
        layer=[
            *bars(methods, [0, 1], [COLOURS[0], COLOURS[5]]),
            spots("own", "circle", 70),
            spots("all", "square", 70),
        ],
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

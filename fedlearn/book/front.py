"""The first page: every method's accuracy against bytes, which become minutes on a link that the
reader sets, and a card with a small drawing for each method.

``data/chapters/index.yaml`` states which stored runs are shown. The time is ``fedlearn.link.time``,
written once more as a Vega expression (``SECONDS``).
"""

import html
import json
import math
from typing import Any

import numpy as np

from .. import link, results
from ..history import History
from ..plot import COLOURS
from .drawings import DOWN, FEDAVG, PLATE, UP, Canvas, kilobytes, width
from .grids import chapter_file
from .show import Chart, Shown, chart
from .vega import GREY, LASTS, SPEED, choice, frame, slider

# fedlearn.link.time; up and down are powers of ten of Mbit/s, latency is in ms, and the table of
# STRETCH has what link.stretch says for the number of clients and the slider's position
SECONDS = (
    "datum.round * latency / 1000 + datum.stretch * slower * datum.sec"
    " + 8 * datum.down / pow(10, down + 6) + 8 * datum.up / pow(10, up + 6)"
)
STRAGGLERS = [round(0.1 * k, 1) for k in range(21)]  # positions of the slider
STRETCH = "({table})[datum.clients][round(10 * stragglers)]"
TIME, BYTES, OWN = "time on this link", "bytes of one client", "own"


def runs_of(its: dict[str, Any]) -> dict[str, list[History]]:
    """The stored runs of a comparison by their line, FedAvg's first; a run for each seed."""
    names = its.get("lines")
    found: dict[str, list[History]] = {}
    for h in results.load(its["results"]):
        label = h.meta.get("label") or h.method
        if h.meta["task"]["partition"] == its["partition"] and (names is None or label in names):
            found.setdefault(names[label] if names else label, []).append(h)
    if "FedAvg" not in found:
        raise ValueError(f"There is no stored run of FedAvg for {its['name']!r}.")
    return {"FedAvg": found.pop("FedAvg"), **found}


def rows(its: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a line and round: accuracy, and what one client has sent, heard and computed so far;
    means of the seeds. Every round of a line has the same number of clients."""
    made = []
    for line, histories in runs_of(its).items():
        sums = [
            {k: np.cumsum(v) for k, v in link.shares(h).items()} for h in histories
        ]  # of bytes and seconds so far
        for t, row in enumerate(histories[0].rows):
            if row["accuracy"] is None:
                continue
            mean = {k: float(np.mean([s[k][t] for s in sums])) for k in sums[0]}
            made.append(
                {
                    "runs": its["name"],
                    "line": line,
                    "round": row["round"],
                    "accuracy": round(float(np.mean([h.accuracy[t] for h in histories])), 4),
                    "up": round(mean["up"]),
                    "down": round(mean["down"]),
                    "sec": round(mean["computing"], 4),
                    "clients": len(row["clients"]),
                }
            )
    return made


def minutes(number: str, caption: str, alt: str) -> Chart:
    """The chart: sliders for the link, named links, and the time to an accuracy written into it."""
    spec = chapter_file("index")["minutes"]
    values = [row for its in spec["comparisons"] for row in rows(its)]
    start, target = spec["start"], spec["target"]
    stretched = {
        n: [round(link.stretch(n, s), 4) for s in STRAGGLERS]
        for n in sorted({row["clients"] for row in values})
    }
    least = json.dumps({row["runs"]: row["clients"] for row in reversed(values)})  # FedAvg's
    named = {k: link.check(p.up, p.down, p.latency) for k, p in link.PRESETS.items()}
    powers = {name: (math.log10(u) - 6, math.log10(d) - 6, 1000 * s)
              for name, (u, d, s) in named.items()}  # fmt: skip

    def linked(k: int, name: str, label: str, low: float, high: float, step: float) -> dict:
        """A slider that goes where the chosen link is."""
        table = json.dumps({preset: round(its[k], 4) for preset, its in powers.items()})
        at = f"{table}[link]"
        update = f"isValid({at}) ? {at} : {name}"
        made = slider(name, label, round(powers[start["link"]][k], 4), low, high, step)
        return made | {"on": [{"events": [{"signal": "link"}], "update": update}]}

    size = "(format({0}, '.3~s') + 'B')"
    said = f"against == '{BYTES}' ? {size} : {LASTS}"
    names = [its["name"] for its in spec["comparisons"]]
    params = [
        choice("runs", "runs", names, start["comparison"], "select"),
        choice("against", "against", [TIME, BYTES], TIME),
        choice("link", "link", [*powers, OWN], start["link"]),
        linked(0, "up", "uplink", -2.5, 3, 0.05),
        linked(1, "down", "downlink", -2.5, 3, 0.05),
        linked(2, "latency", "round trip", 0, 2000, 10),
        slider("slower", "device slower", 1, 0, 50, 1),
        slider("stragglers", "stragglers", 0, 0, STRAGGLERS[-1], 0.1),
        {"name": "saysUp", "expr": SPEED.format("up")},
        {"name": "saysDown", "expr": SPEED.format("down")},
        {"name": "saysLatency", "expr": "format(latency, '.0f') + ' ms'"},
        {"name": "saysSlower", "expr": "format(slower, '.0f') + ' times'"},
        {
            "name": "saysStragglers",
            "expr": "format(stragglers, '.1f') + ', slowest ' + format("
            + STRETCH.format(table=json.dumps(stretched)).replace("datum.clients", f"{least}[runs]")
            + ", '.2~r') + ' times'",
        },
    ]
    picked = {"name": "picked", "select": {"type": "point", "fields": ["line"]}, "bind": "legend"}
    decades = ["0.1", "1", "10", "60", "600", "3600", "36000", "86400", "864000", "8640000"]
    powers_of_ten = ", ".join(f"1e{k}" for k in range(3, 10))
    x = {
        "field": "x",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False},
        "axis": {
            "title": None,
            "values": {
                "expr": f"against == '{BYTES}' ? [{powers_of_ten}] : [{', '.join(decades)}]"
            },
            "labelExpr": "against == '" + BYTES + "' ? format(datum.value, '.0s') + 'B' : "
            "datum.value >= 86400 ? datum.value / 86400 + ' d' : datum.value >= 3600 ? "
            "datum.value / 3600 + ' h' : datum.value >= 60 ? datum.value / 60 + ' min' : "
            "datum.value + ' s'",
        },
    }
    ends = {"domain": [0, 1]}
    y = {"field": "accuracy", "type": "quantitative", "title": "test accuracy", "scale": ends}

    shown = {n: list(dict.fromkeys(r["line"] for r in values if r["runs"] == n)) for n in names}
    place = {line: k for its in shown.values() for k, line in enumerate(its)}
    legend = {
        "orient": "top",
        "title": None,
        "symbolSize": 80,
        "columns": {"expr": "width < 420 ? 2 : width < 600 ? 4 : 6"},
        "symbolStrokeWidth": 0,
        "symbolOpacity": 1,
        "labelFontSize": 12,
        "values": {"expr": f"{json.dumps(shown)}[runs]"},  # the lines of these runs alone
    }
    colours = [c if c != "#000000" else GREY for c in COLOURS]
    shapes = "circle square triangle-up diamond triangle-down cross triangle-right".split()

    def by(choices: list[Any], legend: dict[str, Any] | None) -> dict[str, Any]:
        """The same choice for a line wherever it is, another for each line of the same runs."""
        scale = {"domain": [*place], "range": [choices[k % len(choices)] for k in place.values()]}
        return {"field": "line", "scale": scale, "legend": legend}

    fedavg = "datum.line == 'FedAvg'"
    lines = {
        "params": [picked],
        "mark": {"type": "line", "point": {"size": 26}},
        "encoding": {
            "x": x,
            "y": y,
            "color": by(colours, legend),
            "shape": by(shapes, legend),
            "strokeDash": by([[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]], None),
            "strokeWidth": {"condition": {"test": fedavg, "value": 5}, "value": 1.7},
            "opacity": {"condition": {"param": "picked", "value": 1}, "value": 0.12},
            "order": {"field": "round"},
            "tooltip": [
                {"field": "line", "title": "method"},
                {"field": "round", "title": "round"},
                {"field": "accuracy", "title": "accuracy, mean of the seeds"},
                {"field": "lasts", "title": TIME},
                {"field": "bytes", "title": BYTES},
            ],
        },
    }
    reached = [
        {"filter": f"datum.accuracy >= {target}"},
        {"aggregate": [{"op": "min", "field": "x", "as": "x"}], "groupby": ["line"]},
        {"window": [{"op": "row_number", "as": "place"}], "sort": [{"field": "x"}]},
        {"filter": f"datum.place == 1 || {fedavg}"},
        {"calculate": f"datum.line + ': ' + ({said.format('datum.x')})", "as": "words"},
    ]
    rule = {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "strokeDash": [2, 3], "color": GREY, "aria": False},
        "encoding": {"y": {"datum": target}},
    }
    here = {"x": x, "y": {"datum": target}}
    spot = {"mark": {"type": "point", "size": 130, "strokeWidth": 2.5, "color": GREY},
            "transform": reached, "encoding": here}  # fmt: skip

    def label(whose: str, before: str, x: Any, **where: Any) -> dict[str, Any]:
        """Words beside the dotted line, at an end of it, where they are never cut off."""
        return {
            "transform": [
                *reached,
                {"filter": whose},
                {"calculate": f"'{before}' + datum.words", "as": "words"},
            ],
            "mark": {"type": "text", "fontSize": 13, "fontWeight": "bold", **where},
            "encoding": {"x": {"value": x}, "y": {"datum": target}, "text": {"field": "words"}},
        }

    picture = frame(
        170,
        params,
        data={"values": values},
        transform=[
            {"filter": "datum.runs == runs"},
            {"calculate": STRETCH.format(table=json.dumps(stretched)), "as": "stretch"},
            {"calculate": SECONDS, "as": "time"},
            {"calculate": "datum.up + datum.down", "as": "total"},
            {"calculate": f"against == '{BYTES}' ? datum.total : datum.time", "as": "x"},
            {"calculate": LASTS.format("datum.time"), "as": "lasts"},
            {"calculate": size.format("datum.total"), "as": "bytes"},
        ],
        layer=[
            rule,
            lines,
            spot,
            label("datum.place == 1", f"first at {target}: ", 0, align="left", dx=6, dy=-9),
            label(fedavg, "", "width", align="right", dx=-6, dy=22),
        ],
    )
    says = {k: f"says{k.title()}" for k in ("up", "down", "latency", "slower", "stragglers")}
    moved = {k: {"link": OWN} for k in ("up", "down", "latency")}
    return chart(number, picture, caption, alt, says=says, moved=moved)


def messages(its: dict[str, Any]) -> tuple[float, float, float]:
    """Bytes of one client in a round of a card's run: down, up, and a dense message."""
    runs = {(h.meta.get("label") or h.method): h for h in results.load(its["results"])[::-1]
            if h.meta["task"]["partition"] == its["partition"]}  # fmt: skip
    row, plain = (runs[its[k]].rows[1] for k in ("line", "dense"))
    down, up = (row[f"bytes_{way}"] / len(row["clients"]) for way in ("down", "up"))
    return down, up, plain["bytes_up"] / len(plain["clients"])


def small(name: str, title: str, sizes: tuple[float, float, float], widest: float) -> str:
    """A card's drawing: the round as in ``drawings``, plates without words. ``sizes`` are those of
    its ``messages``; an arrow of ``widest`` bytes is as wide as an arrow may be."""
    new = set(chapter_file(name)["drawing"]["replaces"])
    down, up, dense = sizes
    c = Canvas(284, 190, "small")

    def plate(x: float, y: float, part: str) -> None:
        style = {"fill": PLATE, "stroke": "#1b1f24"} if part in new else {"stroke_dasharray": "4 3"}
        c.box(x, y, 80, 22, stroke_width=1, **style)
        ink = {"fill": "#1b1f24", "font_weight": 700} if part in new else {}
        c.text(x + 8, y + 15, part, 12, **ink)

    c.box(3, 48, 92, 92)
    c.text(12, 69, "Server", 13, font_weight=700)
    plate(9, 106, "server")
    c.box(189, 14, 92, 162)
    c.text(198, 35, "Clients", 13, font_weight=700)
    for k, part in enumerate(("model", "objective", "optimizer")):
        plate(195, 56 + 38 * k, part)
    for way, count, colour, ends, y, below in (
        ("down", down, DOWN, ((100, 68), (184, 68)), 19, 13),
        ("up", up, UP, ((184, 120), (100, 120)), 148, 185),
    ):
        c.arrow(*ends, 0.8 * width(count, widest), colour, 0.8 * width(dense, widest))
        plate(102, y, f"{way}link")
        c.text(142, below, kilobytes(count), 12, text_anchor="middle", font_weight=700)
    what = ", ".join(p for p in FEDAVG if p in new) or "nothing"
    alt = (
        f"{title} replaces {what} of the round. {kilobytes(down)} down, {kilobytes(up)} up "
        f"for one client; a dense message has {kilobytes(dense)}."
    )
    return f'<div role="img" aria-label="{html.escape(alt)}">{c.svg()}</div>'


def cards(start: str = "") -> Shown:
    """FedAvg and the five papers side by side, each with its drawing, a sentence and a link. The
    arrows of all drawings have one scale.

    ``start`` is the path from the page to the book's folder.
    """
    made, words = [], []
    stated = chapter_file("index")["cards"]
    sizes = {name: messages(its) for name, its in stated.items()}
    widest = max(map(max, sizes.values()))
    for name, its in stated.items():
        drawing = small(name, its["title"], sizes[name], widest)
        made.append(
            f'<div class="fl-card"><h3><a href="{start}{its["page"]}.html">'
            f"{html.escape(its['title'])}</a></h3>{drawing}<p>{html.escape(its['says'])}</p></div>"
        )
        words.append(f"{its['title']}: {its['says']}")
    return Shown(f'<div class="fl fl-cards">{"".join(made)}</div>', "\n".join(words))

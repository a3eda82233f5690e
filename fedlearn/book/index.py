"""The first page and the map of the methods: cards, accuracy against time, and the
poster.

``data/index/chapter.yaml`` states which stored runs are shown. The time of a round is
``fedlearn.link.time``, written once more as a Vega expression (``SECONDS``). In a card
the server is on the left and the clients are on the right. Parts that a method replaces
are filled plates. An arrow is as wide as the bytes of a stored run; the pale arrow
behind it is a dense message.
"""

import base64
import html
import io
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import link, methods, tasks
from ..core import run
from ..history import History
from ..lab import results
from ..plot import COLOURS, compare
from .grids import chapter_file
from .show import Chart, Shown, chart, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# ---- cards ---------------------------------------------------------------------------

DOWN = "#0072B2"
UP = "#D55E00"
PLATE = "#E69F00"
PARTS = ("server", "downlink", "uplink", "model", "objective", "optimizer")
WIDEST = 22.0  # px: an arrow that carries a dense message


def kilobytes(count: float) -> str:
    return f"{count / 1e6:,.2f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def width(count: float, dense: float) -> float:
    """Of an arrow, in proportion to the bytes and never invisible."""
    return max(1.5, min(2 * WIDEST, WIDEST * count / dense))


def tag(kind: str, words: str = "", **attributes: Any) -> str:
    """An element of a picture."""
    pairs = " ".join(
        f'{name.replace("_", "-")}="{value}"' for name, value in attributes.items()
    )
    return (
        f"<{kind} {pairs}>{html.escape(words)}</{kind}>"
        if words
        else f"<{kind} {pairs}/>"
    )


def text(x: float, y: float, words: str, size: int, **style: Any) -> str:
    place: dict[str, Any] = {"x": x, "y": y, "font_size": size, "fill": "currentColor"}
    return tag("text", words, **place | style)


def box(x: float, y: float, width: float, height: float, **style: Any) -> str:
    place: dict[str, Any] = {"x": x, "y": y, "width": width, "height": height, "rx": 9}
    look = {"fill": "none", "stroke": "currentColor", "stroke_width": 1.4}
    return tag("rect", **place | look | style)


def arrow(start: float, end: float, y: float, wide: float, colour: str) -> str:
    way = 1 if end > start else -1
    neck = end - way * max(9.0, 1.1 * wide)
    half = max(6.0, 0.95 * wide)
    line: dict[str, Any] = {
        "x1": start,
        "y1": y,
        "x2": f"{neck:.1f}",
        "y2": y,
        "stroke": colour,
    }
    points = f"{end},{y} {neck:.1f},{y + half:.1f} {neck:.1f},{y - half:.1f}"
    return tag("line", **line, stroke_width=f"{wide:.1f}") + tag(
        "polygon", fill=colour, points=points
    )


def messages(card: dict[str, Any]) -> tuple[float, float, float]:
    """Bytes of one client in a round of a card's run: down, up, and a dense message."""
    runs = {
        (h.meta.get("label") or h.method): h
        for h in results.load(card["results"])[::-1]
        if h.meta["task"]["partition"] == card["partition"]
    }
    row, plain = (runs[card[k]].rows[1] for k in ("line", "dense"))
    down, up = (row[f"bytes_{way}"] / len(row["clients"]) for way in ("down", "up"))
    return down, up, plain["bytes_up"] / len(plain["clients"])


def small(
    name: str, title: str, sizes: tuple[float, float, float], widest: float
) -> str:
    """A card's drawing. ``sizes`` are those of its ``messages``; an arrow of ``widest``
    bytes is as wide as an arrow may be."""
    new = set(chapter_file(name)["replaces"])
    down, up, dense = sizes
    bold = {"font_weight": 700}

    def plate(x: float, y: float, part: str) -> str:
        style = (
            {"fill": PLATE, "stroke": "#1b1f24"}
            if part in new
            else {"stroke_dasharray": "4 3"}
        )
        ink = {"fill": "#1b1f24"} | bold if part in new else {}
        return box(x, y, 80, 22, **style | {"stroke_width": 1}) + text(
            x + 8, y + 15, part, 12, **ink
        )

    drawn = [
        box(3, 48, 92, 92),
        text(12, 69, "Server", 13, **bold),
        plate(9, 106, "server"),
    ]
    drawn += [box(189, 14, 92, 162), text(198, 35, "Clients", 13, **bold)]
    parts = ("model", "objective", "optimizer")
    drawn += [plate(195, 56 + 38 * k, part) for k, part in enumerate(parts)]
    for way, count, colour, start, end, y, of_plate, below in (
        ("down", down, DOWN, 100, 184, 68, 19, 13),
        ("up", up, UP, 184, 100, 120, 148, 185),
    ):
        whole, part = (
            arrow(start, end, y, 0.8 * width(n, widest), colour) for n in (dense, count)
        )
        drawn += [
            f'<g opacity="0.16">{whole}</g>{part}',
            plate(102, of_plate, f"{way}link"),
        ]
        drawn += [text(142, below, kilobytes(count), 12, text_anchor="middle", **bold)]
    replaced = ", ".join(p for p in PARTS if p in new) or "nothing"
    alt = (
        f"{title} replaces {replaced} of the round. {kilobytes(down)} "
        f"down, {kilobytes(up)} up "
        f"for one client; a dense message has {kilobytes(dense)}."
    )
    picture = (
        '<svg class="fl-small" viewBox="0 0 284 190" aria-hidden="true" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, '
        'Arial, sans-serif">'
    )
    return (
        f'<div role="img" '
        f'aria-label="{html.escape(alt)}">{picture}{"".join(drawn)}</svg></div>'
    )


def cards(start: str = "") -> Shown:
    """FedAvg and the five papers side by side, each with its drawing, a sentence and a
    link. The arrows of all drawings have one scale.

    ``start`` is the path from the page to the book's folder.
    """
    divs = []
    words = []
    stated = chapter_file("index")["cards"]
    sizes = {name: messages(card) for name, card in stated.items()}
    widest = max(map(max, sizes.values()))
    for name, card in stated.items():
        drawing = small(name, card["title"], sizes[name], widest)
        divs.append(
            f'<div class="fl-card"><h3><a href="{start}{card["page"]}.html">'
            f"{html.escape(card['title'])}</a></h3>{drawing}<p>{html.escape(card['says'])}</p></div>"
        )
        words.append(f"{card['title']}: {card['says']}")
    return Shown(f'<div class="fl fl-cards">{"".join(divs)}</div>', "\n".join(words))


# ---- accuracy against time -----------------------------------------------------------

# fedlearn.link.time; up and down are powers of ten of Mbit/s, latency is in ms
SECONDS = (
    "datum.round * latency / 1000 + slower * datum.sec"
    " + 8 * datum.down / pow(10, down + 6) + 8 * datum.up / pow(10, up + 6)"
)
TIME = "time on this link"
BYTES = "bytes of one client"
OWN = "own"


def runs_of(comparison: dict[str, Any]) -> dict[str, list[History]]:
    """The stored runs of a comparison by their line, FedAvg's first; a run for each
    seed."""
    names = comparison.get("lines")
    partition = comparison["partition"]
    runs: dict[str, list[History]] = {}
    for h in results.load(comparison["results"]):
        label = h.meta.get("label") or h.method
        if h.meta["task"]["partition"] == partition and (
            names is None or label in names
        ):
            runs.setdefault(names[label] if names else label, []).append(h)
    if "FedAvg" not in runs:
        raise ValueError(
            f"There is no stored run of FedAvg for {comparison['name']!r}."
        )
    return {"FedAvg": runs.pop("FedAvg"), **runs}


def rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a line and round: accuracy, and what one client has sent, heard and
    computed so far; means of the seeds. Every round of a line has the same number of
    clients."""
    table = []
    for line, histories in runs_of(comparison).items():
        shares = [
            link.shares(h) for h in histories
        ]  # of bytes and seconds; so far, mean of seeds:
        mean = {
            k: np.mean([np.cumsum(share[k]) for share in shares], 0) for k in shares[0]
        }
        for t, row in enumerate(histories[0].rows):
            if row["accuracy"] is not None:
                entry = {
                    "runs": comparison["name"],
                    "line": line,
                    "round": row["round"],
                }
                accuracy = float(np.mean([h.accuracy[t] for h in histories]))
                entry |= {"accuracy": round(accuracy, 4)}
                entry |= {way: round(float(mean[way][t])) for way in ("up", "down")}
                table.append(entry | {"sec": round(float(mean["computing"][t]), 4)})
    return table


def minutes(number: str, caption: str, alt: str) -> Chart:
    """The chart: sliders for uplink and device, named links, and the time to an
    accuracy written into it."""
    from . import vega
    from .vega import (
        DOTTED,
        GREY,
        LASTS,
        LEGEND,
        ONE,
        SPEED,
        choice,
        layered,
        numbered_rows,
        series,
        slider,
    )
    from .vega import alt as altair

    spec = chapter_file("index")["minutes"]
    values = [row for comparison in spec["comparisons"] for row in rows(comparison)]
    start = spec["start"]
    target = spec["target"]
    named = {k: link.check(**stated) for k, stated in link.PRESETS.items()}
    powers = {
        name: (math.log10(u) - 6, math.log10(d) - 6, 1000 * s)
        for name, (u, d, s) in named.items()
    }

    def linked(k: int, name: str) -> dict[str, Any]:
        """A parameter that goes where the chosen link is."""
        places = {preset: round(power[k], 4) for preset, power in powers.items()}
        at = f"{json.dumps(places)}[link]"
        update = f"isValid({at}) ? {at} : {name}"
        moves = [{"events": [{"signal": "link"}], "update": update}]
        return {"name": name, "value": places[start["link"]], "on": moves}

    size = "(format({0}, '.3~s') + 'B')"
    amount = f"against == '{BYTES}' ? {size} : {LASTS}"
    names = [comparison["name"] for comparison in spec["comparisons"]]
    params = [
        choice("runs", "runs", names, start["comparison"], "select"),
        choice("against", "against", [TIME, BYTES], TIME),
        choice("link", "link", [*powers, OWN], start["link"]),
        slider("up", "uplink", 0, -2.5, 3, 0.05) | linked(0, "up"),
        linked(1, "down"),
        linked(2, "latency"),
        slider("slower", "device slower", 1, 0, 50, 1),
        {"name": "saysUp", "expr": SPEED.format("up")},
        {"name": "saysSlower", "expr": "format(slower, '.0f') + ' times'"},
    ]
    decades = "[0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000]"
    powers_of_ten = ", ".join(f"1e{k}" for k in range(3, 10))
    axis = altair.Axis(
        title=None,
        values=altair.ExprRef(f"against == '{BYTES}' ? [{powers_of_ten}] : {decades}"),
        labelExpr="against == '" + BYTES + "' ? format(datum.value, '.0s') + 'B' : "
        "datum.value >= 86400 ? datum.value / 86400 + ' d' : datum.value >= 3600 ? "
        "datum.value / 3600 + ' h' : datum.value >= 60 ? datum.value / 60 + ' min' : "
        "datum.value + ' s'",
    )
    x = altair.X("x:Q", scale=altair.Scale(type="log", nice=False), axis=axis)
    y = altair.Y("accuracy:Q", title="test accuracy", scale=altair.Scale(domain=[0, 1]))
    shown = {
        n: list(dict.fromkeys(r["line"] for r in values if r["runs"] == n))
        for n in names
    }
    place: dict[str, int] = {}
    for line, k in (
        (n, k)
        for group in shown.values()
        for n, k in zip(group, vega.places(group), strict=True)
    ):
        place.setdefault(line, k)
    legend = LEGEND | {
        "symbolSize": 80,
        "columns": {"expr": "width < 420 ? 2 : width < 600 ? 4 : 6"},
        "labelFontSize": 12,
        "values": {
            "expr": f"{json.dumps(shown)}[runs]"
        },  # the lines of these runs alone
    }

    def by(channel: Any, looks: list[Any], legend: Any) -> Any:
        """The same look for a line wherever it is, another for each line of the same
        runs."""
        each = [looks[k % len(looks)] for k in place.values()]
        return series(channel, "line", [*place], each, legend)

    fedavg = "datum.line == 'FedAvg'"
    colours = [c if c != "#000000" else GREY for c in vega.COLOURS]
    picked = altair.selection_point(name="picked", fields=["line"], bind="legend")
    lines = (
        altair.Chart()
        .mark_line(point={"size": 26})
        .encode(
            *(
                x,
                y,
                by(altair.Color, colours, legend),
                by(altair.Shape, vega.SHAPES, legend),
            ),
            by(altair.StrokeDash, vega.DASHES[:4], None),
            strokeWidth=altair.when(fedavg)
            .then(altair.value(5))
            .otherwise(altair.value(1.7)),
            opacity=altair.when(picked)
            .then(altair.value(1))
            .otherwise(altair.value(0.12)),
            order="round:O",
            tooltip=[
                altair.Tooltip("line:N", title="method"),
                altair.Tooltip("round:N", title="round"),
                altair.Tooltip("accuracy:N", title="accuracy, mean of the seeds"),
                altair.Tooltip("lasts:N", title=TIME),
                altair.Tooltip("bytes:N", title=BYTES),
            ],
        )
        .add_params(picked)
    )
    reached = (
        altair.Chart()
        .transform_filter(f"datum.accuracy >= {target}")
        .transform_aggregate(x="min(x)", groupby=["line"])
        .transform_window(**numbered_rows("place", {"field": "x"}))
        .transform_filter(f"datum.place == 1 || {fedavg}")
        .transform_calculate(words=f"datum.line + ': ' + ({amount.format('datum.x')})")
    )

    def label(test: str, before: str, x: Any, **position: Any) -> altair.Chart:
        """Words beside the dotted line, at an end of it, where they are never cut
        off."""
        return (
            reached.transform_filter(test)
            .transform_calculate(words=f"'{before}' + datum.words")
            .mark_text(fontSize=13, fontWeight="bold", **position)
            .encode(x=altair.value(x), y=altair.datum(target), text="words:N")
        )

    layers = [
        altair.Chart(ONE).mark_rule(**DOTTED).encode(y=altair.datum(target)),
        lines,
        reached.mark_point(size=130, strokeWidth=2.5, color=GREY).encode(
            x, y=altair.datum(target)
        ),
        label("datum.place == 1", f"first at {target}: ", 0, align="left", dx=6, dy=-9),
        label(fedavg, "", "width", align="right", dx=-6, dy=22),
    ]
    shared = (
        altair.Chart(altair.InlineData(values=values))
        .transform_filter("datum.runs == runs")
        .transform_calculate(
            time=SECONDS,
            total="datum.up + datum.down",
            x=f"against == '{BYTES}' ? datum.total : datum.time",
            lasts=LASTS.format("datum.time"),
            bytes=size.format("datum.total"),
        )
    )
    says = {"up": "saysUp", "slower": "saysSlower"}
    picture = layered(170, params, layers, shared)
    return chart(number, picture, caption, alt, says=says, moved={"up": {"link": OWN}})


# ---- the figure of the first page, and the map ---------------------------------------

MARKERS = {"nobody": "o", "clients": "s", "server": "^", "both": "D"}
CLOSE = 1.07  # bytes that differ less share a place


def accuracy_of_three(**options: Any) -> "Axes":
    """Accuracy against bytes: FedAvg, one of the papers' methods, and one that
    remembers."""
    comparison = chapter_file("index")["minutes"]["comparisons"][0]
    stored = runs_of(comparison)
    runs = {line: stored[line] for line in ("FedAvg", "RPN", "STC")}
    return compare(runs.values(), "bytes", labels=list(runs), **options)


def three_lines(number: str, caption: str, alt: str) -> Shown:
    """The same as a figure."""
    return figure(number, accuracy_of_three(), caption, alt)


def measured() -> list[dict[str, Any]]:
    """Each method of the map, with the bytes that a client sends and hears in a round
    as multiples of FedAvg's with the same network, in the order of the page."""
    table = []
    dense = dict[str, float]()
    for sent, of_row in chapter_file("index")["map"].items():
        for method, stated in of_row.items():
            about = {
                "loses": "",
                "remembers": "nobody",
                "network": "digits_cnn",
            } | stated
            if about["network"] not in dense:
                dense[about["network"]] = _traffic("fedavg", about["network"])
            times = _traffic(method, about["network"]) / dense[about["network"]]
            table.append(about | {"sent": sent, "times": times})
    return table


def _traffic(method: str, network: str) -> float:
    """Bytes up and down of the fifth round: DGC warms up for four."""
    task = tasks.classification("digits", clients=10, network=network)
    instance = methods.METHODS[method]()
    rounds = 5 if method == "dgc" else 2
    settings: dict[str, Any] = {
        "batch_size": 16,
        "evaluate_every": rounds,
        "progress": False,
    }
    last = run(instance, task, rounds, engine="auto", **settings).rows[-1]
    return float(last["bytes_up"] + last["bytes_down"])


def methods_map(number: str, caption: str) -> Shown:
    """The poster as a figure, and as a file to download."""
    import matplotlib.pyplot as plt

    places: list[list[Any]] = []  # row, times, marker, words
    for row in measured():
        name = row["name"] + (f" ({row['loses']})" if row["loses"] else "")
        same = [p for p in places if p[0] == row["sent"] and p[2] == row["remembers"]]
        near = next((p for p in same if 1 / CLOSE < p[1] / row["times"] < CLOSE), None)
        if near and not row["loses"]:
            near[3] += f", {name}"
        else:
            places.append([row["sent"], row["times"], row["remembers"], name])
    rows = list(dict.fromkeys(sent for sent, *_ in places))
    fig, ax = plt.subplots(figsize=(5.4, 7.6), layout="constrained")
    y = 0.0
    for sent in rows:
        ax.text(0.011, y, sent, fontsize=11, fontweight="bold", va="center")
        for _, times, who, words in sorted(
            (p for p in places if p[0] == sent), key=lambda p: p[1]
        ):
            y += 0.62
            ax.plot(times, y, MARKERS[who], color=COLOURS[0], markersize=8)
            left = times > 0.25
            ax.annotate(
                words,
                (times, y),
                (-8 if left else 8, 0),
                textcoords="offset points",
                fontsize=10,
                va="center",
                ha="right" if left else "left",
            )
        y += 0.95
        ax.axhline(y - 0.48, color="0.85", linewidth=1)
    for who, marker in MARKERS.items():
        ax.plot([], [], marker, color=COLOURS[0], markersize=8, label=who)
    ax.legend(
        title="who remembers something",
        loc="upper center",
        bbox_to_anchor=(0.5, -0.07),
        ncols=4,
        frameon=False,
        fontsize=10,
        title_fontsize=10,
        handletextpad=0.2,
        columnspacing=1,
    )
    ax.set(xscale="log", xlim=(0.01, 5), ylim=(y - 0.3, -0.5), yticks=[])
    ax.set_xlabel("bytes of a round, up and down: times FedAvg's", fontsize=11)
    ax.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    ax.axvline(1, color="0.6", linestyle=":", linewidth=1)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
    buffer = io.BytesIO()
    fig.savefig(buffer, format="pdf")
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = "; ".join(
        f"{sent}: {words}, {t:.2f} times FedAvg's bytes" for sent, t, _, words in places
    )
    shown = figure(number, ax, caption, alt)
    link = (
        '<p class="fl"><a download="methods.pdf" href="data:application/pdf;base64,'
        f'{data}">The map as a page to print ({len(data) // 1365} kB, PDF)</a></p>'
    )
    return Shown(shown.content + link, shown.text)

"""The first page: every method's accuracy against bytes, which become minutes on a link that the
reader sets.

``data/index/chapter.yaml`` states which stored runs are shown. The time is ``fedlearn.link.time``,
written once more as a Vega expression (``SECONDS``).
"""

import json
import math
from typing import Any

import numpy as np

from .. import link
from ..history import History
from ..lab import results
from .grids import chapter_file
from .show import Chart, chart

# fedlearn.link.time; up and down are powers of ten of Mbit/s, latency is in ms
SECONDS = (
    "datum.round * latency / 1000 + slower * datum.sec"
    " + 8 * datum.down / pow(10, down + 6) + 8 * datum.up / pow(10, up + 6)"
)
TIME, BYTES, OWN = "time on this link", "bytes of one client", "own"


def runs_of(comparison: dict[str, Any]) -> dict[str, list[History]]:
    """The stored runs of a comparison by their line, FedAvg's first; a run for each seed."""
    names, partition = comparison.get("lines"), comparison["partition"]
    runs: dict[str, list[History]] = {}
    for h in results.load(comparison["results"]):
        label = h.meta.get("label") or h.method
        if h.meta["task"]["partition"] == partition and (names is None or label in names):
            runs.setdefault(names[label] if names else label, []).append(h)
    if "FedAvg" not in runs:
        raise ValueError(f"There is no stored run of FedAvg for {comparison['name']!r}.")
    return {"FedAvg": runs.pop("FedAvg"), **runs}


def rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a line and round: accuracy, and what one client has sent, heard and computed so far;
    means of the seeds. Every round of a line has the same number of clients."""
    table = []
    for line, histories in runs_of(comparison).items():
        shares = [link.shares(h) for h in histories]  # of bytes and seconds; so far, mean of seeds:
        mean = {k: np.mean([np.cumsum(share[k]) for share in shares], 0) for k in shares[0]}
        for t, row in enumerate(histories[0].rows):
            if row["accuracy"] is not None:
                entry = {"runs": comparison["name"], "line": line, "round": row["round"]}
                accuracy = float(np.mean([h.accuracy[t] for h in histories]))
                entry |= {"accuracy": round(accuracy, 4)}
                entry |= {way: round(float(mean[way][t])) for way in ("up", "down")}
                table.append(entry | {"sec": round(float(mean["computing"][t]), 4)})
    return table


def minutes(number: str, caption: str, alt: str) -> Chart:
    """The chart: sliders for uplink and device, named links, and the time to an accuracy written
    into it."""
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
    start, target = spec["start"], spec["target"]
    named = {k: link.check(**stated) for k, stated in link.PRESETS.items()}
    powers = {name: (math.log10(u) - 6, math.log10(d) - 6, 1000 * s)
              for name, (u, d, s) in named.items()}  # fmt: skip

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
    shown = {n: list(dict.fromkeys(r["line"] for r in values if r["runs"] == n)) for n in names}
    place: dict[str, int] = {}
    for line, k in (
        (n, k) for group in shown.values() for n, k in zip(group, vega.places(group), strict=True)
    ):
        place.setdefault(line, k)
    legend = LEGEND | {
        "symbolSize": 80,
        "columns": {"expr": "width < 420 ? 2 : width < 600 ? 4 : 6"},
        "labelFontSize": 12,
        "values": {"expr": f"{json.dumps(shown)}[runs]"},  # the lines of these runs alone
    }

    def by(channel: Any, looks: list[Any], legend: Any) -> Any:
        """The same look for a line wherever it is, another for each line of the same runs."""
        each = [looks[k % len(looks)] for k in place.values()]
        return series(channel, "line", [*place], each, legend)

    fedavg = "datum.line == 'FedAvg'"
    colours = [c if c != "#000000" else GREY for c in vega.COLOURS]
    picked = altair.selection_point(name="picked", fields=["line"], bind="legend")
    lines = (
        altair.Chart()
        .mark_line(point={"size": 26})
        .encode(
            *(x, y, by(altair.Color, colours, legend), by(altair.Shape, vega.SHAPES, legend)),
            by(altair.StrokeDash, vega.DASHES[:4], None),
            strokeWidth=altair.when(fedavg).then(altair.value(5)).otherwise(altair.value(1.7)),
            opacity=altair.when(picked).then(altair.value(1)).otherwise(altair.value(0.12)),
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
        """Words beside the dotted line, at an end of it, where they are never cut off."""
        return (
            reached.transform_filter(test)
            .transform_calculate(words=f"'{before}' + datum.words")
            .mark_text(fontSize=13, fontWeight="bold", **position)
            .encode(x=altair.value(x), y=altair.datum(target), text="words:N")
        )

    layers = [
        altair.Chart(ONE).mark_rule(**DOTTED).encode(y=altair.datum(target)),
        lines,
        reached.mark_point(size=130, strokeWidth=2.5, color=GREY).encode(x, y=altair.datum(target)),
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

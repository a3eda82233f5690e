"""What does it send? Gigabytes of a training under sliders, what a meter counted in
other people's programs, and their compressors beside ours; all stored by commands that
the page names."""

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from ..costs import Cost
from ..data.sources import data_path
from .show import Chart, Shown, chart, table

if TYPE_CHECKING:
    import pandas


@cache
def stored(name: str) -> dict[str, Any]:
    """A file of ``data/results``."""
    return json.loads(data_path("results", name).read_text(encoding="utf-8"))


def costs(kind: str = "costs") -> dict[str, Cost]:
    """The stored tables of ``fl.cost``, or those of a meter (``kind`` "meters"), by
    network."""
    return {
        entry["network"]["name"]: Cost(**entry) for entry in stored("sends.json")[kind]
    }


def totals(number: str, caption: str, alt: str) -> Chart:
    """Network, method, clients and rounds -> gigabytes of a whole training, up and
    down."""
    from .vega import BLUE, LEGEND, SKY, choice, heading, layered, series, slider
    from .vega import alt as altair

    tables = {name: [r for r in cost.rows if r["up"]] for name, cost in costs().items()}
    rows = [
        {"network": name, "method": row["method"], "way": way, "bytes": row[way]}
        for name, body in tables.items()
        for row in body
        for way in ("up", "down")
    ]
    both = {
        name: {r["method"]: r["up"] + r["down"] for r in body}
        for name, body in tables.items()
    }
    methods = list(dict.fromkeys(row["method"] for row in rows))
    params = [
        choice("network", "network", list(tables), "ResNet-50", "select"),
        choice("method", "method", methods, "rpn", "select"),
        slider("clients", "clients of a round", 10, 1, 200, 1),
        slider("rounds", "rounds", 100, 10, 1000, 10),
        {"name": "one", "expr": f"{json.dumps(both)}[network][method]"},
        {"name": "whole", "expr": f"{json.dumps(both)}[network]['fedavg']"},
    ]
    size = "format({0} * clients * rounds / 1e9, '.3~r') + ' GB'"
    sends = (
        f"method + ' sends ' + {size.format('one')} + ', fedavg ' + "
        f"{size.format('whole')}"
    )
    words = f"isValid(one) ? {sends} : method + ' has no form for this network'"
    shared = (
        altair.Chart(altair.InlineData(values=rows))
        .transform_filter("datum.network == network")
        .transform_calculate(gb="datum.bytes * clients * rounds / 1e9")
    )
    order = altair.EncodingSortField(field="gb", op="sum", order="ascending")
    bars = (
        altair.Chart()
        .mark_bar()
        .encode(
            altair.X("gb:Q", title="GB of all clients and rounds"),
            altair.Y("method:N", title=None, sort=order),
            series(altair.Color, "way", ("up", "down"), (BLUE, SKY), LEGEND),
            opacity=altair.condition(
                "datum.method == method", altair.value(1), altair.value(0.45)
            ),
            tooltip=[
                altair.Tooltip("method:N"),
                altair.Tooltip("way:N"),
                altair.Tooltip("gb:Q", title="GB", format=".3~r"),
                altair.Tooltip(
                    "bytes:Q", title="bytes of a client and round", format=","
                ),
            ],
        )
    )
    picture = layered(440, params, [bars], shared, title=heading(words))
    return chart(number, picture, caption, alt, {"clients": "", "rounds": ""})


def side_by_side(tables: dict[str, Cost], *columns: str) -> "pandas.DataFrame":
    """Some columns of several tables, by method."""
    import pandas

    frames = []
    for name, cost in tables.items():
        frame = cost.table()
        chosen = [head for head in frame if re.sub("^[kM]B ", "", head) in columns]
        frames.append(frame[chosen].rename(columns=f"{name}: {{}}".format))
    return pandas.concat(frames, axis=1)


def equal_rows(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """The same with one row for methods whose rows are equal; empty rows are left
    out."""
    heads = list(frame)
    filled = frame[frame.astype(bool).any(axis=1)].reset_index()
    methods = filled.groupby(heads, sort=False, dropna=False)["method"].agg(", ".join)
    return methods.reset_index()[["method", *heads]]


TWO = "ResNet-50", "transformer block"


def two_networks(number: str, caption: str) -> Shown:
    """What every method sends of a ResNet-50 and of a transformer block."""
    rows = side_by_side(
        {name: costs()[name] for name in TWO}, "up", "down", "times less"
    )
    return table(number, equal_rows(rows), caption)


def reasons(number: str, caption: str) -> Shown:
    """What a method does to these two networks, or why it has no form for one."""
    import pandas

    notes = {
        name: {row["method"]: row["note"] for row in costs()[name].rows} for name in TWO
    }
    return table(
        number, equal_rows(pandas.DataFrame(notes).rename_axis("method")), caption
    )


SHOWN = {
    "as sent",
    "dense",
    "float16",
    "pooled (RPN)",
    "top 1/32, signs (STC)",
    "SmartIdx, 1/32",
    "scaled signs",
    "QSGD, 127 levels, entropy",
    "EDEN, 4 bits",
    "PowerSGD, rank 2",
    "zipped floats",
}


def metered(number: str, caption: str) -> Shown:
    """What the meter counted in two programs."""
    rows = side_by_side(costs("meters"), "up", "down", "error").rename_axis(
        "what is sent"
    )
    return table(number, rows[rows.index.isin(SHOWN)].reset_index(), caption)


def conformance(number: str, caption: str) -> Shown:
    """Other people's compressors and our coders on the same tensors."""
    import pandas

    rows = pandas.DataFrame(stored("coders_peers.json")["rows"])
    rows[["theirs", "ours"]] /= 1e6
    rows["our coder"] = "`" + rows["coder"] + "`"
    rows = rows.rename(columns=lambda name: name.replace("_", " "))
    heads = [
        "program",
        "compressor",
        "our coder",
        "theirs",
        "ours",
        "their error",
        "our error",
    ]
    units = dict.fromkeys(heads[3:5], "MB") | dict.fromkeys(heads[5:], "of the energy")
    forms = dict.fromkeys(heads[3:5], ".2f") | dict.fromkeys(heads[5:], ".2g")
    return table(number, rows[heads], caption, units, forms)


def repeated(number: str, caption: str) -> Shown:
    """The same update sent again and again through signs, with and without a memory."""
    again = stored("coders_peers.json")["again"]
    error = "error of the mean"
    rows = [{"who remembers": name, error: value} for name, value in again.items()]
    return table(number, rows, caption, {error: "of the energy"}, {error: ".2g"})

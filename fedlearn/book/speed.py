"""The appendix on speed: seconds of a round beside a bare PyTorch loop, from what
``tests/benchmarks/speed.py`` measured."""

from typing import Any

GROWTH = "digits CNN, one batch each"


def ratio_rows(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of a round over the bare loop's, a row each network, number of clients
    and form, from the table and the growth of a file of ``speed.py``."""
    entries = [row | {"network": GROWTH} for row in measured["growth"]]
    return [
        {
            "network": entry["network"],
            "clients": entry["clients"],
            "form": form,
            "ratio": round(seconds / entry["seconds"]["bare loop"], 4),
            "seconds": round(seconds, 5),
        }
        for entry in entries + measured["table"]["rows"]
        for form, seconds in entry["seconds"].items()
        if isinstance(seconds, float) and form != "bare loop"
    ]


def ratios(measured: dict[str, Any], guess: float | None = None) -> dict[str, Any]:
    """Ratios to the bare loop against the number of clients, under a list of networks.
    Stacked training is shown when the reader asks, or has guessed its ratio."""
    from . import vega
    from .vega import DOTTED, LEGEND, alt, choice, layered, series, slider, tick

    rows = ratio_rows(measured)
    networks = list(dict.fromkeys(row["network"] for row in rows))
    forms = list(dict.fromkeys(row["form"] for row in rows))
    x = alt.X("clients:Q", title="clients").axis(values=[1, 10, 100, 1000], grid=True)
    x = x.scale(type="log", domain=[0.8, 1250], nice=False)
    y = alt.Y("ratio:Q", title="seconds, bare loop = 1")
    y = y.scale(type="log", domain=[0.2, 8], clamp=True, nice=False)
    y = y.axis(values=[0.25, 0.5, 1, 2, 4, 8])
    legend = LEGEND | {"columns": {"expr": "width < 420 ? 2 : 3"}, "symbolSize": 90}
    layers = [
        *vega.guess_line(),
        alt.Chart(alt.InlineData(values=[{"ratio": 1}])).mark_rule(**DOTTED).encode(y),
        alt.Chart()
        .mark_line(strokeWidth=2, point={"size": 60})
        .encode(
            x,
            y,
            series(alt.Color, "form", forms, vega.COLOURS, legend),
            series(alt.Shape, "form", forms, vega.SHAPES, legend),
            series(alt.StrokeDash, "form", forms, vega.DASHES, None),
            tooltip=["form:N", "clients:N", "ratio:N", "seconds:N"],
        ),
    ]
    question = "your guess for ten clients, loop = 1"
    params = [
        slider("guess", question, guess or 0.8, 0.1, 2, 0.05),
        tick("reveal", "show stacked training", guess is not None),
        choice("network", "network", networks, kind="select"),
    ]
    shared = (
        alt.Chart(alt.InlineData(values=rows))
        .transform_filter("datum.network == network")
        .transform_filter("reveal || indexof(['stacked', 'auto'], datum.form) < 0")
    )
    return layered(300, params, layers, shared)

"""The appendix on speed: seconds of a round beside a bare PyTorch loop, from what
``tests/benchmarks/speed.py`` measured."""

from typing import Any

GROWTH = "digits CNN, one batch each"


def ratio_rows(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of a round over the bare loop's, a row each network, number of clients
    and form, from the table and the growth of a file of ``speed.py``."""
    entries = [(GROWTH, row) for row in measured["growth"]]
    entries += [(row["network"], row) for row in measured["table"]["rows"]]
    return [
        {
            "network": network,
            "clients": row["clients"],
            "form": form,
            "ratio": round(seconds / row["seconds"]["bare loop"], 4),
            "seconds": round(seconds, 5),
        }
        for network, row in entries
        for form, seconds in row["seconds"].items()
        if isinstance(seconds, float) and form != "bare loop"
    ]


def ratios(measured: dict[str, Any], guess: float | None = None) -> dict[str, Any]:
    """Ratios to the bare loop against the number of clients, under a list of networks.
    Stacked training is shown when the reader asks, or has guessed its ratio."""
    from . import vega
    from .vega import (
        BOLD,
        DOTTED,
        LEGEND,
        ONE,
        alt,
        choice,
        layered,
        series,
        slider,
        tick,
    )

    rows = ratio_rows(measured)
    networks = [
        GROWTH,
        *dict.fromkeys(row["network"] for row in measured["table"]["rows"]),
    ]
    forms = list(dict.fromkeys(row["form"] for row in rows))
    x = alt.X("clients:Q").scale(type="log", domain=[0.8, 1250], nice=False)
    x = x.axis(title="clients", values=[1, 10, 100, 1000], grid=True)
    y = alt.Y("ratio:Q").scale(type="log", domain=[0.2, 8], clamp=True, nice=False)
    y = y.axis(title="seconds, bare loop = 1", values=[0.25, 0.5, 1, 2, 4, 8])
    legend = LEGEND | {"columns": {"expr": "width < 420 ? 2 : 3"}, "symbolSize": 90}
    colour = series(alt.Color, "form", forms, vega.COLOURS, legend)
    shape = series(alt.Shape, "form", forms, vega.SHAPES, legend)
    dash = series(alt.StrokeDash, "form", forms, vega.DASHES, None)
    label = alt.Chart(ONE).transform_calculate(
        ratio="guess", says="'your guess: ' + format(guess, '.2f')", clients="1200"
    )
    thin = DOTTED | {"strokeDash": [6, 2]}
    layers = [
        label.mark_rule(**thin).encode(y),
        label.mark_text(
            **BOLD | {"align": "right", "fontWeight": "normal"}, dy=-7
        ).encode(x, y, text="says:N"),
        alt.Chart(alt.InlineData(values=[{"ratio": 1}])).mark_rule(**DOTTED).encode(y),
        alt.Chart()
        .mark_line(strokeWidth=2, point={"size": 60})
        .encode(
            *(x, y, colour, dash, shape),
            tooltip=[
                *("form:N", "clients:N"),
                alt.Tooltip("ratio:N", title="bare loop = 1", format=".2f"),
                alt.Tooltip("seconds:N", title="seconds a round", format=".3~g"),
            ],
        ),
    ]
    params = [
        slider(
            "guess", "your guess for ten clients, loop = 1", guess or 0.8, 0.1, 2, 0.05
        ),
        tick("reveal", "show stacked training", guess is not None),
        choice("network", "network", networks, GROWTH, "select"),
    ]
    shared = (
        alt.Chart(alt.InlineData(values=rows))
        .transform_filter("datum.network == network")
        .transform_filter("reveal || indexof(['stacked', 'auto'], datum.form) < 0")
    )
    return layered(300, params, layers, shared)

"""The appendix on speed: seconds of a round beside a bare PyTorch loop, from what
``tests/benchmarks/speed.py`` measured."""

from typing import Any

from .drawings import drawing

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
    picture = drawing("index/speed", guess=guess or 0.8, reveal=guess is not None)
    return picture | {"data": {"values": ratio_rows(measured)}}

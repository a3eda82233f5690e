"""What histories say together: tables of several runs."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .history import History
from .link import described, energy, time

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made


def spread(values: Collection[float | None], form: str = ".3f") -> str:
    """Mean and standard deviation of a few runs as text.

    A sign that ``form`` asks for, as in "+.1f", is the mean's. Values that are ``None`` (never
    reached) are left out of both, and the text says how many are there.
    """
    there = [v for v in values if v is not None]
    if not there:
        return "not reached"
    text = f"{np.mean(there):{form}}" + (
        f" ± {np.std(there, ddof=1):{form.lstrip('+')}}" if len(there) > 1 else ""
    )
    return text if len(there) == len(values) else f"{text} ({len(there)} of {len(values)} runs)"


def summary(
    runs: Mapping[str, History | list[History]],
    target: float | None = None,
    megabytes: float | None = None,
) -> "pandas.DataFrame":
    """What each method reached and what it cost: a row for each label of ``runs``.

    A label stands for a history or for a list of histories, one a seed, which are shown as mean ±
    standard deviation. ``target`` is a test accuracy (0 to 1), ``megabytes`` a budget.
    """
    import pandas

    rows = {}
    for label, histories in runs.items():
        histories = histories if isinstance(histories, list) else [histories]
        row = rows[label] = {
            "rounds": len(histories[0]),
            "accuracy": spread([h.final["accuracy"] for h in histories]),
        }
        if megabytes is not None:
            row[f"accuracy at {megabytes:.1f} MB"] = spread(
                [h.accuracy_at(megabytes) for h in histories]
            )
        if target is not None:
            row[f"rounds to {target:.0%}"] = spread([h.rounds_to(target) for h in histories], ".1f")
            row[f"MB to {target:.0%}"] = spread([h.megabytes_to(target) for h in histories], ".2f")
        for way in ("up", "down"):
            row[f"MB {way}"] = (
                f"{np.mean([getattr(h, f'bytes_{way}').sum() for h in histories]) / 1e6:.2f}"
            )
    return pandas.DataFrame(rows).T.rename_axis("method")


def table(
    runs: Mapping[str, list[History]],
    link: Mapping[str, Any] | None = None,
    radio: Mapping[str, Any] | None = None,
) -> str:
    """A line a label: where its runs ended and what they cost, on average.

    With the arguments of ``link.time`` there are the minutes, too, that they take on that link, and
    with those of ``link.energy`` the joules that one client's radio uses.
    """
    width = max(12, *(len(label) + 2 for label in runs))
    several = any(len(histories) > 1 for histories in runs.values())
    measure = next((h.measure for histories in runs.values() for h in histories), "")
    lines = [
        f"{'method':<{width}}{'rounds':>7}{measure:>{18 if several else 10}}{'loss':>9}"
        f"{'MB up':>10}{'MB down':>10}{'seconds':>9}{'refused':>9}"
        + (f"{'minutes':>10}" if link else "")
        + (f"{'joules':>10}" if radio else "")
    ]
    for label, histories in runs.items():
        accuracy = spread([h.final["accuracy"] for h in histories], ".4f")
        loss = np.mean([h.final["loss"] for h in histories])
        up, down = (
            np.mean([getattr(h, f"bytes_{way}").sum() for h in histories]) / 1e6
            for way in ("up", "down")
        )
        seconds = np.mean([h.seconds.sum() for h in histories])
        refused = sum(len(row["refused"]) for h in histories for row in h.rows)
        lines.append(
            f"{label:<{width}}{len(histories[0]):>7}{accuracy:>{18 if several else 10}}{loss:>9.4f}"
            f"{up:>10.3f}{down:>10.3f}{seconds:>9.1f}{refused:>9}"
            + (f"{np.mean([time(h, **link)[-1] for h in histories]) / 60:>10.4g}" if link else "")
            + (f"{np.mean([energy(h, **radio)[-1] for h in histories]):>10.4g}" if radio else "")
        )
    if link:
        lines.append(f"minutes: {described(link)}")
    if radio:
        lines.append(f"joules: a client's radio, {radio['up']} a byte up, {radio['down']} down")
    return "\n".join(lines)

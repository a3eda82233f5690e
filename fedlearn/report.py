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

    >>> spread([0.8, 0.6]), spread([0.8, None]), spread([None])
    ('0.700 ± 0.141', '0.800 (1 of 2 runs)', 'not reached')
    """
    present = [v for v in values if v is not None]
    if not present:
        return "not reached"
    text = f"{np.mean(present):{form}}"
    if len(present) > 1:
        text += f" ± {np.std(present, ddof=1):{form.lstrip('+')}}"
    return text if len(present) == len(values) else f"{text} ({len(present)} of {len(values)} runs)"


def _sent(histories: list[History]) -> tuple[float, float]:
    """Megabytes of all clients, up and down, the mean of the runs."""
    up, down = ([h.bytes_up.sum() for h in histories], [h.bytes_down.sum() for h in histories])
    return float(np.mean(up)) / 1e6, float(np.mean(down)) / 1e6


def summary(
    runs: Mapping[str, History | list[History]],
    target: float | None = None,
    megabytes: float | None = None,
) -> "pandas.DataFrame":
    """What each method reached and what it cost.

    Parameters
    ----------
    runs
        Labels, each with a history or a list of histories, one a seed, which are shown as mean ±
        standard deviation.
    target
        A test accuracy, 0 to 1: rounds and megabytes until it is reached get columns.
    megabytes
        A budget: the accuracy within it gets a column.

    Returns
    -------
    pandas.DataFrame
        A row a label; cells are text.

    Examples
    --------
    >>> row = {"round": 1, "accuracy": 0.9, "bytes_up": 2e6, "bytes_down": 3e6}
    >>> summary({"FedAvg": History("fedavg", {}, [row])}, target=0.5).loc["FedAvg"].to_list()
    [1, '0.900', '1.0', '5.00', '2.00', '3.00']
    """
    import pandas

    rows = {}
    for label, runs_of in runs.items():
        histories = runs_of if isinstance(runs_of, list) else [runs_of]
        row: dict[str, Any] = {"rounds": len(histories[0])}
        row["accuracy"] = spread([h.final["accuracy"] for h in histories])
        if megabytes is not None:
            within = [h.accuracy_at(megabytes) for h in histories]
            row[f"accuracy at {megabytes:.1f} MB"] = spread(within)
        if target is not None:
            row[f"rounds to {target:.0%}"] = spread([h.rounds_to(target) for h in histories], ".1f")
            row[f"MB to {target:.0%}"] = spread([h.megabytes_to(target) for h in histories], ".2f")
        up, down = _sent(histories)
        rows[label] = row | {"MB up": f"{up:.2f}", "MB down": f"{down:.2f}"}
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
    wide = 18 if any(len(histories) > 1 for histories in runs.values()) else 10
    measure = next((h.measure for histories in runs.values() for h in histories), "")
    head = (
        f"{'method':<{width}}{'rounds':>7}{measure:>{wide}}{'loss':>9}{'MB up':>10}{'MB down':>10}"
    )
    head += f"{'seconds':>9}{'refused':>9}"
    lines = [head + f"{'minutes':>10}" * bool(link) + f"{'joules':>10}" * bool(radio)]
    for label, histories in runs.items():
        accuracy = spread([h.final["accuracy"] for h in histories], ".4f")
        loss = np.mean([h.final["loss"] for h in histories])
        up, down = _sent(histories)
        line = f"{label:<{width}}{len(histories[0]):>7}{accuracy:>{wide}}{loss:>9.4f}{up:>10.3f}"
        line += f"{down:>10.3f}{np.mean([h.seconds.sum() for h in histories]):>9.1f}"
        line += f"{sum(len(row['refused']) for h in histories for row in h.rows):>9}"
        if link:
            line += f"{np.mean([time(h, **link)[-1] for h in histories]) / 60:>10.4g}"
        if radio:
            line += f"{np.mean([energy(h, **radio)[-1] for h in histories]):>10.4g}"
        lines.append(line)
    if link:
        lines.append(f"minutes: {described(link)}")
    if radio:
        lines.append(f"joules: a client's radio, {radio['up']} a byte up, {radio['down']} down")
    return "\n".join(lines)

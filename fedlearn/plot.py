"""Figures for every reader: colours that colour-blind people can tell apart, with
markers and dashes, so that a figure can be read in grey, too."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from .errors import extra, pick
from .history import History

with extra("plot"):
    import matplotlib.pyplot as plt
    from matplotlib import ticker
    from matplotlib.axes import Axes

# Okabe and Ito's palette without its yellow, in an order whose grey values alternate,
# and a grey for its black, to be read on white and on black
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A828E"]
# where colour is a sign: violet is negative, white zero, orange positive
SIGNED = "PuOr_r"
MARKERS = "os^DvP>" + "s^DvP>o"  # the eighth line shares the first's colour alone
DASHES = ["-", "--", "-.", ":"]
# The papers' methods, and those that are most often drawn beside them, have a fixed
# look.
LOOKS = {
    "fedavg": 0,
    "rpn": 1,
    "fedkgf": 2,
    "fedmmd": 3,
    "fedfusion": 2,
    "fedgkt": 3,
    "fedrepopt": 5,
    "threebranches": 2,
    "stc": 6,
    "dgc": 3,
    "signsgd": 4,
    "qsgd": 5,
}
AXES = {
    "rounds": "round",
    "bytes": "bytes up and down, all clients",
}


def places(names: Sequence[str]) -> list[int]:
    """The number of each line's look (colour, marker, dash).

    A method has the same look in all figures; other lines get the free ones.

    >>> places(["FedAvg", "STC", "RPN", "RPN, last layer whole"])
    [0, 6, 1, 2]
    """
    looks: list[int | None] = []
    for name in names:
        plain = "".join(letter for letter in name.lower() if letter.isalnum())
        look = next((LOOKS[m] for m in LOOKS if plain.startswith(m)), None)
        # only the first line of a method has its look
        looks.append(None if look in looks else look)
    free = [k for k in (*range(1, len(COLOURS)), 0) if k not in looks]
    free += range(len(COLOURS), len(COLOURS) + len(names))
    return [free.pop(0) if look is None else look for look in looks]


def styles(names: Sequence[str]) -> list[dict[str, Any]]:
    """Colour, marker and dash of each line."""
    return [
        {
            "color": COLOURS[k % len(COLOURS)],
            "marker": MARKERS[k % len(MARKERS)],
            "linestyle": DASHES[k % len(DASHES)],
            "markersize": 4,
            "linewidth": 1.6,
        }
        for k in places(names)
    ]


def axes(ax: Axes | None = None, size: tuple[float, float] = (5.2, 3.2)) -> Axes:
    """These axes, or those of a new figure."""
    if ax is None:
        _, ax = plt.subplots(figsize=size, layout="constrained")
        ax.spines[["top", "right"]].set_visible(False)
    return ax


def compare(
    histories: History | Iterable[History | list[History]],
    against: str = "rounds",
    column: str = "accuracy",
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Test accuracy, or another column, of several histories as curves.

    Parameters
    ----------
    histories
        An entry may be a list of histories, one a seed: their mean is drawn, with a
        band from the lowest to the highest.
    against
        "rounds" or "bytes".
    column
        A column of numbers, such as "loss".
    labels
        By default the methods' names.
    ax
        By default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn on.

    Raises
    ------
    ValueError
        For anything but histories with rounds, and an unknown axis or column.

    Examples
    --------
    >>> row = {"round": 1, "accuracy": 0.5, "bytes_up": 7, "bytes_down": 9}
    >>> compare(History("fedavg", {}, [row]), against="bytes").lines[0].get_xdata()
    array([16.])
    """
    groups = _groups(histories, column)
    xlabel = pick(against, AXES, "axis")
    labels = labels or [group[0].method for group in groups]
    ax = axes(ax)

    def progress(history: History) -> np.ndarray:
        if against == "rounds":
            return history.round
        return np.cumsum(history.bytes_up + history.bytes_down)

    for group, label, style in zip(groups, labels, styles(labels), strict=True):
        values = np.stack([getattr(h, column).astype(float) for h in group])
        measured = ~np.isnan(values).any(0)
        if not measured.any():
            raise ValueError(f"{label} has no round with {column} in each history.")
        values = values[:, measured]
        x = np.mean([progress(h) for h in group], axis=0)[measured]
        ax.plot(x, values.mean(0), label=label, **style)
        if len(group) > 1:
            band = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
            ax.fill_between(x, values.min(0), values.max(0), **band)
    if against == "bytes":
        _scale_bytes(ax)
    else:
        ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    ylabel = groups[0][0].measure if groups and column == "accuracy" else column
    ax.set(xlabel=xlabel, ylabel=f"test {ylabel}")
    ax.grid(alpha=0.3)
    if len(groups) > 3:  # above the lines, where it hides none
        columns = 3 if max(map(len, labels)) < 15 else 2
        ax.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1), ncols=columns, fontsize=9.5
        )
    else:
        ax.legend()
    return ax


def rule(ax: Axes, value: float | None, name: str) -> None:
    """A thin line across at ``value``, with its name at the end; none for ``None``."""
    if value is not None:
        ax.axhline(value, color="black", linestyle=(0, (9, 3, 1, 3)), linewidth=0.8)
        at = ax.get_yaxis_transform()
        ax.text(1.01, value, name, transform=at, va="center", fontsize=9.5)


def _groups(histories: Any, column: str) -> list[list[History]]:
    """Each line's histories; ``ValueError`` for what has no such column of numbers."""
    lines = histories if isinstance(histories, Iterable) else [histories]
    groups = [line if isinstance(line, list) else [line] for line in lines]
    for history in chain(*groups):
        values = getattr(history, column, None)
        if not isinstance(history, History) or np.ndim(values) != 1:
            raise ValueError(
                f"A curve is of a history with rounds and a column of numbers {column!r}."
            )
    for group in groups:
        if len({len(history) for history in group}) > 1:
            raise ValueError("The histories of one curve need equally many rounds.")
    return groups


def _scale_bytes(ax: Axes) -> None:
    """A logarithmic axis with kB, MB and so on."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    subs = (1, 2, 5) if high < 100 * low else (1,)  # labels of a decade
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(ticker.EngFormatter("B"))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())


def panels(
    runs: Mapping[str, History | list[History]],
    target: float | None = None,
    guess: float | None = None,
) -> Sequence[Axes]:
    """``compare`` in two figures, against rounds and against bytes.

    ``target`` and ``guess`` are accuracies; each gets a thin line with its name.
    """
    pair = []
    for against in ("rounds", "bytes"):
        ax = compare(runs.values(), against, labels=list(runs))
        rule(ax, target, "target")
        rule(ax, guess, "your\nguess")
        pair.append(ax)
    return pair

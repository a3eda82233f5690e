"""Figures for every reader: colours that colour-blind people can tell apart, and markers and dashes
beside them, so that a figure reads in grey, too."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .arguments import short
from .errors import extra, pick
from .files import write_atomically
from .history import History
from .link import described, time
from .tasks import Task

with extra("plot"):
    import matplotlib.pyplot as plt
    from matplotlib import ticker
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, in an order whose grey values alternate
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
SIGNED = "PuOr_r"  # wherever colour is a sign: violet is negative, white zero, orange positive
MARKERS, DASHES = "os^Dv*X", ["-", "--", "-.", ":"]
# the methods of the papers, and what they are most often drawn beside: each has one look
LOOKS = {"fedavg": 0, "rpn": 1, "fedkgf": 2, "fedmmd": 3, "fedfusion": 2, "fedgkt": 4}
LOOKS |= {"fedrepopt": 5, "stc": 6, "dgc": 3, "signsgd": 4, "qsgd": 5}
AXES = {
    "rounds": "round",
    "bytes": "bytes up and down, all clients",
    "seconds": "seconds",
    "minutes": "minutes",
}


def places(names: Sequence[str]) -> list[int]:
    """Which look (colour, marker, dash) each line has: a method the same in all figures, others
    what is left.

    >>> places(["FedAvg", "STC", "RPN", "RPN, last layer whole"])
    [0, 6, 1, 2]
    """
    plain = ["".join(c for c in name.lower() if c.isalnum()) for name in names]
    homes = [next((LOOKS[m] for m in LOOKS if name.startswith(m)), -1) for name in plain]
    taken: list[int] = []
    for i, home in enumerate(homes):  # the first of a method has its look
        taken.append(home if home not in homes[:i] else -1)
    free = [k for k in (*range(1, len(COLOURS)), 0) if k not in taken]
    free += range(len(COLOURS), len(COLOURS) + len(names))
    return [free.pop(0) if k < 0 else k for k in taken]


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


def check_image(path: str | Path) -> None:
    """``ValueError`` unless the name ends as an image's does."""
    types = Figure().canvas.get_supported_filetypes()
    pick(Path(path).suffix.lstrip("."), types, "image type")


def save(figure: Any, path: str | Path) -> None:
    """Write a figure, in full or not at all."""
    end = Path(path).suffix.lstrip(".")
    write_atomically(path, lambda part: figure.savefig(part, format=end, dpi=150))


def axes(ax: Axes | None = None, size: tuple[float, float] = (5.2, 3.2)) -> Axes:
    """The axes given, or those of a new figure."""
    return ax if ax is not None else plt.subplots(figsize=size, layout="constrained")[1]


def _progress(history: History, against: str, link: Mapping[str, Any]) -> np.ndarray:
    if against == "rounds":
        return history.round
    if against == "minutes":
        return time(history, **link) / 60
    sent = history.bytes_up + history.bytes_down
    return np.cumsum(sent if against == "bytes" else history.seconds)


def compare(
    histories: History | Iterable[History | list[History]],
    against: str = "rounds",
    column: str = "accuracy",
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
    link: Mapping[str, Any] | None = None,
) -> Axes:
    """Test accuracy, or another column, of several histories as curves.

    Parameters
    ----------
    histories
        An entry may be a list of histories, one a seed: their mean is drawn, with a band from the
        lowest to the highest.
    against
        "rounds", "bytes", "seconds", or "minutes" on the ``link``.
    column
        A column of numbers, such as "loss".
    labels
        By default the methods' names.
    ax
        By default those of a new figure.
    link
        The arguments of ``fl.link.time``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn on.

    Raises
    ------
    ValueError
        For what is no history with rounds, another axis, no such column, and minutes without a
        link.

    Examples
    --------
    >>> rows = [{"round": t, "accuracy": t / 9, "bytes_up": 7, "bytes_down": 9} for t in (1, 2)]
    >>> compare(History("fedavg", {}, rows), against="bytes").lines[0].get_xdata()
    array([16., 32.])
    """
    many: Any = histories if isinstance(histories, Iterable) else [histories]
    groups = [h if isinstance(h, list) else [h] for h in many]
    for history in (h for group in groups for h in group or [group]):
        if not isinstance(history, History) or not history.rows:
            raise ValueError(f"Histories with rounds are drawn, not {short(history)}.")
        if np.ndim(getattr(history, column, [[]])) != 1:
            raise ValueError(
                f"The history of {history.method} has no column of numbers {column!r}."
            )
    xlabel = pick(against, AXES, "axis")
    if against == "minutes":
        if link is None:
            raise ValueError('Minutes need a link, such as link={"up": "1Mbit", "down": "10Mbit"}.')
        xlabel = f"minutes: {described(link)}"
    ax, labels = axes(ax), labels or [group[0].method for group in groups]
    for group, label, style in zip(groups, labels, styles(labels), strict=True):
        values = np.stack([getattr(h, column).astype(float) for h in group])
        seen = ~np.isnan(values[0])
        x = np.mean([_progress(h, against, link or {}) for h in group], 0)[seen]
        ax.plot(x, values[:, seen].mean(0), label=label, **style)
        if len(group) > 1:
            low, high = values[:, seen].min(0), values[:, seen].max(0)
            ax.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    if against in ("bytes", "minutes"):
        ax.set_xscale("log")
    if against == "bytes":
        low, high = ax.get_xlim()  # one label a decade, three where the axis is shorter than that
        ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        ax.xaxis.set_major_formatter(ticker.EngFormatter("B"))
        ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    elif against == "rounds":
        ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    measure = next((h.measure for group in groups for h in group), column)
    ax.set(xlabel=xlabel, ylabel="test " + (measure if column == "accuracy" else column))
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def clients(
    histories: History | Iterable[History],
    column: str = "per_client",
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The last test by client, the worst first: who is served badly? ``column`` is one with a
    number a client (``History.by_client``)."""
    many = [histories] if isinstance(histories, History) else list(histories)
    ax, labels = axes(ax), labels or [h.method for h in many]
    for history, label, style in zip(many, labels, styles(labels), strict=True):
        each = history.by_client(column)
        values = np.sort(each[~np.isnan(each)])
        ax.plot(range(1, len(values) + 1), values, label=label, **style)
    ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    ax.set(xlabel="clients, the worst first", ylabel=f"test {many[0].measure} of a client")
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def panels(
    runs: Mapping[str, History | list[History]], target: float | None = None
) -> Sequence[Axes]:
    """``compare`` twice, in two figures: against rounds and against bytes; ``target`` is an
    accuracy that gets a dotted line. Returns the two axes."""
    axs = [compare(runs.values(), by, labels=list(runs)) for by in ("rounds", "bytes")]
    for ax in axs:
        if target is not None:
            ax.axhline(target, color="black", linestyle=":", linewidth=1)
    return axs


def label_counts(task: Task) -> np.ndarray:
    """How many training images, or objects, of each class every client holds: [clients,
    classes]."""
    return np.asarray(task.held)

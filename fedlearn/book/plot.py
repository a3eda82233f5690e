"""Figures for the chapters, for every reader: colours that colour-blind people can tell apart, and
markers and dashes beside them, so that a figure reads in grey, too."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..arguments import short
from ..errors import pick
from ..files import write_atomically
from ..history import History
from ..link import described, time
from ..tasks import Task

# Okabe and Ito's palette without its yellow, in an order whose grey values alternate
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
SIGNED = "PuOr_r"  # wherever colour is a sign: violet is negative, white zero, orange positive
MARKERS, DASHES = "os^Dv*X", ["-", "--", "-.", ":"]
MEASURES = {
    "rounds": "round",
    "bytes": "bytes up and down, all clients",
    "seconds": "seconds",
    "minutes": "minutes",
}


def styles() -> Iterator[dict[str, Any]]:
    """Colour, marker and dash of one line after another."""
    for colour, marker, dash in zip(cycle(COLOURS), cycle(MARKERS), cycle(DASHES), strict=False):
        yield {
            "color": colour,
            "marker": marker,
            "linestyle": dash,
            "markersize": 4,
            "linewidth": 1.6,
        }


def check_image(path: str | Path) -> None:
    """``ValueError`` unless the name ends as an image's does."""
    pick(Path(path).suffix.lstrip("."), plt.figure().canvas.get_supported_filetypes(), "image type")
    plt.close()


def save(figure: Any, path: str | Path) -> None:
    """Write a figure, in full or not at all."""
    end = Path(path).suffix.lstrip(".")
    write_atomically(path, lambda part: figure.savefig(part, format=end, dpi=150))


def axes(ax: Axes | None = None, size: tuple[float, float] = (5.2, 3.2)) -> Axes:
    """The axes given, or those of a new figure."""
    return ax if ax is not None else plt.subplots(figsize=size, layout="constrained")[1]


def progress(history: History, against: str, link: Mapping[str, Any] | None = None) -> np.ndarray:
    """The horizontal axis of a history: rounds done, bytes sent so far, seconds so far, or minutes
    so far on a link, stated by the arguments of ``link.time``."""
    if against not in MEASURES:
        raise ValueError(f"Histories are drawn against {', '.join(MEASURES)}, not {against!r}.")
    if against == "rounds":
        return history.round
    if against == "minutes":
        if link is None:
            raise ValueError('Minutes need a link, such as link={"up": "1Mbit", "down": "10Mbit"}.')
        return time(history, **link) / 60
    return np.cumsum(
        history.bytes_up + history.bytes_down if against == "bytes" else history.seconds
    )


def compare(
    histories: History | Iterable[History | list[History]],
    against: str = "rounds",
    what: str = "accuracy",
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
    link: Mapping[str, Any] | None = None,
) -> Axes:
    """Test accuracy (or loss) of several histories; returns the axes.

    ``against`` is ``"rounds"``, ``"bytes"``, ``"seconds"``, or ``"minutes"`` on the ``link`` that
    the arguments of ``fl.link.time`` state. An entry may be a list of histories,
    one a seed: their mean is drawn, with a band from the lowest to the highest.
    """
    many: Any = [histories] if isinstance(histories, History) else histories
    if not isinstance(many, Iterable):
        raise ValueError(f"Histories are drawn, not {short(many)}.")
    groups = [h if isinstance(h, list) else [h] for h in many]
    for history in (h for group in groups for h in group or [group]):
        if not isinstance(history, History) or not history.rows:
            raise ValueError(f"Histories with rounds are drawn, not {short(history)}.")
        if np.ndim(getattr(history, what, [[]])) != 1:
            raise ValueError(f"The history of {history.method} has no column of numbers {what!r}.")
    ax = axes(ax)
    for group, label, style in zip(
        groups, labels or [g[0].method for g in groups], styles(), strict=False
    ):
        values = np.stack([getattr(h, what).astype(float) for h in group])
        seen = ~np.isnan(values[0])
        x, values = np.mean([progress(h, against, link) for h in group], 0)[seen], values[:, seen]
        ax.plot(x, values.mean(0), label=label, **style)
        if len(group) > 1:
            ax.fill_between(
                x, values.min(0), values.max(0), color=style["color"], alpha=0.2, linewidth=0
            )
    if against == "bytes":
        ax.set_xscale("log")
        low, high = ax.get_xlim()  # one label a decade, three where the axis is shorter than that
        ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        ax.xaxis.set_major_formatter(ticker.EngFormatter("B"))
        ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    elif against == "rounds":
        ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    ax.set_xlabel(
        f"minutes: {described(link)}" if link and against == "minutes" else MEASURES[against]
    )
    if against == "minutes":
        ax.set_xscale("log")
    measure = next((h.measure for group in groups for h in group), what)
    ax.set_ylabel("test " + (measure if what == "accuracy" else what))
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def label_counts(task: Task) -> np.ndarray:
    """How many training images, or objects, of each class every client holds: [clients,
    classes]."""
    return np.asarray(task.held)


def partition(task: Task, ax: Axes | None = None) -> Axes:
    """Who holds what: for each client and class a disc whose area is the number of images there.

    Returns the axes.
    """
    counts = label_counts(task)
    ax = axes(ax)
    client, label = np.indices(counts.shape)
    ax.scatter(
        client.ravel(),
        label.ravel(),
        s=160 * counts.ravel() / max(counts.max(), 1),
        color=COLOURS[0],
    )
    ax.set_xlim(-0.7, len(counts) - 0.3)
    ax.set_ylim(-0.7, counts.shape[1] - 0.3)
    # not every client's number: many would run into one another
    ax.set_xticks(range(0, len(counts), 1 + len(counts) // 13))
    ax.set_yticks(range(counts.shape[1]))
    ax.set_xlabel("client")
    ax.set_ylabel("class")
    return ax


def kernels(
    weight: torch.Tensor,
    count: int = 8,
    axs: Sequence[Axes] | None = None,
    limit: float | None = None,
) -> Sequence[Axes]:
    """The first ``count`` kernels of a convolution weight [out, in, k, k], all of input channel 0.

    The colours are those of ``SIGNED``; ``limit`` is the value of the darkest ones, by default the
    largest that is shown. Returns the axes, a new row of them if none are given.
    """
    weight = weight.detach().cpu()
    shown = weight[:count, 0]
    limit = limit or float(shown.abs().max())
    if axs is None:
        axs = plt.subplots(1, count, figsize=(0.8 * count, 1), layout="constrained")[1]
    for ax, kernel in zip(axs, shown, strict=False):
        ax.imshow(kernel, cmap=SIGNED, vmin=-limit, vmax=limit)
        ax.set_xticks([])
        ax.set_yticks([])
    return axs


def panels(
    runs: Mapping[str, History | list[History]], target: float | None = None
) -> Sequence[Axes]:
    """``compare`` twice, in two figures: against rounds and against bytes. Returns the two axes.

    ``runs`` maps labels to histories, or to lists of them, one a seed. ``target`` draws a dotted
    line at that accuracy.
    """
    axs = [compare(runs.values(), by, labels=list(runs)) for by in ("rounds", "bytes")]
    if target is not None:
        for ax in axs:
            ax.axhline(target, color="black", linestyle=":", linewidth=1)
    return axs


def kernel_rows(
    rows: Mapping[str, torch.Tensor], apart: Collection[str] = (), size: float = 0.66
) -> Figure:
    """Rows of kernels [count, in, k, k] under one another, labelled, of input channel 0.

    All rows share the scale of the largest value but those named in ``apart``, which have their
    own.
    """
    count = min(len(w) for w in rows.values())
    figure, axs = plt.subplots(
        len(rows), count, figsize=(0.8 + size * count, size * len(rows)), layout="constrained"
    )
    shared = max(float(w[:count, 0].abs().max()) for m, w in rows.items() if m not in apart)
    for line, (label, w) in zip(axs, rows.items(), strict=True):
        limit = float(w[:count, 0].abs().max()) if label in apart else shared
        kernels(w, count, axs=line, limit=limit)
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    return figure


def pairs(
    spread: np.ndarray,
    values: Sequence[float],
    labels: Sequence[str],
    names: tuple[str, str],
    line: tuple[float, str] | None = None,
    label: str = "",
) -> Axes:
    """Two bars for each label: the mean of a column of ``spread`` with its deviation, light, and
    the value, dark; ``line`` is a level and its name. Returns the axes."""
    ax, x = axes(), np.arange(len(labels))
    mean, deviation = spread.mean(0), spread.std(0)
    ax.bar(x - 0.18, mean, 0.34, yerr=deviation, capsize=3, color="0.75", label=names[0])
    ax.bar(x + 0.18, values, 0.34, color="0.25", label=names[1])
    if line is not None:
        ax.axhline(line[0], linestyle="--", color=COLOURS[1], label=line[1])
    ax.set_xticks(x, labels)
    ax.set(ylabel=label, ylim=(0, 1))
    ax.legend()
    return ax

"""Figures for the chapters: colour-blind-safe, with markers and dashes beside colour so that they read in grey."""

from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np

# Okabe and Ito's palette without its yellow, in an order whose grey values alternate
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS, DASHES = "os^Dv*X", ["-", "--", "-.", ":"]
MEASURES = {"rounds": "round", "bytes": "bytes up and down, all clients", "seconds": "seconds"}


def styles():
    """Colour, marker and dash of one line after another."""
    for colour, marker, dash in zip(cycle(COLOURS), cycle(MARKERS), cycle(DASHES), strict=False):
        yield {"color": colour, "marker": marker, "linestyle": dash, "markersize": 4, "linewidth": 1.6}


def axes(ax=None, size=(5.2, 3.2)):
    """The axes given, or those of a new figure."""
    return ax if ax is not None else plt.subplots(figsize=size, layout="constrained")[1]


def progress(history, against):
    """The horizontal axis of a history: rounds done, bytes sent so far, or seconds so far."""
    if against == "rounds":
        return history.round
    return np.cumsum(history.bytes_up + history.bytes_down if against == "bytes" else history.seconds)


def compare(histories, against="rounds", what="accuracy", labels=None, ax=None):
    """Test accuracy (or loss) of several histories against ``"rounds"``, ``"bytes"`` or ``"seconds"``; returns the axes."""
    if against not in MEASURES:
        raise ValueError(f"compare draws against {', '.join(MEASURES)}, not {against!r}.")
    ax = axes(ax)
    for history, label, style in zip(histories, labels or [h.method for h in histories], styles(), strict=False):
        seen = ~np.isnan(getattr(history, what).astype(float))
        ax.plot(progress(history, against)[seen], getattr(history, what)[seen], label=label, **style)
    if against == "bytes":
        ax.set_xscale("log")
    ax.set_xlabel(MEASURES[against])
    ax.set_ylabel("test " + what)
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def label_counts(task):
    """How many training images of each class every client holds: [clients, classes]."""
    labels = task.train[1].cpu().numpy()
    return np.stack([np.bincount(labels[i], minlength=task.source.classes) for i in task.split.indices])


def partition(task, ax=None):
    """Who holds what: a disc for each client and class whose area is the number of images; returns the axes."""
    counts = label_counts(task)
    ax = axes(ax)
    client, label = np.indices(counts.shape)
    ax.scatter(client.ravel(), label.ravel(), s=160 * counts.ravel() / max(counts.max(), 1), color=COLOURS[0])
    ax.set_xlim(-0.7, len(counts) - 0.3)
    ax.set_ylim(-0.7, counts.shape[1] - 0.3)
    if len(counts) <= 20:
        ax.set_xticks(range(len(counts)))
    ax.set_yticks(range(counts.shape[1]))
    ax.set_xlabel("client")
    ax.set_ylabel("class")
    return ax


def kernels(weight, count=8, axs=None, limit=None):
    """The first ``count`` kernels of a convolution weight [out, in, k, k] (input channel 0), blue - white - red."""
    weight = weight.detach().cpu()
    shown = weight[:count, 0]
    limit = limit or float(shown.abs().max())
    if axs is None:
        axs = plt.subplots(1, count, figsize=(0.8 * count, 1), layout="constrained")[1]
    for ax, kernel in zip(axs, shown, strict=False):
        ax.imshow(kernel, cmap="PuOr", vmin=-limit, vmax=limit)
        ax.set_xticks([])
        ax.set_yticks([])
    return axs

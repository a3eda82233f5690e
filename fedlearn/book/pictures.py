"""Drawings of several chapters: who holds which classes, kernels in rows."""

from collections.abc import Collection, Mapping

import numpy as np
import torch

from ..errors import extra
from ..tasks import Task

with extra("lesson"):
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..plot import COLOURS, SIGNED, axes


def partition(task: Task, ax: Axes | None = None) -> Axes:
    """Who holds what: for each client and class a disc whose area is the number of
    images, and on the left an image of each class."""
    counts = task.class_counts.numpy()
    clients, classes = counts.shape
    ax = axes(ax)
    client, label = np.indices(counts.shape)
    area = 160 * counts / counts.max()
    ax.scatter(client, label, s=area, color=COLOURS[0])
    x, y = task.test
    for c in y.unique().tolist():
        image = x[y == c][0, 0].cpu()
        place = (-1.5, -0.85, c - 0.38, c + 0.38)
        ax.imshow(image, "Greys", aspect="auto", interpolation="none", extent=place)
    ax.set(xlim=(-1.7, clients - 0.3), ylim=(-0.7, classes - 0.3))
    # not every client's number: many would run into one another
    ax.set_xticks(range(0, clients, 1 + clients // 13))
    ax.set_yticks(range(classes))
    ax.set(xlabel="client", ylabel="class")
    return ax


def kernel_rows(
    rows: Mapping[str, torch.Tensor],
    apart: Collection[str] = (),
    size: float = 0.66,
    grey: bool = False,
) -> Figure:
    """Rows of kernels [count, in, k, k] under one another, labelled, of input channel
    0; colours are those of ``SIGNED``, or greys of numbers from 0 on.

    All rows share the scale of the largest value but those named in ``apart``.
    """
    count = min(map(len, rows.values()))
    first = {label: w[:count, 0].detach().cpu() for label, w in rows.items()}
    extent = (0.8 + size * count, size * len(rows))
    figure, axs = plt.subplots(len(rows), count, figsize=extent, layout="constrained")
    limits = {label: float(w.abs().max()) for label, w in first.items()}
    shared = [limit for label, limit in limits.items() if label not in apart]
    low = 0 if grey else -1
    colours = "Greys" if grey else SIGNED
    for line, (label, kernels) in zip(axs, first.items(), strict=True):
        limit = limits[label] if label in apart else max(shared)
        for ax, kernel in zip(line, kernels, strict=True):
            ax.imshow(kernel, cmap=colours, vmin=low * limit, vmax=limit)
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    return figure

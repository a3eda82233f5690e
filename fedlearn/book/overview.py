"""The first page's figure, and the map of the methods: what is sent, how many bytes that takes,
what is lost, who remembers."""

import base64
import io
from typing import TYPE_CHECKING, Any

from .. import methods, tasks
from ..core import run
from ..plot import COLOURS, compare
from .front import runs_of
from .grids import chapter_file
from .show import Shown, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {"nobody": "o", "clients": "s", "server": "^", "both": "D"}
CLOSE = 1.07  # bytes that differ less share a place


def accuracy_of_three(**options: Any) -> "Axes":
    """Accuracy against bytes: FedAvg, one of the papers' methods, and one that remembers."""
    comparison = chapter_file("index")["minutes"]["comparisons"][0]
    stored = runs_of(comparison)
    runs = {line: stored[line] for line in ("FedAvg", "RPN", "STC")}
    return compare(runs.values(), "bytes", labels=list(runs), **options)


def three_lines(number: str, caption: str, alt: str) -> Shown:
    """The same as a figure."""
    return figure(number, accuracy_of_three(), caption, alt)


def measured() -> list[dict[str, Any]]:
    """Each method of the map, with the bytes that a client sends and hears in a round as multiples
    of FedAvg's with the same network, in the order of the page."""
    table, dense = [], dict[str, float]()
    for sent, of_row in chapter_file("index")["map"].items():
        for method, stated in of_row.items():
            about = {"loses": "", "remembers": "nobody", "network": "digits_cnn"} | stated
            if about["network"] not in dense:
                dense[about["network"]] = _traffic("fedavg", about["network"])
            times = _traffic(method, about["network"]) / dense[about["network"]]
            table.append(about | {"sent": sent, "times": times})
    return table


def _traffic(method: str, network: str) -> float:
    """Bytes up and down of the fifth round: DGC warms up for four."""
    task = tasks.classification("digits", clients=10, network=network)
    instance = methods.METHODS[method]()
    rounds = 5 if method == "dgc" else 2
    settings: dict[str, Any] = {"batch_size": 16, "evaluate_every": rounds, "progress": False}
    last = run(instance, task, rounds, engine="auto", **settings).rows[-1]
    return float(last["bytes_up"] + last["bytes_down"])


def methods_map(number: str, caption: str) -> Shown:
    """The poster as a figure, and as a file to download."""
    import matplotlib.pyplot as plt

    places: list[list[Any]] = []  # row, times, marker, words
    for row in measured():
        name = row["name"] + (f" ({row['loses']})" if row["loses"] else "")
        same = [p for p in places if p[0] == row["sent"] and p[2] == row["remembers"]]
        near = next((p for p in same if 1 / CLOSE < p[1] / row["times"] < CLOSE), None)
        if near and not row["loses"]:
            near[3] += f", {name}"
        else:
            places.append([row["sent"], row["times"], row["remembers"], name])
    rows = list(dict.fromkeys(sent for sent, *_ in places))
    fig, ax = plt.subplots(figsize=(5.4, 7.6), layout="constrained")
    y = 0.0
    for sent in rows:
        ax.text(0.011, y, sent, fontsize=11, fontweight="bold", va="center")
        for _, times, who, words in sorted((p for p in places if p[0] == sent), key=lambda p: p[1]):
            y += 0.62
            ax.plot(times, y, MARKERS[who], color=COLOURS[0], markersize=8)
            left = times > 0.25
            ax.annotate(
                words, (times, y), (-8 if left else 8, 0), textcoords="offset points",
                fontsize=10, va="center", ha="right" if left else "left",
            )  # fmt: skip
        y += 0.95
        ax.axhline(y - 0.48, color="0.85", linewidth=1)
    for who, marker in MARKERS.items():
        ax.plot([], [], marker, color=COLOURS[0], markersize=8, label=who)
    ax.legend(
        title="who remembers something", loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=4,
        frameon=False, fontsize=10, title_fontsize=10, handletextpad=0.2, columnspacing=1,
    )  # fmt: skip
    ax.set(xscale="log", xlim=(0.01, 5), ylim=(y - 0.3, -0.5), yticks=[])
    ax.set_xlabel("bytes of a round, up and down: times FedAvg's", fontsize=11)
    ax.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    ax.axvline(1, color="0.6", linestyle=":", linewidth=1)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
    buffer = io.BytesIO()
    fig.savefig(buffer, format="pdf")
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = "; ".join(
        f"{sent}: {words}, {t:.2f} times FedAvg's bytes" for sent, t, _, words in places
    )
    shown = figure(number, ax, caption, alt)
    link = (
        '<p class="fl"><a download="methods.pdf" href="data:application/pdf;base64,'
        f'{data}">The map as a page to print ({len(data) // 1365} kB, PDF)</a></p>'
    )
    return Shown(shown.content + link, shown.text)

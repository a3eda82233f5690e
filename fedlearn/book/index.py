"""The first page and the map of the methods: cards, accuracy against time, and the
poster.

``data/index/chapter.yaml`` names the stored runs. In a card the server is on the left
and the clients are on the right. The parts that a method replaces are filled plates. An
arrow is as wide as the bytes of a stored run, as a share of federated averaging's on
the same network, the pale arrow behind it.
"""

import html
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import link, methods, tasks
from ..core import run
from ..plot import COLOURS
from .claims import by_label
from .drawings import drawing, give_looks, speeds
from .grids import chapter_file, grid
from .show import Chart, Shown, chart, figure

if TYPE_CHECKING:
    import pandas

# ---- cards ---------------------------------------------------------------------------

PARTS = "server downlink uplink model objective optimizer".split()
WIDEST = 17.6  # px: an arrow that carries a dense message


def arrow(start: float, end: float, y: float, share: float) -> str:
    """The corners of an arrow, ``share`` of the widest and never invisible."""
    width = min(2 * WIDEST, max(1.2, WIDEST * share))
    neck = end + (1 if start > end else -1) * max(9.0, 1.1 * width)
    head = max(6.0, 0.95 * width)
    shaft = width / 2
    upper = [(start, -shaft), (neck, -shaft), (neck, -head)]
    lower = [(x, -dy) for x, dy in reversed(upper)]
    corners = [*upper, (end, 0.0), *lower]
    return " ".join(f"{x:.1f},{y + dy:.1f}" for x, dy in corners)


def messages(card: dict[str, Any]) -> dict[str, float]:
    """Bytes of one client in a round of a card's run, down and up, as shares of what
    federated averaging sends with the same network."""
    runs = by_label(card["results"], partition=card["partition"])
    sizes = link.shares(runs[card["line"]][0])
    dense = link.shares(runs[card["dense"]][0])
    return {way: float(sizes[way][1] / dense["up"][1]) for way in ("down", "up")}


def card_picture(chapter: str, card: dict[str, Any]) -> str:
    replaced = [part for part in PARTS if part in chapter_file(chapter)["replaces"]]
    values = {part: "fl-new" if part in replaced else "fl-part" for part in PARTS}
    shares = messages(card)
    for way, start, end, y in (("down", 100, 184, 68), ("up", 184, 100, 120)):
        values[f"{way}_arrow"] = arrow(start, end, y, shares[way])
        values[f"{way}_dense"] = arrow(start, end, y, 1.0)
        values[f"{way}_bytes"] = f"{100 * shares[way]:.3g} %"
    alt = (
        f"{card['title']} replaces {', '.join(replaced) or 'nothing'} of the round. "
        f"One client gets {values['down_bytes']} and sends {values['up_bytes']} of "
        "federated averaging's bytes with the same network."
    )
    picture = Path(__file__).with_name("card.svg").read_text(encoding="utf-8")
    attributes = f'role="img" aria-label="{html.escape(alt)}"'
    return f"<div {attributes}>{picture.format(**values)}</div>"


def cards() -> Shown:
    """FedAvg and the five papers side by side, each with its drawing, a sentence and a
    link."""
    divs = []
    words = []
    for name, card in chapter_file("index")["cards"].items():
        picture = card_picture(name, card)
        title, says = (html.escape(card[key]) for key in ("title", "says"))
        head = f'<h3><a href="{card["page"]}.html">{title}</a></h3>'
        divs.append(f'<div class="fl-card">{head}{picture}<p>{says}</p></div>')
        words.append(f"{card['title']}: {card['says']}")
    return Shown(f'<div class="fl fl-cards">{"".join(divs)}</div>', "\n".join(words))


# ---- accuracy against time -----------------------------------------------------------


def rows(comparison: dict[str, Any]) -> "pandas.DataFrame":
    """A row a line and test: the accuracy, and what one client has sent, received and
    computed so far; means of the seeds."""
    import pandas

    runs = by_label(comparison["results"], partition=comparison["partition"])
    frames = []
    for label, line in comparison["lines"].items():
        histories = runs[label]
        sums = [pandas.DataFrame(link.shares(h)).cumsum() for h in histories]
        frame = sum(sums[1:], sums[0]) / len(sums)
        frame["accuracy"] = np.mean([h.accuracy for h in histories], axis=0)
        frame["round"] = histories[0].round
        frames.append(frame.assign(line=line, runs=comparison["name"]))
    table = pandas.concat(frames).dropna()
    digits = {"accuracy": 4, "computing": 4, "up": 0, "down": 0}
    return table.round(digits).astype({"up": int, "down": int})


def minutes(number: str, caption: str, alt: str) -> Chart:
    """The chart: a choice of links, a slider for the device, and the time to an
    accuracy written into it."""
    import pandas

    comparisons = chapter_file("index")["minutes"]["comparisons"]
    table = pandas.concat(map(rows, comparisons))
    lines = table.groupby("runs", sort=False)["line"].unique().map(list).to_dict()
    picture = drawing("index/minutes", speeds=speeds(), lines=lines)
    picture["data"] = {"values": table.to_dict("records")}
    give_looks(picture, list(table["line"].unique()))
    return chart(number, picture, caption, alt, says={"slower": "saysSlower"})


# ---- the figure of the first page, and the map ---------------------------------------

MARKERS = {"nobody": "o", "clients": "s", "server": "^", "both": "D"}


def everything_and_a_tenth() -> dict[str, Any]:
    """Accuracy against bytes, or rounds, of the two lines of the first page."""
    rows = grid("index")
    rows["megabytes"] = (10 * (rows["up"] + rows["down"]) / 1e6).round(3)
    columns = ["line", "round", "accuracy", "low", "high", "megabytes"]
    data = {"values": rows[columns].to_dict("records")}
    return drawing("index/tenth") | {"data": data}


@cache
def traffic(method: str, network: str) -> float:
    """Bytes of all clients, up and down, in the second round; DGC warms up for four."""
    task = tasks.classification("digits", clients=10, network=network)
    rounds = 5 if method == "dgc" else 2
    last = run(
        methods.METHODS[method](),
        task,
        rounds,
        engine="auto",
        batch_size=16,
        evaluate_every=rounds,
        progress=False,
    ).rows[-1]
    return float(last["bytes_up"] + last["bytes_down"])


def measured() -> "pandas.DataFrame":
    """A row a method of the map; ``times`` are the bytes that a client sends and
    receives in a round, as multiples of FedAvg's with the same network."""
    import pandas

    usual = {"loses": "", "remembers": "nobody", "network": "digits_cnn"}
    table = []
    for sent, group in chapter_file("index")["map"].items():
        for method, entry in group.items():
            row = usual | entry | {"sent": sent}
            dense = traffic("fedavg", row["network"])
            table.append(row | {"times": traffic(method, row["network"]) / dense})
    return pandas.DataFrame(table)


def methods_map(number: str, caption: str) -> Shown:
    """The poster as a figure; methods alike in all that it shows share a point."""
    import matplotlib.pyplot as plt

    keys = ["sent", "remembers", "loses", "times"]
    groups = measured().round({"times": 2}).groupby(keys, sort=False)
    points = groups["name"].agg(", ".join).reset_index()
    points["name"] += points["loses"].map(lambda lost: f" ({lost})" if lost else "")
    _, ax = plt.subplots(figsize=(5.4, 7.6), layout="constrained")
    look = {"color": COLOURS[0], "markersize": 8}
    y = 0.0
    for sent, row in points.groupby("sent", sort=False):
        ax.text(0.011, y, str(sent), fontsize=11, fontweight="bold", va="center")
        for point in row.sort_values("times").itertuples():
            y += 0.62
            ax.plot(point.times, y, MARKERS[point.remembers], **look)
            side = "right" if point.times > 0.25 else "left"
            ax.text(point.times, y, f"   {point.name}   ", va="center", ha=side)
        y += 0.95
        ax.axhline(y - 0.48, color="0.85", linewidth=1)
    for holder, marker in MARKERS.items():
        ax.plot([], [], marker, label=holder, **look)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.07)}
    ax.legend(title="who remembers something", ncols=4, frameon=False, **place)
    ax.set(xscale="log", xlim=(0.01, 5), ylim=(y - 0.3, -0.5), yticks=[])
    ax.set_xlabel("bytes of a round, up and down: times FedAvg's", fontsize=11)
    ax.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    ax.axvline(1, color="0.6", linestyle=":", linewidth=1)
    ax.spines[["left", "right", "top"]].set_visible(False)
    alt = "; ".join(
        f"{point.sent}: {point.name}, {point.times:.2f} times FedAvg's bytes"
        for point in points.itertuples()
    )
    return figure(number, ax, caption, alt)

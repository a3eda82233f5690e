"""The cards of the first page, each with a small drawing of a round.

Server left, clients right. What a method replaces is a filled plate, what it leaves as FedAvg has
it an outline, always in the same place. Arrows are as wide as the bytes that they carried in a
stored run; the pale arrow behind is a dense message of the same network.
"""

import html
from typing import Any

from ..lab import results
from .grids import chapter_file
from .show import Shown

DOWN, UP, PLATE = "#0072B2", "#D55E00", "#E69F00"
PARTS = ("server", "downlink", "uplink", "model", "objective", "optimizer")
WIDEST = 22.0  # px: an arrow that carries a dense message


def kilobytes(count: float) -> str:
    return f"{count / 1e6:,.2f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def width(count: float, dense: float) -> float:
    """Of an arrow, in proportion to the bytes and never invisible."""
    return max(1.5, min(2 * WIDEST, WIDEST * count / dense))


def tag(kind: str, words: str = "", **attributes: Any) -> str:
    """An element of a picture."""
    pairs = " ".join(f'{name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f"<{kind} {pairs}>{html.escape(words)}</{kind}>" if words else f"<{kind} {pairs}/>"


def text(x: float, y: float, words: str, size: int, **style: Any) -> str:
    place: dict[str, Any] = {"x": x, "y": y, "font_size": size, "fill": "currentColor"}
    return tag("text", words, **place | style)


def box(x: float, y: float, width: float, height: float, **style: Any) -> str:
    place: dict[str, Any] = {"x": x, "y": y, "width": width, "height": height, "rx": 9}
    look = {"fill": "none", "stroke": "currentColor", "stroke_width": 1.4}
    return tag("rect", **place | look | style)


def arrow(start: float, end: float, y: float, wide: float, colour: str) -> str:
    way = 1 if end > start else -1
    neck, half = end - way * max(9.0, 1.1 * wide), max(6.0, 0.95 * wide)
    line: dict[str, Any] = {"x1": start, "y1": y, "x2": f"{neck:.1f}", "y2": y, "stroke": colour}
    points = f"{end},{y} {neck:.1f},{y + half:.1f} {neck:.1f},{y - half:.1f}"
    return tag("line", **line, stroke_width=f"{wide:.1f}") + tag(
        "polygon", fill=colour, points=points
    )


def messages(card: dict[str, Any]) -> tuple[float, float, float]:
    """Bytes of one client in a round of a card's run: down, up, and a dense message."""
    runs = {(h.meta.get("label") or h.method): h for h in results.load(card["results"])[::-1]
            if h.meta["task"]["partition"] == card["partition"]}  # fmt: skip
    row, plain = (runs[card[k]].rows[1] for k in ("line", "dense"))
    down, up = (row[f"bytes_{way}"] / len(row["clients"]) for way in ("down", "up"))
    return down, up, plain["bytes_up"] / len(plain["clients"])


def small(name: str, title: str, sizes: tuple[float, float, float], widest: float) -> str:
    """A card's drawing. ``sizes`` are those of its ``messages``; an arrow of ``widest`` bytes is as
    wide as an arrow may be."""
    new = set(chapter_file(name)["replaces"])
    down, up, dense = sizes
    bold = {"font_weight": 700}

    def plate(x: float, y: float, part: str) -> str:
        style = {"fill": PLATE, "stroke": "#1b1f24"} if part in new else {"stroke_dasharray": "4 3"}
        ink = {"fill": "#1b1f24"} | bold if part in new else {}
        return box(x, y, 80, 22, **style | {"stroke_width": 1}) + text(
            x + 8, y + 15, part, 12, **ink
        )

    drawn = [box(3, 48, 92, 92), text(12, 69, "Server", 13, **bold), plate(9, 106, "server")]
    drawn += [box(189, 14, 92, 162), text(198, 35, "Clients", 13, **bold)]
    parts = ("model", "objective", "optimizer")
    drawn += [plate(195, 56 + 38 * k, part) for k, part in enumerate(parts)]
    for way, count, colour, start, end, y, of_plate, below in (
        ("down", down, DOWN, 100, 184, 68, 19, 13),
        ("up", up, UP, 184, 100, 120, 148, 185),
    ):
        whole, part = (arrow(start, end, y, 0.8 * width(n, widest), colour) for n in (dense, count))
        drawn += [f'<g opacity="0.16">{whole}</g>{part}', plate(102, of_plate, f"{way}link")]
        drawn += [text(142, below, kilobytes(count), 12, text_anchor="middle", **bold)]
    replaced = ", ".join(p for p in PARTS if p in new) or "nothing"
    alt = (
        f"{title} replaces {replaced} of the round. {kilobytes(down)} down, {kilobytes(up)} up "
        f"for one client; a dense message has {kilobytes(dense)}."
    )
    picture = (
        '<svg class="fl-small" viewBox="0 0 284 190" aria-hidden="true" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
    )
    return f'<div role="img" aria-label="{html.escape(alt)}">{picture}{"".join(drawn)}</svg></div>'


def cards(start: str = "") -> Shown:
    """FedAvg and the five papers side by side, each with its drawing, a sentence and a link. The
    arrows of all drawings have one scale.

    ``start`` is the path from the page to the book's folder.
    """
    divs, words = [], []
    stated = chapter_file("index")["cards"]
    sizes = {name: messages(card) for name, card in stated.items()}
    widest = max(map(max, sizes.values()))
    for name, card in stated.items():
        drawing = small(name, card["title"], sizes[name], widest)
        divs.append(
            f'<div class="fl-card"><h3><a href="{start}{card["page"]}.html">'
            f"{html.escape(card['title'])}</a></h3>{drawing}<p>{html.escape(card['says'])}</p></div>"
        )
        words.append(f"{card['title']}: {card['says']}")
    return Shown(f'<div class="fl fl-cards">{"".join(divs)}</div>', "\n".join(words))

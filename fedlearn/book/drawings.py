"""The cards of the first page, each with a small drawing of a round.

Server left, clients right. What a method replaces is a filled plate, what it leaves as FedAvg has
it an outline, always in the same place. Arrows are as wide as the bytes that they carried in a
stored run; the pale arrow behind is a dense message of the same network.
"""

import html
import math
from typing import Any

from .. import results
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


class Canvas:
    """A small SVG writer."""

    def __init__(self, w: int, h: int, kind: str) -> None:
        self.w, self.h, self.kind, self.parts = w, h, kind, []  # type: ignore[var-annotated]

    def text(self, x: float, y: float, words: str, size: int = 14, **style: Any) -> None:
        more = " ".join(f'{k.replace("_", "-")}="{v}"' for k, v in style.items())
        more = more if "fill=" in more else f'fill="currentColor" {more}'
        words = html.escape(words)
        self.parts.append(f'<text x="{x}" y="{y}" font-size="{size}" {more}>{words}</text>')

    def box(self, x: float, y: float, w: float, h: float, **style: Any) -> None:
        style = {"fill": "none", "stroke": "currentColor", "stroke-width": 1.4} | {
            k.replace("_", "-"): v for k, v in style.items()
        }
        more = " ".join(f'{k}="{v}"' for k, v in style.items())
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="9" {more}/>')

    def arrow(
        self, a: tuple[float, float], b: tuple[float, float], wide: float, colour: str, dense: float
    ) -> None:
        """A straight arrow from a to b; behind it, pale, the dense one."""
        length = math.dist(a, b)
        ux, uy = (b[0] - a[0]) / length, (b[1] - a[1]) / length
        for w, extra in ((dense, 'opacity="0.16"'), (wide, "")):
            head = max(9.0, 1.1 * w)
            ex, ey = b[0] - ux * head, b[1] - uy * head
            half = max(6.0, 0.95 * w)
            self.parts.append(
                f'<g {extra}><line x1="{a[0]}" y1="{a[1]}" x2="{ex:.1f}" y2="{ey:.1f}" '
                f'stroke="{colour}" stroke-width="{w:.1f}"/><polygon fill="{colour}" points="'
                f"{b[0]},{b[1]} {ex - uy * half:.1f},{ey + ux * half:.1f} "
                f'{ex + uy * half:.1f},{ey - ux * half:.1f}"/></g>'
            )

    def svg(self) -> str:
        return (
            f'<svg class="fl-{self.kind}" viewBox="0 0 {self.w} {self.h}" aria-hidden="true" '
            f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
            f"{''.join(self.parts)}</svg>"
        )


def messages(its: dict[str, Any]) -> tuple[float, float, float]:
    """Bytes of one client in a round of a card's run: down, up, and a dense message."""
    runs = {(h.meta.get("label") or h.method): h for h in results.load(its["results"])[::-1]
            if h.meta["task"]["partition"] == its["partition"]}  # fmt: skip
    row, plain = (runs[its[k]].rows[1] for k in ("line", "dense"))
    down, up = (row[f"bytes_{way}"] / len(row["clients"]) for way in ("down", "up"))
    return down, up, plain["bytes_up"] / len(plain["clients"])


def small(name: str, title: str, sizes: tuple[float, float, float], widest: float) -> str:
    """A card's drawing. ``sizes`` are those of its ``messages``; an arrow of ``widest`` bytes is as
    wide as an arrow may be."""
    new = set(chapter_file(name)["replaces"])
    down, up, dense = sizes
    c = Canvas(284, 190, "small")

    def plate(x: float, y: float, part: str) -> None:
        style = {"fill": PLATE, "stroke": "#1b1f24"} if part in new else {"stroke_dasharray": "4 3"}
        c.box(x, y, 80, 22, stroke_width=1, **style)
        ink = {"fill": "#1b1f24", "font_weight": 700} if part in new else {}
        c.text(x + 8, y + 15, part, 12, **ink)

    c.box(3, 48, 92, 92)
    c.text(12, 69, "Server", 13, font_weight=700)
    plate(9, 106, "server")
    c.box(189, 14, 92, 162)
    c.text(198, 35, "Clients", 13, font_weight=700)
    for k, part in enumerate(("model", "objective", "optimizer")):
        plate(195, 56 + 38 * k, part)
    for way, count, colour, ends, y, below in (
        ("down", down, DOWN, ((100, 68), (184, 68)), 19, 13),
        ("up", up, UP, ((184, 120), (100, 120)), 148, 185),
    ):
        c.arrow(*ends, 0.8 * width(count, widest), colour, 0.8 * width(dense, widest))
        plate(102, y, f"{way}link")
        c.text(142, below, kilobytes(count), 12, text_anchor="middle", font_weight=700)
    what = ", ".join(p for p in PARTS if p in new) or "nothing"
    alt = (
        f"{title} replaces {what} of the round. {kilobytes(down)} down, {kilobytes(up)} up "
        f"for one client; a dense message has {kilobytes(dense)}."
    )
    return f'<div role="img" aria-label="{html.escape(alt)}">{c.svg()}</div>'


def cards(start: str = "") -> Shown:
    """FedAvg and the five papers side by side, each with its drawing, a sentence and a link. The
    arrows of all drawings have one scale.

    ``start`` is the path from the page to the book's folder.
    """
    made, words = [], []
    stated = chapter_file("index")["cards"]
    sizes = {name: messages(its) for name, its in stated.items()}
    widest = max(map(max, sizes.values()))
    for name, its in stated.items():
        drawing = small(name, its["title"], sizes[name], widest)
        made.append(
            f'<div class="fl-card"><h3><a href="{start}{its["page"]}.html">'
            f"{html.escape(its['title'])}</a></h3>{drawing}<p>{html.escape(its['says'])}</p></div>"
        )
        words.append(f"{its['title']}: {its['says']}")
    return Shown(f'<div class="fl fl-cards">{"".join(made)}</div>', "\n".join(words))

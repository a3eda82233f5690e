"""The drawing of a round, one visual language for all methods, made by code, and the cards of the
first page, each with a small one.

Server left, clients right. What a method replaces is a filled plate, what it leaves as FedAvg has
it an outline, always in the same place. Arrows are as wide as the bytes that they carried in the
run that is given; the pale arrow behind is a dense message of the same network. Buttons step
through the round without a script. ``data/chapters/<name>.yaml`` states the words.
"""

import html
import itertools
import math
from typing import Any

from .. import results
from ..history import History
from .grids import chapter_file
from .show import Shown, said

DOWN, UP, PLATE = "#0072B2", "#D55E00", "#E69F00"
FEDAVG = {
    "server": "weighted mean",
    "downlink": "dense model",
    "uplink": "dense update",
    "model": "the task's network",
    "objective": "the task's loss",
    "optimizer": "SGD",
}
WIDEST = 22.0  # px: an arrow that carries a dense message
_unique = itertools.count()


def kilobytes(count: float) -> str:
    return f"{count / 1e6:,.2f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def width(count: float, dense: float) -> float:
    """Of an arrow, in proportion to the bytes and never invisible."""
    return max(1.5, min(2 * WIDEST, WIDEST * count / dense))


class Canvas:
    """A small SVG writer; ``step`` puts what follows into a group that a button lights up."""

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

    def chip(self, x: float, y: float, w: float, name: str, words: str, new: bool) -> None:
        """A part of the round: filled if the method replaces it, an outline if not."""
        if new:
            self.box(x, y, w, 40, fill=PLATE, stroke="#1b1f24")
        else:
            self.box(x, y, w, 40, stroke_dasharray="4 3", stroke_width=1, opacity=0.75)
        ink = {"fill": "#1b1f24"} if new else {}
        self.text(x + 9, y + 16, name, 12, font_weight=700, **ink)
        self.text(x + 9, y + 33, words, 13, **ink)

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

    def step(self, where: str) -> None:
        self.parts.append(f'<g data-at="{where}">')

    def end(self) -> None:
        self.parts.append("</g>")

    def svg(self) -> str:
        return (
            f'<svg class="fl-{self.kind}" viewBox="0 0 {self.w} {self.h}" aria-hidden="true" '
            f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
            f"{''.join(self.parts)}</svg>"
        )


def draw(spec: dict[str, Any], down: float, up: float, dense: float, narrow: bool) -> str:
    """One form of the drawing; ``down`` and ``up`` are the bytes of one client in one round."""
    parts, new = FEDAVG | spec["replaces"], set(spec["replaces"])

    def chip(c: Canvas, x: float, y: float, w: float, name: str) -> None:
        c.chip(x, y, w, name, parts[name], name in new)

    side = ("model", "objective", "optimizer")
    if narrow:
        c = Canvas(380, 622, "narrow")
        server, clients = (10, 10, 360, 96), (10, 368, 360, 248)
        arrows = ((60, 114), (60, 350)), ((320, 350), (320, 114))
        links = (100, 160), (100, 262)
    else:
        c = Canvas(820, 312, "wide")
        server, clients = (10, 70, 236, 170), (590, 24, 216, 262)
        arrows = ((262, 106), (572, 106)), ((572, 214), (262, 214))
        links = (300, 20), (300, 252)
    x, y, w, h = server
    c.step("server")
    c.box(x, y, w, h)
    c.text(x + 14, y + 25, "Server", 16, font_weight=700)
    for k, line in enumerate(spec["server"]):
        c.text(x + 14, y + 48 + 19 * k, line)
    chip(
        c,
        x + (190 if narrow else 12),
        y + (12 if narrow else h - 52),
        158 if narrow else 212,
        "server",
    )
    c.end()
    x, y, w, h = clients
    c.step("clients")
    for shift in (10, 5, 0):  # several of them
        c.box(x + shift, y - shift, w - 10, h - 10, stroke_width=1.4 if shift == 0 else 0.8)
    c.text(x + 14, y + 25, "Clients of a round", 16, font_weight=700)
    for k, line in enumerate(spec["clients"]):
        c.text(x + 14, y + 48 + 19 * k, line)
    low = y + 48 + 19 * len(spec["clients"]) - 6
    for k, name in enumerate(side):
        chip(c, x + 12, low + 46 * k, w - 34, name)
    c.end()
    for way, bytes_, colour, ends, (lx, ly) in (
        ("down", down, DOWN, arrows[0], links[0]),
        ("up", up, UP, arrows[1], links[1]),
    ):
        c.step(way)
        c.arrow(*ends, width(bytes_, dense), colour, width(dense, dense))
        wide = 180 if narrow else 228
        chip(c, lx, ly - 14, wide, f"{way}link")
        note = f"{kilobytes(bytes_)} {way}" + (
            "" if abs(dense / bytes_ - 1) < 0.05 else f", {dense / bytes_:.1f} times fewer"
        )
        c.text(lx, ly + 43, note, 13, font_weight=700)
        c.end()
    return c.svg()


def drawing(
    number: str, name: str, history: History, dense: History, caption: str = "", round: int = 1
) -> Shown:
    """``fl.book.drawing("4.2", "rpn", runs["RPN"][0], dense=runs["FedAvg"][0])``.

    The arrows carry the bytes of one client in the ``round``-th round of ``history``, counted from
    0; ``dense`` is a run of FedAvg with the same network.
    """
    spec = chapter_file(name)["drawing"]
    row, plain = history.rows[round], dense.rows[round]
    down, up = (row[f"bytes_{way}"] / len(row["clients"]) for way in ("down", "up"))
    whole = plain["bytes_up"] / len(plain["clients"])
    new = ", ".join(f"{part}: {words}" for part, words in spec["replaces"].items())
    caption = caption or (
        f"A round of {spec['method']}, with arrows as wide as the bytes of one client in this "
        f"chapter's run: {kilobytes(down)} down, {kilobytes(up)} up; pale, FedAvg's "
        f"{kilobytes(whole)}. Filled plates are what it replaces of FedAvg."
    )
    anchor, below = said("Figure", number, caption)
    alt = (
        f"One round of {spec['method']}. The server has {', '.join(spec['server'])}; each client "
        f"has {', '.join(spec['clients'])}. Down go {kilobytes(down)}, {spec['down']}; up go "
        f"{kilobytes(up)}, {spec['up']}. "
        + (f"Replaced parts of FedAvg: {new}." if new else "All six parts are FedAvg's own.")
    )
    its = f"{anchor}-{next(_unique)}"
    buttons, rules, words = [], [], []
    for k, step in enumerate([{"at": "all", "text": "The whole round."}, *spec["steps"]]):
        one = f"{its}-{k}"
        checked = " checked" if k == 0 else ""
        label = "whole round" if k == 0 else f"step {k}"
        buttons.append(
            f'<input type="radio" name="{its}" id="{one}"{checked}><label for="{one}">{label}'
            "</label>"
        )
        on = f"#{its}:has(#{one}:checked)"
        rules.append(f"{on} .s{k} {{ display: block; }}")
        rules.append(f"{on} label[for={one}] {{ outline: 2px solid currentColor; }}")
        if k:
            rules.append(f'{on} [data-at]:not([data-at="{step["at"]}"]) {{ opacity: 0.22; }}')
        words.append(f'<p class="fl-said s{k}">{html.escape(step["text"])}</p>')
    return Shown(
        f'<figure class="fl" id="{its}"><style>{" ".join(rules)}</style><div class="fl-round">'
        f'<div role="img" aria-label="{html.escape(alt)}">'
        f"{draw(spec, down, up, whole, False)}{draw(spec, down, up, whole, True)}</div>"
        f'<div class="fl-steps" role="radiogroup" aria-label="Steps of the round">'
        f"{''.join(buttons)}</div>"
        f'<div aria-live="polite">{"".join(words)}</div></div>{below}</figure>',
        f"Figure {number}. {caption}",
    )


# ---- the cards of the first page -----------------------------------------------------------------


def messages(its: dict[str, Any]) -> tuple[float, float, float]:
    """Bytes of one client in a round of a card's run: down, up, and a dense message."""
    runs = {(h.meta.get("label") or h.method): h for h in results.load(its["results"])[::-1]
            if h.meta["task"]["partition"] == its["partition"]}  # fmt: skip
    row, plain = (runs[its[k]].rows[1] for k in ("line", "dense"))
    down, up = (row[f"bytes_{way}"] / len(row["clients"]) for way in ("down", "up"))
    return down, up, plain["bytes_up"] / len(plain["clients"])


def small(name: str, title: str, sizes: tuple[float, float, float], widest: float) -> str:
    """A card's drawing: the round as in ``drawings``, plates without words. ``sizes`` are those of
    its ``messages``; an arrow of ``widest`` bytes is as wide as an arrow may be."""
    new = set(chapter_file(name)["drawing"]["replaces"])
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
    what = ", ".join(p for p in FEDAVG if p in new) or "nothing"
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

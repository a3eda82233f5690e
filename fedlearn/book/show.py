"""Figures, tables and charts as one call each, the same in JupyterLab, VS Code, Colab
and on the site: HTML with a number, a caption and a text for readers who cannot see.

A number is written out ("4.2"), not counted, because the prose names it and one chapter
is run alone.
"""

import html
import io
import re
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import extra
from ..files import to_json
from ..history import MEASURES
from ..lab.results import summary

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 680  # px of a chart in a notebook
PHONE = 360  # px that a figure has on a screen of 400 px
SMALLEST = 9  # px, the smallest letters there
SPLITS = {
    "main_class:0.8": "a main class each",
    "dirichlet:": "Dirichlet ",
    "shards:2": "two shards each",
    "permuted": "own pixel order",
    "iid": "IID",
}
DECIMALS = re.compile(r"(\.\d\d)\d+")
NUMBER = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?( ?[%×]| ± [\d.,]+)?( \(.*\))?$")


class Shown:
    """What a call shows: HTML, and a plain text for terminals."""

    def __init__(self, content: str, text: str) -> None:
        self.content, self.text = content, text

    def _repr_html_(self) -> str:
        return self.content

    def __repr__(self) -> str:
        return self.text


def figcaption(kind: str, number: str, caption: str) -> tuple[str, str]:
    """An id for links, and the caption with its number as HTML; both must be there."""
    if not re.fullmatch(r"[\dA-Z]+\.\d+b?", number):
        raise ValueError(
            f'A {kind.lower()} has a number such as "4.2", not {number!r}.'
        )
    if not caption.strip():
        raise ValueError(f"{kind} {number} needs a caption.")
    link = ' <a href="../appendix/how_we_measure.md">How we measure</a>'
    below = f"<b>{kind} {number}.</b> {inline(caption)}{link * (kind == 'Table')}"
    anchor = f"{kind}-{number}".lower().replace(".", "-")
    return anchor, f"<figcaption>{below}</figcaption>"


MARKS = re.compile(r"`([^`]+)`|\$([^$]+)\$|(?<!\w)\*(?=\S)([^*]+)(?<=\S)\*")


def inline(text: str) -> str:
    """Escaped text in which `code`, $formulas$ and *emphasis* are marked up; lines
    are joined."""
    return MARKS.sub(_marked, html.escape(" ".join(text.split())))


def _marked(match: re.Match[str]) -> str:
    code, formula, words = match.groups()
    if words:
        return f"<em>{MARKS.sub(_marked, words)}</em>"
    if code:
        return f"<code>{code}</code>"
    return f'<span class="math notranslate nohighlight">\\({formula}\\)</span>'


def svg(figure: "Figure", salt: str) -> str:
    """A matplotlib figure as an SVG element as wide as its place; closes the figure.

    ``ValueError`` if its letters would be smaller than 9 px on a telephone.
    """
    with extra("lesson"):
        import matplotlib.pyplot as plt
        from matplotlib.text import Text

    width = float(figure.get_figwidth())
    texts = (text for text in figure.findobj(Text) if text.get_text())
    size = min(
        (float(text.get_fontsize()) for text in texts if text.get_visible()), default=9
    )
    widest = size * PHONE / SMALLEST / 72
    if width > widest:
        raise ValueError(
            f"Letters of {size:.0f} points in a picture {width:.1f} inches wide are too "
            f"small on a telephone: draw it at most {widest:.1f} inches wide, or as two "
            "panels."
        )
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with plt.rc_context({"svg.hashsalt": salt, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    plt.close(figure)
    _, start, text = buffer.getvalue().partition("<svg")
    # hundredths of a point are enough
    text = re.sub(r' (d|x|y)="[^"]+"', lambda m: DECIMALS.sub(r"\1", m[0]), text)
    # ids are the page's, not the picture's
    text = re.sub(r'(id="|url\(#|href="#)(?=[\w-])', rf"\g<1>{salt}-", text)
    size_in_points = r'width="[\d.]+pt" height="[\d.]+pt"'
    return start + re.sub(size_in_points, 'aria-hidden="true"', text, count=1)


def figure(
    number: str,
    picture: "Figure | Axes | Sequence[Figure | Axes]",
    caption: str,
    alt: str,
) -> Shown:
    """A figure: ``fl.book.figure("4.2", ax, caption="...", alt="...")``.

    ``picture`` is a matplotlib figure, axes of it, or several of them, which stand side
    by side and below one another on a telephone. ``alt`` says what there is to see.
    """
    anchor, below = figcaption("Figure", number, caption)
    if not alt.strip():
        raise ValueError(f"Figure {number} needs an alternative text.")
    several: Any = [picture] if hasattr(picture, "get_figure") else picture
    # axes of one figure are one picture
    figures = {id(figure): figure for figure in (part.get_figure() for part in several)}
    panels = "".join(
        f'<div class="fl-panel">{svg(f, f"{anchor}-{k}")}</div>'
        for k, f in enumerate(figures.values())
    )
    label = html.escape(" ".join(alt.split()))
    return Shown(
        f'<figure class="fl fl-figure" id="{anchor}"><div class="fl-panels" role="img" '
        f'aria-label="{label}">{panels}</div>{below}</figure>',
        f"Figure {number}. {' '.join(caption.split())}",
    )


def missing(command: str) -> str:
    """A table's empty cell: the command that fills it."""
    return (
        '<details class="fl-missing"><summary>not yet run</summary>'
        f"<code>{html.escape(command)}</code></details>"
    )


def cell(value: Any) -> tuple[str, bool]:
    """A value as HTML, and whether it is a number."""
    if not isinstance(value, str):
        if value is None or value != value:
            return "", True
        if isinstance(value, bool):
            return ("yes" if value else "no"), False
        return format(value, ",.0f" if value % 1 == 0 else ",.3f"), True
    if value.startswith('<details class="fl-missing">'):
        return value, False
    if NUMBER.fullmatch(value):  # a telephone may wrap before ±
        text = inline(value).replace(" (", "<br>(")
        return re.sub("(?<=±) | (?=[%×])", "\u00a0", text), True
    return inline(value), value == "not reached"


def in_words(text: str) -> str:
    """A name in which splits are words: "Dirichlet 0.1" for "dirichlet:0.1"."""
    for code, words in SPLITS.items():
        text = text.replace(code, words)
    return text


def table(
    number: str,
    rows: "pandas.DataFrame | Sequence[Mapping[str, Any]]",
    caption: str,
    units: Mapping[str, str] | None = None,
    forms: Mapping[str, str] | None = None,
) -> Shown:
    """A table: a data frame, whose index names the rows, or a list of dictionaries.

    ``units`` stand below a column's head, ``forms`` are formats of its numbers, such as
    ".1%". Numbers are set to the right; on a telephone the table scrolls.
    """
    import pandas

    anchor, above = figcaption("Table", number, caption)
    frame = pandas.DataFrame(rows, dtype=object)
    head = ""
    lines = [""] * len(frame)
    if isinstance(frame.index[0], str):
        corner = str(frame.index.name or "")
        head = f"<th>{inline(corner)}</th>" if corner else "<td></td>"
        lines = [
            f'<th scope="row">{inline(in_words(name))}</th>' for name in frame.index
        ]
    for name, column in frame.items():
        values = column.tolist()
        if forms and name in forms:
            values = [v if pandas.isna(v) else format(v, forms[name]) for v in values]
        cells = [cell(value) for value in values]
        numeric = [kind for text, kind in cells if text and "fl-missing" not in text]
        style = ' class="fl-number"' if numeric and all(numeric) else ""
        below = inline((units or {}).get(name, ""))
        unit = f'<span class="fl-unit">{below}</span>' if below else ""
        title = f'<th scope="col"{style}>{inline(in_words(str(name)))}{unit}</th>'
        head += title if name != "" else "<td></td>"
        pairs = zip(lines, cells, strict=True)
        lines = [f"{line}<td{style}>{text}</td>" for line, (text, _) in pairs]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return Shown(
        f'<figure class="fl" id="{anchor}">{above}<div class="fl-scroll" role="region" '
        f'tabindex="0" aria-label="Table {number}"><table class="fl-table">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>",
        f"Table {number}. {caption}\n{rows}",
    )


def sortable(number: str, frame: "pandas.DataFrame", caption: str, text: str) -> Shown:
    """A table that the reader sorts and searches, by itables and without a network. The
    cells of ``frame`` are HTML; ``text`` is shown in terminals."""
    with extra("book"):
        import itables
        from itables.javascript import generate_init_offline_itables_html

    anchor, above = figcaption("Table", number, caption)
    bundle = generate_init_offline_itables_html(itables.options.dt_bundle)
    script, _, _ = bundle.partition("<div")
    module = re.findall(r"window\.(\w+) = ", script)[0]
    body = frame.to_html(index=False, escape=False, border=0, classes="fl-table")
    places: dict[str, Any] = {"topStart": "search", "topEnd": "info"}
    places |= {"bottomStart": None, "bottomEnd": None}
    options = {"paging": False, "autoWidth": False, "order": [], "layout": places}
    return Shown(
        f'<figure class="fl fl-sortable" id="{anchor}">{above}<div class="fl-scroll" '
        f'role="region" tabindex="0" aria-label="Table {number}">{body}</div></figure>'
        f'{script}<script type="module">'
        f"const {{ ITable }} = await window.{module};"
        f'new ITable(document.querySelector("#{anchor} table"), {to_json(options)});'
        "</script>",
        text,
    )


def runs(
    number: str,
    histories: Mapping[str, Any],
    caption: str,
    target: float | None = None,
    without: Collection[str] = (),
) -> Shown:
    """``fl.summary`` as a table, ``without`` these columns: what each method reached and
    what it cost. Equal bytes up and down share a column."""
    frame = summary(histories, target).drop(columns=[*without])
    if frame["MB up"].equals(frame["MB down"]):
        frame = frame.drop(columns="MB up").rename(columns={"MB down": "MB each way"})
    first: Any = next(iter(histories.values()))
    measure = (first[0] if isinstance(first, list) else first).measure
    reached = "share of test images" if measure == "accuracy" else measure
    units = {"rounds": "run"} | dict.fromkeys(MEASURES, reached)
    units |= {c: "all clients" for c in frame if c.startswith("MB")}
    units |= {c: "count" for c in frame if c.startswith("rounds to")}
    return table(number, frame, caption, units)


class Chart(Shown):
    """A Vega-Lite chart in two outputs: the spec, which Jupyter, VS Code and Colab draw,
    with a still for places without Vega; and HTML with the caption, in which the spec
    lies hidden until the site's script draws it.

    They are two, because JupyterLab would show the HTML of one output in place of its
    spec. A number is the width there: JupyterLab gives a cell outside the window none.
    """

    def __init__(self, spec: dict[str, Any], content: str, text: str) -> None:
        super().__init__(content, text)
        self.spec = spec

    def _ipython_display_(self) -> None:
        with extra("lesson"):
            from IPython.display import display
            from vl_convert import vegalite_to_png

        spec = self.spec | {"width": WIDTH}
        still = b64encode(vegalite_to_png(spec, vl_version="5.20")).decode()
        outputs = {"application/vnd.vegalite.v5+json": spec, "image/png": still}
        display(outputs, raw=True)
        display({"text/html": self.content, "text/plain": self.text}, raw=True)


def chart(
    number: str,
    picture: Any,
    caption: str = "",
    alt: str = "",
    units: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    says: Mapping[str, str] | None = None,
) -> Chart:
    """An Altair chart (or its dictionary), whose sliders move in the page without a
    kernel.

    ``units`` maps parameters to the unit that a screen reader adds to the value; the
    values of the parameters in ``keep`` are there again when the reader comes back to
    the page. ``says`` maps sliders to parameters that hold their value in words. What
    is not given here stands in the chart: ``alt`` as its ``description``, the others in
    its ``usermeta``.
    """
    spec = dict(picture) if isinstance(picture, dict) else picture.to_dict()
    usermeta = spec.get("usermeta", {})
    alt = alt or spec.get("description", "")
    caption = caption or usermeta.get("caption", "")
    anchor, below = figcaption("Figure", number, caption)
    if not alt.strip():
        raise ValueError(f"Figure {number} needs an alternative text.")
    meta = {
        "units": units or usermeta.get("units", {}),
        "keep": list(keep or usermeta.get("keep", ())),
        "says": says or usermeta.get("says", {}),
        "waits": usermeta.get("waits", False),  # for a guess, before it plays itself
    }
    spec |= {"description": " ".join(alt.split()), "usermeta": meta}
    data = to_json(spec, separators=(",", ":")).replace("</", "<\\/")
    picture = (
        f'<figure class="fl"><div class="fl-vega" id="{anchor}" hidden>'
        '<div class="fl-vega-picture"></div>'
        f'<script type="application/json">{data}</script></div>{below}</figure>'
    )
    return Chart(spec, picture, f"Figure {number}. {' '.join(caption.split())}")

"""Figures, tables and charts as one call each, the same in JupyterLab, VS Code, Colab
and on the site: HTML with a number, a caption and a text for readers who cannot see.

A number is written out ("4.2"), not counted, because the prose names it and one chapter
is run alone.
"""

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import extra
from ..files import to_json
from ..history import MEASURES
from ..lab.results import summary

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHONE = 360  # px that a figure has on a screen of 400 px
SMALLEST = 9  # px, the smallest letters there
DECIMALS = re.compile(r"(\.\d\d)\d+")
CURVES = re.compile(
    r'<path d="M ([^CL"]*)((?:C [^CLz"]*){8})z\s*"'
)  # a closed path of eight
POSITIONS = 5  # of a slider, at least
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
    if not re.fullmatch(r"[\dA-Z]+\.\d+", number):
        raise ValueError(
            f'A {kind.lower()} has a number such as "4.2", not {number!r}.'
        )
    if not caption.strip():
        raise ValueError(f"{kind} {number} needs a caption.")
    how = ' <a href="../appendix/how_we_measure.md">How we measure</a>' * (
        kind == "Table"
    )
    return f"{kind.lower()}-{number.replace('.', '-')}", (
        f"<figcaption><b>{kind} {number}.</b> {inline(caption)}{how}</figcaption>"
    )


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


def _disc(curves: re.Match[str]) -> str:
    """A disc of a scatter in a tenth of the letters."""
    (x, bottom), (right, _), (_, top) = (
        map(float, place.split()[-2:])
        for place in (curves[1], *curves[2].split("C")[2:5:2])
    )
    if abs(right - x - abs(bottom - top) / 2) > 0.02:  # not round
        return curves[0]
    return f'<circle cx="{x}" cy="{(bottom + top) / 2:.2f}" r="{right - x:.2f}"'


def svg(figure: "Figure", salt: str) -> str:
    """A matplotlib figure as an SVG element as wide as its place; closes the figure.

    ``ValueError`` if its letters would be smaller than 9 px on a telephone.
    """
    with extra("lesson"):
        import matplotlib.pyplot as plt
        from matplotlib import rc_context
        from matplotlib.text import Text

    width = float(figure.get_figwidth()) * 72
    sizes = [
        float(t.get_fontsize())
        for t in figure.findobj(Text)
        if t.get_text() and t.get_visible()
    ]
    if sizes and min(sizes) * PHONE / width < SMALLEST:
        raise ValueError(
            f"Letters of {min(sizes):.0f} points in a picture "
            f"{width / 72:.1f} inches wide are too "
            f"small on a telephone: draw it at most "
            f"{min(sizes) * PHONE / SMALLEST / 72:.1f} "
            "inches wide, or as two panels."
        )
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": salt, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    text = re.sub(
        r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL
    )
    # hundredths of a point are enough
    text = re.sub(
        r' (d|x|y)="[^"]+"', lambda match: DECIMALS.sub(r"\1", match[0]), text
    )
    text = CURVES.sub(_disc, text)
    # ids are the page's, not the picture's
    text = re.sub(r'(id="|url\(#|href="#)(?=[\w-])', rf"\g<1>{salt}-", text)
    size = f'style="max-width:{width * 4 / 3:.0f}px" aria-hidden="true"'
    return re.sub(
        r'(<svg [^>]*?) ?width="[^"]*pt"', rf"\1 {size}", text, count=1
    ).replace(
        f' height="{re.search(r"height=.([^ ]*)pt", text).group(1)}pt"',  # type: ignore[union-attr]
        "",
        1,
    )


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
    if isinstance(value, str):
        if value.startswith('<details class="fl-missing">'):
            return value, False
        if not NUMBER.fullmatch(value):
            return inline(value), value == "not reached"
        return inline(value).replace(
            " (", "<br>("
        ), True  # numbers do not wrap by themselves
    if value is None or value != value:
        return "", True
    if isinstance(value, bool):
        return ("yes" if value else "no"), False
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}", True
    return f"{value:,.3f}", True


def table(
    number: str,
    rows: "pandas.DataFrame | Sequence[Mapping[str, Any]]",
    caption: str,
    units: Mapping[str, str] | None = None,
    forms: Mapping[str, str] | None = None,
) -> Shown:
    """A table: a data frame, whose index names the rows, or a list of dictionaries.

    ``units`` says under a column's head what its numbers are counted in, ``forms`` how
    they are written, such as ".1%". Numbers are set to the right; on a telephone the
    table scrolls.
    """
    anchor, above = figcaption("Table", number, caption)
    frame: Any = rows
    if hasattr(frame, "to_dict"):
        named = [str(i) for i in frame.index] if isinstance(frame.index[0], str) else []
        head = [str(c) for c in frame.columns]
        corner = str(frame.index.name or "")
        body = frame.to_numpy(object).tolist()
    else:
        head = list(frame[0])
        corner = ""
        named = []
        body = [list(row.values()) for row in frame]
    for k, form in ((head.index(name), form) for name, form in (forms or {}).items()):
        for row in body:
            row[k] = (
                row[k] if row[k] is None or row[k] != row[k] else format(row[k], form)
            )
    cells = [[cell(value) for value in row] for row in body]
    columns = [
        [row[k] for row in cells if row[k][0] and "fl-missing" not in row[k][0]]
        for k in range(len(head))
    ]
    right = [
        bool(column) and all(is_number for _, is_number in column) for column in columns
    ]
    kind = [' class="fl-number"' if r else "" for r in right]
    units = units or {}
    top = (f"<th>{inline(corner)}</th>" if corner else "<td></td>") if named else ""
    for name, style in zip(head, kind, strict=True):
        unit = (
            f'<span class="fl-unit">{inline(units[name])}</span>'
            if name in units
            else ""
        )
        top += (
            f'<th scope="col"{style}>{inline(name)}{unit}</th>' if name else "<td></td>"
        )
    lines = []
    for k, row in enumerate(cells):
        line = f'<th scope="row">{inline(named[k])}</th>' if named else ""
        line += "".join(
            f"<td{style}>{v}</td>" for (v, _), style in zip(row, kind, strict=True)
        )
        lines.append(f"<tr>{line}</tr>")
    return Shown(
        f'<figure class="fl" id="{anchor}">{above}<div class="fl-scroll" role="region" '
        f'tabindex="0" aria-label="Table {number}"><table '
        f'class="fl-table"><thead><tr>{top}</tr>'
        f"</thead><tbody>{''.join(lines)}</tbody></table></div></figure>",
        f"Table {number}. {caption}\n{rows}",
    )


def sortable(
    number: str,
    frame: "pandas.DataFrame",
    caption: str,
    style: str = "",
    text: str = "",
) -> Shown:
    """A table that the reader sorts and searches, by itables and without a network.

    The cells of ``frame`` are HTML. ``style`` is a class of the style sheet, and
    ``text`` is shown in terminals.
    """
    with extra("book"):
        import itables
        from itables.javascript import generate_init_offline_itables_html

    anchor, above = figcaption("Table", number, caption)
    bundle = generate_init_offline_itables_html(itables.options.dt_bundle)
    script = bundle.partition("<div")[0]
    module = re.findall(r"window\.(\w+) = ", script)[0]
    body = frame.to_html(index=False, escape=False, border=0, classes="fl-table")
    options = {
        "paging": False,
        "autoWidth": False,
        "order": [],
        "layout": {
            "topStart": "search",
            "topEnd": "info",
            "bottomStart": None,
            "bottomEnd": None,
        },
    }
    return Shown(
        f'<figure class="fl fl-sortable {style}" id="{anchor}">{above}'
        f'<div class="fl-scroll" role="region" tabindex="0" '
        f'aria-label="Table {number}">'
        f'{body}</div></figure>{script}<script type="module">'
        f"const {{ ITable }} = await window.{module};"
        f'new ITable(document.querySelector("#{anchor} table"), '
        f"{to_json(options)});</script>",
        text or f"Table {number}. {caption}\n{frame}",
    )


def runs(
    number: str,
    histories: Mapping[str, Any],
    caption: str,
    target: float | None = None,
    megabytes: float | None = None,
) -> Shown:
    """``fl.summary`` as a table: what each method reached and what it cost."""
    frame = summary(histories, target, megabytes)
    first: Any = next(iter(histories.values()))
    measure = (first[0] if isinstance(first, list) else first).measure
    reached = "share of test images" if measure == "accuracy" else measure
    units = {"rounds": "run"} | dict.fromkeys(MEASURES, reached)
    units |= {c: "all clients" for c in frame if c.startswith("MB")}
    units |= {c: reached for c in frame if c.startswith("accuracy at")}
    units |= {c: "count" for c in frame if c.startswith("rounds to")}
    return table(number, frame, caption, units)


class Chart(Shown):
    """A Vega-Lite chart in two outputs: the spec alone, which Jupyter, VS Code and
    Colab draw, and HTML with the caption, in which the spec lies hidden until the
    site's script draws it.

    They are two, because JupyterLab would show the HTML of one output in place of its
    spec.
    """

    def __init__(
        self, spec: dict[str, Any], anchor: str, below: str, text: str
    ) -> None:
        data = to_json(spec, separators=(",", ":")).replace("</", "<\\/")
        picture = (
            f'<figure class="fl"><div class="fl-vega" id="{anchor}" hidden>'
            '<div class="fl-vega-picture"></div>'
            f'<script type="application/json">{data}</script></div>{below}</figure>'
        )
        super().__init__(picture, text)
        self.spec = spec

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"application/vnd.vegalite.v5+json": self.spec}, raw=True)
        display({"text/html": self.content, "text/plain": self.text}, raw=True)


def chart(
    number: str,
    picture: Any,
    caption: str,
    alt: str,
    units: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    **more: Any,
) -> Chart:
    """An Altair chart (or its dictionary), whose sliders move in the page without a
    kernel.

        A slider needs a name that says what it sets, and at least five positions.
        ``units`` maps parameters to the unit that a screen reader adds to the value;
        the values of the parameters in
        ``keep`` are there again when the reader comes back to the page. ``more`` is for
        the page's script: ``says`` maps sliders to parameters that hold their value in
        words,
        ``moved`` to the parameters, with values, that a hand on the slider sets.
    """
    anchor, below = figcaption("Figure", number, caption)
    spec = dict(picture) if isinstance(picture, dict) else picture.to_dict()
    if not alt.strip():
        raise ValueError(f"Figure {number} needs an alternative text.")
    for p in spec.get("params", []):
        bind = p.get("bind")
        if not isinstance(bind, dict):
            continue
        if not str(bind.get("name", "")).strip():
            raise ValueError(
                f"The control {p['name']!r} of figure {number} needs a name."
            )
        if bind.get("input") == "range":
            count = (bind["max"] - bind["min"]) / bind.get("step", 1) + 1
            if count < POSITIONS - 1e-9:
                raise ValueError(
                    f"The slider {p['name']!r} has fewer than {POSITIONS} positions."
                )
    spec |= {
        "description": " ".join(alt.split()),
        "usermeta": {"units": dict(units or {}), "keep": list(keep), **more},
    }
    return Chart(spec, anchor, below, f"Figure {number}. {' '.join(caption.split())}")

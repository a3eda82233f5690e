"""A table that the reader sorts by its heads and filters by a form. Without scripts the whole table
is there; ``sortable.js`` moves it, and ``page`` is a file of its own that brings everything along.
"""

import html
from collections.abc import Iterable, Mapping
from pathlib import Path

from .show import inline, said

HERE = Path(__file__).parent


def choose(name: str, options: Mapping[str, str], start: str = "") -> str:
    """A filter: of each entry the attribute ``data-<name>`` must be the chosen key of ``options``,
    which is said in its words; ``start`` is chosen at first, "" is all."""
    inside = "".join(
        f'<option value="{html.escape(k)}">{html.escape(v)}</option>'
        for k, v in {"": "all", **options}.items()
    )
    begin = f' data-start="{html.escape(start)}"' if start else ""
    return f'<label>{name} <select name="{name}"{begin}>{inside}</select></label>'


def find(label: str, example: str) -> str:
    """The field that filters by words."""
    return f'<label>{label} <input type="search" name="text" placeholder="{example}"></label>'


def table(
    number: str,
    caption: str,
    what: str,
    heads: Mapping[str, str],
    bodies: Iterable[str],
    form: Iterable[str],
    kind: str,
    units: Mapping[str, str] | None = None,
) -> str:
    """A figure with a form of ``choose`` and ``find`` above the table.

    ``what`` is what the entries are called, ``heads`` maps a column's name to its order: "place"
    (as they stand), "text", words between bars, or "" for numbers. ``bodies`` are an entry each, a
    ``<tbody>`` whose first line has a cell a column. ``kind`` is a class for styles, ``units`` what
    a column's numbers are counted in, which then stand to the right.
    """
    anchor, above = said("Table", number, caption)
    top = ""
    for name, order in heads.items():
        unit = (units or {}).get(name)
        below = f'<span class="fl-unit">{inline(unit)}</span>' if unit else ""
        rule = f' data-order="{html.escape(order)}"' if order else ""
        rule += ' class="fl-number"' if unit else ""
        top += f'<th scope="col"{rule}>{inline(name)}{below}</th>'
    return (
        f'<figure class="fl fl-sortable {kind}" id="{anchor}" data-what="{what}">{above}'
        f'<form class="fl-controls" hidden>{"".join(form)}<output aria-live="polite"></output>'
        f'</form><div class="fl-scroll" role="region" tabindex="0" aria-label="Table {number}">'
        f'<table class="fl-table"><thead><tr>{top}</tr></thead>{"".join(bodies)}</table></div>'
        "</figure>"
    )


def page(title: str, content: str) -> str:
    """A whole HTML page around ``content``, with styles and script in it: it needs nothing else,
    and is dark where the reader's system is."""
    styles, script = ((HERE / f).read_text(encoding="utf-8") for f in ("book.css", "sortable.js"))
    dark = 'matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>"
        "<style>:root { color-scheme: light dark; } "
        "body { font-family: system-ui, sans-serif; line-height: 1.5; margin: 1rem; }\n"
        f"{styles}</style><script>document.documentElement.dataset.theme = {dark};</script>"
        f"</head><body><main><h1>{html.escape(title)}</h1>\n{content}\n</main>"
        f"<script>{script}</script></body></html>\n"
    )

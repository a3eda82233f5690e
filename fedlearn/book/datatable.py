"""A table that the reader sorts and searches. Without scripts the whole table is there; DataTables,
which itables brings along, moves it, with no network."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from ..errors import extra
from ..files import to_json
from .show import figcaption, inline

NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+")
Cell = str | tuple[str, float]  # HTML; and its place in the order, if its text does not say it


@cache
def bundle() -> tuple[str, str]:
    """The script that makes DataTables a module of the page, and the variable with this module."""
    with extra("lesson"):
        import itables
        from itables.javascript import generate_init_offline_itables_html

    text = generate_init_offline_itables_html(itables.options.dt_bundle).partition("<div")[0]
    return text, "window." + re.findall(r"window\.(\w+) = ", text)[0]


def table(
    number: str,
    caption: str,
    noun: str,
    heads: Iterable[str],
    rows: Iterable[Sequence[Cell]],
    units: Mapping[str, str],
    kind: str,
) -> str:
    """A figure of a table under a field that searches in all its columns.

    ``noun`` is what the rows are called, ``units`` of the columns with numbers what is counted;
    ``kind`` is a class for styles.
    """
    anchor, above = figcaption("Table", number, caption)
    top, columns = "", []
    for name, texts in zip(heads, zip(*rows, strict=True), strict=True):
        right = ' class="fl-number"' * (name in units)
        unit = f'<span class="fl-unit">{inline(units[name])}</span>' if units.get(name) else ""
        top += f'<th scope="col"{right}>{inline(name)}{unit}</th>'
        ordered: Sequence[Cell] = texts
        if name in units and not all(NUMBER.fullmatch(text) for text in texts):
            ordered = [(text, first_number(text)) for text in texts]
        columns.append([cell(text, right) for text in ordered])
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
    options = {
        "paging": False,
        "autoWidth": False,
        "order": [],
        "layout": {"topStart": "search", "topEnd": "info", "bottomStart": None, "bottomEnd": None},
        "language": {
            "search": "only with these words ",
            "info": f"_TOTAL_ {noun}",
            "infoEmpty": f"no {noun}",
            "infoFiltered": "of _MAX_",
            "zeroRecords": f"no {noun} with these words",
        },
    }
    script, module = bundle()
    return (
        f'<figure class="fl fl-sortable {kind}" id="{anchor}">{above}'
        f'<div class="fl-scroll" role="region" tabindex="0" aria-label="Table {number}">'
        f'<table class="fl-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
        f'</figure>{script}<script type="module">'
        f"const {{ ITable }} = await {module};"
        f'new ITable(document.querySelector("#{anchor} table"), {to_json(options)});</script>'
    )


def first_number(text: str) -> float:
    """The number that a text begins with; other texts come behind all numbers."""
    digits = NUMBER.match(text)
    return float(digits[0].replace(",", "")) if digits else 1e99


def cell(value: Cell, attributes: str) -> str:
    """A cell as HTML."""
    if isinstance(value, tuple):
        return f'<td{attributes} data-order="{value[1]:.12g}">{value[0]}</td>'
    return f"<td{attributes}>{value}</td>"

"""Local Sphinx extension: a page a method, below `methods/`, and a list of them.

Nothing on these pages is written by hand: equations are the docstring of the method's
file, parts those of the method with its defaults, bytes those that `fedlearn.cost`
counts, and results all stored runs, with the command that makes them again. A book
whose _toc.yml has no `methods/` gets none.
"""

import html
import inspect
import re
import sys
import textwrap
from pathlib import Path

import nbformat

NETWORK, INPUT = "digits_cnn", "1x8x8"
INDEX = """\
# The methods

Each has a page: equations, parts, deviations from the paper, bytes, stored runs. The
bytes are what one client sends and hears in a round with `{network}`, of {numbers}
numbers. Where there is none, the method brings a network along.
[The map](../start/map.md) shows what each leaves out.

| method | kB up | kB down | from |
|---|---:|---:|---|
{rows}
"""
PAGE = """\
# {title}

{about}

`fedlearn run {name}` trains it{also}; its code is `{source}`.

## Parts

{parts}

## Call

```{{eval-rst}}
.. autofunction:: fedlearn.methods.{name}
```

## Bytes

{bytes}

## Results

{results}

## Where it is used

{used}

{classes}
"""
ALONE = "Federated averaging with the default of every part."
NO_RUN = "No run of it is stored beside those of its chapters."


def titles():
    """The methods by name, as they are written in prose: as the map has them."""
    from fedlearn.book.grids import chapter_file
    from fedlearn.methods import METHODS

    rows = chapter_file("index")["map"].values()
    written = {name: its["name"] for row in rows for name, its in row.items()}
    return {name: written.get(name, name) for name in METHODS}


def markdown(doc):
    """A docstring as Markdown: what is indented in it is equations."""
    blocks = inspect.cleandoc(doc).replace("::\n", ":\n").split("\n\n")
    text = ""
    for block in blocks:
        if block.startswith(" "):
            text += f"```text\n{textwrap.dedent(block)}\n```\n\n"
        else:  # words that Markdown would read as its own signs
            text += re.sub(r"([*_<\\])", r"\\\1", block).replace("``", "`") + "\n\n"
    return re.sub(r"(?<=`)[^`]*(?=`)", lambda m: m[0].replace("\\", ""), text).strip()


def parts_of(function):
    """The parts in which the method differs from federated averaging."""
    from fedlearn.core import Averaging

    base, parts = Averaging().parts(), function().parts()
    rows = [f"| {k} | `{v}` |" for k, v in parts.items() if v != base.get(k)]
    return "\n".join(["| part | is |", "|---|---|", *rows]) if rows else ALONE


def kilobytes(row, way):
    if row is None:  # it sends nothing
        return "0.0"
    return f"{row[way] / 1e3:.1f}" if has_form(row) else ""


def has_form(row):
    """Whether the method could be measured with the network."""
    return row["factor"] == row["factor"]  # it is NaN elsewhere


def bytes_of(row, numbers):
    if row is None:
        return "It sends nothing."
    if not has_form(row):
        return f"It {row['note']}: the bytes of stored runs stand below."
    return (
        f"A client sends {row['up']:,} bytes in a round and hears {row['down']:,}, "
        f"with `{NETWORK}`, of {numbers:,} numbers: {row['factor']:.2f} times fewer "
        f"than FedAvg. `fedlearn cost {NETWORK} --input {INPUT}` counts them, and "
        "those of a network of yours."
    )


def users(srcdir, names):
    """The chapters whose code names a method: their titles and places, by method."""
    toc = (Path(srcdir) / "_toc.yml").read_text(encoding="utf-8")
    found = {name: [] for name in names}
    for page in re.findall(r"^\W*file: (\S+)$", toc, re.MULTILINE):
        path = Path(srcdir, page).with_suffix(".ipynb")
        if not path.exists():
            continue
        cells = nbformat.read(path, 4).cells
        code = "\n".join(c.source for c in cells if c.cell_type == "code")
        title = cells[0].source.splitlines()[0].lstrip("# ")
        for name in names:
            if re.search(rf"\bmethods\.{name}\(|[\"']{name}[\"']", code):
                found[name].append(f"* [{title}](../{page}.ipynb)")
    return found


def results_of(runs, title):
    """The stored runs of a method: a row for runs that differ in the seed."""
    import pandas
    from fedlearn.book import setup, show
    from fedlearn.lab.results import spread

    if runs.empty:
        return NO_RUN
    rows = []
    kinds = "file label task dataset network clients partition rounds".split()
    for _, seeds in runs.groupby(kinds, sort=False):
        first = seeds.iloc[0]
        rows.append(
            {
                "method": first["label"],
                "data": first["dataset"],
                "network": first["network"],
                "clients": first["clients"],
                "split": first["partition"],
                "rounds": first["rounds"],
                "seeds": len(seeds),
                "last test": spread(list(seeds["last test"])),
                "last quarter": spread(list(seeds["last quarter"])),
                "measure": first["measure"],
                "command": f"<code>{html.escape(first['command'])}</code>",
            }
        )
    caption = f"Stored runs of {title}: mean and standard deviation over the seeds."
    table = show.sortable("M.1", pandas.DataFrame(rows), caption, caption).content
    return f"```{{raw}} html\n{setup.styles().content}{table}\n```"


def classes_of(module, elsewhere):
    """The documented classes of its file, and the further functions. Where they have
    their place on the page of another method, the index names that one alone."""
    names = [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and getattr(thing, "__module__", "") == module.__name__
        and (inspect.isclass(thing) or inspect.isfunction(thing))
        and thing.__doc__
        and name not in sys.modules["fedlearn.methods"].METHODS
    ]
    if not names:
        return ""
    auto = "\n".join(
        f".. auto{'class' if inspect.isclass(vars(module)[name]) else 'function'}:: "
        f"{module.__name__}.{name}\n" + "   :no-index:\n" * elsewhere
        for name in names
    )
    return f"## In its file\n\n```{{eval-rst}}\n{auto}\n```\n"


def write(app, config):
    """Before the table of contents is read: its pages must be there."""
    toc = Path(app.srcdir) / "_toc.yml"
    if "methods/" not in toc.read_text(encoding="utf-8"):
        return
    from fedlearn.costs import cost
    from fedlearn.lab import results
    from fedlearn.methods import METHODS

    written = titles()
    costs = cost(NETWORK, INPUT)
    numbers = costs.attrs["numbers"]
    runs, _ = results.tables()
    used = users(app.srcdir, METHODS)
    rows, pages, seen = [], {}, set()
    for name, function in METHODS.items():
        module = sys.modules[function.__module__]
        about = markdown(module.__doc__)
        joined = written[name].replace("-", "")  # which people search for
        row = costs.loc[name] if name in costs.index else None
        pages[name] = PAGE.format(
            title=written[name],
            also=f" ({joined}, in one word)" if joined != written[name] else "",
            name=name,
            about=about,
            source=module.__name__.replace(".", "/") + ".py",
            parts=parts_of(function),
            bytes=bytes_of(row, numbers),
            results=results_of(runs[runs["method"] == name], written[name]),
            used="\n".join(used[name]),
            classes=classes_of(module, module in seen),
        )
        kb = [kilobytes(row, way) for way in ("up", "down")]
        seen.add(module)
        first = " ".join(about.split("\n\n")[0].split()).rstrip(":")
        rows.append(f"| [{written[name]}]({name}.md) | {kb[0]} | {kb[1]} | {first} |")
    pages["index"] = INDEX.format(
        network=NETWORK, numbers=f"{numbers:,}", rows="\n".join(rows)
    )
    folder = Path(app.srcdir) / "methods"
    folder.mkdir(exist_ok=True)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def no_edit(app, page, template, context, doctree):
    """The repository has no such page to edit."""
    if page.startswith("methods/"):
        for group in context["header_buttons"]:
            buttons = group.get("buttons", [])
            buttons[:] = [b for b in buttons if b.get("label") != "source-edit-button"]


def name_fold(app, page, template, context, doctree):
    """The theme's fold of pages below another has a picture and no words."""
    if tree := context.get("generate_toctree_html"):

        def named(*args, **kwargs):
            made = tree(*args, **kwargs)
            for summary in made.select("summary"):
                summary["aria-label"] = "a page each"
            return made

        context["generate_toctree_html"] = named


def setup(app):
    app.connect("config-inited", write, priority=100)  # before sphinx-external-toc
    app.connect("html-page-context", no_edit, priority=502)  # after the theme's
    app.connect("html-page-context", name_fold, priority=502)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

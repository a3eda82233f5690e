"""Of every lesson of the built site a deck of slides with speaker's
notes, and a cheat sheet of a page. Both are cut out of the page: headings, figures,
formulas, code."""

import html
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urljoin

from bs4 import BeautifulSoup, Tag

SITE = Path(__file__).resolve().parents[1] / "_build" / "html"
STYLE = """
.reveal { font-family: sans-serif; font-size: 26px; }
.reveal h1, .reveal h2 { font-family: sans-serif; text-transform: none; }
.reveal h1, .reveal h2 { font-size: 1.7em; }
.reveal p, .reveal li { text-align: left; line-height: 1.5; }
.reveal section { padding: 0 1em; }
.reveal pre { font-size: 0.72em; width: 100%; box-shadow: none; }
.reveal figcaption, .reveal .vega-bindings { font-size: 0.62em; max-width: none; }
.reveal table { font-size: 0.7em; }
.reveal blockquote { width: 90%; font-style: normal; }
.reveal .headerlink, .reveal button { display: none; }
.sheet { font: 11px/1.45 sans-serif; columns: 2; column-gap: 2rem; }
.sheet { max-width: 62rem; margin: 1rem auto; }
.sheet h1 { font-size: 1.5em; column-span: all; }
.sheet h2 { font-size: 1.1em; margin: 0.8em 0 0.2em; }
.sheet pre { white-space: pre-wrap; font-size: 10px; background: #f3f5f8; }
@page { size: A4 landscape; margin: 12mm; }
"""
DECK = """<!doctype html>
<html lang="en" data-content_root="../">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<link rel="stylesheet" href="reveal/reveal.css">
<link rel="stylesheet" href="reveal/white.css">
<link rel="stylesheet" href="../_static/pygments.css">
<style>{styles}</style>{scripts}
</head>
<body>{body}</body>
</html>
"""
# before the page's own scripts: require.js would take it for a module
REVEAL = (
    '<script src="reveal/reveal.js"></script><script src="reveal/notes.js"></script>'
)
START = """<script>
Reveal.initialize({hash: true, viewDistance: 99, plugins: [RevealNotes]});
</script>"""


def lessons() -> list[str]:
    """The pages behind which there is an audit, in the order of their names."""
    audits = sorted(SITE.glob("*/*_audit.html"))
    return [a.relative_to(SITE).as_posix().replace("_audit", "") for a in audits]


def words(paragraph: Tag) -> str:
    return " ".join(paragraph.get_text().split())


def heading_of(section: Tag) -> str:
    return words(section.find(["h1", "h2", "h3"])).rstrip("#")


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?!])\s", text, maxsplit=1)[0]


def own(section: Tag, name: str, kind: str | None = None) -> list[Tag]:
    """The tags of that name in a section, but for those of sections inside it."""
    found = section.find_all(name, class_=kind) if kind else section.find_all(name)
    return [tag for tag in found if tag.find_parent("section") is section]


def code_of(section: Tag) -> list[str]:
    """The cells that are a formula of the lesson."""
    cells = [c.find("pre") for c in own(section, "div", "cell_input")]
    return [str(c.parent) for c in cells if c is not None and "# Eq." in c.get_text()]


def slides(section: Tag) -> list[str]:
    """What one section shows: its heading with what it says in bold and its formulas
    with their code, then its figures, its questions."""
    heading = heading_of(section)
    text = [
        p
        for p in own(section, "p")
        if not p.find_parent(["blockquote", "figure", "details"])
    ]
    notes = f'<aside class="notes">{"".join(map(str, text))}</aside>'
    if heading == "The verdict":
        quoted = [p for p in own(section, "p") if p.find_parent("blockquote")]
        box = [p for p in quoted if p.strong]
        lines = [first_sentence(words(p).removeprefix(words(p.strong))) for p in box]
        rows = (
            f"<p><b>{words(p.strong)}</b> {s}</p>"
            for p, s in zip(box, lines, strict=True)
        )
        return [f"<h2>{heading}</h2>{''.join(rows)}{notes}"]
    bold = [words(s) for p in text for s in p.find_all("strong")]
    said = bold or [first_sentence(words(p)) for p in text[:1]]
    points, lines = own(section, "li"), [f"<p>{html.escape(line)}</p>" for line in said]
    parts = map(
        str, points or [*lines, *own(section, "div", "math"), *code_of(section)]
    )
    made = [f"<h2>{heading}</h2>{''.join(parts)}{notes}"]
    made += [f"{figure}{notes}" for figure in own(section, "figure")]
    made += [str(q) for q in own(section, "blockquote") if "redict" in q.get_text()]
    return made


def sheet(sections: list[Tag]) -> str:
    """Formulas, code, verdict and summary on one page."""
    parts = [f"<h1>{heading_of(sections[0])}</h1>"]
    for section in sections:
        heading = heading_of(section)
        inside = [str(m) for m in own(section, "div", "math")] + code_of(section)
        if heading in ("The verdict", "Summary"):
            inside += [
                str(e) for e in (*own(section, "blockquote"), *own(section, "ul"))
            ]
        if inside:
            parts.append(f"<h2>{heading}</h2>{''.join(inside)}")
    return "".join(parts)


def main() -> None:
    target = SITE / "slides"
    shutil.rmtree(target, ignore_errors=True)
    (target / "reveal").mkdir(parents=True)
    origin = Path(find_spec("sphinx_revealjs").origin).parent / "_static" / "revealjs"
    for name in ("dist/reveal.js", "dist/reveal.css"):
        shutil.copy(origin / name, target / "reveal")
    theme = (origin / "dist/theme/white.css").read_text()  # without its web font
    (target / "reveal" / "white.css").write_text(re.sub("@import.*?;", "", theme))
    shutil.copy(origin / "plugin/notes/notes.js", target / "reveal")
    listed = []
    for name in lessons():
        page = BeautifulSoup((SITE / name).read_text(), "html.parser")
        for link in page.article.find_all("a", href=True):  # a deck lies elsewhere
            link["href"] = urljoin(f"/{name}", link["href"])
            if link["href"].startswith("/"):
                link["href"] = ".." + link["href"]
        sections = page.article.find_all("section")
        wanted = re.compile("mathjax|fl-vega|require.js|embed-amd", re.IGNORECASE)
        scripts = [
            s for s in page.head.find_all("script") if wanted.search(str(s)[:300])
        ]
        title = html.escape(heading_of(sections[0]))
        scripts = [s for s in scripts if "widget-state" not in str(s)[:60]]
        styles = STYLE + "".join(s.get_text() for s in page.article.find_all("style"))
        about = {
            "title": title,
            "scripts": REVEAL + "".join(map(str, scripts)),
            "styles": styles,
        }
        shown = [s for section in sections for s in slides(section)]
        deck = "".join(f"<section>{s}</section>" for s in shown)
        body = f'<div class="reveal"><div class="slides">{deck}</div></div>{START}'
        stem = Path(name).stem
        (target / f"{stem}.html").write_text(DECK.format(body=body, **about))
        body = f'<div class="sheet">{sheet(sections)}</div>'
        (target / f"{stem}_sheet.html").write_text(DECK.format(body=body, **about))
        links = (
            f'<a href="{stem}.html">slides</a>, <a href="{stem}_sheet.html">sheet</a>'
        )
        listed.append(f"<li>{title}: {links}</li>")
    head = "<h1>Slides and cheat sheets</h1><p>S shows a speaker's notes.</p>"
    body = f"{head}<ul>{''.join(listed)}</ul>"
    about = {
        "title": "Slides",
        "scripts": "",
        "styles": "body { font-family: sans-serif; }",
    }
    (target / "index.html").write_text(DECK.format(body=body, **about))


if __name__ == "__main__":
    main()

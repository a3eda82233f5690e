"""Of every lesson of the built site a deck of slides with speaker's notes, and a cheat
sheet of one page.

Figures, equations and questions are cut out of the page. The words are picked by hand:
`slide` in the metadata of the cell with a section's heading, and `sheet` in the metadata
of the notebook.
"""

import html
import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import yaml
from bs4 import BeautifulSoup, Tag

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BOOK = HERE if (HERE / "_toc.yml").exists() else ROOT  # in a course it is the course
SITE = ROOT / "_build" / "html"
STYLE = """
.reveal { font-family: sans-serif; font-size: 26px; }
.reveal h1, .reveal h2 { font-family: sans-serif; text-transform: none; }
.reveal h1, .reveal h2 { font-size: 1.7em; }
.reveal p, .reveal li { text-align: left; line-height: 1.5; }
.reveal section { padding: 0 1em; }
.reveal pre { font-size: 0.72em; width: 100%; box-shadow: none; }
.reveal figure { width: 100%; margin: 0; }
.reveal figure svg, .reveal figure img { max-height: 62vh; max-width: 100%; }
.reveal figure.fl figcaption, .reveal .vega-bindings { font-size: 0.62em; }
.reveal figure.fl figcaption, .reveal figure.fl .fl-vega { max-width: none; }
.reveal img.still { width: 100%; max-height: 50vh; object-fit: contain; }
.reveal img.still:has(+ figure .fl-vega svg) { display: none; }
.reveal table { font-size: 0.7em; }
.reveal blockquote { width: 90%; font-style: normal; }
.reveal .headerlink, .reveal button { display: none; }
.reveal .line { font-size: 1.2em; }
.sheet { font: 15px/1.4 sans-serif; max-width: 62rem; margin: 0 auto; display: grid; }
.sheet { grid-template-columns: minmax(0, 5fr) minmax(0, 8fr); column-gap: 1.5rem; }
.sheet { grid-template-rows: auto auto 1fr; }
.sheet h1 { grid-column: 1 / -1; }
.sheet h1 + div { grid-row: span 2; }
.sheet h1 { font-size: 1.6em; margin: 0 0 0.5em; }
.sheet figure { margin: 0; }
.sheet figure svg, .sheet figure img { max-height: 95mm; max-width: 100%; }
.sheet figcaption { font-size: 0.8em; }
.sheet .math { font-size: 0.78em; }
.sheet .fl-vega .vega-bindings { display: none; }
.sheet dl { display: grid; align-content: start; grid-template-columns: 5em 1fr; row-gap: 0.4em; }
.sheet dt { font-weight: bold; }
.sheet dd { margin: 0; }
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
    """The lessons of the site in the order of the book: each has an audit below it."""
    contents = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in contents["parts"] for chapter in part["chapters"]]
    names = []
    for chapter in chapters:
        name = chapter["file"]
        below = [page.get("file") for page in chapter.get("sections", ())]
        if f"{name}_audit" in below and (SITE / f"{name}.html").exists():
            names.append(name)
    return names


def words(paragraph: Tag) -> str:
    return " ".join(paragraph.get_text().split())


def heading_of(section: Tag) -> str:
    return words(section.find(["h1", "h2", "h3"])).rstrip("#")


def key(heading: str) -> str:
    """A heading without number and marks: as in the notebook, so on the site."""
    return re.sub(r"[\W\d_]+", "", heading).lower()


def picked(notebook: dict[str, Any]) -> dict[str, str]:
    """The line of a section's slide, by the key of its heading."""
    lines = {}
    for cell in notebook["cells"]:
        if line := cell["metadata"].get("slide"):
            headings = re.findall("^#+ (.*)", "".join(cell["source"]), re.MULTILINE)
            lines[key(headings[-1])] = line
    return lines


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?!])\s", text, maxsplit=1)[0]


def own(section: Tag, name: str, kind: str | None = None) -> list[Tag]:
    """The tags of that name in a section, but for those of sections inside it."""
    found = section.find_all(name, class_=kind) if kind else section.find_all(name)
    return [tag for tag in found if tag.find_parent("section") is section]


def still(figure: Tag) -> str:
    """A chart's picture before the figure, until Vega has drawn the chart."""
    output = figure.find_parent(class_="text_html")
    before = output and output.find_previous_sibling()
    if before is None or before.name != "img":
        return ""
    before["class"] = "still"
    return str(before)


def code_of(section: Tag) -> list[str]:
    """The cells that are a formula of the lesson."""
    cells = [c.find("pre") for c in own(section, "div", "cell_input")]
    return [str(c.parent) for c in cells if c is not None and "# Eq." in c.get_text()]


def verdict(section: Tag) -> list[tuple[str, str]]:
    """When to use a method, when not, how sure: each with its first sentence."""
    quoted = [p for p in own(section, "p") if p.find_parent("blockquote") and p.strong]
    heads = [words(p.strong) for p in quoted]
    texts = [
        words(p).removeprefix(head).strip()
        for p, head in zip(quoted, heads, strict=True)
    ]
    return list(zip(heads, map(first_sentence, texts), strict=True))


def prediction(question: Tag) -> str:
    """A question, and its answer on the next key."""
    answer = ""
    for tag in question.find_next_siblings(["blockquote", "details"]):
        if tag.name == "blockquote":
            break
        if words(tag.summary) != "Hint":
            paragraphs = "".join(map(str, tag.find_all("p")))
            answer = f'<div class="fragment"><hr>{paragraphs}</div>'
            break
    return f"{question}{answer}"


def slides(section: Tag, line: str) -> list[str]:
    """The slides of a section: none without a picture, an equation or a question."""
    heading = heading_of(section)
    title = f"<h2>{html.escape(heading)}</h2>"
    text = [
        p
        for p in own(section, "p")
        if not p.find_parent(["blockquote", "figure", "details"])
    ]
    notes = f'<aside class="notes">{"".join(map(str, text))}</aside>'
    if key(heading) == "theverdict":
        rows = [
            f"<p><b>{html.escape(a)}</b> {html.escape(b)}</p>"
            for a, b in verdict(section)
        ]
        return [f"<h2>When would you use it?</h2>{''.join(rows)}{notes}"]
    bold = [words(strong) for p in text for strong in p.find_all("strong")]
    asked = [sentence for sentence in bold if sentence.endswith("?")]
    lines = [line, *asked] if line else asked
    said = "".join(f'<p class="line">{html.escape(sentence)}</p>' for sentence in lines)
    formulas = [*map(str, own(section, "div", "math")), *code_of(section)]
    figures = [f"{still(figure)}{figure}" for figure in own(section, "figure")]
    shown = ["".join(formulas), *figures] if formulas or asked else figures
    made = []
    for content in shown:
        made.append(f"{title}{said}{content}{notes}")
        said = ""
    questions = [q for q in own(section, "blockquote") if "redict" in q.get_text()]
    return made + [f"{title}{prediction(question)}" for question in questions]


def sheet(sections: list[Tag], about: dict[str, Any]) -> str:
    """One figure, three equations, the bytes each way, the verdict and a trap."""
    page = sections[0]
    figure = page.find(id=f"figure-{about['figure'].replace('.', '-')}")
    frame = figure.find_parent("figure") or figure if figure else ""
    equations = [
        str(math)
        for math in page.find_all("div", class_="math")
        for number in about["equations"]
        if f"\\tag{{{number}}}" in math.get_text()
    ]
    box = next(
        section for section in sections if key(heading_of(section)) == "theverdict"
    )
    use = " ".join(verdict(box)[0])
    facts = {
        "Up": about["up"],
        "Down": about["down"],
        "Verdict": use,
        "Trap": about["trap"],
    }
    rows = [
        f"<dt>{head}</dt><dd>{html.escape(fact)}</dd>" for head, fact in facts.items()
    ]
    return (
        f"<h1>{html.escape(heading_of(page))}</h1><div>{frame}</div>"
        f"<div>{''.join(equations)}</div><dl>{''.join(rows)}</dl>"
    )


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
        text = (SITE / f"{name}.html").read_text(encoding="utf-8")
        page = BeautifulSoup(text, "html.parser")
        notebook = json.loads((BOOK / f"{name}.ipynb").read_text(encoding="utf-8"))
        lines = picked(notebook)
        for link in page.article.find_all("a", href=True):  # a deck lies elsewhere
            link["href"] = urljoin(f"/{name}.html", link["href"])
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
        deck = [
            f"<section>{content}</section>"
            for section in sections
            for content in slides(section, lines.get(key(heading_of(section)), ""))
        ]
        body = f'<div class="reveal"><div class="slides">{"".join(deck)}</div></div>{START}'
        stem = Path(name).stem
        (target / f"{stem}.html").write_text(DECK.format(body=body, **about))
        links = f'<a href="{stem}.html">slides</a>'
        if facts := notebook["metadata"].get("sheet"):
            body = f'<div class="sheet">{sheet(sections, facts)}</div>'
            (target / f"{stem}_sheet.html").write_text(DECK.format(body=body, **about))
            links += f', <a href="{stem}_sheet.html">sheet</a>'
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

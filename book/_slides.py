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
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import yaml
from bs4 import BeautifulSoup, Tag

from _ext.fl_math import mathml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BOOK = HERE if (HERE / "_toc.yml").exists() else ROOT  # in a course it is the course
SITE = ROOT / "_build" / "html"
# letters and colours are the site's: its fl-book.css is read first
STYLE = """
:root { --r-main-font: var(--fl-text); --r-heading-font: var(--fl-text); }
:root { --r-main-font-size: 28px; --r-main-color: #1b1f24; --r-heading-color: #1b1f24; }
:root { --r-link-color: #0f5bc4; --r-code-font: var(--pst-font-family-monospace); }
.reveal h1, .reveal h2 { text-align: left; text-transform: none; font-size: 1.5em; }
.reveal h1, .reveal h2 { border-left: 0.2em solid #0072b2; padding-left: 0.5em; }
.reveal p, .reveal li { text-align: left; line-height: 1.45; }
.reveal .slides section { padding: 28px 56px 0; box-sizing: border-box; }
.reveal .progress { color: #0072b2; }
.reveal pre { font-size: 0.7em; width: max-content; margin: 0.6em 0; box-shadow: none; }
.reveal pre { overflow: visible; line-height: 1.4; background: #f3f4f5; padding: 0.6em 1em; }
.reveal figure { width: 100%; max-width: none; margin: 0; text-align: center; }
.reveal figure svg, .reveal figure img { max-width: 100%; }
.reveal figure table, .sheet figure table { font-family: inherit; }
.reveal .fl-vega:not([hidden]), .sheet .fl-vega:not([hidden]) { min-height: 0; }
.reveal figure.fl .fl-panels { max-width: none; display: flex; flex-wrap: wrap; }
.reveal figure.fl .fl-panel { flex: 1 1 40%; max-width: none; }
.reveal figure.fl .fl-panel svg { max-height: 380px; }
.reveal figure.fl .fl-panel:only-child svg { width: 100%; height: auto; max-height: 480px; }
.reveal figure .vega-embed { display: block; text-align: center; }
.reveal .line.ask { font-size: 1.5em; margin: 2.4em 0 0; }
.reveal .ask ~ .line.ask { margin-top: 0.8em; }
.reveal figure.fl figcaption { font-size: max(0.6em, calc(16px / var(--zoom, 1))); }
.reveal .vega-bindings { font-size: 0.6em; }
.reveal #figure-11-3 { padding-left: 70px; box-sizing: border-box; }
.reveal #figure-11-3 svg { overflow: visible; }
.reveal #figure-11-3 .role-axis-label text { font-size: 18px; }
.reveal #figure-11-3 .mark-text text { font-size: 17px; }
.reveal figure.fl figcaption { text-align: left; margin: 0.4em 0 0; }
.reveal figure.fl figcaption, .reveal figure.fl .fl-vega { max-width: none; }
img.still:has(+ figure .fl-vega svg) { display: none; }
.reveal img.still { display: block; width: 100%; max-height: 380px; object-fit: contain; }
.reveal table { font-size: 0.7em; }
.reveal blockquote { width: auto; margin: 0 0 0.6em; padding: 0.1em 1em; font-style: normal; }
.reveal blockquote { background: #eef5fa; border-left: 4px solid #0072b2; box-shadow: none; }
.reveal blockquote:has(~ figure), .reveal .turn:has(~ figure) {
  font-size: max(0.75em, calc(18px / var(--zoom, 1)));
}
.reveal .headerlink, .reveal button:not(.fl-play-rounds) { display: none; }
.reveal .line { font-size: 1.15em; margin: 0.4em 0; }
.reveal .beside { display: grid; grid-template-columns: 2fr 3fr; column-gap: 1.5em; }
.reveal .beside > img { grid-column: 2; }
.reveal .turn { display: grid; align-content: start; }
.reveal .turn > * { grid-area: 1 / 1; }
.reveal .turn .line { font-size: 1em; font-weight: bold; }
.reveal .turn blockquote p { display: block; }
.sheet { font-family: var(--fl-text); line-height: 1.35; color: #1b1f24; width: 273mm; }
.sheet { height: 184mm; margin: 0 auto; display: grid; column-gap: 9mm; overflow: hidden; }
.sheet { grid-template: auto minmax(0, 1fr) / minmax(0, 1fr) minmax(0, 1fr); }
.sheet h1 { grid-column: 1 / -1; font-size: 1.5em; margin: 0 0 0.4em; }
.sheet h1 { border-left: 0.2em solid #0072b2; padding-left: 0.5em; }
.sheet > div { display: flex; flex-direction: column; justify-content: space-between; }
.sheet > div > * { flex: none; }
.sheet figure { margin: 0; width: 100%; }
.sheet figure svg, .sheet figure img { width: 100%; height: auto; max-height: 88mm; }
.sheet figcaption { font-size: 0.8em; }
.sheet figure.fl figcaption, .sheet figure.fl .fl-vega { max-width: none; }
.sheet .fl-vega .vega-bindings { display: none; }
.sheet .vega-embed { width: 100%; }
.sheet dl { display: grid; grid-template-columns: 5.5em 1fr; row-gap: 0.5em; margin: 0.5em 0 0; }
.sheet dt { font-weight: bold; color: #005a8e; }
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
<link rel="stylesheet" href="../_static/fl-book.css">
<style>{styles}</style>{scripts}
</head>
<body>{body}</body>
</html>
"""
# before the page's own scripts: require.js would take it for a module
REVEAL = (
    '<script src="reveal/reveal.js"></script><script src="reveal/notes.js"></script>'
)
# What is too wide or too high gets smaller, also after Vega has drawn.
FIT = """<script>
function narrow(root) {
  root.querySelectorAll("div.math").forEach(function (math) {
    math.style.zoom = 1;
    math.style.zoom = Math.min(1, math.clientWidth / math.scrollWidth);
  });
}
function fit(section) {
  var box = section.querySelector(".fit");
  if (!box || !section.offsetWidth) return;
  narrow(box);
  var edge = section.getBoundingClientRect(), scale = edge.width / section.offsetWidth;
  var parts = box.querySelectorAll(":not(svg *):not(math *):not(script)");
  function fits() {
    return Array.from(parts).every(function (part) {
      var at = part.getBoundingClientRect();
      return at.right <= edge.right - 40 * scale && at.bottom <= edge.top + 705 * scale;
    });
  }
  var size = box.querySelector("figure") ? 1.6 : 1.35;
  function zoom(size) {
    box.style.zoom = size;
    box.style.setProperty("--zoom", size);  // a caption stays legible
  }
  for (zoom(size); size > 0.3 && !fits(); zoom(size)) size -= 0.05;
}
function fill(sheet) {
  narrow(sheet);
  var columns = Array.from(sheet.children).slice(1), size = 24.25;
  var left = columns[0], right = columns[1];
  function high(column) {
    return Array.from(column.children).reduce((sum, part) => sum + part.offsetHeight, 0);
  }
  function balance() {  // equations stand beside the figure, or where there is room below it
    right.prepend(...left.querySelectorAll(":scope > .math"));
    var first = right.firstElementChild;
    while (first.matches(".math") && high(left) + first.offsetHeight < high(right)) {
      left.insertBefore(first, left.lastElementChild);
      first = right.firstElementChild;
    }
  }
  function fits() {
    return columns.every(function (column) {
      var end = column.lastElementChild.getBoundingClientRect().bottom;
      return end <= sheet.getBoundingClientRect().bottom;
    });
  }
  do {
    size -= 0.25;
    sheet.style.fontSize = size + "px";
    narrow(sheet);
    balance();
  } while (size > 8 && !fits());
}
function all() {
  document.querySelectorAll(".slides > section").forEach(fit);
  document.querySelectorAll(".sheet").forEach(fill);
}
window.addEventListener("load", function () {
  [0, 500, 1000, 2000, 3000, 5000].forEach(function (wait) { setTimeout(all, wait); });
});
window.addEventListener("beforeprint", all);
</script>"""
START = f"""{FIT}<script>
Reveal.initialize({{
  hash: true, width: 1280, height: 720, margin: 0, center: false, transition: "none",
  viewDistance: 99, plugins: [RevealNotes]
}});
Reveal.on("slidechanged", function (event) {{
  fit(event.currentSlide);
  setTimeout(fit, 500, event.currentSlide);
}});
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
    """The text of a paragraph, in which formulas are TeX."""
    text = copy(paragraph)
    for formula in text.find_all("math"):
        formula.replace_with(rf"\({formula['alttext']}\)")
    return " ".join(text.get_text().split())


def marked(text: str) -> str:
    """Escaped text, in which formulas are MathML."""
    return re.sub(
        r"\\\((.*?)\\\)",
        lambda tex: mathml(html.unescape(tex[1])),
        html.escape(text),
    )


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


def cells_of(section: Tag) -> list[Tag]:
    """The code that a lesson shows, but for that of exercises."""
    boxes = own(section, "div", "cell_input")
    kinds = {"tag_exercise", "tag_remove-input"}
    return [
        box.pre.parent
        for box in boxes
        if box.pre and not kinds & set(box.parent["class"])
    ]


def code_of(section: Tag) -> list[Tag]:
    """The cells that are a formula of the lesson."""
    return [cell for cell in cells_of(section) if "# Eq." in cell.get_text()]


def screen_full(cells: list[Tag]) -> str:
    """The last of some cells: no more lines than a class can read."""
    lines = [len(cell.get_text().strip().splitlines()) for cell in cells]
    first = 0
    while sum(lines[first:]) > 16:
        first += 1
    return "".join(map(str, cells[first:]))


def code_behind(paragraph: Tag, past: str = "p") -> str:
    """The next cells behind a paragraph: the last of them, a screen full."""
    cells = cells_of(paragraph.find_parent("section"))
    shown: list[Tag] = []
    for tag in paragraph.find_next_siblings():
        kinds = tag.get("class", ())
        if "cell" not in kinds and (shown or tag.name != past):
            break
        shown += [cell for cell in cells if tag in cell.parents]
    return screen_full(shown)


def code_for(exercise: Tag) -> str:
    """What an exercise changes: code it names, or the cell behind or before it."""
    section = exercise.find_parent("section")
    parts = [section, *section.find_previous_siblings("section")]
    page = [cell for part in parts for cell in cells_of(part)]
    for code in exercise.find_all("code"):
        name = re.escape(code.get_text().removesuffix("()"))
        made = re.compile(rf"^(def {name}\(|{name} = )", re.MULTILINE)
        for cell in page:
            if made.search(cell.get_text()):
                return str(cell)
    earlier = exercise.find_all_previous("div")
    before = [cell for cell in cells_of(section) if cell in earlier]
    return code_behind(exercise, "details") or "".join(map(str, before[-1:]))


def verdict(section: Tag) -> list[tuple[str, str]]:
    """When to use a method, when not, how sure: each line whole."""
    quoted = [p for p in own(section, "p") if p.find_parent("blockquote") and p.strong]
    heads = [words(p.strong) for p in quoted]
    texts = [
        words(p).removeprefix(head).strip()
        for p, head in zip(quoted, heads, strict=True)
    ]
    return list(zip(heads, texts, strict=True))


def questions_in(paragraph: Tag) -> list[tuple[str, str]]:
    """Each question in bold letters, behind the sentence that leads to it."""
    found = []
    for question in map(words, paragraph.find_all("strong")):
        if question.endswith("?"):
            before = words(paragraph).partition(question)[0].rstrip("“ ")
            found.append((re.split(r"(?<=[.?!])\s(?!\()", before)[-1], question))
    return found


def answer_to(question: Tag) -> str:
    """What a reader may unfold below a question: an answer, or an exercise's solution."""
    for tag in question.find_next_siblings(["blockquote", "details", "div", "p"]):
        if tag.name in ("blockquote", "p"):
            return ""
        box = (
            tag if tag.name == "details" else tag.find("details", class_="fl-solution")
        )
        if box and words(box.summary) != "Hint":
            marked_by_hand = "A good answer (1)" in box.get_text()
            return "" if marked_by_hand else "".join(map(str, box.find_all("p")))
    return ""


def fitted(content: str, kind: str = "fit") -> str:
    return f'<div class="{kind}">{content}</div>'


def later(line: str) -> str:
    """A line that comes with a click."""
    return line.replace('"line"', '"line fragment"')


def turned(question: Tag, line: str = "") -> str:
    """A question, and in its place with the next click the line and the answer."""
    answer = answer_to(question)
    if not answer:
        return str(question) + later(line)
    return (
        f'<div class="turn"><div class="fragment fade-out" data-fragment-index="0">'
        f'{question}</div><blockquote class="fragment" data-fragment-index="0">{line}'
        f"{answer}</blockquote></div>"
    )


def next_of(paragraph: Tag, places: list[Tag]) -> Tag | None:
    """The first of some places in a page that comes behind a paragraph."""
    behind = {id(tag) for tag in paragraph.find_all_next()}
    return next((place for place in places if id(place) in behind), None)


def slides(section: Tag, line: str) -> list[str]:
    """The slides of a section: none without a picture, an equation or a question.

    A question comes with the picture that is to be moved, or alone, until a click
    shows the picture or the equation behind it, and the line, which often says the
    answer.
    """
    heading = heading_of(section)
    title = f"<h2>{html.escape(heading)}</h2>"
    text = [
        p
        for p in own(section, "p")
        if not p.find_parent(["blockquote", "figure", "details"])
    ]
    notes = f'<aside class="notes">{"".join(map(str, text))}</aside>'
    if key(heading) == "theverdict":
        rows = [f"<p><b>{marked(a)}</b> {marked(b)}</p>" for a, b in verdict(section)]
        return [f"<h2>When would you use it?</h2>{fitted(''.join(rows))}{notes}"]
    asked = [
        (paragraph, f'<p class="line">{marked(before)} <b>{marked(question)}</b></p>')
        for paragraph in text
        for before, question in questions_in(paragraph)
    ]
    if line.endswith("?"):
        asked.insert(
            0, (section.find("p"), f'<p class="line"><b>{marked(line)}</b></p>')
        )
        line = ""
    said = f'<p class="line">{marked(line)}</p>' if line else ""
    quoted = [q for q in own(section, "blockquote") if "redict" in q.get_text()]
    figures = own(section, "figure")
    made = []
    if section.h1:  # the first slide of a lesson
        made = [title + said + "".join(q for _, q in asked)] if asked else []
        said, asked = "", []
    if figures and figures[0].find(class_="fl-vega"):
        figure = figures.pop(0)
        move = [q for q in quoted if "then move" in q.get_text()][:1]
        quoted = [q for q in quoted if q not in move]
        above = "".join(turned(q, said) for q in move) or later(said)
        questions = "".join(q for _, q in asked)
        wide = '"container"' in str(figure)  # if not, text has room beside it
        kind = "fit" if wide or not above else "fit beside"
        content = fitted(f"{above}{still(figure)}{figure}", kind)
        made.append(f"{title}{questions}{content}")
        said, asked = "", []
    shown = [(figure, f"{still(figure)}{figure}") for figure in figures]
    formulas = own(section, "div", "math")
    if formulas:
        code = code_of(section)
        beside = screen_full(code) if len(formulas + code) <= 4 else ""
        shown.insert(0, (formulas[-1], "".join(map(str, formulas)) + beside))
    places = [place for place, _ in shown]
    asked = [(p, q, next_of(p, places)) for p, q in asked]
    left = [(p, q) for p, q, place in asked if place is None]
    code = code_behind(left[-1][0]) if left else ""
    beside = "" if code else "".join(q for _, q in left)
    for place, content in shown:
        before = "".join(q for _, q, behind in asked if behind is place)
        if before:
            content = f'<div class="fragment">{said}{fitted(content)}</div>'
        else:
            content = f"{later(said) if beside else said}{fitted(content)}"
        made.append(f"{title}{before}{beside}{content}")
        said = beside = ""
    if code:
        questions = "".join(q for _, q in left)
        made.append(f"{title}{questions}{later(said)}{fitted(code)}")
    elif beside:
        alone = beside.replace('"line"', '"line ask"')
        made.append(f"{title}{alone}{later(said)}")
    for question in quoted:
        code = code_for(question) if "change, run" in question.get_text() else ""
        made.append(f"{title}{fitted(turned(question) + code)}")
    return [slide + notes for slide in made]


def sheet(sections: list[Tag], about: dict[str, Any]) -> str:
    """One figure, three equations, the bytes each way, the verdict and a trap."""
    page = sections[0]
    figure = page.find(id=f"figure-{about['figure'].replace('.', '-')}")
    frame = figure.find_parent("figure") or figure if figure else ""
    equations = [
        str(math)
        for math in page.find_all("div", class_="math")
        for number in about["equations"]
        if math.get_text().endswith(f"({number})")
    ]
    box = next(
        section for section in sections if key(heading_of(section)) == "theverdict"
    )
    costs = {"Up": about["up"], "Down": about["down"], "Trap": about["trap"]}
    lists = [
        "".join(
            f"<dt>{marked(head)}</dt><dd>{marked(fact)}</dd>" for head, fact in facts
        )
        for facts in (costs.items(), verdict(box))
    ]
    return (
        f"<h1>{html.escape(heading_of(page))}</h1>"
        f"<div>{still(frame) if frame else ''}{frame}<dl>{lists[0]}</dl></div>"
        f"<div>{''.join(equations)}<dl>{lists[1]}</dl></div>"
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
        wanted = re.compile("fl-vega|require.js|embed-amd", re.IGNORECASE)
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
            body = f'<div class="sheet">{sheet(sections, facts)}</div>{FIT}'
            (target / f"{stem}_sheet.html").write_text(DECK.format(body=body, **about))
            links += f', <a href="{stem}_sheet.html">sheet</a>'
        listed.append(f"<li>{title}: {links}</li>")
    head = "<h1>Slides and cheat sheets</h1><p>S shows a speaker's notes.</p>"
    body = f"{head}<ul>{''.join(listed)}</ul>"
    about = {
        "title": "Slides",
        "scripts": "",
        "styles": "body { font-family: var(--fl-text); margin: 2em; }",
    }
    (target / "index.html").write_text(DECK.format(body=body, **about))


if __name__ == "__main__":
    main()

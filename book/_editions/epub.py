"""An EPUB 3: a file a page, formulas in MathML, charts and drawings as SVG inside the text."""

import base64
import hashlib
import html
import io
import re
import uuid
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import unquote, urlsplit

from PIL import Image

from pages import Page, config
from pdf import style

TYPES = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "svg": "image/svg+xml"}
CONTAINER = """<?xml version="1.0" encoding="UTF-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="book/content.opf" media-type="application/oebps-package+xml"/>
</rootfiles></container>"""
# matplotlib's glyph of a space, which draws nothing
EMPTY = re.compile(r"(<path\b(?![^>]*\sd=)[^>]*?)(/?>)")
# a rule that readers of EPUBs do not know
HAS = re.compile(r"[^{}]*:has\([^{}]*\{[^{}]*\}")
# what a browser forgives and an EPUB's XHTML does not have
OLD = re.compile(
    r'(<(?:table|td|th|tr|col|img)\b[^>]*?) (?:border|align|valign|width|height)="[^"]*"'
)


def picture(source: str) -> tuple[str, bytes]:
    """An image's name in the book and its bytes, from a file or from a data address. What an EPUB
    need not show, such as WebP, becomes PNG."""
    if source.startswith("data:"):
        head, _, body = source.partition(",")
        kind = next((k for k, its in TYPES.items() if its in head), "")
        data = base64.b64decode(body) if "base64" in head else unquote(body).encode()
    else:
        path = Path(unquote(urlsplit(source).path))
        kind, data = path.suffix.lstrip(".").lower(), path.read_bytes()
    if kind not in TYPES:
        Image.open(io.BytesIO(data)).save(out := io.BytesIO(), "PNG")
        kind, data = "png", out.getvalue()
    return f"images/{hashlib.sha256(data).hexdigest()[:16]}.{kind}", data


def body(page: Page, pages: list[Page], images: dict[str, bytes]) -> str:
    """A page's XHTML with links and images of the book."""

    def link(found: re.Match[str]) -> str:
        name, _, anchor = html.unescape(found[1]).partition("#")
        goal = next(p for p in pages if p.name == name)
        there = anchor and f'id="{html.escape(anchor)}"' in goal.reflow
        return f'href="{goal.slug}.xhtml{f"#{html.escape(anchor)}" if there else ""}"'

    def image(found: re.Match[str]) -> str:
        name, data = picture(html.unescape(found[2]))
        images[name] = data
        return f'{found[1]} src="{name}"'

    text = re.sub(r'href="page:([^"]*)"', link, page.reflow)
    text = re.sub(r'(<img\b[^>]*?) src="([^"]*)"', image, text)
    while OLD.search(text):
        text = OLD.sub(r"\1", text)
    return EMPTY.sub(r'\1 d="M0 0"\2', text)


def xhtml(title: str, content: str, kind: str = "") -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE html>\n'
        '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" '
        f'lang="en" xml:lang="en"><head><meta charset="utf-8"/><title>{html.escape(title)}</title>'
        '<link rel="stylesheet" type="text/css" href="style.css"/></head>'
        f'<body class="edition {kind}">{content}</body></html>'
    )


def contents(pages: list[Page]) -> str:
    """The navigation document: parts, chapters and their sections."""
    parts: dict[str, list[str]] = {}
    for page in pages[1:]:
        link = '<li><a href="{}">{}</a>{}</li>'.format
        inner = "".join(
            link(f"{page.slug}.xhtml#{anchor}", html.escape(title), "")
            for anchor, title in page.sections * page.title[:1].isdigit()
        )
        inner = f"<ol>{inner}</ol>" if inner else ""
        line = link(f"{page.slug}.xhtml", html.escape(page.title), inner)
        parts.setdefault(page.part, []).append(line)
    rows = "".join(
        f"<li><span>{html.escape(part)}</span><ol>{''.join(lines)}</ol></li>"
        for part, lines in parts.items()
    )
    return (
        f'<nav epub:type="toc" id="toc" role="doc-toc"><h1>Contents</h1><ol><li>'
        f'<a href="{pages[0].slug}.xhtml">{html.escape(pages[0].title)}</a></li>{rows}</ol></nav>'
    )


def package(pages: list[Page], files: dict[str, str | bytes]) -> str:
    """The list of what is in the book, and who wrote it."""
    its = config()
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = []
    for k, (name, data) in enumerate(files.items()):
        kind = name.rpartition(".")[2]
        media = {"xhtml": "application/xhtml+xml", "css": "text/css"} | TYPES
        has = ["nav"] if name == "nav.xhtml" else []
        if kind == "xhtml":
            has += [what for what, tag in (("mathml", "<math"), ("svg", "<svg")) if tag in data]
        more = f' properties="{" ".join(has)}"' if has else ""
        items.append(f'<item id="i{k}" href="{name}" media-type="{media[kind]}"{more}/>')
    order = [list(files).index(f"{page.slug}.xhtml") for page in pages]
    spine = "".join(f'<itemref idref="i{k}"/>' for k in [list(files).index("nav.xhtml"), *order])
    about = "".join(
        f'<meta property="schema:{key}">{value}</meta>'
        for key, value in (
            ("accessMode", "textual"),
            ("accessMode", "visual"),
            ("accessModeSufficient", "textual"),
            ("accessibilityFeature", "alternativeText"),
            ("accessibilityFeature", "MathML"),
            ("accessibilityFeature", "tableOfContents"),
            ("accessibilityHazard", "none"),
        )
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><package version="3.0" unique-identifier="id" '
        'xml:lang="en" xmlns="http://www.idpf.org/2007/opf" '
        'prefix="schema: http://schema.org/"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f'<dc:identifier id="id">urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, its["title"])}'
        f"</dc:identifier><dc:title>{html.escape(its['title'])}</dc:title>"
        f"<dc:creator>{html.escape(its['author'])}</dc:creator><dc:language>en</dc:language>"
        f'<meta property="dcterms:modified">{now}</meta>{about}</metadata>'
        f"<manifest>{''.join(items)}</manifest><spine>{spine}</spine></package>"
    )


def make(pages: list[Page], target: Path) -> int:
    """Write the EPUB; returns its number of text files."""
    images: dict[str, bytes] = {}
    files: dict[str, str | bytes] = {
        f"{page.slug}.xhtml": xhtml(page.title, body(page, pages, images)) for page in pages
    }
    files = (
        {"nav.xhtml": xhtml("Contents", contents(pages)), "style.css": HAS.sub("", style())}
        | files
        | images
    )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as book:
        # the first entry says what the file is, and is not compressed
        book.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        book.writestr("META-INF/container.xml", CONTAINER)
        book.writestr("book/content.opf", package(pages, files))
        for name, data in files.items():
            book.writestr(f"book/{name}", data)
    return len(pages)

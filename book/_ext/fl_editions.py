"""Local Sphinx extension: the site offers the whole book as PDF and EPUB, when they are
there (`make editions`), in the menu behind the download button of each page.

The same function is called at the end of a build of the site and after an edition was
made of a site that was built before.
"""

import re
import shutil
from datetime import datetime
from pathlib import Path

FOLDER = Path("_build") / "editions"
MENU = re.compile(
    r'(<div class="dropdown dropdown-download-buttons">.*?'
    r'<ul class="dropdown-menu">.*?)'
    r"(?:<!-- editions -->.*?<!-- /editions -->)?(</ul>)",
    re.DOTALL,
)
ITEM = (
    '<li><a href="{up}{name}" class="btn btn-sm dropdown-item" title="{title}">'
    '<span class="btn__icon-container"><i class="fas fa-book"></i></span>'
    '<span class="btn__text-container">{text}</span></a></li>'
)


def file_name(title: str, kind: str) -> str:
    """The book's title as the name of a file."""
    return f"{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}.{kind}"


def offer(site: Path, folder: Path) -> list[str]:
    """Copy the editions in ``folder`` to the site and put links to them into each page;
    one that is no longer there is no longer offered. Returns the files' names."""
    for old in (*site.glob("*.pdf"), *site.glob("*.epub")):
        old.unlink()
    files = sorted([*folder.glob("*.pdf"), *folder.glob("*.epub")], reverse=True)
    for path in files:
        shutil.copy2(path, site / path.name)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        up = "../" * len(page.relative_to(site).parent.parts)
        items = ""
        for path in files:
            kind = path.suffix[1:].upper()
            made = datetime.fromtimestamp(path.stat().st_mtime)
            items += ITEM.format(
                up=up,
                name=path.name,
                title=f"The whole book as {kind}, made on {made:%d %B %Y}",
                text=f"whole book, {kind}",
            )
        marked = f"<!-- editions -->{items}<!-- /editions -->" if items else ""
        new = MENU.sub(lambda found: found[1] + marked + found[2], text, count=1)  # noqa: B023
        if new != text:
            page.write_text(new, encoding="utf-8")
    return [path.name for path in files]


def after_build(app, error):
    if error is None and app.builder.name == "html":
        offer(Path(app.outdir), Path(app.outdir).parent / FOLDER.name)


def setup(app):
    app.connect("build-finished", after_build)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

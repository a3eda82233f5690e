"""Local Sphinx extension: what a site needs to be found, shared and loaded.

* A page that is shared shows a picture of stored runs (sphinxext.opengraph writes its
  head). Addresses there are whole, so the picture and the site map need `html_baseurl`,
  which fl_launch takes from `repository: url`.
* 404.html, which GitHub Pages shows for whatever is missing.
* A script of the package that notebooks carry in their text is one file of the site.
* "Next" leads from a lesson to the next lesson, past its audit, which the table of
  contents and the lesson's last lines name. A check of an exercise says nothing where
  nobody can answer.
"""

import hashlib
import re
from pathlib import Path

LONG = 50_000  # characters of a script that is worth a file
SCRIPT = re.compile(r"<script>((?:(?!</script>).)*)</script>", re.DOTALL)
PREVIEW = "_static/preview.png"
CARD = '<meta name="twitter:card" content="summary_large_image" />'
UNANSWERED = re.compile(
    r'<div class="cell_output[^>]*>\s*<div class="output[^>]*>\s*<div[^>]*><pre>'
    r"<span></span>[\w-]+: no answer yet[^<]*</pre>\s*</div>\s*</div>\s*</div>"
)
MISSING = """<h1>This page is not here</h1>
<p>It has moved, or never was. <a href="index.html">The first page</a>,
<a href="start/map.html">the map of the methods</a> and
<a href="search.html">the search</a> are.</p>"""


def configure(app, config):
    """Addresses of pictures are whole, so the preview needs the site's address."""
    base = config.html_baseurl
    config.ogp_site_url = base
    if base:
        config.ogp_image = base + PREVIEW
        config.ogp_custom_meta_tags = [CARD]


def missing_base(app, page, template, context, doctree):
    """404.html is shown for addresses in any folder."""
    if page == "404":
        base = app.config.html_baseurl or "/"
        context["metatags"] = f'<base href="{base}">'


def measure_links(app, page, template, context, doctree):
    """A table links to the file beside its notebook; on the site that file is HTML."""
    if body := context.get("body"):
        context["body"] = body.replace('how_we_measure.md">', 'how_we_measure.html">')


def past_the_audit(app, page, template, context, doctree):
    """From a lesson to the next lesson; from there, back to the lesson before."""
    relations = app.builder.relations
    for way, step in (("next", 2), ("prev", 1)):
        other = (relations.get(page) or [""] * 3)[step] or ""
        beyond = other.endswith("_audit") and relations[other][step]
        if beyond:
            title = app.builder.render_partial(app.env.titles[beyond])["title"]
            link = app.builder.get_relative_uri(page, beyond)
            context[way] = {"link": link, "title": title}


def quiet_checks(app, page, template, context, doctree):
    if "body" in context:
        context["body"] = UNANSWERED.sub("", context["body"])


def long_scripts(app, page, template, context, doctree):
    """Each into one file, in place of a copy on every page."""

    def moved(found):
        text = found[1]
        if len(text) < LONG:
            return found[0]
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.js"
        path = Path(app.outdir, "_static", name)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return f'<script src="{context["pathto"](f"_static/{name}", 1)}"></script>'

    if "body" in context:
        context["body"] = SCRIPT.sub(moved, context["body"])


def missing(app):
    yield "404", {"title": "Not found", "body": MISSING}, "page.html"


def finish(app, error):
    """The picture that is shown where the book is shared, and the list of its pages."""
    base = app.config.html_baseurl
    if error is not None or not base or app.builder.format != "html":
        return
    pages = sorted(app.env.found_docs)
    listed = "".join(f"<url><loc>{base}{page}.html</loc></url>\n" for page in pages)
    Path(app.outdir, "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
        f"{listed}</urlset>\n",
        encoding="utf-8",
    )
    from fedlearn.book.index import everything_and_a_tenth
    from vl_convert import vegalite_to_png

    size = {
        "width": 600,
        "height": 315,
        "autosize": {"type": "fit", "contains": "padding"},
    }
    title = {"text": app.config.html_title, "fontSize": 20}
    picture = everything_and_a_tenth() | size | {"title": title}
    png = vegalite_to_png(picture, vl_version="5.20", scale=2)
    Path(app.outdir, PREVIEW).write_bytes(png)


def setup(app):
    app.connect("config-inited", configure, priority=900)  # after fl_launch
    app.connect("html-page-context", missing_base)
    app.connect("html-page-context", measure_links)
    app.connect("html-page-context", past_the_audit)
    app.connect("html-page-context", quiet_checks)
    app.connect("html-page-context", long_scripts)
    app.connect("html-collect-pages", missing)
    app.connect("build-finished", finish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

"""Local Sphinx extension, for as long as some pages are older than others: chapters
that still say {term}`client` or {ref}`ch-rpn` find pages in plain Markdown, which have
neither glossary entries nor labels. It goes when the last chapter is rewritten.
"""

import re

from docutils import nodes
from sphinx.util.nodes import make_refnode

LABELS = {"setup": "setup", "notation": "notation", "app-claims": "appendix/claims"}


def page_of(env, label):
    """The page that had a label: ch-fed-kgf is papers/fed_kgf."""
    if label in LABELS:
        return LABELS[label]
    name = label.removeprefix("ch-").replace("-", "_")
    return next((d for d in env.found_docs if d.rpartition("/")[2] == name), None)


def resolve(app, env, node, contnode):
    kind, target = node.get("reftype"), node.get("reftarget", "")
    here = node.get("refdoc", "index")
    if kind == "term":
        slug = re.sub(r"[^\w-]", "", target.lower().replace(" ", "-"))
        inner = nodes.inline("", contnode.astext())
        goal = "appendix/glossary"
        return make_refnode(app.builder, here, goal, slug, inner)
    if kind == "ref" and (goal := page_of(env, target)):
        title = (
            contnode.astext() if node.get("refexplicit") else env.titles[goal].astext()
        )
        return make_refnode(app.builder, here, goal, "", nodes.inline("", title))
    return None


def setup(app):
    app.connect("missing-reference", resolve, priority=400)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

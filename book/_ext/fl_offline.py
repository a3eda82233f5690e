"""Local Sphinx extension: the built book needs no network and has a clean console.

* sphinx-thebe adds its inline script twice ("Identifier 'THEBE_JS_URL' has already been
  declared"): drop repetitions.
* The theme's fontawesome.js swaps every <i> for an <svg>, which breaks ipywidgets' Play
  button: stop it from watching. It still draws the theme's own icons; widgets appear
  later and use the widget manager's icon font.
"""

from sphinx.application import Sphinx


def _drop_repeated_inline_scripts(app, pagename, templatename, context, doctree):
    seen, kept = set(), []
    for script in context.get("script_files", []):
        body = getattr(script, "attributes", {}).get("body")
        if body is None or body not in seen:
            kept.append(script)
            seen.add(body)
    context["script_files"] = kept


def _drop_roles_of_references(app, pagename, templatename, context, doctree):
    if "body" in context:
        body = context["body"].replace(' role="doc-biblioentry"', "")
        context["body"] = body.replace('role="list" class="citation', 'class="citation')


def setup(app: Sphinx):
    app.add_js_file(
        None, body="window.FontAwesomeConfig = {observeMutations: false}", priority=1
    )
    app.connect("html-page-context", _drop_repeated_inline_scripts, priority=900)
    app.connect("html-page-context", _drop_roles_of_references)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

"""Local Sphinx extension: buttons that open a chapter in Colab and on Binder, set by
one value, `repository: url` in _config.yml. Without it there is no button.

Binder builds the repository (environment.yml) and needs nothing else. Colab opens a
single notebook and has no fedlearn, so it gets the copy that the site publishes below
`_sources` (which is also what the download button gives), on the branch of the
repository that holds the site: there, a first cell gets the package. The notebooks of
the repository itself are not changed.
"""

import re
from pathlib import Path

import nbformat
from sphinx.errors import ConfigError

GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")
BINDER, COLAB = "https://mybinder.org", "https://colab.research.google.com"
INSTALL = """\
# @title Get fedlearn and its book, where they are missing (such as in Colab)
import importlib.util
import sys

if importlib.util.find_spec("fedlearn") is None:
    !git clone -q --depth 1 {url} fedlearn-book
    %pip install -q "./fedlearn-book[book]"
    %cd -q fedlearn-book/book
    sys.path.insert(0, "..")  # whose data no wheel has"""


def configure(app, config):
    options = config.html_theme_options
    url = options.get("repository_url") or ""
    if not url:
        options["launch_buttons"] = {}
        return
    found = GITHUB.fullmatch(url)
    if not found:
        raise ConfigError(
            "repository: url in _config.yml is an address such as "
            f"https://github.com/owner/name, not {url!r}."
        )
    options["repository_url"] = f"https://github.com/{found[1]}"
    asked = options["launch_buttons"]
    options["launch_buttons"] = {
        "notebook_interface": "jupyterlab",
        "binderhub_url": BINDER,
        "site_branch": asked["site_branch"],
    }


def is_notebook(app, page):
    return page in app.env.found_docs and app.env.doc2path(page).endswith(".ipynb")


def add_colab(app, pagename, templatename, context, doctree):
    """Beside the theme's Binder button, in the same menu."""
    options = app.config.html_theme_options
    if not options["launch_buttons"]:
        return
    if not is_notebook(app, pagename):  # a page of text with a cell in it
        buttons = context["header_buttons"]
        buttons[:] = [b for b in buttons if b.get("label") != "launch-buttons"]
        return
    name = GITHUB.fullmatch(options["repository_url"])[1]
    place = f"{options['launch_buttons']['site_branch']}/_sources/{pagename}.ipynb"
    for group in context["header_buttons"]:
        if group.get("label") == "launch-buttons":
            group["buttons"].append(
                {
                    "type": "link",
                    "text": "Colab",
                    "tooltip": "Launch on Colab",
                    "icon": "_static/images/logo_colab.png",
                    "url": f"{COLAB}/github/{name}/blob/{place}",
                }
            )


def install_cell(url):
    """Folded in Colab, in JupyterLab and on the site."""
    cell = nbformat.v4.new_code_cell(INSTALL.format(url=url), id="fl-install")
    cell.metadata = {
        "tags": ["hide-input"],
        "cellView": "form",
        "jupyter": {"source_hidden": True},
    }
    return cell


def add_cells(app, error):
    options = app.config.html_theme_options
    if error is not None or not options.get("launch_buttons"):
        return
    for page in app.env.found_docs:
        path = Path(app.outdir) / "_sources" / f"{page}.ipynb"
        if is_notebook(app, page) and path.exists():
            notebook = nbformat.read(path, 4)
            if notebook.cells[0].get("id") != "fl-install":
                notebook.cells.insert(0, install_cell(options["repository_url"]))
                nbformat.write(notebook, path)


def setup(app):
    app.connect("config-inited", configure)
    app.connect("html-page-context", add_colab, priority=502)  # after the theme's
    app.connect("build-finished", add_cells)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

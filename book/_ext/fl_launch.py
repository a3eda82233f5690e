"""Local Sphinx extension: all that one value, `repository: url` in _config.yml, gives:
buttons to Colab, Binder, the repository, its issues and the page's source, and the
address of the site. Without it there is none.

Binder builds the repository (.binder) and needs nothing else. Colab opens a
single notebook and has no fedlearn, so it gets the copy that the site publishes below
`_sources` (which is also what the download button gives), on the branch of the
repository that holds the site: there, a first cell installs the wheel that the site
publishes, too, with its checksum. The notebooks of the repository are not changed.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from fl_repository import site_of
from sphinx.errors import ConfigError

GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")
BINDER, COLAB = "https://mybinder.org", "https://colab.research.google.com"
ROOT = Path(__file__).resolve().parents[2]
INSTALL = """\
# @title Get fedlearn, where it is missing (such as in Colab)
import importlib.util

if importlib.util.find_spec("fedlearn") is None:
    %pip install -q 'fedlearn[lesson] @ {wheel}'"""
SOLUTIONS = """
    !mkdir -p solutions
    !curl -sSfo solutions/{name} {site}_sources/solutions/{name}"""


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
    for button in ("repository", "issues", "edit_page"):
        options[f"use_{button}_button"] = True
    config.html_baseurl = config.html_baseurl or site_of(options["repository_url"])
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
            button = {"type": "link", "text": "Colab", "tooltip": "Launch on Colab"}
            button["icon"] = "_static/images/logo_colab.png"
            button["url"] = f"{COLAB}/github/{name}/blob/{place}"
            group["buttons"].append(button)


def build_wheel(folder):
    """The package as a file of the site; its name, and its SHA-256 as pip wants it."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
    offline = ["--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*pip, *offline, "-w", folder, ROOT], check=True)
    (wheel,) = Path(folder).glob("*.whl")
    return f"{wheel.name}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}"


def install_cell(site, wheel, solutions):
    """Folded in Colab, in JupyterLab and on the site."""
    text = INSTALL.format(wheel=f"{site}wheels/{wheel}")
    if solutions.exists():
        text += SOLUTIONS.format(site=site, name=solutions.name)
    folded = {"tags": ["hide-input"], "cellView": "form"}
    folded["jupyter"] = {"source_hidden": True}
    return nbformat.v4.new_code_cell(text, id="fl-install", metadata=folded)


def add_cells(app, error):
    options = app.config.html_theme_options
    if error is not None or not options.get("launch_buttons"):
        return
    out, site = Path(app.outdir), app.config.html_baseurl
    wheel = build_wheel(out / "wheels")
    for page in app.env.found_docs:
        path = out / "_sources" / f"{page}.ipynb"
        if is_notebook(app, page) and path.exists():
            notebook = nbformat.read(path, 4)
            if notebook.cells[0].get("id") == "fl-install":
                del notebook.cells[0]
            name = f"{path.stem.removesuffix('_audit')}.py"
            solutions = ROOT / "book" / "solutions" / name
            if solutions.exists():
                shutil.copytree(
                    solutions.parent, out / "_sources" / "solutions", dirs_exist_ok=True
                )
            notebook.cells.insert(0, install_cell(site, wheel, solutions))
            nbformat.write(notebook, path)


def setup(app):
    app.connect("config-inited", configure)
    app.connect("html-page-context", add_colab, priority=502)  # after the theme's
    app.connect("build-finished", add_cells)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

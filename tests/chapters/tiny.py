"""A book of a few pages, built with this book's settings, extensions and assets."""

import subprocess
import sys
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]


def chapter(*cells):
    """A notebook: a title, then cells of code."""
    title, *code = cells
    cells = [
        nbformat.v4.new_markdown_cell(title),
        *map(nbformat.v4.new_code_cell, code),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    return notebook


def write(folder, pages, **settings):
    """The book in ``folder``: ``pages`` are texts or notebooks by their names, the first is the
    front page; ``settings`` are added to those of a group of _config.yml."""
    book = folder / "book"
    for name, page in pages.items():
        path = book / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(page, str):
            path.write_text(page, encoding="utf-8")
        else:
            nbformat.write(page, path)
    (book / "references.bib").write_text("")
    root, *files = (str(Path(name).with_suffix("")) for name in pages)
    toc = {
        "format": "jb-book",
        "root": root,
        "chapters": [{"file": name} for name in files],
    }
    (book / "_toc.yml").write_text(yaml.safe_dump(toc))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    for group, values in settings.items():
        config[group] |= values
    extensions = config["sphinx"]["local_extensions"]
    for name in extensions:
        extensions[name] = str(ROOT / "book" / "_ext")
    config["sphinx"]["config"]["html_static_path"] = [str(ROOT / "book" / "_assets")]
    (folder / "_config.yml").write_text(yaml.safe_dump(config))


def build(folder, *flags):
    """Jupyter Book's exit status and all that it said; the site is in ``_build/html``."""
    program = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command = [
        *program,
        "build",
        "book",
        "--config",
        "_config.yml",
        "--path-output",
        ".",
        *flags,
    ]
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "timeout": 600,
    }
    done = subprocess.run(command, cwd=folder, **options)
    return done.returncode, done.stdout

"""Local Sphinx extension: run chapters rarely, but never show an outdated output.

The execution cache compares a chapter's code cells and nothing else. So, before pages
are read:

1. when the package, the data, the pinned versions or Python itself changed since the
   last build, the cache is emptied;
2. chapters, and pages of Markdown with code, that are then missing from the cache are
   executed by papermill, with their own parameters, side by side (FEDLEARN_JOBS at a
   time, one thread each);
3. the page of a chapter that failed says so below its title: all pages are built, and
   those that are not complete are named last. What a chapter showed until it failed is
   in the cache, marked, and executed again by the next build.

``make test`` names a program in FEDLEARN_HOLDS. Its ``hold(notebook, page)`` may add a
cell; that runs behind the chapter's own and leaves no trace.
"""

import atexit
import hashlib
import html
import os
import runpy
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import papermill
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_client.kernelspec import KernelSpecManager
from myst_nb.core.read import create_nb_reader
from papermill.exceptions import PapermillExecutionError
from papermill.execute import remove_error_markers
from sphinx.util import logging

log = logging.getLogger(__name__)
LIBRARIES = "torch torchvision numpy scikit-learn pandas matplotlib ipywidgets".split()
LIBRARIES += ["nbclient", "papermill"]
# ipykernel warns once for each kernel that it talks over loopback without encryption
QUIET = {"extra_arguments": ["--IPKernelApp.log_level=40"]}


def state_of(root: Path) -> str:
    """SHA-256 of everything outside a chapter that its outputs depend on."""
    digest = hashlib.sha256(sys.version.encode())
    for name in LIBRARIES:
        try:
            digest.update(f"{name}=={metadata.version(name)}".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{name} absent".encode())
    python = KernelSpecManager().get_kernel_spec("python3").argv[0]  # runs the chapters
    digest.update(python.encode())
    patterns = "fedlearn/**/*.py", "data/**/*", "uv.lock"
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        if path.is_file() and root / "data" / "cache" not in path.parents:
            digest.update(str(path.relative_to(root)).encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()


def empty_stale_cache(app):
    folder = Path(app.env.mystnb_config.execution_cache_path)
    stamp, now = folder.parent / ".execution_state", state_of(Path(app.srcdir).parent)
    app.fl_stale = not stamp.exists() or stamp.read_text() != now
    if app.fl_stale and folder.exists():
        shutil.rmtree(folder)
        log.info(
            "the package, the data or the versions changed: "
            "every chapter is executed anew"
        )
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(now)


def pages_to_read_again(app, env, added, changed, removed):
    return list(env.found_docs if app.fl_stale else incomplete(env))


def execution_of(env, page):
    """What MyST-NB knows about the execution of a page's cells, if it has any."""
    return getattr(env, "nb_metadata", {}).get(page, {}).get("exec_data") or {}


def incomplete(env):
    """The pages of which a cell failed, each with the error."""
    errors = {page: execution_of(env, page).get("error") for page in env.found_docs}
    return {page: errors[page] for page in sorted(errors) if errors[page]}


def execute_side_by_side(app, env, docnames):
    app.fl_failed = {}
    config = env.mystnb_config
    if config.execution_mode != "cache":
        return
    cache = get_cache(config.execution_cache_path)
    missing = []
    for path in map(Path, map(env.doc2path, docnames)):
        text = path.read_text(encoding="utf-8")
        if reader := create_nb_reader(path, env.myst_config, config, text):
            notebook = reader.read(text)
            try:
                again = cache.match_cache_notebook(notebook).data.get("error")
            except KeyError:
                again = True
            if again:
                missing.append((path, notebook))
    # what runs for long begins first: then no page runs alone at the end
    missing.sort(key=lambda job: job[0].stat().st_size, reverse=True)

    holds = os.environ.get("FEDLEARN_HOLDS")
    hold = runpy.run_path(holds)["hold"] if holds else None

    def execute(job):
        path, notebook = job
        page, asked = env.path2doc(str(path)), deepcopy(notebook)
        if hold:
            hold(asked, page)
        log.info("executing %s", page)
        began, error = time.perf_counter(), None
        with TemporaryDirectory() as folder:
            out = Path(folder) / "executed.ipynb"
            try:
                done = papermill.execute_notebook(
                    asked,
                    str(out),
                    progress_bar=False,
                    request_save_on_cell_execute=False,
                    start_timeout=3600,
                    execution_timeout=config.execution_timeout,
                    # not ``cwd``, which is one for all threads
                    resources={"metadata": {"path": str(path.parent)}},
                    **QUIET,
                )
            except PapermillExecutionError as failed:
                error, text = f"{failed.ename}: {failed.evalue}", failed
                done = remove_error_markers(nbformat.read(out, 4))
            except Exception as failed:  # of the kernel, which leaves no outputs
                error = text = f"{type(failed).__name__}: {failed}"
                done = notebook
        seconds = time.perf_counter() - began
        if error:
            error = error.splitlines()[0]
            # a warning fails the build; a page that lacks torchvision, which cannot be
            # had beside every CPU build of torch, does not
            absent = "torchvision" in error and not find_spec("torchvision")
            say = log.info if absent else log.warning
            say("failed after %.0f s: %s", seconds, text, location=page)
            app.fl_failed[page] = error
        else:
            log.info("%s: done after %.0f s", page, seconds)
        # the cache knows a chapter by its cells; papermill writes into their metadata
        own = done.cells[: len(notebook.cells)]
        for cell, its in zip(notebook.cells, own, strict=True):
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = its.outputs, its.execution_count
        of = {k: v for k, v in done.metadata.items() if k not in notebook.metadata}
        notebook.metadata.update(of)
        about = {"execution_seconds": seconds, "error": error}
        return CacheBundleIn(notebook, str(path), data=about)

    jobs = max(1, int(os.environ.get("FEDLEARN_JOBS", min(4, os.cpu_count() or 1))))
    with ThreadPoolExecutor(jobs) as pool:
        for bundle in pool.map(execute, missing):
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def note_errors(app, env):
    """What comes from the cache counts as a success for MyST-NB."""
    for page, error in app.fl_failed.items():
        execution_of(env, page).update(succeeded=False, error=error)


def say_what_failed(app, page, template, context, doctree):
    error = execution_of(app.env, page).get("error")
    if error and "body" in context:
        text = (
            '<div class="admonition danger">'
            '<p class="admonition-title">This page is not complete</p>'
            "<p>A cell of it failed when the book was built, and the cells below that "
            f"one did not run: <code>{html.escape(error)}</code></p></div>"
        )
        context["body"] = context["body"].replace("</h1>", f"</h1>{text}", 1)


def name_incomplete(app, error):
    failed = incomplete(app.env) if error is None else {}
    if failed:  # said when the program ends, behind everything that is printed
        lines = "".join(f"\n{page}: {why}" for page, why in failed.items())
        atexit.register(
            print,
            f"All pages are built, but a cell failed on each of these:{lines}",
            file=sys.stderr,
        )


def setup(app):
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # kernels inherit it
    # after MyST-NB has chosen the cache's folder
    app.connect("builder-inited", empty_stale_cache, priority=900)
    app.connect("env-get-outdated", pages_to_read_again)
    app.connect("env-before-read-docs", execute_side_by_side)
    app.connect("env-updated", note_errors)
    app.connect("html-page-context", say_what_failed)
    app.connect("build-finished", name_incomplete)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

"""Local Sphinx extension: run chapters rarely, but never show an outdated output.

The execution cache compares a chapter's code cells and nothing else. So, before pages
are read:

1. when the package, the data, the pinned versions or Python itself changed since the
   last build, the cache is emptied;
2. chapters that are then missing from the cache are executed by papermill, with their
   own parameters, side by side (FEDLEARN_JOBS at a time, one thread each); one that
   fails ends the build;
3. every chapter's page says below its title how long it took.
"""

import hashlib
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import nbformat
import papermill
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_client.kernelspec import KernelSpecManager
from papermill.exceptions import PapermillExecutionError
from sphinx.errors import ExtensionError
from sphinx.util import logging

log = logging.getLogger(__name__)
LIBRARIES = (
    "torch",
    "torchvision",
    "numpy",
    "scikit-learn",
    "pandas",
    "matplotlib",
    "ipywidgets",
    "nbclient",
    "papermill",
)
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
    files = [
        *(root / "fedlearn").rglob("*.py"),
        *(root / "data").rglob("*"),
        *root.glob("constraints*.txt"),
    ]
    for path in sorted(files):
        if path.is_file() and root / "data" / "cache" not in path.parents:
            digest.update(
                path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes()
            )
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
    return list(env.found_docs) if app.fl_stale else []


def execute_side_by_side(app, env, docnames):
    config = env.mystnb_config
    if config.execution_mode != "cache":
        return
    cache = get_cache(config.execution_cache_path)
    missing = []
    for path in (Path(env.doc2path(name)) for name in docnames):
        if path.suffix == ".ipynb":
            notebook = nbformat.read(path, 4)
            try:
                cache.match_cache_notebook(notebook)
            except KeyError:
                missing.append((path, notebook))

    def execute(job):
        path, notebook = job
        log.info("executing %s", path.relative_to(app.srcdir))
        began = time.perf_counter()
        try:
            done = papermill.execute_notebook(
                str(path),
                None,
                progress_bar=False,
                start_timeout=3600,
                execution_timeout=config.execution_timeout,
                # not ``cwd``, which is one for all threads
                resources={"metadata": {"path": str(path.parent)}},
                **QUIET,
            )
        except PapermillExecutionError as error:
            return path, notebook, str(error)
        seconds = time.perf_counter() - began
        log.info("%s: done after %.0f s", path.relative_to(app.srcdir), seconds)
        # the cache knows a chapter by its cells; papermill writes into their metadata
        for cell, its in zip(notebook.cells, done.cells, strict=True):
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = its.outputs, its.execution_count
        of = {k: v for k, v in done.metadata.items() if k not in notebook.metadata}
        notebook.metadata.update(of)
        bundle = CacheBundleIn(notebook, str(path), data={"execution_seconds": seconds})
        return path, bundle, None

    jobs = max(1, int(os.environ.get("FEDLEARN_JOBS", min(4, os.cpu_count() or 1))))
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        for path, bundle, error in pool.map(execute, missing):
            if error is None:
                cache.cache_notebook_bundle(
                    bundle, check_validity=False, overwrite=True
                )
            else:
                failed.append(f"{path.relative_to(app.srcdir)}: {error}")
    if failed:
        raise ExtensionError("\n".join(failed))


def say_how_long(app, page, template, context, doctree):
    about = getattr(app.env, "nb_metadata", {}).get(page, {}).get("exec_data") or {}
    chapter = page in app.env.found_docs and app.env.doc2path(page).endswith(".ipynb")
    if chapter and about.get("runtime") and "body" in context:
        minutes, cores = about["runtime"] / 60, os.cpu_count()
        text = f"All cells ran in {minutes:.1f} minutes when this page was built"
        text = (
            f'<p class="fl-time">{text}, one thread on a machine of {cores} cores.</p>'
        )
        context["body"] = context["body"].replace("</h1>", f"</h1>{text}", 1)


def setup(app):
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # kernels inherit it
    # after MyST-NB has chosen the cache's folder
    app.connect("builder-inited", empty_stale_cache, priority=900)
    app.connect("env-get-outdated", pages_to_read_again)
    app.connect("env-before-read-docs", execute_side_by_side)
    app.connect("html-page-context", say_how_long)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

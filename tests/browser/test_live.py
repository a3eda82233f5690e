"""JupyterLab in Chromium, without extensions: one chapter with a kernel, all cells run and a slider
moved by key; all chapters as papermill executed them."""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from conftest import LIMIT, ROOT, chapters, closely, executed
from nbformat.sign import NotebookNotary

# has `live` among its parameters and a widget with the class fl-live
CHAPTER = "book/foundations/heterogeneity.ipynb"
ERRORS = (
    "[data-mime-type='application/vnd.jupyter.error'], "
    "[data-mime-type='application/vnd.jupyter.stderr'] .ansi-red-fg"
)


@pytest.fixture
def lab(tmp_path, request):
    """(address, token, chapter) of a JupyterLab of its own: settings, data and runtime in a
    temporary folder, no extension but those that JupyterLab and ipywidgets bring. The chapter is
    executed; if none is asked for it is ``CHAPTER``, with ``live = True`` in its parameters."""
    page = getattr(request, "param", None)
    chapter = f"book/{page}.ipynb" if page else CHAPTER
    notebook = executed(page) if page else nbformat.read(ROOT / chapter, 4)
    (tmp_path / chapter).parent.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    if page:  # signed, or JupyterLab would not show its charts
        nbformat.write(notebook, tmp_path / chapter)
        notary = NotebookNotary(data_dir=str(tmp_path / "data"))
        notary.sign(nbformat.read(tmp_path / chapter, 4))
    else:
        cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
        cell.source, count = re.subn(r"(?m)^live\s*=\s*False\b", "live = True", cell.source)
        assert count == 1, f"{chapter} has no parameter `live = False`"
        nbformat.write(notebook, tmp_path / chapter)
    settings = tmp_path / "settings"
    # every cell is drawn, also outside the window
    tracker = {"windowingMode": "none", "autoStartDefaultKernel": page is None}
    news = {"checkForUpdates": False, "fetchNews": "false"}
    own = {"apputils-extension/notification": news, "notebook-extension/tracker": tracker}
    for name, values in own.items():
        file = settings / f"@jupyterlab/{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token, url = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    folders = {"CONFIG": "config", "DATA": "data", "RUNTIME": "runtime"}
    env = os.environ | {f"JUPYTER_{k}_DIR": str(tmp_path / v) for k, v in folders.items()}
    env |= {"JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces")}
    env |= {"IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTERLAB_SETTINGS_DIR": str(settings)}
    options = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    options += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={tmp_path}"]
    options += ["--ServerApp.port_retries=0", "--LabApp.news_url=", "--LabApp.collaborative=False"]
    command = [sys.executable, "-m", "jupyterlab", *options]
    log = tmp_path / "lab.log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as server:
        try:
            end = time.time() + LIMIT
            while not answers(f"{url}/api/status?token={token}"):
                assert server.poll() is None and time.time() < end, log.read_text()
                time.sleep(0.2)
            yield url, token, chapter
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def answers(address):
    """What a server says, if it is there."""
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return json.load(answer)
    except OSError:
        return None


def wait(page, condition, what):
    end = time.time() + LIMIT
    while not condition():
        assert time.time() < end, f"not within {LIMIT} s: {what}"
        # not time.sleep: requests of the page are answered in this process
        page.wait_for_timeout(300)


def open_lab(page, lab):
    url, token, chapter = lab
    page.goto(f"{url}/lab/tree/{chapter}?reset&token={token}", wait_until="domcontentloaded")
    page.wait_for_selector(".jp-Notebook .jp-Cell")


def no_error(page):
    assert page.locator(ERRORS).count() == 0, page.locator(ERRORS).first.inner_text()[-2000:]


def closed(page):
    """JupyterLab's own console is not ours; requests that left the machine still count."""
    closed(page)


def test_live_widget_recomputes(lab, page):
    open_lab(page, lab)
    url, token, _ = lab

    def ready():  # JupyterLab's own indicator says idle before there is a kernel
        kernels = [its["kernel"] for its in answers(f"{url}/api/sessions?token={token}") or []]
        return any(k["connections"] > 0 and k["execution_state"] == "idle" for k in kernels)

    def all_ran():
        texts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        prompts = [text.strip() for text in texts if text.strip()]  # a folded cell shows none
        no_error(page)
        return prompts and all(re.fullmatch(r"\[\d+\]:?", prompt) for prompt in prompts)

    wait(page, ready, "a kernel")
    page.wait_for_selector("#jp-main-statusbar >> text=/\\| Idle/")
    page.click("#jp-MainMenu >> text=Run")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
    wait(page, all_ran, "all cells executed")
    box = page.locator(".fl-live").first
    box.scroll_into_view_if_needed()
    # what the reader sees beside the sliders: HTML widgets' and outputs' text, and images' content
    look = """b => [...b.querySelectorAll('.widget-html-content, .jp-OutputArea-output, img')]
        .filter(e => e.checkVisibility()).map(e => e.src || e.innerHTML).join('|')"""
    handle = box.locator(".noUi-handle").first
    before, value = box.evaluate(look), handle.get_attribute("aria-valuenow")
    assert before
    handle.focus()
    at_end = value == handle.get_attribute("aria-valuemax")
    handle.press("ArrowLeft" if at_end else "ArrowRight")
    wait(page, lambda: handle.get_attribute("aria-valuenow") != value, "the slider moves")
    wait(page, lambda: box.evaluate(look) != before, "the widget shows something new")
    no_error(page)
    closed(page)


@pytest.mark.parametrize("lab", closely(chapters()), indirect=True)
def test_a_chapter_reads_in_jupyterlab(lab, page):  # in this order: the page closes first
    """With empty answers: no error; every figure, table and chart is there, with its
    caption."""
    open_lab(page, lab)
    source = nbformat.read(ROOT / lab[2], 4)
    code = "\n".join(cell.source for cell in source.cells if cell.cell_type == "code")
    # whatever the call's name: what is shown has a number
    shows = r'(?:\bnumber=|fl\.(?:book|widgets)\.\w+\(\s*)"([\dA-Z]+\.\d+)"'
    numbers = sorted(re.findall(shows, code))
    # a caption is not in the source's text: sources are folded or in an editor of their own
    captions = page.locator(".jp-OutputArea figcaption b")
    wait(page, lambda: captions.count() >= len(numbers), "all captions")
    count = len(re.findall(r"fl\.book\.(?:chart|explorer)\(", code))
    wait(page, lambda: page.locator(".vega-embed").count() == count, "all charts")
    no_error(page)
    texts = page.locator(".jp-OutputArea figcaption").all_inner_texts()
    found = [re.match(r"(?:Figure|Table) ([\dA-Z]+\.\d+)\. \w", text) for text in texts]
    assert all(found), texts
    assert sorted(match.group(1) for match in found) == numbers
    markdown = page.locator(".jp-MarkdownOutput")
    assert markdown.count() == sum(cell.cell_type == "markdown" for cell in source.cells)
    # tests/chapters sees that no markup is used which JupyterLab leaves raw
    assert page.locator("mjx-merror").count() == 0, "a formula that MathJax cannot read"
    for details in page.locator(".fl-solution").all():
        assert details.get_attribute("open") is None, "a solution stands open"
    closed(page)

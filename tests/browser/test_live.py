"""JupyterLab in Chromium, without extensions: one chapter with a kernel, all cells run and a slider
moved by key; all chapters as papermill executed them."""

import json
import os
import re
import secrets
import shutil
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


# they must read well with no extension
PLAIN = closely(chapters())
# What JupyterLab leaves of MyST that it cannot read: a role before its code, the language of a
# directive's fence, a label, and mathematics that stayed text.
RAW = r"""cells => cells.flatMap(cell => {
  const found = [...cell.querySelectorAll('code')].filter(code => {
    const before = code.previousSibling;
    return (before && before.nodeType == 3 && /\{[a-z:]+\}$/.test(before.data))
      || /language-\{/.test(code.className); }).map(code => code.textContent.slice(0, 80));
  const copy = cell.cloneNode(true);
  copy.querySelectorAll('code, mjx-container').forEach(e => e.remove());
  const text = copy.textContent;
  const raw = [/\{[a-z]+(:[a-z]+)?\}`/, /^\s*\([\w-]+\)=/m, /:{3,}\s*\{/, /\$\$|\\(tag|begin)\{/];
  const rest = raw.map(r => r.exec(text)).find(Boolean);
  if (rest) found.push(text.slice(Math.max(0, rest.index - 40), rest.index + 40));
  if (cell.querySelector('mjx-merror')) found.push('a formula that MathJax cannot read');
  return found; })"""


def prepare(source, target):
    """Copy a chapter, with `live = True` in its parameters cell if it has that parameter."""
    notebook = nbformat.read(source, 4)
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    cell.source, count = re.subn(r"(?m)^live\s*=\s*False\b", "live = True", cell.source)
    name = source.relative_to(ROOT).as_posix()
    assert count == 1 or name != CHAPTER, f"{source} has no parameter `live = False`"
    target.parent.mkdir(parents=True)
    nbformat.write(notebook, target)


@pytest.fixture
def lab(tmp_path, request):
    """(url, token, chapter) of a JupyterLab of its own: settings, data and runtime in a temporary
    folder, no extension but those that JupyterLab and ipywidgets bring."""
    page = getattr(request, "param", None)
    chapter = f"book/{page}.ipynb" if page else CHAPTER
    if page:  # signed, or JupyterLab would not show its charts
        (tmp_path / chapter).parent.mkdir(parents=True)
        (tmp_path / "data").mkdir()
        nbformat.write(executed(page), tmp_path / chapter)
        notary = NotebookNotary(data_dir=str(tmp_path / "data"))
        notary.sign(nbformat.read(tmp_path / chapter, 4))
    else:
        prepare(ROOT / chapter, tmp_path / chapter)
    settings = tmp_path / "settings"
    for name, values in {
        "apputils-extension/notification": {"checkForUpdates": False, "fetchNews": "false"},
        # every cell is drawn, also outside the window
        "notebook-extension/tracker": {
            "windowingMode": "none",
            "autoStartDefaultKernel": page is None,
        },
    }.items():
        file = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
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
    log = open(tmp_path / "lab.log", "w")
    options = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    options += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={tmp_path}"]
    options += ["--ServerApp.port_retries=0", "--LabApp.news_url=", "--LabApp.collaborative=False"]
    command = [sys.executable, "-m", "jupyterlab", *options]
    server = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    try:
        end = time.time() + LIMIT
        while True:
            try:
                urllib.request.urlopen(f"{url}/api/status?token={token}", timeout=60).close()
                break
            except OSError:
                assert server.poll() is None and time.time() < end, (
                    tmp_path / "lab.log"
                ).read_text()
                time.sleep(0.2)
        yield url, token, chapter
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
        log.close()
        shutil.rmtree(tmp_path / "runtime", ignore_errors=True)


def kernel_is_ready(url, token):
    """JupyterLab's own indicator says idle before there is a kernel: ask the server."""
    with urllib.request.urlopen(f"{url}/api/sessions?token={token}", timeout=LIMIT) as answer:
        kernels = [session["kernel"] for session in json.load(answer)]
    return any(k["connections"] > 0 and k["execution_state"] == "idle" for k in kernels)


def wait(page, condition, what):
    end = time.time() + LIMIT
    while not condition():
        assert time.time() < end, f"not within {LIMIT} s: {what}"
        # not time.sleep: requests of the page are answered in this process
        page.wait_for_timeout(300)


def run_all_cells(page, url, token, chapter):
    page.goto(f"{url}/lab/tree/{chapter}?reset&token={token}", wait_until="domcontentloaded")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    wait(page, lambda: kernel_is_ready(url, token), "a kernel")
    page.wait_for_selector("#jp-main-statusbar >> text=/\\| Idle/")
    page.click("#jp-MainMenu >> text=Run")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")

    def all_ran():
        texts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        prompts = [text.strip() for text in texts if text.strip()]  # a folded cell shows none
        assert page.locator(ERRORS).count() == 0, page.locator(ERRORS).first.inner_text()[-2000:]
        return prompts and all(re.fullmatch(r"\[\d+\]:?", prompt) for prompt in prompts)

    wait(page, all_ran, "all cells executed")


def test_live_widget_recomputes(lab, page):
    run_all_cells(page, *lab)
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
    assert page.locator(ERRORS).count() == 0
    page.close()
    # JupyterLab's own console is not ours; requests that left the machine still count
    page.errors.clear()


@pytest.mark.parametrize("lab", PLAIN, indirect=True)
def test_a_chapter_reads_in_jupyterlab(lab, page):  # in this order: the page closes first
    """With empty answers: no error, no raw markup; every figure, table and chart is there, with its
    caption."""
    url, token, chapter = lab
    page.goto(f"{url}/lab/tree/{chapter}?reset&token={token}", wait_until="domcontentloaded")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    source = nbformat.read(ROOT / chapter, 4)
    code = "\n".join(cell.source for cell in source.cells if cell.cell_type == "code")
    # whatever the call's name: what is shown has a number
    shows = r'(?:\bnumber=|fl\.(?:book|widgets)\.\w+\(\s*)"([\dA-Z]+\.\d+)"'
    numbers = sorted(re.findall(shows, code))
    # a caption is not in the source's text: sources are folded or in an editor of their own
    captions = page.locator(".jp-OutputArea figcaption b")
    wait(page, lambda: captions.count() >= len(numbers), "all captions")
    count = len(re.findall(r"fl\.book\.(?:chart|explorer)\(", code))
    wait(page, lambda: page.locator(".vega-embed").count() == count, "all charts")
    assert page.locator(ERRORS).count() == 0, page.locator(ERRORS).first.inner_text()[-2000:]
    texts = page.locator(".jp-OutputArea figcaption").all_inner_texts()
    found = [re.match(r"(?:Figure|Table) ([\dA-Z]+\.\d+)\. \w", text) for text in texts]
    assert all(found), texts
    assert sorted(match.group(1) for match in found) == numbers
    markdown = page.locator(".jp-MarkdownOutput")
    assert markdown.count() == sum(cell.cell_type == "markdown" for cell in source.cells)
    assert markdown.evaluate_all(RAW) == [], "raw markup"
    for details in page.locator(".fl-solution").all():
        assert details.get_attribute("open") is None, "a solution stands open"
    page.close()
    page.errors.clear()

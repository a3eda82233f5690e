"""JupyterLab in Chromium, without extensions: a chapter with a kernel, all cells run, its figures
read and a slider moved by key."""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

import nbformat
import pytest
from conftest import LIMIT, ROOT
from jupyter_cache import get_cache

CHAPTER = "book/foundations/heterogeneity.ipynb"  # has a panel that trains
CACHE = "_build/.jupyter_cache"  # of the book's build
ERRORS = (
    "[data-mime-type='application/vnd.jupyter.error'], "
    "[data-mime-type='application/vnd.jupyter.stderr'] .ansi-red-fg"
)


@pytest.fixture
def lab(tmp_path, request):
    """(address, token) of a JupyterLab of its own, which holds ``CHAPTER`` with few rounds, and
    ``executed.ipynb`` with outputs: settings, data and runtime in a temporary folder, no extension
    but those that JupyterLab and ipywidgets bring. Cells outside the window are drawn, unless the
    test's parameter is "full", which is JupyterLab's own default."""
    (tmp_path / CHAPTER).parent.mkdir(parents=True)
    text = (ROOT / CHAPTER).read_text(encoding="utf-8")
    short = re.sub(r"\brounds = \d+", "rounds = 2", text, count=1)  # its parameter
    (tmp_path / CHAPTER).write_text(short, encoding="utf-8")
    _, executed = get_cache(ROOT / CACHE).merge_match_into_file(ROOT / CHAPTER)
    nbformat.write(executed, tmp_path / "executed.ipynb")
    settings = tmp_path / "settings"
    windowing = getattr(request, "param", "none")
    tracker = {"windowingMode": windowing, "autoStartDefaultKernel": True}
    news = {"checkForUpdates": False, "fetchNews": "false"}
    overrides = {
        "apputils-extension/notification": news,
        "notebook-extension/tracker": tracker,
    }
    for name, values in overrides.items():
        file = settings / f"@jupyterlab/{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token, url = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    names = "JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR JUPYTERLAB_WORKSPACES_DIR"
    env = os.environ | {
        name: str(tmp_path / name) for name in (*names.split(), "IPYTHONDIR")
    }
    env["JUPYTERLAB_SETTINGS_DIR"] = str(settings)
    options = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    options += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={tmp_path}"]
    options += [
        "--ServerApp.port_retries=0",
        "--LabApp.news_url=",
        "--LabApp.collaborative=False",
    ]
    command = [sys.executable, "-m", "jupyterlab", *options]
    log = tmp_path / "lab.log"
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=env) as server,
    ):
        try:
            end = time.time() + LIMIT
            while not answers(f"{url}/api/status?token={token}"):
                assert server.poll() is None and time.time() < end, log.read_text()
                time.sleep(0.2)
            yield url, token
        finally:
            server.terminate()


def answers(address):
    """What a server says, if it is there."""
    with suppress(OSError), urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


def wait(page, condition, event):
    end = time.time() + LIMIT
    while not condition():
        assert time.time() < end, f"not within {LIMIT} s: {event}"
        # not time.sleep: requests of the page are answered in this process
        page.wait_for_timeout(300)


def run_all(page, lab, notebook):
    """Open a notebook and run all its cells; returns when they have begun."""
    url, token = lab
    page.goto(
        f"{url}/lab/tree/{notebook}?reset&token={token}", wait_until="domcontentloaded"
    )
    page.wait_for_selector(".jp-Notebook .jp-Cell")

    def ready():  # JupyterLab's own indicator says idle before there is a kernel
        kernels = [
            session["kernel"]
            for session in answers(f"{url}/api/sessions?token={token}") or []
        ]
        return any(
            k["connections"] > 0 and k["execution_state"] == "idle" for k in kernels
        )

    wait(page, ready, "a kernel")
    page.wait_for_selector("#jp-main-statusbar >> text=/\\| Idle/")
    page.click("#jp-MainMenu >> text=Run")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")


def test_a_chapter_reads_and_its_panel_trains(lab, page):
    run_all(page, lab, CHAPTER)

    def no_error():
        assert page.locator(ERRORS).count() == 0, page.locator(
            ERRORS
        ).first.inner_text()[-2000:]

    def all_ran():
        texts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        prompts = [
            text.strip() for text in texts if text.strip()
        ]  # a folded cell shows none
        no_error()
        return prompts and all(re.fullmatch(r"\[\d+\]:?", prompt) for prompt in prompts)

    wait(page, all_ran, "all cells executed")
    # every figure, table and chart is there
    source = nbformat.read(ROOT / CHAPTER, 4)
    code = "\n".join(cell.source for cell in source.cells if cell.cell_type == "code")
    # whatever the call's name: what is shown has a number
    shows = r'fl\.(?:book\.\w+|explore)\(\s*"([\dA-Z]+\.\d+)"'
    count = len(re.findall(r"fl\.(?:book\.(?:chart|explorer)|explore)\(", code))
    wait(page, lambda: page.locator(".vega-embed").count() == count, "all charts")
    numbers = sorted(re.findall(shows, code))

    def captions():  # a folded cell may still be at work: it shows no prompt
        texts = "\n".join(page.locator(".jp-OutputArea figcaption").all_inner_texts())
        return sorted(
            re.findall(r"^(?:Figure|Table) ([\dA-Z]+\.\d+)\. \w", texts, re.M)
        )

    wait(page, lambda: captions() == numbers, f"figures and tables {numbers}")
    assert page.locator("mjx-merror").count() == 0, "a formula that MathJax cannot read"
    assert page.locator(".fl-solution[open]").count() == 0, "a solution stands open"
    box = page.locator(".fl-live").first
    box.scroll_into_view_if_needed()
    handle = box.locator(".noUi-handle").first
    value = handle.get_attribute("aria-valuenow")
    handle.focus()
    at_end = value == handle.get_attribute("aria-valuemax")
    handle.press("ArrowLeft" if at_end else "ArrowRight")
    wait(
        page, lambda: handle.get_attribute("aria-valuenow") != value, "the slider moves"
    )
    box.locator("button").click()
    wait(
        page,
        lambda: box.locator("figure svg").count(),
        "the curves of what was trained",
    )
    assert "Train it here" in box.inner_text()
    assert box.locator("figcaption").inner_text().startswith("Figure 2.4b.")
    no_error()
    page.close()
    page.errors.clear()  # JupyterLab's own; requests that left the machine still count


# scrolls towards a cell, and gives the width of its chart
WIDTH = """place => {
  const cell = document.querySelector(place)
  const chart = cell?.querySelector('.vega-embed :is(svg, canvas)')
  if (cell?.offsetParent && !chart) cell.scrollIntoView({block: 'center'})
  // a cell outside the window is absent or hidden
  if (!cell?.offsetParent) document.querySelector('.jp-WindowedPanel-outer').scrollBy(0, 300)
  return chart?.getBoundingClientRect().width ?? 0
}"""
# changes of a page that nobody touches
AT_REST = """async () => {
  let changes = 0
  const watch = new MutationObserver(list => { changes += list.length })
  watch.observe(document.querySelector('.jp-Notebook'), {childList: true, subtree: true})
  await new Promise(done => setTimeout(done, 3000))
  watch.disconnect()
  return changes
}"""


@pytest.mark.parametrize("lab", ["full"], indirect=True)
def test_a_saved_notebook_opens_with_its_charts(lab, page):
    url, token = lab
    _, source = get_cache(ROOT / CACHE).merge_match_into_file(ROOT / CHAPTER)
    spec = "application/vnd.vegalite.v5+json"
    charts = [
        number
        for number, cell in enumerate(source.cells)
        if any(spec in output.get("data", {}) for output in cell.get("outputs", []))
    ]
    assert len(charts) > 1

    def check_opening(saved_by):
        page.goto(
            f"{url}/lab/tree/executed.ipynb?reset&token={token}",
            wait_until="domcontentloaded",
        )
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        for number in charts:
            cell = f".jp-Cell[data-windowed-list-index='{number}']"

            def drawn(cell=cell):
                return page.evaluate(WIDTH, cell) > 200

            wait(page, drawn, f"the chart of cell {number}, saved by {saved_by}")
        wait(page, lambda: page.evaluate(AT_REST) < 10, "no drawing without end")

    check_opening("papermill")
    page.wait_for_selector("#jp-main-statusbar >> text=/\\| Idle/")
    page.click("#jp-MainMenu >> text=File")
    page.click(".lm-Menu-itemLabel:text-is('Save Notebook')")
    check_opening("JupyterLab")
    page.close()
    page.errors.clear()

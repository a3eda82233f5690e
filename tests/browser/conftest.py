"""The built site on a loopback server, and a headless Chromium that may not leave this machine."""

import functools
import http.server
import os
import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
# pages of every kind
PAGES = """
    index start/ten_minutes start/playground setup teach own_data foundations/wire papers/rpn
    together/seeing together/choosing papers/rpn_audit methods/rpn appendix/claims
""".split()
WEIGHT = 1.5e6  # bytes of a page, at most
LIMIT = (
    600  # seconds; against hanging only: no test may depend on how fast the machine is
)
CHROMIUM_ARGS = """--no-sandbox --disable-gpu --disable-dev-shm-usage --disable-component-update
    --disable-background-networking --disable-sync --no-first-run --disable-extensions""".split()


def toc_pages():
    """Every page of the table of contents, as its path below the site's root and without .html."""
    toc = (ROOT / "book" / "_toc.yml").read_text()
    return re.findall(r"^\W*(?:file|root): (\S+)$", toc, re.M)


@pytest.fixture(scope="session")
def site():
    assert (HTML / "index.html").exists(), (
        "the book is not built: run `make book` first"
    )
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(HTML)
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser():
    executable = os.environ.get("CHROMIUM")
    assert executable, (
        "CHROMIUM is not set: run `make test-browser`, which finds or installs one"
    )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=executable, args=CHROMIUM_ARGS, headless=True
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    """A page that records console errors (`errors`), and blocks and records requests to other
    machines (`external`).

    Both must be empty at the end of every test."""
    size = {"width": 1280, "height": 900}
    # nothing moves by itself, unless a test asks for it
    context = browser.new_context(viewport=size, reduced_motion="reduce")
    context.set_default_timeout(1000 * LIMIT)
    page = context.new_page()
    page.external, page.errors = [], []

    def guard(route):
        url = route.request.url
        if url.startswith(
            ("http://127.0.0.1:", "http://localhost:", "data:", "blob:", "file:")
        ):
            route.continue_()
        else:
            page.external.append(url)
            route.abort()

    context.route("**/*", guard)

    def hear(message):
        if message.type == "error":
            page.errors.append(f"{message.text} {message.location}")

    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", hear)
    yield page
    context.close()
    assert page.external == [], "requests that left this machine"
    assert page.errors == [], "errors in the browser's console"

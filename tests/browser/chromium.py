"""Find a Chromium, or get one, and print where it is.  `python tests/browser/chromium.py`

Looks at $CHROMIUM, at the names on PATH, at Playwright's own download; then installs one: as a
system package for root on Debian and its relatives, after a question if $CI is not set; otherwise
with `playwright install`, which downloads into a folder of the user's. Fails loudly when there is
none at the end: browser tests that are quietly left out look like browser tests that passed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def works(path) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find():
    from playwright.sync_api import sync_playwright

    if wanted := os.environ.get("CHROMIUM"):  # an explicit wish is not replaced
        return wanted if works(wanted) else sys.exit(f"CHROMIUM={wanted} cannot be started")
    if found := next(filter(works, filter(None, map(shutil.which, NAMES))), None):
        return found
    with sync_playwright() as p:
        path = p.chromium.executable_path
    return path if works(path) else None


def allowed(what) -> bool:
    """Whether a system package may be installed: in CI, or if somebody says so."""
    if os.environ.get("CI"):
        return True
    print(f"May {what} be installed? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin is None or not sys.stdin.isatty():
        print("nobody is here to answer: no (CI=1 means yes)", file=sys.stderr)
        return False
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def install():
    def run(*command):
        print("$", " ".join(command), file=sys.stderr, flush=True)
        return subprocess.run(command, stdout=sys.stderr).returncode == 0

    root = hasattr(os, "geteuid") and os.geteuid() == 0
    debian = root and shutil.which("apt-get") and Path("/etc/debian_version").exists()
    package = debian and allowed("the system package chromium (apt-get install chromium)")
    if package:
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        run("apt-get", "update", "-qq")
        if run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium") and find():
            return
    # Ubuntu's chromium is a snap
    more = ["--with-deps"] if package else []
    run(sys.executable, "-m", "playwright", "install", *more, "chromium")


if __name__ == "__main__":
    if (path := find()) is None:
        install()
        path = find()
    print(path or sys.exit("*** THE BROWSER TESTS CANNOT RUN: no Chromium; set CHROMIUM=PATH ***"))

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


def of_playwright():
    """Where `playwright install chromium` would put (or has put) a browser on this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        return p.chromium.executable_path


def find():
    wanted = os.environ.get("CHROMIUM")
    if wanted:
        # an explicit wish is not replaced by something else
        return wanted if works(wanted) else sys.exit(f"CHROMIUM={wanted} cannot be started")
    for path in filter(None, map(shutil.which, NAMES)):
        if works(path):
            return path
    path = of_playwright()
    return path if Path(path).exists() and works(path) else None


def install():
    def run(*command):
        print("$", " ".join(command), file=sys.stderr, flush=True)
        return subprocess.run(command, stdout=sys.stderr).returncode == 0

    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    debian = shutil.which("apt-get") and Path("/etc/debian_version").exists()
    if is_root and debian and allowed("the system package chromium (apt-get install chromium)"):
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        run("apt-get", "update", "-qq")
        if run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium") and find():
            return
        # Ubuntu's chromium is a snap
        run(sys.executable, "-m", "playwright", "install", "--with-deps", "chromium")
    else:
        run(sys.executable, "-m", "playwright", "install", "chromium")


def allowed(what) -> bool:
    """Whether a system package may be installed: in CI, or if somebody says so."""
    if os.environ.get("CI"):
        return True
    print(f"May {what} be installed? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin is None or not sys.stdin.isatty():
        print("nobody is here to answer: no (CI=1 means yes)", file=sys.stderr)
        return False
    return sys.stdin.readline().strip().lower() in ("y", "yes")


if __name__ == "__main__":
    path = find()
    if path is None:
        print(
            "No Chromium found: installing one for the browser tests.", file=sys.stderr, flush=True
        )
        install()
        path = find()
    if path is None:
        sys.exit(
            "\n*** THE BROWSER TESTS CANNOT RUN: "
            "no Chromium on this machine, and installing one failed. ***\n"
            "Install Chromium or Google Chrome (Debian: apt-get install chromium), "
            "or set CHROMIUM=/path/to/chromium."
        )
    print(path)

"""Find a Chromium, or get one, and print where it is.  `python tests/browser/chromium.py`

Looks at $CHROMIUM, at the names on PATH, at Playwright's own download; then installs one with
`playwright install`, if $CI is set or somebody says yes. Fails loudly when there is none at the
end: browser tests that are quietly left out look like browser tests that passed.
"""

import os
import shutil
import subprocess
import sys

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def works(path):
    try:
        return (
            subprocess.run(
                [path, "--version"], capture_output=True, timeout=60
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def find():
    if path := os.environ.get("CHROMIUM"):  # an explicit wish is not replaced
        return path if works(path) else sys.exit(f"CHROMIUM={path} cannot be started")
    with sync_playwright() as p:
        paths = [*filter(None, map(shutil.which, NAMES)), p.chromium.executable_path]
    return next(filter(works, paths), None)


def allowed():
    if os.environ.get("CI"):
        return True
    if not sys.stdin.isatty():
        print(
            "No Chromium: nobody is here to be asked (CI=1 means yes).", file=sys.stderr
        )
        return False
    print("Install Chromium? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def install():
    system = [] if os.geteuid() else ["--with-deps"]
    command = [sys.executable, "-m", "playwright", "install", *system, "chromium"]
    subprocess.run(command, stdout=sys.stderr)


if __name__ == "__main__":
    path = find()
    if path is None and allowed():
        install()
        path = find()
    print(
        path
        or sys.exit(
            "*** THE BROWSER TESTS CANNOT RUN: no Chromium; set CHROMIUM=PATH ***"
        )
    )

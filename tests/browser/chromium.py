"""Find a Chromium, or get one, and print where it is.  `python tests/browser/chromium.py`

Looks at $CHROMIUM, at the names on PATH, at Playwright's own download; then installs one: for root
on Debian and its relatives as a system package, if $CI is set or somebody says yes; otherwise with
`playwright install`, into a folder of the user's. Fails loudly when there is none at the end:
browser tests that are quietly left out look like browser tests that passed.
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
    if wanted := os.environ.get("CHROMIUM"):  # an explicit wish is not replaced
        return (
            wanted
            if works(wanted)
            else sys.exit(f"CHROMIUM={wanted} cannot be started")
        )
    with sync_playwright() as p:
        paths = [*filter(None, map(shutil.which, NAMES)), p.chromium.executable_path]
    return next(filter(works, paths), None)


def allowed(what):
    if os.environ.get("CI"):
        return True
    if not sys.stdin.isatty():
        print(
            f"No {what}: nobody is here to be asked (CI=1 means yes).", file=sys.stderr
        )
        return False
    print(f"Install {what}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def run(*command):
    print("$", *command, file=sys.stderr, flush=True)
    return subprocess.run(command, stdout=sys.stderr).returncode == 0


def install():
    debian = shutil.which("apt-get") and os.geteuid() == 0
    package = debian and allowed("the system package chromium")
    if package:
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        get = "apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"
        run("apt-get", "update", "-qq")
        if run(*get) and find():
            return
    # Ubuntu's chromium is a snap
    more = ["--with-deps"] if package else []
    run(sys.executable, "-m", "playwright", "install", *more, "chromium")


if __name__ == "__main__":
    if (path := find()) is None:
        install()
        path = find()
    print(
        path
        or sys.exit(
            "*** THE BROWSER TESTS CANNOT RUN: no Chromium; set CHROMIUM=PATH ***"
        )
    )

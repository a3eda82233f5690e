"""``python book/_editions pdf epub`` makes one or both of the built site, and offers them there."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "_ext"))

from fl_editions import FOLDER, file_name, offer

from pages import ROOT, SITE, chromium, config, snapshots


def main(kinds: list[str]) -> None:
    if not kinds or set(kinds) - {"pdf", "epub"}:
        sys.exit(f"An edition is pdf or epub, not {' '.join(kinds) or 'nothing'}.")
    import epub
    import pdf

    folder = ROOT / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for browser in chromium():
        pages = snapshots(browser)
        for kind in kinds:
            target = folder / file_name(config()["title"], kind)
            if kind == "pdf":
                count = pdf.make(browser, pages, target)
                print(f"{target}: {count} pages of paper")
            else:
                count = epub.make(pages, target)
                print(f"{target}: {count} pages of the site")
                check(target)
    offer(SITE, folder)


def check(book: Path) -> None:
    """What EPUBCheck says, where it is installed and can run; an error of it is one of ours."""
    if not (command := epubcheck()):
        print("EPUBCheck is not installed, or lacks Java: the EPUB was not checked.")
    elif subprocess.run([*command, str(book)]).returncode:
        sys.exit("EPUBCheck found errors (above).")


def epubcheck() -> list[str]:
    """The command that starts EPUBCheck, empty where there is none. Debian's is the archive of
    Java classes itself, which starts by its name only where the system's kernel was told how."""
    path = shutil.which("epubcheck")
    if not path or not zipfile.is_zipfile(path):
        return [path] if path else []
    java = shutil.which("java")
    return [java, "-jar", path] if java else []


if __name__ == "__main__":
    main(sys.argv[1:])

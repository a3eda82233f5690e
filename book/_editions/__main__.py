"""``python book/_editions pdf epub`` makes one or both of the built site, and offers them there."""

import shutil
import subprocess
import sys
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
    """What EPUBCheck says, where it is installed; an error of it is one of ours."""
    if not shutil.which("epubcheck"):
        print("EPUBCheck is not installed: the EPUB was not checked.")
        return
    if subprocess.run(["epubcheck", str(book)]).returncode:
        sys.exit("EPUBCheck found errors (above).")


if __name__ == "__main__":
    main(sys.argv[1:])

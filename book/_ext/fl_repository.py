"""Write where the repository is into what names it: `python book/_ext/fl_repository.py`

The one value is `repository: url` in _config.yml. Badges of the README, the project's
links in pyproject.toml and the citation follow it; empty, they have none. `--release
v1.2.3` makes the README's links to files whole, too, because a package index shows it
without the files.
"""

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- badges: filled by book/_ext/fl_repository.py -->\n"


def site_of(url: str) -> str:
    """Where GitHub publishes the branch of the site."""
    owner, name = url.split("/")[-2:]
    site = f"{owner}.github.io"
    return f"https://{site}/" + ("" if name.lower() == site.lower() else f"{name}/")


def badges(url: str) -> str:
    """Tests, the book, Binder."""
    binder = url.replace("https://github.com/", "https://mybinder.org/v2/gh/")
    flows, logo = f"{url}/actions/workflows", "https://mybinder.org/badge_logo.svg"
    rows = (
        ("tests", f"{flows}/test.yml/badge.svg", f"{flows}/test.yml"),
        ("book", f"{flows}/book.yml/badge.svg", site_of(url)),
        ("Binder", logo, f"{binder}/HEAD?urlpath=lab/tree/book"),
    )
    return "".join(f"[![{name}]({image})]({link})\n" for name, image, link in rows)


def filled(readme: str, project: str, citation: str, url: str) -> tuple[str, str, str]:
    """README.md, pyproject.toml and CITATION.cff with this address, or without any."""
    readme = re.sub(MARK + r"(\[!\[.*\n)*", MARK + (badges(url) if url else ""), readme)
    project = re.sub(r"\[project\.urls\]\n(.+\n)*\n", "", project)
    citation = re.sub(r"^(url|repository-code): .*\n", "", citation, flags=re.MULTILINE)
    if url:
        links = {
            "Documentation": site_of(url),
            "Source": url,
            "Issues": f"{url}/issues",
            "Changelog": f"{url}/blob/main/CHANGELOG.md",
        }
        rows = "".join(f'{name} = "{link}"\n' for name, link in links.items())
        table, below = f"[project.urls]\n{rows}\n", "[project.scripts]"
        project = project.replace(below, table + below)
        citation += f"repository-code: {url}\nurl: {site_of(url)}\n"
    return readme, project, citation


def whole(readme: str, url: str, tag: str) -> str:
    """The README with links that work without the files beside it."""
    raw = url.replace("https://github.com/", "https://raw.githubusercontent.com/")
    readme = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\1{raw}/{tag}/", readme)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!\w+:)", rf"\1{url}/blob/{tag}/", readme)


if __name__ == "__main__":
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    url = config["repository"]["url"].removesuffix("/").removesuffix(".git")
    paths = [ROOT / name for name in ("README.md", "pyproject.toml", "CITATION.cff")]
    texts = filled(*(path.read_text(encoding="utf-8") for path in paths), url)
    if url and "--release" in sys.argv:
        texts = (whole(texts[0], url, sys.argv[-1]), *texts[1:])
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")

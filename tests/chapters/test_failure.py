"""A cell that fails costs its page, not the book."""

import re

import tiny

MAKEFILE = (tiny.ROOT / "Makefile").read_text(encoding="utf-8")
FLAGS = re.search(r"jupyter-book\" build book .* --path-output [.] (.*)", MAKEFILE)[
    1
].split()
INCOMPLETE = "This page is not complete"
PAGES = {
    "index.md": "# A book\n",
    "good.ipynb": tiny.chapter("# Good", "print('all is', 'well')"),
    "papers/bad.ipynb": tiny.chapter(
        "# Bad",
        "print('so', 'far')",
        "open('data.txt').read()",
        "print('never', 'seen')",
    ),
    "dead.ipynb": tiny.chapter("# Dead", "import os; os._exit(1)"),
    "text.md": """---
file_format: mystnb
kernelspec:
  name: python3
---
# Text

```{code-cell}
print('in', 'words')
```
""",
}


def test_a_cell_that_fails_costs_its_page(tmp_path):
    tiny.write(tmp_path, PAGES)

    def page(name):
        return (tmp_path / "_build/html" / f"{name}.html").read_text(encoding="utf-8")

    status, output = tiny.build(tmp_path, *FLAGS)
    assert status == 1
    *_, heading, dead, bad = output.strip().splitlines()
    assert heading == "All pages are built, but a cell failed on each of these:"
    assert dead == "dead: DeadKernelError: Kernel died"
    assert bad.startswith("papers/bad: FileNotFoundError: ") and "data.txt" in bad
    assert INCOMPLETE not in page("index") + page("good") and "all is well" in page(
        "good"
    )
    assert "executing text" in output and "in words" in page("text")
    assert INCOMPLETE in page("dead")
    top, below = page("papers/bad").split("so far")
    assert INCOMPLETE in top and "FileNotFoundError: [Errno 2]" in top
    assert "Traceback" in below and "FileNotFoundError" in below
    assert "never seen" not in below

    # the next build tries it again, although nothing in the book has changed
    (tmp_path / "book/papers/data.txt").write_text("what was missing")
    status, output = tiny.build(tmp_path, "-W", "--keep-going")
    assert status == 1 and "papers/bad" not in "".join(output.strip().splitlines()[-2:])
    again = page("papers/bad")
    assert INCOMPLETE not in again and "never seen" in again
    for name in ("good", "text"):
        assert f"executing {name}" not in output, "what did not fail is in the cache"

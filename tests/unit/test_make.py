"""``make test`` and ``make test-all`` take their parts in turn, and say at the end what failed."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = """
include Makefile
good: ; @echo SLOW is $(SLOW)
bad: ; @exit 3
all: ; $(call EACH,$(WHICH),SLOW=1)
"""


@pytest.mark.parametrize("parts, failed", [("good good", ""), ("bad good bad", "bad bad")])
def test_a_part_that_fails_does_not_stop_the_next(tmp_path, parts, failed):
    file = tmp_path / "parts.mk"
    file.write_text(PARTS)
    make = f"make -f {file}"  # also of the parts
    words = [*make.split(), "all", f"WHICH={parts}", f"MAKE={make}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert bool(done.returncode) == bool(failed)
    assert failed in done.stderr.partition("failed: ")[2]
    assert done.stdout.count("SLOW is 1") == parts.count("good")
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.endswith(" s")]
    assert rows == [[part, "FAILED" if part == "bad" else "passed"] for part in parts.split()]

"""What the lock files pin can be installed with the oldest Python that the README names."""

from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]


def pins(name):
    for line in (ROOT / name).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield Requirement(line)


def test_every_pin_allows_python_3_11_0():
    checked = []
    for pin in pins("constraints.txt"):
        try:
            found = metadata.metadata(pin.name)
        except metadata.PackageNotFoundError:  # for another system
            continue
        if pin.specifier.contains(found["Version"], prereleases=True):
            needed = SpecifierSet(found["Requires-Python"] or "")
            assert needed.contains("3.11.0"), f"{pin} needs Python {needed}"
            checked.append(pin.name)
    if not checked:
        pytest.skip("other versions than the pinned ones are installed")

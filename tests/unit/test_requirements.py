"""What is pinned can be installed with the oldest Python that the README names, and the lock files
hold all of it, with hashes."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def pins(name):
    text = (ROOT / name).read_text().replace("\\\n", "")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            yield Requirement(line.split("--hash")[0])


def locked(name):
    return {(canonicalize_name(pin.name), str(pin.specifier)) for pin in pins(name)}


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


@pytest.mark.parametrize(
    ("name", "fewest"),
    [("requirements.lock", 51), ("requirements-flower.lock", 51), ("requirements-class.lock", 5)],
)
def test_every_locked_package_has_one_version_and_hashes(name, fewest):
    text = (ROOT / name).read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) >= fewest
    for line in lines:
        assert line.count("--hash=sha256:") > 0 and "==" in line and "file:" not in line, line[:80]


@pytest.mark.parametrize(
    "lock, extras, constraints",
    [
        ("requirements.lock", ["book", "test"], "constraints.txt"),
        ("requirements-flower.lock", ["flower"], "constraints-flower.txt"),
    ],
)
def test_the_lock_is_what_is_wanted(lock, extras, constraints):
    """`make lock` was run after the last change of pyproject.toml and constraints*.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + sum(map(project["optional-dependencies"].get, extras), [])
    versions = {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins(lock)
    }
    for need in map(Requirement, wanted):
        assert need.specifier.contains(versions[canonicalize_name(need.name)]), need
    pinned = {n: v for n, v in locked(constraints) if n in versions}
    assert pinned and pinned.items() <= dict(locked(lock)).items()


def test_the_lock_for_the_class_edition_is_what_is_wanted():
    """The same; and nothing that the environment below it has in another version."""
    lock = locked("requirements-class.lock")
    assert locked("constraints-class.txt") <= lock
    below = dict(locked("requirements.lock"))
    assert all(below.get(name, version) == version for name, version in lock)

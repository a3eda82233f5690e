"""What is pinned can be installed with the oldest Python that the README names, and the lock files
hold all of it, with hashes: `make lock` was run after the last change."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TORCH = "torch", "torchvision"  # which only the first of the locks has
LOCKS = {  # extras of pyproject.toml, and the constraints
    "requirements.lock": (["book", "test"], "constraints.txt"),
    "requirements-cpu.lock": (["book", "test"], "constraints.txt"),
    "requirements-flower.lock": (["flower"], "constraints-flower.txt"),
    "requirements-class.lock": ([], "constraints-class.txt"),
    "requirements-dist.lock": ([], "constraints-dist.txt"),
}


def lines(name):
    text = (ROOT / name).read_text().replace("\\\n", "")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def versions(name):
    pins = (Requirement(line.split("--hash")[0]) for line in lines(name))
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


def needs(extras):
    """What these extras need, those that they name among them."""
    for extra in extras:
        for need in map(Requirement, PROJECT["optional-dependencies"][extra]):
            yield from needs(need.extras) if need.name == PROJECT["name"] else [need]


def test_every_pin_allows_python_3_11_0():
    for name, version in versions("constraints.txt").items():
        try:
            found = metadata.metadata(name)
        except metadata.PackageNotFoundError:  # for another system
            continue
        if found["Version"] == version:
            needed = SpecifierSet(found["Requires-Python"] or "")
            assert needed.contains("3.11.0"), f"{name} needs Python {needed}"


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_has_what_is_wanted_with_hashes(lock):
    extras, constraints = LOCKS[lock]
    for line in lines(lock):
        assert "--hash=sha256:" in line and "==" in line and "file:" not in line, line[:80]
    locked, wanted = versions(lock), PROJECT["dependencies"] if extras else []
    for need in [*map(Requirement, wanted), *needs(extras)]:
        if lock == "requirements.lock" or need.name not in TORCH:
            assert need.specifier.contains(locked[canonicalize_name(need.name)]), need
    pinned = versions(constraints).items()
    assert {n for n, v in pinned if n in locked} and all(locked.get(n, v) == v for n, v in pinned)


def test_without_gpus_all_but_pytorch_is_the_same():
    whole, cpu = versions("requirements.lock"), versions("requirements-cpu.lock")
    assert cpu.items() < whole.items()
    gpu = whole.keys() - cpu.keys() - {*TORCH}
    assert gpu and all(name.startswith(("nvidia-", "cuda-", "triton")) for name in gpu)


def test_the_class_edition_agrees_with_the_environment_below_it():
    below = versions("requirements.lock")
    above = versions("requirements-class.lock")
    assert versions("constraints-class.txt").keys() <= above.keys()
    assert all(below.get(name, version) == version for name, version in above.items())

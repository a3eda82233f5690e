"""Wheel and sdist in empty environments, where what they need is linked from the environment
that runs this; and what `[lesson]` adds to Colab's versions."""

import os
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from unit.test_lean import PROJECT, ROOT, distributions


def run(*words, **options):
    """``python words``, without this clone on the path."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, **options)
    assert not done.returncode, done.stdout[-2000:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both; the wheel is made of what is in the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    words = [
        "-m",
        "uv",
        "build",
        "--offline",
        "--no-build-isolation",
        "--python",
        sys.executable,
    ]
    run(sys.executable, *words, "--out-dir", folder, ROOT)
    return folder


@pytest.mark.parametrize("end", [".whl", ".tar.gz"])
def test_they_work_in_an_empty_environment(built, tmp_path, end):
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    home = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
        ).strip()
    )
    needs = distributions(PROJECT["project"]["dependencies"])
    for name in needs:
        package = metadata.distribution(name)
        for top in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            if not (home / top).exists():
                (home / top).symlink_to(package.locate_file(top))
    pip = [sys.executable, "-m", "pip", "--python", python]
    options = "--no-deps", "--no-index", "--no-build-isolation"
    run(*pip, "install", *options, *built.glob(f"*{end}"))
    run(*pip, "check")
    output = run(python, ROOT / "tests" / "install" / "lean.py", cwd=tmp_path)
    mb = sum(f.stat().st_size for f in (home / "fedlearn").rglob("*")) / 1e6
    print(f"{mb:.1f} MB beside {len(needs)} packages")
    assert "fedlearn[lab]" in output


def test_lessons_change_nothing_that_colab_pins():
    """What ``[lesson]`` needs is resolved with the versions of Colab as constraints."""
    words = "uv pip compile -q --no-header --no-annotate --extra lesson".split()
    words += "--python-version 3.13 --python-platform x86_64-manylinux_2_28".split()
    pins = ROOT / "tests" / "install" / "colab.txt"
    words += ["-c", str(pins), str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True
    )
    if "Failed to fetch" in done.stderr or "dns error" in done.stderr:
        pytest.skip("no package index is within reach")
    assert not done.returncode, done.stderr
    pinned = {line.partition("==")[0].lower() for line in pins.read_text().split("\n")}
    names = {line.partition("==")[0] for line in done.stdout.split("\n")} - {""}
    system = re.compile("nvidia|cuda|triton")  # PyTorch's libraries for a GPU
    new = {name for name in names if not system.match(name)}
    new -= {name.replace("_", "-") for name in pinned}
    assert new == {
        "constriction",
        "faster-coco-eval",
        "itables",
        "jedi",
        "lightning-utilities",
        "torchmetrics",
        "vl-convert-python",
    }

"""Make an environment of uv.lock, or complete one that is there.

    python3 book/_environment.py .venv dev      # what make needs, into .venv
    python3 book/_environment.py .venv flower   # one more, .venv-flower

uv is installed into the first environment and makes the others. Installed files are
links into uv's cache, so that PyTorch is stored once. With CPU=1 PyTorch comes from
TORCH_INDEX, an index of wheels, or from TORCH_WHEEL, files. The first environment
remembers which, and stays without GPU libraries.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

UV = "0.13.9"
OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parents[1]
GPU = re.compile(r"torch|torchvision|triton|nvidia-.*|cuda-.*")


def python_of(folder):
    """The Python of an environment."""
    if os.name == "nt":
        return str(folder / "Scripts" / "python.exe")
    return str(folder / "bin" / "python")


def succeeds(*words):
    """Whether a program is there and ends well; its output is not shown."""
    try:
        return subprocess.run(words, capture_output=True).returncode == 0
    except OSError:
        return False


def check_python(folder):
    """Make an environment with pip where there is none."""
    python = python_of(folder)
    if not succeeds(python, "-m", "pip", "--version"):
        if sys.version_info < OLDEST:
            sys.exit(
                f"The book needs Python 3.11 or newer, but {sys.executable} is older: "
                "run make PYTHON=/path/to/python3.11 ..."
            )
        if subprocess.run([sys.executable, "-m", "venv", folder]).returncode:
            sys.exit(
                f"{sys.executable} cannot make the environment {folder}: see above."
            )
    if not succeeds(python, "-c", f"import sys; assert sys.version_info >= {OLDEST}"):
        sys.exit(
            f"The environment {folder} has a Python older than 3.11: remove it, "
            "or choose another with VENV=..."
        )


def check_uv(folder):
    """Install the version of uv that understands uv.lock."""
    python = python_of(folder)
    version = f"from importlib.metadata import version as v; assert v('uv') == '{UV}'"
    if succeeds(python, "-c", version) and succeeds(python, "-m", "uv", "--version"):
        return
    words = [python, "-m", "pip", "install", "-q", "--retries", "1", f"uv=={UV}"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        sys.exit(f"uv {UV} cannot be installed into {folder}: {lines[-1]}")


def torch_for_cpu(folder, locked):
    """What uv is told to install as PyTorch for the CPU; "" for its usual build."""
    note = folder / "torch-for-cpu.txt"
    wheels = os.environ.get("TORCH_WHEEL")
    index = os.environ.get("TORCH_INDEX")
    if index:
        pins = re.findall(
            r'^name = "(torch|torchvision)"\nversion = "(.+)"', locked, re.M
        )
        wheels = " ".join(["--index-url", index, *map("==".join, pins)])
    if wheels:
        note.write_text(wheels, encoding="utf-8")
    if note.exists():
        return note.read_text(encoding="utf-8")
    if os.environ.get("CPU"):
        sys.exit(
            "CPU=1 needs TORCH_INDEX=<index of wheels>, such as "
            "https://download.pytorch.org/whl/cpu, or TORCH_WHEEL=<files>."
        )
    return ""


def install(first, folder, group):
    """Install a group of pyproject.toml -> whether nothing is missing."""
    uv = [python_of(first), "-m", "uv"]
    locked = (ROOT / "uv.lock").read_text(encoding="utf-8")
    torch = torch_for_cpu(first, locked)
    sync = [*uv, "sync", "--frozen", "--inexact", "--no-default-groups"]
    sync += ["--group", group]
    if torch:
        names = filter(GPU.fullmatch, re.findall(r'^name = "(.+)"', locked, re.M))
        sync += [f"--no-install-package={name}" for name in names]
    env = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)}
    if subprocess.run(
        [*sync, "--check"], cwd=ROOT, env=env, capture_output=True
    ).returncode:
        print(
            f"==== installing into {folder} (minutes the first time) ====", flush=True
        )
        if subprocess.run([*sync, "--quiet"], cwd=ROOT, env=env).returncode:
            return False
    python = python_of(folder)
    version = "from importlib.metadata import version; version('torch')"
    if torch and not succeeds(python, "-c", version):
        pip = [*uv, "pip", "install", "--python", python, "--no-deps", *torch.split()]
        if subprocess.run(pip, cwd=ROOT, env=env).returncode:
            return False
    if folder != first:  # its kernel runs chapters
        return succeeds(python, "-m", "ipykernel", "install", f"--prefix={folder}")
    return True


def main(first, group):
    first = Path(first).expanduser().absolute()
    check_python(first)
    check_uv(first)
    if group == "dev":
        if not install(first, first, group):
            sys.exit(
                f"The environment {first} is not complete, for the reason above; "
                "the next call goes on from here."
            )
        return
    folder = first.with_name(f"{first.name}-{group}")
    if not install(first, folder, group):
        sys.exit(
            f"\n**** The environment for {group} cannot be installed here, "
            "for the reason above: WHAT NEEDS IT DOES NOT RUN. ****\n"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

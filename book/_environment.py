"""Make an environment of uv.lock, or complete one that is there. Any Python 3 reads it.

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


def trouble(*words, **environment):
    """Run a program -> why it failed, in one line, or "" if it did not."""
    env = {**os.environ, **environment}
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(words, cwd=ROOT, env=env, stdout=pipe, stderr=pipe)
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = done.stderr.decode(errors="replace").strip().splitlines()
    causes = [line.partition("cause: ")[2] for line in said if "cause: " in line]
    errors = [line for line in said if line.lower().startswith("error: ")]
    first = (errors or said[-1:] or ["it said nothing"])[0]
    return ": ".join([first, *causes[-1:]])


def check_python(folder):
    """Make an environment with pip where there is none."""
    python = python_of(folder)
    if trouble(python, "-m", "pip", "--version"):
        if sys.version_info < OLDEST:
            sys.exit(
                f"The book needs Python 3.11 or newer, but {sys.executable} is older: "
                "run make PYTHON=/path/to/python3.11 ..."
            )
        why = trouble(sys.executable, "-m", "venv", str(folder))
        if why:
            sys.exit(f"{sys.executable} cannot make the environment {folder}: {why}")
    if trouble(python, "-c", f"import sys; assert sys.version_info >= {OLDEST}"):
        sys.exit(
            f"The environment {folder} has a Python older than 3.11: remove it, "
            "or choose another with VENV=..."
        )


def check_uv(folder):
    """Install the version of uv that understands uv.lock."""
    python = python_of(folder)
    version = f"from importlib.metadata import version as v; assert v('uv') == '{UV}'"
    if trouble(python, "-c", version) or trouble(python, "-m", "uv", "--version"):
        pip = ["-m", "pip", "install", "-q", "--retries", "1", "--force-reinstall"]
        why = trouble(python, *pip, f"uv=={UV}")
        if why:
            sys.exit(f"uv cannot be installed into {folder}; is there a network? {why}")


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
    """Install a group of pyproject.toml -> what went wrong, or ""."""
    uv = [python_of(first), "-m", "uv"]
    python = python_of(folder)
    locked = (ROOT / "uv.lock").read_text(encoding="utf-8")
    torch = torch_for_cpu(first, locked)
    sync = [*uv, "sync", "--frozen", "--inexact", "--no-default-groups"]
    sync += ["--group", group]
    if torch:
        names = filter(GPU.fullmatch, re.findall(r'^name = "(.+)"', locked, re.M))
        sync += [f"--no-install-package={name}" for name in names]
    place = {"UV_PROJECT_ENVIRONMENT": str(folder)}
    # uv takes a package whose files were copied in part for an installed one
    mark = first / f"{group}-is-not-complete.txt"
    how = ["--compile-bytecode", *(["--reinstall"] if mark.exists() else [])]
    if mark.exists() or trouble(*sync, "--check", **place):
        print(f"==== installing into {folder}: minutes the first time ====", flush=True)
        mark.touch()
        why = trouble(*sync, *how, **place)
        if why:
            return why
    version = "from importlib.metadata import version; version('torch')"
    if torch and (mark.exists() or trouble(python, "-c", version)):
        mark.touch()
        pip = [*uv, "pip", "install", "--python", python, "--no-deps", *torch.split()]
        why = trouble(*pip, *how)
        if why:
            return why
    mark.unlink(missing_ok=True)
    if folder != first:  # its kernel runs chapters
        return trouble(python, "-m", "ipykernel", "install", f"--prefix={folder}")
    return ""


def main(first, group):
    first = Path(first).expanduser().absolute()
    check_python(first)
    check_uv(first)
    folder = first if group == "dev" else first.with_name(f"{first.name}-{group}")
    why = install(first, folder, group)
    if why and folder == first:
        sys.exit(f"{folder} is not complete (the next call goes on from here): {why}")
    if why:
        sys.exit(
            f"\n**** The environment for {group} cannot be installed here ({why}): "
            "WHAT NEEDS IT DOES NOT RUN. ****\n"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

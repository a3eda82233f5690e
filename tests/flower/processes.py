"""`fedlearn serve` and `fedlearn join` as processes, as somebody at a terminal would start them.

A test waits for what happens, not for a time: how fast the machine is must not matter. ``LIMIT`` is
there only so that a test which waits in vain comes to an end.
"""

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

LIMIT = 3600  # seconds
OPTIONS = {"serve": f"--wait {LIMIT} --timeout {LIMIT}", "join": f"--wait {LIMIT}"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, otherwise, limit=LIMIT):
    """Wait until the condition holds; after ``limit`` seconds fail with ``otherwise()``."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.1)


class Terminal:
    """One command in a folder, its output in a file."""

    def __init__(self, command, folder, name, env):
        self.command, self.path = f"fedlearn {command}", folder / f"{name}.out"
        words = command.split()
        self.folder = folder / words[words.index("--folder") + 1]
        with open(self.path, "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedlearn.cli", *command.split()],
                cwd=folder,
                stdout=out,
                stderr=out,
                env=os.environ | env,
            )

    @property
    def lines(self):
        return self.path.read_text().splitlines()

    def wait_for(self, words, times=1):
        """The first line with these words, or a later one; fails if the command has ended."""

        def found():
            return [line for line in self.lines if words in line][times - 1 : times]

        def otherwise():
            return "\n".join([f"{self.command}: no {words!r} in", *self.lines])

        def there():
            ended = self.process.poll() is not None  # looked at first: it may end after a last line
            assert found() or not ended, otherwise()
            return found()

        wait_until(there, otherwise)
        return found()[0]

    def end(self):
        """Wait for the end of the command -> exit status."""
        return self.process.wait(LIMIT)

    def stop(self):
        """End it by SIGTERM: a shell's background jobs ignore SIGINT."""
        self.process.terminate()  # does nothing if it has ended
        return self.end()

    def kill(self):
        """SIGKILL to it alone; all that it has started ends with it before this returns."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        left = [p for p in psutil.wait_procs(children, 60)[1] if alive(p)]
        assert not left, f"{left} live on without {self.command}"

    def programs(self):
        """Flower's programs that work in its folder (a SuperLink, or a SuperNode), whether it is
        still there or not."""
        found, secret = [], str(self.folder / "flower" / "secret")
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                if secret in process.cmdline() and alive(process):
                    found.append(process)
        return found

    def shown(self, where):
        return {"where": where, "command": self.command, "output": self.lines}


def alive(process):
    """Whether it does anything. A dead process without a parent may stay in the list for ever."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Deployment:
    """A server and clients on loopback; whatever is left is stopped at the end of the test. All
    their processes read ``faulty.py`` as they start."""

    def __init__(self, folder, options):
        self.folder, self.options, self.port, self.all = folder, options, free_port(), []
        there = folder / "sitecustomize"
        there.mkdir()
        source = Path(__file__).with_name("faulty.py").read_text(encoding="utf-8")
        (there / "sitecustomize.py").write_text(source, encoding="utf-8")
        self.path = os.pathsep.join(filter(None, [str(there), os.environ.get("PYTHONPATH")]))

    def start(self, command, name, fault):
        env = {"PYTHONPATH": self.path, "FAULT": fault}
        self.all.append(Terminal(command, self.folder, name, env))
        return self.all[-1]

    def serve(self, *more, name="server", fault=""):
        where = f"--host 127.0.0.1 --port {self.port} --folder {name} --out history.json"
        command = f"serve {self.options} {where} {OPTIONS['serve']} {' '.join(more)}"
        return self.start(command, name, fault)

    def join(self, k, *more, name=None, options=None, fault="", output=None):
        """``output``: what its output is called, if another ``join`` has had this folder."""
        name = name or f"client-{k}"
        what = f"{options or self.options} --client {k} --folder {name} {OPTIONS['join']}"
        return self.start(
            f"join 127.0.0.1:{self.port} {what} {' '.join(more)}", output or name, fault
        )

    def cpu(self):
        """CPU seconds so far of all its processes, and of those that these have waited for."""
        total = 0.0
        for terminal in self.all:
            with suppress(psutil.NoSuchProcess):
                top = psutil.Process(terminal.process.pid)
                for process in [top, *top.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        total += sum(process.cpu_times()[:4])  # own and children's, user and system
        return total

    def stop(self):
        for terminal in self.all:  # all at once: each has processes of its own to wait for
            terminal.process.terminate()
        for terminal in self.all:
            terminal.end()

"""`fedlearn serve` and `fedlearn join` as processes, as somebody at a terminal would start them."""

import os
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Terminal:
    """One command in a folder, its output in a file."""

    def __init__(self, command, folder, name, **env):
        self.command, self.path = f"fedlearn {command}", folder / f"{name}.out"
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

    def wait_for(self, words, seconds=120, times=1):
        """The first line with these words, or one of a later time; fails if the command ends before or takes too long."""
        end = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            found = [line for line in self.lines if words in line]
            if len(found) >= times:
                return found[times - 1]
            assert not ended and time.monotonic() < end, (
                f"{self.command}: no {words!r} in\n" + "\n".join(self.lines)
            )
            time.sleep(0.1)

    def end(self, seconds=300):
        """Wait for the end of the command -> exit status."""
        return self.process.wait(seconds)

    def stop(self):
        """End it by SIGTERM: a shell's background jobs ignore SIGINT."""
        self.process.terminate()  # does nothing if it has ended
        return self.process.wait(40)

    def shown(self, where):
        return {"where": where, "command": self.command, "output": self.lines}


class Deployment:
    """A server and clients on loopback; whatever is left is stopped at the end of the test."""

    def __init__(self, folder, options):
        self.folder, self.options, self.port, self.all = folder, options, free_port(), []

    def serve(self, *more, name="server", **env):
        command = f"serve {self.options} --host 127.0.0.1 --port {self.port} --folder {name} --out history.json {' '.join(more)}"
        self.all.append(Terminal(command, self.folder, name, **env))
        return self.all[-1]

    def join(self, k, *more, name=None, options=None, **env):
        name = name or f"client-{k}"
        command = f"join 127.0.0.1:{self.port} {options or self.options} --client {k} --folder {name} {' '.join(more)}"
        self.all.append(Terminal(command, self.folder, name, **env))
        return self.all[-1]

    def stop(self):
        for terminal in reversed(self.all):
            terminal.stop()

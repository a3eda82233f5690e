"""Flower's own processes: started, waited for, and ended with everything that they started."""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from .job import QUIET

# Flower's older doors, which no guard stands before, stay shut.
SHUT = dict.fromkeys(("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"), "0")
PATIENCE = 600  # seconds that Flower's own programs may take on a busy machine


class Process(subprocess.Popen):
    """A process, and the file that it writes what it says into."""

    log: Path


def parse_address(address: str) -> tuple[str, int]:
    """ "host:port" -> (host, port)."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"An address has the form HOST:PORT, such as 192.168.1.5:8000, not {address!r}."
        )
    return host.strip("[]"), int(port)


def check_port(host: str, port: int) -> None:
    """Refuse a port that this machine cannot listen on."""
    if not 0 < port < 65536:
        raise ValueError(f"A port is a number from 1 to 65535, not {port}.")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"Port {port} of {host} cannot be used ({error.strerror}): choose another with "
                "--port."
            ) from None


def reach(
    host: str, port: int, ca: str | Path | None, wait: float, process: Process | None = None
) -> None:
    """Wait until something listens there; with ``ca`` it must have a certificate that this one
    signed."""
    end = time.monotonic() + wait
    while True:
        try:
            with socket.create_connection((host, port), 5) as plain:
                if ca:
                    trusted = ssl.create_default_context(cafile=ca)
                    trusted.wrap_socket(plain, server_hostname=host).close()
                return
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", None) or error.reason or "it does not speak TLS"
            raise ConnectionError(
                f"The server at {host}:{port} cannot be trusted: {why}."
            ) from None
        except OSError as error:
            if process and process.poll() is not None:
                raise ConnectionError(
                    f"Flower's SuperLink did not start: {complaint(process.log)}"
                ) from None
            if time.monotonic() > end:
                raise ConnectionError(
                    f"Nothing answered at {host}:{port} within {wait:g} s: "
                    f"{error.strerror or error}."
                ) from None
            time.sleep(0.2)


def environment(home: Path) -> dict[str, str]:
    """Flower's processes find this Python's commands, keep their files in ``home`` and report to
    nobody."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    modules = os.pathsep.join(filter(None, sys.path))  # what is imported here can be imported there
    there = {"PATH": path, "PYTHONPATH": modules, "PYTHONUNBUFFERED": "1", "FLWR_HOME": str(home)}
    return os.environ | QUIET | SHUT | there


@contextmanager
def running(command: Sequence[Any], home: Path, log: Path) -> Iterator[Process]:
    """A process of Flower's, ended with everything that it has started when the block is left."""
    home.mkdir(parents=True, exist_ok=True)
    env = environment(home)
    program = shutil.which(command[0], path=env["PATH"])
    with open(log, "a", encoding="utf-8") as out:
        process = Process(
            [program, *map(str, command[1:])],
            env=env,
            stdin=subprocess.PIPE,  # whose end says that this process has ended (``bounds``)
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    process.log = log
    endings = signal.SIGTERM, signal.SIGHUP  # `kill`, a closed terminal: the children end, too
    before = [signal.signal(s, lambda number, _: sys.exit(128 + number)) for s in endings]
    try:
        yield process
    finally:
        for s, handler in zip(endings, before, strict=True):
            signal.signal(s, handler)
        family = _family(process.pid)
        process.terminate()  # Flower's own way of ending; what is left after that is killed
        psutil.wait_procs(family, 10)
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()


def _family(pid):
    """A process and everything that it has started, some of it in sessions of its own."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def complaint(log: Path) -> str:
    """What a process of Flower's gave as the reason of its end: its own sentences if it did, else
    the last line of its log."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", Path(log).read_text(encoding="utf-8", errors="replace"))
    text = re.split("Starting Flower Super(?:Node|Link)", text)[-1]  # of the last start
    code = re.search(r"Exit Code: \d+\n(.*?)(\n\s*\n|$)", text, re.DOTALL)
    lines = [line.strip() for line in (code[1] if code else text).splitlines() if line.strip()]
    said = " ".join(lines if code else lines[-1:]) or "it said nothing"
    return said[-500:]

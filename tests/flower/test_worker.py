"""What is between ``join`` and its node: pauses, a secret, lines on a terminal. What the worker
answers is tested with real processes (``test_deployment.py``, ``test_faults.py``)."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from fedlearn.flower import node
from fedlearn.flower.client import OVER
from fedlearn.flower.worker import Report, secret_file

from .processes import alive, wait_until


def test_a_node_waits_a_tenth_of_the_time_since_its_last_message(monkeypatch):
    clock, slept = SimpleNamespace(now=0.0), []
    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=slept.append)
    monkeypatch.setattr(node, "time", fake)
    pauses, found = node.Pauses(0.1), []
    fetch = pauses.noting(lambda *, state: found.pop() if found else None)
    for now in (0.5, 20, 100):  # nothing comes
        clock.now = now
        assert fetch(state=1) is None
        pauses.sleep(3)
    found.append(7)
    assert fetch(state=1) == 7
    pauses.sleep(3)
    pauses.sleep(0.05)
    assert slept == [0.1, 2, 3, 0.1, 0.05]


@pytest.mark.parametrize("patience", [0, 30])
def test_flowers_programs_end_with_the_process_that_started_them(patience):
    """Even if that one is killed, and nobody has taken note of its death."""
    start = "import subprocess, sys; p = subprocess.Popen([sys.executable, *sys.argv[1:]], "
    start += "stdin=subprocess.PIPE); print(p.pid, flush=True); p.wait()"
    bound = f"import threading; from fedlearn.flower.bounds import bind; bind({patience}); "
    bound += "print('here', flush=True); threading.Event().wait()"
    command = [sys.executable, "-c", start, "-c", bound]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert parent.stdout.readline() == "here\n" and alive(child)
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: not alive(child), lambda: f"{child} lives on", 60)


def test_flowers_programs_do_not_load_torch():
    """Which takes seconds, and memory, in each of them."""
    program = "import sys, fedlearn.flower.bounds, fedlearn.flower.guard, fedlearn.flower.node; "
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_secret_is_for_this_user_only_and_only_while_it_is_needed(tmp_path):
    path = tmp_path / "flower" / "secret"
    with secret_file(path) as first:
        assert path.read_bytes() == first and len(first) == 32
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
    path.write_bytes(b"left behind by a killed process, for all to read")
    path.chmod(0o644)
    with pytest.raises(KeyboardInterrupt), secret_file(path) as second:
        assert path.read_bytes() == second != first
        assert path.stat().st_mode & 0o777 == 0o600
        raise KeyboardInterrupt
    assert not path.exists()


def test_a_report_knows_its_last_line(capsys):
    report = Report()
    report("Round 1: 5 bytes\rStopped: came")
    assert (report.lines, report.over, report.refusal) == (1, False, "")
    report(OVER)
    assert report.over and not report.refusal
    report = Report()
    report("Stopped: The seed is 7 here.")
    assert report.over and report.refusal == "The seed is 7 here."
    assert capsys.readouterr().out == f"Round 1: 5 bytes Stopped: came\n{OVER}\n"

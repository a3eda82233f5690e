"""Ten clients and everything that goes wrong: one is killed mid-round, one runs out of memory, one
sends corrupt bytes, one too many of them, one answers twice, one joins late, and the server is
killed mid-round and started again. The run ends with the history that these faults, and nothing
else, explain. Real processes.

Nothing here depends on how fast the machine is. Round 1 begins when nine clients are there, the
tenth is started when it is over, the server is killed when it stands still, and the one that is
started then waits for all ten.
"""

import signal

import pytest

import fedlearn as fl
from fedlearn import flower

from .processes import LIMIT, Deployment, wait_until

KILLED, SHORT, CORRUPT, LONG, TWICE, LATE = 3, 4, 5, 6, 7, 9
ROUNDS = 5
PLAN = [
    f"Client {LATE} is started after round 1, which begins with the nine others.",
    f"Client {KILLED} is killed (SIGKILL) while it works on round 2, and started again.",
    f"Client {SHORT} runs out of memory in round 2.",
    f"Client {CORRUPT}: one bit of its upload of round 2 is changed on the way.",
    f"Client {LONG}: its upload of round 2 comes with ten million bytes more.",
    f"Client {TWICE}: its node sends every answer twice.",
    "The server is killed (SIGKILL) in round 4, when the answers are there and not yet saved; what "
    "it has started ends with it. Started again, it goes on when all ten clients are back.",
]


class Engine(fl.engines.Loop):
    """Clients of this process. Two of those whose upload was not used have trained, the others have
    not been asked, or died before."""

    def __init__(self, job, refused):
        super().__init__(job.method.client_side(job.task, job.settings))
        self.refused = refused

    def exchange(self, t, what, clients, write):
        for k in clients:
            trains = k not in self.refused[t] or (k, t) in ((CORRUPT, 2), (LONG, 2))
            answer = self.answer(t, k, write(k), what) if trains else b""
            yield k, fl.WireError("") if k in self.refused[t] else answer


def expected(job, rows):
    """Accuracy and loss of each round in one process."""
    server = job.method.server_side(job.task, job.settings)
    engine = Engine(job, {row["round"]: row["refused"] for row in rows})
    state, heard, found = server.start(), {}, []
    with fl.training.threads(1):
        for row in rows:
            state, own = fl.round.one_round(server, engine, row["round"], state, heard)
            found.append({"accuracy": own["accuracy"], "loss": own["loss"]})
    return found


@pytest.mark.timeout(3 * LIMIT)
def test_a_run_with_every_fault_ends_as_it_must(tmp_path, record):
    d = Deployment(tmp_path, f"stc --clients 10 --rounds {ROUNDS} --option ratio=0.1")
    faults = {KILLED: "kill", SHORT: "raise", CORRUPT: "corrupt", LONG: "long", TWICE: "twice"}
    try:
        server = d.serve("--insecure", "--start-with", "9", fault="halt")
        server.wait_for("fedlearn join")
        clients = {
            k: d.join(k, "--insecure", fault=faults.get(k, "")) for k in range(10) if k != LATE
        }
        server.wait_for("Round 1:")  # said when it is settled who takes part in round 2
        clients[LATE] = d.join(LATE, "--insecure")
        killed = clients[KILLED]
        assert killed.end() == -signal.SIGKILL
        wait_until(
            lambda: not killed.programs(), lambda: f"{killed.programs()} live on without join"
        )
        clients[KILLED] = d.join(KILLED, "--insecure", fault="kill", output="again")
        server.wait_for("Round 4 stands still")
        server.kill()
        log = server.lines
        server = d.serve("--insecure")
        assert server.end() == 0, server.lines
        log += ["(the server is killed and started again)", *server.lines]
        there = fl.History.from_json(tmp_path / "history.json")
        assert [c.end() for c in clients.values()] == [0] * 10
    finally:
        d.stop()

    job = flower.Job(
        fl.methods.stc(ratio=0.1), fl.tasks.classification("digits", 10), ROUNDS, threads=1
    )
    refused = [row["refused"] for row in there.rows]
    shown = [
        {"round": row["round"], "accuracy": row["accuracy"], "refused": row["refused"]}
        for row in there.rows
    ]
    record(
        "faults",
        {
            "plan": PLAN,
            "log": log,
            "rows": shown,
            "killed": [*killed.lines, "(killed, and started again)", *clients[KILLED].lines],
            "twice": TWICE,
        },
    )
    assert [row["round"] for row in there.rows] == [1, 2, 3, 4, 5]
    assert refused[0] == {LATE: "not connected"}
    assert set(refused[1]) == {CORRUPT, KILLED, LATE, LONG, SHORT}
    assert refused[1][LATE] == "not connected" and "heartbeat" in refused[1][KILLED]
    assert "checksum" in refused[1][CORRUPT] and "MemoryError: no room" in refused[1][SHORT]
    assert any("No answer: MemoryError: no room" in line for line in clients[SHORT].lines)
    assert "unavailable" in refused[1][LONG].lower()
    assert (
        "413" in (tmp_path / f"client-{LONG}" / "supernode.log").read_text()
    )  # it was not let in at all
    assert there.meta["flower_bytes"]["to_server"] < 1_000_000
    assert set(refused[2]) <= {KILLED, LATE}  # who may still be on the way back
    assert not refused[3] and not refused[4]  # all ten are back, with what they kept
    assert [{"accuracy": row["accuracy"], "loss": row["loss"]} for row in there.rows] == expected(
        job, there.rows
    )

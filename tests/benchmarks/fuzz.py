"""What may come of hostile messages and of kills: a refusal, or the right result; nothing else.

    python tests/benchmarks/fuzz.py                              # 100,000 messages, all methods
    python tests/benchmarks/fuzz.py kills --count 100            # five methods

The unit tests do the same with fewer. Everything is drawn from --seed.
"""

import argparse
import json
import os
import random
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import fedlearn as fl
from fedlearn.core import EVALUATE, OneByOne
from fedlearn.core.federation import one_round

HEAD = 26  # bytes of the envelope before the body; four of a checksum are behind it
KILLED = ("fedavg", "rpn", "fed_kgf", "dgc", "fed_gkt")
SLOW = ("fed_gkt", "split_learning")  # whose server trains in every round: a tenth of the messages


def sealed(head, body):
    """A message with a checksum that fits."""
    return head + body + struct.pack("<I", zlib.crc32(head, zlib.crc32(body)))


def altered(data, dice, other):
    """What was done, and a message that somebody else might send in the place of ``data``."""
    kind = dice.choice(("noise", "cut", "flip", "head", "body", "length", "other", "nothing"))
    head, body = data[:HEAD], data[HEAD:-4]

    def flipped(text):
        text = bytearray(text)
        for _ in range(dice.choice((1, 1, 1, 2, 20)) if text else 0):
            text[dice.randrange(len(text))] ^= 1 << dice.randrange(8)
        return bytes(text)

    new = {
        "noise": lambda: dice.randbytes(dice.randrange(4000)),
        "cut": lambda: data[: dice.randrange(len(data) or 1)],
        "flip": lambda: flipped(data),
        "head": lambda: sealed(flipped(head), body),
        "body": lambda: sealed(head, flipped(body)),
        "length": lambda: sealed(head, body[: dice.randrange(len(body) + 1)] + dice.randbytes(9)),
        "other": lambda: other,
        "nothing": lambda: data,
    }[kind]()
    return "body" if kind == "length" and len(new) == len(data) else kind, new


class Hostile(OneByOne):
    """Clients between whom and the server somebody alters messages: ``way`` is "up" or "down"."""

    def __init__(self, side, dice, way):
        super().__init__(side)
        self.dice, self.way, self.genuine = dice, way, {}
        self.did, self.broken = {}, []  # by client, and whether it was asked for evaluation

    def tried(self, t, k, data, what):
        """The client's answer to these bytes, or why there is none."""
        [(_, answer)] = super().exchange(t, what, [k], lambda k: data)
        return answer

    def honest(self, t, k, data, what):
        """The client's own answer, trained for once; what it remembers then."""
        key = t, k, what, data, repr(sorted(self.recall(k)))
        if key not in self.genuine:
            self.genuine[key] = self.tried(t, k, data, what), self.recall(k)
        answer, self.new[k] = self.genuine[key][0], dict(self.genuine[key][1])
        return answer

    def exchange(self, t, what, clients, write):
        before = b""  # by or to somebody else
        for k in clients:
            sent, did = write(k), self.did.setdefault((k, what == EVALUATE), [])
            if self.way == "down":
                kind, data = altered(sent, self.dice, before)
                answer, same, before = self.tried(t, k, data, what), data == sent, sent
                refused = isinstance(answer, fl.WireError)
                if refused and answer.__cause__ is not None:
                    self.broken.append((kind, answer.__cause__))
                did.append((kind, same, refused))
            elif isinstance(answer := self.honest(t, k, sent, what), bytes):
                right = answer
                kind, answer = altered(right, self.dice, before)
                did.append((kind, answer == right, None))
                before = right
            yield k, answer


def messages(name, count, seed=0):
    """So many altered messages of a method -> how many of each kind were accepted and refused.
    ``AssertionError`` for one that is neither, or that must not pass and does."""
    dice, verdicts = random.Random(f"{name} {seed}"), Counter()
    task = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=120, test=40)
    method, settings = fl.methods.get(name), fl.Settings(batch_size=16)
    for way in ("up", "down"):
        server, until = method.server_side(task, settings), verdicts.total() + count / 2
        start, side = server.start(), fl.clients(method, task, settings).side
        engine = Hostile(side, dice, way)
        while verdicts.total() < until:
            engine.memories, engine.new, engine.did = {}, {}, {}
            server = method.server_side(task, settings) if way == "down" else server
            try:
                quick = patch("fedlearn.core.local.train", lambda *a, **k: None)
                with quick if way == "down" else nullcontext():
                    state, row = one_round(server, engine, 1, start, {})
                refused = {(k, False) for k in row["refused"]}
                refused |= {(k, True) for k in row["unevaluated"]}
                floats = (t for t in state.weights.values() if t.is_floating_point())
                assert all(t.isfinite().all() for t in floats)
            except (fl.WireError, fl.errors.Diverged):  # the method cannot go on, and says so
                refused = set(engine.did)
            assert not engine.broken, engine.broken[0]
            for k, did in engine.did.items():
                for kind, _, said_no in did:
                    no = k in refused if said_no is None else said_no
                    verdicts[f"{way} {kind}", "refused" if no else "accepted"] += 1
                # a body that decodes is a lie that nobody can see; down, a number of samples is
                unseen = ("body", "head") if way == "down" else ("body",)
                harmless = all(same or kind in unseen for kind, same, _ in did)
                assert harmless or k in refused, f"{name}, {way}: {did} of client {k} passed"
    return verdicts


def forked(work):
    """A child process that does ``work`` and ends -> its number."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return child


def kills(name, count, seed=0):
    """Kill runs of a method, start them again, until there were so many kills -> how often they
    were killed, how many runs were finished. Each must give the history of one in one go."""
    dice, done = random.Random(f"{name} {seed}"), Counter(kills=0, finished=0)
    rounds, share = (3, 1.0) if name in SLOW else (5, 0.5)
    task = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=240, test=100)
    folder = Path(tempfile.mkdtemp())
    path, out = folder / "run.checkpoint", folder / "run.json"

    def run(checkpoint=path):
        how = {"participation": share, "batch_size": 16, "progress": False}
        history = fl.run(fl.methods.get(name), task, rounds, checkpoint=checkpoint, **how)
        out.write_text(history.to_json())

    began = time.monotonic()
    assert os.waitpid(forked(lambda: run(None)), 0)[1] == 0
    takes, whole = (time.monotonic() - began) / rounds, fl.History.from_json(out)
    while done["kills"] < count:
        child, wait = forked(run), dice.uniform(0, (rounds + 1) * takes)
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
        if os.WIFSIGNALED(status := os.waitpid(child, 0)[1]):
            done["kills"] += 1
            continue
        assert status == 0, f"{name} does not go on after a kill"
        assert fl.History.from_json(out) == whole, f"{name} goes on to another history"
        done["finished"] += 1
        path.unlink()
    assert os.waitpid(forked(run), 0)[1] == 0 and fl.History.from_json(out) == whole
    done["finished"] += 1
    return done


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("what", nargs="?", default="messages", choices=("messages", "kills"))
    args.add_argument("--count", type=int, default=100_000)
    args.add_argument("--methods", nargs="+")
    args.add_argument("--seed", type=int, default=0)
    args = args.parse_args()
    names = args.methods or (KILLED if args.what == "kills" else list(fl.methods.METHODS))
    total, slow = Counter(), [name for name in names if name in SLOW]
    parts = len(names) - 0.9 * len(slow)
    for name in names:
        if args.what == "kills":
            counts = kills(name, -(-args.count // len(names)), args.seed)
        else:
            share = int(args.count / parts * (0.1 if name in slow else 1)) + 1
            kinds = messages(name, share, args.seed)
            print(json.dumps({name: {" ".join(k): n for k, n in sorted(kinds.items())}}))
            counts = Counter(verdict for _, verdict in kinds.elements())
        total.update(counts)
        print(json.dumps({name: dict(counts)}), flush=True)
    print(json.dumps({"all": dict(total)}))


if __name__ == "__main__":
    main()

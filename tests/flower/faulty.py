"""What the processes of a ``Deployment`` read as their ``sitecustomize``.

Flower misses a node after 20 seconds of silence instead of a minute, and gives up an answer that
does not come whole after as many instead of three minutes: nothing is tested by waiting. And one
process misbehaves, in the way that ``FAULT`` says:

    kill     the client's ``join`` is killed while it works on its second round (once: the file
             ``died`` remembers it)
    raise    it runs out of memory there
    corrupt  the bytes of its second upload are changed on the way out
    long     they are followed by ten million zeros
    twice    its node sends every answer twice
    halt     the server stands still in round 4, when the answers are there and not yet saved and
             all clients are connected
    hasty    the server gives each step of a request two seconds
"""

import os
import signal
import sys
import threading

FAULT = os.environ.get("FAULT")
FLOWER = "flwr.supercore.corestate.in_memory_corestate", "flwr.supercore.corestate.sql_corestate"
NODE = "flwr.supernode.start_client_internal"
HEART = "flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"
CLIENT, SERVER = "fedlearn.flower.client", "fedlearn.flower.server"
BOUNDS = "fedlearn.flower.bounds"


def patched_answer(original):
    def answer(make, keep, tell, message, context):
        second = message.metadata.group_id.split(".")[1] == "2"  # of run, round, ...
        died = os.path.join(keep, "died")
        if FAULT == "kill" and second and not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "raise" and second:
            raise MemoryError("no room")
        reply = original(make, keep, tell, message, context)
        if FAULT == "corrupt" and second:
            record = reply.content["fedlearn"]
            data = bytearray(record["message"])
            data[len(data) // 2] ^= 1
            record["message"] = bytes(data)
        if FAULT == "long" and second:
            record = reply.content["fedlearn"]
            record["message"] = record["message"] + bytes(10_000_000)
        return reply

    return answer


def patched_exchange(original):
    def exchange(self, t, what, clients, write):
        found = list(original(self, t, what, clients, write))
        if t == 4:
            everybody = self.job.task.clients
            self.until(lambda: self.look() or len(self.nodes) == everybody, self.wait)
            self.say(f"Round {t} stands still, with {len(found)} answers.")
            threading.Event().wait()  # until it is killed
        yield from found

    return exchange


def patched_push(original):
    def push(state, object_store, send, push_object):
        sent = []

        def once(*answer):
            sent.append(answer)
            return send(*answer)

        original(state, object_store, once, push_object)
        for answer in sent:
            try:
                print("sent again:", send(*answer), file=sys.stderr)
            except Exception as error:
                print("sent again, refused:", error, file=sys.stderr)

    return push


def patch(module):
    if module.__name__ in FLOWER:
        module.OBJECT_PUSH_SESSION_TTL_SECONDS = 20
    if module.__name__ in HEART:
        module.HEARTBEAT_DEFAULT_INTERVAL = 10  # of which Flower waits for two
    if module.__name__ == CLIENT and FAULT in ("kill", "raise", "corrupt", "long"):
        module._answer = patched_answer(module._answer)
    if module.__name__ == SERVER and FAULT == "halt":
        module.Remote.exchange = patched_exchange(module.Remote.exchange)
    if module.__name__ == BOUNDS and FAULT == "hasty":
        module.STEP = 2.0
    if module.__name__ == NODE and FAULT == "twice":
        module._push_messages = patched_push(module._push_messages)


class Finder:
    """Patches these modules as they are imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in (*FLOWER, *HEART, NODE, CLIENT, SERVER, BOUNDS):
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())

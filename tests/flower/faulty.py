"""Makes one client of the faults test misbehave: ``sitecustomize`` of its processes, which read the kind in ``FAULT``.

kill:    the client's processes end while it works on its second round (once: the file ``died`` remembers it)
corrupt: the bytes of its second upload are changed on the way out
long:    they are followed by ten million zeros
twice:   its node sends every answer twice
"""

import os
import signal
import sys

FAULT = os.environ.get("FAULT")


def patched_train(original):
    def train(make, keep, message, context):
        folder, second = (
            context.node_config["folder"],
            message.metadata.group_id.split(".")[1] == "2",
        )
        died = os.path.join(folder, "died")
        if FAULT == "kill" and second and not os.path.exists(died):
            open(died, "w").close()
            os.killpg(0, signal.SIGKILL)  # the node, all that it has started, and this process
        reply = original(make, keep, message, context)
        if FAULT == "corrupt" and second:
            record = reply.content["fedlearn"]
            data = bytearray(record["message"])
            data[len(data) // 2] ^= 1
            record["message"] = bytes(data)
        if FAULT == "long" and second:
            record = reply.content["fedlearn"]
            record["message"] = record["message"] + bytes(10_000_000)
        return reply

    return train


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


class Finder:
    """Patches the two modules as they are imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in ("fedlearn.flower", "flwr.supernode.start_client_internal"):
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            if name == "fedlearn.flower" and FAULT in ("kill", "corrupt", "long"):
                module._train = patched_train(module._train)
            if name != "fedlearn.flower" and FAULT == "twice":
                module._push_messages = patched_push(module._push_messages)

        spec.loader.exec_module = exec_module
        return spec


if FAULT:
    sys.meta_path.insert(0, Finder())

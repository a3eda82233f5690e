"""Save a run after each round and go on from there, in one file without pickle (safetensors)."""

import json
from pathlib import Path

import torch

from .files import write_atomically
from .history import History


def _head(history):
    """What has to be equal for a checkpoint to belong to a run. Versions and hardware may differ."""
    where = {"clients": "elsewhere"} if "run" in history.meta else {}  # and so is what they keep
    return (
        {"method": history.method}
        | {k: history.meta[k] for k in ("parts", "task", "settings")}
        | where
    )


def apart(tensors):
    """Tensors as safetensors wants them: contiguous, and none sharing memory with another."""
    return {name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def save(path, history, server, clients):
    """Global state, what server and clients remember, and the history so far."""
    from safetensors.torch import save_file

    groups = {"state": server.state, "server": server.memory}
    groups |= {f"client {k}": memory for k, memory in clients.memories.items()}
    tensors = {f"{group}/{name}": t for group, part in groups.items() for name, t in part.items()}
    tensors = apart(tensors)
    metadata = {"head": json.dumps(_head(history)), "history": json.dumps(history.to_dict())}
    write_atomically(path, lambda part: save_file(tensors, part, metadata))


def resume(path, history, server, clients):
    """Bring server, clients and history to where the checkpoint stands; without a file do nothing."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).exists():
        return
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        head, before = (
            json.loads(metadata["head"]),
            History.from_dict(json.loads(metadata["history"])),
        )
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is not a readable checkpoint of fedlearn ({error}); delete it to start anew."
        ) from None
    here = json.loads(json.dumps(_head(history)))
    if head != here:
        differ = [key for key in here | head if head.get(key) != here.get(key)]
        raise ValueError(
            f"{path} belongs to another run: {', '.join(differ)} differ. Name another file or delete it."
        )
    for key, tensor in tensors.items():
        group, name = key.split("/", 1)
        tensor = tensor.to(server.task.device)
        if group == "state":
            server.state[name] = tensor
        elif group == "server":
            server.memory[name] = tensor
        else:
            clients.memories.setdefault(int(group.removeprefix("client ")), {})[name] = tensor
    history.rows += before.rows
    if "run" in before.meta:  # by which the clients know the run again
        history.meta["run"] = before.meta["run"]

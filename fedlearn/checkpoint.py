"""Save a run after each round and go on from there, in one file without pickle
(safetensors)."""

from typing import Any

import torch

from .files import check_writable, to_json, write_atomically
from .history import History

Tensors = dict[str, torch.Tensor]
# the entries of a history's head that are equal where a checkpoint belongs to a run;
# versions may differ
SAME = ("parts", "task", "data", "settings", "network")


def contiguous(tensors: Tensors) -> Tensors:
    """Copies, as safetensors wants them: contiguous, and no two share memory."""
    return {
        name: t.clone(memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }


def save(path: Any, history: History, state: Any, memories: dict[int, Tensors]) -> None:
    """Write the server's state, the clients' memories and the history so far.

    Only the owner can read the file.
    """
    groups = {"state": state.weights, "server": state.memory}
    for client, memory in memories.items():
        groups[f"client {client}"] = memory
    tensors = {}
    for group, members in groups.items():
        for name, tensor in members.items():
            tensors[f"{group}/{name}"] = tensor
    texts = {"history": to_json(history.to_dict())}
    write_tensors(path, contiguous(tensors), texts, private=True)


def write_tensors(
    path: Any,
    tensors: Tensors,
    metadata: dict[str, str] | None = None,
    private: bool = False,
) -> None:
    """A safetensors file, in full or not at all; ``OSError`` if it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        write_atomically(path, lambda part: save_file(tensors, part, metadata), private)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written ({error}).") from error


def resume(
    path: Any, history: History, memories: dict[int, Tensors], device: torch.device
) -> tuple[Tensors, Tensors] | None:
    """Bring history and memories to the checkpoint, if there is one.

    Returns the server's weights and memory, or None.
    """
    from safetensors import SafetensorError, safe_open

    if not check_writable(path).exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            text = file.metadata()["history"]
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        before = History.from_json(text)
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(
            f"{path} is no checkpoint of fedlearn ({error}); delete it."
        ) from None
    here = History.from_json(history.to_json())
    differ = [name for name in SAME if before.meta.get(name) != here.meta[name]]
    if differ:
        raise ValueError(
            f"{path} belongs to another run: {', '.join(differ)} differ; delete it."
        )
    groups: dict[str, Tensors] = {"state": {}, "server": {}}
    for key, tensor in tensors.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = tensor.to(device)
    weights = groups.pop("state")
    memory = groups.pop("server")
    for group, tensors in groups.items():
        memories[int(group.removeprefix("client "))] = tensors
    history.rows += before.rows
    return weights, memory

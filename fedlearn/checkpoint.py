"""Save a run after each round and go on from there, in one file without pickle (safetensors)."""

import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .files import from_json, is_device, to_json, write_atomically
from .history import History

Tensors = dict[str, torch.Tensor]


def _head(history: History) -> dict[str, Any]:
    """What has to be equal for a checkpoint to belong to a run; versions may differ."""
    names = ("parts", "task", "data", "settings", "network")
    return {"method": history.method} | {name: history.meta[name] for name in names}


def apart(tensors: Tensors) -> Tensors:
    """Tensors as safetensors wants them: contiguous, and none sharing memory with another."""
    return {
        name: t.clone(memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }


def _crc(texts: Iterable[str], tensors: Tensors) -> str:
    """Of everything that the file says, whatever the order of its tensors."""
    crc = zlib.crc32("\n".join(texts).encode())
    for name, t in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {t.dtype} {tuple(t.shape)}".encode(), crc)
        crc = zlib.crc32(t.cpu().reshape(-1).view(torch.uint8).numpy(), crc)
    return f"{crc:08x}"


def save(path: Any, history: History, state: Any, memories: dict[int, Tensors]) -> None:
    """The server's state, what the clients keep, and the history so far; for the owner's eyes."""
    groups = {"state": state.weights, "server": state.memory}
    groups |= {f"client {k}": memory for k, memory in memories.items()}
    tensors = apart(
        {f"{group}/{n}": t for group, some in groups.items() for n, t in some.items()}
    )
    metadata = {"head": to_json(_head(history)), "history": to_json(history.to_dict())}
    metadata |= {"crc": _crc(metadata.values(), tensors)}
    write_tensors(path, tensors, metadata, private=True)


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
    """Bring history and clients to the checkpoint, if there is one.

    Returns the server's weights and memory, or None.
    """
    from safetensors import SafetensorError, safe_open

    if Path(path).is_dir() or is_device(Path(path)):
        raise ValueError(f"{path} is no readable checkpoint: name a file.")
    if not Path(path).exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        if metadata["crc"] != _crc((metadata["head"], metadata["history"]), tensors):
            raise ValueError("it was changed after it was written")
        head = from_json(metadata["head"])
        before = History.from_dict(from_json(metadata["history"]))
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"{path} is no checkpoint of fedlearn ({error}); delete it."
        ) from None
    here = from_json(to_json(_head(history)))
    if differ := [name for name in here if head.get(name) != here[name]]:
        raise ValueError(
            f"{path} belongs to another run: {', '.join(differ)} differ; delete it."
        )
    groups: defaultdict[str, Tensors] = defaultdict(dict)
    for key, tensor in tensors.items():
        group, name = key.split("/", 1)
        groups[group][name] = tensor.to(device)
    weights = groups.pop("state", {})
    memory = groups.pop("server", {})
    for group, tensors in groups.items():
        memories[int(group.removeprefix("client "))] = tensors
    history.rows += before.rows
    return weights, memory

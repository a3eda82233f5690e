"""What does it send? Gigabytes of a training under sliders, and the stored tables of ``fl.cost``.

python -m fedlearn.book.sends    # makes data/results/sends.json again, in some minutes
"""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..data import data_path
from ..files import to_json, write_text
from .drawings import drawing
from .show import Chart, Shown, chart, table

if TYPE_CHECKING:
    import pandas

TOKENS = 1000
TWO = "ResNet-50", "transformer block"


class Block(nn.Module):
    """A transformer block between an embedding and a head."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.block = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embedding(x)))


TEXT = torch.randint(TOKENS, (2, 64), generator=torch.Generator().manual_seed(0))
NETWORKS: dict[str, tuple[Any, Any]] = {  # label: network, input
    "digits_cnn": ("digits_cnn", "1x8x8"),
    "McMahan's CNN": ("mcmahan_cnn", "1x28x28"),
    "transformer block": (Block, TEXT),
    "MobileNetV2": ("torchvision.models:mobilenet_v2", "3x32x32"),
    "ResNet-18": ("resnet18", "3x32x32"),
    "ResNet-50": ("torchvision.models:resnet50", "3x32x32"),
}


def store() -> None:
    """Count what every method sends for ``NETWORKS``, and write the file."""
    from ..costs import cost

    tables = []
    for label, (network, shape) in NETWORKS.items():
        costs = cost(network, shape)
        rows = costs[["up", "down", "factor", "note"]].reset_index()
        entry = {"name": label, **costs.attrs}
        entry["rows"] = json.loads(rows.to_json(orient="records"))
        tables.append(entry)
        print(label, flush=True)
    command = "python -m fedlearn.book.sends"
    settings = {"command": command, "torch": torch.__version__}
    path = data_path("results", "sends.json")
    write_text(path, to_json({"settings": settings, "tables": tables}, indent=1) + "\n")


@cache
def stored() -> dict[str, "pandas.DataFrame"]:
    """The stored tables by network: a row a method."""
    import pandas

    text = data_path("results", "sends.json").read_text(encoding="utf-8")
    frames = {}
    for entry in json.loads(text)["tables"]:
        frame = pandas.DataFrame(entry["rows"]).set_index("method")
        frame.attrs["wide"] = entry["wide"]
        frames[entry["name"]] = frame
    return frames


def totals(number: str, caption: str, alt: str) -> Chart:
    """Network, method, clients and rounds -> gigabytes of a whole training, up and down."""
    import pandas

    frame = pandas.concat(stored(), names=["network"]).dropna(subset="up")
    frame = frame[["up", "down"]].reset_index()
    sums = frame.assign(total=frame["up"] + frame["down"]).groupby("network")
    costs = {name: group.set_index("method")["total"].to_dict() for name, group in sums}
    rows = frame.melt(["network", "method"], var_name="way", value_name="bytes")
    picture = drawing("index/sends", costs=costs)
    picture["data"] = {"values": rows.to_dict("records")}
    return chart(number, picture, caption, alt)


def equal_rows(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """The same with one row for methods whose rows are equal; empty rows are left out."""
    heads = list(frame)
    filled = frame[frame.astype(bool).any(axis=1)].reset_index()
    methods = filled.groupby(heads, sort=False, dropna=False)["method"].agg(", ".join)
    return methods.reset_index()[["method", *heads]]


def two_networks(number: str, caption: str) -> Shown:
    """What every method sends of a ResNet-50 and of a transformer block."""
    import pandas

    texts = {}
    for name in TWO:
        frame = stored()[name]
        sizes = (frame[["up", "down"]] / 1e6).map("{:.3f}".format)
        texts[f"{name}: MB up"] = sizes["up"]
        texts[f"{name}: MB down"] = sizes["down"]
        texts[f"{name}: times less"] = frame["factor"].map("{:.1f}".format)
    cells = pandas.DataFrame(texts).replace("nan", "")
    return table(number, equal_rows(cells), caption)


def reasons(number: str, caption: str) -> Shown:
    """What a method does to these two networks, or why it has no form for one."""
    import pandas

    notes = pandas.DataFrame({name: stored()[name]["note"] for name in TWO})
    return table(number, equal_rows(notes), caption)


if __name__ == "__main__":
    store()

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
from .show import Chart, Shown, chart, table

if TYPE_CHECKING:
    import pandas

COMMAND = "python -m fedlearn.book.sends"
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


NETWORKS: dict[str, tuple[Any, Any]] = {  # label: network, input
    "digits_cnn": ("digits_cnn", "1x8x8"),
    "McMahan's CNN": ("mcmahan_cnn", "1x28x28"),
    "transformer block": (Block, (64,)),
    "MobileNetV2": ("torchvision.models:mobilenet_v2", "3x32x32"),
    "ResNet-18": ("resnet18", "3x32x32"),
    "ResNet-50": ("torchvision.models:resnet50", "3x32x32"),
}


def store() -> None:
    """Count what every method sends for ``NETWORKS``, and write the file."""
    from ..costs import cost

    tables = []
    for label, (network, shape) in NETWORKS.items():
        if network is Block:
            generator = torch.Generator().manual_seed(0)
            shape = torch.randint(TOKENS, (2, *shape), generator=generator)
        costs = cost(network, shape)
        rows = costs[["up", "down", "factor", "note"]].reset_index()
        entry = {
            "name": label,
            "numbers": costs.attrs["numbers"],
            "wide": costs.attrs["wide"],
            "rows": json.loads(rows.to_json(orient="records")),
        }
        tables.append(entry)
        print(label, flush=True)
    settings = {"command": COMMAND, "torch": torch.__version__}
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
        frame.attrs = {name: entry[name] for name in ("numbers", "wide")}
        frames[entry["name"]] = frame
    return frames


def totals(number: str, caption: str, alt: str) -> Chart:
    """Network, method, clients and rounds -> gigabytes of a whole training, up and down."""
    from .vega import BLUE, LEGEND, SKY, choice, heading, layered, series, slider
    from .vega import alt as altair

    frames = {name: frame.dropna(subset="up") for name, frame in stored().items()}
    rows = []
    both: dict[str, dict[str, float]] = {}
    for name, frame in frames.items():
        both[name] = (frame["up"] + frame["down"]).to_dict()
        for method, row in frame.iterrows():
            for way in ("up", "down"):
                rows.append(
                    {"network": name, "method": method, "way": way, "bytes": row[way]}
                )
    methods = list(dict.fromkeys(row["method"] for row in rows))
    params = [
        choice("network", "network", list(frames), "ResNet-50", "select"),
        choice("method", "method", methods, "rpn", "select"),
        slider("clients", "clients of a round", 10, 1, 200, 1),
        slider("rounds", "rounds", 100, 10, 1000, 10),
        {"name": "one", "expr": f"{json.dumps(both)}[network][method]"},
        {"name": "whole", "expr": f"{json.dumps(both)}[network]['fedavg']"},
    ]
    size = "format({0} * clients * rounds / 1e9, '.3~r') + ' GB'"
    sends = f"method + ' sends ' + {size.format('one')} + ', fedavg ' + {size.format('whole')}"
    words = f"isValid(one) ? {sends} : method + ' has no form for this network'"
    shared = (
        altair.Chart(altair.InlineData(values=rows))
        .transform_filter("datum.network == network")
        .transform_calculate(gb="datum.bytes * clients * rounds / 1e9")
    )
    order = altair.EncodingSortField(field="gb", op="sum", order="ascending")
    bars = (
        altair.Chart()
        .mark_bar()
        .encode(
            altair.X("gb:Q", title="GB of all clients and rounds"),
            altair.Y("method:N", title=None, sort=order),
            series(altair.Color, "way", ("up", "down"), (BLUE, SKY), LEGEND),
            opacity=altair.condition(
                "datum.method == method", altair.value(1), altair.value(0.45)
            ),
            tooltip=[
                altair.Tooltip("method:N"),
                altair.Tooltip("way:N"),
                altair.Tooltip("gb:Q", title="GB", format=".3~r"),
                altair.Tooltip(
                    "bytes:Q", title="bytes of a client and round", format=","
                ),
            ],
        )
    )
    picture = layered(440, params, [bars], shared, title=heading(words))
    return chart(number, picture, caption, alt, {"clients": "", "rounds": ""})


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
        for head, column, form, unit in (
            ("MB up", "up", ".3f", 1e6),
            ("MB down", "down", ".3f", 1e6),
            ("times less", "factor", ".1f", 1),
        ):
            values = (frame[column] / unit).map(f"{{:{form}}}".format)
            texts[f"{name}: {head}"] = values.where(frame[column].notna(), "")
    return table(number, equal_rows(pandas.DataFrame(texts)), caption)


def reasons(number: str, caption: str) -> Shown:
    """What a method does to these two networks, or why it has no form for one."""
    import pandas

    notes = pandas.DataFrame({name: stored()[name]["note"] for name in TWO})
    return table(number, equal_rows(notes), caption)


if __name__ == "__main__":
    store()

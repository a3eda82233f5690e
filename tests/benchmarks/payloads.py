"""What the papers' detection and segmentation networks send: real messages of one round, one local
step a client, on noise of 64 x 64 pixels (a message's size does not depend on the pictures').

    python tests/benchmarks/payloads.py [--only YOLOX-S] [--out seeing_bytes.json]
    python tests/benchmarks/payloads.py --costs [--meters FILE ...] --out data/results/sends.json

The second counts what every method sends for some networks (``fl.cost``), and stores it with the
tables that a meter wrote elsewhere (``fl.meter``), by default those that are stored there already.
``settings`` says of both parts by which commit and command they were made.

``meta["claim"]`` is the entry of the ledger that has the printed number, ``meta["numbers"]``
what a client sends up apart from batch statistics and the message's own description (of methods
that send float32), ``meta["mib"]`` all that goes up in a round, in MiB, as Fed-KGF counts."""

import argparse
import json
import subprocess
from pathlib import Path

import torch
from torch import nn

import fedlearn as fl
from fedlearn import methods, models, wire
from fedlearn.files import to_json, write_text
from fedlearn.seeing import from_boxes, from_masks

RATE = 1e-5  # small, so that no method meets numbers that are not finite
WHOLE = "fedavg", "rpn"  # that send every tensor, as float32

# network: classes, clients, and by label the method and the claim
ROWS = {
    "YOLOv3": ("yolov3", 80, 1, {
        "FedAvg": (methods.fedavg(RATE), "rpn-table2-fl-params"),
        "RPN": (methods.rpn(RATE), "rpn-table2-rpn-params"),
    }),
    "YOLOv3, 20 classes": ("yolov3", 20, 1, {
        "FedAvg": (methods.fedavg(RATE), "rpn-table2-fl-params"),
        "RPN": (methods.rpn(RATE), "rpn-table2-rpn-params"),
    }),
    "FCN-32s": ("fcn32s", 21, 1, {
        "FedAvg": (methods.fedavg(RATE), "rpn-table3-fl-params"),
        "RPN": (methods.rpn(RATE), "rpn-table3-rpn-params"),
    }),
    "YOLOX-S": ("yolox_s", 80, 10, {
        "FedAvg": (methods.fedavg(RATE), "fed_kgf-table4-fedavg-mb"),
        "Fed-KGF": (methods.fed_kgf(RATE), "fed_kgf-table4-kgf-mb"),
        "Fed-KGF without MU": (methods.fed_kgf(RATE, groups=1), "fed_kgf-table4-kgf-without-mu-mb"),
        "SmartIdx": (methods.smartidx(RATE), "fed_kgf-table4-smartidx-mb"),
        "FedPM": (methods.fedpm(RATE), "fed_kgf-table4-fedpm-mb"),
        "DGC": (methods.dgc(RATE, warmup=0), "fed_kgf-table4-dgc-mb"),
        "FedCAMS": (methods.fedcams(RATE), "fed_kgf-table4-fedcams-mb"),
        "FedCOM": (methods.fedcomgate(RATE), "fed_kgf-table4-fedcom-mb"),
    }),
}  # fmt: skip


class Block(nn.Module):
    """A transformer block between an embedding and a head."""

    def __init__(self, tokens=1000, width=256):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.block = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, x):
        return self.head(self.block(self.embedding(x)))


COMMAND = "python tests/benchmarks/payloads.py --costs --out data/results/sends.json"
NETWORKS = {  # label: network, input, tokens
    "digits_cnn": ("digits_cnn", "1x8x8", None),
    "McMahan's CNN": ("mcmahan_cnn", "1x28x28", None),
    "transformer block": (Block, "64", 1000),
    "MobileNetV2": ("torchvision.models:mobilenet_v2", "3x32x32", None),
    "ResNet-18": ("resnet18", "3x32x32", None),
    "ResNet-50": ("torchvision.models:resnet50", "3x32x32", None),
}


def costs(meters, stored):
    """The tables of ``NETWORKS``, and those that were written by a meter, or else are ``stored``
    (settings and tables)."""
    show = "git", "log", "-1", "--format=%h of %cs"
    commit = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    about = {"command": COMMAND, "commit": commit, "torch": torch.__version__}
    if meters:
        command = f"{COMMAND} --meters {' '.join(path.name for path in meters)}"
        stored = about | {"command": command}, [json.loads(path.read_text()) for path in meters]
    tables = []
    for label, (network, shape, tokens) in NETWORKS.items():
        table = vars(fl.cost(network, shape, tokens=tokens))
        table["network"]["name"] = label
        tables.append(table)
        print(label, flush=True)
    settings = {"costs": about, "meters": stored[0]}
    return {"settings": settings, "costs": tables, "meters": stored[1]}


def task_of(network, classes, clients):
    """Noise, two pictures a client and one to test."""
    count, g = 2 * clients, fl.rng.generator(0, "payloads")
    x = torch.randint(0, 256, (count + 1, 3, 64, 64), dtype=torch.uint8, generator=g).numpy()
    if network in fl.seeing.SEGMENTERS:
        masks = torch.randint(0, classes, (count + 1, 64, 64), generator=g).numpy()
        source = from_masks(x[:-1], masks[:-1], classes, (x[-1:], masks[-1:]), name="noise")
        return fl.seeing.segmentation(source, clients, network=network, device="cpu")
    boxes = [[[8, 8, 40, 48, i % classes]] for i in range(count + 1)]
    source = from_boxes(x[:-1], boxes[:-1], classes, (x[-1:], boxes[-1:]), name="noise")
    return fl.seeing.detection(source, clients, network=network, device="cpu")


def measured(label, network, classes, clients, method, claim):
    """The history of one round."""
    task = task_of(network, classes, clients)
    history = fl.run(method, task, 1, batch_size=2, progress=False, threads=1)
    [row] = history.rows
    assert not row["refused"] and not row["untaken"], row
    schema = method.uplink.schema(fl.initial_network(method, task))
    nothing = wire.Message(wire.UP, 1, 0, 1, dict.fromkeys(schema.shapes, b""))
    up = row["bytes_up"] - row["bytes_up_buffers"] - clients * len(wire.pack(nothing, schema))
    history.meta |= {"label": label, "claim": claim, "clients": clients}
    history.meta |= {"parameters": models.parameter_count(task.network())}
    history.meta |= {"numbers": up / 4 / clients if method.name in WHOLE else None}
    history.meta |= {"mib": row["bytes_up"] / 2**20}
    print(label, history.meta["mib"], "MiB up, numbers", history.meta["numbers"], flush=True)
    history.meta["command"] = "python tests/benchmarks/payloads.py"
    return history.to_dict()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", help="a network")
    parser.add_argument("--out", type=Path, help="rows that are there stay")
    parser.add_argument("--costs", action="store_true", help="what all methods send, instead")
    parser.add_argument("--meters", type=Path, nargs="*", default=[], help="tables of a meter")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stored = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    if args.costs:
        kept = (stored["settings"]["meters"], stored["meters"]) if stored else ({}, [])
        write_text(args.out or "/dev/stdout", to_json(costs(args.meters, kept), indent=1) + "\n")
        return
    done = {row["meta"]["label"]: row for row in stored}
    for name, (network, classes, clients, of) in ROWS.items():
        for label, (method, claim) in of.items():
            label = f"{name}, {label}"
            if args.only in (None, name) and label not in done:
                done[label] = measured(label, network, classes, clients, method, claim)
    if args.out:
        write_text(args.out, to_json(list(done.values()), indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The meter on a Flower app that is not ours: Flower's strategy, clients that know no coder."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedlearn as fl

from .conftest import Grid

app = ClientApp()


@app.train()
def train(message, context):
    state = message.content["arrays"].to_torch_state_dict()
    state = {name: t + 0.1 * context.node_config["partition-id"] for name, t in state.items()}
    answer = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 5})}
    return Message(RecordDict(answer), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    if context.node_config["partition-id"] == 0:
        raise RuntimeError("A client that fails.")
    metrics = MetricRecord({"num-examples": 5, "loss": 1.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


class Both(Grid):
    """Sends all messages of a phase, and takes the answers."""

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.crossed += [(m.metadata.message_type, size(m)) for m in messages]
        replies = []
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"message {i}"
            context = self.contexts[message.metadata.dst_node_id]
            try:
                replies.append(app(message, context))
            except RuntimeError:
                continue
        self.crossed += [(f"{m.metadata.message_type} back", size(m)) for m in replies]
        return replies


def size(message):
    return sum(record.count_bytes() for record in message.content.values())


def test_a_strategy_is_counted_and_not_changed():
    state, ends, crossed = nn.Linear(100, 10).state_dict(), [], []
    meter = fl.meter.Meter("theirs", ["dense", "scaled signs"])
    for wrap in (lambda strategy: strategy, meter.strategy):
        grid = Both()
        grid.crossed = []
        for k in range(3):
            grid.join(k, 100 + k)
        strategy = wrap(FedAvg())
        result = strategy.start(grid, ArrayRecord(state), num_rounds=2)
        ends.append(result.arrays.to_torch_state_dict())
        crossed.append(grid.crossed)
    for name in state:  # clients come in another order, which rounds otherwise
        torch.testing.assert_close(ends[0][name], ends[1][name])
    assert crossed[0] == crossed[1]
    total = {kind: sum(n for k, n in grid.crossed if k == kind) for kind, _ in grid.crossed}
    rows = {row["method"]: row for row in meter.cost.rows}
    assert rows["as sent"]["total"] == total["train"] + total["train back"] > 12 * 4 * 1010
    assert meter.beside == total["evaluate"] + total["evaluate back"] > 0
    assert rows["as sent"]["up"] > rows["dense"]["up"] > 10 * rows["scaled signs"]["up"]
    assert meter.cost.stated["clients"] == 3 and meter.cost.stated["rounds"] == 2

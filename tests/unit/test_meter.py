"""What a plain loop sent, and what coders make of it: checked against the package's own runs."""

import numpy as np
import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.book import sends


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))


def moved(state, rate=0.01):
    """A state after training of a kind."""
    draw = torch.Generator().manual_seed(1)
    floats = {n: t for n, t in state.items() if t.is_floating_point()}
    return state | {n: t + rate * torch.rand(t.shape, generator=draw) for n, t in floats.items()}


def rows_of(meter):
    return {row["method"]: row for row in meter.cost.rows}


def test_what_crossed_and_what_coders_make_of_it():
    """Dense messages are those of the package, bytes of a state dict those of its tensors."""
    meter, state = fl.meter.Meter("mine"), network().state_dict()
    for _ in range(2):
        meter.received(state)
        meter.sent(state := moved(state))
    rows, numbers = rows_of(meter), sum(t.numel() for t in state.values())
    assert rows.keys() == {"as sent", *fl.meter.ALL}
    assert rows["as sent"]["up"] == 4 * numbers + 4  # num_batches_tracked has 8 bytes
    assert rows["as sent"]["up_buffers"] == 8 * 8 + 8 and rows["dense"]["up_buffers"] == 8 * 8
    assert rows["as sent"]["factor"] == 1 and rows["scaled signs"]["factor"] > 1.5
    floats = {n: t for n, t in state.items() if t.is_floating_point()}
    schema = fl.wire.Schema({n: tuple(t.shape) for n, t in floats.items()})
    dense = fl.wire.FixedMessage(schema).write(fl.wire.UP, 1, 0, floats)
    assert rows["dense"]["up"] == rows["dense"]["down"] == len(dense)
    assert rows["dense"]["error"] == 0 < rows["scaled signs"]["error"] < 1
    first, change = len(dense), rows["top 1/1000, float32"]["up"]  # the first state comes whole
    assert 0 <= 2 * rows["top 1/1000, float32"]["down"] - first - change <= 8
    assert rows["dense"]["total"] == 4 * len(dense)
    assert "2 rounds" in repr(meter) and "<table" in meter._repr_html_()


def test_clients_hear_the_same_and_are_coded_once(monkeypatch):
    meter, state = fl.meter.Meter("mine", "dense"), network().state_dict()
    codings, code = [], meter._coded
    monkeypatch.setattr(meter, "_coded", lambda *a: codings.append(1) or code(*a))
    for _ in range(2):
        for k in range(5):
            meter.received(state, k)
        state = moved(state)
        meter.sent(state, 3)
    assert len(codings) == 2 + 2
    assert meter.cost.stated["clients"] == 5 and meter.cost.stated["rounds"] == 2


def test_a_part_of_the_state():
    meter = fl.meter.Meter("mine", "dense")
    meter.received({"w": torch.ones(4, 8), "v": torch.ones(4, 8)})
    meter.sent({"v": torch.ones(4, 8), "more": torch.ones(4, 8)})
    rows = rows_of(meter)
    assert rows["as sent"]["up"] == rows["as sent"]["down"] == 2 * 4 * 32
    assert rows["dense"]["error"] == 0


def test_an_update_and_a_known_size():
    meter = fl.meter.Meter("mine", {"signs": fl.wire.Signs()})
    meter.sent({"w": np.ones((4, 8), np.float32)}, size=1000)  # nothing was received: an update
    meter.received({"w": torch.zeros(4, 8)})
    meter.sent({"w": torch.ones(4, 8)}, update=True)
    assert rows_of(meter)["as sent"]["up"] == (1000 + 4 * 32) // 2
    assert rows_of(meter)["signs"]["error"] == 0


def test_what_is_not_finite_counts_as_dense():
    meter = fl.meter.Meter("mine", ["dense", "scaled signs"])
    meter.sent({"w": torch.full((4, 8), torch.nan)})
    rows = rows_of(meter)
    assert rows["scaled signs"]["up"] == rows["dense"]["up"] and "NaN" in rows["dense"]["note"]


@pytest.mark.parametrize(
    "state, noun",
    [
        (network(), "dictionary"),
        ({"w": 1.0}, "dictionary"),
        ({"n": torch.tensor(3)}, "parameters"),
        ({"w": torch.ones(3)}, "shape"),
        ({"w": torch.ones(0)}, "parameters"),
        ({"w": np.array(["a"])}, "numbers"),
        ({"w": torch.ones(2, 2, device="meta")}, "dense"),
        ({"w": torch.ones(2, 2).to_sparse()}, "dense"),
    ],
)
def test_what_cannot_be_counted_is_said(state, noun):
    meter = fl.meter.Meter("mine", "dense")
    meter.received({"w": torch.ones(2, 2)})
    with pytest.raises(ValueError, match=noun):
        meter.sent(state)


def test_no_message_no_table():
    with pytest.raises(ValueError, match="size"):
        fl.meter.Meter(coders="dense").sent({"w": torch.ones(3)}, size=-1)
    with pytest.raises(ValueError, match="nothing"):
        fl.meter.Meter().cost  # noqa: B018
    with pytest.raises(ValueError, match="coder"):
        fl.meter.Meter(coders="no such")
    with pytest.raises(ValueError, match="strategy"):
        fl.meter.Meter().strategy(network())


def test_what_the_page_says_is_in_its_tables():
    costs, meters = sends.costs(), sends.costs("meters")
    assert f"{costs['ResNet-50'].network['wide']:.0%}" == "44%"
    rows = {name: {r["method"]: r for r in of.rows} for name, of in (costs | meters).items()}
    resnet, block = rows["ResNet-50"], rows["transformer block"]
    sent = {n: row["up"] + row["down"] for n, row in resnet.items() if row["up"]}
    assert min(sent, key=sent.get) == "stc"
    assert block["rpn"]["up"] == block["fedavg"]["up"] and resnet["scaffold"]["factor"] < 0.51
    assert all(1.5 < resnet[n]["factor"] < 2.1 for n in ("qsgd", "dgc", "smartidx", "fedcams"))
    flower, pfl = rows["Flower"]["as sent"], rows["PFLlib"]["as sent"]
    assert 0.2 < int(flower["note"].split()[0].replace(",", "")) / flower["total"] < 0.3
    messages_up = (pfl["total"] - 40 * pfl["down"]) / pfl["up"]  # ten clients, four rounds
    assert abs(messages_up - 20) < 0.1
    stored = sends.stored("coders_peers.json")
    peers = {(r["program"], r["compressor"]): r for r in stored["rows"]}
    alike = "fp16 topk randomk terngrad signsgd efsignsgd powersgd".split()
    for row in [peers["GRACE", name] for name in alike] + [peers["STC's authors", "stc"]]:
        assert row["their_error"] == pytest.approx(row["our_error"], rel=0.001)
    assert peers["GRACE", "qsgd"]["their_error"] > 1 > peers["GRACE", "qsgd"]["our_error"]
    assert 7.9 < peers["GRACE", "signsgd"]["theirs"] / peers["GRACE", "signsgd"]["ours"] < 8.1
    again = stored["again"]
    assert again["GRACE, memory none"] > 2 * again["GRACE, memory residual"]
    assert again["ours, Feedback"] == pytest.approx(again["GRACE, memory residual"], rel=0.001)

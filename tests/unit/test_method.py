"""What a method is made of: parts that are misspelt or do not fit are refused when it is built."""

import pytest
import torch

import fedlearn as fl
from fedlearn.core.federation import one_round
from fedlearn.methods.signsgd import Majority
from fedlearn.parts import KeptSteps

FEDAVG = fl.methods.fedavg()
STC = fl.methods.stc()
PM = fl.methods.fedpm()


UNFIT = [
    (PM, {"server": fl.Mean()}, "Mean.* needs Update"),
    (PM, {"uplink": fl.Uplink()}, "needs Masks"),
    (PM, {"model": fl.TaskNetwork()}, "needs MaskedNetwork"),
    (STC, {"server": fl.Mean()}, "Replay.* needs .*KeptSteps"),
    (STC, {"server": KeptSteps(STC.uplink, Majority())}, "Majority"),
    (FEDAVG, {"uplink": fl.Downlink()}, "uplink"),
    (FEDAVG, {"uplinc": fl.Uplink()}, "'uplink'"),
]


@pytest.mark.parametrize("method, parts, noun", UNFIT, ids=[str(u[2]) for u in UNFIT])
def test_parts_that_do_not_fit_are_refused_with_one_sentence(method, parts, noun):
    with pytest.raises(ValueError, match=noun) as error:
        method.but(**parts)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", "dgc fedcams fedcomgate fedfusion fed_gkt scaffold feddyn local".split()
)
def test_nothing_of_a_round_that_diverged_stays_in_a_clients_memory(name, task):
    options = {"personal": True} if name == "fedfusion" else {}
    options |= {"asynchronous": True, "server_epochs": 1} if name == "fed_gkt" else {}
    method = fl.methods.get(name, **options)
    settings = fl.Settings(epochs=3)
    server = method.server_side(task, settings)
    engine = fl.clients(method, task, settings)
    state = server.start()
    for t in (1, 2, 3):
        engine.side.method = method.but(optimizer=fl.SGD(1e38)) if t == 2 else method
        state, row = one_round(server, engine, t, state, {})
        memories = [x for m in engine.memories.values() for x in m.values()]
        assert memories
        assert all(torch.isfinite(x).all() for x in memories)
        refused = set(range(4)) if t == 2 else set()
        assert row["refused"].keys() == refused, row["refused"]

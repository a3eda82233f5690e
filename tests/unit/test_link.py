"""Bytes to minutes: the link model, and what it refuses."""

import math

import numpy as np
import pytest

import fedlearn as fl
from fedlearn import link


def history(rounds=3, clients=2, up=1000, down=3000, seconds=4.0):
    """A run whose every round sends so many bytes in all."""
    columns = {
        "loss": 1.0,
        "bytes_down": down,
        "seconds": seconds,
        "clients": list(range(clients)),
    }
    rows = [
        {
            "round": t + 1,
            "accuracy": 0.1 * t,
            "bytes_up": up * (t + 1),
            "refused": {},
            **columns,
        }
        for t in range(rounds)
    ]
    return fl.History("by hand", {}, rows)


def test_a_round_is_the_sum_of_its_parts():
    # one client: 500, 1,000 and 1,500 bytes up at 1,000 bit/s: 4, 8, 12 s; 1,500 down at 2,000
    # bit/s: 6 s; computing 4 s / 2 clients, thrice as slow: 6 s; a round trip: 0.5 s
    times = link.time(history(), up=1e3, down=2e3, latency=0.5, slower=3)
    assert times == pytest.approx(np.cumsum([16.5, 20.5, 24.5]))
    nobody = link.time(history(1, clients=0), 8e3, 8e3, slower=0)
    assert nobody == pytest.approx([4])
    last = {name: link.time(history(), **p)[-1] for name, p in link.PRESETS.items()}
    assert last["LoRaWAN"] > last["2G"] > last["3G"] > last["LTE"]


@pytest.mark.parametrize(
    "wrong, noun",
    [
        ({"up": 0}, "up.* above 0"),
        ({"up": math.nan}, "up"),
        ({"down": "1Mbit"}, "down"),
        ({"latency": -1}, "latency"),
        ({"slower": -1}, "slower"),
    ],
)
def test_speeds_out_of_range_are_refused(wrong, noun):
    with pytest.raises(ValueError, match=noun):
        link.time(history(), **{"up": 1e3, "down": 1e3} | wrong)

"""Bytes to minutes and joules: the link model, and what it refuses; the table of several runs."""

import math

import numpy as np
import pytest

import fedlearn as fl
from fedlearn import link
from fedlearn.lab.cli import table


def history(rounds=3, clients=2, up=1000, down=3000, seconds=4.0):
    """A run whose every round sends so many bytes in all."""
    same = {"loss": 1.0, "bytes_down": down, "seconds": seconds, "clients": list(range(clients))}
    rows = [
        {"round": t + 1, "accuracy": 0.1 * t, "bytes_up": up * (t + 1), "refused": {}, **same}
        for t in range(rounds)
    ]
    return fl.History("by hand", {}, rows)


def test_a_round_is_the_sum_of_its_parts():
    # one client: 500, 1,000 and 1,500 bytes up at 1,000 bit/s: 4, 8, 12 s; 1,500 down at 2,000
    # bit/s: 6 s; computing 4 s / 2 clients, thrice as slow: 6 s; a round trip: 0.5 s
    times = link.time(history(), up="1kbit", down="2kbit", latency="500ms", slower=3)
    assert times == pytest.approx(np.cumsum([16.5, 20.5, 24.5]))
    nobody = link.time(history(1, clients=0), "1kB", "1kB", slower=0)
    assert nobody == pytest.approx([4])
    used = link.energy(history(), up="2mJ", down=1e-3)
    assert used == pytest.approx(np.cumsum([2.5, 3.5, 4.5]))


@pytest.mark.parametrize("s", [0.1, 5.0])
def test_what_is_expected_of_the_slowest_device(s):
    # of one log-normal number the mean, and of the larger of two what is known in closed form
    assert link.stretch(1, s) == pytest.approx(math.exp(s**2 / 2), rel=1e-9)
    normal = 0.5 * (1 + math.erf(s / 2))
    assert link.stretch(2, s) == pytest.approx(2 * math.exp(s**2 / 2) * normal, rel=1e-9)
    assert link.stretch(40, 0.0) == 1


def test_a_round_waits_for_the_slowest_of_its_devices_to_compute():
    run = history(2)
    run.rows[1]["clients"] = [0]  # one client less: nobody is waited for
    first, second = np.diff(link.time(run, 1e3, 1e3, 2.0, stragglers=0.5), prepend=0)
    assert first == pytest.approx(2 + 2 * link.stretch(2, 0.5) + 16)
    assert second == pytest.approx(2 + 4 * link.stretch(1, 0.5) + 40)


def test_quantities():
    texts = ("1Mbit", "768kbit/s", " 2.5 MB ", "300bit", 12, "1Gbit", "1e-1kB", "2B", "1GB")
    speeds = [link.quantity(text, "speed") for text in texts]
    assert speeds == pytest.approx([1e6, 768e3, 2e7, 300, 12, 1e9, 800, 16, 8e9])
    assert [link.quantity(text, "latency") for text in ("50ms", "3s", "2min")] == [0.05, 3, 120]
    for value in ("-1uJ", "3 cal", math.inf, math.nan):
        with pytest.raises(ValueError, match="radio|up"):
            link.energy(history(), value, "1uJ")
    for wrong, noun in (({"up": "0Mbit"}, "above 0"), ({"latency": "1 fortnight"}, "Units: ms")):
        with pytest.raises(ValueError, match=noun):
            link.time(history(), **{"up": 1e3, "down": 1e3} | wrong)
    with pytest.raises(ValueError, match="without rounds"):
        link.time(fl.History("x", {}, []), 1.0, 1.0)
    # as their sources print it: mW for each Mbit/s are nJ a bit, a sender takes volts times mA
    for name, way, joules in (
        ("LTE", "up", 8 * 438.39e-9),
        ("3G", "down", 8 * 122.12e-9),
        ("LoRaWAN", "up", 3.3 * 29e-3 * 8 / 5470),
    ):
        stated = link.quantity(link.RADIOS[name][way], "radio's energy for a byte")
        assert stated == pytest.approx(joules, rel=5e-3)
    last = {name: link.time(history(), **p)[-1] for name, p in link.PRESETS.items()}
    assert last["LoRaWAN"] > last["2G"] > last["3G"] > last["LTE"]


def test_the_table_has_minutes_where_there_is_a_link():
    runs = {"a": [history(), history(seconds=8.0)], "b": [history(up=1)]}
    how = {"up": "1kbit", "down": "2kbit"}
    minutes = np.mean([link.time(h, **how)[-1] for h in runs["a"]]) / 60
    head, _, first, *_ = table(runs, how).splitlines()
    assert "minutes" in head and "minutes" not in table(runs, {})
    assert f"{minutes:.4g}" in first
    ax = fl.plot.compare([runs["a"]], "minutes", link=how)
    assert ax.lines[0].get_xdata()[-1] == pytest.approx(minutes)
    with pytest.raises(ValueError, match="link"):
        fl.plot.compare(runs["b"], "minutes")

"""Bytes to minutes and joules: the link model, and what it refuses; the tables of several runs."""

import math

import numpy as np
import pytest

import fedlearn as fl
from fedlearn import link
from fedlearn.runs import table


def history(rounds=3, clients=2, up=1000, down=3000, seconds=4.0):
    """A run whose every round sends so many bytes in all."""
    rows = [
        {
            "round": t + 1,
            "accuracy": 0.1 * t,
            "loss": 1.0,
            "bytes_up": up * (t + 1),
            "bytes_down": down,
            "seconds": seconds,
            "clients": list(range(clients)),
            "refused": {},
        }
        for t in range(rounds)
    ]
    return fl.History("by hand", {}, rows)


def test_a_round_is_the_sum_of_its_parts():
    # one client: 500, 1,000 and 1,500 bytes up at 1,000 bit/s: 4, 8, 12 s; 1,500 down at 2,000
    # bit/s: 6 s; computing 4 s / 2 clients, thrice as slow: 6 s; a round trip: 0.5 s
    times = link.time(history(), up="1kbit", down="2kbit", latency="500ms", slower=3)
    assert times == pytest.approx(np.cumsum([16.5, 20.5, 24.5]))
    assert link.time(history(), 1e3, 2e3, 0.5, 3) == pytest.approx(times)
    alone = link.time(history(1, clients=0), "1kB", "1kB")  # nobody answered
    assert alone == pytest.approx([4 + 4])


def test_bytes_become_joules():
    # one client's 500, 1,000 and 1,500 bytes up, and 1,500 down in each round
    used = link.energy(history(), up="2mJ", down=1e-3)
    assert used == pytest.approx(np.cumsum([2.5, 3.5, 4.5]))


def normal(x):
    """The distribution of a standard normal number."""
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@pytest.mark.parametrize("s", [0.1, 0.7, 2.0, 5.0])
def test_what_is_expected_of_the_slowest_device(s):
    # of one log-normal number the mean, and of the larger of two what is known in closed form
    assert link.stretch(1, s) == pytest.approx(math.exp(s**2 / 2), rel=1e-9)
    two = 2 * math.exp(s**2 / 2) * normal(s / math.sqrt(2))
    assert link.stretch(2, s) == pytest.approx(two, rel=1e-9)


def test_the_slowest_device_is_the_mean_of_many_draws():
    drawn = np.random.default_rng(0).lognormal(0, 0.6, (40_000, 40)).max(1)
    assert abs(link.stretch(40, 0.6) - drawn.mean()) < 4 * drawn.std() / 200
    assert link.stretch(40, 0.0) == 1


@pytest.mark.parametrize("n", [link.DEVICES // 10, link.DEVICES])
def test_the_slowest_of_the_most_devices_is_still_on_the_grid(n):
    # with few differences: exp(s * z) at the expected largest of n standard normal numbers
    largest = math.sqrt(2 * math.log(n))
    largest -= (math.log(math.log(n)) + math.log(4 * math.pi)) / (2 * largest)
    assert link.stretch(n, 0.01) == pytest.approx(math.exp(0.01 * largest), rel=0.003)


def test_a_round_waits_for_the_slowest_of_its_devices_to_compute():
    run = history(2)
    run.rows[1]["clients"] = [0]  # one client less: nobody is waited for
    first, second = np.diff(link.time(run, 1e3, 1e3, 2.0, stragglers=0.5), prepend=0)
    assert first == pytest.approx(2 + 2 * link.stretch(2, 0.5) + 16)
    assert second == pytest.approx(2 + 4 * link.stretch(1, 0.5) + 40)
    asked = link.time(history(1), 1e3, 1e3, 2.0, stragglers=0.5, clients=40)
    assert asked == pytest.approx(2 + 2 * link.stretch(40, 0.5) + 16)


@pytest.mark.parametrize(
    ("change", "noun"),
    [
        ({"up": "0Mbit"}, "speed"),
        ({"down": "-1Mbit"}, "speed"),
        ({"up": 10**400}, "speed|up"),
        ({"up": "1mbit"}, "Units: bit, B, kbit"),
        ({"up": "1"}, "unit"),
        ({"up": None}, "unit|up"),
        ({"latency": "-1ms"}, "latency"),
        ({"latency": "1 fortnight"}, "Units: ms, s, min"),
        ({"slower": -1.0}, "slower"),
        ({"stragglers": 50.0}, "stragglers"),
        ({"stragglers": "many"}, "stragglers"),
        ({"clients": 0}, "client"),
        ({"clients": 2.5}, "clients"),
    ],
)
def test_what_no_link_can_have_is_refused_in_one_sentence(change, noun):
    with pytest.raises(ValueError, match=noun) as error:
        link.time(history(), **{"up": "1Mbit", "down": "1Mbit"} | change)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


def test_quantities():
    texts = ("1Mbit", "768kbit/s", " 2.5 MB ", "300bit", 12, "1Gbit", "1e-1kB")
    assert [*map(link.speed, texts)] == pytest.approx([1e6, 768e3, 2e7, 300, 12, 1e9, 800])
    assert (link.seconds("50ms"), link.seconds("2min"), link.joules("3.5uJ")) == (0.05, 120, 3.5e-6)
    for value in ("-1uJ", "3 cal", "3", math.inf, math.nan, None):
        with pytest.raises(ValueError, match="radio"):
            link.energy(history(), value, "1uJ")
    for of in (link.time, link.energy):
        with pytest.raises(ValueError, match="without rounds"):
            of(fl.History("x", {}, []), 1.0, 1.0)


def test_presets_are_links_with_a_source():
    for preset in link.PRESETS.values():
        assert len(preset.source) > 10
        if preset.radio:
            used = {k: link.joules(v) for k, v in preset.radio.asdict().items()}
            assert 1e-9 < used["down"] <= used["up"] < 1e-3 and len(preset.radio.source) > 10
    # as their sources print it: mW for each Mbit/s are nJ a bit, and a sender takes volts times mA
    assert link.joules(link.PRESETS["LTE"].radio.up) == pytest.approx(8 * 438.39e-9, rel=2e-3)
    assert link.joules(link.PRESETS["3G"].radio.down) == pytest.approx(8 * 122.12e-9, rel=5e-3)
    lora = 3.3 * 29e-3 * 8 / 5470
    assert link.joules(link.PRESETS["LoRaWAN"].radio.up) == pytest.approx(lora, rel=5e-3)
    last = {name: link.time(history(), **p.asdict())[-1] for name, p in link.PRESETS.items()}
    assert last["LoRaWAN"] > last["2G"] > last["3G"] > last["LTE"]
    with pytest.raises(ValueError, match="LTE"):
        link.preset("LTTE")


def test_the_table_has_minutes_and_joules_where_there_is_a_link_and_a_radio():
    runs = {"a": [history(), history(seconds=8.0)], "b": [history(up=1)]}
    how, radio = {"up": "1kbit", "down": "2kbit"}, {"up": "2mJ", "down": "1mJ"}
    lines = table(runs, how, radio).splitlines()
    minutes = np.mean([link.time(h, **how)[-1] for h in runs["a"]]) / 60
    joules = np.mean([link.energy(h, **radio)[-1] for h in runs["a"]])
    assert lines[0].split()[-2:] == ["minutes", "joules"] and "minutes" not in table(runs)
    assert lines[1].split()[-2:] == [f"{minutes:.4g}", f"{joules:.4g}"]
    assert lines[-2:] == [
        "minutes: 1kbit up, 2kbit down",
        "joules: a client's radio, 2mJ a byte up, 1mJ down",
    ]
    slow = {**how, "latency": "5ms", "slower": 2.0, "stragglers": 0.0}
    assert link.described(slow).endswith("2kbit down, latency 5ms, slower 2.0")


def test_a_plot_against_minutes():
    how = {"up": "1kbit", "down": "2kbit"}
    ax = fl.plot.compare(history(), "minutes", link=how)
    assert ax.lines[0].get_xdata() == pytest.approx(link.time(history(), **how) / 60)
    assert "1kbit up" in ax.get_xlabel()
    with pytest.raises(ValueError, match="link"):
        fl.plot.compare(history(), "minutes")

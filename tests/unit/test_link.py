"""Bytes to minutes: the link model, and what it refuses."""

import math

import numpy as np
import pytest

import fedlearn as fl
from fedlearn import link
from fedlearn.report import table


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
    its = link.time(history(), up="1kbit", down="2kbit", latency="500ms", slower=3)
    assert its == pytest.approx(np.cumsum([16.5, 20.5, 24.5]))
    assert link.time(history(), 1e3, 2e3, 0.5, 3) == pytest.approx(its)


@pytest.mark.parametrize("change", ["up", "down", "latency", "slower", "stragglers", "clients"])
def test_a_worse_link_takes_longer(change):
    plain = {"up": 1e6, "down": 1e6, "latency": 0.1, "slower": 1.0, "stragglers": 0.5}
    worse = {"up": 1e5, "down": 1e5, "latency": 1.0, "slower": 2.0, "stragglers": 1.0, "clients": 9}
    before, after = (link.time(history(4, 5), **plain | c) for c in ({}, {change: worse[change]}))
    assert (after > before).all() and (np.diff(after) > 0).all()


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
    error = drawn.std() / 200
    assert abs(link.stretch(40, 0.6) - drawn.mean()) < 4 * error
    assert link.stretch(40, 0.0) == 1
    assert link.stretch(100_000, 0.6) == pytest.approx(math.exp(0.6 * 4.3), rel=0.1)


def test_a_round_waits_for_the_slowest_of_its_devices_to_compute():
    few, many = history(clients=2), history(clients=40, up=20_000, down=60_000, seconds=80.0)
    one = {"up": 1e3, "down": 1e3, "latency": 2.0}
    for its, n in ((few, 2), (many, 40)):  # the messages and seconds of a client are the same
        calm = np.diff(link.time(its, **one), prepend=0)
        rough = np.diff(link.time(its, **one, stragglers=0.5), prepend=0)
        assert rough - calm == pytest.approx((link.stretch(n, 0.5) - 1) * 2)  # 2 s of computing
    asked = link.time(few, **one, stragglers=0.5, clients=40)
    assert asked == pytest.approx(link.time(many, **one, stragglers=0.5))
    some = history(2)
    some.rows[1]["clients"] = [
        0
    ]  # one client less: what it has is its own, and nobody is waited for
    first, second = np.diff(link.time(some, **one, stragglers=0.5), prepend=0)
    assert first == pytest.approx(2 + 2 * link.stretch(2, 0.5) + 16)
    assert second == pytest.approx(2 + 4 * link.stretch(1, 0.5) + 40)


def test_bytes_become_joules():
    # one client's 500, 1,000 and 1,500 bytes up, and 1,500 down in each round
    its = link.energy(history(), up="2mJ", down=1e-3)
    assert its == pytest.approx(np.cumsum([2.5, 3.5, 4.5]))
    assert link.energy(history(), "3uJ", "0nJ") == pytest.approx(3e-6 * np.cumsum([500, 1e3, 1500]))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"up": "-1uJ"}, "cannot use less than 0 J"),
        ({"down": "3 cal"}, "Units: nJ, uJ, mJ, J"),
        ({"down": "3"}, "number with a unit"),
        ({"up": float("inf")}, "finite|less than 0"),
        ({"up": None}, "up of energy must be"),
    ],
)
def test_what_no_radio_uses_is_refused_in_one_sentence(how, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        link.energy(history(), **{"up": "1uJ", "down": "1uJ"} | how)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "bits"),
    [("1Mbit", 1e6), ("768kbit/s", 768e3), (" 2.5 MB ", 2e7), ("300bit", 300), (12, 12),
     ("1Gbit", 1e9), ("1e-1kB", 800)],
)  # fmt: skip
def test_speeds(text, bits):
    assert link.speed(text) == pytest.approx(bits)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"up": "0Mbit"}, "above 0"),
        ({"down": "-1Mbit"}, "above 0"),
        ({"up": -5}, "above 0"),
        ({"up": float("nan")}, "finite|above 0"),
        ({"up": "1 parsec"}, "Units: bit, B, kbit"),
        ({"up": "1mbit"}, "Units: bit, B, kbit"),
        ({"up": "1"}, "number with a unit"),
        ({"up": "1.2.3Mbit"}, "was expected"),
        ({"up": "fast"}, "number with a unit"),
        ({"up": None}, "up of time must be"),
        ({"latency": "-1ms"}, "cannot be below 0"),
        ({"latency": "1 fortnight"}, "Units: ms, s, min"),
        ({"slower": -1.0}, "slower cannot be below 0"),
        ({"stragglers": -1.0}, "stragglers must be 0 to 5"),
        ({"stragglers": 50.0}, "stragglers must be 0 to 5"),
        ({"stragglers": "many"}, "stragglers of time must be a finite number"),
        ({"clients": 0}, "at least 1 client"),
        ({"clients": 10**400, "stragglers": 1.0}, "at least 1 client and at most 1,000,000,000"),
        ({"up": 10**400}, "up of time must be a text or a finite number"),
        ({"up": "0"}, "above 0 and finite, not '0'."),
        ({"down": "-3"}, "above 0 and finite, not '-3'."),
        ({"latency": "1e999s"}, "cannot be below 0 or infinite"),
        ({"clients": 2.5}, "clients of time must be a whole number or None"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(how, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        link.time(history(), **{"up": "1Mbit", "down": "1Mbit"} | how)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize("read", [link.speed, link.seconds, link.joules])
@pytest.mark.parametrize("value", [10**400, -(10**400), math.inf, math.nan])
def test_a_number_that_is_no_float_is_refused(read, value):
    with pytest.raises(ValueError, match="0 (and finite|or infinite|J for a byte or infinitely)"):
        read(value)


@pytest.mark.parametrize("of", [link.time, link.energy])
def test_a_history_without_rounds_has_no_time(of):
    with pytest.raises(ValueError, match="A history without rounds has no bytes and no seconds"):
        of(fl.History("x", {}, []), 1.0, 1.0)


@pytest.mark.parametrize("n", [link.DEVICES // 10, link.DEVICES])
def test_the_slowest_of_the_most_devices_is_still_on_the_grid(n):
    # with few differences: exp(s * z) at the expected largest of n standard normal numbers
    largest = math.sqrt(2 * math.log(n))
    largest -= (math.log(math.log(n)) + math.log(4 * math.pi)) / (2 * largest)
    assert link.stretch(n, 0.01) == pytest.approx(math.exp(0.01 * largest), rel=0.003)


def test_presets_are_links_with_a_source():
    for name, its in link.PRESETS.items():
        assert link.preset(name) is its and len(its.source) > 10
        assert link.time(history(), **its.asdict())[-1] > 0
        if its.radio:
            assert len(its.radio.source) > 10
            used = {k: link.joules(v) for k, v in its.radio.asdict().items()}
            assert 1e-9 < used["down"] <= used["up"] < 1e-3
    assert [n for n, its in link.PRESETS.items() if its.radio] == ["LoRaWAN", "2G", "3G", "LTE"]
    # as their sources print it: mW for each Mbit/s are nJ a bit, and a sender takes volts times mA
    assert link.joules(link.PRESETS["LTE"].radio.up) == pytest.approx(8 * 438.39e-9, rel=2e-3)
    assert link.joules(link.PRESETS["3G"].radio.down) == pytest.approx(8 * 122.12e-9, rel=5e-3)
    assert link.joules(link.PRESETS["LoRaWAN"].radio.up) == pytest.approx(
        3.3 * 29e-3 * 8 / 5470, rel=5e-3
    )
    minutes = {name: link.time(history(), **its.asdict())[-1] for name, its in link.PRESETS.items()}
    assert minutes["LoRaWAN"] > minutes["2G"] > minutes["3G"] > minutes["LTE"]
    with pytest.raises(ValueError, match="Did you mean 'LTE'"):
        link.preset("LTTE")


def test_the_table_has_minutes_where_there_is_a_link():
    runs = {"a": [history(), history(seconds=8.0)], "b": [history(up=1)]}
    how = {"up": "1kbit", "down": "2kbit"}
    plain, timed = table(runs), table(runs, how)
    mean = np.mean([link.time(h, **how)[-1] for h in runs["a"]]) / 60
    assert "minutes" not in plain and timed.splitlines()[1].endswith(f"{mean:.4g}")
    assert timed.splitlines()[-1] == "minutes: 1kbit up, 2kbit down"
    assert link.described({**how, "latency": "5ms", "slower": 2.0, "stragglers": 0.0}).endswith(
        "2kbit down, latency 5ms, slower 2.0"
    )


def test_the_table_has_joules_where_there_is_a_radio():
    runs, radio = {"a": [history(), history(up=3000)]}, {"up": "2mJ", "down": "1mJ"}
    lines = table(runs, {"up": "1kbit", "down": "2kbit"}, radio).splitlines()
    mean = np.mean([link.energy(h, **radio)[-1] for h in runs["a"]])
    assert lines[0].split()[-2:] == ["minutes", "joules"]
    assert lines[1].split()[-1] == f"{mean:.4g}"
    assert lines[-1] == "joules: a client's radio, 2mJ a byte up, 1mJ down"


def test_a_plot_against_minutes():
    how = {"up": "1kbit", "down": "2kbit"}
    ax = fl.plot.compare(history(), "minutes", link=how)
    assert ax.lines[0].get_xdata() == pytest.approx(link.time(history(), **how) / 60)
    assert "1kbit up" in ax.get_xlabel()
    with pytest.raises(ValueError, match="Minutes need a link"):
        fl.plot.compare(history(), "minutes")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.42 s"), (32.4, "32 s"), (90, "1.5 min"), (7200, "2.0 h"), (259200, "3.0 days")],
)
def test_durations_are_said(seconds, text):
    assert link.said(seconds) == text

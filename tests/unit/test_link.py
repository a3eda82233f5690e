"""Bytes to minutes: the link model, and what it refuses."""

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


@pytest.mark.parametrize("change", ["up", "down", "latency", "slower", "stragglers"])
def test_a_worse_link_takes_longer(change):
    plain = {"up": 1e6, "down": 1e6, "latency": 0.1, "slower": 1.0, "stragglers": 0.0}
    worse = {"up": 1e5, "down": 1e5, "latency": 1.0, "slower": 2.0, "stragglers": 1.0}
    before, after = (link.time(history(4, 5), **plain | c) for c in ({}, {change: worse[change]}))
    assert (after > before).all() and (np.diff(after) > 0).all()


def test_stragglers_are_the_rounds_slowest_and_the_same_for_every_method():
    few, many = history(50, 2), history(50, 40)
    z = link.slowest(few)
    assert np.array_equal(z, link.slowest(few)) and not np.array_equal(z, link.slowest(few, seed=1))
    assert (link.slowest(many) >= z).all()  # the same two clients and others
    assert 1.5 < link.slowest(many).mean() < 2.8  # of 40 normal numbers the largest is 2.16
    one = {"up": 1e3, "down": 1e3, "latency": 2.0}
    calm = np.diff(link.time(few, **one), prepend=0)
    rough = np.diff(link.time(few, **one, stragglers=0.5), prepend=0)
    assert (rough - 2) / (calm - 2) == pytest.approx(np.exp(0.5 * z))  # the round trip is not


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
        ({"stragglers": -1.0}, "stragglers cannot be below 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(how, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        link.time(history(), **{"up": "1Mbit", "down": "1Mbit"} | how)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


def test_presets_are_links_with_a_source():
    for name, its in link.PRESETS.items():
        assert link.preset(name) is its and len(its.source) > 10
        assert link.time(history(), **its.asdict())[-1] > 0
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

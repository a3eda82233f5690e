"""How long a stored run would take on a given link: bytes become seconds.

Every client of a round has the link to itself and all send at once, so a round lasts as long as the
slowest of its clients:

    latency + stretch * (slower * computing + 8 * down / downlink + 8 * up / uplink)

with ``down`` and ``up`` the bytes of one client (the round's mean), ``computing`` a client's share
of the seconds that were measured, and ``stretch`` what the slowest of the round's clients needs of
the median's time: 1, or with stragglers a log-normal number. The server's own link, retransmitted
packets and headers below the messages are left out. A client is asked once a round; split learning
asks it once a batch, so its latency is counted too low.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arguments import checked, short
from .errors import pick
from .history import History
from .rng import numpy_generator

# bits, so that 1 kB is 8,000 of them; k, M and G are thousands
UNITS = {f"{k}{u}": n * b for k, n in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9))
         for u, b in (("bit", 1), ("B", 8))}  # fmt: skip
DURATIONS = {"ms": 1e-3, "s": 1.0, "min": 60.0}


@dataclass(frozen=True)
class Preset:
    """A link: speeds as seen from a client, latency as a round trip, and who says so."""

    up: str
    down: str
    latency: str
    source: str

    def asdict(self) -> dict[str, str]:
        """The arguments of ``time``."""
        return {"up": self.up, "down": self.down, "latency": self.latency}


_WPT = "WebPageTest, settings/connectivity.ini.sample"
PRESETS = {
    "LoRaWAN": Preset(
        "5470bit",
        "5470bit",
        "1s",
        "LoRaWAN Regional Parameters, EU863-870: data rate 5, first receive window after 1 s. The "
        "limit of 1 % of the time on air, which makes it a hundred times slower, is left out",
    ),
    "2G": Preset("32kbit", "35kbit", "1300ms", f"{_WPT}, 2G"),
    "3G": Preset("768kbit", "1.6Mbit", "300ms", f"{_WPT}, 3G"),
    "DSL": Preset("384kbit", "1.5Mbit", "50ms", f"{_WPT}, DSL"),
    "cable": Preset("1Mbit", "5Mbit", "28ms", f"{_WPT}, Cable"),
    "LTE": Preset("12Mbit", "12Mbit", "70ms", "WebPageTest, connection LTE"),
    "fibre": Preset("5Mbit", "20Mbit", "4ms", f"{_WPT}, FIOS"),
}


def _read(text: str | float, units: dict[str, float], what: str, unit: str) -> float:
    if isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text)
    else:
        found = re.fullmatch(r"\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([A-Za-z]+?)(?:/s)?\s*", str(text))
        name = found[2] if found else None
        if found is None or name not in units:
            raise ValueError(
                f"A {what} is a number with a unit, such as {unit}, not {short(text)}. "
                f"Units: {', '.join(units)}."
            )
        try:
            value = float(found[1]) * units[name]
        except ValueError:
            raise ValueError(f"A {what} such as {unit} was expected, not {short(text)}.") from None
    return value


def speed(text: str | float) -> float:
    """Bits a second of "1Mbit", "768kbit/s" or "100kB"; a number is bits a second already.

    ``ValueError`` for other units and for a speed that is not above 0.
    """
    value = _read(text, UNITS, "speed", "1Mbit")
    if not 0 < value < float("inf"):
        raise ValueError(f"The speed of a link must be above 0, not {short(text)}.")
    return value


def seconds(text: str | float) -> float:
    """Seconds of "50ms", "1s" or "2min"; a number is seconds already.

    ``ValueError`` for other units and for less than 0.
    """
    value = _read(text, DURATIONS, "latency", "50ms")
    if not 0 <= value < float("inf"):
        raise ValueError(f"A latency cannot be below 0, but it is {short(text)}.")
    return value


def preset(name: str) -> Preset:
    """A link by its name; ``ValueError`` with all names if there is none."""
    return pick(name, PRESETS, "link")


def slowest(history: History, seed: int = 0) -> np.ndarray:
    """Of each round the largest of its clients' standard normal numbers: [rounds].

    They are drawn by (seed, round, client), so that two methods meet the same stragglers.
    """
    return np.array(
        [
            max(numpy_generator(seed, "link", r["round"], k).normal() for k in r["clients"])
            for r in history.rows
        ]
    )


def shares(history: History) -> dict[str, np.ndarray]:
    """What the model needs of each round, for one client: bytes ``down`` and ``up``, ``computing``
    in seconds."""
    clients = np.array([max(1, len(row["clients"])) for row in history.rows])
    return {
        "down": history.bytes_down / clients,
        "up": history.bytes_up / clients,
        "computing": history.seconds / clients,
    }


@checked
def check(
    up: str | float,
    down: str | float,
    latency: str | float = 0.0,
    slower: float = 1.0,
    stragglers: float = 0.0,
) -> tuple[float, float, float]:
    """Bits a second up and down, and seconds of latency; ``ValueError`` for what cannot be."""
    for name, value in (("slower", slower), ("stragglers", stragglers)):
        if value < 0:
            raise ValueError(f"{name} cannot be below 0, but it is {short(value)}.")
    return speed(up), speed(down), seconds(latency)


@checked
def time(
    history: History,
    up: str | float,
    down: str | float,
    latency: str | float = 0.0,
    slower: float = 1.0,
    stragglers: float = 0.0,
    seed: int = 0,
) -> np.ndarray:
    """Seconds from the start to the end of each round, on this link: [rounds].

    ``up`` and ``down`` are a client's speeds, "768kbit" or bits a second; ``latency`` is a round
    trip, "50ms" or seconds. ``slower`` is how many times slower a client computes than the machine
    that was measured (0: computing takes no time). ``stragglers`` is the standard deviation of the
    logarithm of what clients need of the median's time.
    """
    uplink, downlink, trip = check(up, down, latency, slower, stragglers)
    its = shares(history)
    stretch = np.exp(stragglers * slowest(history, seed)) if stragglers else 1.0
    client = slower * its["computing"] + 8 * its["down"] / downlink + 8 * its["up"] / uplink
    return np.cumsum(trip + stretch * client)


def said(seconds: float) -> str:
    """A duration for people: 0.4 s, 32 s, 4.1 min, 2.5 h, 3.2 days."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def described(link: Mapping[str, Any]) -> str:
    """A link as a few words, for axes and heads: 1Mbit up, 10Mbit down, latency 50ms."""
    plain = {"latency": 0.0, "slower": 1.0, "stragglers": 0.0}
    words = [f"{link['up']} up", f"{link['down']} down"]
    return ", ".join(words + [f"{k} {link[k]}" for k, v in plain.items() if link.get(k, v) != v])

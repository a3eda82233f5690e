"""How long a stored run would take on a given link, and what its radio would use: bytes become
seconds and joules.

Every client of a round has the link to itself and all send at once, so a round lasts as long as the
slowest of its clients:

    latency + stretch * slower * computing + 8 * down / downlink + 8 * up / uplink

with ``down`` and ``up`` the bytes of one client (the round's mean), ``computing`` a client's share
of the seconds that were measured, and ``stretch`` what the slowest of the round's devices needs of
the median device's time: 1, or with stragglers what is expected of the largest of so many
log-normal numbers. The server's own link, retransmitted packets and headers below the messages are
left out. A client is asked once a round; split learning asks it once a batch, so its latency is
counted too low.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from .arguments import checked, short
from .history import History

UNITS = {  # bits, so that 1 kB is 8,000 of them; k, M and G are thousands
    "speed": {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
    | {"B": 8.0, "kB": 8e3, "MB": 8e6, "GB": 8e9},
    "latency": {"ms": 1e-3, "s": 1.0, "min": 60.0},
    "radio's energy for a byte": {"nJ": 1e-9, "uJ": 1e-6, "mJ": 1e-3, "J": 1.0},
}
QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([A-Za-z]*?)(?:/s)?\s*")


# Speeds as seen from a client, latency as a round trip: the arguments of ``time``.
PRESETS: dict[str, dict[str, Any]] = {
    # LoRaWAN Regional Parameters, EU863-870: data rate 5, first receive window after 1 s. The limit
    # of 1 % of the time on air, which makes it a hundred times slower, is left out.
    "LoRaWAN": {"up": "5470bit", "down": "5470bit", "latency": "1s"},
    # WebPageTest, settings/connectivity.ini.sample: 2G, 3G, DSL, Cable, FIOS; LTE is its connection
    "2G": {"up": "32kbit", "down": "35kbit", "latency": "1300ms"},
    "3G": {"up": "768kbit", "down": "1.6Mbit", "latency": "300ms"},
    "DSL": {"up": "384kbit", "down": "1.5Mbit", "latency": "50ms"},
    "cable": {"up": "1Mbit", "down": "5Mbit", "latency": "28ms"},
    "LTE": {"up": "12Mbit", "down": "12Mbit", "latency": "70ms"},
    "fibre": {"up": "5Mbit", "down": "20Mbit", "latency": "4ms"},
}
# What a client's radio uses for a byte, beyond being on: the arguments of ``energy``. A cable has
# no radio; what a client's wireless network uses is not in it.
RADIOS: dict[str, dict[str, Any]] = {
    # Semtech SX1276 data sheet: 29 mA to send at 13 dBm, 11.5 mA to receive; at 3.3 V, for the time
    # on air of a byte
    "LoRaWAN": {"up": "140uJ", "down": "55uJ"},
    # Balasubramanian et al. (2009), Energy consumption in mobile phones, Table 5: GSM, 0.036 J a
    # kilobyte of a download, taken for both ways
    "2G": {"up": "36uJ", "down": "36uJ"},
    # Huang et al. (2012), A close examination of 4G LTE networks, Table 4: mW for each Mbit/s
    "3G": {"up": "6.95uJ", "down": "0.98uJ"},
    "LTE": {"up": "3.51uJ", "down": "0.42uJ"},
}


def quantity(value: str | float, kind: str) -> float:
    """Bits a second, seconds or joules of a text such as "768kbit/s", "50ms" or "3.5uJ", by the
    ``kind`` that ``UNITS`` has; a number has that unit already. ``ValueError`` below 0."""
    if isinstance(value, str):
        text = QUANTITY.fullmatch(value)
        if text is None or text[2] not in UNITS[kind]:
            units = ", ".join(UNITS[kind])
            raise ValueError(f"A {kind} is a number with a unit, not {value!r}. Units: {units}.")
        number = float(text[1]) * UNITS[kind][text[2]]
    else:
        number = float(value)
    if not 0 <= number < math.inf or (kind == "speed" and number == 0):
        least = "above 0" if kind == "speed" else "0 or more"
        raise ValueError(f"A {kind} must be finite and {least}, not {short(value)}.")
    return number


@cache
def stretch(clients: int, stragglers: float) -> float:
    """What the slowest of so many devices, at most 10^9, is expected to need of the median device's
    time.

    A device needs exp(``stragglers`` * z), z standard normal. With Phi and phi its distribution and
    density, the largest of n has the mean ``n exp(s^2 / 2) * integral of Phi(z)^(n-1) phi(z - s)``,
    which is summed over a fixed grid: the same number everywhere, no chance in it.
    """
    if stragglers == 0:
        return 1.0
    z = np.linspace(stragglers - 9, stragglers + 9, 2001)
    below = 0.5 * (1 + np.array([math.erf(v / math.sqrt(2)) for v in z]))
    density = np.exp(-((z - stragglers) ** 2) / 2) / math.sqrt(2 * math.pi)
    mass = float((below ** (clients - 1) * density).sum() * (z[1] - z[0]))
    return clients * math.exp(stragglers**2 / 2) * mass


def shares(history: History) -> dict[str, np.ndarray]:
    """What the model needs of each round, for one client: bytes ``down`` and ``up``, ``computing``
    in seconds. ``ValueError`` for a history without rounds."""
    if not history.rows:
        raise ValueError("A history without rounds has no bytes and no seconds: run it first.")
    clients = np.array(_clients(history))
    return {
        "down": history.bytes_down / clients,
        "up": history.bytes_up / clients,
        "computing": history.seconds / clients,
    }


def _clients(history: History) -> list[int]:
    return [max(1, len(row["clients"])) for row in history.rows]


@checked
def check(
    up: str | float,
    down: str | float,
    latency: str | float = 0.0,
    slower: float = 1.0,
    stragglers: float = 0.0,
) -> tuple[float, float, float]:
    """Bits a second up and down, and seconds of latency; ``ValueError`` for what cannot be."""
    if slower < 0:
        raise ValueError(f"slower cannot be below 0, but it is {short(slower)}.")
    if not 0 <= stragglers <= 5:
        raise ValueError(f"stragglers must be 0 to 5, but it is {short(stragglers)}.")
    return quantity(up, "speed"), quantity(down, "speed"), quantity(latency, "latency")


def time(
    history: History,
    up: str | float,
    down: str | float,
    latency: str | float = 0.0,
    slower: float = 1.0,
    stragglers: float = 0.0,
) -> np.ndarray:
    """Seconds from the start to the end of each round on this link, [rounds].

    ``up`` and ``down`` are a client's speeds, "768kbit" or bits a second; ``latency`` is a round
    trip, "50ms" or seconds. The median device computes ``slower`` times as long as the machine that
    was measured; 0: computing takes no time. ``stragglers``, 0 to 5, says how much devices differ:
    the standard deviation of the logarithm of their times. A round waits for the slowest of those
    that took part. ``ValueError`` for what no link can have, and for a history without rounds.

    >>> row = {"bytes_up": 2000, "bytes_down": 0, "seconds": 4.0, "clients": [0, 1]}
    >>> time(History("fedavg", {}, [row]), up="1kB", down="1kB", latency="500ms")
    array([3.5])
    """
    uplink, downlink, trip = check(up, down, latency, slower, stragglers)
    each = shares(history)
    slowest = np.array([stretch(n, stragglers) for n in _clients(history)])
    computing = slower * each["computing"] * slowest
    return np.cumsum(trip + computing + 8 * each["down"] / downlink + 8 * each["up"] / uplink)


@checked
def energy(history: History, up: str | float, down: str | float) -> np.ndarray:
    """Joules that the radio of one of the round's clients has used so far, on average, [rounds];
    ``up`` and ``down`` are joules a byte, "3.5uJ" or a number. What it uses because it is on and
    what the device uses to compute are left out.

    >>> row = {"bytes_up": 2000, "bytes_down": 0, "seconds": 4.0, "clients": [0, 1]}
    >>> energy(History("fedavg", {}, [row]), up="2mJ", down="1mJ")
    array([2.])
    """
    each, kind = shares(history), "radio's energy for a byte"
    return np.cumsum(quantity(up, kind) * each["up"] + quantity(down, kind) * each["down"])


def described(link: Mapping[str, Any]) -> str:
    """A link as a few words, for axes and heads: 1Mbit up, 10Mbit down, latency 50ms."""
    plain = {"latency": 0.0, "slower": 1.0, "stragglers": 0.0}
    phrases = [f"{link['up']} up", f"{link['down']} down"]
    return ", ".join(phrases + [f"{k} {link[k]}" for k, v in plain.items() if link.get(k, v) != v])

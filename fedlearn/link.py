"""How long a run would take on a given link: bytes become seconds.

Every client of a round has the link to itself and all send at once, so a round lasts

    latency + slower * computing + 8 * down / downlink + 8 * up / uplink

with ``down`` and ``up`` the bytes of one client (the mean of the round), and
``computing`` a client's share of the measured seconds. The server's own link,
retransmitted packets and the headers below the messages are left out. A client is asked
once a round; split learning asks it once a batch, so its latency is counted too low.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import check_number, short
from .history import History

# Units in bits a second, where k, M and G are thousands, and in seconds.
SPEED = {
    "bit": 1.0,
    "kbit": 1e3,
    "Mbit": 1e6,
    "Gbit": 1e9,
    "B": 8.0,
    "kB": 8e3,
    "MB": 8e6,
    "GB": 8e9,
}
LATENCY = {"ms": 1e-3, "s": 1.0, "min": 60.0}
QUANTITY = re.compile(r"\s*([\d.]+(?:e[-+]?\d+)?)\s*([A-Za-z]+)(?:/s)?\s*")

# Speeds as seen from a client, latency as a round trip: the arguments of ``time``.
PRESETS: dict[str, dict[str, Any]] = {
    # LoRaWAN Regional Parameters, EU863-870: data rate 5, first receive window after 1
    # s. The limit of 1 % of the time on air, which makes it a hundred times slower, is
    # left out.
    "LoRaWAN": {"up": "5470bit", "down": "5470bit", "latency": "1s"},
    # WebPageTest, settings/connectivity.ini.sample: 2G, 3G, DSL, Cable, FIOS; LTE is
    # its connection
    "2G": {"up": "32kbit", "down": "35kbit", "latency": "1300ms"},
    "3G": {"up": "768kbit", "down": "1.6Mbit", "latency": "300ms"},
    "DSL": {"up": "384kbit", "down": "1.5Mbit", "latency": "50ms"},
    "cable": {"up": "1Mbit", "down": "5Mbit", "latency": "28ms"},
    "LTE": {"up": "12Mbit", "down": "12Mbit", "latency": "70ms"},
    "fibre": {"up": "5Mbit", "down": "20Mbit", "latency": "4ms"},
}


def quantity(value: str | float, units: Mapping[str, float]) -> float:
    """A text such as "768kbit/s" or "50ms" in the unit 1.0; a number has that unit
    already."""
    if not isinstance(value, str):
        return value
    match = QUANTITY.fullmatch(value)
    if match is None or match[2] not in units:
        allowed = ", ".join(units)
        raise ValueError(
            f"{short(value)} is no number with one of the units {allowed}."
        )
    return float(match[1]) * units[match[2]]


def check(
    up: str | float,
    down: str | float,
    latency: str | float = 0.0,
    slower: float = 1.0,
) -> tuple[float, float, float]:
    """Bits a second up and down, and seconds of latency; ``ValueError`` for an
    impossible value."""
    check_number("slower", slower, least=0)
    return (
        check_number("The uplink", quantity(up, SPEED), above=0),
        check_number("The downlink", quantity(down, SPEED), above=0),
        check_number("The latency", quantity(latency, LATENCY), least=0),
    )


def shares(history: History) -> dict[str, np.ndarray]:
    """For one client of each round: bytes ``down`` and ``up``, ``computing`` in
    seconds."""
    if not history.rows:
        raise ValueError("A history without rounds has no bytes and no seconds.")
    clients = np.array([max(1, len(row["clients"])) for row in history.rows])
    return {
        "down": history.bytes_down / clients,
        "up": history.bytes_up / clients,
        "computing": history.seconds / clients,
    }


def time(
    history: History,
    up: str | float,
    down: str | float,
    latency: str | float = 0.0,
    slower: float = 1.0,
) -> np.ndarray:
    """Seconds from the start to the end of each round on this link, [rounds].

    Parameters
    ----------
    history : History
        A run of at least one round.
    up, down : str or float
        A client's speeds, "768kbit" or bits a second.
    latency : str or float
        A round trip, "50ms" or seconds.
    slower : float
        A device computes so many times as long as the measured machine; 0: no time.

    Examples
    --------
    >>> row = {"bytes_up": 2000, "bytes_down": 0, "seconds": 4.0, "clients": [0, 1]}
    >>> time(History("fedavg", {}, [row]), up="1kB", down="1kB", latency="500ms")
    array([3.5])
    """
    uplink, downlink, trip = check(up, down, latency, slower)
    each = shares(history)
    sending = 8 * each["down"] / downlink + 8 * each["up"] / uplink
    return np.cumsum(trip + slower * each["computing"] + sending)


def described(link: Mapping[str, Any]) -> str:
    """A link in a few words, for axes and heads: 1Mbit up, 10Mbit down, latency
    50ms."""
    phrases = [f"{link['up']} up", f"{link['down']} down"]
    for name, default in {"latency": 0.0, "slower": 1.0}.items():
        if link.get(name, default) != default:
            phrases.append(f"{name} {link[name]}")
    return ", ".join(phrases)

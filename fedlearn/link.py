"""How long a run would take on a given link: bytes become seconds.

Every client of a round has the link to itself and all send at once, so a round lasts

    latency + slower * computing + 8 * down / downlink + 8 * up / uplink

with ``down`` and ``up`` the bytes of one client (the mean of the round), and
``computing`` a client's share of the measured seconds. The server's own link,
retransmitted packets and the headers below the messages are left out. A client is asked
once a round; split learning asks it once a batch, so its latency is counted too low.
"""

import numpy as np

from .errors import check_number
from .history import History

# Bits a second as seen from a client, and seconds of a round trip.
PRESETS = {
    # LoRaWAN Regional Parameters, EU863-870: data rate 5, first receive window after 1
    # s. The limit of 1 % of the time on air, which makes it a hundred times slower, is
    # left out.
    "LoRaWAN": {"up": 5470.0, "down": 5470.0, "latency": 1.0},
    # WebPageTest, settings/connectivity.ini.sample: 2G, 3G, DSL, Cable, FIOS; LTE is
    # its connection
    "2G": {"up": 32e3, "down": 35e3, "latency": 1.3},
    "3G": {"up": 768e3, "down": 1.6e6, "latency": 0.3},
    "DSL": {"up": 384e3, "down": 1.5e6, "latency": 0.05},
    "cable": {"up": 1e6, "down": 5e6, "latency": 0.028},
    "LTE": {"up": 12e6, "down": 12e6, "latency": 0.07},
    "fibre": {"up": 5e6, "down": 20e6, "latency": 0.004},
}


def check(
    up: float, down: float, latency: float = 0.0, slower: float = 1.0
) -> tuple[float, float, float]:
    """Bits a second up and down, and seconds of latency; ``ValueError`` for an
    impossible value."""
    check_number("slower", slower, minimum=0)
    return (
        check_number("up", up, above=0),
        check_number("down", down, above=0),
        check_number("latency", latency, minimum=0),
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
    up: float,
    down: float,
    latency: float = 0.0,
    slower: float = 1.0,
) -> np.ndarray:
    """Seconds from the start to the end of each round on this link, [rounds].

    Parameters
    ----------
    history : History
        A run of at least one round.
    up, down : float
        A client's speeds in bits a second; ``**PRESETS["LTE"]`` has both, and latency.
    latency : float
        Seconds of a round trip.
    slower : float
        A device computes so many times as long as the measured machine; 0: no time.

    Examples
    --------
    >>> row = {"bytes_up": 2000, "bytes_down": 0, "seconds": 4.0, "clients": [0, 1]}
    >>> time(History("fedavg", {}, [row]), up=8000, down=8000, latency=0.5)
    array([3.5])
    """
    up, down, latency = check(up, down, latency, slower)
    each = shares(history)
    sending = 8 * each["down"] / down + 8 * each["up"] / up
    return np.cumsum(latency + slower * each["computing"] + sending)

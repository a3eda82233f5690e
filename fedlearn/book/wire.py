"""Chapter 3, sending less: a moving picture, and the checks of the exercises."""

import math
from typing import Any

import numpy as np
import torch

from .check import TWICE, Reasons, number, pair, varied
from .drawings import drawing

# ---- one update, round after round ---------------------------------------------------

UPDATE = [-0.6, -0.3, 0.3, 0.1, -0.6, 0.1, 0.1, -0.4, 0.2, -0.5, -0.1, 0.1]
UPDATE += [-0.1, 0.1, 0.2, 0.8, -0.2, 0.1, 0.2, -0.2, -2.0, 1.0, -0.2, -0.2]
WIDTHS = range(1, 6)
COUNTS = range(2, 25, 2)
ROUNDS = range(1, 13)


def squeezed(x: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The largest entries in so many bits: their signs, or evenly spaced levels."""
    out = np.zeros_like(x)
    largest = np.argsort(-np.abs(x), kind="stable")[:count]
    v = x[largest]
    if bits == 1:
        out[largest] = np.where(v < 0, -1, 1) * np.abs(v).mean()
    else:
        step = np.ptp(v) / (2**bits - 1) or 1
        out[largest] = v.min() + step * np.rint((v - v.min()) / step)
    return out


def arrivals(bits: int, count: int) -> list[list[int]]:
    """[round][entry]: the mean of what arrived so far, in hundredths, if what was lost
    is sent in a later round."""
    update = np.array(UPDATE)
    error = np.zeros(24)
    total = np.zeros(24)
    rows = []
    for t in ROUNDS:
        message = squeezed(update + error, bits, count)
        error = update + error - message
        total = total + message
        rows.append(np.rint(100 * total / t).astype(int).tolist())
    return rows


def watch_update() -> dict[str, Any]:
    """An update of 24 numbers, squeezed, in twelve rounds."""
    return drawing(
        "wire/update",
        meant=UPDATE,
        heard=[[arrivals(bits, count) for count in COUNTS] for bits in WIDTHS],
        places=[math.ceil(math.log2(math.comb(24, count))) for count in COUNTS],
    )


# ---- exercises -----------------------------------------------------------------------


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_positions(answer: Any) -> Reasons:
    """(send, receive): send (x [n], k, seed) -> [k]; receive (values, n, seed) -> [n],
    n/k times the entries drawn. How a side draws from the seed is up to it."""
    yield pair(answer, "(send, receive)")
    send, receive = answer
    n = 40
    k = 10
    x = torch.rand(n, generator=seeded(7)) + 1
    before = x.clone()
    counts = torch.zeros(n)
    elsewhere = False
    for seed in range(20):
        # the two sides are two machines: only the seed is shared
        torch.manual_seed(1000 + seed)
        state = torch.get_rng_state()
        values = send(x, k, seed)
        elsewhere |= not torch.equal(torch.get_rng_state(), state)
        yield not torch.equal(x, before) and "send changes the tensor that it is given"
        if tuple(values.shape) != (k,):
            shape = list(values.shape)
            yield f"send returns the shape {shape}, not [{k}]: only the values travel"
        torch.manual_seed(2000 + seed)
        got = torch.as_tensor(receive(values, n, seed)).to(x.dtype)
        if tuple(got.shape) != (n,):
            yield f"receive returns the shape {list(got.shape)}, not [{n}]"
        arrived = got != 0
        if arrived.sum() < k:
            count = int(arrived.sum())
            yield f"only {count} of {k} entries come out: a position was drawn twice"
        counts += arrived
        if not torch.allclose(got[arrived], x[arrived] * n / k):
            if torch.allclose(got[arrived], x[arrived]):
                yield (
                    "on average over seeds k/n of x comes out: "
                    "each entry arrives only with probability k/n"
                )
            if elsewhere:
                yield (
                    "the positions come from the state of torch's global generator, "
                    "which the other side does not have; use the seed"
                )
            yield "what comes out is not n/k times the entry at the same place"
    if ((counts == 0) | (counts == 20)).all():
        yield "the positions are the same for every seed"
    for seed in range(20, 400):
        counts += torch.as_tensor(receive(send(x, k, seed), n, seed)) != 0
    if counts.min() < 55 or counts.max() > 145:  # 100 expected, standard deviation 8.7
        yield (
            "some entries are sent more often than others, so the mean "
            "over seeds is not x"
        )


@varied(per_cent=(1.0, [k / 100 for k in range(105, 600)]))
def ratio(per_cent: float) -> Any:
    p = per_cent / 100
    # of a position, in the best words
    bits = min(b + 1 / (1 - (1 - p) ** 2**b) for b in range(16))
    return number(
        32 / p / (bits + 1),
        {
            32 / p / bits: "each kept entry also costs the one bit of its sign",
            32 / p / 33: "the places take the bits of (3.5), not 32-bit numbers",
            32 / p: "that leaves out the positions",
            32 / p / 21: (
                "twenty bits name any place of a million; (3.5) needs fewer, since it "
                "counts the ways to choose all places at once"
            ),
            p * (bits + 1): (
                "that is the number of bits an entry; how many times less than 32 is it"
            ),
        },
        tolerance=0.02,
    )


def coin(answer: Any) -> Reasons:
    """(x, generator) -> each entry the smallest or the largest of x, with mean x."""
    yield not callable(answer) and "a function of x and a generator is asked for"

    def drawn(x: torch.Tensor, source: torch.Generator, count: int) -> torch.Tensor:
        return torch.stack([torch.as_tensor(answer(x, source)) for _ in range(count)])

    x = torch.randn(6, generator=seeded(7))
    state = torch.get_rng_state()
    before = x.clone()
    low = x.min()
    high = x.max()
    draws = 4000
    shape = torch.as_tensor(answer(x.clone(), seeded(1))).shape
    yield shape != x.shape and f"coin returns the shape {list(shape)} for [6]"
    got = drawn(x, seeded(1), draws)
    yield not torch.equal(x, before) and "coin changes the tensor that it is given"
    if not torch.equal(torch.get_rng_state(), state):
        yield "the randomness does not come from the generator that is given"
    yield not torch.equal(drawn(x, seeded(3), 20), drawn(x, seeded(3), 20)) and TWICE
    # low + (high - low) may miss high by the last bit: that is no other entry
    off = torch.minimum((got - low).abs(), (got - high).abs()) / (high - low)
    if not (off < 1e-5).all():
        yield "an entry becomes something else than the smallest or the largest"
    if torch.allclose(got, got[0].expand_as(got), atol=1e-5):
        yield (
            "every draw is the same: rounding to the nearer of the two is not unbiased"
        )
    q = (x - low) / (high - low)
    error = (high - low) * (q * (1 - q) / draws).sqrt()  # standard error of the mean
    if ((got.mean(0) - x).abs() > 5 * error + 1e-5).any():
        yield "the mean of many draws is not x"
    inner = (q > 0) & (q < 1)
    correlation = torch.corrcoef(got[:, inner].T)
    if (correlation - torch.eye(len(correlation))).abs().max() > 0.2:
        yield (
            "the entries go up and down together; each needs a uniform number of its "
            "own"
        )
    equal = torch.full((3,), 2.5)
    if not torch.allclose(drawn(equal, seeded(1), 1)[0].to(equal.dtype), equal):
        yield "a tensor of equal entries does not come back as it was"


EXERCISES = {"wire-random": random_positions, "wire-ratio": ratio, "wire-coin": coin}

"""Exercises of the chapter on sending less."""

from typing import Any

import torch

from . import number


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_positions(answer: Any) -> str | None:
    """(send, receive): send (x [n], k, seed) -> [k]; receive (values, n, seed) -> [n], n/k times
    the entries drawn. How a side draws from the seed is its own affair."""
    with torch.random.fork_rng(devices=[]):
        return _random_positions(answer)


def _random_positions(answer: Any) -> str | None:
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(callable(f) for f in answer):
        return "two functions are asked for: pass the pair (send, receive)"
    send, receive = answer
    n, k = 40, 10
    x = torch.rand(n, generator=seeded(7)) + 1
    before, places, elsewhere = x.clone(), torch.zeros(n), False
    for seed in range(20):
        torch.manual_seed(1000 + seed)  # the two sides are two machines: only the seed is shared
        state = torch.get_rng_state()
        values = send(x, k, seed)
        elsewhere |= not torch.equal(torch.get_rng_state(), state)
        if not torch.equal(x, before):
            return "send changes the tensor that it is given"
        if tuple(values.shape) != (k,):
            return f"send returns the shape {list(values.shape)}, not [{k}]: only the values travel"
        torch.manual_seed(2000 + seed)
        got = torch.as_tensor(receive(values, n, seed)).to(x.dtype)
        if tuple(got.shape) != (n,):
            return f"receive returns the shape {list(got.shape)}, not [{n}]"
        there = got != 0
        if there.sum() > k:
            return "more than k entries come out; all that were not sent are zero"
        if there.sum() < k:
            return f"only {int(there.sum())} of {k} entries come out: a position was drawn twice"
        places += there
        if not torch.allclose(got[there], x[there] * n / k):
            if torch.allclose(got[there], x[there]):
                return (
                    "on average over seeds k/n of x comes out: "
                    "each entry arrives only with probability k/n"
                )
            if elsewhere:
                return (
                    "the positions come from the state of torch's global generator, which the "
                    "other side does not have; use the seed"
                )
            return "what comes out is not n/k times the entry at the same place"
    if ((places == 0) | (places == 20)).all():
        return "the positions are the same for every seed"
    for seed in range(20, 400):
        places += torch.as_tensor(receive(send(x, k, seed), n, seed)) != 0
    if places.min() < 55 or places.max() > 145:  # 100 expected, standard deviation 8.7
        return "some entries are sent more often than others, so the mean over seeds is not x"
    return None


BITS = 6 + 1 / (1 - 0.99**64)  # a position at p = 0.01, with b* = 6


def ratio(answer: Any) -> str | None:
    """32 / (p (bits + 1)) at p = 0.01, within one per cent."""
    wrong = {
        BITS: "each kept entry also costs the one bit of its sign",
        33: "the positions are Rice words here, not 32-bit numbers",
        1: "that leaves out the positions",
        BITS + 32: "only the sign of a kept entry is sent, not its four bytes",
    }
    for bits, reason in wrong.items():
        if abs(float(answer) - 3200 / bits) <= 32 / bits:
            return reason
    if abs(float(answer) - 0.01 * (BITS + 1)) < 1e-3:
        return "that is the number of bits an entry; how many times less than 32 is it"
    return number(3200 / (BITS + 1), 0.01)(answer)


def coin(answer: Any) -> str | None:
    """(x, generator) -> each entry the smallest or the largest of x, with mean x."""
    if not callable(answer):
        return "a function of x and a generator is asked for"
    x, state = torch.randn(6, generator=seeded(7)), torch.get_rng_state()
    before, low, high, draws = x.clone(), x.min(), x.max(), 4000
    generator = seeded(1)
    got = torch.stack([torch.as_tensor(answer(x, generator)) for _ in range(draws)])
    if not torch.equal(x, before):
        return "coin changes the tensor that it is given"
    if got.shape != (draws, 6):
        return f"coin returns the shape {list(got.shape[1:])} for [6]"
    if not torch.equal(torch.get_rng_state(), state):
        return "the randomness does not come from the generator that is given"
    twice = [[torch.as_tensor(answer(x, g)) for _ in range(20)] for g in (seeded(3), seeded(3))]
    if not torch.equal(torch.stack(twice[0]), torch.stack(twice[1])):
        return (
            "the same generator gives another result the second time: "
            "use no other source of randomness"
        )
    # low + (high - low) may miss high by the last bit: that is no other entry
    off = torch.minimum((got - low).abs(), (got - high).abs()) / (high - low)
    if not (off < 1e-5).all():
        return "an entry becomes something else than the smallest or the largest"
    if torch.allclose(got, got[0].expand_as(got), atol=1e-5):
        return "every draw is the same: rounding to the nearer of the two is not unbiased"
    q = (x - low) / (high - low)
    error = (high - low) * (q * (1 - q) / draws).sqrt()  # standard error of the mean
    if ((got.mean(0) - x).abs() > 5 * error + 1e-5).any():
        return "the mean of many draws is not x"
    inner = (q > 0) & (q < 1)
    correlation = torch.corrcoef(got[:, inner].T)
    if (correlation - torch.eye(len(correlation))).abs().max() > 0.2:
        return "the entries go up and down together; each needs a uniform number of its own"
    same = torch.full((3,), 2.5)
    if not torch.allclose(torch.as_tensor(answer(same, seeded(1))).to(same.dtype), same):
        return "a tensor of equal entries does not come back as it was"
    return None


EXERCISES = {"wire-random": random_positions, "wire-ratio": ratio, "wire-coin": coin}

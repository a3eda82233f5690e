"""Answers to the chapter on sending less: right ones, and typical wrong ones with reasons."""

import random

import torch

import fedlearn as fl


def drawn(n, k, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:k]


def send(x, k, seed):
    return x[drawn(len(x), k, seed)]


def put(values, n, where):
    x = torch.zeros(n)
    x[where] = values
    return x


def receive(values, n, seed):
    return put(values * n / len(values), n, drawn(n, len(values), seed))


def doubles(n, k, seed):
    return torch.randint(n, (k,), generator=torch.Generator().manual_seed(seed))


def spoil(x, k, seed):
    values = send(x, k, seed)
    x.zero_()
    return values


def coin(x, generator):
    low, high = x.min(), x.max()
    if low == high:
        return x.clone()
    return torch.where(
        torch.rand(x.shape, generator=generator) < (x - low) / (high - low), high, low
    )


def levels(x, generator):
    low, high = x.min(), x.max()
    share = ((x - low) / (high - low)).nan_to_num(0.5)
    up = torch.rand(x.shape, generator=generator) < share
    return torch.where(up, high, low) + 0 * (x - low) / (high - low)


def send_globally(x, k, seed):
    torch.manual_seed(seed)
    return x[torch.randperm(len(x))[:k]]


def receive_globally(values, n, seed):
    torch.manual_seed(seed)
    return put(values * n / len(values), n, torch.randperm(n)[: len(values)])


def by_adding(x, generator):
    """The largest entry comes out of a sum, and so may be off by its last bit."""
    low, width = x.min(), x.max() - x.min()
    share = ((x - low) / width).nan_to_num(0.0)
    return low + width * (torch.rand(x.shape, generator=generator) < share)


def numpy_coin(x, generator):
    return coin(x, generator).numpy()


def coin_from_elsewhere(x, generator):
    low, high = x.min(), x.max()
    if low == high:
        return x.clone()
    up = torch.tensor([random.random() for _ in x]) < (x - low) / (high - low)
    return torch.where(up, high, low)


def pair(where):
    """The two sides, with the positions where(n, k, generator)."""

    def at(n, k, seed):
        return where(n, k, torch.Generator().manual_seed(seed))

    return (
        lambda x, k, seed: x[at(len(x), k, seed)],
        lambda v, n, seed: put(v * n / len(v), n, at(n, len(v), seed)),
    )


but_the_last = pair(lambda n, k, g: torch.randperm(n - 1, generator=g)[:k])
ring = pair(lambda n, k, g: (torch.arange(k) + torch.randint(n, (), generator=g)) % n)
block = pair(lambda n, k, g: torch.arange(k) + torch.randint(n - k + 1, (), generator=g))
double = (send, lambda v, n, s: receive(v, n, s).double())

RIGHT = {
    "wire-random": [(send, receive), (send_globally, receive_globally), double, ring],
    "wire-ratio": [32 / (0.01 * (6 + 1 / (1 - 0.99**64) + 1)), 351, 353],
    "wire-coin": [coin, by_adding, numpy_coin],
}
WRONG = [
    ("wire-random", send, "pair"),
    ("wire-random", (spoil, receive), "changes the tensor"),
    ("wire-random", (lambda x, k, s: x, receive), "only the values travel"),
    ("wire-random", (send, lambda v, n, s: v), "receive returns the shape"),
    ("wire-random", (lambda x, k, s: x[torch.randperm(len(x))[:k]], receive), "global generator"),
    ("wire-random", (send, lambda v, n, s: receive(v, n, s) + 1), "more than k"),
    (
        "wire-random",
        (
            lambda x, k, s: x[doubles(len(x), k, s)],
            lambda v, n, s: put(v, n, doubles(n, len(v), s)),
        ),
        "twice",
    ),
    ("wire-random", (send, lambda v, n, s: put(v, n, drawn(n, len(v), s))), "probability k/n"),
    (
        "wire-random",
        (send, lambda v, n, s: put(v * len(v) / n, n, drawn(n, len(v), s))),
        "not n/k times",
    ),
    (
        "wire-random",
        (lambda x, k, s: send(x, k, 0), lambda v, n, s: receive(v, n, 0)),
        "same for every seed",
    ),
    ("wire-random", but_the_last, "more often than others"),
    ("wire-random", block, "more often than others"),
    ("wire-ratio", 3200, "leaves out the positions"),
    ("wire-ratio", 3200 / 33, "not 32-bit"),
    ("wire-ratio", 394.7, "sign"),
    ("wire-ratio", 79.8, "four bytes"),
    ("wire-ratio", 0.0911, "bits an entry"),
    ("wire-ratio", 500, "too large"),
    ("wire-ratio", None, "TypeError"),
    ("wire-coin", 3, "function"),
    ("wire-coin", lambda x, g: x.mul_(0), "changes the tensor"),
    ("wire-coin", lambda x, g: coin(x, g)[:3], "shape"),
    ("wire-coin", lambda x, g: coin(x, None), "generator that is given"),
    ("wire-coin", coin_from_elsewhere, "no other source"),
    ("wire-coin", lambda x, g: x.sign(), "something else"),
    (
        "wire-coin",
        lambda x, g: torch.where(x > (x.min() + x.max()) / 2, x.max(), x.min()),
        "every draw is the same",
    ),
    (
        "wire-coin",
        lambda x, g: torch.where(torch.rand(x.shape, generator=g) < 0.5, x.max(), x.min()),
        "mean of many draws",
    ),
    (
        "wire-coin",
        lambda x, g: torch.where(
            torch.rand(1, generator=g) < (x - x.min()) / (x.max() - x.min()), x.max(), x.min()
        ),
        "together",
    ),
    ("wire-coin", levels, "equal entries"),
]


def test_a_check_leaves_the_global_generator_as_it_was():
    state = torch.get_rng_state()
    assert fl.check("wire-random", (send_globally, receive_globally)).right
    assert torch.equal(torch.get_rng_state(), state)

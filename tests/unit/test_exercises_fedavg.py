"""The chapter's checks accept right answers and say what is wrong with typical wrong ones."""

import random

import pytest
import torch

import fedlearn as fl


def average(states, samples):
    total = sum(samples)
    return {
        n: sum(m / total * s[n] for s, m in zip(states, samples, strict=True)) for n in states[0]
    }


def not_normalised(states, samples):
    return {n: sum(m * s[n] for s, m in zip(states, samples, strict=True)) for n in states[0]}


def unweighted(states, samples):
    return {n: sum(s[n] for s in states) / len(states) for n in states[0]}


def in_place(states, samples):
    mean = states[0]
    for n, t in mean.items():
        t *= samples[0] / sum(samples)
        for s, m in zip(states[1:], samples[1:], strict=True):
            t += m / sum(samples) * s[n]
    return mean


MESSAGE = 4 * (10_078 + 136) + 26 + 3 + 4 * 17 + 4


def participants(clients, share, generator):
    count = max(1, int(share * clients + 0.5))
    return sorted(torch.randperm(clients, generator=generator)[:count].tolist())


def with_repetition(clients, share, generator):
    count = max(1, int(share * clients + 0.5))
    return sorted(torch.randint(clients, (count,), generator=generator).tolist())


def rounds_half_to_even(clients, share, generator):
    return sorted(
        torch.randperm(clients, generator=generator)[: max(1, round(share * clients))].tolist()
    )


def nobody(clients, share, generator):
    return sorted(torch.randperm(clients, generator=generator)[: int(share * clients)].tolist())


def the_first(clients, share, generator):
    return list(range(max(1, int(share * clients + 0.5))))


def own_randomness(clients, share, generator):
    return sorted(random.sample(range(clients), max(1, int(share * clients + 0.5))))


def in_a_row(clients, share, generator):
    count, at = (
        max(1, int(share * clients + 0.5)),
        int(torch.randint(clients, (1,), generator=generator)),
    )
    return sorted((at + i) % clients for i in range(count))


def unsorted(clients, share, generator):
    return torch.randperm(clients, generator=generator)[
        : max(1, int(share * clients + 0.5))
    ].tolist()


@pytest.mark.parametrize(
    "exercise, answer",
    [
        ("fedavg-average", average),
        ("fedavg-average", lambda s, n: {k: t.double() for k, t in average(s, n).items()}),
        ("fedavg-bytes", MESSAGE * 1000),
        ("fedavg-participants", participants),
    ],
)
def test_right_answers(exercise, answer):
    assert fl.check(exercise, answer).right, fl.check(exercise, answer)


@pytest.mark.parametrize(
    "exercise, answer, reason",
    [
        ("fedavg-average", not_normalised, "do not sum to one"),
        ("fedavg-average", unweighted, "weigh by samples"),
        ("fedavg-average", in_place, "changes the states"),
        (
            "fedavg-average",
            lambda states, samples: average(states, samples[::-1]),
            "not the weighted mean",
        ),
        ("fedavg-average", lambda states, samples: average(states, samples)["bias"], "dictionary"),
        ("fedavg-bytes", MESSAGE * 500, "one direction"),
        ("fedavg-bytes", MESSAGE * 10_000, "only ten"),
        ("fedavg-bytes", 4 * 10_078 * 1000, "buffers and the envelope"),
        ("fedavg-bytes", 4 * (10_078 + 136) * 1000, "envelope is missing"),
        ("fedavg-bytes", MESSAGE * 1000 - 1, "too small"),
        ("fedavg-participants", with_repetition, "twice"),
        ("fedavg-participants", rounds_half_to_even, "should be 3 participants"),
        ("fedavg-participants", nobody, "at least one"),
        ("fedavg-participants", the_first, "always draws the same"),
        ("fedavg-participants", own_randomness, "no other source"),
        ("fedavg-participants", in_a_row, "independently"),
        ("fedavg-participants", unsorted, "ascending"),
    ],
)
def test_wrong_answers(exercise, answer, reason):
    verdict = fl.check(exercise, answer)
    assert not verdict.right and reason in verdict.reason, verdict

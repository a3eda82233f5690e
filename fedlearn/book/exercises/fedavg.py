"""Checks of the chapter on federated averaging."""

from collections.abc import Sequence
from typing import Any

import torch

from ...models import digits_cnn, state_of
from ...wire import Message, Schema, pack
from . import Function, number


def _average(answer: Function) -> str | None:
    """answer(states, samples) -> the mean of the states, weighted by samples."""
    generator = torch.Generator().manual_seed(0)
    samples = [30, 10, 60]
    states = [
        {n: torch.randn(s, generator=generator) for n, s in (("weight", (4, 3)), ("bias", (4,)))}
        for _ in samples
    ]
    given = [{n: t.clone() for n, t in state.items()} for state in states]
    mean = answer(given, list(samples))
    if not isinstance(mean, dict) or set(mean) != {"weight", "bias"}:
        return "the answer should be a dictionary with the same names as the states"
    if any(not torch.equal(a[n], b[n]) for a, b in zip(given, states, strict=True) for n in a):
        return "it changes the states it was given"

    def fits(weights: Sequence[float]) -> bool:
        right = {n: sum(w * s[n] for w, s in zip(weights, states, strict=True)) for n in mean}
        return all(
            mean[n].shape == t.shape
            and torch.allclose(mean[n].to(t.dtype), t, rtol=1e-4, atol=1e-4)
            for n, t in right.items()
        )

    if fits([m / 100 for m in samples]):
        return None
    if fits(samples):
        return "the weights do not sum to one: divide by the number of all samples"
    if fits([1 / 3] * 3):
        return "every client counts the same in it: weigh by samples"
    if fits([1] * 3):
        return "that is the sum of the states, not a weighted mean"
    if fits([m / 300 for m in samples]):
        return "it divides twice: the weights n_k / n already sum to one"
    return "the values are not the weighted mean"


def _bytes(answer: Any) -> str | None:
    """The bytes of 50 rounds of the digits network with 10 of 100 clients, both ways."""
    net = digits_cnn()
    state = state_of(net)
    parameters = 4 * sum(p.numel() for p in net.parameters())
    sections = {name: bytes(4 * t.numel()) for name, t in state.items()}
    message = len(
        pack(Message(0, 1, 0, 0, sections), Schema({n: tuple(t.shape) for n, t in state.items()}))
    )
    runs = 2 * 10 * 50
    numbers = sum(map(len, sections.values()))
    typical = {
        message * runs / 2: "that is one direction only",
        message * runs * 10: "only ten of the hundred clients take part in a round",
        message * runs / 50: "that is a single round",
        message * runs / 10: "ten clients take part in each round, not one",
        message * runs * 8: "that is in bits",
        parameters * runs: "the buffers and the envelope are missing",
        (message - numbers + parameters) * runs: "the buffers are missing",
        numbers * runs: "the envelope is missing",
    }
    return number(message * runs, wrong=typical)(answer)


def _participants(answer: Function) -> str | None:
    """answer(clients, share, generator) -> clients drawn without repetition, ascending."""
    for clients, share, count in (
        (10, 1.0, 10),
        (10, 0.5, 5),
        (10, 0.2, 2),
        (10, 0.01, 1),
        (5, 0.5, 3),
        (7, 0.2, 1),
    ):
        drawn = [int(k) for k in answer(clients, share, torch.Generator().manual_seed(1))]
        where = f"{clients} clients and a share of {share}"
        if not drawn:
            return f"with {where} nobody takes part: at least one must"
        if len(drawn) != count:
            return f"with {where} there should be {count} participants, not {len(drawn)}"
        if len(set(drawn)) != len(drawn):
            return f"with {where} a client is drawn twice"
        if min(drawn) < 0 or max(drawn) >= clients:
            return f"clients are numbered from 0 to {clients - 1}"
        if drawn != sorted(drawn):
            return "the numbers are not in ascending order"
    before = torch.get_rng_state()
    try:
        torch.manual_seed(0)
        first = [list(answer(20, 0.5, torch.Generator().manual_seed(s))) for s in range(400)]
        torch.manual_seed(1)
        if [list(answer(20, 0.5, torch.Generator().manual_seed(s))) for s in range(5)] != first[:5]:
            return (
                "the same generator gives another choice the second time: "
                "use no other source of randomness"
            )
    finally:
        torch.set_rng_state(before)
    if all(choice == first[0] for choice in first):
        return "it always draws the same clients: use the generator"
    often = torch.bincount(torch.tensor(first).flatten().long(), minlength=20)
    if often.min() < 140 or often.max() > 260:  # 200 expected, standard deviation 10
        return "some clients are drawn more often than others"
    pairs = sum(1 in choice and 0 in choice for choice in first)
    if not 55 <= pairs <= 135:  # 95 expected, standard deviation 8.5
        return (
            "clients 0 and 1 are not drawn independently: "
            "all sets of clients must be equally likely"
        )
    return None


EXERCISES = {
    "fedavg-average": _average,
    "fedavg-bytes": _bytes,
    "fedavg-participants": _participants,
}

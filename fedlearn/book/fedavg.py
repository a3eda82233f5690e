"""Chapter 1, federated averaging: its loop, and the checks of the exercises."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F

from ..models import digits_cnn, state_of
from ..wire import Message, Schema, pack
from .check import Function, Reasons, compared, drawn, number, varied


# Later lessons import this loop. A test holds the cell of the chapter equal to it.
def train(net, images, labels, lr=0.1, epochs=1, batch=16):
    """One client's night: minibatch SGD, in place."""
    optimizer = torch.optim.SGD(net.parameters(), lr)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch):
            loss = F.cross_entropy(net(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# ---- exercises -----------------------------------------------------------------------


def average(answer: Function) -> Reasons:
    """answer(states, samples) -> the mean of the states, weighted by samples."""
    samples = [30, 10, 60]
    states = [
        {"weight": drawn(4, 3, seed=2 * k), "bias": drawn(4, seed=2 * k + 1)}
        for k in range(3)
    ]
    copies = [{n: t.clone() for n, t in state.items()} for state in states]
    mean = answer(copies, list(samples))
    if not isinstance(mean, dict) or set(mean) != {"weight", "bias"}:
        yield "the answer should be a dictionary with the same names as the states"
    for copy, state in zip(copies, states, strict=True):
        if any(not torch.equal(copy[name], t) for name, t in state.items()):
            yield "it changes the states it was given"
    otherwise = "the values are not the weighted mean"
    yield any(mean[n].shape != t.shape for n, t in states[0].items()) and otherwise

    def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        return torch.cat([t.flatten() for t in tensors])

    def weighted(weights: Sequence[float]) -> torch.Tensor:
        return sum(w * flat(s.values()) for w, s in zip(weights, states, strict=True))  # type: ignore

    wrong = {
        "the weights do not sum to one: divide by the number of all samples": weighted(
            samples
        ),
        "every client counts the same in it: weigh by samples": weighted([1 / 3] * 3),
        "that is the sum of the states, not a weighted mean": weighted([1] * 3),
        "it divides twice: the weights n_k / n already sum to one": weighted(
            [m / 300 for m in samples]
        ),
    }
    right = weighted([m / 100 for m in samples])
    yield compared(flat(mean[n] for n in states[0]), right, wrong, otherwise, 1e-4)


@varied(rounds=(50, range(11, 400)), clients_in_a_round=(10, range(2, 90)))
def total_bytes(rounds: int, clients_in_a_round: int) -> Any:
    """The bytes of the digits network with some of 100 clients in a round, both
    ways."""
    net = digits_cnn()
    state = state_of(net)
    parameters = 4 * sum(p.numel() for p in net.parameters())
    sections = {name: bytes(4 * t.numel()) for name, t in state.items()}
    schema = Schema({n: tuple(t.shape) for n, t in state.items()})
    message = len(pack(Message(0, 1, 0, 0, sections), schema))
    participants = clients_in_a_round
    messages = 2 * participants * rounds
    total = message * messages
    numbers = sum(map(len, sections.values()))
    wrong = {
        total / 2: "that is one direction only",
        total * 100 / participants: (
            f"only {participants} of the hundred clients take part in a round"
        ),
        total / rounds: "that is a single round",
        total / participants: (
            f"{participants} clients take part in each round, not one"
        ),
        8 * total: "that is in bits",
        parameters * messages: "the buffers and the envelope are missing",
        (message - numbers + parameters) * messages: "the buffers are missing",
        numbers * messages: "the envelope is missing",
    }
    return number(total, wrong)


CASES = (
    (10, 1.0, 10),
    (10, 0.5, 5),
    (10, 0.2, 2),
    (10, 0.01, 1),
    (5, 0.5, 3),
    (7, 0.2, 1),
)


def participants(answer: Function) -> Reasons:
    """answer(clients, C, generator) -> clients drawn without repetition, ascending."""
    for clients, share, count in CASES:
        draw = answer(clients, share, torch.Generator().manual_seed(1))
        chosen = [int(k) for k in islice(draw, clients + 1)]
        case = f"{clients} clients and a share of {share}"
        yield not chosen and f"with {case} nobody takes part: at least one must"
        if len(chosen) != count:
            yield f"with {case} there should be {count} participants, not {len(chosen)}"
        yield len(set(chosen)) != len(chosen) and f"with {case} a client is drawn twice"
        if min(chosen) < 0 or max(chosen) >= clients:
            yield f"clients are numbered from 0 to {clients - 1}"
        yield chosen != sorted(chosen) and "the numbers are not in ascending order"

    def draws(count: int) -> list[list[int]]:
        return [
            list(answer(20, 0.5, torch.Generator().manual_seed(s)))
            for s in range(count)
        ]

    torch.manual_seed(0)
    first = draws(400)
    torch.manual_seed(1)
    if draws(5) != first[:5]:
        yield (
            "the same generator gives another choice the second time: "
            "use no other source of randomness"
        )
    if all(choice == first[0] for choice in first):
        yield "it always draws the same clients: use the generator"
    often = torch.bincount(torch.tensor(first).flatten().long(), minlength=20)
    if often.min() < 140 or often.max() > 260:  # 200 expected, standard deviation 10
        yield "some clients are drawn more often than others"
    pairs = sum(1 in choice and 0 in choice for choice in first)
    if not 55 <= pairs <= 135:  # 95 expected, standard deviation 8.5
        yield (
            "clients 0 and 1 are not drawn independently: "
            "all sets of clients must be equally likely"
        )


EXERCISES = {
    "fedavg-average": average,
    "fedavg-bytes": total_bytes,
    "fedavg-participants": participants,
}

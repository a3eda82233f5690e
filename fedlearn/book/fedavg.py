"""Chapter 1, federated averaging: two clients in a plane, the time of a round, and the
checks of the exercises."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ..models import digits_cnn, state_of
from ..wire import Message, Schema, pack
from .check import Function, Reasons, compared, drawn, number, varied

if TYPE_CHECKING:
    from .show import Chart


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


BOWLS = (
    (2.0, 0.3),
    (0.3, 2.0),
)  # curvatures of two losses, each steep where the other is flat
OPTIMA = (
    (-1.0, 0.5),
    (1.0, -0.5),
)  # of the clients, if they are as far apart as the slider goes
START = (1.6, 1.7)
RATE = 0.3
ROUNDS = 8
STEPS = 20


def two_bowls(number: str) -> "Chart":
    """FedAvg of two clients in a plane, F_k(w) = sum_i a_ki (w_i - d c_ki)^2 / 2, under
    sliders for the round, the local steps and d: a round's two walks, the means so far,
    and the optimum."""
    from .show import chart
    from .vega import BLUE, BOLD, GREEN, GREY, ONE, ORANGE, alt, layered, series, slider

    # of the plane; clients
    axes = (0, 1)
    both = (0, 1)
    params: list[dict[str, Any]] = [
        slider("round", "round", 1, 0, ROUNDS, 1),
        slider("steps", "local steps", 4, 1, STEPS, 1),
        slider("apart", "how far apart the clients are", 1, 0, 1, 0.1),
    ]
    for i in (
        axes
    ):  # a step leaves the share 1 - rate * a of the way to the client's optimum
        curved = [BOWLS[k][i] for k in both]
        best = sum(BOWLS[k][i] * OPTIMA[k][i] for k in both) / sum(curved)
        left = [f"pow({1 - RATE * a}, steps)" for a in curved]
        ends = " + ".join(f"(1 - {left[k]}) * {OPTIMA[k][i]} * apart" for k in both)
        params += [
            {"name": f"left{i}", "expr": f"({left[0]} + {left[1]}) / 2"},
            {"name": f"end{i}", "expr": f"({ends}) / (2 - {left[0]} - {left[1]})"},
            {"name": f"best{i}", "expr": f"{best} * apart"},
        ]

    def model(t: str, i: int) -> str:
        return f"(end{i} + pow(left{i}, {t}) * ({START[i]} - end{i}))"

    def walk(i: int) -> str:
        a, c = ([table[k][i] for k in both] for table in (BOWLS, OPTIMA))
        optimum = f"({c}[datum.k] * apart)"
        left = f"({[1 - RATE * x for x in a]}[datum.k])"
        return (
            f"{optimum} + pow({left}, datum.s) * ({model('(round - 1)', i)} "
            f"- {optimum})"
        )

    def ring(i: int) -> str:
        a, c = ([table[k][i] for k in both] for table in (BOWLS, OPTIMA))
        turned = f"{('cos', 'sin')[i]}(datum.angle)"
        return f"{c}[datum.k] * apart + sqrt(2 * datum.level / {a}[datum.k]) * {turned}"

    kinds = ["client 1", "client 2", "their mean", "best for both"]
    sides = [
        {"scale": alt.Scale(domain=list(domain), nice=False), "title": title}
        for domain, title in (
            ((-2.6, 2.6), "first weight"),
            ((-1.9, 2.1), "second weight"),
        )
    ]
    x = alt.X("x:Q", **sides[0])
    y = alt.Y("y:Q", **sides[1])
    legend = {"orient": "top", "title": None, "labelFontSize": 12, "columns": 4}
    legend |= {"symbolSize": 90, "symbolOpacity": 1}
    colour = series(alt.Color, "kind", kinds, [BLUE, ORANGE, GREEN, GREY], legend)
    shape = series(
        alt.Shape, "kind", kinds, ["circle", "square", "cross", "diamond"], legend
    )
    steps = (
        alt.Chart(alt.sequence(0, 2 * (STEPS + 1), as_="n"))
        .transform_calculate(
            k=f"floor(datum.n / {STEPS + 1})", s=f"datum.n % {STEPS + 1}"
        )
        .transform_filter("datum.s <= steps && round > 0")
        .transform_calculate(x=walk(0), y=walk(1), kind=f"{kinds}[datum.k]")
    )
    means = (
        alt.Chart(alt.sequence(0, ROUNDS + 1, as_="t"))
        .transform_filter("datum.t <= round")
        .transform_calculate(
            x=model("datum.t", 0), y=model("datum.t", 1), kind=f"'{kinds[2]}'"
        )
    )
    rings = (
        alt.Chart(alt.sequence(0, 2 * 3 * 41, as_="n"))
        .transform_calculate(k="floor(datum.n / 123)", r="floor(datum.n / 41)")
        .transform_calculate(
            angle="datum.n % 41 * PI / 20", level="[0.1, 0.4, 0.9][datum.r % 3]"
        )
        .transform_calculate(x=ring(0), y=ring(1), kind=f"{kinds}[datum.k]")
    )
    distance = (
        f"sqrt(pow({model('round', 0)} - best0, 2) + "
        f"pow({model('round', 1)} - best1, 2))"
    )
    words = (
        f"'after round ' + round + ': ' + format({distance}, '.2f') + ' "
        f"from the best for both'"
    )
    plane = layered(
        300,
        params,
        [
            rings.mark_line(strokeWidth=1, opacity=0.55, clip=True, aria=False).encode(
                x, y, colour, detail="r:N", order="n:Q"
            ),
            steps.mark_line(strokeWidth=2).encode(x, y, colour, order="s:Q"),
            steps.mark_point(filled=True, size=28, opacity=1).encode(
                x, y, colour, shape
            ),
            means.mark_line(strokeWidth=2, strokeDash=[2, 3]).encode(
                x, y, colour, order="t:Q"
            ),
            means.mark_point(filled=True, size=130, opacity=1).encode(
                x, y, colour, shape, tooltip=[alt.Tooltip("t:N", title="round")]
            ),
            alt.Chart(ONE)
            .transform_calculate(x="best0", y="best1", kind=f"'{kinds[3]}'")
            .mark_point(filled=True, size=170, opacity=1)
            .encode(x, y, colour, shape),
            alt.Chart(ONE)
            .mark_text(**BOLD, baseline="bottom", text=alt.ExprRef(words))
            .encode(x=alt.value(6), y=alt.value(294)),
        ],
        grid=False,
    )
    return chart(
        number,
        plane,
        caption="""Two clients, two weights. Thin rings: heights of the two bowls.
        Lines: the local steps of this round. Crosses: the mean after each round.
        Diamond: the point where the sum of both losses is smallest.""",
        alt="""A plane with two sets of rings. From a common start one walk bends to the
        middle of the first rings, one to the middle of the second. The mean of their
        ends comes closer to a diamond from round to round. With many local steps it
        stops half-way between the middles of the rings, away from the diamond.""",
        units={"round": "rounds", "steps": "steps", "apart": "of the largest distance"},
    )


# ---- exercises -----------------------------------------------------------------------


def average(answer: Function) -> Reasons:
    """answer(states, samples) -> the mean of the states, weighted by samples."""
    samples = [30, 10, 60]
    states = [
        {"weight": drawn(4, 3, seed=2 * k), "bias": drawn(4, seed=2 * k + 1)}
        for k in range(3)
    ]
    given = [{n: t.clone() for n, t in state.items()} for state in states]
    mean = answer(given, list(samples))
    if not isinstance(mean, dict) or set(mean) != {"weight", "bias"}:
        yield "the answer should be a dictionary with the same names as the states"
    if any(
        not torch.equal(a[n], b[n])
        for a, b in zip(given, states, strict=True)
        for n in a
    ):
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
    drawn = clients_in_a_round
    runs = 2 * clients_in_a_round * rounds
    numbers = sum(map(len, sections.values()))
    typical = {
        message * runs / 2: "that is one direction only",
        message
        * runs
        * 100
        / drawn: f"only {drawn} of the hundred clients take part in a round",
        message * runs / rounds: "that is a single round",
        message * runs / drawn: f"{drawn} clients take part in each round, not one",
        message * runs * 8: "that is in bits",
        parameters * runs: "the buffers and the envelope are missing",
        (message - numbers + parameters) * runs: "the buffers are missing",
        numbers * runs: "the envelope is missing",
    }
    return number(message * runs, typical)


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
        given = answer(clients, share, torch.Generator().manual_seed(1))
        chosen = [int(k) for k in islice(given, clients + 1)]
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
    same = all(choice == first[0] for choice in first)
    yield same and "it always draws the same clients: use the generator"
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

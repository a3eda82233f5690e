"""Chapter 11, choosing a method: what a fleet pays, a contest of all methods with one budget of
tuning, a grid of mixes of their parts, an explorer of each, and the checks of the exercises.

``python -m fedlearn.book.choosing contest --jobs 2`` runs what ``data/choosing/chapter.yaml``
states and ``data/choosing/grid.json`` does not have yet: each method on each split of digits and
number of clients, first short runs with three values of one of its options, judged on validation
images, then whole runs with the best of them. ``... choosing mixes`` runs what is missing of
``data/choosing/mixes.json``: every method, every swap of one part, and mixes drawn at random, under
two splits, first short runs with three learning rates, judged likewise, then whole runs with the
best; then the most accurate, the front and the methods with four more seeds, and what trained badly
with a much smaller rate. Both may be stopped at any time. ``up`` and ``down`` are bytes of one
client, in one round of the contest, on average, and in all rounds of a mix.
"""

import itertools
import json
import math
import random
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import link
from ..core import Averaging
from ..core.method import KINDS as PARTS
from ..history import History
from ..lab import results
from ..lab.experiment import Experiment
from ..lab.recipes import TRIAL_SEED as APART
from .check import Function, number, varied
from .grids import Row, chapter_file, command_line, fill, stored, trained

if TYPE_CHECKING:
    import pandas

    from .show import Shown

# ---- my fleet ------------------------------------------------------------------------------------

# What a family sends, those that lose least in a round first: bytes an entry of the model up and
# down, and bytes a picture up and down. FedGKT sends 16 maps of 32 x 32 and ten logits; of what RPN
# pools, nine tenths are in 3 x 3 kernels.
FAMILIES: dict[str, tuple[float, float, float, float]] = {
    "dense: FedAvg": (4, 4, 0, 0),
    "8 bits up: QSGD": (1, 4, 0, 0),
    "features: FedGKT": (0, 0, 4 * (16 * 32 * 32 + 10), 4 * 10),
    "signs: signSGD": (0.125, 0.125, 0, 0),
    "top-k, memory: STC": (0.03, 0.03, 0, 0),
    "pooling: RPN": (0.8, 0.8, 0, 0),
}
PICTURES, FASTER, SERVER, NIGHT = 500, 4, 1e9, 8  # a client; down against up; bits/s; hours
# for a client's bytes of one round, `sent` up and `heard` down
HOURS = (
    f"rounds * 8 * (max(sent / uplink, clients * sent / {SERVER:.0f})"
    f" + max(heard / uplink / {FASTER}, clients * heard / {SERVER:.0f})) / 3600"
)


def fleet() -> dict[str, Any]:
    """The explorer: gigabytes and hours of each family under sliders for model, clients, uplink and
    rounds. The first three that end within a night are named."""
    from .vega import BLUE, DOTTED, GREY, LASTS, ONE, SPEED, alt, heading, layered, slider

    keys = ("up", "down", "pictureUp", "pictureDown")
    values = [
        {"family": name, "order": k} | dict(zip(keys, sends, strict=True))
        for k, (name, sends) in enumerate(FAMILIES.items())
    ]
    form = "format({0}, ',.2~r')"
    expressions = {
        "clients": "round(pow(10, fleet))",
        "uplink": "pow(10, speed + 6)",
        "saysSize": f"{form.format('pow(10, size)')} + ' MB'",
        "saysFleet": form.format("clients"),
        "saysSpeed": SPEED.format("speed"),
    }
    params = [
        slider("size", "size of the model", 1.6, -1, 3, 0.1),
        slider("fleet", "clients", 3, 0.5, 4, 0.1),
        slider("speed", "uplink", 0, -2, 3, 0.1),
        slider("rounds", "rounds", 100, 10, 1000, 10),
        *({"name": name, "expr": text} for name, text in expressions.items()),
    ]
    weighs = "datum.{0} * pow(10, size + 6) / 4 + datum.picture{1} * " + str(PICTURES)
    shared = (
        alt.Chart(alt.InlineData(values=values))
        .transform_calculate(sent=weighs.format("up", "Up"), heard=weighs.format("down", "Down"))
        .transform_calculate(
            hours=HOURS.replace("sent", "datum.sent").replace("heard", "datum.heard"),
            bytes="clients * rounds * (datum.sent + datum.heard)",
        )
        .transform_calculate(fits=f"datum.hours <= {NIGHT} ? 1 : 0")
        .transform_window(place="sum(fits)", sort=[{"field": "order"}], frame=[None, 0])
        .transform_calculate(
            named="datum.fits && datum.place <= 3",
            x="clamp(log(datum.hours) / LN10, -2, 4.5)",
            says=f"format(datum.bytes, '.2~s') + 'B, ' + ({LASTS.format('(3600 * datum.hours)')})",
        )
    )
    marks = {"1 min": 1 / 60, "1 h": 1, "1 day": 24, "1 month": 720, "1 year": 8760}
    at = {round(math.log10(hours), 3): name for name, hours in marks.items()}
    axis = alt.Axis(
        title=None,
        values=[*at],
        labelExpr=f"({json.dumps({f'{k}': v for k, v in at.items()})})[datum.value]",
        labelOverlap=True,
    )
    side = alt.Scale(domain=[-2, 8.5], nice=False)  # with room for the words on the right
    x = alt.X("x:Q", axis=axis, scale=side)
    y = alt.Y("family:N", title=None, sort=[*FAMILIES], axis=alt.Axis(labelLimit=150, grid=False))
    named = alt.when("datum.named")
    night = alt.XDatum(math.log10(NIGHT), type="quantitative")
    layers = [
        alt.Chart(ONE).mark_rule(**DOTTED, strokeWidth=1.5).encode(night),
        alt.Chart()
        .mark_point(filled=True, opacity=1)
        .encode(
            *(x, y),
            color=named.then(alt.value(BLUE)).otherwise(alt.value(GREY)),
            shape=named.then(alt.value("diamond")).otherwise(alt.value("circle")),
            size=named.then(alt.value(220)).otherwise(alt.value(60)),
            tooltip=["family:N", "says:N"],
        ),
        alt.Chart()
        .transform_filter("datum.named")
        .mark_text(dx=-15, fontSize=13, fontWeight="bold")
        .encode(x, y, text="place:Q"),
        alt.Chart()
        .mark_text(align="right", fontSize=11, color=GREY)
        .encode(y, x=alt.value("width"), text="says:N"),
    ]
    title = "saysSize + ', ' + saysFleet + ' clients, ' + saysSpeed + ' up, ' + rounds + ' rounds'"
    return layered(180, params, layers, shared, title=heading(title))


# ---- the contest: its runs -----------------------------------------------------------------------

CONTEST = ("split", "clients")
CELL = (*CONTEST, "method")
RUN = (*CELL, "value", "seed", "short")
COLUMNS = (*RUN, "accuracy", "up", "down", "seconds")
COMMAND = "python -m fedlearn.book.choosing contest"
Cell = tuple[str, int, str]


@cache
def spec() -> dict[str, Any]:
    """What ``data/choosing/chapter.yaml`` states."""
    return chapter_file("choosing")


def contests() -> Iterator[Cell]:
    """Every (split, number of clients, method), in the order in which they are run. First FedAvg
    with one client, who has all images: training without federation."""
    stated = spec()
    yield next(iter(stated["splits"])), 1, "FedAvg"
    yield from itertools.product(stated["splits"], stated["clients"], stated["methods"])


def tuning(method: str) -> tuple[str, list[float]]:
    """The option of a method that is tuned, and its three values."""
    stated = spec()
    [option] = stated["methods"][method].get("tune", stated["tune"]).items()
    return option


def experiment(*run: Any) -> Experiment:
    """What states a run, the values of ``RUN``. A short one sees no test images."""
    split, clients, method, value, seed, short = run
    stated, row = spec(), spec()["methods"][method]
    args = stated["shared"] | (stated["short"] if short else {})
    options = stated["networks"].get(method, {}) | row.get("options", {})
    options |= {tuning(method)[0]: value}
    args |= {"partition": stated["splits"][split], "clients": clients, "seed": seed}
    return Experiment(method=row["method"], options=options, **args)


def played(run: tuple) -> list[tuple]:
    """One run -> its row. One that diverges, or that cannot be, has no accuracy."""
    e = experiment(*run)
    try:
        history = trained(e, engine="auto", threads=1)
    except ValueError:
        return [(*run, [], None, None, None)]
    count = [max(1, len(row["clients"])) for row in history.rows]
    columns = (history.bytes_up, history.bytes_down, history.seconds)
    up, down, seconds = (float((column / count).mean()) for column in columns)
    accuracy = [round(row["accuracy"], 4) for row in history.rows if row["accuracy"] is not None]
    return [(*run, accuracy, round(up, 1), round(down, 1), round(seconds, 5))]


def late(curve: Sequence[float]) -> float:
    """The mean of the last quarter of a run's accuracies, one a round."""
    rows = [{"round": t, "accuracy": accuracy} for t, accuracy in enumerate(curve, 1)]
    return History("", rows=rows).late_accuracy()


def best(rows: Iterable[Row]) -> dict[Cell, float]:
    """(split, clients, method) -> the value whose short run was best by ``late``, of equal ones the
    largest."""
    found: dict[Cell, tuple[float, float]] = {}
    for row in rows:
        if row["short"] and row["accuracy"]:
            key: Any = tuple(row[k] for k in CELL)
            found[key] = max(found.get(key, (-1.0, 0.0)), (late(row["accuracy"]), row["value"]))
    return {key: value for key, (_, value) in found.items()}


def short_runs() -> list[tuple]:
    """The runs that choose the methods' values, of a seed that does not compete."""
    apart = APART + min(spec()["seeds"])
    return [(*case, value, apart, True) for case in contests() for value in tuning(case[-1])[1]]


def whole_runs(rows: list[Row]) -> list[tuple]:
    """The runs with the best values, the first seed of all before the second of any."""
    values = best(rows)
    cases = [case for case in contests() if case in values]
    return [(*case, values[case], seed, False) for seed in spec()["seeds"] for case in cases]


# ---- the contest: what is read of it -------------------------------------------------------------

runs = cache(lambda: stored("choosing")[0])


def entries(short: bool = False) -> "pandas.DataFrame":
    """The stored runs, a row each; ``short`` ones are those that chose the methods' values.

    ``rounds`` are those after which the accuracy was measured, ``accuracy`` what was seen there;
    ``up`` and ``down`` are bytes, ``seconds`` computing, of one client in one round, on average.
    ``least`` is the smallest ``seconds`` of all such runs of this method with so many clients: runs
    share their machine with others, and the least disturbed comes nearest. Runs that diverged are
    not there.
    """
    import pandas

    kept = [row for row in runs() if row["accuracy"] and row["short"] == short]
    frame = pandas.DataFrame(kept, columns=list(COLUMNS)).drop(columns="short")
    frame["rounds"] = [[*range(1, len(curve) + 1)] for curve in frame["accuracy"]]
    frame["least"] = frame.groupby(["clients", "method"])["seconds"].transform("min")
    return frame


def history(row: Any) -> History:
    """A row of ``entries`` as a history, all clients together: what the package measures of a
    history it measures of it. All its rounds cost the same, the mean of the run's own. The command
    is that of the first seed."""
    n = int(row.clients)
    e = experiment(row.split, n, row.method, row.value, 0, False)
    task = {k: getattr(e, k) for k in ("dataset", "clients", "partition", "train")}
    task |= {"network": e.options.get("network", e.options.get("edge", e.network))}
    meta = {"task": task | {"seed": row.seed}, "label": row.method, "settings": vars(e.settings)}
    command = shlex.join(["fedlearn", "run", *e.arguments()])
    meta |= {"provenance": {"command": command}, "chosen_on": "validation"}
    same = {"loss": None, "bytes_up": n * row.up, "bytes_down": n * row.down, "refused": {}}
    same |= {"seconds": n * row.least, "clients": list(range(n))}
    curve = zip(row.rounds, row.accuracy, strict=True)
    return History(e.method, meta, [{"round": t, "accuracy": a, **same} for t, a in curve])


def tables() -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """The whole runs as ``results.tables`` has runs and rounds."""
    whole, rounds = results.tables(map(history, entries().itertuples()))
    return whole.assign(file="data/choosing/grid.json"), rounds


# ---- who is ahead --------------------------------------------------------------------------------

TIME, BYTES, ROUNDS = "time on this link", "bytes of one client", "rounds"
Scores = Mapping[str, Sequence[float]]  # method -> a number a seed, the higher the better


def affordable(runs: "pandas.DataFrame", equal: str, on: str = "3G", slower: float = 1) -> Any:
    """How many looks of each run lie within what 5.5 rounds of FedAvg cost in bytes, or in time on
    a link; all of them if the rounds are equal."""
    cost = runs["up"] + runs["down"] if equal == BYTES else 0 * runs["up"]
    if equal == TIME:
        up, down, latency = link.check(**link.PRESETS[on])
        cost = latency + slower * runs["least"] + 8 * runs["up"] / up + 8 * runs["down"] / down
    fedavg = cost.where(runs["method"] == "FedAvg").groupby([runs[k] for k in CONTEST])
    budget = 5.5 * fedavg.transform("mean") * (1 + 1e-9)
    looks = zip(runs["rounds"], cost, budget, strict=True)
    return [sum(t * each <= most for t in rounds) for rounds, each, most in looks]


def scores(*equal: Any) -> "pandas.DataFrame":
    """What the methods, a column each, reached within the budget of ``affordable``: a row for each
    seed of each contest, (split, clients, seed). Who cannot pay for a round has nothing."""
    whole = entries().query("clients > 1")
    curves = zip(whole["accuracy"], affordable(whole, *equal), strict=True)
    whole["score"] = [curve[k - 1] if k else 0.0 for curve, k in curves]
    keys = [whole[k] for k in (*CONTEST, "seed", "method")]
    return whole["score"].groupby(keys, sort=False).first().unstack()[[*spec()["methods"]]]


def outranks(a: Sequence[float], b: Sequence[float]) -> bool:
    """Is the mean of ``a`` above that of ``b`` by more than three standard errors of their
    difference?"""
    error = math.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b))
    return float(np.mean(a) - np.mean(b)) > 3 * error


def unbeaten(scores: Scores) -> set[str]:
    """Those that nobody outranks."""
    every = scores.values()
    return {m for m, score in scores.items() if not any(outranks(other, score) for other in every)}


# ---- the contest: pictures -----------------------------------------------------------------------

# link.time for a round; up and down are powers of ten of Mbit/s, latency is in ms
SECONDS = (
    "latency / 1000 + slower * {row}.sec"
    " + 8 * {row}.down / pow(10, down + 6) + 8 * {row}.up / pow(10, up + 6)"
)
# what one of two budgets costs a round: FedAvg's (`fedavg`) or a line's (`datum`)
COST = f"(equal == '{ROUNDS}' ? 1 : equal == '{BYTES}' ? {{row}}.up + {{row}}.down : {SECONDS})"


def lines(frame: "pandas.DataFrame") -> list[dict[str, Any]]:
    """For the explorer, a line a method, split and number of clients: what a round costs, and the
    accuracies, mean, lowest and highest of the seeds."""
    federated = frame[frame["clients"] > 1]
    rows: list[dict[str, Any]] = []
    for case, runs in federated.groupby(list(CELL), sort=False):
        split, clients, method = case  # type: ignore[misc]
        curves, first = np.array(runs["accuracy"].tolist()), runs.iloc[0]
        row = {"split": split, "clients": int(clients), "method": method}
        row |= {way: round(float(runs[way].mean())) for way in ("up", "down")}
        row |= {"sec": round(float(first["least"]), 5), "last": first["rounds"][-1]}
        row |= {"seeds": len(runs)}
        row |= {k: getattr(curves, k)(0).round(3).tolist() for k in ("mean", "min", "max")}
        rows.append(row)
    return rows


def rivals(guess: int | None = None) -> dict[str, Any]:
    """The explorer: who is how accurate within a budget of time, bytes or rounds, as a list whose
    order moves with the link. ``guess`` is the place of FedAvg that the reader expects; without it
    FedAvg is hidden until the reader asks to see it."""
    from . import vega as v
    from .vega import BLUE, GREY, LASTS, alt, choice, slider

    stated, values = spec(), lines(entries())
    places = len(stated["methods"])
    if guess is not None and not 1 <= guess <= places:
        raise ValueError(f"FedAvg's place is a number from 1 to {places}, not {guess!r}.")
    costs = {
        f"{r['split']}|{r['clients']}": {k: r[k] for k in ("up", "down", "sec", "last")}
        for r in values
        if r["method"] == "FedAvg"
    }
    named = {k: link.check(**preset) for k, preset in link.PRESETS.items()}
    speeds = {
        k: {"up": math.log10(u) - 6, "down": math.log10(d) - 6, "latency": 1000 * s}
        for k, (u, d, s) in named.items()
    }
    amount = (
        f"equal == '{ROUNDS}' ? format(limit, '.2~r') + ' rounds' : equal == '{BYTES}' ? "
        f"format(limit, '.3~s') + 'B of one client' : {LASTS.format('limit')}"
    )
    params = [
        slider("guess", "your guess: place of FedAvg", guess or 1, 1, places, 1),
        v.tick("reveal", "show FedAvg", guess is not None),
        choice("split", "split", [*stated["splits"]], [*stated["splits"]][-1], "select"),
        choice("clients", "clients", stated["clients"]),
        choice("equal", "equal", [TIME, BYTES, ROUNDS], TIME),
        slider("budget", "budget", -0.56, -3, 0.5, 0.02),  # 5.5 of 20 rounds
        choice("link", "link", [*speeds], "3G"),
        slider("slower", "device slower", 1, 0, 50, 1),
    ]
    expressions = {k: f"({json.dumps(speeds)})[link].{k}" for k in ("up", "down", "latency")}
    expressions |= {
        "fedavg": f"({json.dumps(costs)})[split + '|' + clients]",
        "limit": f"pow(10, budget) * fedavg.last * {COST.format(row='fedavg')}",
        "saysBudget": f"format(pow(10, budget), '.2~p') + ' of FedAvg: ' + ({amount})",
        "saysSlower": "format(slower, '.0f') + ' times'",
    }
    params += [{"name": name, "expr": text} for name, text in expressions.items()]
    fedavg, over = "datum.method == 'FedAvg'", "limit / datum.cost >= datum.last + 1"
    bold = {"test": "datum.value == 'FedAvg'", "value": "bold"}
    y = alt.Y("method:N", title=None, sort={"field": "order", "op": "max", "order": "descending"})
    weight = {"condition": bold, "value": "normal"}
    y = y.axis(labelLimit=180, labelFontSize=11, ticks=False, grid=False, labelFontWeight=weight)

    def x(field: str) -> alt.X:  # with room for words on the right
        along = alt.X(f"{field}:Q", title="test accuracy").axis(values=[0, 0.2, 0.4, 0.6, 0.8, 1])
        return along.scale(domain=[0, 1.28], nice=False)

    colour = alt.when(fedavg).then(alt.value(BLUE)).otherwise(alt.value(GREY))
    filled = alt.when(over).then(alt.value("transparent")).when(fedavg).then(alt.value(BLUE))
    filled = filled.otherwise(alt.value(GREY))
    shape = alt.when(fedavg).then(alt.value("diamond")).otherwise(alt.value("circle"))
    small = {"fontSize": 11, "color": GREY}
    known = alt.Chart().transform_filter("datum.done > 0")
    asked = f"datum.place == min(guess, reveal ? {places} : {places - 1})"
    guessed = alt.Chart().transform_filter(asked)
    layers = [
        known.mark_rule(strokeWidth=2, opacity=0.5).encode(
            x("lowest"), alt.X2("highest"), y, color=colour
        ),
        known.mark_point(size=60, strokeWidth=2, opacity=1).encode(
            *(x("accuracy"), y),
            color=colour,
            fill=filled,
            shape=shape,
            tooltip=["method:N", "seeds:N", "accuracy:N", "lowest:N", "highest:N", "done:N"],
        ),
        alt.Chart()
        .mark_text(align="right", dx=-2, **small)
        .encode(y, x=alt.value("width"), text="says:N"),
        guessed.mark_text(align="left", dx=4, fontWeight="bold", **small).encode(
            y, x=alt.value(0), text=alt.value("◂ your guess")
        ),
    ]
    shared = (
        alt.Chart(alt.InlineData(values=values))
        .transform_filter("datum.split == split && datum.clients == clients")
        .transform_filter(f"reveal || !({fedavg})")
        .transform_calculate(
            cost=COST.format(row="datum"),
            done="min(datum.last, floor(limit / datum.cost + 1e-9))",
            accuracy="datum.done > 0 ? datum.mean[datum.done - 1] : null",
            lowest="datum.done > 0 ? datum.min[datum.done - 1] : null",
            highest="datum.done > 0 ? datum.max[datum.done - 1] : null",
            order="datum.done > 0 ? datum.accuracy : -1",
            says="datum.done + ' of ' + datum.last",
        )
        .transform_window(**v.numbered_rows("place", {"field": "order", "order": "descending"}))
    )
    return v.layered(17 * places, params, layers, shared, title=v.heading("'within ' + saysBudget"))


def gaps(equal: str) -> "pandas.DataFrame":
    """By how many points the methods, a column each, are above FedAvg in all contests."""
    reached = 100 * scores(equal)
    return reached.drop(columns="FedAvg").sub(reached["FedAvg"], axis=0)


def verdict(points: Sequence[float]) -> int:
    """1 if leads, one a seed, are ahead by ``results.paired``, -1 if behind, 0 if neither."""
    lead = results.paired(dict(enumerate(points)), dict.fromkeys(range(len(points)), 0.0))
    return lead.sure * (1 if lead.mean > 0 else -1)


def duels(number: str) -> "Shown":
    """Leads over FedAvg with one main class a client and ten clients: a dot a seed."""
    from ..plot import COLOURS, axes
    from .show import figure

    panels = []
    for equal in (ROUNDS, BYTES):
        points = gaps(equal).loc["one main class", 10]
        points = points[points.mean().sort_values(kind="stable").index]
        ax = axes(size=(4.6, 5.4))
        ax.axvline(0, color="#7a828e", linewidth=1)
        for k, name in enumerate(points):
            mark, colour = "o", "#7a828e"
            if found := verdict(points[name]):
                mark, colour = ("D", COLOURS[0]) if found > 0 else ("s", COLOURS[1])
            face = "white" if mark == "o" else colour
            ax.plot(points[name], [k] * len(points), mark, color=colour, mfc=face, ms=4)
        ax.set_yticks(range(points.shape[1]), points, fontsize=9)
        ax.set(xlim=(-90, 30), title=f"equal {equal.split()[0]}", xlabel="points above FedAvg")
        panels.append(ax)
    return figure(
        number,
        panels,
        caption="""By how many points each method is above FedAvg: a dot a seed, five seeds. By
        their interval, diamonds are ahead and squares behind; hollow: it contains zero. Digits, one
        main class a client, ten clients, twenty rounds.""",
        alt="""Two panels of methods, each with five dots. With equal rounds one row of diamonds is
        just right of zero, and many rows of squares are left of it. With equal bytes seven rows of
        diamonds are farther right, those of FedGKT and signSGD on top.""",
    )


def standing(names: Sequence[str] = ()) -> "pandas.DataFrame":
    """In how many of the contests a method, or each of ``names``, is ahead of FedAvg and in how
    many behind: "4 : 1". First who leads most often at equal bytes."""
    import pandas

    heads = {"equal rounds": ROUNDS, "equal bytes": BYTES, "on 3G": TIME}
    found = {head: gaps(equal).groupby(list(CONTEST)).agg(verdict) for head, equal in heads.items()}
    counts = {head: its.agg(_ahead_and_behind) for head, its in found.items()}
    balance = found["equal bytes"].sum()
    balance = balance[sorted(names, key=[*balance.index].index)] if names else balance
    first = balance.sort_values(ascending=False, kind="stable").index
    return pandas.DataFrame(counts).loc[first].rename_axis("method").reset_index()


def _ahead_and_behind(verdicts: "pandas.Series") -> str:
    return f"{(verdicts > 0).sum()} : {(verdicts < 0).sum()}"


# ---- mixes of parts ------------------------------------------------------------------------------

MIXING = "python -m fedlearn.book.choosing mixes"
SPLITS = ("iid", "dirichlet:0.1")
RATES = (0.3, 1.0, 3.0)  # times the learning rate that the optimizer has in its method
COUNT, LENGTH, SHORT, CLIENTS, BEST, SEEDS = 500, 20, 10, 10, 50, 5
KINDS = tuple(PARTS)
SLOWER, POOR = min(RATES) / 10, 0.7  # what trains so badly is tried once more, with that rate
MIX_RUN = (*KINDS, "split", "rate", "seed")
MIX_COLUMNS = (*MIX_RUN, "accuracy", "up", "down")
Mix = tuple[str, ...]  # for each kind of part a method that has it


@cache
def methods() -> dict[str, Averaging]:
    """The methods that are six parts, by name, and what their options make another method of."""
    from .. import methods as known

    by_name = {name: make() for name, make in known.METHODS.items()}
    by_name["fedfusion, personal"] = known.fedfusion(personal=True)
    return {name: m for name, m in by_name.items() if isinstance(m, Averaging)}


def distinct(kind: str) -> list[tuple[str, Any]]:
    """(name of the first method that has it, part) for each different part of a kind."""
    names: dict[Any, str] = {}
    for name, method in methods().items():
        names.setdefault(getattr(method, kind), name)
    return [(name, part) for part, name in names.items()]


@cache
def choices(kind: str) -> dict[str, Any]:
    """The parts of a kind by name: those of the methods, and uplinks with coders of no method."""
    from ..parts import Lossy, Update, Uplink
    from ..wire import EDEN, TernGrad

    coders: dict[str, Any] = {"eden, 1 bit": EDEN(1), "eden, 2 bits": EDEN(2)}
    coders["terngrad"] = TernGrad()
    more = {name: Uplink(Update(), Lossy(coder)) for name, coder in coders.items()}
    return dict(distinct(kind)) | (more if kind == "uplink" else {})


def mix_of(**parts: str) -> Mix:
    """Six parts by the methods that they are from; FedAvg's where none is named."""
    return tuple(parts.get(kind, "fedavg") for kind in KINDS)


def build(mix: Sequence[str], rate: float = 1.0) -> Averaging:
    """The method of these parts; ``ValueError`` if they do not fit."""
    parts = {k: choices(k)[name] for k, name in zip(KINDS, mix, strict=True)}
    parts["optimizer"] = replace(parts["optimizer"], lr=rate * parts["optimizer"].lr)
    return methods()["fedavg"].but(**parts)


def refusal(mix: Sequence[str]) -> str | None:
    """Why a mix cannot be built, in one sentence; None if it can."""
    try:
        build(mix)
    except ValueError as error:
        return str(error)
    return None


@cache
def methods_by_mix() -> dict[Mix, str]:
    """The methods, each a mix whose parts are named by the first method that has them; of methods
    that are the same mix the first."""
    names = {kind: {part: name for name, part in distinct(kind)} for kind in KINDS}
    by_mix: dict[Mix, str] = {}
    for name, method in methods().items():
        by_mix.setdefault(tuple(names[kind][getattr(method, kind)] for kind in KINDS), name)
    return by_mix


def mixes() -> list[Mix]:
    """Those of the grid, all of which can be built: methods, single-part swaps, and others drawn at
    random."""
    known = list(methods_by_mix())

    def candidates() -> Iterator[Mix]:
        yield from known
        yield from (mix_of(uplink=up) for up in choices("uplink"))
        for mix, i in itertools.product(known, range(len(KINDS))):
            yield mix_of(**{KINDS[i]: mix[i]})
            yield (*mix[:i], "fedavg", *mix[i + 1 :])
        dice = random.Random(0)
        while True:
            yield tuple(dice.choice(list(choices(kind))) for kind in KINDS)

    grid: dict[Mix, None] = {}
    every = candidates()
    while len(grid) < COUNT:
        if refusal(mix := next(every)) is None:
            grid[mix] = None
    return list(grid)


def mixed(run: tuple) -> list[tuple]:
    """One run -> its row. A short one, of the seed ``APART``, sees no test images, and has the mean
    of its last quarter. A mix that this task cannot have, or that diverges, has accuracy None."""
    *mix, split, rate, seed = run
    short = seed == APART
    task = {"partition": split, "clients": CLIENTS, "seed": seed, "validation": short}
    e = Experiment(**task, rounds=SHORT if short else LENGTH, batch_size=16)
    try:
        history = trained(e, build(mix, rate), threads=1)
    except ValueError:
        return [(*run, None, None, None)]
    up, down = (round(float(b.sum()) / CLIENTS) for b in (history.bytes_up, history.bytes_down))
    accuracy = history.late_accuracy() if short else history.final["accuracy"]
    return [(*run, round(accuracy, 4), up, down)]


def mixed_rows(runs: Iterable[tuple]) -> list[Row]:
    """Runs of ``mixed``, made here and now."""
    return [dict(zip(MIX_COLUMNS, row, strict=True)) for run in runs for row in mixed(run)]


def mix_tries() -> list[tuple]:
    """The short runs, which choose the mixes' rates."""
    every = itertools.product(mixes(), RATES, SPLITS)
    return [(*mix, split, rate, APART) for mix, rate, split in every]


def mixed_frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    """The runs that trained, a row each; ``best`` is the rate whose short run was best, of equal
    ones the largest, and ``rates`` says how many of them trained."""
    import pandas

    key = ["split", *KINDS]
    table = pandas.DataFrame(rows, columns=list(MIX_COLUMNS)).dropna(subset="accuracy")
    table = table.astype({"accuracy": float, "up": int, "down": int})
    tries = table[table["seed"] == APART].sort_values(["accuracy", "rate"], kind="stable")
    return table.join(tries.groupby(key)["rate"].agg(best="last", rates="size"), on=key)


def whole_mixes(rows: Sequence[Row]) -> Iterator[tuple]:
    """The first whole run of each mix, with its best rate."""
    tries = mixed_frame(rows).query("seed == @APART and rate == best")
    for run in tries[list(MIX_RUN[:-1])].itertuples(index=False):
        yield (*run, 0)


def mixtures(rows: Sequence[Row] | None = None) -> "pandas.DataFrame":
    """The grid, a row a mix and split, each at the learning rate that was best on validation
    images.

    The six parts; ``method`` if the mix is one; ``rate``, and ``rates``, how many of them trained;
    ``accuracy`` on test images with seed 0, and ``slower``, the same with the rate ``SLOWER``, if
    that was tried; ``up``, ``down`` and their sum ``bytes`` of one client in all rounds; ``again``
    and ``spread``, mean and standard deviation of the accuracy with the other seeds, and ``seeds``,
    how many these are. A mix that trained at no rate has no row.
    """
    key = ["split", *KINDS]
    table = mixed_frame(stored("choosing/mixes")[0] if rows is None else rows)
    table["bytes"] = table["up"] + table["down"]
    whole = table.query("rate == best")
    grid = whole.query("seed == 0").drop(columns=["seed", "best"]).set_index(key)
    grid["slower"] = table.query("rate == @SLOWER").set_index(key)["accuracy"]
    others = whole.query("0 < seed < @SEEDS").groupby(key)["accuracy"]
    grid[["again", "spread", "seeds"]] = others.agg(["mean", "std", "count"]).reindex(grid.index)
    grid = grid.fillna({"seeds": 0}).astype({"seeds": int, "rates": int}).reset_index()
    named = grid[list(KINDS)].itertuples(index=False, name=None)
    return grid.assign(method=[methods_by_mix().get(mix, "") for mix in named])


def pareto(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """The rows that no other row beats, cheapest first: more accurate than all that cost as much or
    less. Of several that are equal in both the first one stands for all."""
    ordered = table.sort_values(["bytes", "accuracy"], ascending=[True, False], kind="stable")
    before = ordered["accuracy"].cummax().shift(fill_value=-1.0)
    return ordered[ordered["accuracy"] > before]


def again(rows: list[Row]) -> Iterator[tuple]:
    """With the other seeds, at the rate that was their best: of each split the most accurate mixes,
    those on the front, and the methods."""
    import pandas

    for _, table in mixtures(rows).groupby("split", sort=False):
        best = table.sort_values("accuracy", ascending=False, kind="stable").head(BEST)
        chosen = pandas.concat([best, pareto(table), table[table["method"] != ""]])
        for run in chosen.drop_duplicates(list(KINDS))[[*KINDS, "split", "rate"]].to_numpy():
            yield from ((*run, seed) for seed in range(1, SEEDS))


def slower(rows: list[Row]) -> Iterator[tuple]:
    """With a tenth of the smallest rate: FedAvg, FedAvg with Adam, and what is ``POOR`` where
    clients differ, but for FedPM's network, which learns nothing without FedPM's uplink."""
    split = SPLITS[-1]
    table = mixtures(rows).query("split == @split and model != 'fedpm' and accuracy < @POOR")
    poor = table[list(KINDS)].itertuples(index=False, name=None)
    every = dict.fromkeys([mix_of(), mix_of(optimizer="fedpm"), *poor])
    yield from ((*mix, split, SLOWER, 0) for mix in every)


def in_words(mix: Sequence[str]) -> str:
    """A mix in words: the parts that are not FedAvg's, or the method that it is."""
    parts = [f"{k} of {n}" for k, n in zip(KINDS, mix, strict=True) if n != "fedavg"]
    return methods_by_mix().get(tuple(mix), "; ".join(parts))


Rule = tuple[str, list[str], str, list[tuple[str, str]]]


@cache
def rules() -> list[Rule]:
    """What parts need of others: kind, the parts of it that need it, what it is in words, and
    (kind, part) of all that give it."""
    every = [(kind, name, part) for kind in KINDS for name, part in choices(kind).items()]
    takers: dict[tuple[str, Any], list[str]] = {}
    for kind, name, part in every:
        for need in part.needs:
            takers.setdefault((kind, need), []).append(name)
    table: list[Rule] = []
    for (kind, need), names in sorted(takers.items(), key=repr):
        givers = [(k, n) for k, n, part in every if k != kind and isinstance(part, need)]
        phrase = "the {} of {}".format(*givers[0]) if len(givers) == 1 else need.__name__
        table.append((kind, names, phrase, givers))
    return table


# ---- the explorer of mixes -----------------------------------------------------------------------

START: Mix = ("fed_kgf", "fedmmd", "fedpm", "eden, 2 bits", "stc", "stc")
DRAWN = (*KINDS, "split", "method", "accuracy", "bytes", "rate", "front")


def _refused() -> str:
    """Why the mix of the menus cannot be built, as a Vega expression; an empty string if it can."""
    text = "''"
    for kind, names, phrase, givers in reversed(rules()):
        kinds = {k: [n for other, n in givers if other == k] for k, _ in givers}
        given = " || ".join(f"indexof({json.dumps(parts)}, {k}) >= 0" for k, parts in kinds.items())
        unmet = f"indexof({json.dumps(names)}, {kind}) >= 0 && !({given})"
        message = f"'Refused: the {kind} of ' + {kind} + '\\nneeds {phrase}.'"
        text = f"({unmet} ? {message} : {text})"
    return text


def mixing() -> dict[str, Any]:
    """Accuracy against the bytes of one client for all mixes of a split: six menus choose one, a
    diamond beside the methods that its parts are from and the Pareto front. FedAvg is alone until
    the reader asks for the mixes."""
    from .vega import BLUE, GREEN, ORANGE, SKY, WORDS, alt, choice, layered, tick

    table = mixtures()
    best = [index for split in SPLITS for index in pareto(table[table["split"] == split]).index]
    shown = table.assign(bytes=(table["bytes"] / 1000).round(1), front=table.index.isin(best) + 0)
    text = shown[list(DRAWN)].to_csv(index=False, lineterminator="\n")
    parse = dict.fromkeys(("accuracy", "bytes", "rate", "front"), "number")
    data = alt.InlineData(values=text, format={"type": "csv", "parse": parse})
    x = alt.X("bytes:Q", title=f"kB of one client, up and down, {LENGTH} rounds")
    ends = [float(shown["bytes"].min()), float(shown["bytes"].max())]
    x = x.scale(type="log", nice=False, padding=12, domain=ends)
    x = x.axis(format="~s", values=[10, 20, 50, 100, 200, 500, 1000, 2000, 5000])
    y = alt.Y("accuracy:Q", title=f"accuracy after {LENGTH} rounds")
    y = y.scale(domain=[0.5, 1.13], nice=False).axis(values=[0.5, 0.6, 0.7, 0.8, 0.9, 1])
    tips = [f"{k}:N" for k in KINDS] + [
        alt.Tooltip("accuracy:Q", format=".3f"),
        alt.Tooltip("bytes:Q", title="kB", format=",.0f"),
        alt.Tooltip("rate:N", title=f"best of rates {', '.join(f'{r:g}' for r in RATES)}"),
    ]

    def points(test: str, shape: str, size: int, colour: str, opacity: float = 1) -> alt.Chart:
        look = {"shape": shape, "size": size, "filled": True, "clip": True, "color": colour}
        look |= {"aria": shape == "circle"}  # which every point has; the others may be empty
        chart = alt.Chart().transform_filter(test).mark_point(**look, opacity=opacity)
        return chart.encode(x, y, tooltip=tips)

    last = "(datum.rival > datum.own ? 'best for no more bytes: ' + format(datum.rival, '.3f')"
    last += " : 'none is as good for fewer bytes')"
    share = "format(100 * datum.at / datum.base, '.3~g') + '% of its bytes'"
    chosen = f"'chosen ' + format(datum.own, '.3f') + ' for ' + {share} + '\\n' + {last}"
    missing = (
        f"({_refused()} || 'Not trained: it can be built, but is none\\nof the grid\\'s mixes')"
    )
    says = f"(!reveal ? '' : '\\n' + (datum.at ? {chosen} : {missing}))"
    says = f"'FedAvg ' + format(datum.accuracy, '.3f') + {says}"
    fedavg = alt.Chart().transform_filter("datum.method == 'fedavg'")  # a row of each split

    def names(test: str, align: str, dx: int, dy: int) -> alt.Chart:
        look = WORDS | {"align": align, "dx": dx, "dy": dy, "clip": True}
        chart = alt.Chart().transform_filter(f"datum.source && {test}").mark_text(**look)
        return chart.encode(x, y, text="method:N")

    layers = [
        points("datum.bytes > 0", "circle", 24, BLUE, 0.5),
        alt.Chart()
        .transform_filter("datum.front")
        .mark_line(interpolate="step-after", color=GREEN, clip=True, aria=False, strokeWidth=2)
        .encode(x, y, order="bytes:Q"),
        points("datum.source", "square", 90, SKY),
        points("datum.chosen", "diamond", 240, ORANGE),
        names("datum.method != 'fedavg'", "right", -7, 9),
        names("datum.method == 'fedavg'", "left", 7, -10),
        fedavg.transform_calculate(says=says)
        .mark_text(**WORDS, baseline="top", fontWeight="bold", lineBreak="\n", lineHeight=17)
        .encode(x=alt.value(8), y=alt.value(6), text="says:N"),
    ]
    params = [
        tick("reveal", "show the mixes", False),
        choice("dealt", "split", SPLITS, SPLITS[1]),
        *(choice(k, k, list(choices(k)), n, "select") for k, n in zip(KINDS, START, strict=True)),
    ]
    same = " && ".join(f"datum.{k} == {k}" for k in KINDS)
    base = "(datum.method == 'fedavg')"
    shared = (
        alt.Chart(data)
        .transform_filter(f"(reveal || {base}) && datum.split == dealt")
        .transform_calculate(
            chosen=f"({same}) ? 1 : 0",
            source=f"!datum.chosen && indexof([{', '.join(KINDS)}, 'fedavg'], datum.method) >= 0",
            at="datum.chosen ? datum.bytes : 0",
            own="datum.chosen ? datum.accuracy : 0",
            base=f"{base} ? datum.bytes : 0",
        )
        .transform_joinaggregate(at="max(at)", own="max(own)", base="max(base)")
        .transform_calculate(rival="datum.bytes <= datum.at ? datum.accuracy : 0")
        .transform_joinaggregate(rival="max(rival)")
    )
    return layered(400, params, layers, shared)


# ---- exercises -----------------------------------------------------------------------------------

BUDGETS = (  # bytes allowed, up, down, whole rounds, and what a wrong answer has not seen
    (10_000, 1_000, 3_000, 2, "a round that is begun and not ended is worth nothing"),
    (8_000, 1_000, 3_000, 2, "a round that just fits is a round"),
    (3_999, 1_000, 3_000, 0, "not even one round fits"),
    (100, 7, 0, 14, "a method may send nothing down"),
    (100, 0, 7, 14, "a method may send nothing up"),
    (0, 5, 5, 0, "a budget of nothing allows no round"),
)


def fitting(answer: Function) -> str | None:
    """answer(budget, up, down) -> whole rounds."""
    for budget, up, down, right, reason in BUDGETS:
        got = answer(budget, up, down)
        if got != right and up and got == budget // up:
            return "both directions cost bytes"
        if got != right:
            return f"{reason} ({got} for {budget:,} bytes at {up:,} up and {down:,} down)"
    try:
        free = answer(100, 0, 0)
    except ZeroDivisionError:
        return "a method that sends nothing never uses its budget up: the answer is math.inf"
    if free != math.inf:
        return f"a method that sends nothing has no last round: math.inf, not {free}"
    return None


THREE = [0.9, 0.92, 0.94]
FIELDS: tuple[tuple[Scores, str], ...] = (
    ({"a": [0.9, 0.91, 0.92], "b": [0.9, 0.91, 0.92]}, "equal methods share the first place"),
    ({"a": [0.95, 0.951, 0.952], "b": [0.5, 0.51, 0.52]}, "a method far behind is beaten"),
    ({"a": [0.5, 0.51, 0.52], "b": [0.95, 0.951, 0.952]}, "the better need not come first"),
    ({"a": THREE, "b": [0.863, 0.883, 0.903]}, "two standard errors are not enough: three are"),
    ({"a": THREE, "b": [0.856, 0.876, 0.896]}, "a variance of n runs is divided by n - 1"),
    (
        {"a": THREE, "b": [0.84, 0.86, 0.88]},
        "the standard error of a mean of n runs shrinks with the root of n",
    ),
    ({"a": THREE, "b": [0.8527, 0.8727, 0.8927]}, "2.9 standard errors are not enough: three are"),
    ({"a": THREE, "b": [0.8493, 0.8693, 0.8893]}, "3.1 standard errors are enough: three are"),
    (
        {"a": 2 * THREE, "b": [0.856, 0.876, 0.896]},
        "each variance is divided by the number of its own runs",
    ),
    (
        {"a": [0.95, 0.96, 0.97], "b": [0.93, 0.94, 0.95], "c": [0.91, 0.92, 0.93]},
        "one that ties with the best is unbeaten, whatever it ties with below",
    ),
    (
        {"wild": [0.6, 0.95, 0.97], "calm": [0.75, 0.751, 0.752], "best": [0.8, 0.801, 0.802]},
        "the spread of both counts: nobody outranks a wild method, and it outranks nobody",
    ),
)


def first(answer: Function) -> str | None:
    """answer(scores) -> the names of the methods that nobody outranks, three standard errors."""
    for scores, reason in FIELDS:
        got = answer({name: list(runs) for name, runs in scores.items()})
        if not isinstance(got, Collection) or isinstance(got, str):
            return "the answer is a collection of names"
        if not {*got} <= {*scores}:
            return f"{[*got]} are not names of methods, which are {[*scores]}"
        if {*got} != unbeaten(scores):
            return f"{reason} ({sorted(got)} of {dict(scores)})"
    return None


@varied(
    fedavg_bytes=(40_957, range(50_000, 90_000)),
    qsgd_bytes=(11_249, range(5_000, 15_000)),
    fedavg_ms=(2, range(1, 8)),
    qsgd_ms=(12, range(8, 12)),
)
def even(fedavg_bytes: int, qsgd_bytes: int, fedavg_ms: int, qsgd_ms: int) -> Any:
    """Bits a second up to which sending less pays for computing longer."""
    saved, longer = fedavg_bytes - qsgd_bytes, (qsgd_ms - fedavg_ms) / 1000
    return number(
        8 * saved / longer,
        {
            saved / longer: "links are measured in bits, and a byte has eight",
            8000 * saved / qsgd_ms: "FedAvg computes, too: what counts is by how much longer QSGD"
            " does",
            8 * fedavg_bytes / longer: "what counts is what QSGD saves, not all that FedAvg sends",
            8 * qsgd_bytes / longer: "what counts is what QSGD saves, not what it sends",
            8 * saved / longer / 1e6: "the question is for bits a second",
        },
        tolerance=0.02,
    )


@varied(per_cent=(97.5, [k / 10 for k in range(700, 970)]))
def images(per_cent: float) -> Any:
    p = per_cent / 100
    one = p * (1 - p) / 0.01**2  # images for which one point is a standard error of one accuracy
    fewer = {
        2 * one: "one point is to be two standard errors, not one",
        4 * one: "both accuracies have an error: their variances add up",
        one: "both have an error, and one point is to be two standard errors",
        450: "that is how many there are; how many would do?",
    }
    return number(8 * one, fewer, tolerance=0.002)


NONE: set[str] = set()
UPDATES, MASKS, MEAN = (NONE, {"update"}), ({"scores"}, {"mask"}), ({"update"}, NONE)
CASES: dict[str, tuple[dict[str, tuple[set[str], set[str]]], list[str]]] = {
    "nothing is missing": ({"uplink": UPDATES, "server": MEAN}, []),
    "one need is unmet": ({"uplink": MASKS, "server": ({"mask"}, NONE)}, ["uplink"]),
    "two parts are refused, each for a need of its own": (
        {"uplink": MASKS, "server": MEAN},
        ["server", "uplink"],
    ),
    "what a part gives itself does not count": (
        {"downlink": ({"steps"}, {"steps"}), "uplink": UPDATES, "server": MEAN},
        ["downlink"],
    ),
    "a part has two needs, and one of them is met": (
        {"model": (NONE, {"scores"}), "uplink": MASKS, "server": ({"mask", "update"}, NONE)},
        ["server"],
    ),
    "two needs are met by two different parts": (
        {"optimizer": ({"a", "b"}, NONE), "model": (NONE, {"a"}), "downlink": (NONE, {"b"})},
        [],
    ),
}


def unmet(answer: Function) -> str | None:
    """answer(parts) -> the kinds of parts that are refused, sorted; parts: (needs, gives)."""
    for reason, (stated, right) in CASES.items():
        parts = {kind: tuple(map(set, stated.get(kind, (NONE, NONE)))) for kind in KINDS}
        before = repr(parts)
        got = answer(parts)
        if repr(parts) != before:
            return "the parts that came in are changed"
        if not isinstance(got, list):
            return f"a list is asked for, not {type(got).__name__}"
        if sorted(got) != got or len(set(got)) != len(got):
            return f"each kind is named once, in alphabetical order, not {got}"
        if got != right:
            return f"{reason}: {got} is not what is refused"
    return None


MIXES = [
    ("dense", 0.95, 800_000, 800_000),
    ("half", 0.93, 40_000, 800_000),
    ("both", 0.90, 40_000, 30_000),
    ("cheap", 0.80, 10_000, 10_000),
]
LINKS: tuple[tuple[float, float, float, str | None, str], ...] = (
    (8e4, 8e4, 2.5, "cheap", "8 bits are a byte"),
    (8e6, 8e6, 2.0, "dense", "on a fast link the most accurate one fits"),
    (8e5, 8e6, 2.0, "half", "only the way up is slow here"),
    (8e4, 8e5, 4.2, "cheap", "both ways take their time, one after the other"),
    (8e6, 8e4, 4.0, "both", "the way down can be the slow one"),
    (8e3, 8e3, 1.0, None, "None is the answer if nothing fits"),
    (8e4, 8e4, 2.0, "cheap", "what takes exactly so many seconds fits"),
)


def link_for(answer: Function) -> str | None:
    """answer(mixes, up, down, seconds) -> name of the most accurate that fits into the time."""
    for mixes in (MIXES, MIXES[::-1], MIXES[1:] + MIXES[:1]):
        for up, down, seconds, want, reason in LINKS:
            got = answer(list(mixes), up, down, seconds)
            if got != want:
                return f"{reason}: not {got!r} for {up:g} bit/s up, {down:g} down, {seconds:g} s"
    return None


def luck(answer: Function) -> str | None:
    """answer(chosen, again) -> how much better the best rate looks than it is, on average."""
    tables: tuple[tuple[Any, Any, str], ...] = (
        ([[0.5, 0.9, 0.7]], [[0.5, 0.8, 0.7]], "the rate is chosen by the first seed"),
        ([[0.5, 0.9, 0.7]], [[0.5, 0.6, 0.8]], "the rate is not chosen anew with the other seed"),
        ([[0.9, 0.5], [0.6, 0.8]], [[0.7, 0.9], [0.9, 0.8]], "the mean over mixes is asked for"),
        ([[0.4, 0.6], [0.7, 0.3]], [[0.4, 0.8], [0.8, 0.1]], "luck may be bad, too"),
        ([[0.8, 0.8, 0.5]], [[0.7, 0.9, 0.5]], "of rates that are equally good the first counts"),
    )
    for first, again, reason in tables:
        best = [max(range(len(row)), key=row.__getitem__) for row in first]
        gaps = [row[k] - other[k] for k, row, other in zip(best, first, again, strict=True)]
        want = sum(gaps) / len(gaps)
        got = float(answer([list(r) for r in first], [list(r) for r in again]))
        if not abs(got - want) <= 1e-9:
            return f"{reason} (not {got:+.3f} for {first} and then {again})"
    return None


EXERCISES = {
    "choosing-link": link_for,
    "choosing-rounds": fitting,
    "choosing-needs": unmet,
    "choosing-luck": luck,
    "choosing-first": first,
    "choosing-even": even,
    "choosing-images": images,
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("what", choices=("contest", "mixes"))
    args = parser.parse_args()
    if args.what == "mixes":
        about = {"rounds": LENGTH, "clients": CLIENTS}
        stages: list[Any] = [lambda _: mix_tries(), whole_mixes, again, slower]
        fill("choosing/mixes", MIXING, len(MIX_RUN), MIX_COLUMNS, mixed, stages, args, **about)
        return
    stages = [lambda _: short_runs(), whole_runs]
    fill("choosing", COMMAND, len(RUN), COLUMNS, played, stages, args)


if __name__ == "__main__":
    from fedlearn.book import choosing  # processes look functions up where they are imported from

    choosing.main()

"""Chapter 11, composing: a grid of mixes of the parts of all methods, why two parts are refused,
the chart in which menus choose a mix, and the checks of the exercises.

``python -m fedlearn.book.compose --jobs 2`` runs what is missing of ``data/grids/mixes.json``, a
process each: first every method and every single-part swap, then mixes drawn at random, each under
two splits and at three learning rates with one seed; then the most accurate, the front and the
methods with four more seeds at their best rate, and what trained badly with a much smaller one. It
may be stopped at any time. The file has columns, not rows; a part is named by the first method that
has it, bytes are those of one client over all rounds.
"""

import itertools
import json
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ..context import label, provides
from ..errors import Diverged, WireError
from ..round import Averaging
from .check import Function, number
from .grids import Row, command_line, fill, stored

if TYPE_CHECKING:
    import pandas

COMMAND = "python -m fedlearn.book.compose"

# ---- the grid of mixes ---------------------------------------------------------------------------

SPLITS = ("iid", "dirichlet:0.1")
RATES = (0.3, 1.0, 3.0)  # times the learning rate that the optimizer has in its method
ROUNDS, CLIENTS, BEST, SEEDS = 20, 10, 50, 5
KINDS = tuple(Averaging.kinds)
SLOWER, POOR = min(RATES) / 10, 0.7  # what trains so badly is tried once more, with that rate
RUN = (*KINDS, "split", "rate", "seed")
COLUMNS = (*RUN, "accuracy", "up", "down")
Mix = tuple[str, ...]  # for each kind of part a method that has it


@cache
def methods() -> dict[str, Averaging]:
    """The methods that are six parts, by name, and what their options make another method of."""
    from .. import methods as known

    made = {name: make() for name, make in known.METHODS.items()}
    made["fedfusion, personal"] = known.fedfusion(personal=True)
    return {name: m for name, m in made.items() if isinstance(m, Averaging)}


def distinct(kind: str) -> list[tuple[str, Any]]:
    """(name of the first method that has it, part) for each different part of a kind."""
    found: dict[Any, str] = {}
    for name, method in methods().items():
        found.setdefault(getattr(method, kind), name)
    return [(name, part) for part, name in found.items()]


@cache
def choices(kind: str) -> dict[str, Any]:
    """The parts of a kind by name: those of the methods, and uplinks with coders of no method."""
    found = dict(distinct(kind))
    if kind == "uplink":
        from ..parts import Feedback, Lossy, Update, Uplink, WarmStart
        from ..wire import EDEN, LowRank, Natural, TernGrad

        found["eden, 1 bit"] = Uplink(Update(), Lossy(EDEN(1)))
        found["eden, 2 bits"] = Uplink(Update(), Lossy(EDEN(2)))
        found["natural"] = Uplink(Update(), Lossy(Natural()))
        found["terngrad"] = Uplink(Update(), Lossy(TernGrad()))
        found["powersgd"] = Uplink(Update(), Feedback(), WarmStart(2), Lossy(LowRank(2)))
    return found


def build(mix: Mix, rate: float = 1.0) -> Averaging:
    """The method of these parts; ``ValueError`` if they do not fit."""
    parts = {k: choices(k)[name] for k, name in zip(KINDS, mix, strict=True)}
    parts["optimizer"] = replace(parts["optimizer"], lr=rate * parts["optimizer"].lr)
    return methods()["fedavg"].but(**parts)


def origins() -> dict[str, Mix]:
    """The methods as mixes: a part is named by the first method that has it."""
    names = {kind: {part: name for name, part in distinct(kind)} for kind in KINDS}
    return {
        name: tuple(names[kind][getattr(method, kind)] for kind in KINDS)
        for name, method in methods().items()
    }


@cache
def methods_by_mix() -> dict[Mix, str]:
    """The inverse of ``origins``; of methods that are the same mix the first."""
    return {mix: name for name, mix in reversed(list(origins().items()))}


def mixes(count: int, seed: int = 0) -> list[Mix]:
    """So many mixes that can be built: methods, single-part swaps, and others drawn at random."""
    known = list(origins().values())
    fedavg = origins()["fedavg"]

    def candidates() -> Iterator[Mix]:
        yield from known
        uplink = KINDS.index("uplink")
        yield from ((*fedavg[:uplink], up, *fedavg[uplink + 1 :]) for up in choices("uplink"))
        for mix, i in itertools.product(known, range(len(KINDS))):
            yield (*fedavg[:i], mix[i], *fedavg[i + 1 :])
            yield (*mix[:i], fedavg[i], *mix[i + 1 :])
        dice = random.Random(seed)
        while True:
            yield tuple(dice.choice(list(choices(kind))) for kind in KINDS)

    buildable: dict[Mix, None] = {}
    for mix in itertools.islice(candidates(), 1000 * count):
        if mix not in buildable:
            try:
                build(mix)
            except ValueError:
                continue
            buildable[mix] = None
        if len(buildable) == count:
            break
    return list(buildable)


def trained(where: tuple) -> tuple:
    """One run -> its row. A mix that this task cannot have, or that diverges, has accuracy None."""
    import torch

    from ..round import run
    from ..tasks import classification

    torch.set_num_threads(1)
    *mix, split, rate, seed = where
    task = classification("digits", CLIENTS, split, seed=seed)
    how: dict[str, Any] = {"engine": "stacked", "batch_size": 16, "threads": 1}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            how |= {"evaluate_every": ROUNDS, "progress": False}
            history = run(build(tuple(mix), rate), task, ROUNDS, **how)
    except (ValueError, Diverged, WireError):
        return (*where, None, None, None)
    up, down = (round(float(b.sum()) / CLIENTS) for b in (history.bytes_up, history.bytes_down))
    return (*where, round(history.final["accuracy"], 4), up, down)


def rows_of(run: tuple) -> list[tuple]:
    return [trained(run)]


def mixtures(rows: Sequence[Row] | None = None) -> "pandas.DataFrame":
    """The grid, a row a mix and split, each at the learning rate that was best with seed 0.

    The six parts; ``method`` if the mix is one; ``rate``, and ``rates``, how many of them trained;
    ``accuracy`` with seed 0, and ``slower``, the same with the rate ``SLOWER``, if that was tried;
    ``up``, ``down`` and their sum ``bytes`` of one client in all rounds; ``again`` and ``spread``,
    mean and standard deviation of the accuracy with the other seeds, and ``seeds``, how many these
    are. A mix that trained at no rate has no row.
    """
    import pandas

    rows = stored("mixes")[0] if rows is None else rows
    if not rows:
        raise ValueError(f"There is no grid 'mixes' yet; {COMMAND}")
    key = ["split", *KINDS]
    table = pandas.DataFrame(rows, columns=list(COLUMNS)).dropna(subset="accuracy")
    table = table.astype({"accuracy": float, "up": int, "down": int})
    tuned = table[(table["seed"] == 0) & table["rate"].isin(RATES)]
    groups = tuned.groupby(key, sort=False)["accuracy"]
    best = tuned.loc[groups.idxmax()].set_index(key).drop(columns="seed")
    best["bytes"], best["rates"] = best["up"] + best["down"], groups.size()
    best["slower"] = table[table["rate"] == SLOWER].set_index(key)["accuracy"]
    again = table[table["seed"] > 0].merge(best["rate"].reset_index())
    seeds = again.groupby(key)["accuracy"].agg(["mean", "std", "count"])
    best[["again", "spread", "seeds"]] = seeds.reindex(best.index)
    best = best.fillna({"seeds": 0}).astype({"seeds": int}).reset_index()
    named = best[list(KINDS)].itertuples(index=False, name=None)
    return best.assign(method=[methods_by_mix().get(mix, "") for mix in named])


def pareto(table: "pandas.DataFrame", cost: str = "bytes") -> "pandas.DataFrame":
    """The rows that no other row beats, cheapest first: more accurate than all that cost as much or
    less. Of several that are equal in both the first one stands for all."""
    ordered = table.sort_values([cost, "accuracy"], ascending=[True, False], kind="stable")
    before = ordered["accuracy"].cummax().shift(fill_value=-1.0)
    return ordered[ordered["accuracy"] > before]


def again(rows: list[Row]) -> Iterator[tuple]:
    """With the other seeds, at the rate that was their best: of each split the most accurate mixes,
    those on the front, and the methods."""
    import pandas

    every = mixtures(rows)
    for split in SPLITS:
        own = every[every["split"] == split]
        best = own.sort_values("accuracy", ascending=False, kind="stable").head(BEST)
        chosen = pandas.concat([best, pareto(own), own[own["method"] != ""]])
        for _, row in chosen.drop_duplicates(list(KINDS)).iterrows():
            yield from ((*row[list(KINDS)], split, row["rate"], seed) for seed in range(1, SEEDS))


def slower(rows: list[Row]) -> Iterator[tuple]:
    """With a tenth of the smallest rate: FedAvg, FedAvg with Adam, and what is ``POOR`` where
    clients differ, but for FedPM's network, which learns nothing without FedPM's uplink."""
    split = SPLITS[-1]
    of = mixtures(rows).query("split == @split and model != 'fedpm' and accuracy < @POOR")
    plain = ("fedavg",) * len(KINDS)
    adam = tuple("fedpm" if kind == "optimizer" else "fedavg" for kind in KINDS)
    poor = of[list(KINDS)].itertuples(index=False, name=None)
    yield from ((*mix, split, SLOWER, 0) for mix in dict.fromkeys([plain, adam, *poor]))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=500, help="mixes")
    args = parser.parse_args()

    def first(_: list[Row]) -> list[tuple]:
        every = itertools.product(mixes(args.count), RATES, SPLITS)
        return [(*mix, split, rate, 0) for mix, rate, split in every]

    about = {"rounds": ROUNDS, "clients": CLIENTS}
    stages = (first, again, slower)
    fill("mixes", COMMAND, len(RUN), COLUMNS, rows_of, stages, args, **about)


# ---- what is refused, and the chart --------------------------------------------------------------

START: Mix = ("fed_kgf", "fedmmd", "fedpm", "eden, 2 bits", "stc", "stc")
EVERY = "every part"
DRAWN = (*KINDS, "split", "method", "accuracy", "bytes", "rate")  # columns of the chart's data


def said(mix: Sequence[str]) -> str:
    """A mix in words: the parts that are not FedAvg's, or the method that it is."""
    if tuple(mix) in methods_by_mix():
        return methods_by_mix()[tuple(mix)]
    own = [f"{k} of {n}" for k, n in zip(KINDS, mix, strict=True) if n != "fedavg"]
    return "; ".join(own)


Rule = tuple[str, list[str], str, list[tuple[str, str]]]


@cache
def rules() -> list[Rule]:
    """What parts need of others: kind, the parts of it that need it, what it is in words, and
    (kind, part) of all that give it."""
    every = [(kind, name, part) for kind in KINDS for name, part in choices(kind).items()]
    found: dict[tuple[str, Any], list[str]] = {}
    for kind, name, part in every:
        for need in part.needs:
            found.setdefault((kind, need), []).append(name)
    made: list[Rule] = []
    for (kind, need), names in sorted(found.items(), key=repr):
        givers = [(k, n) for k, n, part in every if k != kind and provides(part.given(), need)]
        what = label(need)
        if len(givers) == 1:
            what = "the {} of {}".format(*givers[0])
        made.append((kind, names, what, givers))
    return made


def refusal(mix: Sequence[str]) -> str | None:
    """Why a mix cannot be built, in one sentence; None if it can."""
    chosen = dict(zip(KINDS, mix, strict=True))
    for kind, names, what, givers in rules():
        if chosen[kind] in names and not any(chosen[k] == n for k, n in givers):
            return f"The {kind} of {chosen[kind]} needs {what}."
    return None


def _refused() -> str:
    """``refusal`` of the menus as a Vega expression; an empty string if there is none."""
    text = "''"
    for kind, names, what, givers in reversed(rules()):
        kinds = {k: [n for other, n in givers if other == k] for k, _ in givers}
        given = " || ".join(f"indexof({json.dumps(its)}, {k}) >= 0" for k, its in kinds.items())
        unmet = f"indexof({json.dumps(names)}, {kind}) >= 0 && !({given})"
        says = f"'Refused: the {kind} of ' + {kind} + '\\nneeds {what}.'"
        text = f"({unmet} ? {says} : {text})"
    return text


def _flagged(chart: Any) -> Any:
    """The transforms that all layers share: which points are chosen, parents or kept by the filter,
    and which lie on the front of all and of those kept."""
    kinds = list(KINDS)
    same = " && ".join(f"datum.{k} == {k}" for k in kinds)
    swapped = " && ".join(f"(datum.{k} == 'fedavg' || datum.{k} == {k})" for k in kinds)
    count = " + ".join(f"(datum.{k} != 'fedavg')" for k in kinds)
    listed = ", ".join(f"'{k}: ' + datum.{k}" for k in kinds)
    base = "(datum.method == 'fedavg')"
    order = [{"field": "bytes"}, {"field": "accuracy", "order": "descending"}]

    def before(chart: Any, field: str, name: str) -> Any:
        """The highest value of the rows before (Vega takes a frame of [null, -1] for [null, 1])."""
        so_far = {f"{name}Too": f"max({field})"}
        chart = chart.transform_window(**so_far, sort=order, frame=[None, 0])
        return chart.transform_window(**{name: f"lag({name}Too)"}, sort=order)

    chart = (
        chart.transform_filter("datum.split == dealt")
        .transform_calculate(
            chosen=f"({same}) ? 1 : 0",
            swap=f"!datum.chosen && ({swapped}) && ({count}) == 1",
            source=f"!datum.chosen && indexof([{', '.join(kinds)}, 'fedavg'], datum.method) >= 0",
            kept=f"part == '{EVERY}' || indexof([{listed}], part) >= 0 ? 1 : 0",
            at="datum.chosen ? datum.bytes : 0",
            own="datum.chosen ? datum.accuracy : 0",
            base=f"{base} ? datum.bytes : 0",
            level=f"{base} ? datum.accuracy : 0",
        )
        .transform_joinaggregate(at="max(at)", own="max(own)", base="max(base)", level="max(level)")
        .transform_calculate(
            rival="datum.bytes <= datum.at ? datum.accuracy : 0",
            within="100 * datum.bytes <= guess * datum.base ? datum.accuracy : 0",
        )
        .transform_joinaggregate(rival="max(rival)", within="max(within)")
        .transform_calculate(left="datum.kept ? datum.accuracy : -1")
    )
    chart = before(before(chart, "accuracy", "cheaper"), "left", "keptCheaper")
    return chart.transform_calculate(
        front="!(datum.accuracy <= datum.cheaper)",
        keptFront="datum.kept && !(datum.accuracy <= datum.keptCheaper)",
    )


def mixing(guess: float | None = None, table: "pandas.DataFrame | None" = None) -> dict[str, Any]:
    """Accuracy against the bytes of one client for all mixes of a split: six menus choose one,
    which lights up beside its parents and the Pareto front. ``guess``: per cent of FedAvg's bytes,
    a line; without it FedAvg is alone until the reader asks for the mixes."""
    from .vega import (
        BLUE,
        GREEN,
        GREY,
        ORANGE,
        PINK,
        SKY,
        WORDS,
        alt,
        choice,
        layered,
        slider,
        tick,
    )

    table = mixtures() if table is None else table
    shown = table[list(DRAWN)].assign(bytes=(table["bytes"] / 1000).round(1))
    text = shown.to_csv(index=False, lineterminator="\n")
    parse = dict.fromkeys(("accuracy", "bytes", "rate"), "number")
    data = alt.InlineData(values=text, format={"type": "csv", "parse": parse})
    parts = [f"{k}: {n}" for k in KINDS for n in choices(k) if n in set(table[k])]
    x = alt.X("bytes:Q", title=f"kB of one client, up and down, {ROUNDS} rounds")
    ends = [float(shown["bytes"].min()), float(shown["bytes"].max())]
    x = x.scale(type="log", nice=False, padding=12, domain=ends)
    x = x.axis(format="~s", values=[10, 20, 50, 100, 200, 500, 1000, 2000, 5000])
    low, high = alt.ExprRef("low"), alt.ExprRef("low + 1.27 * (1 - low)")
    y = alt.Y("accuracy:Q", title=f"accuracy after {ROUNDS} rounds")
    y = y.scale(domainMin=low, domainMax=high, nice=False, zero=False)
    y = y.axis(labelExpr="datum.value > 1.001 ? '' : datum.label", tickCount=8)
    tips = [f"{k}:N" for k in KINDS] + [
        alt.Tooltip("accuracy:Q", format=".3f"),
        alt.Tooltip("bytes:Q", title="kB", format=",.0f"),
        alt.Tooltip("rate:N", title=f"best of rates {', '.join(f'{r:g}' for r in RATES)}"),
    ]
    solid = alt.value(1)

    def points(test: str, shape: str, size: int, colour: Any, opacity: Any = solid) -> alt.Chart:
        look = {"shape": shape, "size": size, "filled": True, "clip": True}
        look |= {"aria": shape == "circle"}  # which every point has; the others may be empty
        chart = alt.Chart().transform_filter(test).mark_point(**look)
        return chart.encode(x, y, color=colour, opacity=opacity, tooltip=tips)

    def line(test: str, colour: str, dash: list[int]) -> alt.Chart:
        # the words beside it say it; empty, it would have no name to be read out
        look = {"interpolate": "step-after", "color": colour, "clip": True, "aria": False}
        chart = alt.Chart().transform_filter(test)
        chart = chart.mark_line(**look, strokeDash=dash, strokeWidth=2)
        return chart.encode(x, y, order="bytes:Q")

    edge = float(shown["bytes"].quantile(0.5))

    def names(test: str, align: str, dx: int, dy: int = 9) -> alt.Chart:
        look = WORDS | {"align": align, "dx": dx, "dy": dy, "fontSize": 11, "clip": True}
        chart = alt.Chart().transform_filter(f"datum.source && {test}").mark_text(**look)
        return chart.encode(x, y, text="method:N")

    last = "(datum.rival > datum.own ? 'best for no more bytes: ' + format(datum.rival, '.3f')"
    last += " : 'none is as good for fewer bytes')"
    share = "format(100 * datum.at / datum.base, '.3~g') + '% of its bytes'"
    own = f"'chosen ' + format(datum.own, '.3f') + ' for ' + {share} + '\\n' + {last}"
    missing = (
        f"({_refused()} || 'Not trained: it can be built, but is none\\nof the grid\\'s mixes')"
    )
    says = (
        "'FedAvg ' + format(datum.level, '.3f') + (!reveal ? '; your guess: ' + guess"
        " + '% of its bytes' : '; for at most ' + guess + '% of its bytes '"
        f" + format(datum.within, '.3f') + '\\n' + (datum.at ? {own} : {missing}))"
    )
    only = alt.Chart().transform_filter("datum.method == 'fedavg'")  # a row of each split
    kept = alt.when("datum.kept")
    layers = [
        points(
            "datum.kept == 0 || datum.kept == 1",
            "circle",
            24,
            kept.then(alt.value(BLUE)).otherwise(alt.value(GREY)),
            kept.then(alt.value(0.55)).otherwise(alt.value(0.2)),
        ),
        line("datum.front", GREEN, [1, 0]),
        line(f"part != '{EVERY}' && datum.keptFront", BLUE, [5, 3]),
        points("datum.swap", "triangle-up", 110, alt.value(PINK)),
        points("datum.source", "square", 90, alt.value(SKY)),
        points("datum.chosen", "diamond", 240, alt.value(ORANGE)),
        names(f"datum.bytes <= {edge}", "left", 7),
        names(f"datum.bytes > {edge} && datum.method != 'fedavg'", "right", -7),
        names("datum.method == 'fedavg'", "left", 7, -10),
        only.transform_calculate(bytes="guess * datum.base / 100")
        .mark_rule(strokeDash=[2, 3], color=GREY, clip=True)
        .encode(x),
        only.transform_calculate(says=says)
        .mark_text(
            **WORDS, clip=True, baseline="top", fontWeight="bold", lineBreak="\n", lineHeight=17
        )
        .encode(x=alt.value(8), y=alt.value(6), text="says:N"),
    ]
    asked = "your guess, % of FedAvg's bytes"
    params = [
        slider("guess", asked, 50 if guess is None else guess, 1, 100, 1),
        tick("reveal", "show the mixes", guess is not None),
        choice("dealt", "split", SPLITS, SPLITS[1]),
        *(choice(k, k, list(choices(k)), n, "select") for k, n in zip(KINDS, START, strict=True)),
        choice("part", "show", [EVERY, *parts], EVERY, "select"),
        slider("low", "lowest accuracy shown", 0.5, 0, 0.9, 0.1),
    ]
    shared = alt.Chart(data).transform_filter("reveal || datum.method == 'fedavg'")
    return layered(430, params, layers, _flagged(shared))


# ---- exercises -----------------------------------------------------------------------------------

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
            return f"{reason}: {right} is refused, not {got}"
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


def link(answer: Function) -> str | None:
    """answer(mixes, up, down, seconds) -> name of the most accurate that fits into the time."""
    for mixes in (MIXES, MIXES[::-1], MIXES[1:] + MIXES[:1]):
        for up, down, seconds, want, reason in LINKS:
            got = answer(list(mixes), up, down, seconds)
            if got != want:
                return (
                    f"{reason}: {want!r} is right for {up:g} bit/s up, {down:g} down, {seconds:g} "
                    f"s, not {got!r}"
                )
    return None


LARGE, SMALL = (108, 2592, 6912, 320), 282  # entries of large tensors, numbers of small ones
TENSORS = 17
CODED = sum(4 + -(-2 * n // 8) for n in LARGE)
ENVELOPE = 26 + -(-TENSORS // 8) + 4 * TENSORS + 4
message = number(
    CODED + 4 * SMALL + ENVELOPE,
    {
        CODED: "the small tensors and the envelope travel, too",
        CODED + 4 * SMALL: "the envelope is missing",
        CODED + ENVELOPE: "biases, normalisation and batch statistics travel whole",
        4 * (sum(LARGE) + SMALL) + ENVELOPE: "that is the dense message",
        CODED - 4 * len(LARGE) + 4 * SMALL + ENVELOPE: "each large tensor needs its scale S",
        CODED - 4 * (len(LARGE) - 1) + 4 * SMALL + ENVELOPE: "each large tensor has a scale S",
        sum(4 + -(-n // 8) for n in LARGE) + 4 * SMALL + ENVELOPE: "that is one bit an entry",
        sum(4 + 2 * n for n in LARGE) + 4 * SMALL + ENVELOPE: "bits are not bytes",
        20 * (CODED + 4 * SMALL + ENVELOPE): "the question is for one message, not for all rounds",
    },
)


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
        its = [max(range(len(row)), key=row.__getitem__) for row in first]
        gaps = [row[k] - other[k] for k, row, other in zip(its, first, again, strict=True)]
        want = sum(gaps) / len(gaps)
        got = float(answer([list(r) for r in first], [list(r) for r in again]))
        if abs(got - want) > 1e-9:
            return f"{reason} ({want:+.3f}, not {got:+.3f}, for {first} and then {again})"
    return None


EXERCISES = {
    "compose-needs": unmet,
    "compose-link": link,
    "compose-message": message,
    "compose-luck": luck,
}

if __name__ == "__main__":
    main()

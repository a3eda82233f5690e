"""Chapter 3, sending less: explorers of coders, a message byte by byte, and the checks of the
exercises.

What the bytes of a message mean is not typed here but told by the decoder, while it reads them.
"""

import html
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch

from ..wire import Schema, coders, take_apart
from ..wire.bits import Reader
from ..wire.message import _CRC, _HEADER
from .check import number
from .show import Shown, said

# ---- explorers -----------------------------------------------------------------------------------


def quantiser() -> dict[str, Any]:
    """Evenly spaced levels from the smallest entry to the largest: what is decoded, and the
    relative error if entries follow a Laplace distribution of deviation 1, cut off at the largest.
    With random rounding an entry x between levels a and b has variance (x - a)(b - x)."""
    from .vega import BLUE, BOLD, GREY, alt, choice, layered, slider

    params = [
        slider("levels", "levels", 4, 2, 64, 1),
        slider("widest", "largest entry, in standard deviations", 8, 2, 16, 0.5),
        choice("rounding", "rounding", ["nearest", "random"]),
        slider("m", "clients averaged", 1, 1, 100, 1),
    ]
    shared = alt.Chart(alt.sequence(-300, 301, 1, as_="i")).transform_calculate(
        x="widest * datum.i / 300",
        gap="2 * widest / (levels - 1)",
        below="min(floor((datum.x + widest) / datum.gap), levels - 2)",
        a="datum.below * datum.gap - widest",
        b="datum.a + datum.gap",
        near="datum.x - datum.a < datum.b - datum.x ? datum.a : datum.b",
        mean="rounding == 'nearest' ? datum.near : datum.x",
        low="rounding == 'nearest' ? datum.near : datum.a",
        high="rounding == 'nearest' ? datum.near : datum.b",
        often="exp(-sqrt(2) * abs(datum.x))",
        top="widest * (datum.often - 1)",
        floor="-widest",
        energy="datum.often * pow(datum.x, 2)",
        fixed="datum.often * pow(datum.near - datum.x, 2)",
        chance="datum.often * (datum.x - datum.a) * (datum.b - datum.x)",
    )
    one = "(rounding == 'nearest' ? datum.fixed : datum.chance) / datum.energy"
    mean = f"({one}) / (rounding == 'nearest' ? 1 : m)"
    text = (
        "[levels + ' levels, ' + format(log(levels) / LN2, '.1f') + ' bits an entry', "
        f"'relative error: ' + format({one}, '.3f'), "
        f"'mean of ' + m + (m > 1 ? ' clients: ' : ' client: ') + format({mean}, '.3f')]"
    )
    ends = {"domainMin": {"expr": "-widest"}, "domainMax": {"expr": "widest"}, "nice": False}
    x = alt.X("x:Q", title="an entry", scale=ends)
    side = {"title": "what arrives", "scale": ends}
    layers = [
        alt.Chart()
        .mark_area(color=GREY, opacity=0.3)
        .encode(x, alt.Y("top:Q", **side), alt.Y2("floor")),
        alt.Chart()
        .mark_area(color=BLUE, opacity=0.25)
        .encode(x, alt.Y("low:Q", **side), alt.Y2("high")),
        alt.Chart().mark_line(color=BLUE, strokeWidth=2).encode(x, alt.Y("mean:Q", **side)),
        alt.Chart()
        .transform_aggregate(energy="sum(energy)", fixed="sum(fixed)", chance="sum(chance)")
        .transform_calculate(said=text)
        .mark_text(**BOLD, baseline="top", lineHeight=18)
        .encode(x=alt.value(6), y=alt.value(6), text="said:N"),
    ]
    return layered(260, params, layers, shared, grid=False)


def places(p: str) -> dict[str, str]:
    """Bits for the place of one kept entry, as Vega expressions of the share ``p``."""
    b = f"max(0, 1 + floor(log(log((sqrt(5) - 1) / 2) / log(1 - {p})) / LN2))"
    return {
        "entropy": f"-({p} * log({p}) + (1 - {p}) * log(1 - {p})) / LN2 / {p}",
        "Golomb-Rice": f"({b} + 1 / (1 - pow(1 - {p}, pow(2, {b}))))",
        "bitmap": f"1 / {p}",
        "32-bit numbers": "32",
    }


# what is shown, the end of its axis, and how it is made of the bits of a kept entry
PER = {
    "bits a kept entry": (34, "datum.bits"),
    "bits an entry of the tensor": (1.1, "datum.bits * datum.p"),
    "% above the entropy": (12, "100 * (datum.bits / datum.entropy - 1)"),
}


def positions(measured: Sequence[Mapping[str, float]] = ()) -> dict[str, Any]:
    """Bits for the place of a kept entry against the share p = 2^-e of entries that are kept: the
    entropy H(p)/p, a Golomb-Rice code (Sattler et al. 2020), one bit for every entry of the tensor,
    and 32-bit numbers.

    ``measured``: rows of ``e`` and the bits an entry that ``positions`` and a ``mask`` took.
    """
    from . import vega
    from .vega import DOTTED, GREY, alt, choice, heading, layered, series, slider

    params = [
        slider("e", "kept: one entry of 2 to the power", 5, 1, 10, 0.1),
        slider("v", "bits of a kept value", 1, 1, 32, 1),
        choice("per", "shown:", [*PER]),
    ]
    at_slider, formulas = places("pow(2, -e)"), places("datum.p")
    names = list(formulas)
    text = (
        "['kept: one entry of ' + format(pow(2, e), '.3~r') + '; bits for the place of each:', "
        f"'entropy ' + format({at_slider['entropy']}, '.2f') + ', Golomb-Rice ' + "
        f"format({at_slider['Golomb-Rice']}, '.2f') + ', bitmap ' + format(pow(2, e), '.3~r'), "
        "'with its value, Golomb-Rice is ' + "
        f"format(32 * pow(2, e) / ({at_slider['Golomb-Rice']} + v), '.3~r') + ' times smaller']"
    )
    which = f"indexof({json.dumps([*PER])}, per)"
    shown = f"[{', '.join(formula for _, formula in PER.values())}][{which}]"
    axis = alt.Axis(values=list(range(1, 11)), labelExpr="'1/' + pow(2, datum.value)")
    scale = alt.Scale(domain=[1, 10], nice=False)
    x = alt.X("e:Q", title="share of entries kept", axis=axis, scale=scale)
    top = alt.ExprRef(f"{[top for top, _ in PER.values()]}[{which}]")
    y = alt.Y("y:Q", title=None, scale=alt.Scale(domainMin=0, domainMax=top, nice=False))
    legend = {"orient": "top", "title": None, "columns": 2, "symbolSize": 300}
    colour = series(alt.Color, "code", names, [GREY, *vega.COLOURS[:3]], legend)
    dash = series(alt.StrokeDash, "code", names, vega.DASHES, legend)
    layers = [
        alt.Chart(alt.sequence(1, 10.01, 0.05, as_="e"))
        .transform_calculate(p="pow(2, -datum.e)", **formulas)
        .transform_fold(names, as_=["code", "bits"])
        .transform_calculate(y=shown)
        .mark_line(strokeWidth=2, clip=True)
        .encode(x, y, colour, dash),
        alt.Chart(vega.ONE)
        .transform_calculate(e="e")
        .mark_rule(**DOTTED, strokeWidth=1.5)
        .encode(x),
    ]
    if measured:
        dots = [
            {"e": row["e"], "kind": kind, "bits": row[kind] * 2 ** row["e"]}
            for row in measured
            for kind in ("positions", "mask")
        ]
        shape = series(alt.Shape, "kind", ["positions", "mask"], ["circle", "square"], None)
        layers.append(
            alt.Chart(alt.InlineData(values=dots))
            .transform_calculate(p="pow(2, -datum.e)", entropy=formulas["entropy"], y=shown)
            .mark_point(size=55, strokeWidth=1.8, clip=True, color=GREY)
            .encode(x, y, shape)
        )
    title = heading(text, lineHeight=18, offset=8)
    return layered(260, params, layers, grid=False, title=title)


def errors(measured: Sequence[Mapping[str, Any]], one: str, other: str) -> dict[str, Any]:
    """Relative error against bits an entry, both logarithmic: all coders in grey, two in colour,
    and 4^-bits, the least for independent normal entries.

    ``measured``: rows of ``coder``, ``setting``, ``round`` (powers of 10^(1/2), rounded to 1 or 3
    times a power of ten), ``bits`` and ``error``; what loses nothing is left out. ``one`` and
    ``other`` are in colour at first.
    """
    from .vega import BLUE, GREY, ORANGE, alt, choice, heading, layered, slider

    rows = [
        dict(row) | {"e": round(2 * math.log10(row["round"])) / 2}
        for row in measured
        if row["error"] > 0
    ]
    names = list(dict.fromkeys(row["coder"] for row in rows))
    rounds = "format(floor(pow(10, e) / pow(10, floor(e))) * pow(10, floor(e)), 'd')"
    params = [
        slider("e", "round", 0, 0, 2, 0.5),
        choice("one", "blue", names, one, "select"),
        choice("other", "orange", names, other, "select"),
        {"name": "saysRound", "expr": rounds},
    ]
    axis = alt.Axis(values=[0.1, 0.3, 1, 2, 4, 8, 32])
    x = alt.X("bits:Q", title="bits an entry", axis=axis)
    x = x.scale(type="log", nice=False, domain=[0.03, 40])
    axis = alt.Axis(values=[1e-4, 1e-3, 0.01, 0.1, 1, 10, 100, 1000], format="~r")
    y = alt.Y("error:Q", title="relative error", axis=axis)
    y = y.scale(type="log", nice=False, domain=[2e-5, 3000])
    tooltip = [
        alt.Tooltip("coder:N", title="coder"),
        alt.Tooltip("setting:N", title="setting"),
        alt.Tooltip("bits:N", title="bits an entry", format=".3f"),
        alt.Tooltip("error:N", title="relative error", format=".3~g"),
    ]

    def of_two(blue: Any, orange: Any) -> Any:
        test = alt.when("datum.coder == one")
        return test.then(alt.value(blue)).otherwise(alt.value(orange))

    path = {"x": x, "y": y, "detail": "coder:N", "order": "bits:O"}
    now = alt.Chart().transform_filter("abs(datum.e - e) < 0.1")
    two = now.transform_filter("datum.coder == one || datum.coder == other")
    bound = alt.Chart(alt.sequence(0, 8.01, 0.05, as_="bits"))
    points = {"color": GREY, "size": 16}
    layers = [
        bound.transform_filter("datum.bits > 0.03")
        .transform_calculate(error="pow(4, -datum.bits)")
        .mark_line(strokeDash=[2, 3], color=GREY, clip=True)
        .encode(x, y),
        now.mark_line(strokeWidth=1, color=GREY, clip=True, opacity=0.5, point=points).encode(
            **path, tooltip=tooltip
        ),
        two.mark_line(strokeWidth=2, clip=True).encode(
            **path, color=of_two(BLUE, ORANGE), strokeDash=of_two([1, 0], [6, 3])
        ),
        two.mark_point(filled=True, size=60, opacity=1, clip=True).encode(
            *(x, y), color=of_two(BLUE, ORANGE), shape=of_two("circle", "square"), tooltip=tooltip
        ),
        two.transform_aggregate(end="argmin(bits)", groupby=["coder"])
        .transform_calculate(bits="datum.end.bits", error="datum.end.error")
        .mark_text(align="left", dy=-12, fontSize=13)
        .encode(x, y, text="coder:N", color=of_two(BLUE, ORANGE)),
    ]
    shared = alt.Chart(alt.InlineData(values=rows))
    title = heading("'round ' + saysRound", offset=8)
    return layered(320, params, layers, shared, grid=False, title=title)


# ---- a message, byte by byte ---------------------------------------------------------------------

HEAD = ("magic", "version", "kind", "schema", "round", "client", "samples n_k")
WIDTHS = (4, 1, 1, 8, 4, 4, 4)
READS: dict[str, Callable[..., str]] = {  # what a reader is asked for -> how to say what came
    "number": lambda value, size: f"whole number, {value}",
    "floats": lambda value, count, dtype="<f4": f"{_times(count, 'float')}, {_few(value, '.4g')}",
    "fields": lambda value, count, width: f"{_times(count, f'{width}-bit number')}, {_few(value)}",
    "rice": lambda value, count, b, limit: f"{_times(count, 'Golomb-Rice gap')}, {_few(value)}",
    "take": lambda value, size: _times(size, "byte"),
}


class Span(NamedTuple):
    """Bytes from ``start`` to before ``end``, and what they are."""

    start: int
    end: int
    section: str
    field: str


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _few(values: Any, form: str = "") -> str:
    return ", ".join(format(v, form) for v in values[:6].tolist()) + ", ..." * (len(values) > 6)


def _address(data: Any) -> int:
    return np.frombuffer(data, np.uint8).__array_interface__["data"][0]


@contextmanager
def _listening(data: bytes, into: list[tuple[int, int, str]]) -> Iterator[None]:
    """Meanwhile, every reader of a part of ``data`` tells what it reads."""
    first, depth = _address(data), 0

    def tell(start: int, size: int, what: str) -> None:
        if size and 0 <= start - first < len(data):
            into.append((start - first, start - first + size, what))

    def telling(name: str, method: Callable) -> Callable:
        @wraps(method)
        def read(self: Reader, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            start, before, depth = _address(self.rest), len(self.rest), depth + 1
            try:
                value = method(self, *args, **kwargs)
            finally:
                depth -= 1
            if not depth:
                tell(start, before - len(self.rest), READS[name](value, *args, **kwargs))
            return value

        return read

    def read_floats(sections: Sequence[Any], *how: Any) -> tuple[torch.Tensor, ...]:
        tensors = dense(sections, *how)
        for section, t in zip(sections, tensors, strict=True):
            tell(_address(section), len(section), READS["floats"](t.flatten(), t.numel()))
        return tensors

    methods, dense = {name: getattr(Reader, name) for name in READS}, coders.read_floats
    try:
        for name, method in methods.items():
            setattr(Reader, name, telling(name, method))
        coders.read_floats = read_floats  # type: ignore[assignment]
        yield
    finally:
        for name, method in methods.items():
            setattr(Reader, name, method)
        coders.read_floats = dense


def spans_of(data: bytes, schema: Schema, decode: Callable[[bytes], Any]) -> list[Span]:
    """The parts of a message, in order and without gaps. ``decode`` is what reads it, such as a
    server's ``receive``; what it refuses is not taken apart. Bytes of which its coder does not tell
    what they are, because it reads them in a way of its own, are a part by themselves."""
    told: list[tuple[int, int, str]] = []
    with _listening(data, told):
        decode(data)
    ends = np.cumsum([0, *WIDTHS]).tolist()
    values = [f"{v!r}" for v in _HEADER.unpack_from(data)]
    parts = zip(ends, ends[1:], HEAD, values, strict=False)
    spans = [Span(a, b, "head", f"{name}, {value}") for a, b, name, value in parts]
    at, sections = ends[-1], take_apart(memoryview(data)[_HEADER.size : -_CRC.size], schema)
    bits = (len(schema.shapes) + 7) // 8
    spans.append(Span(at, at + bits, "present bits", f"{len(sections)} of {len(schema.shapes)}"))
    at += bits
    for name, section in sections.items():
        spans.append(Span(at, at + 4, "lengths", f"{name}, {_times(len(section), 'byte')}"))
        at += 4
    for name, section in sections.items():
        shape = tuple(schema.shapes[name])
        section_name = f"{name} {' x '.join(map(str, shape))}"
        end = at + len(section)
        for a, b, what in [*sorted(t for t in told if at <= t[0] < end), (end, end, "")]:
            if at < a:
                spans.append(Span(at, a, section_name, _times(a - at, "byte")))
            if at <= a < b:  # what is read twice is told once
                spans.append(Span(a, b, section_name, what))
                at = b
        at = end
    spans.append(Span(at, len(data), "checksum", data[at:].hex(" ")))
    return spans


def message(
    number: str, data: bytes, schema: Schema, decode: Callable[[bytes], Any], caption: str
) -> Shown:
    """The message as hexadecimal numbers: point at a part, or step to it with the tab key, and
    read what it is."""
    anchor, below = said("Figure", number, caption)
    shown, kind, before = [], 0, ""
    for span in spans_of(data, schema, decode):
        kind, before = kind + (span.section != before), span.section
        says = html.escape(
            f"{_times(span.end - span.start, 'byte')} from {span.start:,}: "
            f"{span.section}: {span.field}"
        )
        shown.append(
            f'<span class="fl-part fl-part-{kind % 2}" tabindex="0" role="note" '
            f'aria-label="{says}">{data[span.start : span.end].hex(" ")}'
            f'<span class="fl-says">{says}</span></span>'
        )
    return Shown(
        f'<figure class="fl fl-message" id="{anchor}"><div class="fl-bytes">{" ".join(shown)}'
        f"</div>{below}</figure>",
        f"A message of {len(data):,} bytes in {len(shown)} parts.",
    )


# ---- exercises -----------------------------------------------------------------------------------


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_positions(answer: Any) -> str | None:
    """(send, receive): send (x [n], k, seed) -> [k]; receive (values, n, seed) -> [n], n/k times
    the entries drawn. How a side draws from the seed is up to it."""
    with torch.random.fork_rng(devices=[]):
        return _random_positions(answer)


def _random_positions(answer: Any) -> str | None:
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(callable(f) for f in answer):
        return "two functions are asked for: pass the pair (send, receive)"
    send, receive = answer
    n, k = 40, 10
    x = torch.rand(n, generator=seeded(7)) + 1
    before, counts, elsewhere = x.clone(), torch.zeros(n), False
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
        arrived = got != 0
        if arrived.sum() > k:
            return "more than k entries come out; all that were not sent are zero"
        if arrived.sum() < k:
            return f"only {int(arrived.sum())} of {k} entries come out: a position was drawn twice"
        counts += arrived
        if not torch.allclose(got[arrived], x[arrived] * n / k):
            if torch.allclose(got[arrived], x[arrived]):
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
    if ((counts == 0) | (counts == 20)).all():
        return "the positions are the same for every seed"
    for seed in range(20, 400):
        counts += torch.as_tensor(receive(send(x, k, seed), n, seed)) != 0
    if counts.min() < 55 or counts.max() > 145:  # 100 expected, standard deviation 8.7
        return "some entries are sent more often than others, so the mean over seeds is not x"
    return None


BITS = 6 + 1 / (1 - 0.99**64)  # a position at p = 0.01, with b* = 6
ratio = number(
    3200 / (BITS + 1),
    {
        3200 / BITS: "each kept entry also costs the one bit of its sign",
        3200 / 33: "the positions are Rice words here, not 32-bit numbers",
        3200: "that leaves out the positions",
        3200 / (BITS + 32): "only the sign of a kept entry is sent, not its four bytes",
        0.01 * (BITS + 1): "that is the number of bits an entry; how many times less than 32 is it",
    },
    tolerance=0.01,
)


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

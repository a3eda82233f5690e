"""Exercises of the chapter on composing."""

from typing import Any

from . import Function, number

SIX = ("model", "objective", "optimizer", "uplink", "downlink", "server")
Parts = dict[str, tuple[set[str], set[str]]]


def six(**own: tuple[set[str], set[str]]) -> Parts:
    """Six parts that need and give nothing, but for those named."""
    return {kind: own.get(kind, (set(), set())) for kind in SIX}


UPDATES, MASKS = (set(), {"update"}), ({"scores"}, {"mask"})
CASES: tuple[tuple[Parts, list[str], str], ...] = (
    (six(uplink=UPDATES, server=({"update"}, set())), [], "nothing is missing"),
    (six(uplink=MASKS, server=({"mask"}, set())), ["uplink"], "one need is unmet"),
    (
        six(uplink=MASKS, server=({"update"}, set())),
        ["server", "uplink"],
        "two parts are refused, each for a need of its own",
    ),
    (
        six(downlink=({"steps"}, {"steps"}), uplink=UPDATES, server=({"update"}, set())),
        ["downlink"],
        "what a part gives itself does not count",
    ),
    (
        six(model=(set(), {"scores"}), uplink=MASKS, server=({"mask", "update"}, set())),
        ["server"],
        "a part has two needs, and one of them is met",
    ),
    (
        six(optimizer=({"a", "b"}, set()), model=(set(), {"a"}), downlink=(set(), {"b"})),
        [],
        "two needs are met by two different parts",
    ),
)


def missing(answer: Function) -> str | None:
    """answer(parts) -> the kinds of parts that are refused, sorted; parts: (needs, gives)."""
    for parts, want, reason in CASES:
        before = repr(parts)
        got = answer(parts)
        if repr(parts) != before:
            return "the parts that came in are changed"
        if not isinstance(got, list):
            return f"a list is asked for, not {type(got).__name__}"
        if sorted(got) != got or len(set(got)) != len(got):
            return f"each kind is named once, in alphabetical order, not {got}"
        if got != want:
            return f"{reason}: {want} is refused, not {got}"
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
    wrong={
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
    "compose-needs": missing,
    "compose-link": link,
    "compose-message": message,
    "compose-luck": luck,
}

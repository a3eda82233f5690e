"""Answers to the exercises on composing: right ones, and typical wrong ones with their reasons."""


def unmet(parts):
    found = []
    for kind, (needs, _) in parts.items():
        others = set().union(*(gives for k, (_, gives) in parts.items() if k != kind))
        if not needs <= others:
            found.append(kind)
    return sorted(found)


def unmet_with_own(parts):
    everything = set().union(*(gives for _, gives in parts.values()))
    return sorted(kind for kind, (needs, _) in parts.items() if not needs <= everything)


def unmet_wholly(parts):
    """Only who gets nothing of what it needs."""
    found = []
    for kind, (needs, _) in parts.items():
        others = set().union(*(gives for k, (_, gives) in parts.items() if k != kind))
        if needs and not needs & others:
            found.append(kind)
    return sorted(found)


def unmet_by_one(parts):
    """Who finds no single part that gives everything."""
    return sorted(
        kind
        for kind, (needs, _) in parts.items()
        if not any(needs <= gives for k, (_, gives) in parts.items() if k != kind)
    )


def unmet_changing(parts):
    answer = unmet(parts)
    parts.clear()
    return answer


def choose(mixes, up, down, seconds, bits=8, fits=lambda a, b: a + b):
    there = [
        (accuracy, name)
        for name, accuracy, u, d in mixes
        if fits(bits * u / up, bits * d / down) <= seconds
    ]
    return max(there)[1] if there else None


def cheapest(mixes, up, down, seconds):
    there = [(u + d, n) for n, _, u, d in mixes if 8 * u / up + 8 * d / down <= seconds]
    return min(there)[1] if there else None


def luck(chosen, again):
    best = [max(range(len(row)), key=row.__getitem__) for row in chosen]
    gaps = [r[k] - o[k] for k, r, o in zip(best, chosen, again, strict=True)]
    return sum(gaps) / len(gaps)


def luck_anew(chosen, again):
    gaps = [max(r) - max(o) for r, o in zip(chosen, again, strict=True)]
    return sum(gaps) / len(gaps)


def luck_of_the_last(chosen, again):
    return luck([row[::-1] for row in chosen], [row[::-1] for row in again])


RIGHT = {
    "compose-needs": [unmet],
    "compose-link": [choose],
    "compose-message": [3_728, 3_728.0],
    "compose-luck": [luck],
}
WRONG = [
    ("compose-needs", unmet_with_own, "itself does not count"),
    ("compose-needs", unmet_wholly, "one of them is met"),
    ("compose-needs", unmet_by_one, "two different parts"),
    ("compose-needs", unmet_changing, "are changed"),
    ("compose-needs", lambda parts: set(unmet(parts)), "a list"),
    ("compose-needs", lambda parts: unmet(parts)[::-1], "alphabetical"),
    ("compose-needs", lambda parts: ["server"], "nothing is missing"),
    ("compose-link", lambda *its: choose(*its, bits=1), "8 bits"),
    ("compose-link", lambda m, u, d, s: choose(m, u, d, s, fits=max), "one after the other"),
    ("compose-link", lambda m, u, d, s: choose(m, u, u, s), "only the way up"),
    ("compose-link", lambda m, u, d, s: choose(m, d, d, s), "only the way up"),
    ("compose-link", cheapest, "most accurate"),
    ("compose-link", lambda m, u, d, s: choose(m, u, d, s) or "cheap", "nothing fits"),
    ("compose-message", 2_499, "small tensors"),
    ("compose-message", 3_627, "envelope"),
    ("compose-message", 2_600, "travel whole"),
    ("compose-message", 41_000, "too large"),
    ("compose-message", 40_957, "dense"),
    ("compose-message", 3_712, "scale"),
    ("compose-message", 2_487, "one bit"),
    ("compose-message", 21_109, "not bytes"),
    ("compose-message", 74_560, "all rounds"),
    ("compose-luck", luck_anew, "chosen anew"),
    (
        "compose-luck",
        lambda c, a: sum(luck([r], [o]) for r, o in zip(c, a, strict=True)),
        "the mean",
    ),
    ("compose-luck", luck_of_the_last, "the first counts"),
    ("compose-luck", lambda c, a: abs(luck(c, a)), "bad"),
    ("compose-luck", lambda c, a: luck(a, c), "chosen by the first"),
]

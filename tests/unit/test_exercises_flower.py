"""Answers to the exercises on Flower: right ones, and typical wrong ones with their reasons."""


def claimed(row):
    return len(row["clients"]) - len(row["refused"])


def silent(history, size):
    return [row["round"] for row in history.rows if row["bytes_up"] < size * claimed(row)]


def uneven(history, size):
    return [row["round"] for row in history.rows if row["bytes_up"] != size * claimed(row)]


def everybody(history, size):
    return [row["round"] for row in history.rows if row["bytes_up"] < size * len(row["clients"])]


def quiet(history, size):
    return [t for t in silent(history, size) if not history.rows[t - 1]["refused"]]


RIGHT = {"flower-bytes": [16_322_000, 16_322_000.0], "flower-silent": [silent]}
WRONG = [
    ("flower-bytes", 15_962_000, "greetings are missing"),
    ("flower-bytes", 16_034_000, "never drawn"),
    ("flower-bytes", 33_962_000, "every round"),
    ("flower-bytes", 19_562_000, "each time"),
    ("flower-bytes", 13_562_000, "our bytes"),
    ("flower-bytes", 13_922_000, "what Flower adds"),
    ("flower-bytes", 8_241_000, "downloads"),
    ("flower-bytes", 8_441_000, "uploads"),
    ("flower-bytes", 80_170_000, "a fifth"),
    ("flower-bytes", 130_576_000, "bits"),
    ("flower-bytes", 1_000, "too small"),
    ("flower-bytes", None, "TypeError"),
    ("flower-silent", uneven, "damaged"),
    ("flower-silent", everybody, "openly"),
    ("flower-silent", quiet, "one is named"),
    ("flower-silent", lambda h, size: [], "an empty refused"),
    ("flower-silent", lambda h, size: [t - 1 for t in silent(h, size)], "count from 1"),
    ("flower-silent", lambda h, size: tuple(silent(h, size)), "a list"),
    ("flower-silent", lambda h, size: [row["round"] for row in h.rows], "nobody was missing"),
]

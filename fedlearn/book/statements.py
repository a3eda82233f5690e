"""What of a paper holds here: its statements about accuracies, asked of the stored runs.

``data/chapters/<name>.yaml`` states them under ``holds``: what the paper ``says``, the labels of
two rows of its recipes, ``one`` and ``other``, and what the first should be, ``ahead``, ``level``
or ``no lower``; ``splits`` and ``data``, if not all; ``runs``, if not those of the three scales.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from .. import results
from ..history import History
from ..recipes import SCALES, results_folder
from ..report import spread
from .grids import chapter_file
from .show import Shown, missing, table

POINT = 1.0  # a difference that is level, in points of accuracy
DATA = {
    "digits": "digits",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "Tiny ImageNet",
    "cinic10": "CINIC-10",
}


def leads(histories: Iterable[History], one: str, other: str) -> dict[tuple[str, str], list[float]]:
    """(data set, split) -> by how many points of accuracy, mean of the last five tests, the runs
    with the label ``one`` are ahead of those with the label ``other``, a number for each seed that
    both have."""
    runs, _ = results.tables(histories)
    if runs.empty:
        return {}
    where = ["dataset", "partition", "seed"]
    ends = runs.assign(label=runs["label"].str.lower()).set_index(["label", *where])["late"]
    ends = ends[~ends.index.duplicated(keep="last")]
    first, second = (
        100 * ends[ends.index.get_level_values("label") == label.lower()].droplevel("label")
        for label in (one, other)
    )
    lead = (first - second).dropna().sort_index()
    return {key: list(its) for key, its in lead.groupby(level=where[:2])}


def verdict(lead: Sequence[float], wanted: str) -> str:
    """ "holds", "does not hold", "cannot be told", or "one seed" where there are not two.

    >>> verdict([2.0, 3.0], "ahead"), verdict([-0.2, 0.4], "level"), verdict([-2, 3], "no lower")
    ('holds', 'holds', 'cannot be told')
    """
    if len(lead) < 2:
        return "one seed"
    behind = _ahead([-points for points in lead])
    point = POINT + 1e-9  # 20 of 2,000 images are a point, whatever floats make of it
    holds, fails = {
        "ahead": (_ahead(lead), max(lead) <= 0),
        "level": (max(map(abs, lead)) <= point, _ahead(lead) or behind),
        "no lower": (min(lead) >= -point, behind),
    }[wanted]
    return "holds" if holds else "does not hold" if fails else "cannot be told"


def _ahead(lead: Sequence[float]) -> bool:
    return min(lead) > 0 and statistics.mean(lead) > statistics.stdev(lead)


def _points(lead: Sequence[float]) -> str:
    many = f"; {len(lead)} seeds" if len(lead) > 1 else ""
    text = f"({spread(lead, '+.1f')}{many})"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def holds(number: str, name: str) -> Shown:
    """``fl.book.holds("5.11", "fed_kgf")``: the statements and what became of each here."""
    spec = chapter_file(name)["holds"]
    found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    columns: dict[str, str] = {}  # its first cell, if it has no runs: the command for them
    for scale, of in spec.get("runs", _scales(name)).items():
        stored = results.load(of["results"])
        if not stored:
            columns[scale] = missing(of["command"])
        for said in spec["statements"]:
            for (data, split), lead in leads(stored, said["one"], said["other"]).items():
                if split in said.get("splits", [split]) and data == said.get("data", data):
                    column = f"{DATA.get(data, data)}, {scale}"
                    columns[column] = ""
                    its = found.setdefault((said["says"], split), {})
                    its[column] = verdict(lead, said["wanted"]), _points(lead)
    rows = [
        {"the paper says": says, "split": split}
        | {c: " ".join(its.get(c, ())) or ("" if k else first) for c, first in columns.items()}
        for k, ((says, split), its) in enumerate((found or {("", ""): {}}).items())
    ]
    counts = Counter(what for its in found.values() for what, _ in its.values())
    caption = f"""What the paper says, asked of stored runs: by how many points of accuracy (mean
        of the last five tests, or of all if there are fewer, because curves jump) the first that is
        named is in front of the second, mean ± standard deviation over the seeds. *Ahead* holds if
        it is in front with each seed, and on average by more than the standard deviation; it does
        not hold if it is in front with none. *Level* holds if the two are at most {POINT:g} point
        apart with each seed, *no lower* if the first is at most as far behind; they do not hold if
        one is ahead, or the second. With more than one seed {counts["holds"]} hold,
        {counts["does not hold"]} do not and {counts["cannot be told"]} cannot be told."""
    return table(
        number, rows, " ".join(caption.split()), dict.fromkeys(columns, "points of accuracy")
    )


def _scales(name: str) -> dict[str, dict[str, str]]:
    """The stored runs of the three scales of a paper's recipes, and the commands for them."""
    command = f"fedlearn reproduce {name} --scale"
    return {
        scale: {"results": results_folder(name, scale), "command": f"{command} {scale}"}
        for scale in SCALES
    }

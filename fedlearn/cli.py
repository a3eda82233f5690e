"""``fedlearn``: run and compare methods from a terminal, check claims, reproduce the papers'
comparisons, pack and show stored runs, make the class edition.

A command is a function named in ``COMMANDS``. Its docstring is its help, and the fields of the
dataclasses that it takes are its options; what states a run is ``fedlearn.experiment.Experiment``.
Nothing that needs torch is imported before a command is called.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass
from functools import partial
from itertools import product
from typing import Any, NoReturn, get_args

from . import __version__
from .errors import DataError, WireError, pick, said
from .experiment import Experiment
from .options import add, flags_of, given, opt, read_pairs, read_value
from .runs import Comparison, Engine, Picture, no_bar, provenance, run_all

_unnamed = partial(opt, MISSING, positional=True)

# ---- run and compare -----------------------------------------------------------------------------


def run(experiment: Experiment, engine: Engine, picture: Picture) -> None:
    """Run one method.

    Prints or writes its history.
    """
    run_all([experiment], engine, picture)


def compare(experiments: list[Experiment], engine: Engine, comparison: Comparison) -> None:
    """Run several methods on the same task.

    Prints what each reached and what it cost. A method may have options of its own behind a colon,
    each with one value or several, which are all tried: fedavg rpn:share=0.25/0.5/1. With several
    seeds each runs with each of them, and mean and standard deviation are shown.
    """
    run_all(experiments, engine, comparison, comparison.jobs)


# ---- methods, check, reproduce, pack -------------------------------------------------------------


def methods() -> None:
    """List the methods, their options and the parts they replace."""
    from .methods import METHODS
    from .round import Averaging

    base = Averaging().parts()
    for name, function in METHODS.items():
        first = (sys.modules[function.__module__].__doc__ or "").split("\n\n")[0]
        options = str(inspect.signature(function)).split(" -> ")[0]
        print(f"{name}{options}\n    {' '.join(first.split())}")
        for part, text in function().parts().items():
            if text != base.get(part):
                print(f"    {part:<10}{text}")
        print()


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Which claims are recomputed."""

    paper: str | None = opt(None, "only this paper, such as rpn")


def check(ledger: Ledger) -> int:
    """Recompute every claim of the ledger data/claims.yaml."""
    from . import ledger as claims

    if ledger.paper is not None:
        papers = dict.fromkeys(claim["paper"] for claim in claims.load())
        pick(ledger.paper, papers, "paper in the ledger")
    results = claims.audit(ledger.paper, strict=False)
    print(claims.report(results))
    return 1 if any(r.problem for r in results) else 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Which runs are done, in the words of ``reproduce.reproduce``."""

    recipe: str | None = opt(
        None,
        "a table or figure, such as fed_kgf_figure3, or all of a paper: fed_gkt, fed_kgf, "
        "fed_mmd_fusion, fed_repopt or rpn (default: all)",
        positional=True,
        nargs="?",
    )
    scale: str = opt(
        "quick",
        "quick: handwritten digits (default); small: real pictures, networks that two CPU cores "
        "train; full: the paper's data and network",
    )
    only: tuple[str, ...] = opt(
        (), "only this row of the comparison; may be given several times", "ROW"
    )
    rounds: int | None = opt(None, "communication rounds (default: the recipe's)")
    train: int | None = opt(None, "keep only N training images", "N")
    test: int | None = opt(None, "keep only N test images", "N")
    split: tuple[str, ...] | None = opt(
        None, "only this one of the recipe; may be given several times", "P", flag="--partition"
    )
    seeds: tuple[int, ...] | None = opt(
        None, "a seed, may be given several times (default: the recipe's)", "SEED", flag="--seed"
    )
    device: str = opt(
        "auto",
        "auto (default: a GPU if there is one), cpu, cuda, ...; on a GPU, runs of full scale train "
        "in bfloat16",
    )
    jobs: int = opt(1, "runs at a time, each in a process of its own", "N")
    progress: bool = no_bar()


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Whether anything is run."""

    plan: bool = opt(
        False, "run nothing; list the runs, what is stored, about how many hours, and missing data"
    )


def reproduce(recipe: Recipe, planning: Planning) -> None:
    """Do the runs behind a table or figure of the papers, and print what is stored of it.

    What is stored is left alone, and what was stopped goes on. New runs are kept in runs/ below the
    working directory, a file each, until `pack` puts them beside the book's.
    """
    from . import reproduce as recipes

    how = asdict(recipe)
    if planning.plan:
        for name in ("jobs", "progress"):
            how.pop(name)
        print(recipes.plan(**how))
    else:
        print(recipes.reproduce(**how, provenance=provenance()).to_string())


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Which runs are packed."""

    names: tuple[str, ...] = opt(
        (),
        "a table or figure, or all of a paper, as for `reproduce` (default: all)",
        "RECIPE",
        positional=True,
        nargs="*",
        action="extend",
    )


def pack(packing: Packing) -> None:
    """Put finished runs of runs/ into data/results of the checkout.

    Each paper and scale has one file there. Runs of code that was not committed are refused.
    """
    from .reproduce import pack as packed

    print("\n".join(packed(packing.names)) or "Nothing to pack.")


# ---- leaderboard and classroom -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Board:
    """Of which runs, and where to."""

    places: tuple[str, ...] = _unnamed(
        "files that `run` or `compare` wrote with --out, or folders of them",
        "FILE",
        nargs="+",
        action="extend",
    )
    target: float | None = opt(
        None,
        "the accuracy, 0 to 1, until which bytes are counted (default: 0.9 of the best on the same "
        "data, split and clients)",
        "ACCURACY",
    )
    out: str = opt("leaderboard.html", "the page to write", "FILE")


def leaderboard(board: Board) -> None:
    """Write a page on which runs are sorted and filtered.

    What each reached, what it sent, its command and its files. The page is one file and needs no
    network. The book's own runs are in data/results.
    """
    from . import leaderboard as pages

    rows, runs, left = pages.write(board.places, board.out, board.target)
    for sentence in left:
        print(f"left out: {sentence}", file=sys.stderr)
    print(f"{board.out}: {rows} rows of {runs} runs")


@dataclass(frozen=True, kw_only=True)
class Folders:
    """From where to where."""

    folder: str = _unnamed("the folder with the chapters, book/ in a checkout")
    out: str = _unnamed("the folder to write")
    force: bool = opt(False, "write over chapters that are there already")


def classroom(folders: Folders) -> None:
    """Write the chapters without the solutions, for a class."""
    from .book.classroom import make

    print(*make(folders.folder, folders.out, folders.force), sep="\n")


# ---- the parser ----------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[..., int | None]] = {
    f.__name__: f for f in (run, compare, methods, check, reproduce, pack, leaderboard, classroom)
}


def takes(command: str) -> dict[type, bool]:
    """The dataclasses that a command takes, and of each whether it takes a list."""
    kinds = [p.annotation for p in inspect.signature(COMMANDS[command]).parameters.values()]
    return {(get_args(kind) or (kind,))[0]: bool(get_args(kind)) for kind in kinds}


class Parser(argparse.ArgumentParser):
    """What is wrong is an error like any other, in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help).")


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = Parser(
        prog="fedlearn",
        description="Communication-efficient federated learning, simulated with real bytes.",
        epilog="Example: fedlearn compare fedavg rpn --partition dirichlet:0.5 --rounds 20 "
        "--out both.json",
    )
    top.add_argument("--version", action="version", version=f"fedlearn {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, call in COMMANDS.items():
        text = inspect.getdoc(call) or name
        first = text[0].lower() + text.split("\n\n")[0][1:].rstrip(".")
        own = commands.add_parser(name, help=first, description=text)
        for kind, several in takes(name).items():
            add(own, kind, several)
    return top


def experiments(args: argparse.Namespace) -> list[Experiment]:
    """What the arguments state, once for each method, choice of its options, and seed.

    Each method gets the options that it knows. One that none knows they all get, and refuse.
    """
    from .methods import find

    plain = given(args, Experiment)
    words, seeds = plain["method"], plain.pop("seed", 0)
    words, seeds = (x if isinstance(x, tuple) else (x,) for x in (words, seeds))
    shared = read_pairs(plain.pop("options", ()))
    chosen = [choice for word in words for choice in choices(word)]
    known = {name: inspect.signature(find(name)).parameters for name, _ in chosen}
    foreign = shared.keys() - {option for own in known.values() for option in own}
    made = []
    for name, own in chosen:
        options = {o: v for o, v in shared.items() if o in known[name] or o in foreign} | own
        fields = plain | {"method": name, "options": options}
        made += [Experiment(**fields, seed=seed) for seed in seeds]
    return made


def choices(word: str) -> list[tuple[str, dict[str, Any]]]:
    """``rpn:share=0.5/1`` -> ("rpn", {"share": 0.5}) and ("rpn", {"share": 1})."""
    name, _, pairs = word.rpartition(":")
    if "=" not in pairs:
        return [(word, {})]
    values = {o: text.split("/") for o, text in (p.partition("=")[::2] for p in pairs.split(","))}
    every = product(*(map(read_value, texts) for texts in values.values()))
    return [(name, dict(zip(values, choice, strict=True))) for choice in every]


def main(argv: Sequence[str] | None = None) -> int | None:
    """The command ``fedlearn`` -> its exit status. What is wrong is said in one sentence."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and not argv[0].startswith("-"):
            pick(argv[0], COMMANDS, "command")
        args, unknown = parser().parse_known_args(argv)
        kinds = takes(args.command)
        for word in (text.partition("=")[0] for text in unknown):
            if not word.startswith("-"):
                raise ValueError(f"fedlearn {args.command} takes no further argument {word!r}.")
            flags = ["--help", *(name for kind in kinds for name in flags_of(kind))]
            pick(word, dict.fromkeys(flags), f"option of fedlearn {args.command}")
        told: list[Any] = []
        for kind, several in kinds.items():
            made = experiments(args) if kind is Experiment else [kind(**given(args, kind))]
            told.append(made if several else made[0])
        return COMMANDS[args.command](*told)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.stdout = None
        return 0
    except (ValueError, OSError, ImportError, DataError, WireError, MemoryError) as error:
        print(f"fedlearn: {said(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

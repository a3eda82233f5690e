"""``fedlearn``. A command is a function named in ``COMMANDS``: its docstring is its help, its
arguments and the fields of the dataclasses that it takes are its options. Nothing here imports
torch."""

import inspect
import io
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, fields
from functools import partial, wraps
from itertools import product
from typing import Annotated, Any, Literal

from tyro import MISSING, cli
from tyro.conf import (
    DisallowNone,
    FlagCreatePairsOff,
    OmitArgPrefixes,
    Positional,
    PositionalMetavarFromFieldName,
    UseAppendAction,
    arg,
)

from . import __version__
from .errors import DataError, error_text, pick
from .experiment import Engine, Experiment, Link, Output, read_pairs, read_value

Texts = UseAppendAction[tuple[str, ...]]
Seeds = Annotated[UseAppendAction[tuple[tuple[int, ...], ...]], arg(name="seed", metavar="SEED")]


@dataclass(frozen=True, kw_only=True)
class One(Experiment):
    """What states a run, as it is typed."""

    method: Positional[str] = MISSING
    options: Annotated[Texts, arg(name="option", metavar="NAME=VALUE")] = ()  # type: ignore
    augment: Annotated[Texts, arg(metavar="A")] = ()
    metrics: Annotated[Texts, arg(name="metric", metavar="M")] = ()

    def __post_init__(self) -> None:
        """Checked when ``experiments`` makes an Experiment of it."""


@dataclass(frozen=True, kw_only=True)
class Several(One):
    """What states several runs, as they are typed."""

    method: Positional[tuple[str, ...]] = MISSING  # type: ignore
    seed: Seeds = ()  # type: ignore


def run(experiment: One, engine: Engine, output: Output, link: Link) -> None:
    """Run one method. Prints or writes its history."""
    from .runs import run_all

    run_all(experiments(experiment), engine, output, link)


def compare(experiment: Several, engine: Engine, output: Output, link: Link, jobs: int = 1) -> None:
    """Run several methods on the same task. Prints what each reached and what it cost.

    A method may have options of its own behind a colon, each with one value or several, which are
    all tried: fedavg rpn:share=0.25/0.5/1. With several seeds each runs with each of them, and mean
    and standard deviation are shown.

    Parameters
    ----------
    jobs
        runs at a time, each in a process of its own
    """
    from .runs import run_all

    run_all(experiments(experiment), engine, output, link, jobs)


def experiments(stated: One) -> list[Experiment]:
    """What is stated, for each method, choice of its options and seed. An option goes to the
    methods that know it; one that none knows they all get, and refuse."""
    from .methods import find

    plain: dict[str, Any] = {f.name: getattr(stated, f.name) for f in fields(Experiment)}
    names, seeds = plain.pop("method"), plain.pop("seed")
    shared = read_pairs(plain.pop("options"))
    names = (names,) if isinstance(names, str) else names
    if not names:
        raise ValueError("A comparison takes a method, or several (see fedlearn compare --help).")
    seeds = (seeds,) if isinstance(seeds, int) else sum(seeds, ()) or (Experiment.seed,)
    chosen = [choice for name in names for choice in choices(name)]
    known = {name: inspect.signature(find(name)).parameters for name, _ in chosen}
    foreign = shared.keys() - {option for options in known.values() for option in options}
    runs = []
    for name, options in chosen:
        taken = {o: v for o, v in shared.items() if o in known[name] or o in foreign} | options
        runs += [Experiment(**plain, method=name, options=taken, seed=seed) for seed in seeds]
    return runs


def choices(text: str) -> list[tuple[str, dict[str, Any]]]:
    """``rpn:share=0.5/1`` -> ("rpn", {"share": 0.5}) and ("rpn", {"share": 1})."""
    name, _, pairs = text.rpartition(":")
    if "=" not in pairs:
        return [(text, {})]
    values = {o: v.split("/") for o, v in (p.partition("=")[::2] for p in pairs.split(","))}
    every = product(*(map(read_value, texts) for texts in values.values()))
    return [(name, dict(zip(values, choice, strict=True))) for choice in every]


def cost(
    network: Positional[str],
    input: Annotated[str, arg(metavar="CxHxW")],
    methods: Texts = (),
    clients: int = 10,
    rounds: int = 100,
    images: int = 100,
    link: str = "LTE",
    seed: int = 0,
    tokens: int | None = None,
    out: str | None = None,
    plot: str | None = None,
) -> None:
    """Count what each method would send for a network of your own, untrained.

    One client trains one step on random numbers, and its messages are coded, both ways.

    Parameters
    ----------
    network
        a name, or where it is: mine.py:net, torchvision.models:resnet50; a module, or a function
        without arguments or of (shape, classes)
    input
        the shape of one sample, such as 3x32x32
    methods
        only this one; by default all
    clients
        that take part in each round, for totals
    rounds
        of training, for totals
    images
        samples of a client, for the methods that send something for each
    link
        LoRaWAN, 2G, 3G, DSL, cable, LTE or fibre, for minutes and joules
    seed
        of the first weights
    tokens
        the network takes whole numbers below this, such as 1000, of the shape --input
    out
        also write all numbers there, as JSON; the table, if it ends in .html
    plot
        also draw the bytes there
    """
    from .costs import cost as count
    from .files import check_writable

    if plot:
        from .plot import check_image, save

        check_image(plot)
    for path in filter(None, (out, plot)):
        check_writable(path)
    words = [name for text in methods for name in text.split(",") if name]
    chosen = words if words and "all" not in words else "all"
    costs = count(network, input, chosen, clients, rounds, link, images, seed, tokens)
    print(costs)
    if out:
        (costs.to_html if out.endswith(".html") else costs.to_json)(out)
    if plot:
        save(costs.plot().figure, plot)


def methods() -> None:
    """List the methods, their options and the parts they replace."""
    from .core import Averaging
    from .methods import METHODS

    base = Averaging().parts()
    for name, function in METHODS.items():
        first = (sys.modules[function.__module__].__doc__ or "").split("\n\n")[0]
        options = str(inspect.signature(function)).split(" -> ")[0]
        print(f"{name}{options}\n    {' '.join(first.split())}")
        parts = {p: text for p, text in function().parts().items() if text != base.get(p)}
        for part, text in parts.items():
            print(f"    {part:<{max(map(len, parts))}}  {text}")
        print()


def check(paper: str | None = None) -> int:
    """Recompute every claim of the ledger data/claims.yaml.

    Parameters
    ----------
    paper
        only this paper, such as rpn
    """
    from . import ledger as claims

    if paper is not None:
        papers = dict.fromkeys(claim["paper"] for claim in claims.load())
        pick(paper, papers, "paper in the ledger")
    results = claims.audit(paper, strict=False)
    print(claims.report(results))
    return 1 if any(r.problem for r in results) else 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Which runs are done, and how."""

    # a table or figure, such as fed_kgf_figure3, or all of a paper: fed_gkt, fed_kgf,
    # fed_mmd_fusion, fed_repopt or rpn; by default all
    recipe: Positional[str | None] = None
    # quick: handwritten digits; small: real pictures, networks that two CPU cores train; full: the
    # paper's data and network
    scale: str = "quick"
    # only this row of the comparison
    only: Annotated[Texts, arg(metavar="ROW")] = ()
    # communication rounds; by default the recipe's
    rounds: int | None = None
    # keep only so many training images
    train: int | None = None
    # keep only so many test images
    test: int | None = None
    # only this one of the recipe
    split: Annotated[Texts, arg(name="partition", metavar="P")] = ()
    # by default the recipe's
    seeds: Seeds = ()
    # auto: a GPU if there is one; or cpu, cuda, ...; on a GPU, runs of full scale train in bfloat16
    device: str = "auto"


def reproduce(recipe: Recipe, jobs: int = 1, progress: bool = True, plan: bool = False) -> None:
    """Do the runs behind a table or figure of the papers, and print what is stored of it.

    What is stored is left alone, and what was stopped goes on. New runs are kept in runs/ below the
    working directory, a file each, until `pack` puts them beside the book's.

    Parameters
    ----------
    jobs
        runs at a time, each in a process of its own
    progress
        no progress bar, and no lines where there is no terminal for one
    plan
        run nothing; list the runs, what is stored, about how many hours, and missing data
    """
    from . import reproduce as recipes

    choice: dict[str, Any] = {**vars(recipe), "seeds": sum(recipe.seeds, ())}
    if plan:
        print(recipes.plan(**choice))
    else:
        print(recipes.reproduce(**choice, jobs=jobs, progress=progress).to_string())


def pack() -> None:
    """Put finished runs of runs/ into data/results of the checkout.

    Each paper and scale has one file there. Runs of code that was not committed are refused.
    """
    from .reproduce import pack as packed

    print("\n".join(packed()) or "Nothing to pack.")


def classroom(
    folder: Positional[str],
    out: Positional[str],
    kind: Annotated[Literal["nbgrader", "otter"], arg(name="for")] = "nbgrader",
    instructor: bool = False,
    seed_from: str = "",
    force: bool = False,
) -> None:
    """Make a course of the book, without the solutions.

    Parameters
    ----------
    folder
        the folder with the chapters, book/ in a checkout
    out
        the folder to write
    kind
        the program that marks: nbgrader reads source/, otter assign reads otter/
    instructor
        with reference answers, rubrics, typical mistakes and a plan: not for students
    seed_from
        a CSV with the students' ids in a column id: the numbers of exercises differ by student
    force
        write over what is there already
    """
    from .book import classroom

    files = classroom.make(folder, out, force, kind, instructor, seed_from)
    print(f"{len(files)} files in {out}; its README.md says how students begin.")
    if seed_from:
        print("Students write their id into the first cell of each notebook that they hand in.")
    if instructor:
        print(f"Not for students: {out}/instructor and {out}/{classroom.KINDS[kind][0]}.")
    if held := classroom.held_solutions():
        print(
            f"Warning: this environment finds solutions in {held}. Students should not work in it,"
        )
        print(f"but in one of their own, made of {out}/requirements.txt.")


COMMANDS: dict[str, Callable[..., int | None]] = {
    f.__name__: f for f in (run, compare, cost, methods, check, reproduce, pack, classroom)
}
CONFIG = (DisallowNone, FlagCreatePairsOff, OmitArgPrefixes, PositionalMetavarFromFieldName)


def usage() -> str:
    """What there is, a line a command."""
    lines = [f"  {name:<13}{(f.__doc__ or '').splitlines()[0]}" for name, f in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fedlearn [-h] [--version] COMMAND ...\n",
            "Communication-efficient federated learning, simulated with real bytes.\n",
            *lines,
            "\nfedlearn COMMAND --help lists its options. Example:",
            "fedlearn compare fedavg rpn --partition dirichlet:0.5 --rounds 20 --out both.json",
        ]
    )


def parse(words: Sequence[str]) -> Callable[[], int | None]:
    """The command with what was typed for it; ``ValueError`` for what it cannot be."""
    if not words:
        raise ValueError(f"fedlearn takes a command: {', '.join(COMMANDS)} (see fedlearn --help).")
    name, *words = words
    command = pick(name, COMMANDS, "command")

    @wraps(command)
    def call(*args: Any, **kwargs: Any) -> Callable[[], int | None]:
        return partial(command, *args, **kwargs)

    text = io.StringIO()
    try:
        with redirect_stderr(text):
            return cli(call, args=words, prog=f"fedlearn {name}", config=CONFIG)
    except SystemExit as stop:
        if not stop.code:  # of --help
            raise
        raise ValueError(f"{sentence(text.getvalue())} (see fedlearn {name} --help).") from None


def sentence(box: str) -> str:
    """What a box of tyro's says, and the nearest names that it finds, in one line."""
    plain = re.sub(r"\x1b\[[\d;]*m|[│|]", "", box).strip()
    problem, *more = re.split(r"\n\W*\n", re.sub(r"^.*\n\W*", "", plain, count=1))
    names = "".join(text for text in more if "Perhaps you meant" in text)
    near = re.findall(r"^ *(--[\w-]+)", names, re.MULTILINE)
    hint = f". Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return " ".join(problem.split()).rstrip(".") + hint


def main(argv: Sequence[str] | None = None) -> int | None:
    """The command ``fedlearn`` -> its exit status. What is wrong is said in one sentence."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if words and words[0] in ("-h", "--help", "--version"):
            print(f"fedlearn {__version__}" if words[0] == "--version" else usage())
            return 0
        return parse(words)()
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.stdout = None
        return 0
    except (ValueError, OSError, ImportError, DataError, MemoryError) as error:
        print(f"fedlearn: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

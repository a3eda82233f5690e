"""The command ``fedlearn``. Nothing at the top of this file loads torch."""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import DataError, check_whole, error_text, extra, pick
from ..settings import Settings
from .experiment import Experiment, read_pairs, read_value

if TYPE_CHECKING:
    from ..history import History

Words = argparse.Namespace  # what was typed
# fields of an experiment whose option may be repeated, and so has another name
SINGULAR = {"options": "option", "metrics": "metric"}

# a line an argument: its name with a default behind "=", its type, and help
EXPERIMENTS = """
--engine=sequential   text   sequential, stacked, auto or flower
--out                 text   write the history into this file, as JSON; - prints it
--checkpoint          text   keep finished rounds of one run in this file, and go on
                             from there
--save                text   write the trained network of one run, as .safetensors
--no-progress         flag   no progress bar, and no lines in a log
--plot                text   draw the accuracies against bytes into this image file
--jobs=1              value  runs at a time, each in a process of its own
"""
COST = """
network               text   a name, or where it is: mine.py:net,
                             torchvision.models:resnet50
--input               needed the shape of one sample, such as 3x32x32
--clients=10          value  that take part in each round, for totals
--rounds=100          value  of training, for totals
--link=LTE            text   LoRaWAN, 2G, 3G, DSL, cable, LTE or fibre, for minutes
"""
RECIPES = """
recipe                maybe  a table or figure, such as fed_kgf_figure3, or a paper;
                             default: all
--scale=quick         text   quick: handwritten digits; small: real pictures, networks
                             for two CPU cores; full: the paper's data and network
--only                list   only this row of the comparison
--partition           list   only this one of the recipe
--seed                more   only these of the recipe
--device=auto         text   auto: a GPU if there is one; or cpu, cuda, ...
--jobs=1              value  runs at a time, each in a process of its own
--no-progress         flag   no progress bar, and no lines in a log
--plan                flag   run nothing; list the runs, and what is stored
"""
CLASSROOM = """
folder                text   the folder with the chapters, book/ in a checkout
out                   text   the folder to write
--for=nbgrader        text   the program that marks: nbgrader reads source/, otter
                             assign otter/
--instructor          flag   with reference answers, rubrics and a plan: not for
                             students
--seed-from=          text   a CSV with the students' ids in a column id: numbers differ
                             by student
--force               flag   write over what is there already
"""
CLAIMS = """
--paper               text   only this paper, such as rpn
"""


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence."""

    def error(self, message: str) -> Any:
        raise ValueError(f"{message} (see {self.prog} --help).")

    def add(self, name: str, kind: str, text: str, default: Any, **names: Any) -> None:
        """Add an argument of one of these kinds, or a text."""
        kinds: dict[str, dict[str, Any]] = {
            "flag": {"action": "store_true"},
            "list": {"action": "append", "default": []},
            "more": {
                "action": "extend",
                "nargs": "+",
                "default": [],
                "type": read_value,
            },
            "maybe": {"nargs": "?"},
            "needed": {"required": True},
            "value": {"type": read_value, "default": default},
        }
        keywords = kinds.get(kind, {"default": default})
        self.add_argument(name, help=text, **keywords, **names)

    def add_table(self, table: str) -> None:
        """Add an argument for each line of a table."""
        line = r"^([\w-]+)=?(\S*) +(\w+) +(.*(?:\n  +.*)*)"
        for name, default, kind, text in re.findall(line, table, re.MULTILINE):
            self.add(name, kind, " ".join(text.split()), default)

    def add_experiment(self) -> None:
        """Add an argument for each field of an experiment."""
        texts = descriptions(Settings) | descriptions(Experiment)
        self.add_argument("method", nargs="+", help=texts["method"])
        kinds = {dict: "list", tuple: "list", bool: "flag", str: "text"}
        for f in fields(Experiment):
            default = getattr(Experiment(), f.name)
            kind = "more" if f.name == "seed" else kinds.get(type(default), "value")
            if f.name != "method":
                name = SINGULAR.get(f.name, f.name).replace("_", "-")
                self.add(f"--{name}", kind, texts[f.name], default, dest=f.name)


def descriptions(kind: type) -> dict[str, str]:
    """Parameter -> its description in the docstring of a class."""
    section = (inspect.getdoc(kind) or "").partition("Parameters\n----------\n")[2]
    entries = re.findall(r"^(\w+) : .*\n((?:    .*\n?)+)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


# ---- run and compare -----------------------------------------------------------------


def experiments(words: Words) -> list[Experiment]:
    """An experiment for each method and seed."""
    values = {f.name: getattr(words, f.name) for f in fields(Experiment)}
    options = read_pairs(values.pop("options"))
    seeds = values.pop("seed") or [Experiment.seed]
    methods = map(read_method, values.pop("method"))
    return [
        Experiment(**values, method=name, options=options | own_options, seed=seed)
        for (name, own_options), seed in product(methods, seeds)
    ]


def read_method(text: str) -> tuple[str, dict[str, Any]]:
    """``rpn:share=0.5,lr=0.1`` -> "rpn", {"share": 0.5, "lr": 0.1}."""
    name, _, pairs = text.rpartition(":")
    if "=" in pairs:
        return name, read_pairs(pairs.split(","))
    return text, {}


def compare(words: Words) -> None:
    """Run a method, or several on the same task. Prints what they reached and cost.

    A method may have options behind a colon: fedavg rpn:share=0.5 rpn:share=1. With
    several seeds each method runs with each of them, and mean and standard deviation
    are shown."""
    runs = experiments(words)
    check_whole("jobs", words.jobs)
    for e in runs:
        e.make_method()  # errors are raised before the first run
    check_files(words, runs)
    if words.jobs > 1:
        with extra("lab"):
            from joblib import Parallel, delayed

        words.no_progress = True  # several bars would draw over each other
        histories = Parallel(words.jobs)(delayed(run_one)(e, words) for e in runs)
    else:
        histories = [run_one(e, words) for e in runs]
    report(runs, histories, words)


def check_files(words: Words, runs: list[Experiment]) -> None:
    """``ValueError`` or ``OSError`` if a file cannot be written."""
    from ..files import check_writable

    if len({(e.label, e.seed) for e in runs}) < len(runs):
        raise ValueError("Every run needs a method, options or a seed of its own.")
    if len(runs) > 1 and (words.save or words.checkpoint):
        raise ValueError("--save and --checkpoint are of a single run.")
    if words.save and not words.save.endswith(".safetensors"):
        raise ValueError(
            f"--save writes a file such as model.safetensors, not {words.save}."
        )
    out = None if words.out == "-" else words.out
    for path in filter(None, (out, words.plot, words.save, words.checkpoint)):
        check_writable(path)


def run_one(e: Experiment, words: Words) -> "History":
    """One run, from its checkpoint if there is one."""
    from ..core import run as federate

    task = e.make_task()
    history = federate(
        e.make_method(),
        task,
        e.rounds,
        engine=words.engine,
        threads=e.threads,
        checkpoint=words.checkpoint or None,
        progress=not words.no_progress,
        **asdict(e.settings),
    )
    if words.save:
        save(history, task, words.save)
    return history


def save(history: "History", task: Any, path: str) -> None:
    """The trained network's tensors, and what one has to know to use them."""
    from ..checkpoint import contiguous, write_tensors
    from ..files import to_json
    from ..tasks import title_of

    names = ("classes", "mean", "std", "names")
    metadata = {name: to_json(getattr(task.source, name)) for name in names}
    metadata["network"] = to_json(title_of(task.network_name))
    write_tensors(path, contiguous(history.network().state_dict()), metadata)


def report(runs: list[Experiment], histories: list["History"], words: Words) -> None:
    """Print the table, and write the files that were asked for."""
    from ..files import to_json, write_text
    from .results import provenance, summary

    origin = provenance()
    labels: dict[str, list[History]] = {}
    for e, history in zip(runs, histories, strict=True):
        history.meta |= {"label": e.label, "partition": e.partition}
        history.meta["provenance"] = origin
        labels.setdefault(e.label, []).append(history)
    data = [history.to_dict() for history in histories]
    text = to_json(data if len(data) > 1 else data[0], indent=1)
    if words.out and words.out != "-":
        write_text(words.out, text + "\n")
    if words.out == "-":
        print(text)
    elif find_spec("pandas"):
        print(summary(labels).to_string())
        print(f"measure: {histories[0].measure}")
    else:
        print(*histories, sep="\n")
    if words.plot:
        from .. import plot

        axes: Any = plot.compare(labels.values(), "bytes", labels=list(labels))
        axes.figure.savefig(words.plot, dpi=150)


# ---- the other commands --------------------------------------------------------------


def cost(words: Words) -> None:
    """Count what each method would send for a network of your own, untrained."""
    from ..costs import cost as count

    costs = count(
        words.network,
        words.input,
        clients=words.clients,
        rounds=words.rounds,
        link=words.link,
    )
    head = "{name}: {numbers:,} numbers, {wide:.0%} in kernels wider than one entry"
    print(head.format(**costs.attrs))
    print(costs.to_string(na_rep="", float_format="{:.3g}".format))


def methods(words: Words) -> None:
    """List the methods and their options."""
    from ..methods import METHODS

    for name, function in METHODS.items():
        first = (sys.modules[function.__module__].__doc__ or "").partition("\n\n")[0]
        options = str(inspect.signature(function)).partition(" -> ")[0]
        print(f"{name}{options}\n    {' '.join(first.split())}\n")


def check(words: Words) -> int:
    """Recompute every claim of the papers."""
    from . import ledger

    papers = {claim["paper"]: None for claim in ledger.load()}
    if words.paper:
        pick(words.paper, papers, "paper in the ledger")
    entries = ledger.audit(words.paper or None)
    print(ledger.report(entries))
    return int(any(entry.problem for entry in entries))


def reproduce(words: Words) -> None:
    """Do the runs behind a table or figure of the papers, and print them.

    What is stored is left alone, and what was stopped goes on. New runs are kept in
    runs/ below the working directory, a file each, until `fedlearn pack` puts them
    beside the book's."""
    from . import recipes

    choice = {
        "device": words.device,
        "row": words.only,
        "partition": words.partition,
        "seed": words.seed,
    }
    if words.plan:
        frame = recipes.plan(words.recipe, words.scale, **choice)
        whole = frame[frame["kind"] == "run"]
        print(frame.to_string(index=False))
        print(f"{len(whole)} runs, {whole['stored'].sum()} stored")
        return
    frame = recipes.reproduce(
        words.recipe, words.scale, words.jobs, not words.no_progress, **choice
    )
    print(frame.to_string())


def pack(words: Words) -> None:
    """Put finished runs of runs/ into data/ of the checkout."""
    from . import recipes

    print("\n".join(recipes.pack()) or "Nothing to pack.")


def classroom(words: Words) -> None:
    """Make a course of the book, without the solutions."""
    from ..book import classroom

    kind = getattr(words, "for")
    files = classroom.make(
        words.folder,
        words.out,
        words.force,
        kind,
        words.instructor,
        words.seed_from,
    )
    print(f"{len(files)} files in {words.out}; its README.md says how students begin.")
    if words.instructor:
        folder = classroom.KINDS[kind][0]
        print(f"Not for students: {words.out}/instructor and {words.out}/{folder}.")


# each command and the table of its arguments
COMMANDS: dict[str, tuple[Callable[[Words], int | None], str]] = {
    "run": (compare, EXPERIMENTS),
    "compare": (compare, EXPERIMENTS),
    "cost": (cost, COST),
    "methods": (methods, ""),
    "check": (check, CLAIMS),
    "reproduce": (reproduce, RECIPES),
    "pack": (pack, ""),
    "classroom": (classroom, CLASSROOM),
}


def parser() -> Parser:
    """The parser of all commands."""
    whole = Parser(
        "fedlearn",
        epilog="fedlearn COMMAND --help lists its options. Example: "
        "fedlearn compare fedavg rpn --partition dirichlet:0.5 --out both.json",
    )
    whole.add_argument("--version", action="version", version=f"fedlearn {__version__}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for name, (command, table) in COMMANDS.items():
        text = inspect.getdoc(command) or ""
        one = commands.add_parser(
            name, description=text, help=text.splitlines()[0], allow_abbrev=False
        )
        one.set_defaults(command=command)
        if table is EXPERIMENTS:
            one.add_experiment()
        one.add_table(table)
    return whole


def main(argv: Sequence[str] | None = None) -> int | None:
    """The command ``fedlearn`` -> its exit status. Errors are printed as one
    sentence."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a code page may lack letters
    try:
        words = parser().parse_args(argv)
        return words.command(words)
    except BrokenPipeError:  # such as of `head`
        sys.stdout = None
        return 0
    except (ValueError, OSError, ImportError, DataError, MemoryError) as error:
        print(f"fedlearn: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130

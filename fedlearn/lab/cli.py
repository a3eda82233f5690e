"""The command ``fedlearn``. Nothing at the top of this file loads torch."""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from .. import __version__
from ..errors import DataError, check_whole, error_text, extra, pick
from ..settings import Settings
from .experiment import FLAGS, Experiment, read_pairs, read_value

if TYPE_CHECKING:
    from ..history import History

Words = argparse.Namespace  # what was typed

# a line an argument: its name with a default behind "=", its type, and help
EXPERIMENTS = """
--engine=sequential   str    sequential, stacked, auto or flower
--out                 str    write the history into this file, as JSON; - prints it
--checkpoint          str    file of the finished rounds; a run that finds it goes on
                             from there
--save                str    write the trained network, as .safetensors; a file a run
--no-progress         bool   no progress bar, and no lines in a log
--plot                str    draw the accuracies into this image file
--against=bytes       str    axis of --plot: rounds, bytes or seconds
--link                str    LoRaWAN, 2G, 3G, DSL, cable, LTE or fibre, for minutes
--jobs=1              int    runs at a time, each in a process of its own
"""
COST = """
network               str    a name, or where it is: mine.py:net,
                             torchvision.models:resnet50
--input               str    the shape of one sample, such as 3x32x32
--methods=all         str    names with commas between them
--clients=10          int    that take part in each round, for totals
--rounds=100          int    of training, for totals
--link=LTE            str    LoRaWAN, 2G, 3G, DSL, cable, LTE or fibre, for minutes
--seed=0              int    of the first weights
--out                 str    write the table into this file, as JSON
"""
RECIPES = """
recipe                str?   a table or figure, such as fed_kgf_figure3, or a paper;
                             default: all
--scale=quick         str    quick: handwritten digits; small: real pictures, networks
                             for two CPU cores; full: the paper's data and network
--only                strs   only this row of the comparison
--rounds              int    communication rounds, by default the recipe's
--train               int    number of training images
--test                int    number of test images
--partition           strs   only this one of the recipe
--seed                ints   by default the recipe's
--device=auto         str    auto: a GPU if there is one; or cpu, cuda, ...
--jobs=1              int    runs at a time, each in a process of its own
--no-progress         bool   no progress bar, and no lines in a log
--plan                bool   run nothing; list the runs, what is stored, and hours
"""
CLASSROOM = """
folder                str    the folder with the chapters, book/ in a checkout
out                   str    the folder to write
--for=nbgrader        str    the program that marks: nbgrader reads source/, otter
                             assign otter/
--instructor          bool   with reference answers, rubrics and a plan: not for
                             students
--seed-from=          str    a CSV with the students' ids in a column id: numbers differ
                             by student
--force               bool   write over what is there already
"""
CLAIMS = """
--paper               str    only this paper, such as rpn
"""


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence, with the nearest option."""

    def error(self, message: str) -> Any:
        raise ValueError(f"{message} (see {self.prog} --help).")

    def add(self, name: str, kind: str, text: str, default: Any = None) -> None:
        ways: dict[str, dict[str, Any]] = {
            "bool": {"action": "store_true"},
            "strs": {"action": "append", "default": []},
            "ints": {"action": "extend", "nargs": "+", "type": int, "default": []},
            "int": {"type": int, "default": default},
            "float": {"type": float, "default": default},
            "value": {"type": read_value, "default": default},
            "str?": {"nargs": "?"},
        }
        how = ways.get(kind, {"default": default})
        self.add_argument(name, help=text.replace("%", "%%"), **how)

    def add_table(self, table: str) -> None:
        """An argument for each line of a table."""
        line = r"^([\w-]+)=?(\S*) +([\w?]+) +(.*(?:\n  +.*)*)"
        for name, default, kind, text in re.findall(line, table, re.MULTILINE):
            self.add(name, kind, " ".join(text.split()), default or None)

    def add_experiment(self) -> None:
        """An argument for each field of an experiment."""
        texts = descriptions(Settings) | descriptions(Experiment)
        self.add_argument("method", nargs="+", help=texts["method"])
        for f in fields(Experiment):
            kind = str(getattr(f.type, "__name__", f.type)).partition(" ")[0]
            kind = "strs" if kind.startswith(("dict", "tuple")) else kind
            kind = {"seed": "ints", "clients": "value"}.get(f.name, kind)
            if f.name != "method":
                name = "--" + FLAGS.get(f.name, f.name).replace("_", "-")
                self.add(name, kind, texts[f.name], f.default)

    def read(self, words: Sequence[str]) -> Words:
        known, unknown = self.parse_known_args(words)
        for word in unknown:
            options = dict.fromkeys(self._option_string_actions)
            pick(word.partition("=")[0], options, f"option of {self.prog}")
        return known


def descriptions(kind: type) -> dict[str, str]:
    """Parameter -> its description in the docstring of a class."""
    section = (inspect.getdoc(kind) or "").partition("Parameters\n----------\n")[2]
    found = re.findall(r"^(\w+) : .*\n((?:    .*\n?)+)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


# ---- run and compare -----------------------------------------------------------------


def experiments(words: Words) -> list[Experiment]:
    """An experiment for each method, choice of its options and seed. An option goes to
    the methods that have it; one that no method has goes to all, which refuse it."""
    from ..methods import find

    values = {
        f.name: getattr(words, FLAGS.get(f.name, f.name)) for f in fields(Experiment)
    }
    options = read_pairs(values.pop("options"))
    seeds = values.pop("seed") or [Experiment.seed]
    methods = [method for text in values.pop("method") for method in read_method(text)]
    known = {name: inspect.signature(find(name)).parameters for name, _ in methods}
    runs = []
    for (name, own), seed in product(methods, seeds):
        shared = {}
        for option, value in options.items():
            takers = [method for method in known if option in known[method]] or known
            if name in takers:
                shared[option] = value
        runs.append(Experiment(**values, method=name, options=shared | own, seed=seed))
    return runs


def read_method(text: str) -> list[tuple[str, dict[str, Any]]]:
    """``rpn:share=0.5/1`` -> ("rpn", {"share": 0.5}) and ("rpn", {"share": 1})."""
    name, _, pairs = text.rpartition(":")
    if "=" not in pairs:
        return [(text, {})]
    values = {}
    for pair in pairs.split(","):
        option, _, texts = pair.partition("=")
        values[option] = [read_value(value) for value in texts.split("/")]
    return [
        (name, dict(zip(values, choice, strict=True)))
        for choice in product(*values.values())
    ]


def run(words: Words) -> None:
    """Run one method. Prints or writes its history."""
    if len(experiments(words)) > 1:
        raise ValueError(
            "fedlearn run takes one method, one value of each option and one seed; "
            "fedlearn compare takes more."
        )
    compare(words, several=False)


def compare(words: Words, several: bool = True) -> None:
    """Run several methods on the same task. Prints what each reached and what it cost.

    A method may have options behind a colon, each with one value or several, which are
    all tried: fedavg rpn:share=0.25/0.5/1. With several seeds each method runs with
    each of them, and mean and standard deviation are shown."""
    from .. import link
    from ..files import to_json, write_text
    from .results import provenance

    runs = experiments(words)
    words.several = several
    check_whole("jobs", words.jobs)
    for e in runs:
        e.make_method()  # errors are raised before the first run
    runs[0].make_task()
    speeds = pick(words.link, link.PRESETS, "link") if words.link else {}
    checkpoints = check_files(words, runs)
    calls = [(e, words, path) for e, path in zip(runs, checkpoints, strict=True)]
    if words.jobs > 1:
        with extra("lab"):
            from joblib import Parallel, delayed

        words.no_progress = True  # several bars would draw over each other
        histories = Parallel(words.jobs)(delayed(run_one)(*call) for call in calls)
    else:
        histories = [run_one(*call) for call in calls]
    labels: dict[str, list[History]] = {}
    for e, history in zip(runs, histories, strict=True):
        rate = {} if e.lr is None else {"lr": e.lr}
        history.meta["options"] = {**e.options, **rate, "method": e.method}
        history.meta |= {"label": e.label, "provenance": provenance()}
        labels.setdefault(e.label, []).append(history)
    data = [history.to_dict() for history in histories]
    text = to_json(data if len(data) > 1 else data[0], indent=1)
    if words.out and words.out != "-":
        write_text(words.out, text + "\n")
    print(text if words.out == "-" else table(labels, speeds))
    if words.plot:
        from .. import plot

        axes = plot.compare(labels.values(), words.against, labels=list(labels))
        figure: Any = axes.figure
        figure.savefig(words.plot, dpi=150)
    for path in checkpoints:
        path.unlink(missing_ok=True)


def check_files(words: Words, runs: list[Experiment]) -> list[Path]:
    """The checkpoint of each run; an error for a file that cannot be written."""
    from ..files import check_writable

    checkpoints = [Path(f"fedlearn.{stem(e)}.checkpoint") for e in runs]
    if len(set(checkpoints)) < len(runs):
        raise ValueError("Every run needs a method, options or a seed of its own.")
    if words.checkpoint and len(runs) > 1:
        raise ValueError("--checkpoint is one run's; a comparison names its own.")
    if words.checkpoint:
        checkpoints = [Path(words.checkpoint)]
    paths = [words.plot, *checkpoints]
    paths += [network_file(words, e) for e in runs] if words.save else []
    paths += [words.out] if words.out != "-" else []
    for path in filter(None, paths):
        check_writable(path)
    if words.plot:
        from ..plot import IMAGES

        pick(Path(words.plot).suffix[1:], IMAGES, "image type")
    return checkpoints


def network_file(words: Words, e: Experiment) -> Path:
    """The file of a run's network; of a comparison its name has label and seed."""
    path = Path(words.save)
    if path.suffix != ".safetensors":
        raise ValueError(f"--save writes a file such as model.safetensors, not {path}.")
    if words.several:
        path = path.with_suffix(f".{slug(e.label)}.{e.seed}.safetensors")
    return path


def stem(e: Experiment) -> str:
    """An experiment as a part of a checkpoint's name. Rounds, threads and device may
    differ when a run goes on."""
    same = replace(e, rounds=Experiment.rounds, threads=None, device=Experiment.device)
    text = " ".join(same.arguments())
    return f"{slug(e.label)[:50]}.{crc32(text.encode()):08x}"


def slug(text: str) -> str:
    """A part of a file's name."""
    return re.sub(r"[^\w.]", "-", text)


def run_one(e: Experiment, words: Words, checkpoint: Path) -> "History":
    """One run, from its checkpoint if there is one."""
    from ..core import run as federate

    if checkpoint.exists():
        print(f"Going on from {checkpoint}.", file=sys.stderr)
    method = e.make_method()
    task = e.make_task()
    how = asdict(e.settings) | {"threads": e.threads, "engine": words.engine}
    how |= {"checkpoint": checkpoint, "progress": not words.no_progress}
    try:
        history = federate(method, task, e.rounds, **how)
    except KeyboardInterrupt:
        if checkpoint.exists():
            print(
                f"\nStopped. The finished rounds are in {checkpoint}.", file=sys.stderr
            )
            print("The same command goes on from there.", file=sys.stderr)
        raise
    if words.save:
        save(history, task, network_file(words, e))
    return history


def save(history: "History", task: Any, path: Path) -> None:
    """The trained network's tensors, and what one has to know to use them."""
    from ..checkpoint import apart, write_tensors
    from ..files import to_json
    from ..tasks import title_of

    names = ("classes", "mean", "std", "names")
    about = {name: to_json(getattr(task.source, name)) for name in names}
    about["network"] = to_json(title_of(task.network_name))
    about["shape"] = to_json(task.shape)
    about["method"] = history.method
    state = history.network().state_dict()
    floats = {name: t for name, t in state.items() if t.is_floating_point()}
    write_tensors(path, apart(floats), about)


def table(labels: dict[str, list["History"]], speeds: dict[str, Any]) -> str:
    """What each label reached and cost, with minutes on a link."""
    from .. import link
    from .results import spread, summary

    if not find_spec("pandas"):
        return "\n".join(repr(history) for runs in labels.values() for history in runs)
    frame = summary(labels)
    for label, runs in labels.items():
        frame.loc[label, "seconds"] = spread([h.seconds.sum() for h in runs], ".1f")
        frame.loc[label, "refused"] = sum(
            len(row["refused"]) for h in runs for row in h.rows
        )
        if speeds:
            minutes = [link.time(h, **speeds)[-1] / 60 for h in runs]
            frame.loc[label, "minutes"] = spread(minutes, ".4g")
    measures = {h.measure for runs in labels.values() for h in runs}
    notes = [f"accuracy: {name}" for name in sorted(measures - {"accuracy"})]
    return "\n".join([frame.to_string(), *notes])


# ---- the other commands --------------------------------------------------------------


def cost(words: Words) -> None:
    """Count what each method would send for a network of your own, untrained."""
    from ..costs import cost as count
    from ..files import write_text

    if words.input is None:
        raise ValueError(
            "fedlearn cost needs a sample's shape, such as --input 3x32x32."
        )
    names = [name for name in words.methods.split(",") if name]
    options = ("clients", "rounds", "link", "seed")
    costs = count(
        words.network,
        words.input,
        "all" if "all" in names else names,
        **{name: getattr(words, name) for name in options},
    )
    about = "{name}: {numbers:,} numbers, {wide:.0%} in kernels wider than one entry"
    print(about.format(**costs.attrs))
    print(costs.to_string(na_rep="", float_format="{:.3g}".format))
    if words.out:
        rows = costs.reset_index().to_json(orient="records", indent=1)
        write_text(words.out, rows + "\n")


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

    if words.paper is not None:
        pick(
            words.paper,
            {claim["paper"]: None for claim in ledger.load()},
            "paper in the ledger",
        )
    entries = ledger.audit(words.paper, strict=False)
    print(ledger.report(entries))
    return int(any(entry.problem for entry in entries))


def reproduce(words: Words) -> None:
    """Do the runs behind a table or figure of the papers, and print what is stored of
    it.

    What is stored is left alone, and what was stopped goes on. New runs are kept in
    runs/ below the working directory, a file each, until `fedlearn pack` puts them
    beside the book's."""
    from ..data.images import missing
    from . import recipes

    choice: dict[str, Any] = {
        n: getattr(words, n) for n in ("rounds", "train", "test", "device")
    }
    choice |= {"only": words.only, "seeds": words.seed, "split": words.partition}
    if words.plan:
        frame = recipes.plan(words.recipe, words.scale, **choice)
        todo = frame[(frame["kind"] == "run") & ~frame["stored"]]
        count = (frame["kind"] == "run").sum()
        spent = frame["hours"].sum()
        print(frame.to_string(index=False))
        for text in missing(todo["data"].unique()):
            print(f"missing: {text}")
        print(f"{count} runs, {count - len(todo)} stored in {spent:.1f} hours")
    else:
        how = words.jobs, not words.no_progress
        print(recipes.reproduce(words.recipe, words.scale, *how, **choice).to_string())


def pack(words: Words) -> None:
    """Put finished runs of runs/ into data/ of the checkout."""
    from . import recipes

    print("\n".join(recipes.pack()) or "Nothing to pack.")


def classroom(words: Words) -> None:
    """Make a course of the book, without the solutions."""
    from ..book import classroom

    kind = getattr(words, "for")
    seed_from = words.seed_from or ""
    files = classroom.make(
        words.folder,
        words.out,
        words.force,
        kind,
        words.instructor,
        seed_from,
    )
    print(f"{len(files)} files in {words.out}; its README.md says how students begin.")
    if words.instructor:
        folder = classroom.KINDS[kind][0]
        print(f"Not for students: {words.out}/instructor and {words.out}/{folder}.")


# each command and the table of its arguments
COMMANDS: dict[str, tuple[Callable[[Words], int | None], str]] = {
    "run": (run, EXPERIMENTS),
    "compare": (compare, EXPERIMENTS),
    "cost": (cost, COST),
    "methods": (methods, ""),
    "check": (check, CLAIMS),
    "reproduce": (reproduce, RECIPES),
    "pack": (pack, ""),
    "classroom": (classroom, CLASSROOM),
}


def usage() -> str:
    """A line a command."""
    lines = ["usage: fedlearn [-h] [--version] COMMAND ...", ""]
    for name, (command, _) in COMMANDS.items():
        lines.append(f"  {name:<13}{(command.__doc__ or '').splitlines()[0]}")
    lines += ["", "fedlearn COMMAND --help lists its options. Example:"]
    lines.append(
        "fedlearn compare fedavg rpn --partition dirichlet:0.5 --out both.json"
    )
    return "\n".join(lines)


def parse(words: Sequence[str]) -> tuple[Callable[[Words], int | None], Words]:
    """The command and what was typed for it."""
    if not words:
        raise ValueError(
            f"fedlearn takes a command: {', '.join(COMMANDS)} (see fedlearn --help)."
        )
    name, *words = words
    command, table = pick(name, COMMANDS, "command")
    parser = Parser(f"fedlearn {name}", description=command.__doc__, allow_abbrev=False)
    if table is EXPERIMENTS:
        parser.add_experiment()
    parser.add_table(table)
    return command, parser.read(words)


def main(argv: Sequence[str] | None = None) -> int | None:
    """The command ``fedlearn`` -> its exit status. Errors are printed as one
    sentence."""
    words = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a code page may lack letters
    try:
        if words and words[0] in ("-h", "--help", "--version"):
            print(f"fedlearn {__version__}" if words[0] == "--version" else usage())
            return 0
        command, typed = parse(words)
        return command(typed)
    except BrokenPipeError:  # such as of `head`
        sys.stdout = None
        return 0
    except (ValueError, OSError, ImportError, DataError, MemoryError) as error:
        print(f"fedlearn: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130

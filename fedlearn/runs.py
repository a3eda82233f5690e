"""One run or several from a terminal: where they train, what is checked before, what is left.

Used by ``fedlearn run`` and ``fedlearn compare``; nothing that needs torch is imported before a
function is called.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .experiment import Experiment
from .files import check_writable, is_device
from .options import opt, words
from .settings import whole_number

if TYPE_CHECKING:
    from .history import History

_how = partial(opt, group="the engine")
_output = partial(opt, group="output")
_link = partial(opt, group="minutes on a link")


def no_bar(**more: Any) -> Any:
    """The option ``--no-progress``."""
    what = "no progress bar, and no lines where there is no terminal for one"
    return opt(True, what, flag="--no-progress", action="store_false", **more)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How clients are trained, and what is left of the run."""

    engine: str = _how(
        "sequential",
        "sequential: clients train one after another (default); stacked: all of a round in one "
        "step; auto: stacked where steps are small; flower-sim: in processes of their own, through "
        "Flower's simulation",
    )
    memory_limit: float | None = _how(
        None, "memory for stacked training (default: half of what is free)", "MB"
    )
    cpus_per_client: float = _how(1.0, "flower-sim: CPUs that a training client takes", "N")
    gpus_per_client: float = _how(0.0, "flower-sim: share of a GPU that it takes, such as 0.1", "N")
    out: str | None = _output(None, "write the history as JSON; - prints it", "FILE")
    checkpoint: str | None = _output(
        None,
        "where finished rounds are kept until the run ends (default: beside --out); if the file is "
        "there, the run goes on from it",
        "FILE",
    )
    log: str | None = _output(
        None, "write every row as the run goes, as .csv or .jsonl; a file for each run", "FILE"
    )
    tensorboard: str | None = _output(
        None, "write every number for TensorBoard; a folder for each run", "FOLDER"
    )
    until: float | None = _output(None, "end a run at this test accuracy, 0 to 1", "ACCURACY")
    progress: bool = no_bar(group="output")

    def chosen(self) -> Any:
        """The engine, in the words of ``fl.run``."""
        if self.engine != "flower-sim":
            return self.engine
        from .flower import Simulation

        return Simulation(self.cpus_per_client, self.gpus_per_client)

    def callbacks(self, end: str) -> list[Any]:
        """What is called after each round of the run whose files end so."""
        from .callbacks import Lines, TensorBoard, Until

        calls: list[Any] = [] if self.until is None else [Until(self.until)]
        if self.log:
            path = Path(self.log)
            calls.append(Lines(path.with_suffix(end + path.suffix) if end else path))
        if self.tensorboard:
            calls.append(TensorBoard(Path(self.tensorboard, end.removeprefix("."))))
        return calls


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link on which runs are timed."""

    link: str | None = _link(
        None, "the clients' link: LoRaWAN, 2G, 3G, DSL, cable, LTE or fibre", "NAME"
    )
    uplink: str | None = _link(None, "a client's speed up, such as 1Mbit (a second)", "SPEED")
    downlink: str | None = _link(None, "a client's speed down, such as 10Mbit", "SPEED")
    latency: str | None = _link(None, "a round trip, such as 50ms", "TIME")
    slower: float = _link(1.0, "how many times slower a device computes than this machine", "N")
    stragglers: float = _link(
        0.0, "how much devices differ: standard deviation of the logarithm of their times", "S"
    )
    waits_for: int | None = _link(
        None, "a round lasts as long as the slowest of so many devices (default: its clients)", "N"
    )
    radio_up: str | None = _link(
        None, "what a client's radio uses for a byte up, such as 3.5uJ (default: the link's)", "J"
    )
    radio_down: str | None = _link(None, "the same for a byte down, such as 0.4uJ", "J")

    def its_link(self) -> dict[str, Any] | None:
        """The arguments of ``fedlearn.link.time``, checked, or ``None`` without a link;
        ``ValueError`` for what no link can have, and for what is said of none."""
        stated = {"up": self.uplink, "down": self.downlink, "latency": self.latency}
        stated = {k: v for k, v in stated.items() if v is not None}
        if self.link is None and not stated:
            if (self.slower, self.stragglers, self.waits_for) != (1.0, 0.0, None):
                raise ValueError(
                    "--slower, --stragglers and --waits-for need a link: --link LTE, or --uplink "
                    "and --downlink."
                )
            return None
        from . import link

        its: dict[str, Any] = (link.preset(self.link).asdict() if self.link else {}) | stated
        if not {"up", "down"} <= its.keys():
            raise ValueError("A link has two speeds: give --uplink and --downlink, or --link.")
        its = {**its, "slower": self.slower, "stragglers": self.stragglers}
        its["clients"] = self.waits_for
        link.check(**its)
        return its

    def its_radio(self) -> dict[str, Any] | None:
        """The arguments of ``fedlearn.link.energy``, checked, or ``None`` without a radio."""
        both = (("up", self.radio_up), ("down", self.radio_down))
        stated = {k: v for k, v in both if v is not None}
        if self.link is None and not stated:
            return None
        from . import link

        radio = link.preset(self.link).radio if self.link else None
        its = (radio.asdict() if radio else {}) | stated
        if len(its) == 1:
            raise ValueError("A radio has two numbers: give --radio-up and --radio-down.")
        for text in its.values():
            link.joules(text)
        return its or None


@dataclass(frozen=True, kw_only=True)
class Picture(Link):
    """The picture of what was run, and the link on which it is timed."""

    plot: str | None = opt(None, "also draw the accuracies into an image file", "FILE")
    against: str = opt(
        "bytes",
        "horizontal axis of --plot; minutes: on the link that --link or --uplink and --downlink "
        "state",
        choices=("rounds", "bytes", "seconds", "minutes"),
    )

    def its_link(self) -> dict[str, Any] | None:
        its = super().its_link()
        if its is None and self.against == "minutes":
            raise ValueError("Minutes need a link: --link LTE, or --uplink and --downlink.")
        return its


@dataclass(frozen=True, kw_only=True)
class Comparison(Picture):
    """A picture, and how many runs are made at a time."""

    jobs: int = opt(1, "runs at a time, each in a process of its own", "N")


def run_all(
    experiments: list[Experiment], engine: Engine, picture: Picture, jobs: int = 1
) -> list["History"]:
    """All runs; checkpoints go when everything that was asked for is out."""
    whole_number("jobs", jobs)
    for e in experiments:
        e.make_method()  # what is wrong is said before the first of them runs
    experiments[0].make_task()
    its_link, its_radio = picture.its_link(), picture.its_radio()
    origin = provenance()  # of the code that runs, not of what the checkout becomes meanwhile
    out = engine.out if engine.out != "-" else None
    device = out and Path(out).exists() and not Path(out).is_file()  # beside which nothing goes
    base = Path(engine.checkpoint or (not device and out) or "fedlearn.json")
    ends = [f".{slug(e.label)}" + f".{e.seed}" * (e.seed > 0) for e in experiments]
    paths = [base.with_suffix(f".{told(e)}.checkpoint") for e in experiments]
    if engine.checkpoint and len(experiments) == 1:
        paths = [base]
    if len(set(paths)) < len(paths):
        raise ValueError("Every run of a comparison needs a method, options or a seed of its own.")
    log = engine.log if len(ends) == 1 else None  # several have names of their own
    named = [check_writable(path) for path in (out, picture.plot, log, *paths) if path is not None]
    for path in named:
        if named.count(path) > 1 and not is_device(path):
            raise ValueError(f"{path} is named for two things: each needs a file of its own.")
    if picture.plot:
        from . import plot

        plot.check_image(picture.plot)
    ends = ends if len(ends) > 1 else [""]
    for end in ends:
        engine.callbacks(end)  # says what cannot be
    if jobs == 1:
        histories = list(map(run_one, experiments, repeat(engine), paths, ends))
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # on a terminal the bars of several processes would draw over each other
        quiet = replace(engine, progress=engine.progress and not sys.stderr.isatty())
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            histories = list(pool.map(run_one, experiments, repeat(quiet), paths, ends))
    runs: dict[str, list[History]] = {}
    for e, history in zip(experiments, histories, strict=True):
        stated = e.options | ({} if e.lr is None else {"lr": e.lr}) | {"method": e.method}
        history.meta |= {"label": e.label, "options": stated, "provenance": origin}
        runs.setdefault(e.label, []).append(history)
    show(runs, engine.out, its_link, its_radio)
    if picture.plot:
        drawn = plot.compare(runs.values(), picture.against, labels=list(runs), link=its_link)
        plot.save(drawn.figure, picture.plot)
    for path in paths:
        path.unlink(missing_ok=True)
    return histories


def run_one(e: Experiment, engine: Engine, checkpoint: Path, end: str = "") -> "History":
    """One run, from its checkpoint if there is one; ``end`` is what its own files end in."""
    from . import round

    if checkpoint.exists():
        print(f"Going on from {checkpoint}.", file=sys.stderr)
    method, task = e.make_method(), e.make_task()
    how: dict[str, Any] = {"checkpoint": checkpoint, "progress": engine.progress}
    how["on_round"] = engine.callbacks(end)
    try:
        limit = engine.memory_limit and engine.memory_limit * 1e6
        how |= {"engine": engine.chosen(), "memory_limit": limit, "threads": e.threads}
        return round.run(method, task, e.rounds, **asdict(e.settings), **how)
    except KeyboardInterrupt:
        if checkpoint.exists():
            kept = f"The finished rounds are in {checkpoint}"
            print(f"\nStopped. {kept}; the same command goes on from there.", file=sys.stderr)
        raise


def told(e: Experiment) -> str:
    """An experiment as a part of a file's name: what one types for it, but for what may differ when
    a run goes on."""
    from zlib import crc32

    same = replace(e, rounds=Experiment.rounds, threads=None, device=Experiment.device)
    text = slug(" ".join(words(same)).replace(" --", "."))
    return text if len(text) <= 100 else f"{slug(e.label)[:50]}.{crc32(text.encode()):08x}"


def slug(text: str) -> str:
    """A part of a file's name."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in text)


def provenance() -> dict[str, str]:
    """Where a result comes from: the command, the day, and the commit of the checkout, if any;
    "dirty" if a program or what it reads is not as committed (results, which runs add, aside)."""
    import shlex
    import subprocess
    from datetime import date

    git = ["git", "-C", str(Path(__file__).parents[1])]
    what = ["--", "fedlearn", "data", ":(exclude)data/results"]
    try:
        name = [*git, "describe", "--always", "--abbrev=12"]
        commit = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", *what], capture_output=True)
        commit += "-dirty" * (changed.returncode != 0)
    except (OSError, subprocess.CalledProcessError):
        commit = "not a checkout"
    command = shlex.join(["fedlearn", *sys.argv[1:]])  # to be typed again as it is
    return {"command": command, "date": date.today().isoformat(), "commit": commit}


def show(
    runs: dict[str, list["History"]],
    out: str | None,
    link: dict[str, Any] | None = None,
    radio: dict[str, Any] | None = None,
) -> None:
    """Print a line a label, with minutes on the ``link`` and joules of the ``radio`` if there is
    one, and write JSON to the file ``out``; if that is ``-``, print JSON alone."""
    from .files import write_text
    from .report import table

    data = [h.to_dict() for histories in runs.values() for h in histories]
    text = json.dumps(data[0] if len(data) == 1 else data, indent=1)
    if out and out != "-":
        write_text(out, text + "\n")
    print(text if out == "-" else table(runs, link, radio))

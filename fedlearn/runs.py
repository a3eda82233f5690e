"""One run or several from a terminal: where they train, what is checked before, what is left.

Used by ``fedlearn run`` and ``fedlearn compare``; nothing that needs torch is imported before a
function is called.
"""

import json
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

from .arguments import Checked
from .experiment import Experiment
from .files import check_writable, is_device, write_text
from .settings import whole_number

if TYPE_CHECKING:
    from .history import History


@dataclass(frozen=True, kw_only=True)
class Engine(Checked):
    """How clients are trained."""

    # sequential: clients train one after another; stacked: all of a round in one step; auto:
    # stacked where steps are small; flower-sim: in processes of their own, through Flower's
    # simulation
    engine: str = "sequential"
    # memory for stacked training, in MB; by default half of what is free
    memory_limit: float | None = None
    # flower-sim: CPUs that a training client takes
    cpus_per_client: float = 1.0
    # flower-sim: share of a GPU that it takes, such as 0.1
    gpus_per_client: float = 0.0

    def arguments(self) -> dict[str, Any]:
        """The engine as ``fl.run`` takes it."""
        limit = self.memory_limit and self.memory_limit * 1e6
        if self.engine != "flower-sim":
            return {"engine": self.engine, "memory_limit": limit}
        from .flower import Simulation

        engine = Simulation(self.cpus_per_client, self.gpus_per_client)
        return {"engine": engine, "memory_limit": limit}


@dataclass(frozen=True, kw_only=True)
class Output(Checked):
    """What is shown and written."""

    # write the history as JSON to this file; - prints it
    out: str | None = None
    # where finished rounds are kept until the run ends, by default beside --out; if the file is
    # there, the run goes on from it
    checkpoint: str | None = None
    # write every row as the run goes, as .csv or .jsonl; a file for each run
    log: str | None = None
    # write every number for TensorBoard; a folder for each run
    tensorboard: str | None = None
    # end a run at this test accuracy, 0 to 1
    until: float | None = None
    # no progress bar, and no lines where there is no terminal for one
    progress: bool = True
    # also draw the accuracies into an image file
    plot: str | None = None
    # horizontal axis of --plot; minutes: on the link that --link or --uplink and --downlink state
    against: Literal["rounds", "bytes", "seconds", "minutes"] = "bytes"

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
class Link(Checked):
    """The link on which runs are timed."""

    # the clients' link: LoRaWAN, 2G, 3G, DSL, cable, LTE or fibre
    link: str | None = None
    # a client's speed up, such as 1Mbit (a second)
    uplink: str | None = None
    # a client's speed down, such as 10Mbit
    downlink: str | None = None
    # a round trip, such as 50ms
    latency: str | None = None
    # how many times slower a device computes than this machine
    slower: float = 1.0
    # how much devices differ: standard deviation of the logarithm of their times
    stragglers: float = 0.0
    # a round lasts as long as the slowest of so many devices; by default its clients
    waits_for: int | None = None
    # what a client's radio uses for a byte up, such as 3.5uJ; by default the link's
    radio_up: str | None = None
    # the same for a byte down, such as 0.4uJ
    radio_down: str | None = None

    def time(self) -> dict[str, Any] | None:
        """The arguments of ``fedlearn.link.time``, checked, or ``None`` without a link;
        ``ValueError`` for what no link can have, and for what is said of none."""
        stated = {"up": self.uplink, "down": self.downlink, "latency": self.latency}
        stated = {k: v for k, v in stated.items() if v is not None}
        devices: dict[str, Any] = {"slower": self.slower, "stragglers": self.stragglers}
        devices["clients"] = self.waits_for
        if self.link is None and not stated:
            if devices != {"slower": 1.0, "stragglers": 0.0, "clients": None}:
                raise ValueError(
                    "--slower, --stragglers and --waits-for need a link: --link LTE, or --uplink "
                    "and --downlink."
                )
            return None
        from . import link

        speeds: dict[str, Any] = (link.preset(self.link).asdict() if self.link else {}) | stated
        if not {"up", "down"} <= speeds.keys():
            raise ValueError("A link has two speeds: give --uplink and --downlink, or --link.")
        link.check(**speeds, **devices)
        return {**speeds, **devices}

    def energy(self) -> dict[str, str] | None:
        """The arguments of ``fedlearn.link.energy``, checked, or ``None`` without a radio."""
        both = (("up", self.radio_up), ("down", self.radio_down))
        stated = {k: v for k, v in both if v is not None}
        if self.link is None and not stated:
            return None
        from . import link

        radio = link.preset(self.link).radio if self.link else None
        joules: dict[str, str] = (radio.asdict() if radio else {}) | stated
        if len(joules) == 1:
            raise ValueError("A radio has two numbers: give --radio-up and --radio-down.")
        for text in joules.values():
            link.joules(text)
        return joules or None


def run_all(
    experiments: list[Experiment], engine: Engine, output: Output, link: Link, jobs: int = 1
) -> None:
    """All runs, shown as a table or JSON; checkpoints go when everything asked for is out."""
    whole_number("jobs", jobs)
    for e in experiments:
        e.make_method()  # what is wrong is said before the first of them runs
    experiments[0].make_task()
    time, energy = link.time(), link.energy()
    if output.against == "minutes" and time is None:
        raise ValueError("Minutes need a link: --link LTE, or --uplink and --downlink.")
    origin = provenance()  # of the code that runs, not of what the checkout becomes meanwhile
    out = output.out if output.out != "-" else None
    device = out and Path(out).exists() and not Path(out).is_file()  # beside which nothing goes
    base = Path(output.checkpoint or (not device and out) or "fedlearn.json")
    ends = [f".{slug(e.label)}" + f".{e.seed}" * (e.seed > 0) for e in experiments]
    paths = [base.with_suffix(f".{stem(e)}.checkpoint") for e in experiments]
    if len(experiments) == 1:
        ends, paths = [""], [base] if output.checkpoint else paths
    if len(set(paths)) < len(paths):
        raise ValueError("Every run of a comparison needs a method, options or a seed of its own.")
    log = output.log if len(ends) == 1 else None  # several have names of their own
    named = [check_writable(path) for path in (out, output.plot, log, *paths) if path is not None]
    for path in named:
        if named.count(path) > 1 and not is_device(path):
            raise ValueError(f"{path} is named for two things: each needs a file of its own.")
    if output.plot:
        from . import plot

        plot.check_image(output.plot)
    for end in ends:
        output.callbacks(end)  # says what cannot be
    if jobs == 1:
        histories = list(map(run_one, experiments, repeat(engine), repeat(output), paths, ends))
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # on a terminal the bars of several processes would draw over each other
        quiet = replace(output, progress=output.progress and not sys.stderr.isatty())
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            each = experiments, repeat(engine), repeat(quiet), paths, ends
            histories = list(pool.map(run_one, *each))
    runs: dict[str, list[History]] = {}
    for e, history in zip(experiments, histories, strict=True):
        stated = e.options | ({} if e.lr is None else {"lr": e.lr}) | {"method": e.method}
        history.meta |= {"label": e.label, "options": stated, "provenance": origin}
        runs.setdefault(e.label, []).append(history)
    data = [h.to_dict() for h in histories]
    text = json.dumps(data[0] if len(data) == 1 else data, indent=1)
    if out:
        write_text(out, text + "\n")
    from .report import table

    print(text if output.out == "-" else table(runs, time, energy))
    if output.plot:
        drawn = plot.compare(runs.values(), output.against, labels=list(runs), link=time)
        plot.save(drawn.figure, output.plot)
    for path in paths:
        path.unlink(missing_ok=True)


def run_one(e: Experiment, engine: Engine, output: Output, checkpoint: Path, end: str) -> "History":
    """One run, from its checkpoint if there is one; ``end`` is what its own files end in."""
    from . import round

    if checkpoint.exists():
        print(f"Going on from {checkpoint}.", file=sys.stderr)
    how: dict[str, Any] = asdict(e.settings) | engine.arguments() | {"threads": e.threads}
    how |= {"checkpoint": checkpoint, "progress": output.progress}
    try:
        calls = output.callbacks(end)
        return round.run(e.make_method(), e.make_task(), e.rounds, on_round=calls, **how)
    except KeyboardInterrupt:
        if checkpoint.exists():
            kept = f"The finished rounds are in {checkpoint}"
            print(f"\nStopped. {kept}; the same command goes on from there.", file=sys.stderr)
        raise


def stem(e: Experiment) -> str:
    """An experiment as a part of a file's name: what one types for it, but for what may differ when
    a run goes on."""
    same = replace(e, rounds=Experiment.rounds, threads=None, device=Experiment.device)
    text = slug(" ".join(same.arguments()).replace(" --", "."))
    return text if len(text) <= 100 else f"{slug(e.label)[:50]}.{crc32(text.encode()):08x}"


def slug(text: str) -> str:
    """A part of a file's name."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in text)


def provenance() -> dict[str, str]:
    """Where a result comes from: the command, the day, and the commit of the checkout, if any;
    "dirty" if a program or what it reads is not as committed (results, which runs add, aside)."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    sources = ["--", "fedlearn", "data", ":(exclude)data/results"]
    try:
        name = [*git, "describe", "--always", "--abbrev=12"]
        commit = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", *sources], capture_output=True)
        commit += "-dirty" * (changed.returncode != 0)
    except (OSError, subprocess.CalledProcessError):
        commit = "not a checkout"
    command = shlex.join(["fedlearn", *sys.argv[1:]])  # to be typed again as it is
    return {"command": command, "date": date.today().isoformat(), "commit": commit}

"""One run or several from a terminal: what is checked before, where they train, what is left."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from . import link, results
from .checkpoint import apart, write_tensors
from .core import run as run_method
from .experiment import Engine, Experiment, Link, Output
from .files import check_writable, is_device, to_json, write_text
from .history import MEASURES, History
from .models import state_of
from .settings import whole_number
from .tasks.base import shown


def run_all(
    experiments: list[Experiment], engine: Engine, output: Output, stated: Link, jobs: int = 1
) -> None:
    """All runs, shown as a table or JSON; checkpoints go when everything asked for is out."""
    whole_number("jobs", jobs)
    for e in experiments:
        e.make_method()  # what is wrong is said before the first of them runs
    experiments[0].make_task()
    speeds, radio = stated.time(), link.RADIOS.get(stated.link or "")
    if output.against == "minutes" and speeds is None:
        raise ValueError("Minutes need a link: --link LTE, or --uplink and --downlink.")
    origin = results.provenance()  # of the code that runs, not of what the checkout becomes
    out, single = output.out if output.out != "-" else None, len(experiments) == 1
    beside = out if out and not is_device(check_writable(out)) else "fedlearn.json"
    base = Path(output.checkpoint or beside)
    paths = [base.with_suffix(f".{stem(e)}.checkpoint") for e in experiments]
    if single and output.checkpoint:
        paths = [base]
    if len({*paths}) < len(paths):
        raise ValueError("Every run of a comparison needs a method, options or a seed of its own.")
    ends = [f".{slug(e.label)}" + f".{e.seed}" * (e.seed > 0) for e in experiments]
    ends = [""] if single else ends
    outs = [output.file(path, end) for path in (output.save, output.log) if path for end in ends]
    if output.save and outs[0].suffix != ".safetensors":
        raise ValueError(f"--save writes a file of safetensors, model.safetensors, not {outs[0]}.")
    files = [check_writable(path) for path in (out, output.plot, *outs, *paths) if path is not None]
    for path in files:
        if files.count(path) > 1 and not is_device(path):
            raise ValueError(f"{path} is named for two things: each needs a file of its own.")
    if output.plot:
        from . import plot

        plot.check_image(output.plot)
        if output.against == "clients" and any("per_client" not in e.metrics for e in experiments):
            raise ValueError("--against clients draws a metric: give --metric per_client, too.")
    for end in ends:
        output.callbacks(end)  # says what cannot be
    if jobs > 1 and sys.stderr.isatty():  # bars of several processes would draw over each other
        output = replace(output, progress=False)
    from joblib import Parallel, delayed  # takes long to load

    each = zip(experiments, paths, ends, strict=True)
    histories = Parallel(jobs)(delayed(run_one)(e, engine, output, *files) for e, *files in each)
    runs: dict[str, list[History]] = {}
    for e, history in zip(experiments, histories, strict=True):
        options = e.options | ({} if e.lr is None else {"lr": e.lr}) | {"method": e.method}
        history.meta |= {"label": e.label, "options": options, "provenance": origin}
        runs.setdefault(e.label, []).append(history)
    data = [h.to_dict() for h in histories]
    text = to_json(data[0] if len(data) == 1 else data, indent=1)
    if out:
        write_text(out, text + "\n")
    print(text if output.out == "-" else table(runs, speeds, radio))
    if output.plot:
        if output.against == "clients":
            drawn = plot.clients(histories, labels=[h.meta["label"] for h in histories])
        else:
            drawn = plot.compare(runs.values(), output.against, labels=list(runs), link=speeds)
        plot.save(drawn.figure, output.plot)
    for path in paths:
        path.unlink(missing_ok=True)


def run_one(e: Experiment, engine: Engine, output: Output, checkpoint: Path, end: str) -> History:
    """One run, from its checkpoint if there is one; ``end`` is what its own files end in."""
    if checkpoint.exists():
        print(f"Going on from {checkpoint}.", file=sys.stderr)
    how: dict[str, Any] = asdict(e.settings) | {"threads": e.threads, "engine": engine.engine}
    how |= {"checkpoint": checkpoint, "progress": output.progress}
    how["memory_limit"] = engine.memory_limit and engine.memory_limit * 1e6
    if engine.engine == "flower":
        from .engines.flower import Simulation

        how["engine"] = Simulation(engine.cpus_per_client, engine.gpus_per_client)
    try:
        calls = output.callbacks(end)
        task = e.make_task()
        history = run_method(e.make_method(), task, e.rounds, on_round=calls, **how)
        if output.save:
            save(history, task, output.file(output.save, end))
        return history
    except KeyboardInterrupt:
        if checkpoint.exists():
            kept = f"The finished rounds are in {checkpoint}"
            print(f"\nStopped. {kept}; the same command goes on from there.", file=sys.stderr)
        raise


def save(history: History, task: Any, path: Path) -> None:
    """The trained network's tensors, and what one has to know to use them."""
    source = task.source
    about = {"network": shown(task.network_name), "shape": task.shape, "classes": source.classes}
    about |= {"mean": source.mean, "std": source.std, "names": source.names}
    metadata = {name: to_json(value) for name, value in about.items()}
    write_tensors(path, apart(state_of(history.network())), metadata | {"method": history.method})


def stem(e: Experiment) -> str:
    """An experiment as a part of a file's name, but for what may differ when a run goes on."""
    same = replace(e, rounds=Experiment.rounds, threads=None, device=Experiment.device)
    text = slug(" ".join(same.arguments()).replace(" --", "."))
    return text if len(text) <= 100 else f"{slug(e.label)[:50]}.{crc32(text.encode()):08x}"


def slug(text: str) -> str:
    """A part of a file's name."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in text)


def table(
    runs: Mapping[str, list[History]],
    speeds: Mapping[str, Any] | None = None,
    radio: Mapping[str, Any] | None = None,
) -> str:
    """A line a label: where its runs ended and what they cost, on average; minutes and joules with
    the arguments of ``link.time`` and ``link.energy``."""

    def mean(numbers: Iterable[Any], form: str) -> str:
        return format(np.mean([*numbers]), form)

    rows = []
    for label, histories in runs.items():
        up, down = results.sent(histories)
        row = {
            "method": label,
            "rounds": str(len(histories[0])),
            **{n: results.spread([h.reached[n] for h in histories], ".4f") for n in MEASURES},
            "loss": mean((h.final["loss"] for h in histories), ".4f"),
            "MB up": f"{up:.3f}",
            "MB down": f"{down:.3f}",
            "seconds": mean((h.seconds.sum() for h in histories), ".1f"),
            "refused": str(sum(len(row["refused"]) for h in histories for row in h.rows)),
        }
        if all("per_client" in h.final for h in histories):
            fair = [h.by_client() for h in histories]
            for name, measure in (("worst client", np.nanmin), ("spread of clients", np.nanstd)):
                row[name] = results.spread([float(measure(each)) for each in fair], ".4f")
        if speeds:
            row["minutes"] = mean((link.time(h, **speeds)[-1] / 60 for h in histories), ".4g")
        if radio:
            row["joules"] = mean((link.energy(h, **radio)[-1] for h in histories), ".4g")
        rows.append(row)
    lines = [results.text_table(rows)]
    other = dict.fromkeys(h.measure for seeds in runs.values() for h in seeds)
    lines += [f"{' and '.join(MEASURES)}: {name}" for name in other if name != "accuracy"]
    if speeds:
        lines.append(f"minutes: {link.described(speeds)}")
    if radio:
        lines.append(f"joules: a client's radio, {radio['up']} a byte up, {radio['down']} down")
    return "\n".join(lines)

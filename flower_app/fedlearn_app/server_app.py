"""The server's part: the rounds of the method that the run config names."""

import logging
from typing import Any

import fedlearn as fl
from fedlearn.checkpoint import contiguous, write_tensors
from fedlearn.engines.flower import Nodes, require

from .config import experiment

require()
from flwr.serverapp import ServerApp  # noqa: E402  quiet from here on

app = ServerApp()
SHOWN = ("round", "accuracy", "loss", "refused", "unevaluated", "untaken")


def log(row: dict[str, Any], state: Any) -> None:
    """A line in Flower's log for each round."""
    values = [f"{name} {row[name]}" for name in SHOWN if row[name] not in (None, {})]
    logging.getLogger("flwr").info(", ".join(values))


@app.main()
def main(grid: Any, context: Any) -> None:
    config = context.run_config
    e = experiment(config)
    history = fl.run(
        e.make_method(),
        e.make_task(),
        e.rounds,
        engine=Nodes(grid, float(config["wait"]), float(config["timeout"])),
        threads=e.threads,
        progress=False,
        on_round=log,
        **vars(e.settings),
    )
    if config["out"]:
        history.to_json(config["out"])
    if config["model"]:
        write_tensors(config["model"], contiguous(history.state or {}))

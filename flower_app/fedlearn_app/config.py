"""The run config of Flower as an experiment of fedlearn."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedlearn.lab.experiment import Experiment, read_pairs


def experiment(config: Mapping[str, Any]) -> Experiment:
    """The run that a run config states.

    An empty text is the default, and a list is a text with spaces.
    """
    names = {field.name for field in fields(Experiment)}
    values = {n: v for n, v in config.items() if n in names and v != ""}
    for name in {"augment", "metrics"} & values.keys():
        values[name] = tuple(values[name].split())
    if "options" in values:
        values["options"] = read_pairs(values["options"].split())
    return Experiment(**values)

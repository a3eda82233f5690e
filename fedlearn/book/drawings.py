"""The moving pictures of the chapters: Vega-Lite charts in ``data/<chapter>``."""

import json
from string import Template
from typing import Any

import yaml

from .. import link
from ..data import data_path
from ..errors import pick

LOOKS = "AMBER BLUE BOLD DOTTED GREEN GREY ORANGE PINK SKY WORDS".split()


def drawing(path: str, **values: Any) -> dict[str, Any]:
    """The chart of ``data/<path>.yaml``, with these values of its parameters.

    In the file ``$BLUE``, ``$BOLD`` and the like are the looks of that name in
    ``vega``, and ``$SHADES`` are the colours of signed numbers.
    """
    from . import vega  # the checks of a chapter need no picture

    text = data_path(f"{path}.yaml").read_text(encoding="utf-8")
    looks = {name: getattr(vega, name) for name in LOOKS}
    looks["SHADES"] = vega.shades()
    filled = Template(text).substitute(
        {name: json.dumps(look) for name, look in looks.items()}
    )
    spec = yaml.safe_load(filled)
    params = {param["name"]: param for param in spec["params"]}
    for name, value in values.items():
        pick(name, params, "parameter")["value"] = value
    return vega.layered(**spec)


def speeds() -> dict[str, dict[str, float]]:
    """The links of ``link.PRESETS``: bits a second up and down, seconds of latency."""
    columns = ("up", "down", "latency")
    links = {name: link.check(**preset) for name, preset in link.PRESETS.items()}
    return {name: dict(zip(columns, n, strict=True)) for name, n in links.items()}


def give_looks(spec: dict[str, Any], names: list[str]) -> None:
    """Give each line of a chart, a method of these ``names``, the look that it has in
    all pictures (``plot.places``)."""
    from ..plot import places
    from . import vega

    looks: dict[str, list[Any]] = {
        "color": vega.COLOURS,
        "shape": vega.SHAPES,
        "strokeDash": vega.DASHES,
    }
    for layer in spec["layer"]:
        encoding = layer.get("encoding", {})
        for channel in looks.keys() & encoding.keys():
            values = looks[channel]
            ranged = [values[k % len(values)] for k in places(names)]
            scale = {"domain": names, "range": ranged}
            encoding[channel] = encoding[channel] | {"scale": scale}

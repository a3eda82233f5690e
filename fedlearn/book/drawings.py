"""The moving pictures of the chapters: Vega-Lite charts in ``data/<chapter>``."""

import json
from string import Template
from typing import Any

import yaml

from ..data.sources import data_path
from ..errors import pick

LOOKS = "AMBER BLUE BOLD DOTTED GREEN GREY ORANGE PINK WORDS".split()


def drawing(path: str, **values: Any) -> dict[str, Any]:
    """The chart of ``data/<path>.yaml``, with these values of its parameters.

    In the file ``$BLUE``, ``$BOLD`` and the like are the looks of that name in
    ``vega``, and ``$SHADES`` are the colours of signed numbers.
    """
    from . import vega  # loads slowly, and the checks of a chapter need no picture

    text = data_path(f"{path}.yaml").read_text(encoding="utf-8")
    looks = {name: getattr(vega, name) for name in LOOKS}
    looks["SHADES"] = vega.signed()["range"]
    filled = Template(text).substitute(
        {name: json.dumps(look) for name, look in looks.items()}
    )
    spec = yaml.safe_load(filled)
    params = {param["name"]: param for param in spec.pop("params")}
    for name, value in values.items():
        pick(name, params, "parameter")["value"] = value
    layers = spec.pop("layer")
    frame = vega.layered(spec.pop("height"), params.values(), (), **spec)
    return frame | {"layer": layers}

"""The playground: a federation that trains in the page itself, in the reader's browser;
and the ring of the first page, which plays its first scene.

All that happens in the playground is in ``play.js``, which codes and reads messages as
this package does."""

from pathlib import Path
from string import Template

import numpy as np
from torch import nn

from .. import link, methods, tasks
from ..core import run
from ..data.images import load
from ..errors import extra
from .show import Shown

with extra("lesson"):
    import anywidget
    import traitlets

HERE = Path(__file__).parent


class Playground(anywidget.AnyWidget):
    """The widget. ``scene`` is what stands in the page's address behind the #; it
    follows the controls, and moves them."""

    _esm = HERE / "play.js"
    _css = HERE / "play.css"
    scene = traitlets.Unicode().tag(sync=True)
    digits = traitlets.Bytes().tag(
        sync=True
    )  # all pixels, then all labels, one byte each
    about = traitlets.Dict().tag(
        sync=True
    )  # of these: how many, how many train, mean, std
    links = traitlets.Dict().tag(
        sync=True
    )  # bits a second up and down, seconds of latency


def playground(scene: str = "") -> Playground:
    """A federation to play with. ``scene`` is as in the page's address, such as
    ``"a-liar"`` or
    ``"a-liar&clients=20"``; what cannot be gives the first scene, and a sentence that
    says so."""
    source = load("digits")
    images = np.concatenate([source.train_x, source.test_x]).astype(np.uint8)
    labels = np.concatenate([source.train_y, source.test_y]).astype(np.uint8)
    about = {"count": len(labels), "train": len(source.train_y)}
    return Playground(
        scene=scene,
        digits=images.tobytes() + labels.tobytes(),
        about=about | {"mean": source.mean[0], "std": source.std[0]},
        links={name: link.check(**preset) for name, preset in link.PRESETS.items()},
    )


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    """That of the playground."""
    hidden = nn.Linear(64, 32)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(32, classes))


def ring() -> Shown:
    """Ten clients with a digit each around a server, in a loop: what the network reads,
    and what all clients sent and received, in the run that the playground opens with."""
    task = tasks.classification(
        "digits", clients=10, partition="main_class:1", network=network
    )
    history = run(methods.fedavg(), task, 40, engine="stacked", progress=False)
    rows = [*zip(history.round, history.accuracy, history.megabytes, strict=True)]
    frames = ""
    # the end stays for a moment
    for k, (t, accuracy, megabytes) in enumerate([*rows, *8 * rows[-1:]]):
        read = f"{100 * accuracy:.0f}"
        sent = f"round {t}: {megabytes:.1f} MB sent"
        frames += (
            f'<g class="fl-frame" style="--k: {k}"><circle class="fl-gauge" cx="150" '
            f'cy="150" r="40" pathLength="100" stroke-dasharray="{read} 100"/>'
            f'<text class="fl-score" x="150" y="156">{read}</text>'
            f'<text class="fl-sum" x="150" y="322">{sent}</text></g>'
        )
    words = (
        f"Ten clients with a digit each, around a server. {sent}, {read} of 100 read."
    )
    text = Path(HERE, "ring.svg").read_text(encoding="utf-8")
    picture = Template(text).substitute(words=words, frames=frames)
    pause = '<label><input type="checkbox"> pause</label>'
    return Shown(f'<div class="fl fl-ring">{picture}{pause}</div>', words)

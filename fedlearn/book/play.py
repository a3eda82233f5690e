"""The playground: a federation that trains in the page itself, in the reader's browser.

All that happens is in ``play.js``, which codes and reads messages as this package
does."""

from pathlib import Path

import numpy as np

from .. import link
from ..data.images import load
from ..errors import extra

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

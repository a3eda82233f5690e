"""Explorers: sliders over figures, in two modes of one function.

By default all frames are drawn when the cell runs and the browser only switches between them, so
that a published page needs no kernel. ``live=True`` draws the frame asked for, in the kernel, each
time a slider moves.
"""

import base64
import html
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ..errors import extra
from .show import said

with extra("book"):
    import ipywidgets as W
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What draws one frame: a function of the sliders' values that gives a figure (or axes of it), or a
# pair of that and one sentence for readers who cannot see it.
Draw = Callable[..., Figure | Axes | tuple[Figure | Axes, str]]


def image(figure: Figure, dpi: float = 110, format: str = "webp") -> bytes:
    """A matplotlib figure as the bytes of an image; the figure is closed."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, dpi=dpi)
    plt.close(figure)
    return buffer.getvalue()


def frame(draw: Draw, names: Sequence[str], values: Sequence[Any]) -> str:
    """One picture as HTML; its alternative text is the sliders' values and what ``draw`` says."""
    drawn = draw(**dict(zip(names, values, strict=True)))
    picture, alt = drawn if isinstance(drawn, tuple) else (drawn, "")
    figure: Any = getattr(picture, "figure", picture)
    where = ", ".join(f"{n.replace('_', ' ')} {v}" for n, v in zip(names, values, strict=True))
    alt = html.escape(f"{where}: {alt}" if alt else where)
    data = base64.b64encode(image(figure)).decode()
    return f'<img alt="{alt}" src="data:image/webp;base64,{data}">'


def slider(name: str, values: Iterable[Any]) -> W.SelectionSlider:
    """A slider over any values.

    Its ``index`` is what the browser links, because links carry equal values only.
    """
    return W.SelectionSlider(
        options=[(str(v), v) for v in values],
        index=0,
        description=name.replace("_", " "),
        continuous_update=True,
        style={"description_width": "initial"},
        layout=W.Layout(width="95%", max_width="34em"),
    )


def nest(
    draw: Draw,
    names: Sequence[str],
    sliders: Sequence[W.SelectionSlider],
    chosen: tuple[Any, ...] = (),
) -> W.Stack | W.HTML:
    """A ``Stack`` for the first slider, holding one for each of its values, down to the frames."""
    if not sliders:
        return W.HTML(frame(draw, names, chosen))
    values = [value for _, value in sliders[0].options]
    stack = W.Stack(
        [nest(draw, names, sliders[1:], (*chosen, v)) for v in values],
        selected_index=sliders[0].index,
    )
    W.jslink((sliders[0], "index"), (stack, "selected_index"))
    return stack


def explore(
    draw: Draw,
    live: bool = False,
    start: Mapping[str, Any] | None = None,
    number: str = "",
    caption: str = "",
    **values: Collection[Any],
) -> W.VBox:
    """Sliders over ``draw``.

    ``values`` gives the positions of each slider by the name of the argument of ``draw`` that it
    sets: ``explore(draw, clients=[2, 5, 10], alpha=[0.1, 1, 10])``. ``draw`` returns a figure (or
    axes), or a pair of it and one sentence for readers who cannot see it. ``start`` gives first
    positions by name, otherwise the first values. With a ``number``, such as "2.5", there is a
    ``caption`` below. The product of the positions is the number of
    frames drawn: keep it below about 40.
    """
    names = list(values)
    sliders = [slider(name, list(options)) for name, options in values.items()]
    for name, s in zip(names, sliders, strict=True):
        if start and name in start:
            s.index = list(values[name]).index(start[name])
    if live:
        picture = W.HTML()

        def redraw(change: object = None) -> None:
            picture.value = frame(draw, names, [s.value for s in sliders])

        for s in sliders:
            s.observe(redraw, "value")
            s.continuous_update = False  # one drawing when the handle is let go
        redraw()
    else:
        picture = nest(draw, names, sliders)
    below = []
    if number:
        anchor, words = said("Figure", number, caption)
        below = [W.HTML(f'<figure class="fl fl-figure" id="{anchor}">{words}</figure>')]
    box = W.VBox([*sliders, picture, *below])
    box.add_class("fl-explorer")
    if live:
        box.add_class("fl-live")
    return box

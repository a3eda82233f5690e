"""Layers whose weights are computed or drawn, and not simply there."""

from torch import nn


class Drawing:
    """A layer that draws at random while it trains. Stacked, it has a generator for each client;
    otherwise it uses torch's global one, which is seeded by name (``rng.scope``)."""

    generators: list = []


def computed(mixin: type, *kinds: type[nn.Module]) -> dict[type, type]:
    """For each kind of layer, a class whose ``weight`` (or ``bias``) is computed as the
    properties of ``mixin`` say. They count dimensions from the end, so that the stacked form
    (``stacked``) computes the weights of all clients."""
    return {
        kind: type(
            f"{mixin.__name__}{kind.__name__}", (mixin, kind), {"computed_by": (mixin, kind)}
        )
        for kind in kinds
    }

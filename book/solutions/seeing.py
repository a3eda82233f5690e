"""Reference answers of the chapter on seeing.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% seeing-iou
"""The overlap begins at the larger of the two left edges and ends at the smaller of the
two right ones. If that length is negative, there is none: without `max(0, ...)` two
boxes that are apart both ways get a positive product of two negative sides."""


def iou(a, b):
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (a, b)]
    return both / (sum(areas) - both)


answer = iou

# %% seeing-ap
"""Each of the 101 recalls counts the best precision reached there or later. `cummax`
from behind gives that; recalls that were never reached count as 0."""
import torch


def ap(right, objects):
    hits = right.double().cumsum(0)
    precision = hits / torch.arange(1, len(right) + 1)
    best = precision.flip(0).cummax(0).values.flip(0)
    ends = torch.linspace(0, 1, 101, dtype=torch.double)
    at = torch.searchsorted(hits / objects, ends)
    return float(torch.cat([best, torch.zeros(1)])[at].mean())


answer = ap

# %% seeing-payload
"""There are 16 kernels in the first layer, 16 * 32 in the second, 32 * 64 in the third
and 64 * 64 in each of the last two, and each saves eight numbers. The last convolution
is 1 x 1, and so are its means."""
kernels = 16 + 16 * 32 + 32 * 64 + 2 * 64 * 64
answer = 98_367 - 8 * kernels

# %% seeing-mirror
"""A mirror maps x to 64 - x, so the left edge becomes the right one. Boxes are
measured at the edges of pixels, so nothing is off by one: the whole picture,
(0, 0, 64, 64), is its own mirror image."""
import torch


def mirrored(boxes):
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack([64 - x2, y1, 64 - x1, y2], 1)


answer = mirrored

# %% seeing-flat
"""(a) None: it adds up all nine, so it's blind to which of them was bright, and blurs.
Edges, and with them the borders of a box, are *differences* of neighbours, and those
have to come from what the seed drew into $M^0$.

(b) Each saves a client 131,072 bytes of every upload. The very last one costs 13
points, from 0.807 to 0.676; both cost 42, down to 0.389. So the last one is the one to
pool. Our reading, which the runs do not prove: behind the last layer comes only a 1 x 1
convolution, and what a cell must know of its surroundings can be worked out one layer
before. Pool that layer, too, and no kernel behind the last shrinking of the map tells
left from right any more.

(c) A box has to be right to a fraction of its size, a class is only right or wrong:
mAP@0.5:0.95 asks for closer boxes than mAP@0.5 does, so it falls by a larger factor.
The stored runs agree: RPN has 47 % of FedAvg's mAP@0.5 (0.424 of 0.897), and 24 % of
its mAP@0.5:0.95 (0.137 of 0.567)."""

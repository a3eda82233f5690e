"""Digit scenes: scikit-learn's digits at random places of images of 64 x 64 pixels, with
exact boxes and masks. Scenes are drawn on demand, in about a second, and are the same
on every machine."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .. import rng
from ..data.images import Source, digits
from ..errors import check_number, pick
from .targets import from_boxes, from_masks

SIDE = 64  # of a scene, in pixels
MOST = 6  # digits in a scene
SMALLEST = 10  # side of a digit, in pixels
LARGEST = 24
INK = 0.25  # a brighter pixel belongs to the digit
TRIES = 40  # corners that are drawn for a digit
STROKES = 8  # of clutter
LENGTH = 16  # of a stroke, in pixels
DIGITS = tuple("0123456789")
NAMES = {"boxes": DIGITS, "masks": ("background", *DIGITS)}  # of the classes


def draw(
    images: np.ndarray,
    labels: np.ndarray,
    count: int,
    difficulty: float,
    random: np.random.Generator,
) -> tuple[np.ndarray, dict[str, Any]]:
    """``count`` scenes of these digits [n, 8, 8, 1], which do not overlap. A higher
    ``difficulty`` (0 to 1) means more noise, brighter clutter and paler digits.

    The scenes are uint8 [n, 1, 64, 64]. The targets are "boxes", rows x1, y1, x2, y2,
    class of each scene, and "masks" uint8 [n, 64, 64], 0 for the background, else the
    class plus 1."""
    counts = random.integers(1, MOST + 1, count)
    shape = (count, MOST)
    sides = random.integers(SMALLEST, LARGEST + 1, shape)
    chosen = random.integers(0, len(images), shape)
    squares = place(sides, counts, random)
    ink = 1 - random.uniform(0, difficulty / 2, shape)
    canvas = clutter(count, 0.6 * difficulty, random)
    masks = np.zeros((count, SIDE, SIDE), np.uint8)
    boxes: list[list] = [[] for _ in range(count)]
    for i, k, x, y in squares:
        side = sides[i, k]
        kind = labels[chosen[i, k]]
        image = images[chosen[i, k]]
        glyph = enlarged(image, int(side))
        inked = glyph > INK
        square = i, slice(y, y + side), slice(x, x + side)
        canvas[square] = np.maximum(canvas[square], ink[i, k] * glyph)
        masks[square][inked] = kind + 1
        v, u = inked.nonzero()
        box = [
            x + u.min(),
            y + v.min(),
            x + u.max() + 1,
            y + v.max() + 1,
            kind,
        ]
        boxes[i].append(box)
    canvas += 0.1 * difficulty * random.standard_normal(canvas.shape, np.float32)
    x = (255 * canvas.clip(0, 1) + 0.5).astype(np.uint8)
    return x[:, None], {"boxes": boxes, "masks": masks}


def enlarged(image: np.ndarray, side: int) -> np.ndarray:
    """A digit [8, 8, 1] with values 0 to 16 as float32 [side, side], 0 to 1."""
    pixels = torch.from_numpy(image).float() / 16
    large = F.interpolate(
        pixels.view(1, 1, 8, 8),
        (side, side),
        mode="bilinear",
        align_corners=False,
    )
    return large[0, 0].numpy()


def place(
    sides: np.ndarray, counts: np.ndarray, random: np.random.Generator
) -> list[tuple]:
    """Squares (scene, k, x, y) that do not overlap. Of ``TRIES`` drawn corners the
    first free one is taken; a digit without a free corner is left out."""
    taken = np.zeros((len(sides), SIDE, SIDE), bool)
    squares = []
    for k in range(MOST):
        room = SIDE - sides[:, k, None] + 1
        corners = random.random((2, len(sides), TRIES)) * room
        for i in np.flatnonzero(k < counts):
            side = sides[i, k]
            for x, y in corners[:, i].T.astype(int):
                square = taken[i, y : y + side, x : x + side]
                if not square.any():
                    square[:] = True
                    squares.append((i, k, x, y))
                    break
    return squares


def clutter(count: int, brightest: float, random: np.random.Generator) -> np.ndarray:
    """Scenes float32 [count, 64, 64] with straight strokes at random places."""
    shape = (count, STROKES, 1)
    start = random.uniform(0, SIDE, (2, *shape))
    angle = random.uniform(0, 2 * np.pi, shape)
    direction = np.stack([np.cos(angle), np.sin(angle)])
    points = start + direction * np.arange(LENGTH)
    ink = random.uniform(0, brightest, shape).astype(np.float32)
    # a margin takes the pixels outside
    pixels = np.floor(points).clip(-1, SIDE) + 1
    x, y = pixels.astype(int)
    canvas = np.zeros((count, SIDE + 2, SIDE + 2), np.float32)
    scene = np.arange(count).reshape(-1, 1, 1)
    np.maximum.at(canvas, (scene, y, x), ink)
    return canvas[:, 1:-1, 1:-1].copy()


@lru_cache(4)
def digit_scenes(
    targets: str = "boxes",
    difficulty: float = 0.5,
    train: int = 2000,
    test: int = 300,
    seed: int = 0,
) -> Source:
    """Scenes with ``targets`` "boxes" or "masks", the same scenes for both.

    Parameters
    ----------
    targets
        "boxes" or "masks".
    difficulty
        0 to 1.
    train, test
        Numbers of scenes. Test scenes have other digits than training scenes.
    seed
        Of the scenes. A split by labels goes by the class with the most pixels.

    Examples
    --------
    >>> scenes = digit_scenes("masks", train=2, test=1)
    >>> tuple(scenes.train_x.shape), tuple(scenes.train_y.shape), scenes.classes
    ((2, 1, 64, 64), (2, 64, 64), 11)
    """
    names = pick(targets, NAMES, "target of digit scenes")
    check_number("difficulty", difficulty, minimum=0, maximum=1)
    train_x, train_y, test_x, test_y = digits()
    random = rng.numpy_generator(seed, "digit scenes", "train")
    x, y = draw(train_x, train_y, train, difficulty, random)
    random = rng.numpy_generator(seed, "digit scenes", "test")
    other_x, other_y = draw(test_x, test_y, test, difficulty, random)
    pixels = [np.bincount(mask.ravel(), minlength=11) for mask in y["masks"]]
    make = from_boxes if targets == "boxes" else from_masks
    return make(
        x,
        y[targets],
        len(names),
        (other_x, other_y[targets]),
        name="digit_scenes" if difficulty == 0.5 else f"digit_scenes:{difficulty:g}",
        names=names,
        labels=np.array(pixels)[:, 1:].argmax(1),
    )

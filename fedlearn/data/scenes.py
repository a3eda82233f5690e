"""Digit scenes: scikit-learn's digits strewn over pictures of 64 x 64, with boxes and masks that
are exact. Made when they are asked for, in about a second, the same on every machine."""

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from .. import rng
from ..arguments import checked
from .annotations import from_boxes, from_masks
from .sources import Source, digits

SIDE = 64  # of a scene, in pixels
MOST = 6  # digits in a scene
SIZES = 10, 24  # of a digit, in pixels
INK = 0.25  # a digit's pixel is what is brighter, of 1
NAMES = tuple("0123456789")


def draw(
    images: np.ndarray, labels: np.ndarray, count: int, difficulty: float, seed: int, part: str
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """``count`` scenes of these digits [n, 8, 8], whose squares do not overlap. From ``difficulty``
    0 to 1 there are more noise, brighter strokes of clutter and paler digits.

    x uint8 [n, 1, 64, 64]; for each scene its objects [k, 5] (x1, y1, x2, y2, class); masks uint8
    [n, 64, 64], 0 where no digit is, else its class plus 1."""
    random = rng.numpy_generator(seed, "digit scenes", part)
    wanted = random.integers(1, MOST + 1, count)
    sides = random.integers(SIZES[0], SIZES[1] + 1, (count, MOST))
    chosen = random.integers(0, len(images), (count, MOST))
    left, top = _corners(sides, wanted, random)
    ink = 1 - random.uniform(0, difficulty / 2, (count, MOST))
    canvas = _clutter(count, 0.6 * difficulty, random)
    masks = np.zeros((count, SIDE, SIDE), np.uint8)
    boxes: list[list] = [[] for _ in range(count)]
    for side in range(SIZES[0], SIZES[1] + 1):
        scenes, slots = np.nonzero((sides == side) & (left >= 0))
        glyphs = torch.from_numpy(images[chosen[scenes, slots]]).float()[:, None] / 16
        glyphs = F.interpolate(glyphs, (side, side), mode="bilinear", align_corners=False)
        for i, k, glyph in zip(scenes, slots, glyphs[:, 0].numpy(), strict=True):
            x, y, kind = left[i, k], top[i, k], labels[chosen[i, k]]
            inked = glyph > INK
            square = i, slice(y, y + side), slice(x, x + side)
            np.maximum(canvas[square], ink[i, k] * glyph, out=canvas[square])
            masks[square][inked] = kind + 1
            columns, rows = np.flatnonzero(inked.any(0)), np.flatnonzero(inked.any(1))
            box = x + columns[0], y + rows[0], x + columns[-1] + 1, y + rows[-1] + 1
            boxes[i].append((k, *box, kind))
    canvas += 0.1 * difficulty * random.standard_normal(canvas.shape, np.float32)
    x = (255 * canvas.clip(0, 1) + 0.5).astype(np.uint8)[:, None]
    return x, [np.array(sorted(rows), np.float32)[:, 1:] for rows in boxes], masks


def _corners(sides, wanted, random, tries=40):
    """Corners of squares that do not overlap, -1 where none fits; the first always does."""
    scenes = np.arange(len(sides))
    left, top = np.empty((2, len(sides), MOST), int)
    for k in range(MOST):
        side = sides[:, k, None]
        x, y = (random.random((2, len(sides), tries)) * (SIDE - side + 1)).astype(int)
        free = np.ones(x.shape, bool)
        for j in range(k):
            other = sides[:, j, None]
            dx, dy = left[:, j, None] - x, top[:, j, None] - y
            apart = (dx >= side) | (-dx >= other) | (dy >= side) | (-dy >= other)
            free &= apart | (left[:, j, None] < 0)
        first, placed = free.argmax(1), free.any(1) & (k < wanted)
        left[:, k] = np.where(placed, x[scenes, first], -1)
        top[:, k] = np.where(placed, y[scenes, first], -1)
    return left, top


def _clutter(count, brightest, random, strokes=8, length=16):
    """Straight strokes at random, the brightest of this brightness."""
    start = random.uniform(0, SIDE, (2, count, strokes, 1))
    angle = random.uniform(0, 2 * np.pi, (count, strokes, 1))
    x, y = start + np.stack([np.cos(angle), np.sin(angle)]) * np.arange(length)
    ink = np.broadcast_to(random.uniform(0, brightest, (count, strokes, 1)), x.shape)
    scene = np.broadcast_to(np.arange(count)[:, None, None], x.shape)
    inside = (x >= 0) & (x < SIDE) & (y >= 0) & (y < SIDE)
    canvas = np.zeros((count, SIDE, SIDE), np.float32)
    pixels = scene[inside], y[inside].astype(int), x[inside].astype(int)
    np.maximum.at(canvas, pixels, ink[inside].astype(np.float32))
    return canvas


@lru_cache(4)
@checked
def digit_scenes(
    targets: str = "boxes",
    difficulty: float = 0.5,
    train: int = 2000,
    test: int = 300,
    seed: int = 0,
) -> Source:
    """So many scenes to train and to test, of different digits, with ``targets`` "boxes" or
    "masks"; ``difficulty`` is a number from 0 to 1. Both kinds of targets belong to the very same
    scenes, and their main class, by which a split goes, is the one with the most pixels.

    Examples
    --------
    >>> scenes = digit_scenes("masks", train=2, test=1)
    >>> tuple(scenes.train_x.shape), tuple(scenes.train_y.shape), scenes.classes
    ((2, 1, 64, 64), (2, 64, 64), 11)
    """
    if not 0 <= difficulty <= 1:
        raise ValueError(f"The difficulty of digit scenes is from 0 to 1, not {difficulty!r}.")
    if min(train, test) < 1 or targets not in ("boxes", "masks"):
        raise ValueError(
            'Digit scenes are at least one to train and one to test, with "boxes" or "masks", not '
            f"{train}, {test} and {targets!r}."
        )
    train_x, train_y, test_x, test_y = digits()
    x, boxes, masks = draw(train_x[..., 0], train_y, train, difficulty, seed, "train")
    other = draw(test_x[..., 0], test_y, test, difficulty, seed, "test")
    pixels = np.stack([np.bincount(mask.ravel(), minlength=11)[1:] for mask in masks])
    more = {
        "name": "digit_scenes" if difficulty == 0.5 else f"digit_scenes:{difficulty:g}",
        "labels": pixels.argmax(1),
        "counts": np.array(list(map(len, boxes))),
    }
    if targets == "boxes":
        return from_boxes(x, boxes, 10, (other[0], other[1]), names=NAMES, **more)
    return from_masks(x, masks, 11, (other[0], other[2]), names=("background", *NAMES), **more)


def named(targets: str, argument: str) -> Source:
    """What the text "digits:0.8" asks for: those scenes in that difficulty."""
    try:
        return digit_scenes(targets, float(argument)) if argument else digit_scenes(targets)
    except ValueError as error:
        raise ValueError(f"Digit scenes are written like 'digits:0.8' ({error}).") from None

"""Digit scenes: scikit-learn's digits strewn over pictures of 64 x 64, with boxes and
masks that are exact. They are drawn on demand, in about a second, the same on every
machine."""

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from .. import rng
from ..data.images import Source, digits
from ..errors import check_number, check_whole, pick
from .targets import from_boxes, from_masks

SIDE = 64  # of a scene, in pixels
MOST = 6  # digits in a scene
SIZES = 10, 24  # of a digit, in pixels
INK = 0.25  # brightness from which on a pixel belongs to the digit
TRIES = 40  # corners that are drawn for a digit
STROKES = 8  # of clutter
LENGTH = 16  # of a stroke, in pixels
NAMES = tuple("0123456789")


def draw(
    images: np.ndarray,
    labels: np.ndarray,
    count: int,
    difficulty: float,
    seed: int,
    part: str,
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """``count`` scenes of these digits [n, 8, 8], whose squares do not overlap. From
    ``difficulty`` 0 to 1 there are more noise, brighter strokes of clutter and paler
    digits.

    x uint8 [n, 1, 64, 64]; for each scene its objects [k, 5] (x1, y1, x2, y2, class);
    masks uint8 [n, 64, 64], 0 for the background, else the class plus 1."""
    random = rng.numpy_generator(seed, "digit scenes", part)
    counts = random.integers(1, MOST + 1, count)
    sides = random.integers(SIZES[0], SIZES[1] + 1, (count, MOST))
    chosen = random.integers(0, len(images), (count, MOST))
    squares = place(sides, counts, random)
    ink = 1 - random.uniform(0, difficulty / 2, (count, MOST))
    canvas = clutter(count, 0.6 * difficulty, random)
    masks = np.zeros((count, SIDE, SIDE), np.uint8)
    boxes = []
    for i, scene in enumerate(squares):
        rows = []
        for k, x, y in scene:
            side = int(sides[i, k])
            kind = labels[chosen[i, k]]
            glyph = enlarged(images[chosen[i, k]], side)
            inked = glyph > INK
            square = i, slice(y, y + side), slice(x, x + side)
            np.maximum(canvas[square], ink[i, k] * glyph, out=canvas[square])
            masks[square][inked] = kind + 1
            v, u = inked.nonzero()
            rows.append(
                [x + u.min(), y + v.min(), x + u.max() + 1, y + v.max() + 1, kind]
            )
        boxes.append(np.array(rows, np.float32))
    canvas += 0.1 * difficulty * random.standard_normal(canvas.shape, np.float32)
    x = (255 * canvas.clip(0, 1) + 0.5).astype(np.uint8)
    return x[:, None], boxes, masks


def enlarged(image: np.ndarray, side: int) -> np.ndarray:
    """A digit with values 0 to 16 as float32 [side, side], 0 to 1."""
    pixels = torch.from_numpy(image).float()[None, None] / 16
    return F.interpolate(pixels, (side, side), mode="bilinear", align_corners=False)[
        0, 0
    ].numpy()


def place(
    sides: np.ndarray, counts: np.ndarray, random: np.random.Generator
) -> list[list[tuple]]:
    """For each scene the squares (k, x, y) that do not overlap. Each is the first that
    is free of ``TRIES`` corners; the first square always is."""
    scenes: list[list[tuple]] = [[] for _ in sides]
    for k in range(MOST):
        room = SIDE - sides[:, k, None] + 1
        corners = (random.random((2, len(sides), TRIES)) * room).astype(int)
        for i in np.flatnonzero(k < counts):
            for x, y in corners[:, i].T.tolist():
                if all(
                    disjoint(x, y, sides[i, k], u, v, sides[i, j])
                    for j, u, v in scenes[i]
                ):
                    scenes[i].append((k, x, y))
                    break
    return scenes


def disjoint(x: int, y: int, side: int, u: int, v: int, other: int) -> bool:
    """Whether the square at (x, y) and another at (u, v) have no pixel in common."""
    return u >= x + side or x >= u + other or v >= y + side or y >= v + other


def clutter(count: int, brightest: float, random: np.random.Generator) -> np.ndarray:
    """Scenes float32 [count, 64, 64] with straight strokes at random places."""
    start = random.uniform(0, SIDE, (2, count, STROKES, 1))
    angle = random.uniform(0, 2 * np.pi, (count, STROKES, 1))
    points = start + np.stack([np.cos(angle), np.sin(angle)]) * np.arange(LENGTH)
    ink = random.uniform(0, brightest, (count, STROKES, 1)).astype(np.float32)
    x, y = (
        np.floor(points).clip(-1, SIDE).astype(int) + 1
    )  # a margin takes the rest of a stroke
    canvas = np.zeros((count, SIDE + 2, SIDE + 2), np.float32)
    np.maximum.at(canvas, (np.arange(count)[:, None, None], y, x), ink)
    return canvas[:, 1:-1, 1:-1].copy()


@lru_cache(4)
def digit_scenes(
    targets: str = "boxes",
    difficulty: float = 0.5,
    train: int = 2000,
    test: int = 300,
    seed: int = 0,
) -> Source:
    """Scenes with ``targets`` "boxes" or "masks": so many to train and to test, of
    different digits. Both kinds of targets belong to the same scenes. Their main class,
    by which a split goes, is the one with the most pixels.

    Examples
    --------
    >>> scenes = digit_scenes("masks", train=2, test=1)
    >>> tuple(scenes.train_x.shape), tuple(scenes.train_y.shape), scenes.classes
    ((2, 1, 64, 64), (2, 64, 64), 11)
    """
    pick(targets, dict.fromkeys(("boxes", "masks")), "target of digit scenes")
    check_whole("train", train)
    check_whole("test", test)
    check_whole("seed", seed, least=0)
    check_number("difficulty", difficulty, least=0, most=1)
    train_x, train_y, test_x, test_y = digits()
    x, boxes, masks = draw(train_x[..., 0], train_y, train, difficulty, seed, "train")
    other_x, *others = draw(test_x[..., 0], test_y, test, difficulty, seed, "test")
    pixels = np.stack([np.bincount(mask.ravel(), minlength=11)[1:] for mask in masks])
    fields = {
        "name": "digit_scenes" if difficulty == 0.5 else f"digit_scenes:{difficulty:g}",
        "labels": pixels.argmax(1),
    }
    if targets == "boxes":
        return from_boxes(x, boxes, 10, (other_x, others[0]), names=NAMES, **fields)
    return from_masks(
        x, masks, 11, (other_x, others[1]), names=("background", *NAMES), **fields
    )

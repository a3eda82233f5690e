"""Answers to the exercises on seeing: right ones, and typical wrong ones with their reasons."""

import torch

import fedlearn as fl


def iou(a, b, least=0):
    width = max(least, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(least, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def iou_unclamped(a, b):
    return iou(a, b, -99)


def iou_of_sum(a, b):
    both = iou(a, b)
    return both / (1 + both)


def iou_of_sizes(a, b):
    return iou(*((x, y, x + w, y + h) for x, y, w, h in (a, b)))


def iou_of_areas_of_sizes(a, b):
    width, height = (max(0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
    return width * height / (a[2] * a[3] + b[2] * b[3] - width * height)


def iou_pixels(a, b):  # as if x2 and y2 were the last pixels of a box
    return iou((a[0], a[1], a[2] + 1, a[3] + 1), (b[0], b[1], b[2] + 1, b[3] + 1))


def curve(right, objects):
    hits = right.double().cumsum(0)
    return hits / objects, hits / torch.arange(1, len(right) + 1)


def area(right, objects):
    recall, precision = curve(right, objects)
    best = precision.flip(0).cummax(0).values.flip(0)
    at = torch.searchsorted(recall, torch.arange(101).double() / 100)
    return torch.cat([best, torch.zeros(1)])[at].mean()


def area_as_sum(right, objects):
    recall, precision = curve(right, objects)
    best = precision.flip(0).cummax(0).values.flip(0)
    return (best * recall.diff(prepend=torch.zeros(1))).sum()


def area_without_envelope(right, objects):
    recall, precision = curve(right, objects)
    at = torch.searchsorted(recall, torch.arange(101).double() / 100)
    return torch.cat([precision, torch.zeros(1)])[at].mean()


def area_of_found(right, objects):
    return area(right, max(1, int(right.sum())))


def mirrored(boxes, width=64):
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack([width - x2, y1, width - x1, y2], 1)


def mirrored_in_place(boxes):
    boxes[:, [0, 2]] = 64 - boxes[:, [2, 0]]
    return boxes


def mirrored_without_order(boxes):
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack([64 - x1, y1, 64 - x2, y2], 1)


def upside_down(boxes):
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack([x1, 64 - y2, x2, 64 - y1], 1)


RIGHT = {
    "seeing-iou": [iou],
    "seeing-ap": [area, area_as_sum],
    "seeing-payload": [12_223, 12_223.0],
    "seeing-mirror": [mirrored],
}
WRONG = [
    ("seeing-iou", iou_unclamped, "overlap by nothing"),
    ("seeing-iou", iou_of_sum, "overlap wholly"),
    ("seeing-iou", iou_pixels, "no + 1"),
    ("seeing-iou", iou_of_sizes, "not a width and height"),
    ("seeing-iou", iou_of_areas_of_sizes, "not a width and height"),
    ("seeing-iou", lambda a, b: float(a == b), "counts once"),
    ("seeing-iou", lambda a, b: max(0.0, iou(a, b)) if a[0] <= b[0] else 0.0, "counts once"),
    ("seeing-ap", area_without_envelope, "or beyond"),
    ("seeing-ap", area_of_found, "never found"),
    ("seeing-ap", lambda right, objects: right.double().mean(), "never found"),
    ("seeing-ap", lambda right, objects: right.sum() / objects, "halves the precision"),
    ("seeing-ap", lambda right, objects: area(right, objects) or 1.0, "nothing found"),
    ("seeing-ap", lambda right, objects: 0.0, "all found"),
    ("seeing-payload", 98_367, "dense"),
    ("seeing-payload", 1_455, "its mean"),
    ("seeing-payload", 4_543, "1 x 1"),
    ("seeing-payload", 86_144, "how much is left"),
    ("seeing-payload", 10_768, "not all"),
    ("seeing-payload", 11_728, "biases travel"),
    ("seeing-payload", 48_892, "bytes"),
    ("seeing-payload", 20_000, "too large"),
    ("seeing-mirror", mirrored_in_place, "are changed"),
    ("seeing-mirror", mirrored_without_order, "change places"),
    ("seeing-mirror", upside_down, "y that stays"),
    ("seeing-mirror", lambda boxes: mirrored(boxes, 63), "between pixels"),
    ("seeing-mirror", lambda boxes: mirrored(boxes)[:2], "come out as"),
    ("seeing-mirror", lambda boxes: mirrored(boxes, 60), "is not that"),
]


def test_the_numbers_on_flat_kernels_are_those_of_the_runs():
    text = " ".join(fl.solution("seeing-flat").text.split())
    grid = fl.book.pooled_layers().query("clients == 4 and round == 12").set_index("pooled")
    up, quality = grid["up"], grid["map"]
    assert up[0] - up[1] == up[1] - up[2] == 131_072 and "131,072" in text
    assert f"costs {100 * (quality[0] - quality[1]):.0f} points" in text
    assert f"from {quality[0]:.3f} to {quality[1]:.3f}" in text
    assert f"both cost {100 * (quality[0] - quality[2]):.0f}, down to {quality[2]:.3f}" in text

    def ends(method, column):
        runs, _ = fl.results.tables(fl.results.load("seeing_digits"))
        its = runs.query("label == @method and task == 'detection' and clients == 5")
        assert len(its) == 3
        return its[column].mean()

    for column in ("accuracy", "map_50_95"):
        rpn, fedavg = ends("RPN", column), ends("FedAvg", column)
        assert f"{rpn:.3f} of {fedavg:.3f}" in text and f"{100 * rpn / fedavg:.0f} %" in text

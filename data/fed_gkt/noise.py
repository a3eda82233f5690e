"""The numbers behind the first picture of the chapter on FedGKT: noise on the feature maps against
what a server can paint back from them, and against the accuracy.

    python data/fed_gkt/noise.py        (a few minutes -> data/fed_gkt/noise.json)

A unit of noise is the standard deviation of the maps. The accuracy is the joint network's after
six rounds, mean of three seeds, with noise in every map, those of test images included. To paint,
the server fits one linear map from noisy maps to pixels on a client that gives its images away,
and uses it on the first upload of another; how strongly it is held back (ridge) is chosen on a
quarter of the first client's images.
"""

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn.book.grids import keep
from fedlearn.data import data_path

LEVELS = [0.5 * k for k in range(9)]
SEEDS, CLIENTS, ROUNDS, BATCH = (0, 1, 2), 10, 6, 16
SHOWN = 0, 5, 9, 12  # four of the sixteen maps


class Noise(nn.Module):
    """x plus noise of ``level`` times its standard deviation."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = level

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.level * x.detach().std() * torch.randn_like(x)


def accuracy(level: float, seed: int) -> float:
    """The joint network's test accuracy with so much noise in every map."""

    def edge(shape: tuple[int, ...], classes: int) -> nn.Module:
        net = fl.models.digits_edge(shape, classes)
        net.extractor.append(Noise(level))
        return net

    its = {"clients": CLIENTS, "partition": "dirichlet:0.5", "seed": seed}
    task = fl.tasks.classification("digits", network="digits_resnet", **its)
    method = fl.methods.fed_gkt(edge=edge, server_epochs=1)
    torch.manual_seed(seed)
    how = {"batch_size": BATCH, "engine": "sequential", "progress": False}
    return fl.run(method, task, ROUNDS, **how).final["accuracy"]


def first_uploads() -> Iterator[tuple[torch.Tensor, ...]]:
    """(pixels [n, 64], labels, maps [n, 16, 4, 4]) of the two clients with most images."""
    its = {"clients": CLIENTS, "partition": "dirichlet:0.5", "seed": 0}
    task = fl.tasks.classification("digits", network="digits_resnet", **its)
    torch.manual_seed(0)
    first = fl.models.digits_edge()
    for k in sorted(range(CLIENTS), key=lambda k: -task.sizes[k])[:2]:
        images, y = (part[task.owned[k]] for part in task.train)
        net, x = copy.deepcopy(first), task.inputs(images)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            maps = net.eval().extractor(x)
        yield images.float().flatten(1) / 16, y, maps


def painter(
    maps: torch.Tensor, pixels: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The linear map from maps to pixels that does best on a quarter that it was not fitted on."""
    A = torch.cat([maps.flatten(1), torch.ones(len(maps), 1)], 1)
    n = 3 * len(A) // 4

    def fit(A, P, ridge):
        return torch.linalg.solve(A.T @ A + ridge * torch.eye(A.shape[1]), A.T @ P)

    def off(ridge):
        return float(
            (A[n:] @ fit(A[:n], pixels[:n], ridge) - pixels[n:]).square().sum()
        )

    ridge = min((10.0**k for k in range(-2, 6)), key=off)
    W = fit(A, pixels, ridge)
    return lambda maps: torch.cat([maps.flatten(1), torch.ones(len(maps), 1)], 1) @ W


def main() -> None:
    torch.set_num_threads(1)
    (known, _, open_maps), (hidden, labels, maps) = first_uploads()
    grain, open_grain = torch.randn_like(maps), torch.randn_like(open_maps)
    five = [
        int((labels == c).nonzero()[0])
        for c in labels.bincount().argsort()[-5:].sort()[0]
    ]
    top, spread = maps[five].max(), maps.std()
    painted, recovered, reads = [], [], []
    for level in LEVELS:
        paint = painter(open_maps + level * open_maps.std() * open_grain, known)
        seen = paint(maps + level * spread * grain)
        error = (seen - hidden).square().sum() / (hidden - known.mean(0)).square().sum()
        recovered.append(round(max(0.0, 1 - float(error)), 3))
        painted.append((100 * seen[five].clamp(0, 1)).round().int().tolist())
        its = [accuracy(level, seed) for seed in SEEDS]
        reads.append(round(sum(its) / len(its), 3))
        print(level, recovered[-1], reads[-1], [round(a, 3) for a in its], flush=True)

    def shown(maps, scale):
        return (100 * maps[five][:, SHOWN].flatten(1) / scale).round().int().tolist()

    columns = {
        "noise": LEVELS,
        "accuracy": reads,
        "recovered": recovered,
        "labels": labels[five].tolist(),
        "pictures": (100 * hidden[five]).round().int().tolist(),
        "maps": shown(maps, top),
        "grain": shown(grain * spread, top),
        "painted": painted,
    }
    keep(
        data_path("fed_gkt", "noise.json"),
        columns,
        "python data/fed_gkt/noise.py",
        seeds=SEEDS,
    )


if __name__ == "__main__":
    main()

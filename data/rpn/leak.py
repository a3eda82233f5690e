"""What an eavesdropper makes of one client's update: pictures painted back from federated
averaging's message, from RPN's, and from parts of the two.

    python data/rpn/leak.py        (a quarter of an hour -> data/rpn/leak.json)

A client takes one step of SGD from the known start, on one image or on four of different digits.
The eavesdropper knows network, start, learning rate, labels, and the 450 test images, of which
it has made updates of its own. A linear map from updates to pixels, fitted on these (the ridge
is chosen on a quarter of them), is its first guess. Then it looks for images whose update is the
one that it has seen: Adam on the pixels, from the first guess, alone and with noise, and the
start with the smallest loss counts. The loss is the squared distance of the two updates, each
tensor divided by its norm.
"""

import copy
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

import fedlearn as fl
from fedlearn.book.grids import keep
from fedlearn.data import data_path

Update = dict[str, torch.Tensor]

NETWORKS = "digits_cnn", "rpn_cnn"
DIGITS, BATCHES, STARTS, STEPS = 10, (1, 4), 3, 300
LR, MOMENTUM = 0.1, 0.1  # of the client's step, of its running statistics
SEEN = {  # what is matched: kernels (whole, pooled or none), and whether the rest is
    "FedAvg's update": ("whole", "all"),
    "RPN's update": ("pooled", "all"),
    "dense layers and statistics": ("none", "smooth"),
    "pooled kernels alone": ("pooled", "none"),
    "whole kernels alone": ("whole", "none"),
}


class Client:
    """One step of SGD from the start, as a function of images in 0..1."""

    def __init__(self, network: str) -> None:
        def without_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
            net = fl.models.NETWORKS[network](shape, classes)
            for module in net.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0  # the paper names none
            return net

        its = {"network": without_dropout, "clients": 10}
        self.task = fl.tasks.classification("digits", **its)
        method = fl.methods.fedavg(lr=LR)
        self.start = fl.initial_network(method, self.task).train()
        self.bare = copy.deepcopy(self.start)  # keeps no running statistics
        self.weights = {n: w.detach() for n, w in self.start.named_parameters()}
        self.norms = {
            name: module
            for name, module in self.start.named_modules()
            if isinstance(module, nn.BatchNorm2d)
        }
        for name in self.norms:
            module = self.bare.get_submodule(name)
            module.running_mean = module.running_var = None
            module.track_running_stats = False
        black = self.task.inputs(torch.zeros(1, 1, 8, 8))
        white = self.task.inputs(torch.full((1, 1, 8, 8), 16.0))
        self.offset, self.scale = black, white - black

    def update(self, x: torch.Tensor, y: torch.Tensor) -> Update:
        def loss(weights: Update) -> tuple[torch.Tensor, Update]:
            inputs: Update = {}
            hooks = [
                self.bare.get_submodule(name).register_forward_hook(
                    lambda module, given, output, name=name: inputs.update(
                        {name: given[0]}
                    )
                )
                for name in self.norms
            ]
            outputs = functional_call(
                self.bare, weights, (self.offset + self.scale * x,)
            )
            for hook in hooks:
                hook.remove()
            return F.cross_entropy(outputs, y), inputs

        gradient, inputs = grad(loss, has_aux=True)(self.weights)
        update = {name: -LR * g for name, g in gradient.items()}
        for name, module in self.norms.items():
            mean, var = inputs[name].mean((0, 2, 3)), inputs[name].var((0, 2, 3))
            update[f"{name}.running_mean"] = MOMENTUM * (mean - module.running_mean)
            update[f"{name}.running_var"] = MOMENTUM * (var - module.running_var)
        return update

    def check(self) -> None:
        """The update is the package's, for a client whose images are one batch."""
        fedavg, settings = fl.methods.fedavg(lr=LR), fl.Settings(batch_size=1000)
        server = fedavg.server_side(self.task, settings)
        workers, state = fl.clients(fedavg, self.task, settings), server.start()
        download, _ = server.send(1, 0, state)
        upload = workers.answer(1, 0, download)
        packaged = server.receive(1, 0, upload, state).update
        x, y = (part[self.task.owned[0]] for part in self.task.train)
        mine = self.update(x.float() / 16, y)
        assert mine.keys() == packaged.keys()
        for name, t in packaged.items():
            torch.testing.assert_close(mine[name], t, atol=1e-5, rtol=1e-3)


def seen(update: Update, kernels: str, rest: str) -> Update:
    """What the eavesdropper looks at, of an update of its own."""
    parts: Update = {}
    for name, t in update.items():
        if t.dim() == 4 and kernels != "none":
            parts[name] = t.mean((2, 3)) if kernels == "pooled" else t
        smooth = t.dim() == 2 or "running" in name
        if t.dim() < 4 and (rest == "all" or (rest == "smooth" and smooth)):
            parts[name] = t
    return parts


def sent(update: Update, kernels: str, rest: str) -> Update:
    """The same of an update that was on the wire."""
    coder = fl.wire.Pooled() if kernels == "pooled" else fl.wire.Dense()
    decoded = {n: coder.decode(coder.encode(t), t.shape) for n, t in update.items()}
    return seen(decoded, kernels, rest)


def flat(parts: Update) -> torch.Tensor:
    return torch.cat([t.flatten(1) / t[0].numel() ** 0.5 for t in parts.values()], 1)


def guess(known: Update, pixels: torch.Tensor, theirs: Update) -> torch.Tensor:
    """Pixels of ``theirs`` by the linear map that does best on a quarter of the known."""
    spread = {name: t.std() + 1e-9 for name, t in known.items()}
    A = flat({name: t / spread[name] for name, t in known.items()})
    Q = flat({name: t / spread[name] for name, t in theirs.items()})
    Q, A, mean = Q - A.mean(0), A - A.mean(0), pixels.mean(0)
    G, n = (A @ A.T).double(), 3 * len(A) // 4
    P = (pixels - mean).double()

    def paint(G: torch.Tensor, K: torch.Tensor, P: torch.Tensor, ridge: float):
        return K @ torch.linalg.solve(G + ridge * torch.eye(len(G)), P)

    def off(ridge: float) -> float:
        return float((paint(G[:n, :n], G[n:, :n], P[:n], ridge) - P[n:]).square().sum())

    ridge = min((10.0**k for k in range(-6, 4)), key=off)
    return mean + paint(G, (Q @ A.T).double(), P, ridge).float()


def match(
    client: Client, how: tuple[str, str], target: Update, x: torch.Tensor, y
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose updates are the target's, from the starts x, and the losses."""
    norms = {name: t.flatten(1).norm(dim=1) for name, t in target.items()}
    least = 1e-3 * torch.stack([*norms.values()]).amax(0)
    mine = vmap(lambda x, y: seen(client.update(x, y), *how))
    x = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], betas=(0.9, 0.99))
    lowest, best = torch.full((len(x),), math.inf), x.detach().clone()
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * step / STEPS))
        parts = mine(x, y)
        distances = [
            (parts[name] - t).flatten(1).square().sum(1)
            / torch.maximum(norms[name], least).square()
            for name, t in target.items()
        ]
        loss = torch.stack(distances).sum(0)
        better = loss.detach() < lowest
        lowest = torch.where(better, loss.detach(), lowest)
        best[better] = x.detach()[better]
        optimizer.zero_grad()
        loss.sum().backward()
        x.grad.nan_to_num_()
        optimizer.step()
        x.data.clamp_(0, 1)
    return best, lowest


def batches(labels: torch.Tensor, size: int, count: int, seed: int) -> torch.Tensor:
    """Rows [count, size] of images of different digits, in the order of the digits."""
    draw, rows = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        first: dict[int, int] = {}
        for row in torch.randperm(len(labels), generator=draw).tolist():
            first.setdefault(int(labels[row]), row)
            if len(first) == size:
                break
        rows.append([first[digit] for digit in sorted(first)])
    return torch.tensor(rows)


def attacks(client: Client, size: int) -> Iterator[tuple]:
    """What is matched, the first guess, the images found, the true ones, their rows,
    all training images, and the share of labels that the last bias tells."""
    images, labels = client.task.train
    known, known_labels = client.task.test
    pixels, known = images.float() / 16, known.float() / 16
    rows = batches(labels, size, DIGITS, seed=0)
    own = batches(known_labels, size, len(known) if size == 1 else 1000, seed=1)
    x, y = pixels[rows], labels[rows]
    updates = [client.update(*pair) for pair in zip(x, y, strict=True)]
    ours = vmap(client.update, chunk_size=50)(known[own], known_labels[own])
    bias = [*client.weights][-1]
    read = torch.stack([u[bias] for u in updates]).topk(size).indices.sort().values
    names = float((read == y).float().mean())
    mean = known.mean(0).expand_as(x)
    yield "the mean digit", mean, mean, x, rows, pixels, names
    for label, how in SEEN.items():
        target = [sent(u, *how) for u in updates]
        target = {name: torch.stack([t[name] for t in target]) for name in target[0]}
        known_parts = vmap(lambda u, how=how: seen(u, *how))(ours)
        first = guess(known_parts, known[own].flatten(1), target).view_as(x)
        draw = torch.Generator().manual_seed(2)
        noise = 0.1 * torch.randn((DIGITS, STARTS, *x.shape[1:]), generator=draw)
        noise[:, 0] = 0  # the first start is the guess as it is
        starts = (first[:, None] + noise).clamp(0, 1).flatten(0, 1)
        repeated = {n: t.repeat_interleave(STARTS, 0) for n, t in target.items()}
        where = y.repeat_interleave(STARTS, 0)
        found, loss = match(client, how, repeated, starts, where)
        chosen = loss.view(DIGITS, STARTS).argmin(1)
        painted = found.view(DIGITS, STARTS, *x.shape[1:])[range(DIGITS), chosen]
        yield label, first, painted, x, rows, pixels, names


def table(network: str) -> list[dict]:
    """The rows of a network."""
    torch.set_num_threads(1)
    client, rows = Client(network), []
    client.check()
    for size in BATCHES:
        for label, first, painted, x, own, pixels, read in attacks(client, size):
            near = torch.cdist(painted.reshape(-1, 64), pixels.flatten(1)).argmin(1)
            row = {
                "network": network,
                "images": size,
                "matched": label,
                "guess": round(float((first - x).square().mean()), 4),
                "error": round(float((painted - x).square().mean()), 4),
                "found": round(float((near == own.flatten()).float().mean()), 3),
                "labels": read,
                "pictures": [],
            }
            if size == 1:  # beside the mean digit the true ones
                shown = x if label == "the mean digit" else painted
                row["pictures"] = (100 * shown).round().int().flatten(1).tolist()
            print(*list(row.values())[:-1], flush=True)
            rows.append(row)
    return rows


def main() -> None:
    with ProcessPoolExecutor(len(NETWORKS)) as pool:
        rows = [row for rows in pool.map(table, NETWORKS) for row in rows]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    keep(data_path("rpn", "leak.json"), columns, "python data/rpn/leak.py", seeds=[0])


if __name__ == "__main__":
    main()

"""Exercises of the chapter on FedGKT."""

from typing import Any

import torch
import torch.nn.functional as F

from . import Function, number


def logits(n: int, seed: int, scale: float = 4.0) -> torch.Tensor:
    return scale * torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))


def no_tensor(got: object) -> str | None:
    """What is wrong with an answer that is no tensor, or None."""
    if not isinstance(got, torch.Tensor):
        return f"it returns {'nothing' if got is None else f'a {type(got).__name__}'}, not a tensor"
    return None


def gradient(function: Function) -> str | None:
    """function(teacher [n, C], student [n, C], T) -> the gradient of T^2 KL(teacher || student),
    mean over n, by the student."""
    for n, T in ((6, 3.0), (4, 1.0), (5, 10.0)):
        teacher, student = logits(n, 1), logits(n, 2)
        p, q = F.softmax(teacher / T, 1), F.softmax(student / T, 1)
        before, got = student.clone(), function(teacher, student, T)
        if not torch.equal(student, before):
            return "it changes the logits that it is given"
        if reason := no_tensor(got):
            return reason
        if got.shape != student.shape:
            return (
                f"it returns the shape {list(got.shape)} for logits of shape {list(student.shape)}"
            )
        if torch.allclose(got, T * (q - p) / n, atol=1e-6):
            continue
        undivided = F.softmax(student, 1) - F.softmax(teacher, 1)
        by_images = F.softmax(student / T, 0) - F.softmax(teacher / T, 0)
        for other, reason in (
            (
                T * (p - q) / n,
                "its sign is turned round: this is the direction of the step, not the gradient",
            ),
            ((q - p) / (T * n), "the factor T^2 is missing"),
            (T**2 * (q - p) / n, "the logits are divided by T, which gives a factor 1/T"),
            ((q - p) / n, "of T^2 and the 1/T of the divided logits one T is left"),
            (
                (q - p) / T,
                "that is one image without T^2: the factor T^2 and the mean over n are missing",
            ),
            (
                q - p,
                "of T^2 and the 1/T of the divided logits one T is left, "
                "and the mean over the images is missing",
            ),
            (T * (q - p), "it is the sum over the images, not the mean"),
            (T * (q - p) / (n * 5), "it is the mean over images and classes; classes are summed"),
            (T * undivided / n, "the softmax needs logits divided by T"),
            (T * by_images / n, "the softmax runs over classes, dimension 1"),
            (T * (student - teacher) / n, "it compares logits; the softmax is missing"),
        ):
            if torch.allclose(got, other, atol=1e-6):
                return reason
        return f"for T = {T:g} the values differ from those of autograd"
    return None


def match(function: Function) -> str | None:
    """function(z_s [n, C], sent [n], batch [b]) -> the rows of z_s for the images in batch; row i
    is image sent[i]."""
    for n, seed in ((7, 3), (20, 4)):
        draws = torch.Generator().manual_seed(seed)
        z_s, sent = logits(n, seed), torch.randperm(n, generator=draws)
        batch = torch.randperm(n, generator=draws)[:5]
        expected = torch.stack([z_s[(sent == j).nonzero()[0, 0]] for j in batch])
        got = function(z_s, sent, batch)
        if reason := no_tensor(got):
            return reason
        if got.shape != expected.shape:
            return f"it returns the shape {list(got.shape)} for a batch of {len(batch)} images"
        if torch.equal(got, expected):
            continue
        if torch.equal(got, z_s[batch]):
            return "it takes z_s to be in the order of the images; row i belongs to image sent[i]"
        if torch.equal(got, z_s[sent[batch]]):
            return "sent leads from rows to images; here the way back is needed"
        if torch.equal(got, z_s[:5]):
            return "it matches by position in the batch, as if nobody had shuffled"
        return "some images are given the logits of another"
    return None


FLOATS, STATISTICS, H, C = 1_147_738, 17_056, 16 * 32 * 32, 10
EACH = 4 * H + 8 * C + 6
CROSSOVER = 8 * FLOATS // EACH
# images of a client up to which a round of FedGKT sends less than one of FedAvg with ResNet-110
_crossover = number(
    CROSSOVER,
    wrong=[
        (
            CROSSOVER + 1,
            "with that many FedGKT sends more: count the logits both ways, and round down",
        ),
        (8 * (FLOATS + STATISTICS) // EACH, "batch statistics are left out here"),
        (4 * FLOATS // EACH, "FedAvg's model travels both ways"),
        (8 * FLOATS // H, "each float of H has four bytes, too"),
        (FLOATS // H, "each float of H has four bytes, and FedAvg's model travels both ways"),
    ],
)


def crossover(answer: Any) -> str | None:
    if float(answer) % 1:
        return "a number of images is whole"
    return _crossover(answer)


EXERCISES = {"fed_gkt-gradient": gradient, "fed_gkt-match": match, "fed_gkt-crossover": crossover}

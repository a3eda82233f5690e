"""Answers to FedGKT's exercises: right ones, and typical wrong ones with their reasons."""

import torch
import torch.nn.functional as F

from fedlearn.methods.fed_gkt import distillation
from fedlearn.models import parameter_count, resnet8, resnet110


def soft(teacher, student, T):
    return F.softmax(teacher / T, 1), F.softmax(student / T, 1)


def gradient(teacher, student, T):
    p, q = soft(teacher, student, T)
    return T * (q - p) / len(p)


def by_autograd(teacher, student, T):
    student = student.clone().requires_grad_()
    return torch.autograd.grad(distillation(teacher, student, T), student)[0]


def spoil(teacher, student, T):
    made = gradient(teacher, student, T)
    student.zero_()
    return made


def in_words(z_s, sent, batch):
    rows = {int(image): row for row, image in enumerate(sent)}
    return torch.stack([z_s[rows[int(j)]] for j in batch])


RIGHT = {
    "fed_gkt-gradient": [gradient, by_autograd],
    "fed_gkt-match": [in_words, lambda z_s, sent, batch: z_s[sent.argsort()[batch]]],
    "fed_gkt-crossover": [139, 139.0],
}
WRONG = [
    ("fed_gkt-gradient", spoil, "changes the logits"),
    ("fed_gkt-gradient", lambda t, s, T: gradient(t, s, T).sum(), "shape"),
    ("fed_gkt-gradient", lambda t, s, T: gradient(s, t, T), "sign"),
    ("fed_gkt-gradient", lambda t, s, T: gradient(t, s, T) / T**2, "T^2 is missing"),
    ("fed_gkt-gradient", lambda t, s, T: gradient(t, s, T) * T, "factor 1/T"),
    ("fed_gkt-gradient", lambda t, s, T: gradient(t, s, T) / T, "one T is left"),
    (
        "fed_gkt-gradient",
        lambda t, s, T: gradient(t, s, T) / T**2 * len(t),
        "T^2 and the mean over n are missing",
    ),
    (
        "fed_gkt-gradient",
        lambda t, s, T: gradient(t, s, T) / T * len(t),
        "and the mean over the images is missing",
    ),
    ("fed_gkt-gradient", lambda t, s, T: gradient(t, s, T) * len(t), "sum over the images"),
    ("fed_gkt-gradient", lambda t, s, T: gradient(t, s, T) / t.shape[1], "classes are summed"),
    ("fed_gkt-gradient", lambda t, s, T: T * gradient(t, s, 1.0), "divided by T"),
    (
        "fed_gkt-gradient",
        lambda t, s, T: gradient(t.T, s.T, T).T * t.shape[1] / len(t),
        "dimension 1",
    ),
    ("fed_gkt-gradient", lambda t, s, T: None, "returns nothing"),
    ("fed_gkt-gradient", lambda t, s, T: T * (s - t) / len(t), "softmax is missing"),
    ("fed_gkt-gradient", lambda t, s, T: 0 * t, "differ from those of autograd"),
    ("fed_gkt-match", lambda z_s, sent, batch: z_s, "shape"),
    ("fed_gkt-match", lambda z_s, sent, batch: list(z_s), "returns a list"),
    ("fed_gkt-match", lambda z_s, sent, batch: z_s[batch], "order of the images"),
    ("fed_gkt-match", lambda z_s, sent, batch: z_s[sent[batch]], "way back"),
    ("fed_gkt-match", lambda z_s, sent, batch: z_s[: len(batch)], "nobody had shuffled"),
    (
        "fed_gkt-match",
        lambda z_s, sent, batch: z_s[sent.argsort()[batch]].flip(0),
        "logits of another",
    ),
    ("fed_gkt-crossover", 140, "round down"),
    ("fed_gkt-crossover", 142, "statistics"),
    ("fed_gkt-crossover", 8 * 1_147_738 / 65_622, "whole"),
    ("fed_gkt-crossover", 139.92, "whole"),
    ("fed_gkt-crossover", 69, "both ways"),
    ("fed_gkt-crossover", 560, "four bytes"),
    ("fed_gkt-crossover", 70, "both ways"),
    ("fed_gkt-crossover", 5, "too small"),
    ("fed_gkt-crossover", None, "TypeError"),
]


def test_the_crossover_is_that_of_the_networks():
    H = resnet8().extractor.eval()(torch.zeros(1, 3, 32, 32))
    each = 4 * (H.numel() + 2 * 10) + 2 + 4  # H, both logits, label, index
    assert 8 * parameter_count(resnet110()) // each == RIGHT["fed_gkt-crossover"][0]

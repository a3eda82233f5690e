"""Answers to Fed-KGF's exercises: right ones, and typical wrong ones with their reasons."""

import torch

import fedlearn as fl
from fedlearn.methods.fed_kgf import modules, represent
from fedlearn.models import resnet18, state_of


def gradient(w, beta, g, by=None, power=lambda b: b - 1, factor=lambda b: b):
    by = torch.arange(len(g)) % len(w) if by is None else by
    each = g * factor(beta) * w[by].abs() ** power(beta)
    return torch.zeros_like(w).index_add_(0, by, each)


def by_autograd(w, beta, g):
    w = w.clone().requires_grad_()
    copies = w[torch.arange(len(g)) % len(w)]
    made = copies.sign() * (copies.abs() ** beta + 0.05)
    return torch.autograd.grad(made, w, g)[0]


def in_a_loop(w, beta, g):
    heard = torch.zeros_like(w)
    for i in range(len(g)):
        own = w[i % len(w)]
        heard[i % len(w)] += g[i] * beta[i] * own.abs() ** (beta[i] - 1)
    return heard


def spoil(w, beta, g):
    made = gradient(w, beta, g)
    w.abs_()
    return made


def mean(w, beta, g):
    count = (torch.arange(len(g)) % len(w)).bincount(minlength=len(w)).clamp(min=1)
    return gradient(w, beta, g) / count[:, None, None, None]


def signed(w, beta, g):
    return gradient(w, beta, g) * w.sign()


def last_only(w, beta, g):
    which, out = torch.arange(len(g)) % len(w), torch.zeros_like(w)
    out[which] += g * beta * w[which].abs() ** (beta - 1)
    return out


def in_blocks(w, beta, g):
    return gradient(w, beta, g, by=torch.arange(len(g)) // -(-len(g) // len(w)))


def line(w, alpha, beta):
    return w.sign() * w.abs() ** beta + alpha * (10 * w).clamp(-1, 1)


def gap(w, alpha, beta):
    return w.sign() * (w.abs() ** beta + alpha) * (w.abs() > 1e-5)


def moved(w, alpha, beta):
    bias = torch.where(w.abs() < 0.05, (20 * w).clamp(-1, 1), w.sign())
    return w.sign() * w.abs() ** beta + alpha * torch.where(w.abs() < 0.02, bias / 5, bias.sign())


def astray(w, alpha, beta):
    bias = torch.where(w.abs() < 0.05, -(20 * w).clamp(-1, 1), w.sign())
    return w.sign() * w.abs() ** beta + alpha * bias


RIGHT = {
    "fed_kgf-gradient": [gradient, by_autograd, in_a_loop],
    "fed_kgf-upload": [80_906, 80_906.0],
    "fed_kgf-smooth": [
        line,
        lambda w, alpha, beta: w.sign() * w.abs() ** beta + alpha * torch.tanh(20 * w),
        lambda w, alpha, beta: w.sign() * w.abs() ** beta + alpha * torch.tanh(1000 * w),
        lambda w, alpha, beta: w.sign() * w.abs() ** beta + alpha * torch.atan(20 * w),
    ],
}
WRONG = [
    ("fed_kgf-gradient", spoil, "changes the base kernels"),
    (
        "fed_kgf-gradient",
        lambda w, b, g: g * b * w[torch.arange(len(g)) % len(w)].abs() ** (b - 1),
        "sum over its copies",
    ),
    ("fed_kgf-gradient", lambda w, b, g: gradient(w, b, g)[:1], "shape"),
    ("fed_kgf-gradient", mean, "mean over the copies"),
    ("fed_kgf-gradient", lambda w, b, g: gradient(w, b, 1 + 0 * g), "multiplied by g"),
    ("fed_kgf-gradient", signed, "no sign"),
    ("fed_kgf-gradient", lambda w, b, g: gradient(w, b, g, factor=torch.ones_like), "factor beta"),
    ("fed_kgf-gradient", lambda w, b, g: gradient(w, b, g, power=lambda b: b), "falls by one"),
    ("fed_kgf-gradient", last_only, "`index_add_`"),
    ("fed_kgf-gradient", lambda w, b, g: print(end=""), "is the `return` missing"),
    ("fed_kgf-gradient", in_blocks, "mod m"),
    ("fed_kgf-gradient", lambda w, b, g: 2 * gradient(w, b, g), "not those of (5.2)"),
    ("fed_kgf-upload", 79_882, "running mean"),
    ("fed_kgf-upload", 78_858, "belongs to the module"),
    ("fed_kgf-upload", 80_896, "biases"),
    ("fed_kgf-upload", 75_776, "second module"),
    ("fed_kgf-upload", 2_366_474, "only its base kernels"),
    ("fed_kgf-upload", 78_922, "512 channels"),
    ("fed_kgf-upload", 323_624, "bytes"),
    ("fed_kgf-upload", 1_000, "too small"),
    ("fed_kgf-upload", None, "TypeError"),
    ("fed_kgf-smooth", lambda w, a, b: w.sign() * (w.abs() ** b + a), "jumps"),
    ("fed_kgf-smooth", lambda w, a, b: w.abs() ** b + a * (10 * w).clamp(-1, 1), "odd"),
    ("fed_kgf-smooth", lambda w, a, b: -line(w, a, b), "not that of w"),
    ("fed_kgf-smooth", lambda w, a, b: w.sign() * w.abs() ** b + a * w, "smaller than alpha / 2"),
    ("fed_kgf-smooth", lambda w, a, b: a * (10 * w).clamp(-1, 1), "power"),
    ("fed_kgf-smooth", lambda w, a, b: line(w, a, b).sum(), "shape"),
    ("fed_kgf-smooth", gap, "near zero"),
    ("fed_kgf-smooth", astray, "near zero"),
    ("fed_kgf-smooth", moved, "stands elsewhere"),
]


def test_the_upload_is_that_of_the_network():
    net = represent(resnet18(), 16)
    found = modules(fl.methods.fed_kgf().uplink.schema(net))
    assert (
        sum(state_of(net)[name].numel() for names in found[-2:] for name in names)
        == RIGHT["fed_kgf-upload"][0]
    )

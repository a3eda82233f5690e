"""Answers to Fed-KGF's exercises: right ones, and typical wrong ones with their reasons."""

import torch

import fedlearn as fl
from fedlearn.methods.fed_kgf import modules, represent
from fedlearn.models import resnet18, state_of


def copies(w, beta):
    return w[torch.arange(len(beta)) % len(w)]


def generate(w, alpha, beta):
    return copies(w, beta).sign() * (copies(w, beta).abs() ** beta + alpha)


def spoil(w, alpha, beta):
    made = generate(w, alpha, beta)
    w.abs_()
    return made


def in_blocks(w, alpha, beta):
    return generate(w.repeat_interleave(-(-len(beta) // len(w)), 0)[: len(beta)], alpha, beta)


def line(w, alpha, beta):
    return w.sign() * w.abs() ** beta + alpha * (10 * w).clamp(-1, 1)


RIGHT = {
    "fed_kgf-kernels": [generate],
    "fed_kgf-upload": [80_906, 80_906.0],
    "fed_kgf-smooth": [
        line,
        lambda w, alpha, beta: w.sign() * w.abs() ** beta + alpha * torch.tanh(20 * w),
    ],
}
WRONG = [
    ("fed_kgf-kernels", spoil, "changes the base kernels"),
    (
        "fed_kgf-kernels",
        lambda w, a, b: torch.cat([w, generate(w, a, b)]),
        "without the base kernels",
    ),
    ("fed_kgf-kernels", lambda w, a, b: generate(w, a, b)[:1], "shape"),
    (
        "fed_kgf-kernels",
        lambda w, a, b: copies(w, b).abs() ** b + a,
        "sign of the base kernel is missing",
    ),
    (
        "fed_kgf-kernels",
        lambda w, a, b: copies(w, b).sign() * copies(w, b).abs() ** b + a,
        "in front of the bias",
    ),
    ("fed_kgf-kernels", lambda w, a, b: generate(w, 0 * a, b), "bias alpha is missing"),
    ("fed_kgf-kernels", lambda w, a, b: generate(torch.where(w == 0, 1e-30, w), a, b), "stay zero"),
    ("fed_kgf-kernels", in_blocks, "mod m"),
    ("fed_kgf-kernels", lambda w, a, b: 2 * generate(w, a, b), "not those of Eq. (2)"),
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
]


def test_the_upload_is_that_of_the_network():
    net = represent(resnet18(), 16)
    found = modules(fl.methods.fed_kgf().uplink.schema(net, None))
    assert (
        sum(state_of(net)[name].numel() for names in found[-2:] for name in names)
        == RIGHT["fed_kgf-upload"][0]
    )

"""Exercises: reference answers are right, and each typical wrong answer is told why."""

import math
import random
from functools import cache
from statistics import mean, pvariance, variance

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn.book.check import CHAPTERS, Verdict, empty, module_of, number, solutions
from fedlearn.methods.fed_gkt import distillation
from fedlearn.methods.fed_kgf import modules, represent
from fedlearn.methods.fedfusion import Convolution
from fedlearn.models import parameter_count, reparam, resnet8, resnet18, resnet110, state_of

EXERCISES = [name for chapter in CHAPTERS for name in module_of(f"{chapter}-x").EXERCISES]


@cache
def right(exercise):
    """The reference answer."""
    names = {"__name__": "solutions"}
    exec(compile(fl.solution(exercise).code, exercise, "exec"), names)
    return names["answer"]


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_reference_answer_is_right(exercise):
    assert fl.check(exercise, right(exercise))
    assert "<summary>Solution" in fl.solution(exercise)._repr_html_()


def test_every_solution_can_be_shown():
    names = [name for chapter in CHAPTERS for name in solutions(chapter)]
    assert {*EXERCISES} < {*names} and len(names) == len({*names})
    assert all(fl.solution(name).text for name in {*names} - {*EXERCISES})


# exercise: the right number, and wrong ones with a word of the reason
NUMBERS = {
    "wire-ratio": (352, {3200: "leaves out the positions", 3200 / 33: "not 32-bit", 394.7: "sign",
                         79.8: "four bytes", 0.0911: "bits an entry", 500: "too large"}),
    "rpn-payload": (1_653_514, {1_756_426: "dense message", 1_649_226: "one number",
                                1_653_386: "biases", 4 * 1_653_514: "bytes",
                                102_912: "how much is left", 70_257: "only kernels",
                                1_000: "too small"}),
    "fed_kgf-upload": (80_906, {79_882: "running mean", 78_858: "belongs to the module",
                                80_896: "biases", 75_776: "second module",
                                2_366_474: "only its base kernels", 78_922: "512 channels",
                                323_624: "bytes"}),
    "fed_mmd_fusion-payload": (1_764_682, {1_756_426: "operator is trained", 1_764_618: "biases",
                                           8_256: "alone", 1_756_490: "multi",
                                           1_760_586: "2C channels", 1_872_010: "never sent",
                                           3_521_108: "never sent", 7_058_728: "bytes"}),
    "fed_gkt-crossover": (139, {140: "round down", 142: "statistics", 139.92: "whole",
                                69: "both ways", 560: "four bytes", 70: "both ways",
                                5: "too small"}),
    "flower-bytes": (16_322_000, {15_962_000: "greetings are missing", 16_034_000: "never drawn",
                                  33_962_000: "every round", 19_562_000: "each time",
                                  13_562_000: "our bytes", 13_922_000: "what Flower adds",
                                  8_241_000: "downloads", 8_441_000: "uploads",
                                  80_170_000: "a fifth", 130_576_000: "bits"}),
    "seeing-payload": (12_223, {98_367: "dense", 1_455: "its mean", 4_543: "1 x 1",
                                86_144: "how much is left", 10_768: "not all",
                                11_728: "biases travel", 48_892: "bytes", 20_000: "too large"}),
    "compose-message": (3_728, {2_499: "small tensors", 3_627: "envelope", 2_600: "travel whole",
                                41_000: "too large", 40_957: "dense", 3_712: "scale",
                                2_487: "one bit", 21_109: "not bytes", 74_560: "all rounds"}),
    "shootout-even": (23.77e6, {29_708 / 0.01: "a byte has eight", 19.8e6: "FedAvg computes, too",
                                8 * 40_957 / 0.01: "saves", 23.766: "bits a second",
                                8 * 11_249 / 0.01: "not what it sends"}),
    "shootout-images": (1949.9999, {488: "not one", 975.1: "variances add up",
                                    243.75: "both have an error", 900: "too small",
                                    450: "how many would do"}),
}  # fmt: skip
MESSAGE = 4 * (10_078 + 136) + 26 + 3 + 4 * 17 + 4
NUMBERS["fedavg-bytes"] = (MESSAGE * 1000, {
    MESSAGE * 500: "one direction", MESSAGE * 10_000: "only ten", MESSAGE * 20: "single round",
    4 * 10_078 * 1000: "buffers and the envelope", 4 * 10_214 * 1000: "envelope is missing",
    MESSAGE * 1000 - 1: "too small"})  # fmt: skip


@pytest.mark.parametrize("exercise", NUMBERS)
def test_a_wrong_number_is_told_why(exercise):
    value, wrong = NUMBERS[exercise]
    assert fl.check(exercise, value) and fl.check(exercise, float(value))
    for other, reason in wrong.items():
        verdict = fl.check(exercise, other)
        assert not verdict and reason in verdict.reason, other
    assert not fl.check(exercise, None).answered


# ---- functions -----------------------------------------------------------------------------------


def spoiled(exercise, k=0):
    """The right answer, which changes its k-th argument."""

    def answer(*given):
        value = right(exercise)(*(g.clone() if hasattr(g, "clone") else g for g in given))
        given[k].zero_()
        return value

    return answer


def average(change):
    def answer(states, samples):
        weights = change([m / sum(samples) for m in samples], samples)
        return {n: sum(w * s[n] for w, s in zip(weights, states, strict=True)) for n in states[0]}

    return answer


def in_place(states, samples):
    states[0].update(right("fedavg-average")([dict(s) for s in states], samples))
    for t in states[0].values():
        t *= 1.0
    states[1]["bias"] *= 2
    return states[0]


def participants(draw, count=lambda c, share: max(1, int(share * c + 0.5)), order=sorted):
    return lambda clients, share, g: order(draw(clients, count(clients, share), g))


def permuted(clients, count, g):
    return torch.randperm(clients, generator=g)[:count].tolist()


def in_a_row(clients, count, g):
    at = int(torch.randint(clients, (1,), generator=g))
    return [(at + i) % clients for i in range(count)]


FEDAVG = {
    "fedavg-average": [
        (average(lambda p, m: m), "do not sum to one"),
        (average(lambda p, m: [1 / 3] * 3), "weigh by samples"),
        (average(lambda p, m: [1] * 3), "sum of the states"),
        (average(lambda p, m: [w / 3 for w in p]), "divides twice"),
        (average(lambda p, m: p[::-1]), "not the weighted mean"),
        (in_place, "changes the states"),
        (lambda states, samples: states[0]["bias"], "dictionary"),
        (lambda s, m: {n: t[:1] for n, t in average(lambda p, m: p)(s, m).items()}, "not the"),
    ],
    "fedavg-participants": [
        (participants(lambda c, n, g: torch.randint(c, (n,), generator=g).tolist()), "twice"),
        (participants(permuted, lambda c, s: max(1, round(s * c))), "should be 3 participants"),
        (participants(permuted, lambda c, s: int(s * c)), "at least one"),
        (participants(lambda c, n, g: list(range(n))), "always draws the same"),
        (participants(lambda c, n, g: random.sample(range(c), n)), "no other source"),
        (participants(in_a_row), "independently"),
        (participants(permuted, order=list), "ascending"),
    ],
}


def mcmahan_shards(labels, clients, rng):
    holder = rng.permutation(np.repeat(np.arange(clients), 2))
    owner = np.empty(len(labels), int)
    at = np.arange(len(labels)) * 2 * clients // len(labels)
    owner[np.argsort(labels, kind="stable")] = holder[at]
    return owner


def uneven_shards(labels, clients, rng):
    owner = right("heterogeneity-shards")(labels, clients, rng)
    first = np.flatnonzero(labels == 0)
    holders = np.unique(owner[first])
    owner[first] = holders[0]
    owner[first[: len(holders)]] = holders
    return owner


def shards(labels, clients, rng):
    return right("heterogeneity-shards")(labels, clients, rng)


def layer_drift(weights=lambda p, m: p, root=True):
    def answer(updates, samples):
        m, drift = torch.tensor(samples).float(), {}
        p = weights(m / m.sum(), m)
        for name in updates[0]:
            u = torch.stack([update[name].flatten() for update in updates])
            squared = (p @ (u - p @ u).square().sum(1)) / (p @ u).square().sum()
            drift[name] = float(squared.sqrt() if root else squared)
        return drift

    return answer


def drift_of_all(updates, samples):
    joined = [{"all": torch.cat([t.flatten() for t in u.values()])} for u in updates]
    return dict.fromkeys(updates[0], layer_drift()(joined, samples)["all"])


HETEROGENEITY = {
    "heterogeneity-shards": [
        (mcmahan_shards, "instead of two"),
        (lambda labels, clients, rng: labels[:-1], "one owner for each"),
        (lambda labels, clients, rng: labels + clients, "owners should be"),
        (lambda labels, c, rng: shards(labels, c, np.random.default_rng(0)), "rng"),
        (lambda labels, c, rng: shards(labels, c, np.random), "no other source"),
        (lambda labels, c, rng: [np.flatnonzero(shards(labels, c, rng) == k) for k in range(c)],
         "not one list for each client"),
        (uneven_shards, "not shared evenly"),
    ],
    "heterogeneity-layers": [
        (layer_drift(lambda p, m: m), "sum to one"),
        (layer_drift(lambda p, m: torch.full((3,), 1 / 3)), "weigh by samples"),
        (layer_drift(root=False), "square root"),
        (drift_of_all, "each name"),
        (lambda u, n: 0.5, "dictionary"),
        (lambda u, n: dict.fromkeys(u[0], 0.0), "is right"),
    ],
    "heterogeneity-classes": [
        (lambda n, classes: classes * (1 - 1 / classes) ** n, "missing"),
        (lambda n, classes: min(n, classes), "repeat"),
        (lambda n, classes: classes, "is right"),
        (lambda n, classes: 1 / 0, "it stopped with ZeroDivisionError"),
    ],
}  # fmt: skip


def drawn(n, k, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:k]


def put(values, n, at):
    x = torch.zeros(n)
    x[at] = values
    return x


def pair(positions, factor=lambda n, k: n / k):
    """The two sides, with the positions where(n, k, generator)."""

    def at(n, k, seed):
        return positions(n, k, torch.Generator().manual_seed(seed))

    def receive(values, n, seed):
        return put(values * factor(n, len(values)), n, at(n, len(values), seed))

    return (lambda x, k, seed: x[at(len(x), k, seed)], receive)


def any_k(n, k, g):
    return torch.randperm(n, generator=g)[:k]


send, receive = pair(any_k)
COIN = right("wire-coin")


def coin_from_elsewhere(x, generator):
    low, high = x.min(), x.max()
    up = torch.tensor([random.random() for _ in x]) < (x - low) / (high - low)
    return torch.where(up, high, low) if low < high else x.clone()


def levels(x, generator):
    return COIN(x, generator) + 0 * (x - x.min()) / (x.max() - x.min())


def one_draw(share, shape=None):
    def answer(x, g):
        draws = torch.rand(shape or x.shape, generator=g)
        return torch.where(draws < share(x), x.max(), x.min())

    return answer


def global_pair():
    def at(n, k, seed):
        torch.manual_seed(seed)
        return torch.randperm(n)[:k]

    return (
        lambda x, k, s: x[at(len(x), k, s)],
        lambda v, n, s: put(v * n / len(v), n, at(n, len(v), s)),
    )


WIRE = {
    "wire-random": [
        (send, "pair"),
        ((lambda x, k, s: (send(x, k, s), x.zero_())[0], receive), "changes the tensor"),
        ((lambda x, k, s: x, receive), "only the values travel"),
        ((send, lambda v, n, s: v), "receive returns the shape"),
        ((lambda x, k, s: x[torch.randperm(len(x))[:k]], receive), "global generator"),
        ((send, lambda v, n, s: receive(v, n, s) + 1), "more than k"),
        (pair(lambda n, k, g: torch.randint(n, (k,), generator=g)), "twice"),
        (pair(any_k, lambda n, k: 1), "probability k/n"),
        (pair(any_k, lambda n, k: k / n), "not n/k times"),
        ((lambda x, k, s: send(x, k, 0), lambda v, n, s: receive(v, n, 0)), "same for every seed"),
        (pair(lambda n, k, g: torch.randperm(n - 1, generator=g)[:k]), "more often than others"),
    ],
    "wire-coin": [
        (3, "function"),
        (lambda x, g: x.mul_(0), "changes the tensor"),
        (lambda x, g: COIN(x, g)[:3], "shape"),
        (lambda x, g: COIN(x, None), "generator that is given"),
        (coin_from_elsewhere, "no other source"),
        (lambda x, g: x.sign(), "something else"),
        (lambda x, g: torch.where(x > 0, x.max(), x.min()), "every draw is the same"),
        (one_draw(lambda x: 0.5), "mean of many draws"),
        (one_draw(lambda x: (x - x.min()) / (x.max() - x.min()), (1,)), "together"),
        (levels, "equal entries"),
        (lambda x, g: None if x.clone() is None else print(end=""), "is the `return` missing?"),
        (lambda x, g: "heads", "what it returns is not what is asked for (TypeError"),
        (lambda x: x, "other arguments than those asked for (TypeError"),
    ],
    "wire-ratio": [([1, 2], "it is not what is asked for (TypeError")],
}


def pool(w):
    return w.mean((2, 3))


def unpool(means, k):
    return means[:, :, None, None].repeat(1, 1, k, k)


class Scaled(fl.wire.Coder):
    """Pooled kernels that come back as k ** power times their means."""

    def __init__(self, power=1, pooled=None, least=3):
        self.power, self.pooled, self.least = power, pooled or fl.wire.Pooled(), least

    def encode(self, tensor):
        return self.pooled.encode(tensor)

    def decode(self, section, shape):
        value = self.pooled.decode(section, shape)
        return value * shape[-1] ** self.power if len(shape) >= self.least else value


RPN = {
    "rpn-pool": [
        (pool, "pair"),
        ((lambda w: w.mean((1, 2, 3)), unpool), "last two axes"),
        ((lambda w: w.sum((2, 3)), unpool), "sum"),
        ((lambda w: w.amax((2, 3)), unpool), "each kernel's mean"),
        ((lambda w: (pool(w), w.zero_())[0], unpool), "changes the tensor"),
        ((pool, lambda m, k: m[:, :, None, None].expand(-1, -1, k, k)), "share one number"),
        ((pool, lambda m, k: unpool(m, k) / k**2), "whole mean"),
        ((pool, lambda m, k: unpool(m, k).flatten(2)), "shape"),
        ((pool, lambda m, k: unpool(m, k) * 0), "each of its positions"),
    ],
    "rpn-scaled": [
        (Scaled, "brackets"),
        (Scaled(power=0), "not scaled"),
        (Scaled(power=2), "k * k"),
        (Scaled(least=1), "as it was sent"),
        (Scaled(pooled=fl.wire.Dense()), "bytes"),
    ],
}


def gradient(w, beta, g, by=None, power=lambda b: b - 1, factor=lambda b: b):
    by = torch.arange(len(g)) % len(w) if by is None else by
    each = g * factor(beta) * w[by].abs() ** power(beta)
    return torch.zeros_like(w).index_add_(0, by, each)


def mean_of_copies(w, beta, g):
    count = (torch.arange(len(g)) % len(w)).bincount(minlength=len(w)).clamp(min=1)
    return gradient(w, beta, g) / count[:, None, None, None]


def last_only(w, beta, g):
    which, out = torch.arange(len(g)) % len(w), torch.zeros_like(w)
    out[which] += g * beta * w[which].abs() ** (beta - 1)
    return out


def in_blocks(w, beta, g):
    return gradient(w, beta, g, by=torch.arange(len(g)) // -(-len(g) // len(w)))


def smooth(bias):
    return lambda w, alpha, beta: w.sign() * w.abs() ** beta + alpha * bias(w)


def moved(w):
    bias = torch.where(w.abs() < 0.05, (20 * w).clamp(-1, 1), w.sign())
    return torch.where(w.abs() < 0.02, bias / 5, bias.sign())


def line(w):
    return (10 * w).clamp(-1, 1)


FED_KGF = {
    "fed_kgf-gradient": [
        (spoiled("fed_kgf-gradient"), "changes the base kernels"),
        (lambda w, b, g: g * b * w[torch.arange(len(g)) % len(w)].abs() ** (b - 1), "its copies"),
        (lambda w, b, g: gradient(w, b, g)[:1], "shape"),
        (mean_of_copies, "mean over the copies"),
        (lambda w, b, g: gradient(w, b, 1 + 0 * g), "multiplied by g"),
        (lambda w, b, g: gradient(w, b, g) * w.sign(), "no sign"),
        (lambda w, b, g: gradient(w, b, g, factor=torch.ones_like), "factor beta"),
        (lambda w, b, g: gradient(w, b, g, power=lambda b: b), "falls by one"),
        (last_only, "`index_add_`"),
        (in_blocks, "mod m"),
        (lambda w, b, g: 2 * gradient(w, b, g), "not those of (5.2)"),
    ],
    "fed_kgf-smooth": [
        (smooth(torch.sign), "jumps"),
        (lambda w, a, b: w.abs() ** b + a * line(w), "odd"),
        (lambda w, a, b: -smooth(line)(w, a, b), "not that of w"),
        (smooth(lambda w: w), "smaller than alpha / 2"),
        (lambda w, a, b: a * line(w), "power"),
        (lambda w, a, b: smooth(line)(w, a, b).sum(), "shape"),
        (lambda w, a, b: w.sign() * (w.abs() ** b + a) * (w.abs() > 1e-5), "near zero"),
        (smooth(moved), "stands elsewhere"),
    ],
}


def off(K):
    return (K.sum() - K.trace()) / (len(K) * (len(K) - 1))


def unbiased(within=off, between=torch.mean, factor=-2):
    return lambda Kxx, Kyy, Kxy: within(Kxx) + within(Kyy) + factor * between(Kxy)


def fold(W, b):
    return W[:, : len(W)] + W[:, len(W) :], b


TWO_STREAMS = {
    "fed_mmd_fusion-diagonal": [
        (spoiled("fed_mmd_fusion-diagonal"), "changes the matrices"),
        (unbiased(torch.mean), "still in it"),
        (unbiased(lambda K: (K.sum() - K.trace()) / K.numel()), "divide by n * n"),
        (unbiased(factor=-1), "counts twice"),
        (unbiased(factor=2), "subtracted"),
        (unbiased(lambda K: K.sum() - K.trace(), torch.sum), "sums are not means"),
        (unbiased(between=lambda K: off(K) if len(K) == K.shape[1] else K.mean()), "stays whole"),
        (lambda x, y, xy: xy, "shape"),
        (lambda x, y, xy: 2 * unbiased()(x, y, xy), "not right"),
    ],
    "fed_mmd_fusion-fold": [
        (spoiled("fed_mmd_fusion-fold"), "changes the matrix"),
        (lambda W, b: fold(W, b)[0], "two tensors"),
        (lambda W, b: (W, b), "shapes"),
        (lambda W, b: (W[:, len(W) :], b), "global half"),
        (lambda W, b: (W[:, : len(W)], b), "local half"),
        (lambda W, b: (fold(W, b)[0] / 2, b), "not averaged"),
        (lambda W, b: (fold(W, b)[0].T, b), "transposed"),
        (lambda W, b: (fold(W, b)[0], 2 * b), "bias is added once"),
        (lambda W, b: (3 * W[:, : len(W)], b), "does not do"),
    ],
}
KL = right("fed_gkt-gradient")
FED_GKT = {
    "fed_gkt-gradient": [
        (spoiled("fed_gkt-gradient", 1), "changes the logits"),
        (lambda t, s, T: KL(t, s, T).sum(), "shape"),
        (lambda t, s, T: KL(s, t, T), "sign"),
        (lambda t, s, T: KL(t, s, T) / T**2, "T^2 is missing"),
        (lambda t, s, T: KL(t, s, T) * T, "factor 1/T"),
        (lambda t, s, T: KL(t, s, T) / T, "one T is left"),
        (lambda t, s, T: KL(t, s, T) / T**2 * len(t), "T^2 and the mean over n are missing"),
        (lambda t, s, T: KL(t, s, T) / T * len(t), "and the mean over the images is missing"),
        (lambda t, s, T: KL(t, s, T) * len(t), "sum over the images"),
        (lambda t, s, T: KL(t, s, T) / t.shape[1], "classes are summed"),
        (lambda t, s, T: T * KL(t, s, 1.0), "divided by T"),
        (lambda t, s, T: KL(t.T, s.T, T).T * t.shape[1] / len(t), "dimension 1"),
        (lambda t, s, T: T * (s - t) / len(t), "softmax is missing"),
        (lambda t, s, T: 0 * t, "differ from those of autograd"),
    ],
    "fed_gkt-match": [
        (lambda z_s, sent, batch: z_s, "shape"),
        (lambda z_s, sent, batch: list(z_s), "returns a list"),
        (lambda z_s, sent, batch: z_s[batch], "order of the images"),
        (lambda z_s, sent, batch: z_s[sent[batch]], "way back"),
        (lambda z_s, sent, batch: z_s[: len(batch)], "nobody had shuffled"),
        (lambda z_s, sent, batch: z_s[sent.argsort()[batch]].flip(0), "logits of another"),
    ],
}


def each(s):
    return s[:, None, None, None]


def fold_norm(W, b, gamma, beta, mean, var, eps, kernel=None, bias=None):
    f = gamma / (var + eps).sqrt()
    return (
        each(f) * W if kernel is None else kernel(W, gamma, var, eps),
        beta + f * (b - mean) if bias is None else bias(b, beta, mean, f),
    )


def kernel(change):
    return lambda *given: fold_norm(*given, kernel=change)


def bias(change):
    return lambda *given: fold_norm(*given, bias=change)


def depthwise(s, power=2, more=1.0, channels=slice(None)):
    M = each(s**power).repeat(1, 1, 3, 3)
    M[channels, 0, 1, 1] += more
    return M


def adam(u, s3, s1, copies, lr, power=1, inner=True, unit=None):
    M = each(s3**power).repeat(1, u.shape[1], 3, 3)
    M[:, :, 1, 1] += inner * s1[:, None] ** power
    M[:, :, 1, 1] += copies * torch.eye(*u.shape[:2], dtype=u.dtype) if unit is None else unit
    return -lr * M * u


def always(u, s3, s1, copies, lr):
    return adam(u, s3, s1, True, lr)


FED_REPOPT = {
    "fed_repopt-fold": [
        (lambda W, b, *rest: (W[:1], b), "shapes"),
        (kernel(lambda W, g, v, e: g / (v + e).sqrt() * W), "not to the last"),
        (kernel(lambda W, g, v, e: each(g / (v + e)) * W), "square root"),
        (kernel(lambda W, g, v, e: each(g / v.sqrt()) * W), "eps is missing"),
        (kernel(lambda W, g, v, e: each(g / (v.sqrt() + e)) * W), "eps stands under"),
        (kernel(lambda W, g, v, e: W / each((v + e).sqrt())), "gamma is missing"),
        (kernel(lambda W, *rest: 2 * W), "not the one that does both"),
        (bias(lambda b, beta, mean, f: beta - f * mean), "own bias b"),
        (bias(lambda b, beta, mean, f: beta + b - f * mean), "scales the convolution's bias"),
        (bias(lambda b, beta, mean, f: b + f * (beta - mean)), "behind the scaling"),
        (bias(lambda b, beta, mean, f: f * (b - mean)), "beta is missing"),
        (bias(lambda b, beta, mean, f: beta + f * b), "running mean is missing"),
        (bias(lambda b, beta, mean, f: beta + f * (b + mean)), "subtracted"),
        (bias(lambda b, beta, mean, f: 0 * b), "the bias is not"),
    ],
    "fed_repopt-depthwise": [
        (lambda s: s**2, "shape of the kernel"),
        (lambda s: depthwise(s, more=0), "branch with t is missing"),
        (lambda s: depthwise(s, more=1 + s**2), "no 1 x 1 branch"),
        (lambda s: depthwise(s, more=s**2), "has the one with t"),
        (lambda s: depthwise(s, channels=0), "its own input"),
        (lambda s: each(s**2 + 1).expand(-1, 1, 3, 3), "middle of the kernel only"),
        (lambda s: depthwise(s, more=1 - s**2), "does not replace"),
        (lambda s: depthwise(s, power=1), "acts twice"),
        (lambda s: depthwise(s.abs(), power=1), "acts twice"),
        (lambda s: depthwise(s, more=2), "not those"),
    ],
    "fed_repopt-adam": [
        (lambda u, *rest: u.mul_(2), "changes u"),
        (lambda u, *rest: adam(u, *rest)[0], "shape"),
        (lambda *given: -adam(*given), "against the gradient"),
        (lambda u, s3, s1, copies, lr: adam(u, s3, s1, copies, 1), "learning rate"),
        (lambda u, s3, s1, copies, lr: -lr * u, "plain kernel"),
        (lambda *given: adam(*given, power=2), "only once"),
        (lambda *given: adam(*given, unit=0), "copies its input moves"),
        (lambda *given: adam(*given, inner=False, unit=0), "other two branches"),
        (lambda *given: adam(*given, inner=False), "1 x 1 branch is missing"),
        (lambda u, s3, s1, i, lr: adam(u, s3 + s1, s1, i, lr, inner=False), "middle of the kernel"),
        (lambda *given: adam(*given, unit=1), "from a channel to itself"),
        (always, "not every block"),
        (lambda *given: 3 * adam(*given), "not those"),
    ],
}


def silent(fewer, claimed=lambda row: len(row["clients"]) - len(row["refused"])):
    return lambda history, size: [
        row["round"] for row in history.rows if fewer(row["bytes_up"], size * claimed(row))
    ]


def quiet(history, size):
    rounds = right("flower-silent")(history, size)
    return [t for t in rounds if not history.rows[t - 1]["refused"]]


FLOWER = {
    "flower-silent": [
        (silent(lambda got, due: got != due), "damaged"),
        (silent(lambda got, due: got < due, lambda row: len(row["clients"])), "openly"),
        (quiet, "one is named"),
        (lambda h, size: [], "an empty refused"),
        (lambda h, size: [t - 1 for t in right("flower-silent")(h, size)], "count from 1"),
        (lambda h, size: tuple(right("flower-silent")(h, size)), "a list"),
        (silent(lambda got, due: True), "nobody was missing"),
    ]
}


def iou(a, b, least=0, areas=None):
    sides = [max(least, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
    both = sides[0] * sides[1]
    return both / (sum(areas or [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (a, b)]) - both)


def iou_of(change):
    return lambda a, b: iou(change(*a), change(*b))


def area_without_envelope(right, objects):
    hits = right.double().cumsum(0)
    at = torch.searchsorted(hits / objects, torch.arange(101).double() / 100)
    return torch.cat([hits / torch.arange(1, len(right) + 1), torch.zeros(1)])[at].mean()


AP = right("seeing-ap")


def mirrored(boxes, width=64):
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack([width - x2, y1, width - x1, y2], 1)


SEEING = {
    "seeing-iou": [
        (lambda a, b: iou(a, b, -99), "overlap by nothing"),
        (lambda a, b: iou(a, b) / (1 + iou(a, b)), "overlap wholly"),
        (iou_of(lambda x1, y1, x2, y2: (x1, y1, x2 + 1, y2 + 1)), "no + 1"),
        (iou_of(lambda x, y, w, h: (x, y, x + w, y + h)), "not a width and height"),
        (lambda a, b: iou(a, b, areas=[a[2] * a[3], b[2] * b[3]]), "not a width and height"),
        (lambda a, b: float(a == b), "counts once"),
    ],
    "seeing-ap": [
        (area_without_envelope, "or beyond"),
        (lambda right, objects: AP(right, max(1, int(right.sum()))), "never found"),
        (lambda right, objects: right.sum() / objects, "halves the precision"),
        (lambda right, objects: AP(right, objects) or 1.0, "nothing found"),
        (lambda right, objects: 0.0, "all found"),
    ],
    "seeing-mirror": [
        (lambda boxes: boxes.copy_(mirrored(boxes)), "are changed"),
        (lambda boxes: mirrored(boxes)[:, [2, 1, 0, 3]], "change places"),
        (lambda boxes: mirrored(boxes[:, [1, 0, 3, 2]])[:, [1, 0, 3, 2]], "y that stays"),
        (lambda boxes: mirrored(boxes, 63), "between pixels"),
        (lambda boxes: mirrored(boxes)[:2], "come out as"),
        (lambda boxes: mirrored(boxes, 60), "is not that"),
    ],
}


def unmet(test, others=lambda kind, k: k != kind):
    def answer(parts):
        return sorted(
            kind
            for kind, (needs, _) in parts.items()
            if test(needs, [gives for k, (_, gives) in parts.items() if others(kind, k)])
        )

    return answer


def all_needs(needs, gives):
    return not needs <= set().union(*gives)


def choose(mixes, up, down, seconds, bits=8, together=lambda a, b: a + b, best=max):
    fits = [
        ((accuracy if best is max else u + d), name)
        for name, accuracy, u, d in mixes
        if together(bits * u / up, bits * d / down) <= seconds
    ]
    return best(fits)[1] if fits else None


LUCK = right("compose-luck")
COMPOSE = {
    "compose-needs": [
        (unmet(all_needs, lambda kind, k: True), "itself does not count"),
        (unmet(lambda n, g: n and not n & set().union(*g)), "one of them is met"),
        (unmet(lambda n, g: not any(n <= one for one in g)), "two different parts"),
        (lambda parts: (unmet(all_needs)(parts), parts.clear())[0], "are changed"),
        (lambda parts: set(unmet(all_needs)(parts)), "a list"),
        (lambda parts: unmet(all_needs)(parts)[::-1], "alphabetical"),
        (lambda parts: ["server"], "nothing is missing"),
    ],
    "compose-link": [
        (lambda *given: choose(*given, bits=1), "8 bits"),
        (lambda *given: choose(*given, together=max), "one after the other"),
        (lambda m, u, d, s: choose(m, u, u, s), "only the way up"),
        (lambda *given: choose(*given, best=min), "most accurate"),
        (lambda *given: choose(*given) or "cheap", "nothing fits"),
    ],
    "compose-luck": [
        (lambda c, a: mean(max(r) - max(o) for r, o in zip(c, a, strict=True)), "chosen anew"),
        (lambda c, a: LUCK(c, a) * len(c), "the mean"),
        (lambda c, a: LUCK([r[::-1] for r in c], [r[::-1] for r in a]), "the first counts"),
        (lambda c, a: abs(LUCK(c, a)), "bad"),
        (lambda c, a: LUCK(a, c), "chosen by the first"),
    ],
}


def first(scores, times=3.0, spread=variance, shrink=True):
    def ahead(a, b):
        parts = [spread(s) / (len(s) if shrink else 1) for s in (a, b)]
        return mean(a) - mean(b) > times * math.sqrt(sum(parts))

    every = scores.values()
    return [m for m, runs in scores.items() if not any(ahead(a, runs) for a in every)]


def highest(scores):
    return [max(scores, key=lambda m: mean(scores[m]))]


def tied_with_highest(scores):
    top = max(scores.values(), key=mean)
    return [m for m, runs in scores.items() if m in first({m: runs, "top": top})]


SHOOTOUT = {
    "shootout-rounds": [
        (lambda b, u, d: math.ceil(b / (u + d)) if u + d else math.inf, "not ended"),
        (lambda b, u, d: max(0, (b - 1) // (u + d)) if u + d else math.inf, "just fits"),
        (lambda b, u, d: b // u if u else math.inf, "both directions"),
        (lambda b, u, d: b // (u + d), "math.inf"),
        (lambda b, u, d: b // (u + d) if u + d else 0, "not 0"),
    ],
    "shootout-first": [
        (highest, "share the first place"),
        (lambda scores: [*scores], "far behind"),
        (lambda scores: first(scores, 2), "three are"),
        (lambda scores: first(scores, spread=pvariance), "divided by n - 1"),
        (lambda scores: first(scores, shrink=False), "root of n"),
        (tied_with_highest, "wild"),
        (lambda scores: highest(scores)[0], "collection of names"),
        (lambda scores: [mean(s) for s in scores.values()], "not names of methods"),
    ],
}
WRONG = FEDAVG | HETEROGENEITY | WIRE | RPN | FED_KGF | TWO_STREAMS | FED_GKT | FED_REPOPT
WRONG |= FLOWER | SEEING | COMPOSE | SHOOTOUT


def test_every_exercise_has_wrong_answers():
    assert {*WRONG} | {*NUMBERS} == {*EXERCISES}


@pytest.mark.parametrize("exercise", WRONG)
def test_a_wrong_answer_is_told_why(exercise):
    for answer, reason in WRONG[exercise]:
        verdict = fl.check(exercise, answer)
        assert not verdict.right and reason in verdict.reason, (reason, verdict)


double = (send, lambda v, n, s: receive(v, n, s).double())
by_adding = one_draw(lambda x: ((x - x.min()) / (x.max() - x.min())).nan_to_num(0.0))
OTHERS = [  # other forms of right answers
    ("wire-random", global_pair()),
    ("wire-random", double),
    ("wire-coin", lambda x, g: COIN(x, g).numpy()),
    ("wire-coin", by_adding),
    ("fed_kgf-gradient", gradient),
    ("fed_kgf-smooth", smooth(lambda w: torch.tanh(1000 * w))),
    ("fed_mmd_fusion-fold", lambda W, b: list(fold(W, b))),
    ("fed_repopt-fold", lambda *given: fold_norm(*(t.float() for t in given[:-1]), given[-1])),
    ("fed_repopt-adam", lambda u, *rest: adam(u, *rest).float()),
    ("shootout-first", lambda scores: {*first(scores)}),
]  # fmt: skip


@pytest.mark.parametrize("exercise, answer", OTHERS)
def test_other_forms_of_right_answers(exercise, answer):
    state = torch.get_rng_state()
    assert fl.check(exercise, answer), fl.check(exercise, answer)
    assert torch.equal(torch.get_rng_state(), state)


# ---- check and solution --------------------------------------------------------------------------


class Blank:
    def encode(self, x):
        return x

    def decode(self, x):
        """To be written."""


def test_an_empty_answer_is_no_wrong_answer():
    for answer in (None, ..., lambda x: ..., lambda x: None, (len, lambda x: None)):
        verdict = fl.check("rpn-pool", answer)
        assert empty(answer) and not verdict and "no answer yet" in repr(verdict)
    assert empty(Blank) and not empty(solutions) and not empty(0) and not empty(lambda x: x)


def test_a_verdict_says_why():
    assert repr(Verdict("a-b", None)) == "a-b: right."
    assert "not yet, because it is too long" in repr(Verdict("a-b", "it is too long"))
    test = number(100, {50: "half"}, tolerance=0.01)
    assert test(100.5) is None and "too large" in test(120) and "half" in test(50.2)


@pytest.mark.parametrize("call", [lambda n: fl.check(n, 1), fl.solution])
@pytest.mark.parametrize("name, noun", [("rpn-none", "rpn-none"), ("nothing-here", "chapter")])
def test_an_exercise_that_is_not_there(call, name, noun):
    with pytest.raises(ValueError, match=noun):
        call(name)


# ---- the numbers of the exercises are those of the package ---------------------------------------


def test_payloads_are_those_of_the_networks():
    state = state_of(fl.models.cifar_cnn())
    assert sum(len(fl.wire.Pooled().encode(w)) for w in state.values()) == 4 * right("rpn-payload")
    own = parameter_count(fl.models.cifar_cnn()) + parameter_count(Convolution(64))
    assert own == right("fed_mmd_fusion-payload")
    net = represent(resnet18(), 16)
    last = modules(fl.methods.fed_kgf().uplink.schema(net))[-2:]
    sent = sum(state_of(net)[name].numel() for names in last for name in names)
    assert sent == right("fed_kgf-upload")
    H = resnet8().extractor.eval()(torch.zeros(1, 3, 32, 32))
    each = 4 * (H.numel() + 2 * 10) + 2 + 4  # H, both logits, label, index
    assert 8 * parameter_count(resnet110()) // each == right("fed_gkt-crossover")


def test_gradients_are_those_of_autograd():
    t, s = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
    s.requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(distillation(t, s, 3.0), s)[0], KL(t, s.detach(), 3.0)
    )


@pytest.mark.parametrize("inputs", [3, 2])
def test_adams_change_is_that_of_the_branches(inputs):
    torch.manual_seed(0)
    net, lr = reparam.Branches(inputs, 3, 1, "csla", scale=0.7).double(), 0.01
    x = torch.randn(6, inputs, 5, 5, dtype=torch.float64)
    y = net.s3(net.conv3(x)) + net.s1(net.conv1(x)) + (net.s_id(x) if net.s_id else 0)
    params = [net.conv3.weight, net.conv1.weight] + ([net.s_id.value] if net.s_id else [])
    F.cross_entropy(y.relu().mean((2, 3)), torch.arange(6) % 3).backward(inputs=params)
    before = reparam._sum(net)[0]
    torch.optim.Adam(params, lr, eps=1e-30).step()
    u = net.conv3.weight.grad.sign()  # of the first step: m / sqrt(v) of s_3 G is that of G
    change = right("fed_repopt-adam")(u, net.s3.value, net.s1.value, net.s_id is not None, lr)
    torch.testing.assert_close(reparam._sum(net)[0] - before, change, atol=1e-12, rtol=1e-9)


def test_the_numbers_on_flat_kernels_are_those_of_the_runs():
    text = " ".join(fl.solution("seeing-flat").text.split())
    grid = fl.book.pooled_layers().query("clients == 4 and round == 12").set_index("pooled")
    up, quality = grid["up"], grid["map"]
    assert up[0] - up[1] == up[1] - up[2] == 131_072 and "131,072" in text
    assert f"costs {100 * (quality[0] - quality[1]):.0f} points" in text
    assert f"both cost {100 * (quality[0] - quality[2]):.0f}, down to {quality[2]:.3f}" in text
    runs, _ = fl.results.tables(fl.results.load("seeing_digits"))
    ends = runs.query("task == 'detection' and clients == 5").groupby("label")
    for column in ("accuracy", "map_50_95"):
        rpn, fedavg = ends[column].mean()[["RPN", "FedAvg"]]
        assert f"{rpn:.3f} of {fedavg:.3f}" in text and f"{100 * rpn / fedavg:.0f} %" in text

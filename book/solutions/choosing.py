"""Reference answers of the chapter on choosing a method.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% choosing-rounds
"""Whole division does it, and a budget of nothing gives 0 by itself. A method that
sends nothing never uses up any budget: at equal bytes *local* always gets all of its
rounds, which is why it is in the contest as a floor."""
import math


def fitting(budget, up, down):
    return budget // (up + down) if up + down else math.inf


answer = fitting

# %% choosing-first
"""A method is first if no other outranks it. Ties aren't passed on, so it isn't
enough to compare each with the highest mean: that one may have run wild and outrank
none, and a third may outrank yours all the same."""
from math import sqrt
from statistics import mean, variance


def outranks(a, b):
    error = sqrt(variance(a) / len(a) + variance(b) / len(b))
    return mean(a) - mean(b) > 3 * error


def first(scores):
    every = scores.values()
    return [m for m, own in scores.items() if not any(outranks(a, own) for a in every)]


answer = first

# %% choosing-even
"""The latency and the download are the same on both sides and cancel out. The rest:
computing longer by 10 ms must be paid back by 29,708 bytes less, eight bits each. Up
to about 24 Mbit/s it is. A telephone's uplink is slower, an office network is not; and
a device five times slower computes 50 ms longer, and moves the limit to a fifth."""
saved = 8 * (40_957 - 11_249)  # bits
answer = saved / (0.012 - 0.002)

# %% choosing-images
"""Both accuracies err, so the difference has the variance $2p(1-p)/N$. Two of its
standard errors are to be 0.01: $N = 8p(1-p) / 0.01^2$, which is 1,950. With
450 images two standard errors are two points: differences below that aren't worth a
discussion, however many seeds there were."""
p = 0.975
answer = 4 * 2 * p * (1 - p) / 0.01**2

# %% choosing-fair
"""(a) Smaller. If both err on the same images, their errors go up and down together,
and the difference keeps only the unshared ones. Count the images on which exactly
one of them is right: only those carry information about who is better (McNemar's
test).

(b) Take the difference of the two methods seed by seed, and the standard error of
these differences: their standard deviation over the root of $n$. What a hard split
does to both goes away, so it's the better rule where the scores of two methods rise
and fall together over the seeds. In some contests they do. And with five seeds
it has only four degrees of freedom, so the factor must be larger: about 4 to decide as
few twins as 3 does here.

(c) FedAvg with FedGKT's edge and server network in one, at the clients, with the same
budget of tuning. The clients may then be too weak for it, which is FedGKT's point:
state the seconds that one round costs them, too. The chapter on FedGKT has runs of
this kind."""

# %% choosing-link
"""Eight bits are a byte, and a round waits for both directions, one after the other. So
the two speeds weigh the two columns of bytes. A sum of bytes up and down is a price
only where both ways are equally fast."""


def choose(methods, up, down, seconds):
    fits = [
        (accuracy, name)
        for name, accuracy, bytes_up, bytes_down in methods
        if 8 * bytes_up / up + 8 * bytes_down / down <= seconds
    ]
    return max(fits)[1] if fits else None


answer = choose

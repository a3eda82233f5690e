"""Reference answers of the chapter on which method wins.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% shootout-rounds
"""Whole division does it, and a budget of nothing gives 0 by itself. A method that
sends nothing never uses up any budget: at equal bytes *local* always gets all of its
rounds, which is why it is in the contest as a floor."""
import math


def fitting(budget, up, down):
    return budget // (up + down) if up + down else math.inf


answer = fitting

# %% shootout-first
"""A method is first if nobody is ahead of it. Ties are not passed on, so it is not
enough to compare each with the highest mean: that one may have run wild, be ahead of
nobody, and a third may be ahead of yours all the same."""
from math import sqrt
from statistics import mean, variance


def ahead(a, b):
    error = sqrt(variance(a) / len(a) + variance(b) / len(b))
    return mean(a) - mean(b) > 3 * error


def first(scores):
    every = scores.values()
    return [m for m, own in scores.items() if not any(ahead(a, own) for a in every)]


answer = first

# %% shootout-even
"""The latency and the download are the same on both sides and go away. What remains:
computing longer by 10 ms must be paid back by 29,708 bytes less, eight bits each. Up
to about 24 Mbit/s it is. A telephone's uplink is slower, an office network is not; and
a device five times slower computes 50 ms longer, and moves the limit to a fifth."""
saved = 8 * (40_957 - 11_249)  # bits
answer = saved / (0.012 - 0.002)

# %% shootout-images
"""Both accuracies err, so the difference has the variance $2p(1-p)/N$. Two of its
standard errors are to be 0.01: $N = 8p(1-p) / 0.01^2$, which is 1,950. With
450 images two standard errors are two points: differences below that are not worth a
discussion, however many seeds there were."""
p = 0.975
answer = 4 * 2 * p * (1 - p) / 0.01**2

# %% shootout-fair
"""(a) Smaller. If both err on the same images, their errors go up and down together,
and the difference keeps only what is not shared. Count the images on which exactly
one of them is right: only those carry information about who is better (McNemar's
test).

(b) Take the difference of the two methods seed by seed, and the standard error of
these differences: their standard deviation over the root of $n$. What a hard split
does to both goes away, so it is the better rule where the scores of two methods rise
and fall together over the seeds. In these contests they hardly do. And with three seeds
it has only two degrees of freedom, so the factor must be larger: about 5 to decide as
few twins as 3 does here.

(c) FedAvg with FedGKT's edge and server network in one, at the clients, with the same
budget of tuning. The clients may then be too weak for it, which is FedGKT's point:
state what one round costs them in seconds, too. The chapter on FedGKT has runs of
this kind."""

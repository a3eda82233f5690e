"""Reference answers of the chapter on sending less.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% wire-random
"""Both sides draw the same positions. An entry arrives with probability k/n, so it has
to arrive n/k times as large. A generator of one's own leaves all other draws of the
program as they were, which `torch.manual_seed` would not."""
import torch


def drawn(n, k, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:k]


def send(x, k, seed):
    return x[drawn(len(x), k, seed)]


def receive(values, n, seed):
    x, k = torch.zeros(n), len(values)
    x[drawn(n, k, seed)] = values * n / k
    return x


answer = (send, receive)

# %% wire-ratio
"""By (3.5) a place takes 8.1 bits. With its sign a kept number takes 9.1, and one in a
hundred is kept. All others take nothing. So a number costs 0.091 bits on average
instead of 32: about 352 times smaller. In the words of the package's code, which come
close to (3.5), it's 351 times."""
import math

n, k = 1_000_000, 10_000
p, position = k / n, math.log2(math.comb(n, k)) / k
answer = 32 / (p * (position + 1))

# %% wire-coin
"""Random rounding with two levels, the smallest entry and the largest. If all entries
are equal, the tensor comes back as it was: there is nothing to round."""
import torch


def coin(x, generator):
    low, high = x.min(), x.max()
    if low == high:
        return x.clone()
    up = torch.rand(x.shape, generator=generator) < (x - low) / (high - low)
    return torch.where(up, high, low)


answer = coin

# %% wire-forget
"""Seven rounds or so instead of five, and the line stays lower to the end. Top-k loses
the same small numbers every time, and nobody ever hears of them.

A good answer says (1) that it still learns, since the largest numbers point the right
way; (2) that it learns more slowly, by how many rounds; (3) why: what was lost is lost
for good, so (3.8) no longer holds; (4) that one run is one run: Table 3.2 has the same
pair with several seeds."""

# %% wire-pooling
"""(a) Pooling sends the mean of each kernel. So the error, the kernel minus its mean,
has mean zero, and the mean of u + e is the mean of u. The error grows round after round
and is never heard.

(b) A share of the energy, greater than zero, must be removed from *every* x. For a
kernel with mean zero C(x) = 0, and nothing is removed.

(c) It helps: over time every entry is drawn. But C must then be the plain selection.
With the factor n/k the coder overshoots: an entry that is sent as n/k times itself
leaves an error of 1 - n/k times itself. For n > 2k this is larger than the entry, and
the errors blow up. Unbiased coders and error feedback are two remedies that do not
simply add up."""

"""Reference answers of the chapter on FedMMD and FedFusion.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% fed_mmd_fusion-twin
"""Zero for the plain network. Not zero with batch normalisation. The stream that trains
normalises by its own batch. The frozen one normalises by the averages that it was
given. In a round those are the download's; in this cell, where nothing has been
trained, they're the default values 0 and 1. So two equal networks answer differently,
and the band pulls from the first step on.

A good answer says (1) what was predicted; (2) that the weights are equal and the
statistics are not; (3) that a batch from a client with few classes is far from the
average of all; (4) what one could do: give the frozen stream the statistics of the same
batch (not tried here), or do without batch normalisation, as the paper does."""

# %% fed_mmd_fusion-weights
"""A good answer (1) predicts before it runs; (2) compares a tenth of the weight with
federated averaging and with the paper's weight by more than one measure: the rounds to
60 %, the last quarter, the last test; (3) finds that ten times the weight lets nobody
learn at this rate: narrow bells pull so hard that steps become huge, numbers are no
longer finite, and the server refuses such answers (the warning); (4) says how far apart
the seeds lie. At the smaller rate of Figure 6.5, with normalisation, no answer is
refused with a weight of 1. But with four clients accuracy stays far below the others,
and with twelve at guessing."""
import fedlearn as fl

answer = {
    "weak": fl.methods.fedmmd(0.3, lam=0.01),
    "strong": fl.methods.fedmmd(0.3, lam=1.0),
}

# %% fed_mmd_fusion-diagonal
"""A matrix of n x n pairs has n(n - 1) entries off its diagonal. Between the two
samples no point is paired with itself, so that mean stays as it is. The
result may be negative: its expectation is zero when both samples come from one
distribution."""


def unbiased(Kxx, Kyy, Kxy):
    n, m = Kxy.shape
    first = (Kxx.sum() - Kxx.trace()) / (n * (n - 1))
    second = (Kyy.sum() - Kyy.trace()) / (m * (m - 1))
    return first + second - 2 * Kxy.mean()


answer = unbiased

# %% fed_mmd_fusion-payload
"""The local extractor, the classifier and the operator travel; the first two together
are the network. The frozen extractor does not: it is the last download. The operator is
a 1 x 1 convolution from 128 channels to 64, with a bias each."""
answer = 1_756_426 + 2 * 64 * 64 + 64

# %% fed_mmd_fusion-fold
"""The first C columns meet the global maps, the others the local ones, and both are E.
So the control, which trains both halves on the same maps, has one more C x C layer and
no more."""


def fold(W, b):
    C = len(W)
    return W[:, :C] + W[:, C:], b


answer = fold

# %% fed_mmd_fusion-think
"""(a) With one point each, the squared MMD is 2 K(a, a) - 2 K(a, b), the sum over all
widths w of $2 (1 - e^{-||a - b||^2 / 2w})$. L2 is $||a - b||^2 / 2$, as before. Both
depend on the distance of the two answers alone: both want each image answered as
before. But L2 has no bound, and the squared MMD is at most twice the number of widths,
38 in all.

(b) The stored maps belong to one view of an image. Augmented, the local stream sees
another view, and the two streams no longer look at the same image. With dropout on, the
frozen stream would be noise that is frozen, too.

(c) After t rounds the server has 0.5 (1 - 0.9^t). That exceeds 0.4 when 0.9^t is below
0.2, after 16 rounds."""

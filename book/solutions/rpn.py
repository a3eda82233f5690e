"""Reference answers of the chapter on RPN.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% rpn-numbers
"""There are 32 kernels in the first layer and 32 * 64 in the second. Each sends one
number instead of nine. In all, 1.4 % is saved: there are almost no kernels here."""
answer = 1_199_882 - 8 * (32 + 32 * 64)

# %% rpn-noise
"""The mean of 25 independent random numbers has a 25th of their variance, so pooling
keeps a 25th of the energy, 0.04. A larger kernel saves more, and loses more."""
answer = 1 / 25

# %% rpn-forget
"""Every round ends where the first one ended: at chance, about one digit in ten. Each
client starts from the first model plus what the *last* round brought. The rounds before
are gone, so nobody ever gets further than one night away from the first model.

A good answer says (1) that accuracy never rises; (2) why: a residual is a change
against the model of the round before, so all of them have to be added; (3) who adds
them in the paper: every client keeps the sum itself (its Eq. 7, and the first line of
Algorithm 2), and then must never miss a round."""

# %% rpn-pool
"""`expand` makes a view: all positions of a kernel are one number in memory. `repeat`
writes each position down, so training one in place leaves its neighbours alone."""


def pool(weight):
    return weight.mean((2, 3))


def unpool(means, k):
    return means[:, :, None, None].repeat(1, 1, k, k)


answer = (pool, unpool)

# %% rpn-share
"""A good answer (1) predicts both accuracy and bytes before it runs; (2) finds that the
last layer brings most of the saving, since it holds two thirds of the numbers; (3)
finds that every further layer saves less, and that the second to be pooled costs most;
(4) says how far apart the seeds lie: by some points."""
import fedlearn as fl

answer = {
    "the last": fl.methods.rpn(share=0.34),
    "the last two": fl.methods.rpn(share=0.67),
}

# %% rpn-payload
"""Each 5 x 5 kernel sends one number instead of 25. There are 3 * 64 kernels in the
first layer and 64 * 64 in the second; biases and dense layers travel whole."""
kernels = 3 * 64 + 64 * 64
answer = 1_756_426 - 24 * kernels

# %% rpn-scaled
"""The weights move further in a round. So the recovered model moves further from the
models whose batch statistics it carries. Measure its accuracy twice, as it is and with
new statistics, before you judge the louder weights. With the chapter's own parameters,
and with seeds 1 and 2 as well, the louder model is much worse as it is. With new
statistics it's about as good as RPN, so the statistics cost the points."""
import fedlearn as fl


class Scaled(fl.wire.Coder):
    pooled = fl.wire.Pooled()

    def encode(self, tensor):
        return self.pooled.encode(tensor)

    def decode(self, section, shape):
        means = self.pooled.decode(section, shape)
        return means * shape[-1] if len(shape) > 2 else means


answer = Scaled()

# %% rpn-late
"""(a) A model that never existed: the first model plus the part of the sum that the
client heard. Its residual then starts from a wrong model, and no error is raised.

(b) Seven times one message; larger than the dense model as soon as the number of missed
rounds exceeds the compression factor.

(c) No. The sum of two sparse tensors has up to twice as many entries, at other places
each time, and soon the sum is dense. Means stay means, because all clients pool over
the same positions: a sum of flat kernels is flat."""

"""Reference answers of the chapter on federated averaging.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% fedavg-average
"""Besides the sum, one state is in memory at a time: `states` may be a generator. Each
sum is a new tensor, so the clients' own states stay as they are."""


def weighted_average(states, samples):
    n, mean = sum(samples), {}
    for state, m in zip(states, samples, strict=True):
        for name, v in state.items():
            mean[name] = mean.get(name, 0) + m / n * v
    return mean


answer = weighted_average

# %% fedavg-start
"""The mean is at the level of guessing, one digit of ten, although clients have learned
something alone. What is a detector of strokes in one network is something else in the
other, because both began at random. In Figure 1.1 each client has one bowl. A real loss
has many bottoms, and the mean of two of them need not be one.

A good answer says (1) that a common start is part of the method, not a detail; (2) that
the first model costs nothing if all can draw it from one seed; and (3) that batch
statistics are averaged, too, and may not fit the averaged weights. Table 1A.6 of the
notes has them measured anew on all scans, for three draws of first models. Different
starts: the mean still reads less than a third of the digits. A common start: more than
seven tenths. So the statistics explain little of the harm."""

# %% fedavg-thirty
"""The first round ends well below what it will reach, and the second one brings many
points. Four epochs do as well. On average over three seeds of the package, thirty
epochs read 86 of 100 digits after two rounds, and four epochs 84; with one of the seeds
four epochs read more. So the work of 26 epochs bought little, if anything.

A good answer says (1) why: after some epochs each client is at the bottom of its own
bowl, and further steps change little; (2) what is then missing is a meeting, not more
work; (3) that this was one run. Of those three seeds, one read 28 of 100 after its
first round of thirty epochs, and another 75."""

# %% fedavg-bytes
"""Each of ten clients gets one message and sends one, in each of fifty rounds: a
thousand messages. The envelope is the 101 bytes that we found above, so a message has
40,957 bytes. A thousand of them have 40,957,000, or 41 MB."""
envelope = 101
message_size = 4 * (10_078 + 136) + envelope
answer = message_size * 2 * 10 * 50

# %% fedavg-participants
"""The first entries of a random permutation are a random set without repetition."""
import torch


def participants(clients, C, generator):
    count = max(1, int(C * clients + 0.5))
    return sorted(torch.randperm(clients, generator=generator)[:count].tolist())


answer = participants

# %% fedavg-onestep
"""Client k takes one step on all its images, so u_k is -η times the gradient of F_k at
w_t. By (1.3) the server gets w_t - η Σ (n_k / n) ∇F_k(w_t). The gradient of the sum
(1.1) is the sum of the gradients, so this is w_t - η ∇f(w_t): one step on all data.

For the digits network it is only nearly true. In training, batch normalisation uses the
mean and variance of the batch, so the loss of an image depends on the other images of
its batch. A client's batch is not the whole set, and f is no longer a sum over single
images.

With E > 1 it is false for every network: the second gradient is taken at a point where
nobody else is."""

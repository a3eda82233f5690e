"""Reference answers of the chapter on composing.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% compose-needs
"""A part is judged by what the *other* five give. Uniting all six would let a part meet
its own need: a downlink that replays steps could call itself their source."""


def refused_kinds(parts):
    found = []
    for kind, (needs, _) in parts.items():
        others = set()
        for other, (_, gives) in parts.items():
            if other != kind:
                others |= gives
        if needs - others:
            found.append(kind)
    return sorted(found)


answer = refused_kinds

# %% compose-link
"""Eight bits are a byte, and a round waits for both directions, one after the other. So
the two speeds weigh the two columns of bytes, and the front of the chapter, which adds
bytes up and down as if they were one price, need not be yours."""


def choose(mixes, up, down, seconds):
    fits = [
        (accuracy, name)
        for name, accuracy, bytes_up, bytes_down in mixes
        if 8 * bytes_up / up + 8 * bytes_down / down <= seconds
    ]
    return max(fits)[1] if fits else None


answer = choose

# %% compose-message
"""Two bits an entry, rounded up to whole bytes for each large tensor, and four bytes
for its S. The small numbers are nearly a third of the message, and nearly half of what
one bit an entry would leave: the floor of this chapter."""
import math

large = [108, 2_592, 6_912, 320]
coded = sum(4 + math.ceil(2 * n / 8) for n in large)
envelope = 26 + math.ceil(17 / 8) + 4 * 17 + 4
answer = coded + 4 * 282 + envelope

# %% compose-luck
"""The maximum of several noisy numbers is too large on average, and the one that it
belongs to is measured again without the advantage of having been chosen. So the
difference estimates how much of a best rate's score was luck."""


def optimism_of(chosen, again):
    gaps = []
    for first, second in zip(chosen, again, strict=True):
        k = max(range(len(first)), key=lambda i: first[i])
        gaps.append(first[k] - second[k])
    return sum(gaps) / len(gaps)


answer = optimism_of

# %% compose-idle
"""(a) It is a moving average of one tensor, the fusion's weights. Where there are none
it has nothing to average, and all other tensors get the weighted mean, as in FedAvg.

(b) The client adds the steps to the model that it keeps, in the order in which the
server added them, and gets the server's model to the last bit. So it trains from the
same weights, with the same batches, and uploads the same bytes: only the bytes down
can differ. Without the server's part there are no steps to replay: a sparse message of
a dense change would leave the client with another model than the server's, and (11.4)
refuses it.

(c) They follow from a few constants of the network, which are sent once (or are the
same for all by default), and from then on each client works them out itself. They would
be lost at once if the server changed the constants without a word, which is why they
are in a message and not in everybody's program.

(d) Adam divides each gradient by its running size, so its first steps are as long as
the learning rate in every entry, whatever the loss. Where the best of three rates is
the smallest, the true best may lie below. So the grid compares SGD near its best rate
with Adam some way above it, and what it says of Adam it says of Adam at these rates:
with a tenth of the smallest one the same mixes were far better."""

"""Reference answers of the chapter on Flower.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% flower-bytes
"""Twenty clients take part in a round, but all hundred are greeted, also those who are
never drawn."""
greetings = 100 * (1_500 + 2_100)
answer = 50 * 20 * (2 * 6_781 + 1_100 + 1_300) + greetings

# %% flower-silent
"""Each upload that was averaged brought `size` bytes. A refused one may have brought
some, too, so only too few bytes prove anything."""


def silent(history, size):
    claimed = {
        row["round"]: len(row["clients"]) - len(row["refused"]) for row in history.rows
    }
    return [
        row["round"]
        for row in history.rows
        if row["bytes_up"] < size * claimed[row["round"]]
    ]


answer = silent

# %% flower-notices
"""(a) The checksum. TLS sees nothing, for the bytes were wrong before they left. (b)
Nobody: shape, round and checksum are right. (c) Nobody. Our task knows the true number
and could compare; on real devices nobody knows it. (d) The envelope names its round,
and the server expects another. (e) The head: it holds hashes of the data. (f) Nobody.
Equality is a promise among honest parties. (g) TLS: that machine has no certificate
signed by the one in `ca.pem`, so no client talks to it."""

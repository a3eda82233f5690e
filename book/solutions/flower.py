"""Reference answers of the chapter on Flower.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% flower-forgets
"""The first comparison and the second are still true: the simulation of the package and
the loop both keep what a client remembers. The last is false. `answer` builds `people`
anew for each message and loses it when it returns, so DGC's clients have forgotten
what they didn't send. Nobody said so: there is no error, and the accuracies look
sensible. They may even be higher. It's simply another method. In Flower a client's
memory has to be put into `context.state`, which Flower gives back to the client's next
call. Define this function, and write in `answer`
`data = remembering(people, k, asked, context)`: then the last comparison is true
again."""
from flwr.app import ArrayRecord


def remembering(people, k, asked, context):
    kept = context.state.get("kept", ArrayRecord())
    people.memories[k] = dict(kept.to_torch_state_dict())
    data = people.answer(asked["round"], k, asked["message"])
    context.state["kept"] = ArrayRecord(dict(people.memories[k]))
    return data


# %% flower-fails
"""Our server stops with an error, because a reply that reports a failure has no
content. One client that is out of memory ends the run of all. Flower's ready-made
strategy `FedAvg` does the opposite: it averages those that answered, says so in its
log, and returns a mean that doesn't show who is missing. Both are bad if a client
fails often. If it's always the one with the most data, the model drifts away from it.
A server should go on with the others *and* write down who is missing, and why. The
package's history shows this in the column `refused`: client, and reason."""

# %% flower-bytes
"""Twenty clients take part in a round, but all hundred are greeted, including those
that are never drawn."""
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

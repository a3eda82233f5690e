"""What does a round of FedRepOpt cost beside its rivals? Whole rounds, messages included, of the
four forms of a network.

    python tests/benchmarks/forms.py                      # about three minutes on two CPU cores
    python tests/benchmarks/forms.py --quick              # one small network, two repeats
    python tests/benchmarks/forms.py --device cuda --out data/results/forms_cuda.json

Two clients, one local epoch. The forms take turns, 7 (B1), 14 (0.5x) or 42 times; medians of ratios
to "inf" in the same turn, and the seconds of "inf".
"""

import time

from common import program, random_task, ratios, wait

import fedlearn as fl
from fedlearn import models
from fedlearn.round import one_round

# label -> network, image shape, samples a client, batch size, how often the repeats: short rounds
# need more
NETWORKS = {
    "RepVGG, digits": ("digits_repvgg", (1, 8, 8), 320, 32, 6),
    "RepGhost, digits": ("digits_repghost", (1, 8, 8), 320, 32, 6),
    "RepGhostNet 0.5x, 64x64": ("repghost_05", (3, 64, 64), 64, 32, 2),
    "RepVGG-B1, 64x64": ("repvgg_b1", (3, 64, 64), 32, 32, 1),
}
FORMS = ("tr", "inf", "csla", "repopt")


def rounds(method, task, batch_size):
    """A function that plays the next round and says how long it took."""
    settings, t = fl.Settings(batch_size=batch_size, evaluate_every=10**9), 0
    server, clients = method.server_side(task, settings), fl.clients(method, task, settings)
    state, last_seen = server.start(), {}

    def play():
        nonlocal t, state
        t += 1
        start = time.perf_counter()
        state, _ = one_round(server, clients, t, state, last_seen)
        wait(task)
        return time.perf_counter() - start

    play()  # warms up, and brings the constants
    return play


def measure(case, repeats, device):
    network, shape, samples, batch_size, often = case
    task = random_task(network, shape, 2, samples, device)
    made = {form: fl.methods.fed_repopt(0.01, form, None) for form in FORMS}
    timers = {form: rounds(method, task, batch_size) for form, method in made.items()}
    row, seconds = ratios(timers, "inf", repeats * often)
    parameters = models.parameter_count(task.network())
    return row | {"seconds of inf": seconds, "parameters": parameters}


if __name__ == "__main__":
    program(__doc__, measure, NETWORKS)

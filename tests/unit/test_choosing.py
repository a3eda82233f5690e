"""The runs behind the contest of the chapter on choosing: each is stated rightly, is run once, and
the best value of the short ones is taken."""

import pandas

from fedlearn.book import choosing

RUN = choosing.RUN


def test_a_budget_buys_what_fits_into_it():
    methods = ["FedAvg", "dear", "free"]
    frame = pandas.DataFrame({"method": methods, "least": [0.1, 2.0, 0.0]})
    frame["up"] = frame["down"] = [1000, 6000, 0]
    frame = frame.assign(split="IID", clients=10, accuracy=3 * [20 * [0.5]])
    looks = {
        equal: choosing.affordable(frame, equal).tolist()
        for equal in (choosing.ROUNDS, choosing.BYTES, choosing.TIME)
    }
    assert looks[choosing.ROUNDS] == [20, 20, 20]
    assert looks[choosing.BYTES] == [5, 0, 20]
    assert looks[choosing.TIME] == [5, 0, 7]


def test_best_takes_the_best_short_run():
    def row(method, value, accuracy, short=True, clients=10):
        run = ("IID", clients, method, value, 0, short)
        return dict(zip(RUN, run, strict=True)) | {"accuracy": accuracy}

    rows = [
        row("a", 0.1, [0.3]),
        row("a", 0.2, [0.9, 0.9, 0.9, 0.5]),  # the last quarter counts
        row("a", 0.1, [0.99], short=False),  # no short run
        *(row("b", 0.1, []), row("b", 0.2, [0.1])),  # diverged
        *(row("c", 0.1, [0.7]), row("c", 0.2, [0.7])),  # of equal ones the larger value
        row("d", 0.1, []),
        row("a", 0.8, [0.6], clients=100),
    ]
    cells = {("IID", 10, method): 0.2 for method in "abc"}
    assert choosing.best(rows) == cells | {("IID", 100, "a"): 0.8}

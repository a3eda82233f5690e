"""The contest of the chapter on choosing: what a budget buys."""

import pandas

from fedlearn.book import choosing


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

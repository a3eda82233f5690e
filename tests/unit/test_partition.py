"""Every partition is a disjoint cover without empty clients; the papers' fixed splits add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlearn.data import partition as P
from fedlearn.data.images import COARSE

MNIST = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def rng(seed=0):
    return np.random.default_rng(seed)


def histogram(split, labels):
    return np.stack(
        [np.bincount(labels[i], minlength=labels.max() + 1) for i in split.indices]
    )


parts = st.one_of(
    st.sampled_from([P.iid(), P.classes(), P.permuted()]),
    st.builds(P.dirichlet, st.floats(1e-3, 1e3), st.integers(1, 3)),
    st.builds(P.shards, st.integers(1, 4)),
    st.builds(P.main_class, st.floats(0.01, 1)),
)


@settings(max_examples=100)
@given(
    parts,
    st.integers(1, 12),
    st.lists(st.integers(0, 9), min_size=1, max_size=300),
    st.integers(0, 2**32),
)
def test_cover_and_determinism(part, clients, labels, seed):
    labels = np.array(labels)
    try:
        split = part(labels, clients, rng(seed), pixels=64)
    except ValueError as error:  # allowed, but only with a way out
        assert "fewer clients" in str(error)
        return
    assert len(split.indices) == clients
    assert all(len(i) and i.dtype == np.int64 for i in split.indices)
    assert np.array_equal(
        np.sort(np.concatenate(split.indices)), np.arange(len(labels))
    )
    again = part(labels, clients, rng(seed), pixels=64)
    assert all(
        np.array_equal(a, b) for a, b in zip(split.indices, again.indices, strict=True)
    )


# The samples of client 1 of 4 among 40 of ten classes: stored runs hold these draws.
DRAWS = {
    "iid": [3, 6, 10, 11, 14, 26, 28, 31, 33, 38],
    "dirichlet:0.5": [0, 9, 17, 19, 24, 26, 29, 30, 31, 35],
    "shards:2": [3, 8, 13, 18, 22, 23, 27, 28, 32, 37],
    "classes": [3, 4, 13, 14, 23, 24, 33, 34],
    "main_class:0.8": [0, 3, 4, 13, 23, 24, 27, 34, 39],
}


@pytest.mark.parametrize("text", DRAWS)
def test_draws_are_those_of_stored_runs(text):
    split = P.parse(text)(np.arange(40) % 10, 4, rng(3))
    assert split.indices[1].tolist() == DRAWS[text]
    assert split.permutations is None


def test_main_class_is_fed_kgf():
    labels = rng(1).permutation(np.repeat(np.arange(100), 500))
    coarse = np.array(COARSE)
    counts = histogram(P.main_class(0.8)(labels, 10, rng(), coarse=coarse), labels)
    assert set(np.unique(counts)) == {11, 12, 400}
    assert (counts.sum(1) == 5000).all()
    for k, row in enumerate(counts):
        main = np.flatnonzero(row == 400)
        assert len(main) == 10
        assert set(coarse[main]) == {2 * k, 2 * k + 1}


@pytest.mark.parametrize(
    "name, clients, totals",
    [("fedgkt_table6", 16, np.full(10, 5000)), ("rpn_table4", 10, MNIST)],
)
def test_tables_are_exact_or_in_proportion(name, clients, totals):
    table = P.table(name).counts()
    assert np.array_equal(table.sum(0), totals)
    for n in (totals, totals // 7):
        labels = rng(2).permutation(np.repeat(np.arange(10), n))
        counts = histogram(P.table(name)(labels, clients, rng()), labels)
        assert np.array_equal(counts.sum(0), n), "every sample is used"
        assert (np.abs(counts - table * n / totals) < (n < totals).any() + 1e-9).all()


@pytest.mark.parametrize(
    "text, clients, noun",
    [
        ("dirichlit:0.5", 2, "Did you mean 'dirichlet'"),
        ("dirichlet:inf", 2, "alpha"),
        ("dirichlet:1e-9", 20, "raise alpha"),
        ("shards:3", 10, "30 shards"),
        ("table:rpn_table9", 2, "no partition table"),
        ("table:rpn_table4", 5, "10 clients"),
    ],
)
def test_what_is_no_partition_or_cannot_serve_so_many_clients(
    text, clients, noun, monkeypatch
):
    monkeypatch.setattr(P, "TRIES", 9)
    with pytest.raises(ValueError, match=noun):
        P.parse(text)(np.arange(20) % 10, clients, rng())

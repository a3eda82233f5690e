"""Every partition is a disjoint cover without empty clients; the papers' fixed splits add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlearn.data import partition as P
from fedlearn.data.sources import COARSE

MNIST = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def rng(seed=0):
    return np.random.default_rng(seed)


def covers(split, n):
    assert all(len(i) and i.dtype == np.int64 for i in split.indices)
    assert np.array_equal(np.sort(np.concatenate(split.indices)), np.arange(n))


def histogram(split, labels):
    return np.stack([np.bincount(labels[i], minlength=labels.max() + 1) for i in split.indices])


parts = st.one_of(
    st.just(P.iid()),
    st.just(P.classes()),
    st.just(P.permuted()),
    st.builds(P.dirichlet, st.floats(1e-3, 1e3), st.integers(1, 3)),
    st.builds(P.shards, st.integers(1, 4)),
    st.builds(P.main_class, st.floats(0.01, 1)),
)


@settings(deadline=None, max_examples=150)
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
    covers(split, len(labels))
    again = part(labels, clients, rng(seed), pixels=64)
    assert all(np.array_equal(a, b) for a, b in zip(split.indices, again.indices, strict=True))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 7, 10, 16]), parts)
def test_usual_sizes_never_fail(seed, clients, part):
    """On a thousand samples only a very uneven Dirichlet, or fewer classes than clients, refuse."""
    labels = rng(seed).permutation(np.arange(1600) % 16)
    if isinstance(part, P.Dirichlet):
        part = P.dirichlet(max(part.alpha, 0.5))
    if isinstance(part, P.MainClass):
        part = P.main_class(max(part.share, 0.05))
    covers(part(labels, clients, rng(seed), pixels=64), 1600)


def test_nothing_reads_the_global_generator():
    labels = np.arange(500) % 10
    before = np.random.get_state()  # noqa: NPY002
    for text in (
        "iid",
        "dirichlet:0.5",
        "shards:2",
        "classes",
        "main_class:0.8",
        "permuted",
        "table:rpn_table4",
    ):
        P.parse(text)(labels, 10, rng(), pixels=4)
    after = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(before[1], after[1]) and before[2:] == after[2:]


def test_iid_sizes_and_permutations():
    split = P.permuted()(np.arange(103) % 10, 10, rng(), pixels=64)
    assert sorted(map(len, split.indices)) == [10] * 7 + [11] * 3
    assert len({tuple(p) for p in split.permutations}) == 10
    assert all(np.array_equal(np.sort(p), np.arange(64)) for p in split.permutations)
    assert P.iid()(np.arange(103) % 10, 10, rng()).permutations is None
    with pytest.raises(ValueError, match="pixels"):
        P.permuted()(np.arange(103) % 10, 10, rng())


def test_shards_hold_few_classes():
    labels = rng().permutation(np.repeat(np.arange(10), 100))
    counts = histogram(P.shards(2)(labels, 10, rng()), labels)
    assert (counts.sum(1) == 100).all() and ((counts > 0).sum(1) <= 2).all()


def test_classes_of_fedmmd():
    labels = np.arange(1000) % 10
    counts = histogram(P.classes()(labels, 2, rng()), labels)
    assert np.array_equal(counts > 0, [[True] * 5 + [False] * 5, [False] * 5 + [True] * 5])


def test_dirichlet_grows_even_with_alpha():
    labels = np.arange(50000) % 10
    even, uneven = (
        histogram(P.dirichlet(a, 10)(labels, 10, rng()), labels).std() for a in (1000, 0.1)
    )
    assert even < 60 < 600 < uneven


def test_main_class_is_fed_kgf_on_cifar10():
    labels = rng(1).permutation(np.repeat(np.arange(10), 5000))
    counts = histogram(P.main_class(0.8)(labels, 10, rng()), labels)
    assert (np.diag(counts) == 4000).all()
    assert set(counts[~np.eye(10, dtype=bool)]) == {111, 112}
    assert (counts.sum(1) == 5000).all()


def test_main_class_of_a_crowd():
    """Three classes, seven clients: 0, 3, 6 own class 0, and so on; nobody else has a share more
    than one sample larger than another's."""
    labels = rng(1).permutation(np.repeat(np.arange(3), 700))
    counts = histogram(P.main_class(0.8)(labels, 7, rng()), labels)
    own = np.arange(7)[:, None] % 3 == np.arange(3)
    assert (counts.sum(0) == 700).all()
    for c in range(3):
        mine, others = counts[own[:, c], c], counts[~own[:, c], c]
        assert mine.sum() == 560 and np.ptp(mine) <= 1 and np.ptp(others) <= 1
    odd = histogram(P.main_class(0.8)(np.arange(1340) % 10, 100, rng()), np.arange(1340) % 10)
    assert np.ptp(odd.sum(1)) <= 3  # the odd samples do not all go to the same clients


def test_main_class_is_fed_kgf_on_cifar100():
    labels = rng(1).permutation(np.repeat(np.arange(100), 500))
    coarse = np.array(COARSE)
    counts = histogram(P.main_class(0.8)(labels, 10, rng(), coarse=coarse), labels)
    assert set(np.unique(counts)) == {11, 12, 400}
    assert (counts.sum(1) == 5000).all()
    for k, row in enumerate(counts):
        own = np.flatnonzero(row == 400)
        assert len(own) == 10 and set(coarse[own]) == {2 * k, 2 * k + 1}


@pytest.mark.parametrize(
    "name, clients, totals", [("fedgkt_table6", 16, np.full(10, 5000)), ("rpn_table4", 10, MNIST)]
)
def test_tables_are_exact(name, clients, totals):
    part = P.table(name)
    assert np.array_equal(part.counts().sum(0), totals)
    labels = rng(2).permutation(np.repeat(np.arange(10), totals))
    split = part(labels, clients, rng())
    covers(split, len(labels))
    assert np.array_equal(histogram(split, labels), part.counts())


def test_repairs():
    assert P.table("fedgkt_table6").counts()[7].tolist() == [
        87,
        2,
        131,
        1325,
        0,
        1117,
        704,
        0,
        0,
        0,
    ]
    assert P.table("rpn_table4").counts()[9].sum() == 6712  # the total that the paper prints


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=400, max_size=900))
def test_scaled_table_uses_every_sample(labels):
    labels = np.array([*range(10), *labels])
    part = P.table("rpn_table4")
    split = part(labels, 10, rng())
    covers(split, len(labels))
    ideal = part.counts() * np.bincount(labels) / part.counts().sum(0)
    assert (np.abs(histogram(split, labels) - ideal) < 1).all()


def test_table_from_a_path(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("# two clients\nclient,c0,c1\n0,3,0\n1,1,4\n")
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert histogram(P.table(str(file))(labels, 2, rng()), labels).tolist() == [[3, 0], [1, 4]]
    for bad in (
        "client,c0\n0,x\n",
        "client,c0,c1\n0,1\n1,2,3\n",
        "client,c0\n0,-1\n1,3\n",
        "client,c0,c1\n0,1,0\n",
        "",
    ):
        file.write_text(bad)
        with pytest.raises(ValueError, match="not a table of counts"):
            P.table(str(file))


@pytest.mark.parametrize(
    "text",
    [
        "dirichlet:0.5",
        "iid",
        "shards:3",
        "classes",
        "main_class:0.7",
        "permuted",
        "table:rpn_table4",
    ],
)
def test_parse(text):
    name, _, argument = text.partition(":")
    read = {"dirichlet": float, "shards": int, "main_class": float, "table": str}.get(name)
    assert P.parse(text) == (getattr(P, name)(read(argument)) if read else getattr(P, name)())


def test_repr_and_defaults():
    assert repr(P.dirichlet(0.5)) == "Dirichlet(alpha=0.5, min_samples=1)"
    assert P.parse("shards") == P.shards(2) and P.parse("main_class") == P.main_class(0.8)


@pytest.mark.parametrize(
    "text, says",
    [
        ("dirichlit:0.5", "Did you mean 'dirichlet'"),
        ("dirichlet:x", "write it like 'dirichlet:0.5'"),
        ("dirichlet", "lacks its argument"),
        ("dirichlet:", "write it like"),
        ("dirichlet:0", "positive"),
        ("dirichlet:-1", "positive"),
        ("dirichlet:nan", "finite number"),
        ("dirichlet:inf", "finite number"),
        ("shards:0", "shards"),
        ("shards:1.5", "write it like"),
        ("main_class:0", "share"),
        ("main_class:1.1", "share"),
        ("main_class:nan", "finite number"),
        ("iid:3", "write it like 'iid'"),
        ("table", "lacks its argument"),
        ("table:rpn_table6", "Did you mean 'rpn_table5'"),
    ],
)
def test_bad_text(text, says):
    with pytest.raises(ValueError, match=says):
        P.parse(text)


def test_bad_calls():
    labels = np.arange(20) % 10
    for part, clients, says in (
        (P.iid(), 0, "at least one client"),
        (P.iid(), 21, "fewer clients"),
        (P.shards(3), 10, "30 shards"),
        (P.classes(), 11, "fewer clients"),
        (P.main_class(), 21, "fewer clients"),
        (P.dirichlet(0.01), 20, "raise alpha"),
        (P.table("rpn_table4"), 5, "for 10 clients and 10 classes, not for 5 and 10"),
    ):
        with pytest.raises(ValueError, match=says):
            part(labels, clients, rng())
    for make in (
        lambda: P.dirichlet(0.5, min_samples=0),
        lambda: P.shards(1.5),
        lambda: P.main_class(0),
    ):
        with pytest.raises(ValueError):
            make()

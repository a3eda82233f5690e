"""Rotation, low rank, sketches, powers of two, three values, random positions, zipped floats: what
their papers promise, and both directions of a round. (What all coders have in common, and damaged
bytes: test_coders.py.)"""

import itertools
import math
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlearn as fl
from fedlearn import WireError
from fedlearn.methods.feddyn import Sum
from fedlearn.parts import (
    Arrival,
    Code,
    Context,
    Feedback,
    HeavyHitters,
    KeptSteps,
    Lossy,
    Momentum,
    Replay,
    Update,
    WarmStart,
)
from fedlearn.wire import (
    EDEN,
    CountSketch,
    LowRank,
    Natural,
    RandomK,
    Schema,
    TernGrad,
    TopK,
    Uniform,
    Zipped,
)
from fedlearn.wire.rotated import centroids, hadamard, rotate, rotate_back

SEEDS = st.integers(0, 2**32)


def dice(seed):
    return torch.Generator().manual_seed(seed)


def heavy(shape, seed=0):
    """Normal times exp(normal)."""
    g = dice(seed)
    return torch.randn(shape, generator=g) * torch.randn(shape, generator=g).exp()


def through(coder, x, seed=0):
    """What arrives."""
    draws = [dice(seed)] if coder.stochastic or coder.shared else []
    section = coder.encode(x, *draws)
    return coder.decode(section, x.shape, *([dice(seed)] if coder.shared else []))


def error(decoded, x):
    return float((decoded - x).double().square().sum() / x.double().square().sum())


def unbiased(coder, x, draws, deviations):
    """Is the mean of so many draws within five standard errors of x? ``deviations``: at most that
    of one draw of each entry."""
    mean = sum(through(coder, x, i).double() for i in range(draws)) / draws
    return ((mean - x).abs() <= 5 * deviations / draws**0.5 + 1e-6 * x.abs().max()).all()


# ---- rotation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 8, 64, 128, 1024])
def test_the_hadamard_transform_is_that_of_the_textbook(n):
    i = np.arange(n)
    ones = np.array([[bin(a & b).count("1") for b in i] for a in i])
    H = torch.from_numpy((-1.0) ** ones / math.sqrt(n)).float()
    x = heavy((n,))
    torch.testing.assert_close(hadamard(x), H @ x, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 3000), SEEDS)
def test_a_rotation_keeps_lengths_and_can_be_undone(n, seed):
    x = heavy((n,), seed)
    y = rotate(x, dice(seed))
    assert math.isclose(float(y.double().norm()), float(x.double().norm()), rel_tol=1e-4)
    torch.testing.assert_close(
        rotate_back(y, dice(seed)), x, rtol=1e-4, atol=1e-4 * float(x.norm())
    )


@pytest.mark.parametrize("n", [256, 300, 500, 511])
def test_a_rotation_spreads_a_single_entry_over_all(n):
    for place in (0, n // 2, n - 1):
        y = rotate(torch.zeros(n).index_fill_(0, torch.tensor([place]), 1), dice(3))
        assert y.abs().max() < 0.5 and (y != 0).float().mean() > 0.3


def test_the_levels_are_those_of_max():
    """Max (1960), table 1; and the distortions that the docstring's errors come from."""
    assert np.allclose(centroids(1), [-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)])
    assert np.allclose(centroids(2), [-1.510, -0.4528, 0.4528, 1.510], atol=1e-3)
    x = np.linspace(-9, 9, 400_001)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    for bits, D in ((1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)):
        q = centroids(bits).astype(float)
        near = q[np.searchsorted((q[1:] + q[:-1]) / 2, x)]
        assert math.isclose(density @ (x - near) ** 2, D, rel_tol=1e-3)


@given(st.integers(1, 2000), SEEDS, st.integers(1, 8))
def test_eden_sends_just_its_bits_and_never_shortens_what_arrives(n, seed, bits):
    """S is chosen so that <x^, x> = ||x||^2, for every rotation."""
    x, coder = heavy((n,), seed), EDEN(bits)
    assert len(coder.encode(x, dice(1))) == 4 + math.ceil(n * bits / 8)
    arrived = through(coder, x, 1).double()
    assert math.isclose(float(arrived @ x.double()), float(x.double().square().sum()), rel_tol=1e-3)


@pytest.mark.parametrize(
    "bits, bound", [(1, math.pi / 2 - 1), (2, 0.1331), (3, 0.0358), (4, 0.00959)]
)
@pytest.mark.parametrize("n", [2**14, 20_000, 30_000])
def test_the_error_of_eden_is_that_of_its_levels(bits, bound, n):
    assert math.isclose(error(through(EDEN(bits), heavy((n,))), heavy((n,))), bound, rel_tol=0.08)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("kind", ["heavy", "one entry", "all equal"])
def test_the_mean_of_eden_comes_as_near_as_an_unbiased_one(bits, kind):
    """The error of a mean of m draws is 1/m of that of one, if there is no bias."""
    x, m = (
        {"heavy": heavy((1000,)), "all equal": torch.ones(1000)}.get(kind, torch.eye(1000)[7]),
        300,
    )
    mean = sum(through(EDEN(bits), x, i).double() for i in range(m)) / m
    one = np.mean([error(through(EDEN(bits), x, i), x) for i in range(20)])
    assert error(mean, x) < 1.5 * one / m


@pytest.mark.parametrize("n, low, high", [(2, 0.3, 0.75), (4, 0.2, 0.45), (16, 0, 0.05)])
def test_the_mean_of_eden_is_off_for_very_few_entries(n, low, high):
    """As its docstring says; less than the noise that a mean of so many draws still has."""
    draws, x = 800, torch.tensor([-2.315, -1.133]) if n == 2 else heavy((n,), 3)
    mean = sum(through(EDEN(), x, i).double() for i in range(draws)) / draws
    noise = (math.pi / 2 - 1) / draws
    assert low < max(error(mean, x) - noise, 1e-9) ** 0.5 < high


# ---- rounding at random --------------------------------------------------------------------------


@given(st.integers(0, 300), SEEDS)
def test_natural_takes_one_of_the_two_powers_around(n, seed):
    x = heavy((n,), seed) * 10.0 ** torch.randint(-42, 30, (n,), generator=dice(seed))
    back = through(Natural(), x).double().numpy()
    section = Natural().encode(x, dice(0))
    assert len(section) == n + math.ceil(n / 8)
    fraction = np.frexp(np.abs(back[back != 0]))[0]
    assert (fraction == 0.5).all() and (back * x.numpy() >= 0).all()
    size = np.abs(x.double().numpy())
    normal = size >= 2.0**-126
    assert (np.abs(back)[normal] < 2 * size[normal] * (1 + 1e-12)).all()
    assert (np.abs(back)[normal] > size[normal] / 2).all()
    assert np.isin(np.abs(back)[~normal], [0, 2.0**-126]).all()


def test_natural_is_unbiased_with_an_error_of_an_eighth_at_most():
    x = heavy((500,))
    assert unbiased(Natural(), x, 2000, x.abs() / 8**0.5)
    found = np.mean([error(through(Natural(), x, i), x) for i in range(200)])
    assert 0.06 < found < 0.125
    worst = torch.full((2000,), 4 / 3)  # E (x^ - x)^2 = (x - 1)(2 - x) is x^2 / 8 there
    worst = np.mean([error(through(Natural(), worst, i), worst) for i in range(50)])
    assert math.isclose(worst, 1 / 8, rel_tol=0.03)


@given(st.integers(0, 300), SEEDS, st.sampled_from([0.5, 2.5, None]))
def test_terngrad_has_three_values_and_five_of_them_a_byte(n, seed, clip):
    x, coder = heavy((n,), seed), TernGrad(clip)
    section, back = coder.encode(x, dice(0)), through(coder, x).numpy()
    assert len(section) == (4 + math.ceil(n / 5) if n else 0)
    if not n:
        return
    s = struct.unpack("<f", section[:4])[0]
    rms = float(x.double().square().mean().sqrt())
    assert math.isclose(s, min(float(x.abs().max()), (clip or math.inf) * rms), rel_tol=1e-5)
    assert np.isin(back, np.array([0, s, -s], np.float32)).all() and (back * x.numpy() >= 0).all()
    for i, byte in enumerate(section[4:]):
        digits = [byte // 3**j % 3 for j in range(5)]
        own = [{0: 0, 1: 1, -1: 2}[int(v)] for v in np.sign(back[5 * i : 5 * i + 5])]
        assert digits == own + [0] * (5 - len(own))
    assert (np.abs(back[np.abs(x.numpy()) >= s]) > 0).all()  # what is cut is sure


def test_terngrad_without_cutting_is_unbiased():
    x = heavy((200,))
    s = x.abs().max()
    assert unbiased(TernGrad(None), x, 2000, (x.abs() * (s - x.abs())).sqrt())
    assert not unbiased(TernGrad(1.0), x, 2000, (x.abs() * (s - x.abs())).sqrt())


# ---- random positions ----------------------------------------------------------------------------


@given(st.integers(0, 400), SEEDS, st.sampled_from([1e-6, 1 / 32, 0.3, 1.0]), st.booleans())
def test_random_positions_cost_no_byte(n, seed, ratio, whole):
    x, coder = heavy((n,), seed), RandomK(ratio, unbiased=not whole)
    k = math.ceil(ratio * n)
    section, back = coder.encode(x, dice(seed)), through(coder, x, seed)
    assert len(section) == 4 * k and back.count_nonzero() == k
    kept = back != 0
    torch.testing.assert_close(back[kept], x[kept] * (1 if whole else n / max(k, 1)))


def test_random_k_is_unbiased_or_contracts():
    x, n, k = heavy((160,)), 160, 20
    assert unbiased(RandomK(1 / 8), x, 4000, x.abs() * (n / k - 1) ** 0.5)
    plain, times = RandomK(1 / 8, unbiased=False), 500
    errors = np.array([error(through(plain, x, i), x) for i in range(times)])
    assert abs(errors.mean() - (1 - k / n)) < 5 * errors.std() / times**0.5
    assert not unbiased(plain, x, 4000, x.abs() * (n / k - 1) ** 0.5)


# ---- low rank ------------------------------------------------------------------------------------


def best(x, rank):
    """The error of the best matrix of this rank: the singular values beyond it."""
    s = torch.linalg.svdvals(x.double().reshape(len(x), -1))
    return float(s[rank:].square().sum() / s.square().sum())


@given(st.integers(2, 30), st.integers(1, 30), st.integers(1, 4), SEEDS)
def test_low_rank_is_a_projection(n, m, rank, seed):
    """||M - P P^T M||^2 = ||M||^2 - ||P P^T M||^2, and nothing of this rank is nearer than the
    SVD."""
    x, coder = heavy((n, m, 3), seed), LowRank(rank)
    section, back = coder.encode(x, dice(seed)), through(coder, x, seed)
    if rank * (n + 3 * m) >= 3 * n * m:
        assert torch.equal(back, x) and len(section) == 4 * x.numel()
        return
    assert len(section) == 4 * rank * (n + 3 * m)
    lost, kept = error(back, x), float(back.double().square().sum() / x.double().square().sum())
    assert math.isclose(lost + kept, 1, rel_tol=1e-4) and best(x, rank) - 1e-5 <= lost <= 1


@given(st.integers(1, 4), SEEDS)
def test_what_has_low_rank_arrives_whole(rank, seed):
    x = torch.randn(30, rank, generator=dice(seed)) @ torch.randn(
        rank, 40, generator=dice(seed + 1)
    )
    torch.testing.assert_close(through(LowRank(rank), x), x, rtol=1e-3, atol=1e-4)


def context(shape, memory, t=1):
    task = fl.tasks.classification("digits", 2, train=20, test=10)
    zero = {"w": torch.zeros(shape)}
    return Context(task, t, 0, zero, zero, memory, Schema({"w": shape}))


def test_a_warm_start_comes_to_the_best_matrix_of_its_rank():
    x, memory = {"w": heavy((24, 60))}, {}
    link = fl.Uplink(Update(), WarmStart(2), Lossy(LowRank(2)))
    errors = []
    for t in range(1, 60):
        ctx = context((24, 60), memory, t)
        arrived = link.decode(link.encode(x, ctx), ctx)["w"]
        errors.append(error(arrived, x["w"]))
    cold = np.mean([error(through(LowRank(2), x["w"], i), x["w"]) for i in range(20)])
    least = best(x["w"], 2)
    assert abs(errors[-1] - least) < 1e-3 < cold - least and errors[-1] < errors[0]
    assert list(memory) == ["Q/w"] and memory["Q/w"].shape == (60, 2)


@pytest.mark.parametrize(
    "steps",
    [
        (WarmStart(4), Lossy(LowRank(2))),
        (WarmStart(2), Lossy(EDEN())),
        (WarmStart(2),),
        (WarmStart(2), Feedback(), Lossy(LowRank(2))),  # which would not hear what was cut off
        (WarmStart(2), WarmStart(2), Lossy(LowRank(2))),
    ],
    ids=repr,
)
def test_a_warm_start_comes_just_before_its_coder(steps):
    says = r"WarmStart\(rank=.\) comes just before Lossy\(LowRank\(rank=.\)\), not "
    for link in (fl.Uplink, fl.Downlink):
        with pytest.raises(ValueError, match=says):
            link(*[Update()] * (link is fl.Uplink), *steps)


@pytest.mark.parametrize("rank", [0, -1])
def test_a_warm_start_has_a_rank_of_the_coder(rank):
    with pytest.raises(ValueError, match="The rank is a whole number from 1"):
        WarmStart(rank)


def test_what_diverges_does_not_stay_in_a_warm_start():
    memory = {}
    link = fl.Uplink(Update(), WarmStart(1), Lossy(LowRank(1)))
    with pytest.raises(fl.errors.Diverged):
        link.encode({"w": torch.full((9, 9), math.nan)}, context((9, 9), memory))
    assert not memory


# ---- count sketch --------------------------------------------------------------------------------


@given(st.integers(1, 500), SEEDS, st.integers(1, 7))
def test_the_sum_of_sketches_is_the_sketch_of_the_sum(n, seed, rows):
    coder, g = CountSketch(1 / 4, rows), np.random.default_rng(seed)
    x, y = g.normal(size=(2, n))
    assert np.allclose(coder.table(x) + coder.table(y), coder.table(x + y))
    merged = CountSketch(1 / 4, rows, merged=True)
    got = merged.decode(merged.encode(torch.from_numpy(x).float()), (n,))
    assert got.shape == (rows, math.ceil(n / 4 / rows))
    assert np.allclose(got, coder.table(x.astype(np.float32)), atol=1e-4)


def test_heavy_hitters_are_found_in_the_noise():
    """Charikar et al.: an estimate is off by more than 3 ||x|| / sqrt(cells) in a row with
    probability of at most 1/9, and the median over rows far more rarely."""
    n, coder = 20_000, CountSketch(1 / 4, 5, 2.5e-4)
    x = np.random.default_rng(0).normal(size=n)
    places = np.random.default_rng(1).choice(n, 5, replace=False)
    x[places] = 60 * np.sign(x[places])
    index, values = coder.recover(coder.table(x), n)
    assert set(index) == set(places)
    limit = 3 * np.linalg.norm(x) / coder.cells(n) ** 0.5
    assert (np.abs(values - x[places[np.argsort(places)]]) < limit).all()
    every, values = CountSketch(1 / 4, 5, 1.0).recover(coder.table(x), n)
    rare = np.mean(np.abs(values - x[every]) > limit)
    assert rare < 0.01 < np.mean(np.abs(values - x[every]) > limit / 6)


def test_the_server_of_sketches_keeps_what_it_did_not_say():
    """With momentum 0: S_e = S(sum of updates - sum of steps); Algorithm 1 line by line."""
    sketch = CountSketch(1 / 2, 3, 1 / 16, merged=True)
    server, shape = HeavyHitters(sketch, momentum=0.5), (10, 24)
    task = fl.tasks.classification("digits", 2, train=20, test=10)
    state, memory, u, e = {"w": torch.zeros(shape), "b": torch.zeros(4)}, {}, 0, 0
    schema = Schema({"w": shape, "b": (4,)})
    for t in range(1, 4):
        sent = [heavy(shape, 10 * t + k) for k in range(2)]
        came = [
            Arrival(
                k, 10, {"w": sketch.decode(sketch.encode(x), shape), "b": torch.full((4,), 1.0)}
            )
            for k, x in enumerate(sent)
        ]
        ctx = Context(task, t, memory=memory, schema=schema, participants=(0, 1))
        ctx.sends = lambda k: ["w", "b"]
        new = server.aggregate(state, came, ctx)
        u = 0.5 * u + sum(sketch.table(x.double().numpy().ravel()) for x in sent) / 2
        e = e + u
        index, values = sketch.recover(e, 240)
        D = np.zeros(240)
        D[index] = values
        e = e - sketch.table(D)
        assert np.allclose((new["w"] - state["w"]).ravel(), D, atol=1e-4)
        assert torch.equal(new["b"], state["b"] + 1) and np.count_nonzero(D) == 15
        state = new
    assert np.allclose(memory["sketch/e/w"], e, atol=1e-4)


def test_a_server_adds_only_sketches_like_its_own():
    sketch = CountSketch(merged=True)
    link = fl.Uplink(Update(), Lossy(sketch))
    plain = fl.methods.fedavg()
    for server in (fl.parts.Mean(), HeavyHitters(CountSketch(1 / 4, merged=True))):
        with pytest.raises(ValueError, match="needs (updates|tensors coded by)"):
            plain.but(uplink=link, server=server)
    with pytest.raises(ValueError, match="needs tensors coded by"):
        plain.but(server=HeavyHitters(sketch))
    for wrong in (lambda: HeavyHitters(CountSketch()), lambda: HeavyHitters(sketch, 1.0)):
        with pytest.raises(ValueError, match="not"):
            wrong()
    task = fl.tasks.classification("digits", 2, train=20, test=10)
    for code in (Lossy(sketch, whole=1), Code(sketch)):  # other tensors come as sketches
        with pytest.raises(ValueError, match="needs tensors coded by Lossy.*whole=2"):
            plain.but(uplink=fl.Uplink(Update(), code), server=HeavyHitters(sketch))
    one = plain.but(
        uplink=fl.Uplink(Update(), Lossy(sketch, whole=1)), server=HeavyHitters(sketch, whole=1)
    )
    assert math.isfinite(fl.run(one, task, rounds=1).loss[0])
    for step in (Feedback(), Momentum(), Sum()):
        with pytest.raises(ValueError, match="CountSketch.* decodes to a table"):
            fl.Uplink(Update(), step, Lossy(sketch))


# ---- zipped floats -------------------------------------------------------------------------------


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=200))
def test_zipped_loses_nothing(values):
    x = torch.tensor(values)
    assert through(Zipped(), x).numpy().tobytes() == x.numpy().tobytes()  # -0 as well


def test_zipped_comes_near_the_entropy_of_exponents_and_below_zlib():
    x = heavy((100_000,))
    counts = np.bincount(np.frexp(x.numpy())[1] + 200)
    p = counts[counts > 0] / len(x)
    bound = 24 - p @ np.log2(p)
    bits = 8 * len(Zipped().encode(x)) / len(x)
    assert bound <= bits < 1.01 * bound < 8 * len(zlib.compress(x.numpy().tobytes(), 9)) / len(x)


def test_a_bomb_is_not_unpacked():
    bomb = bytes(30) + zlib.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="just 10 exponents"):
            Zipped().decode(bomb, (10,))
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


# ---- in a round ----------------------------------------------------------------------------------

CHAINS = {
    "EDEN": (Lossy(EDEN(2)),),
    "DRIVE, feedback": (Feedback(), Lossy(EDEN())),
    "natural": (Lossy(Natural()),),
    "TernGrad": (Lossy(TernGrad()),),
    "random-k": (Lossy(RandomK(1 / 4)),),
    "random-k, feedback": (Feedback(), Lossy(RandomK(1 / 4, unbiased=False))),
    "PowerSGD": (Feedback(), WarmStart(2), Lossy(LowRank(2))),
    "sketch": (Feedback(), Lossy(CountSketch())),
    "zipped": (Lossy(Zipped()),),
}


@pytest.fixture(scope="module")
def task():
    return fl.tasks.classification("digits", 3, train=120, test=60)


@pytest.mark.parametrize("steps", CHAINS.values(), ids=CHAINS)
def test_up_and_down_and_stacked(task, steps):
    """Up: fewer bytes than dense. Down: the steps of the server through the same chain. Stacked and
    one by one agree on bytes, and repeat themselves to the bit."""
    link = fl.Uplink(Update(), *steps)
    plain = fl.methods.fedavg()
    one_way = plain.but(uplink=link)
    both = one_way.but(downlink=Replay(link), server=KeptSteps(link))
    dense, up, down = (fl.run(m, task, rounds=3, batch_size=16) for m in (plain, one_way, both))
    assert (up.bytes_up < dense.bytes_up).all() and (up.bytes_down == dense.bytes_down).all()
    assert (down.bytes_up < dense.bytes_up).all() and down.bytes_down[1] < dense.bytes_down[1]
    for method, alone in ((one_way, up), (both, down)):
        again = fl.run(method, task, rounds=2, batch_size=16)
        stacked = fl.run(method, task, rounds=2, batch_size=16, engine="stacked")
        assert list(again.loss) == list(alone.loss[:2])
        assert abs(1 - stacked.bytes_up[-1] / again.bytes_up[-1]) < 0.01
        assert np.allclose(stacked.loss, again.loss, rtol=0.05)


def test_the_model_itself_may_come_down_coded(task):
    for coder in (EDEN(8), Natural(), Zipped(), Uniform(8)):
        method = fl.methods.fedavg().but(downlink=fl.Downlink(Lossy(coder)))
        history = fl.run(method, task, rounds=4, batch_size=16)
        assert history.bytes_down[0] < history.bytes_up[0] and history.loss[-1] < history.loss[0]


def test_fetchsgd_both_ways(task):
    sketch, top = (
        CountSketch(1 / 2, 5, 1 / 64, merged=True),
        fl.Uplink(Update(), Lossy(TopK(1 / 64))),
    )
    method = fl.methods.fedavg().but(
        uplink=fl.Uplink(Update(), Lossy(sketch)),
        downlink=Replay(top),
        server=KeptSteps(top, HeavyHitters(sketch)),
    )
    plain = method.but(downlink=fl.Downlink(), server=HeavyHitters(sketch))
    a, b = (fl.run(m, task, rounds=6, batch_size=16) for m in (method, plain))
    assert np.allclose(a.loss, b.loss)  # a step has 1/64 of entries: top-k loses nothing of it
    assert (a.bytes_down[1:] < b.bytes_down[1:] / 2).all()
    assert a.loss[-1] < fl.run(plain, task, rounds=1, batch_size=16).loss[0]


def test_another_client_and_another_round_have_another_rotation(task):
    link, x = fl.Uplink(Update(), Lossy(EDEN())), {"w": heavy((8, 8))}
    zero = {"w": torch.zeros(8, 8)}
    told = [
        bytes(link.encode(x, Context(task, t, k, zero, zero, {}, Schema({"w": (8, 8)})))["w"])
        for t, k in itertools.product((1, 2), (0, 1))
    ]
    assert len(set(told)) == 4

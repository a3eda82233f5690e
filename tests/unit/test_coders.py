"""The coders: what they decode to, how many bytes they need, and what damaged or hostile sections
may do."""

import importlib.util
import json
import math
import struct
import sys
import tracemalloc
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlearn import WireError
from fedlearn.errors import Diverged
from fedlearn.wire import (
    EDEN,
    QSGD,
    CountSketch,
    Dense,
    LowRank,
    Mask,
    Natural,
    Pooled,
    RandomK,
    Signs,
    SmartIdx,
    TernGrad,
    TopK,
    Uniform,
    Zipped,
    decode_positions,
    encode_positions,
)
from fedlearn.wire.sparse import how_many

SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 40), min_size=1, max_size=2).map(tuple),
    st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(1, 4)),
    st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(1, 7), st.integers(1, 3)),
)
SEEDS = st.integers(0, 2**32)
KINDS = st.sampled_from(["normal", "heavy", "ties", "zeros", "tiny", "constant"])
RATIOS = st.sampled_from([1e-6, 1 / 32, 0.3, 0.5, 0.8, 1.0])
CODERS = [
    TopK(0.2),
    TopK(0.7),
    TopK(0.2, "float16"),
    TopK(0.2, "sign"),
    Signs(),
    Signs(scaled=False),
    Uniform(),
    Uniform(5),
    Uniform(11),
    QSGD(),
    QSGD(5, 16),
    QSGD(5, None, entropy=True),
    Mask(),
    SmartIdx(0.2),
    SmartIdx(0.6),
    EDEN(),
    EDEN(3),
    Natural(),
    TernGrad(),
    RandomK(0.2),
    RandomK(0.7, unbiased=False),
    LowRank(),
    LowRank(1),
    CountSketch(),
    CountSketch(0.3, 2, 0.1),
    Zipped(),
]


def tensor(shape, seed=0, kind="normal"):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    return {
        "normal": x,
        "heavy": x * torch.randn(shape, generator=g).mul(4).exp(),
        "ties": x.round(),
        "zeros": torch.zeros(shape),
        "tiny": x * 1e-44,  # far below the smallest normal float32
        "constant": torch.full(shape, -0.3),
    }[kind]


def draws(needed, seed):
    return [torch.Generator().manual_seed(seed)] if needed else []


def encode(coder, x, seed=0):
    return coder.encode(x, *draws(coder.stochastic or coder.shared, seed))


def decode(coder, section, shape, seed=0):
    return coder.decode(section, shape, *draws(coder.shared, seed))


def there_and_back(coder, x):
    section = encode(coder, x)
    back = decode(coder, memoryview(section), tuple(x.shape))
    assert back.shape == x.shape and back.dtype == torch.float32 and back.isfinite().all()
    return section, back


def mean_magnitude(values):
    return np.float32(np.abs(values.astype(np.float64)).sum() / len(values))


def signed(values, size):
    return np.array([-size if v < 0 else size for v in values], np.float32)


# ---- positions and the largest entries -----------------------------------------------------------


def bits_of(data):
    return [byte >> i & 1 for byte in data for i in range(8)]


def rice_bytes(values):
    """The least that any parameter needs."""
    unary = [int((values >> b).sum()) + len(values) for b in range(32)]
    return min((bits + 7) // 8 + (len(values) * b + 7) // 8 for b, bits in enumerate(unary))


@given(st.integers(0, 300), st.floats(0, 1), SEEDS)
def test_positions_follow_the_format_bit_by_bit(n, p, seed):
    chosen = np.random.default_rng(seed).random(n) < p
    data = encode_positions(np.flatnonzero(chosen), n)
    index, used = decode_positions(data + b"more", n)
    assert used == len(data) and index.tolist() == np.flatnonzero(chosen).tolist()

    count, head = struct.unpack_from("<IB", data)
    b, listed = head & 31, np.flatnonzero(chosen != (head >> 7))
    assert count == chosen.sum() and len(listed) <= n / 2
    stream, quotients = bits_of(data[5:]), []
    for _ in listed:
        quotients.append(stream.index(1))
        del stream[: quotients[-1] + 1]
    unary = (sum(quotients) + len(listed) + 7) // 8
    stream, at = bits_of(data[5 + unary :]), -1
    # the low bits: whole bytes first, plane by plane, then what is left
    planes = [
        np.array(stream[8 * len(listed) * i :][: 8 * len(listed)]).reshape(-1, 8)
        for i in range(b // 8)
    ]
    left = np.array(stream[8 * len(listed) * (b // 8) :][: len(listed) * (b % 8)]).reshape(
        len(listed), b % 8
    )
    for i, q in enumerate(quotients):
        low = [int(bit) for plane in [*planes, left] for bit in plane[i]]
        at += 1 + (q << b) + sum(bit << j for j, bit in enumerate(low))
        assert at == listed[i]
    gaps = np.diff(listed, prepend=-1) - 1
    assert len(data) == 5 + rice_bytes(gaps)


def test_positions_that_cluster_and_positions_far_apart():
    for index, n in (
        ([*range(500)], 10**6),
        ([0, 2**32 - 2], 2**32 - 1),
        ([7], 10**9),
        ([], 0),
        ([0], 1),
    ):
        data = encode_positions(np.array(index, np.int64), n)
        assert decode_positions(data, n)[0].tolist() == index
    assert len(encode_positions(np.arange(500), 10**6)) == 5 + 63  # one bit for each


@pytest.mark.parametrize("p", [0.001, 1 / 32, 0.1, 0.3, 0.5, 0.7, 0.97])
def test_random_positions_come_near_the_bound(p):
    n = 500_000
    index = np.flatnonzero(np.random.default_rng(0).random(n) < p)
    bound = (
        math.lgamma(n + 1) - math.lgamma(len(index) + 1) - math.lgamma(n - len(index) + 1)
    ) / math.log(2)
    assert bound < 8 * len(encode_positions(index, n)) < 1.05 * bound


@given(SHAPES, SEEDS, KINDS, RATIOS, st.sampled_from(["float32", "float16", "sign"]))
def test_the_largest_entries_survive(shape, seed, kind, ratio, values):
    x, n = tensor(shape, seed, kind), math.prod(shape)
    x = x.clamp(-6e4, 6e4)
    section, back = there_and_back(TopK(ratio, values), x)
    flat, k = x.flatten().numpy(), math.ceil(ratio * n)
    index = np.sort(np.argsort(-np.abs(flat), kind="stable")[:k])
    expected = np.zeros(n, np.float32)
    if values == "sign":
        expected[index] = signed(flat[index], mean_magnitude(flat[index])) if k else 0
    else:
        expected[index] = flat[index].astype(values)
    assert np.array_equal(back.flatten().numpy(), expected)
    size = {"float32": 4 * k, "float16": 2 * k, "sign": (4 + (k + 7) // 8) * (k > 0)}[values]
    assert len(section) == len(encode_positions(index, n)) + size
    assert torch.equal(there_and_back(TopK(ratio, values), back)[1], back)
    assert torch.equal(
        TopK(0.123, values).decode(section, shape), back
    )  # whatever ratio the receiver has


@pytest.mark.parametrize("percent", range(1, 101))
def test_the_ratio_is_rounded_up_and_float_error_is_not(percent):
    for n in (1, 3, 20, 99, 100, 432, 1000, 10_000):
        kept = -(-percent * n // 100)
        x = torch.arange(1.0, n + 1)
        assert how_many(percent / 100, n) == kept
        assert there_and_back(TopK(percent / 100), x)[1].count_nonzero() == kept
        assert len(encode(RandomK(percent / 100), x)) == 4 * kept
        assert CountSketch(percent / 100, 3).cells(n) == -(-percent * n // 300)


# ---- every entry in few bits ---------------------------------------------------------------------


@given(SHAPES, SEEDS, KINDS)
def test_signs(shape, seed, kind):
    x, n = tensor(shape, seed, kind), math.prod(shape)
    flat = x.flatten().numpy()
    section, back = there_and_back(Signs(), x)
    assert np.array_equal(back.flatten().numpy(), signed(flat, mean_magnitude(flat) if n else 0))
    assert len(section) == (4 + (n + 7) // 8 if n else 0)
    assert torch.equal(there_and_back(Signs(), back)[1], back)
    section, back = there_and_back(Signs(scaled=False), x)
    assert np.array_equal(back.flatten().numpy(), signed(flat, 1)) and len(section) == (n + 7) // 8


def test_the_sign_of_zero_is_plus():
    assert Signs(False).decode(
        Signs(False).encode(torch.tensor([0.0, -0.0, -1.0])), (3,)
    ).tolist() == [1, 1, -1]


@given(SHAPES, SEEDS, KINDS, st.integers(1, 16))
def test_uniform_takes_the_nearest_level(shape, seed, kind, bits):
    x, n = tensor(shape, seed, kind), math.prod(shape)
    with np.errstate(divide="raise", invalid="raise"):
        section, back = there_and_back(Uniform(bits), x)
    assert len(section) == (8 + (n * bits + 7) // 8 if n else 0)
    if not n:
        return
    low, step = (np.float64(v) for v in struct.unpack_from("<ff", section))
    x, back = x.double().numpy(), back.double().numpy()
    exact = (x.max() - x.min()) / (2**bits - 1)
    assert low == x.min() and exact <= step <= exact * (1 + 2**-23) + 2**-149
    levels = low + step * np.arange(2**bits)
    near = levels[np.minimum(np.rint((x - low) / (step or 1)).astype(int), 2**bits - 1)]
    assert np.array_equal(back, near.astype(np.float32))
    assert (np.abs(back - x) <= step / 2 + np.abs(x) * 2**-23 + 2**-149).all()
    if x.max() == x.min():
        assert np.array_equal(back, x)


def test_uniform_over_the_whole_range_of_float32():
    x = torch.tensor([-torch.finfo().max, 0, torch.finfo().max])
    torch.testing.assert_close(there_and_back(Uniform(16), x)[1], x, rtol=2e-5, atol=3e34)
    with pytest.raises(ValueError, match="too far apart"):
        Uniform(1).encode(x)


LEVELS, BUCKETS = (
    st.sampled_from([1, 2, 3, 7, 127, 300, 2**15 - 1]),
    st.sampled_from([1, 16, 512, None]),
)


@given(SHAPES, SEEDS, KINDS.filter(lambda kind: kind != "tiny"), LEVELS, BUCKETS, st.booleans())
def test_qsgd_rounds_to_one_of_two_levels(shape, seed, kind, levels, bucket, entropy):
    x, n = tensor(shape, seed, kind), math.prod(shape)
    coder = QSGD(levels, bucket, entropy)
    section, back = there_and_back(coder, x)
    buckets = math.ceil(n / (bucket or max(n, 1)))
    width = 1 + math.ceil(math.log2(levels + 1))
    fixed = 4 * buckets + (n * width + 7) // 8
    assert len(section) <= fixed + 1 if entropy else len(section) == fixed
    for i in range(buckets):
        part = slice(i * bucket, (i + 1) * bucket) if bucket else slice(None)
        a, b = x.flatten()[part].double().numpy(), back.flatten()[part].double().numpy()
        norm = np.float64(np.float32(np.sqrt((a**2).sum())))
        assert struct.unpack_from("<f", section, 4 * i)[0] == norm
        if norm:
            exact, found = levels * np.abs(a) / norm, levels * np.abs(b) / norm
            slack = 4e-7 * levels  # what float32 resolves
            assert (np.abs(found - np.rint(found)) < slack).all() and (
                np.abs(found - exact) < 1 + slack
            ).all()
            assert (b * a >= 0).all()
        else:
            assert not b.any()


@pytest.mark.parametrize("entropy", [False, True])
def test_qsgd_is_unbiased(entropy):
    x, draws, generator = tensor((200,)), 3000, torch.Generator().manual_seed(1)
    coder = QSGD(3, 64, entropy)
    total = sum(coder.decode(coder.encode(x, generator), (200,)).double() for _ in range(draws))
    norms = torch.cat([part.norm().expand(len(part)) for part in x.split(64)])
    spread = norms / 3 / 2 / draws**0.5  # no standard error is larger
    assert ((total / draws - x).abs() < 5 * spread).all()


@given(SEEDS)
def test_qsgd_keeps_subnormal_numbers_finite(seed):
    x = tensor((50,), seed, "tiny")
    assert (there_and_back(QSGD(), x)[1].abs() <= x.double().norm() + 1e-44).all()


def test_qsgd_in_range_code_comes_near_the_entropy():
    x = tensor((100_000,), kind="normal")
    plain, coded = encode(QSGD(), x), encode(QSGD(entropy=True), x)
    back = QSGD().decode(plain, x.shape)
    assert torch.equal(QSGD(entropy=True).decode(coded, x.shape), back)  # the same draws
    norms = np.frombuffer(plain, "<f4", 196)
    levels = np.rint(back.numpy() / norms.repeat(512)[:100_000] * 127)
    p = np.unique(levels, return_counts=True)[1] / 100_000
    assert 8 * (len(coded) - 4 * 196) < 1.02 * 100_000 * -(p @ np.log2(p))


# ---- masks ---------------------------------------------------------------------------------------

SHARES, TYPES = (
    st.sampled_from([0, 0.01, 0.2, 0.5, 0.99, 1]),
    st.sampled_from(["float", "bool", "long", "bfloat16"]),
)


@given(SHAPES, SEEDS, SHARES, TYPES)
def test_masks_come_back_whole(shape, seed, p, dtype):
    x = getattr(torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < p, dtype)()
    section, back = there_and_back(Mask(), x)
    assert torch.equal(back, x.float())
    assert len(section) <= 1 + (x.numel() + 7) // 8
    if len(x.unique()) < 2:
        assert len(section) == 1


@pytest.mark.parametrize("p", [0.001, 1 / 32, 0.1, 0.3, 0.5, 0.7, 0.97])
def test_masks_come_near_the_entropy(p):
    n = 200_000
    x = torch.rand(n, generator=torch.Generator().manual_seed(0)) < p
    q = x.double().mean().item()
    bound = -n * (q * math.log2(q) + (1 - q) * math.log2(1 - q))
    section, back = there_and_back(Mask(), x)
    assert torch.equal(back, x.float()) and 0.999 * bound < 8 * len(section) < 1.05 * bound


# ---- packages ------------------------------------------------------------------------------------


def packages(x, ratio):
    """[kernels, entries] -> what belongs to which package, the patterns' frequencies and one kernel
    for each."""
    chosen = np.zeros(x.size, bool)
    chosen[np.argsort(-np.abs(x.reshape(-1)), kind="stable")[: math.ceil(ratio * x.size)]] = True
    chosen = chosen.reshape(x.shape)
    rows = [tuple(row) for row in np.where(x < 0, -1, 1) * chosen]
    half = x.shape[1] / 2
    seen = Counter(row for row, c in zip(rows, chosen, strict=True) if 0 < c.sum() <= half)
    member = {name: np.zeros_like(chosen) for name in ("kernel", "pattern", "individual")}
    for i, row in enumerate(rows):
        if chosen[i].sum() > half:
            member["kernel"][i] = True
        else:
            member["pattern" if seen[row] > 1 else "individual"][i] = chosen[i]
    return member, {row: count for row, count in seen.items() if count > 1}, rows


def check_smartidx(x, ratio):
    section, back = there_and_back(SmartIdx(ratio), x)
    x = x.numpy().reshape(-1, math.prod(x.shape[2:]))
    member, shared, rows = packages(x, ratio)
    expected = np.zeros_like(x)
    for m in member.values():
        if m.any():
            expected[m] = signed(x[m], mean_magnitude(x[m]))
    assert np.array_equal(back.numpy().reshape(x.shape), expected)

    whole, same = (np.flatnonzero(member[name].any(1)) for name in ("kernel", "pattern"))
    size = len(encode_positions(whole, len(x))) + 4
    size += len(encode_positions(np.flatnonzero(member["individual"]), x.size))
    size += sum(4 + (m.sum() + 7) // 8 for m in (member["kernel"], member["individual"]) if m.any())
    if shared:
        by_frequency = sorted(shared, key=shared.get, reverse=True)
        numbers = np.array([by_frequency.index(rows[i]) for i in same])
        size += 4 + (len(shared) * x.shape[1] + 7) // 8 + (np.count_nonzero(by_frequency) + 7) // 8
        size += len(encode_positions(same, len(x))) + 1 + rice_bytes(numbers)
    assert len(section) == size
    return member


@given(SHAPES, SEEDS, KINDS, RATIOS)
def test_smartidx_of_any_shape(shape, seed, kind, ratio):
    x = tensor(shape, seed, kind)
    if math.prod(shape[2:]) > 1 and x.numel():
        check_smartidx(x, ratio)
    else:
        section, back = there_and_back(SmartIdx(ratio), x)
        assert not x.numel() or section == TopK(ratio, "sign").encode(x)


@pytest.mark.parametrize(
    "shape, ratio", [((16, 32, 3, 3), 1 / 6), ((16, 32, 5), 0.3), ((40, 60, 7, 7), 0.02)]
)
def test_smartidx_sends_three_packages(shape, ratio):
    x = tensor(shape)
    x[0, :3] *= 100  # kernels that are selected whole
    assert all(m.any() for m in check_smartidx(x, ratio).values())


def test_smartidx_gains_where_kernels_are_selected_whole():
    x = tensor((64, 64, 3, 3))
    x *= 1 + 9 * (torch.rand(64, 64, 1, 1, generator=torch.Generator().manual_seed(1)) < 1 / 32)
    assert len(SmartIdx().encode(x)) < 0.6 * len(TopK(values="sign").encode(x))


# ---- any layout, any device, nothing infinite ----------------------------------------------------


@pytest.mark.parametrize("coder", CODERS, ids=repr)
def test_layout_in_memory_does_not_matter(coder):
    x = tensor((8, 6, 3, 3))
    x = (x > 0).float() if isinstance(coder, Mask) else x
    section = encode(coder, x)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    for same in (x.to(memory_format=torch.channels_last), turned, x.requires_grad_()):
        assert encode(coder, same) == section
    assert encode(coder, x.double()) == section
    if torch.cuda.is_available():
        assert encode(coder, x.cuda()) == section


@pytest.mark.parametrize("coder", CODERS, ids=repr)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_not_coded(coder, bad):
    with pytest.raises(
        ValueError, match="zeros and ones" if isinstance(coder, Mask) else "NaN or infinite"
    ):
        encode(coder, torch.tensor([1.0, bad, 0.0]))


def test_what_does_not_fit_is_not_coded():
    assert there_and_back(TopK(1, "float16"), torch.tensor([65519.0]))[1] == 65504
    with pytest.raises(ValueError, match="zeros and ones"):
        Mask().encode(torch.tensor([0.0, 0.5]))
    large = torch.full((4, 4), 3.4e38)
    large[::2] *= -1
    for coder, says in (
        (Dense(16), "half precision"),
        (TopK(1, "float16"), "half precision"),
        (QSGD(), "norm"),
        (Uniform(1), "step"),
        (Natural(), "power of two"),
        (EDEN(), "scale"),
        (LowRank(1), "factors"),
        (CountSketch(1 / 16, 1), "sketch"),
    ):
        with pytest.raises(Diverged, match=says):
            encode(coder, large)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "coder", [Dense(), Dense(16), Pooled(), Pooled(16, 0.1), *CODERS], ids=repr
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_floats_of_any_width_are_coded_as_float32(coder, dtype):
    """And what float32 cannot hold is refused: by the sender, or, where it only copies floats, by
    the receiver."""
    x = tensor((6, 4, 3, 3), 1).to(dtype)
    x = (x > 0).to(dtype) if isinstance(coder, Mask) else x
    assert bytes(encode(coder, x)) == bytes(encode(coder, x.float()))
    large = x.double() * 1e300
    with pytest.raises((Diverged, WireError) if isinstance(coder, Dense) else ValueError):
        decode(coder, encode(coder, large), large.shape)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("coder", [Dense(16), Pooled(16), *CODERS], ids=repr)
def test_the_largest_float32_is_coded_or_called_diverged(coder):
    x = torch.full((4, 4), 3.4e38)
    with suppress(Diverged):
        x = torch.ones_like(x) if isinstance(coder, Mask) else x
        assert decode(coder, encode(coder, x), x.shape).isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        *(lambda r=r: TopK(r) for r in (0, -1, 1.01, float("nan"))),
        lambda: TopK(values="int8"),
        lambda: SmartIdx(0),
        *(lambda b=b: Uniform(b) for b in (0, 17, 8.0, True)),
        lambda: QSGD(0),
        lambda: QSGD(bucket=2**31),
        lambda: QSGD(2**15),
        lambda: QSGD(8, 0),
        *(lambda b=b: EDEN(b) for b in (0, 9)),
        *(lambda c=c: TernGrad(c) for c in (0, -1)),
        *(lambda r=r: RandomK(r) for r in (0, 1.01)),
        lambda: LowRank(0),
        lambda: CountSketch(0),
        lambda: CountSketch(rows=0),
        lambda: CountSketch(ratio=2),
    ],
)
def test_settings_out_of_range(make):
    with pytest.raises(ValueError, match="not|no form"):
        make()


def test_a_step_that_is_a_float32_is_not_made_longer():
    levels = torch.arange(256.0)
    assert torch.equal(there_and_back(Uniform(8), levels)[1], levels)


# ---- bytes from outside --------------------------------------------------------------------------

HEAD = struct.pack("<IB", 2, 0)  # two positions, Rice parameter 0
BAD = {
    "nothing at all": (TopK(), b"", (4,), "too early"),
    "more positions than entries": (
        TopK(),
        struct.pack("<IB", 9, 0),
        (8,),
        "9 positions came for 8",
    ),
    "no such Rice parameter": (TopK(), struct.pack("<IB", 2, 0x40), (8,), "no parameter"),
    "positions end too early": (TopK(), HEAD + b"\x01", (8,), "ends too early"),
    "positions past the tensor, in the unary part": (
        TopK(),
        HEAD + b"\x00\x00\x03" + bytes(8),
        (8,),
        "runs past",
    ),
    "positions past the tensor, in the low bits": (
        TopK(),
        struct.pack("<IB", 1, 4) + b"\x01\x09" + bytes(4),
        (8,),
        "runs past",
    ),
    "positions past the tensor, by a little": (
        TopK(),
        HEAD + b"\x80\x01" + bytes(8),
        (8,),
        "runs past",
    ),
    "position padding": (TopK(), HEAD + b"\x07" + bytes(8), (8,), "not zero"),
    "padding of the low bits": (
        TopK(),
        struct.pack("<IB", 1, 1) + b"\x01\x02" + bytes(4),
        (8,),
        "not zero",
    ),
    "too few values": (TopK(), HEAD + b"\x03" + bytes(7), (8,), "1 bytes too early"),
    "too many values": (TopK(), HEAD + b"\x03" + bytes(9), (8,), "1 bytes too many"),
    "NaN value": (TopK(), HEAD + b"\x03" + struct.pack("<ff", 1, math.nan), (8,), "NaN"),
    "infinite half": (
        TopK(values="float16"),
        HEAD + b"\x03" + struct.pack("<ee", 1, math.inf),
        (8,),
        "NaN or inf",
    ),
    "negative magnitude": (
        TopK(values="sign"),
        HEAD + b"\x03" + struct.pack("<fB", -1, 0),
        (8,),
        "negative",
    ),
    "sign padding": (Signs(), struct.pack("<fB", 1, 8), (3,), "not zero"),
    "scale not finite": (Signs(), struct.pack("<fB", math.inf, 0), (3,), "infinite"),
    "a sign too many": (Signs(False), b"\0\0", (8,), "too many"),
    "step not finite": (Uniform(), struct.pack("<ff", 0, math.nan) + b"\0", (1,), "NaN"),
    "negative step": (Uniform(), struct.pack("<ff", 0, -1) + b"\0", (1,), "negative"),
    "level padding": (Uniform(3), struct.pack("<ff", 0, 1) + b"\x08", (1,), "not zero"),
    "something for nothing": (Uniform(3), bytes(8), (0,), "too many"),
    "negative norm": (QSGD(), struct.pack("<f", -1) + b"\0", (1,), "negative"),
    "level out of range": (QSGD(), struct.pack("<f", 1) + b"\xff", (1,), "above 127"),
    "no such code of levels": (
        QSGD(entropy=True),
        struct.pack("<fB", 1, 2) + bytes(5),
        (1,),
        "does not exist",
    ),
    "counts too wide": (
        QSGD(entropy=True),
        struct.pack("<fBHHB", 1, 1, 0, 1, 32) + bytes(4),
        (1,),
        "does not exist",
    ),
    "histogram of too few": (
        QSGD(entropy=True),
        struct.pack("<fBHHBB", 1, 1, 0, 1, 8, 2),
        (3,),
        "2 levels came for 3",
    ),
    "histogram above all levels": (
        QSGD(entropy=True),
        struct.pack("<fBHHBB", 1, 1, 255, 1, 8, 3),
        (3,),
        "above 127",
    ),
    "levels that are not the histogram's": (
        QSGD(entropy=True),
        struct.pack("<fBHHBBB", 1, 1, 0, 2, 8, 1, 2) + b"\xff\xff\xff\xff",
        (3,),
        "range-coded",
    ),
    "levels coded in part of a word": (
        QSGD(entropy=True),
        struct.pack("<fBHHBBB", 1, 1, 0, 2, 8, 1, 2) + b"\xff",
        (3,),
        "range-coded",
    ),
    "histogram of nothing": (
        QSGD(entropy=True),
        struct.pack("<BHHBB", 1, 0, 1, 8, 0),
        (0,),
        "0 levels came for 0",
    ),
    "no range code at all": (
        Mask(),
        b"\x03" + struct.pack("<I", 500) + b"\xff" * 160,
        (1000,),
        "no valid code",
    ),
    "no such form of mask": (Mask(), b"\x04", (3,), "no form 4"),
    "all ones and more": (Mask(), b"\x01\x00", (3,), "too many"),
    "mask padding": (Mask(), b"\x02\x08", (3,), "not zero"),
    "more ones than entries": (
        Mask(),
        b"\x03" + struct.pack("<I", 4) + bytes(4),
        (3,),
        "cannot have 4 ones",
    ),
    "other ones than announced": (
        Mask(),
        b"\x03" + struct.pack("<I", 1) + bytes(4),
        (3,),
        "range-coded",
    ),
    "infinite scale": (EDEN(), struct.pack("<f", math.inf) + b"\0", (8,), "infinite"),
    "rotated padding": (EDEN(), struct.pack("<f", 1) + b"\x08", (3,), "not zero"),
    "exponent of infinity": (Natural(), b"\xff\0", (1,), "exponent of 255"),
    "the sign of zero": (Natural(), b"\0\1", (1,), "a zero has a sign"),
    "five entries too large": (TernGrad(), struct.pack("<f", 1) + b"\xf3", (5,), "such a byte"),
    "ternary padding": (TernGrad(), struct.pack("<f", 1) + b"\x09", (2,), "such a byte"),
    "one value for two positions": (RandomK(0.5), bytes(4), (4,), "too early"),
    "a factor too many": (LowRank(1), bytes(4 * 7), (3, 3), "4 bytes too many"),
    "a factor not finite": (LowRank(1), struct.pack("<6f", *[0] * 5, math.nan), (3, 3), "NaN"),
    "half a table": (CountSketch(1 / 2, 2), bytes(12), (8,), "4 bytes too early"),
    "no zlib at all": (Zipped(), bytes(12), (2,), "damaged"),
    "exponents of three": (Zipped(), bytes(6) + zlib.compress(bytes(3)), (2,), "just 2"),
    "exponents of one": (Zipped(), bytes(6) + zlib.compress(bytes(1)), (2,), "just 2"),
    "zipped infinity": (Zipped(), bytes(3) + zlib.compress(b"\xff"), (1,), "infinite"),
    "no such Rice parameter of patterns": (
        SmartIdx(),
        struct.pack("<IBIfBB", 0, 0, 1, 1, 1, 0) + HEAD + b"\x03\x20\x03" + bytes(13),
        (2, 1, 3),
        "no p",
    ),
    "more patterns than pairs of kernels": (
        SmartIdx(),
        struct.pack("<IBI", 0, 0, 2),
        (3, 1, 3),
        "2 shared patterns",
    ),
}


@pytest.mark.parametrize("coder, section, shape, says", BAD.values(), ids=BAD)
def test_bad_sections(coder, section, shape, says):
    with pytest.raises(WireError, match=says):
        decode(coder, section, shape)


def test_a_pattern_number_must_be_among_those_sent():
    """Two patterns, four kernels whose numbers add up to no more than allowed, one of them 2."""
    start = struct.pack("<IBIf", 0, 0, 2, 1) + b"\x11\x00"  # no kernels; patterns +.. and .+.
    where = struct.pack("<IB", 4, 0x80)  # all four kernels
    end = struct.pack("<IB", 0, 0)  # no single entries
    good, bad = b"\x00\x1b", b"\x00\x39"  # 0 0 1 0 and 0 2 0 0 in unary
    assert SmartIdx().decode(start + where + good + end, (4, 1, 3)).reshape(4, 3).argmax(
        1
    ).tolist() == [0, 0, 1, 0]
    with pytest.raises(WireError, match="not among the 2"):
        SmartIdx().decode(start + where + bad + end, (4, 1, 3))


@pytest.mark.parametrize("coder", CODERS, ids=repr)
@given(st.data())
def test_any_bytes_decode_or_are_refused(coder, data):
    shape = data.draw(SHAPES)
    x = tensor(shape, data.draw(SEEDS))
    section = bytearray(encode(coder, (x > 0.8).float() if isinstance(coder, Mask) else x))
    damage = data.draw(st.sampled_from(["random", "cut", "flip", "flip the head", "longer"]))
    if damage == "random":
        section = data.draw(st.binary(max_size=60))
    elif damage == "cut":
        section = section[: data.draw(st.integers(0, len(section)))]
    elif damage == "longer":
        section += data.draw(st.binary(min_size=1, max_size=9))
    elif section:
        last = len(section) - 1 if damage == "flip" else min(len(section) - 1, 12)
        for _ in range(data.draw(st.integers(1, 3))):
            section[data.draw(st.integers(0, last))] ^= data.draw(st.integers(1, 255))
    try:
        back = decode(coder, memoryview(section), shape)
    except WireError as error:
        assert str(error).endswith(".") and "\n" not in str(error)
    else:
        assert damage != "longer" and back.shape == x.shape and back.isfinite().all()


@pytest.mark.parametrize("coder", CODERS, ids=repr)
def test_nothing_is_cut_or_added_unnoticed(coder):
    x = tensor((12, 10, 3, 3))
    section = encode(coder, (x > 1).float() if isinstance(coder, Mask) else x)
    for size in range(len(section)):
        with pytest.raises(WireError):
            decode(coder, section[:size], x.shape)
    for more in (b"\0", bytes(4), b"\x01\x02\x03\x04"):
        with pytest.raises(WireError):
            decode(coder, section + more, x.shape)


@pytest.mark.parametrize(
    "count, parameter, size, n",
    [(2**32 - 1, 0, 20, 2**40), (5, 0x80, 20, 2**40), (5, 31, 20, 2**40), (5, 0, 10**7, 1000)],
)
def test_no_more_memory_than_shape_and_section_justify(count, parameter, size, n):
    section = struct.pack("<IB", count, parameter) + bytes(size)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_positions(section, n)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


# ---- the benchmark -------------------------------------------------------------------------------


def test_the_benchmark_runs(monkeypatch, tmp_path, capsys):
    file = Path(__file__).resolve().parents[1] / "benchmarks" / "coders.py"
    spec = importlib.util.spec_from_file_location("coders_benchmark", file)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    out = tmp_path / "coders.json"
    monkeypatch.setattr(sys, "argv", ["coders.py", "--quick", "--out", str(out)])
    threads = torch.get_num_threads()
    try:
        program.main()
    finally:
        torch.set_num_threads(threads)
    result, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert result["settings"]["repeats"] == 2 and list(result["rows"]) == list(program.CODERS)
    assert all(name in printed for name in program.CODERS)
    for row in result["rows"].values():
        bits = sum(part["bits"] for part in row["parts"].values())
        assert abs(bits - 8 * row["bytes"] / result["settings"]["entries"]) < 1e-9

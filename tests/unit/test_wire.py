"""The wire: envelope, coders, and what damaged or hostile bytes may do (nothing but raise
``WireError``)."""

import math
import struct
import tracemalloc
import zlib
from contextlib import suppress
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlearn as fl
from fedlearn import WireError
from fedlearn.core.federation import OneByOne, one_round
from fedlearn.errors import Diverged
from fedlearn.wire.base import SharedRandomness, Stochastic
from fedlearn.wire.dense import Dense, Pooled, Whole
from fedlearn.wire.masks import Mask
from fedlearn.wire.message import DOWN, UP, FixedMessage, Message, Schema, pack, unpack
from fedlearn.wire.quantised import QSGD, Signs, TernGrad, Uniform
from fedlearn.wire.rotated import EDEN
from fedlearn.wire.smartidx import SmartIdx
from fedlearn.wire.sparse import TopK, decode_positions

SEEDS = st.integers(0, 2**32)
SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 40), min_size=1, max_size=2).map(tuple),
    st.tuples(
        st.integers(0, 9), st.integers(0, 6), st.integers(1, 7), st.integers(1, 3)
    ),
)
KINDS = st.sampled_from(["normal", "heavy", "ties", "zeros", "tiny", "constant"])
# of numbers that every machine draws and adds up alike
EXACT = (
    torch.randint(-2000, 2000, (8, 6, 3, 3), generator=torch.Generator().manual_seed(1))
    / 256
)
# coder -> CRC-32 of what it makes of these, then of what arrives; None where last bits are the
# machine's
CODERS = {
    Dense(): 0x92E8003F,
    Dense(16): 0x0455293F,
    Pooled(): None,
    Pooled(16, 0.1): None,
    TopK(0.2): 0x00E809F5,
    TopK(0.7): 0x71C234A8,
    TopK(0.2, "float16"): 0x09599639,
    TopK(0.2, "sign"): 0xC7919601,
    Signs(): 0x72780688,
    Signs(False): 0x99586047,
    Uniform(): 0x36E5706B,
    Uniform(11): 0x6F1EF549,
    QSGD(): 0x704AA91F,
    QSGD(5, 100, True): 0xF08490CF,
    Mask(): 0x789B2F6B,
    SmartIdx(0.2): 0x2271C474,
    TernGrad(): 0x156FA7A4,
    Whole(2): 0x1FFF6CB5,
    EDEN(): None,
}


def dice(seed):
    return torch.Generator().manual_seed(seed)


def tensor(shape, seed=0, kind="normal"):
    g = dice(seed)
    x = torch.randn(shape, generator=g)
    return {
        "normal": x,
        "heavy": x * torch.randn(shape, generator=g).exp(),
        "ties": x.round(),
        "zeros": torch.zeros(shape),
        "tiny": x * 1e-44,  # far below the smallest normal float32
        "constant": torch.full(shape, -0.3),
    }[kind]


def input_of(coder, x):
    """A tensor that the coder takes."""
    return {Mask: (x > 0.3).float(), Whole: x.abs().floor()}.get(type(coder), x)


def encode(coder, x, seed=0):
    draws = [dice(seed)] if isinstance(coder, Stochastic | SharedRandomness) else []
    return bytes(coder.encode(x, *draws))


def decode(coder, section, shape, seed=0):
    draws = [dice(seed)] if isinstance(coder, SharedRandomness) else []
    return coder.decode(section, shape, *draws)


def through(coder, x, seed=0):
    """What arrives."""
    back = decode(coder, memoryview(encode(coder, x, seed)), tuple(x.shape), seed)
    assert back.shape == x.shape
    assert back.isfinite().all()
    return back


# ---- the envelope --------------------------------------------------------------------------------

SCHEMA = Schema({"a": (3, 2), "b": (4,), "k": (2, 3, 3, 3)}, frozenset({"b"}), "test")


def message():
    sections = {n: Dense().encode(tensor(shape)) for n, shape in SCHEMA.shapes.items()}
    return pack(Message(UP, 3, 5, 17, sections), SCHEMA)


def received(data, schema=SCHEMA, kind=UP, round=3, client=5):
    return unpack(data, schema, kind=kind, round=round, client=client)


def test_a_message_of_version_2_stays_what_it_is():
    """Bytes that an older copy sent are read: whoever changes them changes the version as well."""
    message = FixedMessage(Schema({"w": (2,), "b": (1,)}))
    tensors = {"w": torch.tensor([1.0, -2.0]), "b": torch.tensor([0.5])}
    data = bytes.fromhex(
        "464c524e" "02" "01" "f37de3ad27013813" "03000000" "07000000" "0b000000"  # the envelope
        "c008000000040000000000803f000000c00000003f" "b32e2ac8"  # lengths, numbers; checksum
    )  # fmt: skip
    assert message.write(UP, 3, 7, tensors, samples=11) == data
    read = message.read(UP, 3, 7, data, samples=11)
    assert all(torch.equal(read[name], t) for name, t in tensors.items())


def sealed(data):
    """What an attacker who knows the format would send: any content, a fitting checksum."""
    return data + struct.pack("<I", zlib.crc32(data[:26], zlib.crc32(data[26:])))


DAMAGED = {
    "cut": (lambda m: m[:-1], "checksum"),
    "another file": (lambda m: b"\x80\x04" + m[2:], "fedlearn"),
    "another version": (lambda m: m[:4] + b"\x09" + m[5:], "version 9"),
    "a tensor too many": (
        lambda m: sealed(m[:26] + b"\xf0" + m[27:-4]),
        "does not have",
    ),
    "a byte too many": (lambda m: sealed(m[:-4] + b"\0"), "add up"),
}


@pytest.mark.parametrize("change, noun", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(change, noun):
    with pytest.raises(WireError, match=noun):
        received(change(message()))


def test_foreign_messages_are_refused():
    for other in ({"kind": DOWN}, {"round": 4}, {"client": 6}):
        with pytest.raises(WireError, match="Expected kind"):
            received(message(), **other)
    longer = SCHEMA.shapes | {"b": (5,)}
    for schema in (
        Schema(SCHEMA.shapes, SCHEMA.buffers, "x"),
        Schema(SCHEMA.shapes, frozenset(), "test"),
        Schema(longer, SCHEMA.buffers, "test"),
    ):
        with pytest.raises(WireError, match="another model"):
            received(message(), schema)


def test_no_more_memory_than_the_schema_allows():
    limit = (
        26 + 4 + 69 * 2 + 8 * 103
    )  # of any coder: eight bytes an entry and 64 a tensor
    schema = Schema({"a": (10, 10), "b": (3,)})
    large = bytes(20_000_000)
    positions = [
        struct.pack("<IB", count, b) + bytes(size)
        for count, b, size in (
            (2**32 - 1, 0, 20),
            (5, 0x80, 20),
            (5, 31, 20),
            (5, 0, 10**7),
        )
    ]
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=f"20000000 .* {limit}"):
            received(large, schema)
        with pytest.raises(WireError, match="20000000 bytes came"):
            Dense().decode(memoryview(large), (3, 2))
        for data in positions:
            with pytest.raises(WireError):
                decode_positions(data, 1000 if len(data) > 100 else 2**40)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    assert schema.limit == limit


def test_a_fixed_message_is_whole_or_empty_and_each_tensor_has_its_coder():
    schema = Schema({"index": (5,), "H": (5, 2, 3)})
    fixed = FixedMessage(schema, {"index": Whole(), "H": Dense(16)})
    sent = {"index": torch.tensor([4, 0, 3, 1, 2]), "H": tensor((5, 2, 3))}
    data = fixed.write(UP, 3, 2, sent, samples=5)
    got = fixed.read(UP, 3, 2, data, samples=5)
    assert torch.equal(got["H"], sent["H"].half().float())
    assert torch.equal(got["index"], sent["index"])
    with pytest.raises(WireError, match="Client 2 has 6 images"):
        fixed.read(UP, 3, 2, data, samples=6)
    del sent["H"]
    with pytest.raises(WireError, match="H is missing"):
        fixed.read(UP, 1, 0, fixed.write(UP, 1, 0, sent))
    empty = fixed.write(DOWN, 1, 0, {})
    assert fixed.read(DOWN, 1, 0, empty) == {}
    with pytest.raises(WireError, match="index, H is missing"):
        FixedMessage(schema, whole=True).read(DOWN, 1, 0, empty)


# ---- what all coders have in common --------------------------------------------------------------


@pytest.mark.parametrize("coder", CODERS, ids=repr)
def test_sections_stay_what_they_are(coder):
    """And do not depend on layout in memory, type of float, or gradients."""
    x = input_of(coder, EXACT)
    section = encode(coder, x)
    checksum = CODERS[coder]
    crc = zlib.crc32(through(coder, x).numpy().tobytes(), zlib.crc32(section))
    assert checksum in (None, crc), f"{coder!r}: {crc:#010X}"
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    for variant in (turned, x.double(), x.clone().requires_grad_()):
        assert encode(coder, variant) == section or isinstance(
            coder, Pooled
        )  # sums round
    assert encode(coder, x.half()) == encode(coder, x.half().float())


@pytest.mark.parametrize("coder", CODERS, ids=repr)
@pytest.mark.parametrize("bad", [float("nan"), -float("inf"), 1e300])
def test_what_is_not_finite_is_refused_by_the_sender_or_by_the_reader_of_copies(
    coder, bad
):
    x = torch.tensor([[1.0, bad, 0.0]], dtype=torch.float64)
    with pytest.raises(WireError if coder in (Dense(), Pooled()) else ValueError):
        decode(coder, encode(coder, x), (1, 3))


OUT_OF_RANGE = [
    (TopK, (1.01,)),
    (TopK, (math.nan,)),
    (TopK, (0.5, "int8")),
    (Uniform, (8.5,)),
    (QSGD, (2**15,)),
    (Pooled, (32, math.nan)),
]


@pytest.mark.parametrize("coder, values", OUT_OF_RANGE)
def test_settings_out_of_range(coder, values):
    with pytest.raises(ValueError, match=r"\.$"):
        coder(*values)


@pytest.mark.parametrize("coder", CODERS, ids=repr)
def test_nothing_is_cut_or_added_unnoticed(coder):
    x = input_of(coder, tensor((3, 4, 3, 3)))
    section = encode(coder, x)
    for size in range(len(section)):
        with pytest.raises(WireError):
            decode(coder, section[:size], x.shape)
    for extra in (b"\0", b"\x01\x02\x03\x04"):
        with pytest.raises(WireError):
            decode(coder, section + extra, x.shape)


@pytest.mark.parametrize("coder", CODERS, ids=repr)
@settings(max_examples=40)
@given(st.data())
def test_any_bytes_decode_or_are_refused(coder, data):
    shape = data.draw(SHAPES)
    x = input_of(coder, tensor(shape, data.draw(SEEDS), data.draw(KINDS)))
    with suppress(Diverged):
        through(coder, x)
        section = bytearray(encode(coder, x))
        damage = data.draw(st.sampled_from(["random", "cut", "flip", "flip the head"]))
        if damage == "random":
            section = data.draw(st.binary(max_size=60))
        elif damage == "cut":
            section = section[: data.draw(st.integers(0, len(section)))]
        elif section:
            last = len(section) - 1 if damage == "flip" else min(len(section) - 1, 12)
            for _ in range(data.draw(st.integers(1, 3))):
                section[data.draw(st.integers(0, last))] ^= data.draw(
                    st.integers(1, 255)
                )
        with suppress(WireError):
            back = decode(coder, memoryview(section), shape)
            assert back.shape == x.shape
            assert back.isfinite().all()


# ---- what each coder is for ----------------------------------------------------------------------


def packed(form, *values):
    return struct.pack(f"<{form}", *values)


HEAD, ENTROPY = (
    packed("IB", 2, 0),
    QSGD(entropy=True),
)  # two positions, Rice parameter 0
BAD = [
    (TopK(), packed("IB", 2, 0x40), (8,), "no parameter"),
    (TopK(), HEAD + b"\x00\x00\x03" + bytes(8), (8,), "runs past"),  # in the unary part
    (TopK(), HEAD + b"\x03" + packed("ff", 1, math.nan), (8,), "NaN"),
    (Signs(), packed("fB", 1, 8), (3,), "not zero"),
    (Uniform(), packed("ffB", 0, -1, 0), (1,), "negative"),
    (QSGD(), packed("fB", 1, 255), (1,), "above 127"),
    (ENTROPY, packed("fB", 1, 2) + bytes(5), (1,), "does not exist"),
    (Mask(), b"\x03" + packed("I", 500) + b"\xff" * 160, (1000,), "no valid code"),
    (TernGrad(), packed("fB", 1, 243), (5,), "such a byte"),
    (Pooled(threshold=1.0), b"\x10", (3, 1, 2, 2), "does not have"),
    (SmartIdx(), packed("IBI", 0, 0, 3), (4, 1, 3), "3 shared patterns"),
]


@pytest.mark.parametrize("coder, section, shape, noun", BAD)
def test_bad_sections(coder, section, shape, noun):
    with pytest.raises(WireError, match=noun):
        decode(coder, section, shape)


# ---- messages of every method --------------------------------------------------------------------

HEAD_BYTES = 26
SLOW = ("fed_gkt", "split_learning")  # their servers train in every round


class Altered(OneByOne):
    """Clients whose answers somebody alters; each of them trains once."""

    def __init__(self, side):
        super().__init__(side)
        self.genuine = {}
        self.alter = None

    def exchange(self, t, question, clients, write):
        for k in clients:
            data = write(k)
            key = (question, k, data)
            if key not in self.genuine:
                [(_, answer)] = super().exchange(
                    t, question, [k], lambda k, data=data: data
                )
                self.genuine[key] = (answer, self.new.get(k))
            answer, self.new[k] = self.genuine[key]
            yield k, self.alter(answer) if question == "train" else answer


@cache
def federation(name):
    """A method's server and clients on a few digits."""
    task = fl.tasks.classification("digits", 3, train=60, test=20)
    method = fl.methods.get(name)
    settings = fl.Settings(batch_size=16)
    return method.server_side(task, settings), Altered(
        method.client_side(task, settings)
    )


def damage(data, draw):
    """What was done, and the bytes that came of it."""
    kinds = ["nothing", "noise", "cut", "flip", "head", "body", "longer body"]
    kind = draw(st.sampled_from(kinds))
    if kind == "nothing":
        return kind, data
    if kind == "noise":
        return kind, draw(st.binary(max_size=300))
    if kind == "cut":
        return kind, data[: draw(st.integers(0, max(0, len(data) - 1)))]
    body = data[:-4]
    places = {"head": (0, HEAD_BYTES - 1), "body": (HEAD_BYTES, len(body) - 1)}
    first, last = places.get(kind, (0, len(data) - 1))
    if kind == "longer body":
        return kind, sealed(body + draw(st.binary(min_size=1, max_size=9)))
    altered = bytearray(data if kind == "flip" else body)
    if first <= last:
        altered[draw(st.integers(first, last))] ^= draw(st.integers(1, 255))
    return kind, bytes(altered) if kind == "flip" else sealed(bytes(altered))


@pytest.mark.parametrize(
    "name", [name for name in fl.methods.METHODS if name != "local"]
)
def test_altered_answers_are_refused_or_decode_to_finite_numbers(name):
    """Only a body with a fitting checksum can be a lie that nobody sees."""
    server, clients = federation(name)
    start = server.start()

    @settings(max_examples=6 if name in SLOW else 15, deadline=None)
    @given(st.data())
    def check(data):
        kinds = []

        def alter(answer):
            kind, altered = damage(answer, data.draw)
            kinds.append("nothing" if altered == answer else kind)
            return altered

        clients.alter = alter
        clients.memories = {}
        clients.new = {}
        try:
            state, row = one_round(server, clients, 1, start, {})
        except WireError:  # the method cannot go on without a client
            assert name in SLOW
            return
        assert all(
            t.isfinite().all() for t in state.weights.values() if t.is_floating_point()
        )
        if name not in SLOW:  # these ask a client several times
            for k, kind in zip(row["clients"], kinds, strict=True):
                assert kind in ("nothing", "body", "head") or k in row["refused"], kind
                assert kind != "nothing" or k not in row["refused"]

    check()


@pytest.mark.parametrize(
    "name", [n for n in fl.methods.METHODS if n not in (*SLOW, "local")]
)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_an_altered_broadcast_is_refused_or_trained_from(name, data):
    server, clients = federation(name)
    message, _ = server.send(1, 0, server.start())
    kind, altered = damage(message, data.draw)
    ctx = None
    with suppress(WireError):
        ctx = clients.side.download(1, 0, altered, {})
    if altered == message or kind in ("noise", "cut", "flip", "longer body"):
        assert (ctx is not None) == (altered == message)
    if ctx is not None:
        assert all(t.isfinite().all() for t in ctx.start.values())

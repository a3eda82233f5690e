"""The wire: round trips, sizes, and what damaged or hostile bytes may do (nothing but raise
``WireError``)."""

import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlearn as fl
from fedlearn import WireError
from fedlearn.errors import Diverged
from fedlearn.parts import Code, Context, Update
from fedlearn.wire import DOWN, UP, Dense, FixedMessage, Message, Pooled, Schema, pack, unpack

SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 9), min_size=1, max_size=2).map(tuple),
    st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(1, 3), st.integers(1, 3)),
)


def tensor(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_message_of_version_2_stays_what_it_is():
    """Bytes that were kept or sent by an older copy are read: whoever changes them changes the
    version as well."""
    message = FixedMessage(Schema({"w": (2,), "b": (1,)}))
    tensors = {"w": torch.tensor([1.0, -2.0]), "b": torch.tensor([0.5])}
    data = bytes.fromhex(
        "464c524e" "02" "01" "f37de3ad27013813" "03000000" "07000000" "0b000000"  # the envelope
        "c008000000040000000000803f000000c00000003f" "b32e2ac8"  # lengths, numbers; checksum
    )  # fmt: skip
    assert message.write(UP, 3, 7, tensors, samples=11) == data
    read = message.read(UP, 3, 7, data, samples=11)
    assert all(torch.equal(read[name], t) for name, t in tensors.items())


@given(SHAPES, st.integers(0, 2**32))
def test_dense_32_loses_nothing(shape, seed):
    t = tensor(shape, seed)
    section = Dense().encode(t)
    assert len(section) == 4 * t.numel()
    back = Dense().decode(section, shape)
    assert back.shape == t.shape and torch.equal(back, t)


@given(SHAPES, st.integers(0, 2**32))
def test_dense_16_rounds_to_half(shape, seed):
    t = tensor(shape, seed)
    section = Dense(16).encode(t)
    assert len(section) == 2 * t.numel()
    assert torch.equal(Dense(16).decode(section, shape), t.half().float())


@given(SHAPES, st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 3.0, 1e9]))
def test_pooled_is_the_mean_of_each_kernel(shape, seed, threshold):
    t = tensor(shape, seed)
    coder = Pooled(threshold=threshold)
    back = coder.decode(coder.encode(t), shape)
    assert back.shape == t.shape
    if t.dim() < 3:
        assert torch.equal(back, t)
        return
    expected = t.mean((2, 3), keepdim=True).expand(shape)
    if threshold:
        small = t.abs().flatten(1).sum(1) < threshold
        expected = torch.where(small[:, None, None, None], 0.0, expected)
    torch.testing.assert_close(back, expected)


@pytest.mark.parametrize("threshold", [0.0, 1e-9])
def test_kernels_of_one_and_of_three_dimensions_are_pooled_too(threshold):
    coder = Pooled(threshold=threshold)
    for shape in ((4, 3, 5), (4, 3, 2, 3, 4)):
        x = torch.randn(shape)
        section = coder.encode(x)
        mean = x.flatten(2).mean(2)
        assert len(section) == 4 * 12 + (threshold > 0)  # a bit for each of the filters
        decoded = coder.decode(section, shape).flatten(2)
        torch.testing.assert_close(decoded, mean[..., None].expand_as(decoded))


def test_pooled_sizes():
    t = tensor((20, 7, 5, 5))
    assert len(Pooled().encode(t)) == 4 * 20 * 7
    assert (
        len(Pooled(threshold=1e9).encode(t)) == 3
    )  # one bit for each of the 20 filters, and nothing kept


def test_what_is_decoded_can_be_written_to():
    back = Dense().decode(Dense().encode(tensor((3, 2))), (3, 2))
    back += 1


SCHEMA = Schema({"a": (3, 2), "b": (4,), "k": (2, 3, 3, 3)}, frozenset({"b"}), "test")


def message(kind=UP, names=("a", "b", "k"), value=None):
    sections = {
        n: Dense().encode(tensor(SCHEMA.shapes[n]) if value is None else value) for n in names
    }
    return pack(Message(kind, 3, 5, 17, sections), SCHEMA)


def test_round_trip_of_a_message():
    got = unpack(message(), SCHEMA, kind=UP, round=3, client=5)
    assert (got.kind, got.round, got.client, got.samples) == (UP, 3, 5, 17)
    assert list(got.sections) == ["a", "b", "k"]
    assert torch.equal(Dense().decode(got.sections["a"], (3, 2)), tensor((3, 2)))


@pytest.mark.parametrize("names", [(), ("b",), ("a", "k")])
def test_tensors_may_stay_at_home(names):
    assert tuple(unpack(message(names=names), SCHEMA, kind=UP, round=3, client=5).sections) == names


def test_unknown_tensor_is_not_packed():
    with pytest.raises(ValueError, match="Not in the schema: zz"):
        pack(Message(UP, 1, 1, 1, {"zz": b""}), SCHEMA)


@pytest.mark.parametrize("tensors", [1, 10, 200, 1000])
def test_envelope_is_small(tensors):
    """At most 1 KiB or 1 % of the message, whichever is larger."""
    schema = Schema({f"layer.{i}.weight": (64, 8) for i in range(tensors)})
    sections = {n: bytes(64 * 8 * 4) for n in schema.shapes}
    whole = len(pack(Message(UP, 1, 0, 1, sections), schema))
    assert whole - tensors * 64 * 8 * 4 <= max(1024, whole / 100)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: b"", "shorter than its envelope"),
        (lambda m: m[:20], "shorter than its envelope"),
        (lambda m: m[:29], "shorter than its envelope"),
        (lambda m: m[:30], "checksum"),
        (lambda m: m[:-1], "checksum"),
        (lambda m: m + b"\0", "checksum"),
        (lambda m: b"\x80\x04" + m[2:], "not a fedlearn message"),
        (lambda m: m[:4] + b"\x09" + m[5:], "version 9"),
        (lambda m: m[:40] + bytes([m[40] ^ 1]) + m[41:], "checksum"),
    ],
)
def test_damage_is_named(change, sentence):
    with pytest.raises(WireError, match=sentence):
        unpack(change(message()), SCHEMA, kind=UP, round=3, client=5)


def test_foreign_messages_are_refused():
    other = Schema(dict(SCHEMA.shapes), SCHEMA.buffers, "another coder")
    with pytest.raises(WireError, match="another model, method or coder"):
        unpack(message(), other, kind=UP, round=3, client=5)
    for expected in ({"kind": DOWN}, {"round": 4}, {"client": 6}):
        with pytest.raises(WireError, match="Expected kind"):
            unpack(message(), SCHEMA, **({"kind": UP, "round": 3, "client": 5} | expected))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad):
    t = tensor((3, 2))
    t[1, 1] = bad
    for coder in (Dense(), Dense(16), Pooled()):
        with pytest.raises((WireError, Diverged), match="NaN(,| or) infinite"):
            coder.decode(coder.encode(t), (3, 2))


def test_settings_that_make_no_sense():
    with pytest.raises(ValueError, match="16 or 32 bits"):
        Dense(8)
    for threshold in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="threshold"):
            Pooled(threshold=threshold)


def with_checksum(data):
    """What an attacker who knows the format would send: any content, a fitting checksum."""
    return data + struct.pack("<I", zlib.crc32(data[:26], zlib.crc32(data[26:])))


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 2))
def test_hostile_bodies_behind_a_right_head(body, cut):
    head = message()[: 26 + cut]
    for coder in (Dense(), Pooled(), Pooled(threshold=0.5)):
        try:
            got = unpack(with_checksum(head + body), SCHEMA, kind=UP, round=3, client=5)
            for name, section in got.sections.items():
                assert coder.decode(section, SCHEMA.shapes[name]).shape == SCHEMA.shapes[name]
        except WireError:
            pass


def test_decoding_allocates_no_more_than_the_schema(monkeypatch):
    """A section of the wrong size is refused before anything of its claimed size exists."""
    with pytest.raises(WireError, match="4000000 bytes came"):
        Dense().decode(memoryview(bytes(4_000_000)), (3, 2))


class Louder(Pooled):
    """Replaces one function of its parent; the list forms that it inherits must not win."""

    def decode(self, section, shape):
        return 3 * super().decode(section, shape)


class Quieter(Dense):
    def encode(self, tensor):
        return super().encode(tensor / 2)


def test_a_subclass_that_replaces_one_function_is_obeyed():
    tensors = {"w": torch.ones(2, 3, 3, 3), "b": torch.ones(2)}
    start = {name: torch.zeros_like(t) for name, t in tensors.items()}
    schema = Schema({name: tuple(t.shape) for name, t in tensors.items()})
    task = fl.tasks.classification("digits", 2, train=20, test=10)
    ctx = Context(task, 1, 0, start, start, schema=schema)
    for coder, factor in ((Louder(), 3), (Quieter(), 0.5), (Pooled(), 1)):
        link = fl.Uplink(Update(), Code(coder))
        alone = link.decode(link.encode(tensors, ctx), ctx)
        assert all(torch.equal(alone[name], factor * t) for name, t in tensors.items())
        down = fl.Downlink(Code(coder))
        got = down.undo(down.read(down.encode(tensors, ctx), ctx), ctx)
        assert all(torch.equal(got[name], factor * t) for name, t in tensors.items())


def test_a_message_longer_than_its_schema_allows_is_refused_before_memory_is_taken():
    import tracemalloc

    schema = Schema({"a": (10, 10), "b": (3,)})
    data = bytes(20_000_000)
    tracemalloc.start()
    with pytest.raises(
        WireError, match=f"20000000 bytes is longer than the {schema.limit} that the schema allows"
    ):
        unpack(data, schema, kind=UP, round=1, client=0)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert schema.limit < 1500 and Schema({"a": (10, 10, 10), "b": (3,)}).limit > 9 * 8 * 103

"""Messages of tensors of known shapes, whole or empty; whole numbers on the wire; and what an
optimiser keeps of its state between two messages."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlearn as fl
from fedlearn.parts import SGD, Adam, lasting, recalled
from fedlearn.wire import DOWN, UP, Dense, FixedMessage, Message, Schema, Whole, pack

SHAPES = {"index": (5,), "H": (5, 2, 3), "z": (5, 4)}
SCHEMA = Schema(SHAPES, frozenset(), "test")
CODERS = {"index": Whole(4), "H": Dense(16)}
LETTER = FixedMessage(SCHEMA, CODERS)


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "index": torch.randperm(5, generator=generator),
        "H": torch.randn(5, 2, 3, generator=generator),
        "z": torch.randn(5, 4, generator=generator),
    }


def test_there_and_back_each_by_its_coder():
    x = tensors()
    data = LETTER.write(UP, 3, 2, x, samples=5)
    assert len(data) == 26 + 1 + 4 * 3 + 4 * 5 + 2 * 30 + 4 * 20 + 4
    got = LETTER.read(UP, 3, 2, data, samples=5)
    assert list(got) == list(x) and torch.equal(got["index"], x["index"])
    assert torch.equal(got["H"], x["H"].half().float()) and torch.equal(got["z"], x["z"])
    assert {n: t.dtype for n, t in got.items()} == {n: t.dtype for n, t in x.items()}
    assert all(not t.requires_grad for t in got.values())


def test_the_tensors_do_not_share_memory():
    """One of them may be kept for long, and must not keep the others' bytes alive."""
    got = LETTER.read(UP, 1, 0, LETTER.write(UP, 1, 0, tensors()))
    places = {t.untyped_storage().data_ptr() for t in got.values()}
    assert len(places) == 3
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in got.values())


def test_gradients_stay_where_they_are():
    H = torch.zeros(5, 2, 3, requires_grad=True) * 1
    data = LETTER.write(UP, 1, 0, tensors() | {"H": H})
    assert not LETTER.read(UP, 1, 0, data)["H"].requires_grad and H.requires_grad


def test_empty_unless_it_must_be_whole():
    empty = LETTER.write(DOWN, 1, 0, {})
    assert len(empty) == 26 + 1 + 4 and LETTER.read(DOWN, 1, 0, empty) == {}
    with pytest.raises(fl.WireError, match="client 0 is not whole: index, H, z is missing"):
        FixedMessage(SCHEMA, CODERS, whole=True).read(DOWN, 1, 0, empty)


@pytest.mark.parametrize("whole", [False, True])
def test_a_part_is_nothing(whole):
    x = tensors()
    sections = {n: LETTER.coder(n).encode(t) for n, t in x.items()}
    for left_out in x:
        some = {n: s for n, s in sections.items() if n != left_out}
        data = pack(Message(UP, 1, 0, 5, some), SCHEMA)
        with pytest.raises(fl.WireError, match=f"not whole: {left_out} is missing"):
            FixedMessage(SCHEMA, CODERS, whole).read(UP, 1, 0, data)


def test_it_must_be_the_message_expected():
    data = LETTER.write(UP, 3, 2, tensors(), samples=5)
    for kind, t, k in ((DOWN, 3, 2), (UP, 4, 2), (UP, 3, 1)):
        with pytest.raises(fl.WireError, match="Expected kind"):
            LETTER.read(kind, t, k, data)
    with pytest.raises(fl.WireError, match="Client 2 has 6 images, and sent 5"):
        LETTER.read(UP, 3, 2, data, samples=6)
    for other in (Schema(SHAPES, frozenset(), "other"), Schema(SHAPES | {"z": (5, 3)})):
        with pytest.raises(fl.WireError, match="another model, method or coder"):
            FixedMessage(other, CODERS).read(UP, 3, 2, data)
    for lie in (b"", data[:-1], data + b"\0", data * 9, bytes(200)):
        with pytest.raises(fl.WireError):
            LETTER.read(UP, 3, 2, lie)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_altered_bytes_are_noticed(at, noise):
    data = bytearray(LETTER.write(UP, 1, 0, tensors()))
    at %= len(data)
    before = bytes(data)
    data[at : at + len(noise)] = noise
    if bytes(data) != before:
        with pytest.raises(fl.WireError):
            LETTER.read(UP, 1, 0, bytes(data))


def test_values_that_are_not_finite_are_refused():
    x = tensors()
    for value in (torch.nan, torch.inf):
        x["z"][1, 2] = value
        data = LETTER.write(UP, 1, 0, x)
        with pytest.raises(fl.WireError, match="NaN or infinite"):
            LETTER.read(UP, 1, 0, data)


def test_a_tensor_outside_the_schema_is_a_mistake():
    with pytest.raises(ValueError, match="Not in the schema: more"):
        LETTER.write(UP, 1, 0, tensors() | {"more": torch.zeros(1)})


@given(
    st.sampled_from([1, 2, 4]).flatmap(
        lambda size: st.tuples(
            st.just(size), st.lists(st.integers(0, 2 ** (8 * size) - 1), max_size=20)
        )
    )
)
def test_whole_numbers(case):
    size, values = case
    coder, x = Whole(size), torch.tensor(values, dtype=torch.int64)
    data = bytes(coder.encode(x))
    assert data == b"".join(v.to_bytes(size, "little") for v in values)
    assert torch.equal(coder.decode(data, x.shape), x)
    if len(values) % 2 == 0:
        pairs = x.reshape(-1, 2)
        assert torch.equal(coder.decode(coder.encode(pairs), pairs.shape), pairs)
    for lie in (data + b"\0", data + bytes(size), data[1:]):
        if lie != data:
            with pytest.raises(fl.WireError, match="bytes came for a tensor"):
                coder.decode(lie, x.shape)


@pytest.mark.parametrize("values", [[70000, -1, 3], [65536.0], [-1], [0.5], [float("nan")]])
def test_what_does_not_fit_is_no_whole_number(values):
    with pytest.raises(ValueError, match="In 2 bytes go whole numbers"):
        Whole(2).encode(torch.tensor(values))
    with pytest.raises(ValueError, match="1, 2 or 4 bytes, not 3"):
        Whole(3)


def test_whole_numbers_of_a_view_and_without_entries():
    x = torch.arange(12).reshape(3, 4).T
    assert torch.equal(Whole(2).decode(Whole(2).encode(x), (4, 3)), x)
    assert Whole(2).decode(Whole(2).encode(torch.zeros(0, 7)), (0, 7)).shape == (0, 7)
    assert np.frombuffer(Whole(4).encode(torch.tensor(7)), "<u4").tolist() == [7]


@pytest.mark.parametrize("part", [SGD(0.1), SGD(0.1, momentum=0.9), Adam(0.01)], ids=repr)
def test_an_optimiser_goes_on_from_what_was_kept(part):
    """In one go, or with the state in a memory after each step: the same steps."""
    task = fl.tasks.classification("digits", 1, train=10)
    ctx = fl.parts.Context(task, 1)

    def steps(params, through_memory):
        state, memory = part.init(params, ctx), {}
        for seed in range(4):
            if through_memory:
                state = recalled(part.init(params, ctx), memory)
            grads = [
                torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)) for p in params
            ]
            before = {name: t.clone() for name, t in memory.items()}
            part.step(params, grads, state)
            if through_memory:  # which is another's: a step works on copies
                assert all(torch.equal(t, before[name]) for name, t in memory.items())
            memory = lasting(state)
            assert all(torch.is_tensor(t) for t in memory.values())
        return params

    one, other = (steps([torch.ones(3, 2), torch.ones(4)], how) for how in (False, True))
    assert all(torch.equal(p, q) for p, q in zip(one, other, strict=True))

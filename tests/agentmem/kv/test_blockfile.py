import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from agentmem.kv.blockfile import (
    BLOCK_TOKENS,
    NO_PARENT,
    TENSORS,
    BlockFileError,
    BlockHeader,
    chain_hash,
    chain_hashes,
    digest,
    header_bytes,
    parse,
    verify,
)

TOKENS = 3
SHAPE = (2, 2, TOKENS, 4)


def header(tokens: int = TOKENS) -> BlockHeader:
    return BlockHeader("print é", "ns", b"\x01" * 32, NO_PARENT, 256, tokens)


def good_file() -> bytes:
    tensors = {
        name: np.full(SHAPE, index, np.uint32 if name.endswith("weights") else np.float16)
        for index, name in enumerate(TENSORS)
    }
    return save(tensors, header().to_metadata())


GOOD = good_file()


def raw_header(data: bytes = GOOD) -> dict[str, Any]:
    return dict(json.loads(data[8 : header_bytes(data)]))


def with_header(raw: Any) -> bytes:
    """Return the good file with another header."""
    encoded = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    return struct.pack("<Q", len(encoded)) + encoded + GOOD[header_bytes(GOOD) :]


def refused(data: bytes) -> str:
    with pytest.raises(BlockFileError) as caught:
        parse(data, len(data))
    return caught.value.reason


def test_good_file() -> None:
    found, specs = parse(GOOD, len(GOOD))
    assert found == header()
    assert set(specs) == set(TENSORS)
    for index, name in enumerate(TENSORS):
        spec = specs[name]
        dtype = np.uint32 if name.endswith("weights") else np.float16
        values = np.frombuffer(GOOD[spec.start : spec.end], dtype).reshape(spec.shape)
        assert spec.shape == SHAPE
        assert (values == index).all()


def test_the_header_is_enough_to_parse() -> None:
    prefix = GOOD[: header_bytes(GOOD)]
    assert parse(prefix, len(GOOD)) == parse(GOOD, len(GOOD)) == parse(memoryview(GOOD), len(GOOD))


def test_every_length_but_the_right_one_is_refused() -> None:
    for size in range(len(GOOD)):
        assert refused(GOOD[:size]) == "truncated"
        if size >= header_bytes(GOOD):
            with pytest.raises(BlockFileError, match="truncated"):
                parse(GOOD, size)
    assert refused(GOOD + b"\0") == "truncated"
    with pytest.raises(BlockFileError, match="truncated"):
        parse(GOOD[: header_bytes(GOOD) - 1], len(GOOD))


def test_a_header_too_large_to_be_true() -> None:
    assert refused(struct.pack("<Q", 2**63) + GOOD[8:]) == "header"
    assert refused(struct.pack("<Q", 64 * 1024 + 1) + bytes(70_000)) == "header"


def without_metadata(raw: dict[str, Any]) -> None:
    del raw["__metadata__"]


def metadata(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["__metadata__"].update(changes)


def tensor(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["k.weights"].update(changes)


CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    without_metadata,
    metadata(format="2"),
    metadata(extra="x"),
    metadata(chain_hash="zz"),
    metadata(chain_hash=None),
    metadata(chain_hash="01 01"),
    metadata(first_token="+256"),
    metadata(first_token="２５６"),
    metadata(first_token=256),
    metadata(token_count="4"),
    metadata(token_count="3.0"),
    metadata(token_count="1" * 5000),
    metadata(fingerprint=5),
    metadata(namespace=["ns"]),
    metadata(kind="block"),
    metadata(kind=1),
    lambda raw: raw["__metadata__"].pop("parent"),
    lambda raw: raw.update(__metadata__=[]),
    lambda raw: raw.update(__metadata__="x"),
    lambda raw: raw.update(more=raw["k.weights"]),
    lambda raw: raw.pop("v.biases"),
    lambda raw: raw.update({"k.weights": 1}),
    lambda raw: raw.update({"k.weights": raw["v.weights"]}),
    tensor(dtype="I64"),
    tensor(dtype=["U32"]),
    tensor(dtype="F16"),
    tensor(shape="2234"),
    tensor(shape=[2, 2, 3]),
    tensor(shape=[2, 2, 4, 3]),
    tensor(shape=[2, 2, 3, 4, 1]),
    tensor(shape=[2, 2, 3, 4.0]),
    tensor(shape=[-2, -2, 3, 4]),
    tensor(shape=[2, 2, 3, True]),
    tensor(shape=[2, 2, 3, 10**30]),
    tensor(shape=[2, 2, 3, 0]),
    tensor(data_offsets=[0]),
    tensor(data_offsets=[0, 1, 2]),
    tensor(data_offsets=[-1, 191]),
    tensor(data_offsets=["0", "192"]),
    tensor(data_offsets=[0, 10**30]),
    tensor(data_offsets=None),
    lambda raw: raw["k.weights"].pop("shape"),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_headers_that_do_not_fit(change: Callable[[dict[str, Any]], Any]) -> None:
    raw = raw_header()
    change(raw)
    assert refused(with_header(raw)) in ("header", "truncated")


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"1", b"{", b"\xff", b"[" * 60_000, b'{"a":' * 10_000, b'{"__metadata__": {}}'],
    ids=range(9),
)  # fmt: skip
def test_headers_that_are_something_else(raw: bytes) -> None:
    assert refused(with_header(raw)) == "header"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(TENSORS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(data=st.data())
def test_fuzzed_headers_raise_nothing_else(data: st.DataObject) -> None:
    raw = raw_header()
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*TENSORS, "__metadata__"]))
        entry = raw.get(name)
        if isinstance(entry, dict) and data.draw(st.booleans()):
            entry[data.draw(st.sampled_from(sorted(entry) or ["x"]))] = data.draw(json_values)
        else:
            raw[name] = data.draw(json_values)
    check_any(with_header(raw))


@given(data=st.data())
def test_flipped_bytes_raise_nothing_else(data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, header_bytes(GOOD)))] = data.draw(st.integers(0, 255))
    check_any(bytes(damaged))


@given(data=st.binary(max_size=200))
def test_any_bytes_raise_nothing_else(data: bytes) -> None:
    check_any(data)
    check_any(struct.pack("<Q", len(data)) + data)


def check_any(data: bytes) -> None:
    """Either refused, or all that was parsed fits together."""
    try:
        found, specs = parse(data, len(data))
    except BlockFileError:
        return
    assert set(specs) == set(TENSORS)
    assert all(spec.shape[2] == found.token_count and 0 < spec.start < spec.end <= len(data) for spec in specs.values())
    assert all(isinstance(text, str) for text in found.to_metadata().values())


def test_a_window_is_no_block() -> None:
    raw = raw_header()
    metadata(kind="window")(raw)
    data = with_header(raw)
    found, _ = parse(data, len(data))
    assert found == replace(header(), window=True)
    for one, other in ((found, header()), (header(), found)):
        with pytest.raises(BlockFileError, match="window"):
            verify(one, other)


@pytest.mark.parametrize("name", list(BlockHeader.__dataclass_fields__))
def test_verify_compares_every_field(name: str) -> None:
    verify(header(), header())
    other = replace(header(), **{name: b"\x02" * 32 if name in ("chain_hash", "parent") else 99})
    with pytest.raises(BlockFileError, match=name) as caught:
        verify(header(), other)
    assert caught.value.reason == "header"


ids = st.lists(st.integers(0, 2**32 - 1), max_size=4)


@given(a=st.tuples(st.text(max_size=3), st.text(max_size=3), st.binary(max_size=3), ids), data=st.data())
def test_names_are_equal_only_for_equal_inputs(a: tuple[str, str, bytes, list[int]], data: st.DataObject) -> None:
    b = data.draw(st.tuples(st.text(max_size=3), st.text(max_size=3), st.binary(max_size=3), ids))
    assert (chain_hash(*a) == chain_hash(*b)) == (a == b)
    shifted = (a[0] + a[1][:1], a[1][1:], a[2], a[3])
    assert (chain_hash(*a) == chain_hash(*shifted)) == (a == shifted)


def test_a_name_is_the_hash_of_length_prefixed_parts() -> None:
    """Written down, because names outlive the process that made them."""
    parts = (b"print", b"ns", b"\1" * 32, struct.pack("<2I", 7, 2**32 - 1))
    expected = hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()
    assert chain_hash("print", "ns", b"\1" * 32, [7, 2**32 - 1]) == expected
    assert len(expected) == 32


@given(size=st.integers(0, 1100))
def test_a_chain_names_every_block(size: int) -> None:
    token_ids = list(range(size))
    names = list(chain_hashes("f", "n", token_ids))
    assert len(names) == -(-size // BLOCK_TOKENS)
    shorter = list(chain_hashes("f", "n", token_ids[: size // BLOCK_TOKENS * BLOCK_TOKENS]))
    assert names[: len(shorter)] == shorter


def test_a_change_renames_every_later_block() -> None:
    one = list(chain_hashes("f", "n", range(1024)))
    other = list(chain_hashes("f", "n", [*range(300), 9999, *range(301, 1024)]))
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False, False]


def test_digest() -> None:
    assert digest(b"abc") == digest(memoryview(b"abc"))
    assert len(digest(b"")) == 16
    assert digest(b"abc") != digest(b"abd")
    assert digest(b"abc").hex() == "06b05ab6733a618578af5f94892f3950", "XXH3's own test vector"

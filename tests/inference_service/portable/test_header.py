import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from safetensors import safe_open

from agentmem.errors import DataLoss, FailedPrecondition
from inference_service.portable import header
from inference_service.portable.format import Manifest, StateShape

from .files import STATES, File, file, manifests, recurrent

CHECKSUM = bytes(range(16))


def parsed(data: bytes) -> tuple[Manifest, bytes]:
    size = header.header_bytes(data[:8])
    return header.parse(data[8:size])


@given(manifests())
def test_round_trip(manifest: Manifest) -> None:
    data = header.encode(manifest, CHECKSUM)
    assert header.header_bytes(data) == len(data)
    assert len(data) % 8 == 0
    assert data[8:].isascii()
    assert parsed(data) == (manifest, CHECKSUM)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("states", [(), STATES])
def test_other_tools_read_it(tmp_path: Path, dtype: str, states: tuple[tuple[StateShape, ...], ...]) -> None:
    made = file(geometry=replace(file().manifest.geometry, dtype=dtype, states=states))
    path = tmp_path / "agent.safetensors"
    path.write_bytes(made.bytes)
    with safe_open(path, framework="numpy") as opened:
        metadata = opened.metadata()
        assert json.loads(metadata["token_sequence"]) == list(made.manifest.ledger.token_ids)
        assert metadata["agent_id"] == "a"
        assert sorted(opened.keys()) == sorted(made.manifest.places)
        for name, place in made.manifest.places.items():
            slice_ = opened.get_slice(name)
            assert (slice_.get_dtype(), tuple(slice_.get_shape())) == (place.dtype, place.shape)
        place = made.manifest.places["layer_1_v_weights"]
        weights = opened.get_tensor("layer_1_v_weights")
        assert weights.tobytes() == made.data[place.start : place.end]


@pytest.mark.slow("file")
@pytest.mark.parametrize("make", [file, recurrent])
def test_every_flipped_bit_of_the_header_is_refused_or_means_the_same(make: Callable[..., File]) -> None:
    made = make(tokens=6, kv_tokens=5)
    good = made.bytes[: len(header.encode(made.manifest, CHECKSUM))]
    wanted = parsed(good)
    refused = tried = 0
    for at in range(0, 8 * len(good), 3):
        tried += 1
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        try:
            size = header.header_bytes(bytes(bad[:8]))
            if size > len(bad):
                refused += 1  # The import goes on reading, and the stream ends.
                continue
            found = header.parse(bytes(bad[8:size]))
        except (DataLoss, FailedPrecondition):
            refused += 1
        else:
            assert found == wanted
    assert refused > tried - 64


def test_truncations() -> None:
    good = header.encode(file().manifest, CHECKSUM)
    for end in range(8, len(good.rstrip())):
        with pytest.raises(DataLoss):
            header.parse(good[8:end])


@pytest.mark.parametrize("size", [0, 1, header.MAX_HEADER_BYTES + 1, 1 << 63, (1 << 64) - 1])
def test_a_header_of_absurd_length(size: int) -> None:
    with pytest.raises(DataLoss):
        header.header_bytes(struct.pack("<Q", size))


def forged(change: Callable[[dict[str, Any]], object], made: Manifest | None = None) -> bytes:
    """A header with a lie in it, whose checksum is right."""
    raw = json.loads(header.encode(made or file().manifest, CHECKSUM)[8:])
    change(raw)
    metadata = raw.get("__metadata__")
    if isinstance(metadata, dict) and "metadata_checksum" in metadata:
        del metadata["metadata_checksum"]
        canonical = json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()
        metadata["metadata_checksum"] = xxhash.xxh3_128_hexdigest(canonical)
    return json.dumps(raw).encode()


def setting(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda raw: raw["__metadata__"].__setitem__(name, value)


def tensor(name: str, field: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda raw: raw[name].__setitem__(field, value)


LIES = {
    "no metadata": lambda raw: raw.pop("__metadata__"),
    "metadata is a list": lambda raw: raw.__setitem__("__metadata__", []),
    "another format": setting("format", "pt"),
    "one more": setting("more", "x"),
    "one less": lambda raw: raw["__metadata__"].pop("turns"),
    "no checksum": lambda raw: raw["__metadata__"].pop("metadata_checksum"),
    "a number": setting("kv_tokens", 17),
    "a float": setting("kv_tokens", "17.0"),
    "a sign": setting("kv_tokens", "+17"),
    "a space": setting("total_tokens", " 20"),
    "too many digits": setting("total_tokens", "9" * 5000),
    "more tokens than there are": setting("total_tokens", "21"),
    "negative": setting("total_tokens", "-1"),
    "more KV than tokens": setting("kv_tokens", "21"),
    "a token too large": setting("token_sequence", json.dumps([1 << 32, *range(19)], separators=(",", ":"))),
    "a token below 0": setting("token_sequence", json.dumps([-1, *range(19)], separators=(",", ":"))),
    "a token that is none": setting("token_sequence", json.dumps(["1", *range(19)], separators=(",", ":"))),
    "a token that is true": setting("token_sequence", json.dumps([True, *range(19)], separators=(",", ":"))),
    "a token that is infinite": setting("token_sequence", "[1e999" + ",1" * 19 + "]"),
    "tokens that are no list": setting("token_sequence", "{" + ",".join(f'"{i}":1' for i in range(20)) + "}"),
    "deep tokens": setting("token_sequence", "[" * 100_000),
    "deep turns": setting("turns", "[" * 100_000),
    "deep objects": setting("geometry", '{"a":' * 100_000),
    "turns of three": setting("turns", "[[1,2,3]]"),
    "turns of text": setting("turns", '["ab"]'),
    "turns that are floats": setting("turns", "[[10.0,5],[20,0]]"),
    "text that is not base64": setting("prompt_text", "é"),
    "text in another base64": setting("prompt_text", "AB=="),
    "another encoding": setting("prompt_text_encoding", "utf-8"),
    "an empty agent id": setting("agent_id", ""),
    "a lone surrogate": setting("agent_id", "\ud800"),
    "a long namespace": setting("namespace", "x" * 300),
    "no layers": setting("geometry", '{"dtype":"F32","bits":4,"group_size":64,"layers":[]}'),
    "bits that there are not": setting(
        "geometry",
        '{"dtype":"F32","bits":"5/7","group_size":64,"layers":[{"kv_heads":1,"k_dim":64,"v_dim":64,"window":null}]}',
    ),
    "a layer without heads": setting(
        "geometry",
        '{"dtype":"F32","bits":4,"group_size":64,"layers":[{"kv_heads":null,"k_dim":64,"v_dim":64,"window":null}]}',
    ),
    "a checksum too short": setting("tensor_checksum", "00"),
    "a checksum in capitals": setting("tensor_checksum", "AB" * 16),
    "an offset": tensor("layer_0_k_weights", "data_offsets", [0, 8]),
    "an offset beyond everything": tensor("layer_0_k_weights", "data_offsets", [0, 1 << 62]),
    "a shape": tensor("layer_0_k_weights", "shape", [1, 1 << 40, 2, 8]),
    "a dtype": tensor("layer_0_k_scales", "dtype", "F16"),
    "a tensor more": lambda raw: raw.__setitem__("x", {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}),
    "a tensor less": lambda raw: raw.pop("layer_1_v_biases"),
    "a tensor that is none": lambda raw: raw.__setitem__("layer_1_v_biases", None),
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES.keys())
def test_lies_with_a_right_checksum(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(DataLoss) as caught:
        header.parse(forged(change))
    assert "export the agent again" in caught.value.message


def in_states(old: str, new: str) -> Callable[[dict[str, Any]], object]:
    """Other states in the geometry."""

    def change(raw: dict[str, Any]) -> None:
        geometry = raw["__metadata__"]["geometry"]
        assert old in geometry
        raw["__metadata__"]["geometry"] = geometry.replace(old, new)

    return change


LIES_OF_STATES = {
    "version 2": (setting("format_version", "2"), "unexpected metadata"),
    "another position": (setting("state_position", "16"), "are those of position 16, and its KV ends at 17"),
    "no position": (lambda raw: raw["__metadata__"].pop("state_position"), "are those of position 0"),
    "KV that ends elsewhere": (setting("kv_tokens", "16"), "are those of position 17, and its KV ends at 16"),
    "a position that is no number": (setting("state_position", "x"), "not that of an exported agent"),
    "a tensor less": (lambda raw: raw.pop("state_1_0"), "the tensor state_1_0 is missing"),
    "another shape": (tensor("state_0_0", "shape", [1, 5, 3]), "the tensor state_0_0 has not"),
    "another dtype": (tensor("state_0_1", "dtype", "F32"), "the tensor state_0_1 has not"),
    "another place": (tensor("state_0_0", "data_offsets", [0, 60]), "the tensor state_0_0 has not"),
    "a tensor more": (lambda raw: raw.__setitem__("state_2_0", raw["state_1_0"]), "tensors that are not the model's"),
    "another geometry": (in_states("[3,5]", "[5,3]"), "the tensor state_0_0 has not"),
    "an array more": (in_states('"shape":[7]}', '"shape":[7]},{"dtype":"F32","shape":[1]}'), "state_1_1 is missing"),
    "a layer without arrays": (in_states('[{"dtype":"BF16","shape":[7]}]', "[]"), "not that of an exported agent"),
    "a dtype that there is not": (in_states("BF16", "F8_E4M3"), "not that of an exported agent"),
    "a shape without end": (in_states("[7]", "[" + "1," * 20 + "7]"), "not that of an exported agent"),
}


@pytest.mark.parametrize(("change", "reason"), LIES_OF_STATES.values(), ids=LIES_OF_STATES.keys())
def test_lies_about_states_are_named(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(DataLoss) as caught:
        header.parse(forged(change, recurrent().manifest))
    assert reason in caught.value.message


def test_states_make_version_3_and_files_without_are_as_they_were() -> None:
    plain, with_states = (forged(lambda raw: None, made.manifest) for made in (file(), recurrent()))
    assert b'"format_version": "2"' in plain and b"state" not in plain
    assert b'"format_version": "3"' in with_states
    assert header.parse(with_states)[0] == recurrent().manifest


def test_another_version_is_told_from_damage() -> None:
    with pytest.raises(FailedPrecondition) as caught:
        header.parse(forged(setting("format_version", "4")))
    assert "version 4" in caught.value.message
    assert "versions up to 3" in caught.value.message


def test_a_file_of_version_1_is_read_as_it_was_written() -> None:
    """It names no model, and so its KV fits nowhere; its ledger does."""
    old = replace(file().manifest, model_fingerprint="", calibration=b"")
    text = header.encode(old, CHECKSUM)
    assert b'"format_version":"1"' in text and b"calibration" not in text
    assert header.parse(text[8:]) == (old, CHECKSUM)


@pytest.mark.parametrize("calibration", [b"no safetensors", b"{}"])
def test_a_calibration_that_is_none_is_damage(calibration: bytes) -> None:
    with pytest.raises(DataLoss, match="calibration"):
        header.parse(header.encode(replace(file().manifest, calibration=calibration), CHECKSUM)[8:])


def test_the_metadata_checksum() -> None:
    good = header.encode(file().manifest, CHECKSUM)
    with pytest.raises(DataLoss, match="checksum"):
        header.parse(good[8:].replace(b'"agent_id":"a"', b'"agent_id":"b"'))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"__metadata__":' * 50_000,
        b"[" * 1_000_000,
        b"{" + b'"":{},' * 1_000_000,
        b'{"__metadata__":{},"a":[' + b"[]," * 2_000_000 + b"[]]}",
        b'""' * 1_000_000,
        b'"' * 1_000_001,
        b'"\\' * 1_000_000,
        b"\xff\xfe",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_hostile_headers_take_bounded_memory(text: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataLoss):
            header.parse(text)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text) + (32 << 20)
    finally:
        tracemalloc.stop()


def test_seeded_mutations_never_do_anything_else_than_refuse() -> None:
    rng = random.Random(7)
    good = header.encode(file().manifest, CHECKSUM)[8:]
    wanted = header.parse(good)
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            start = rng.randrange(len(bad))
            end = min(len(bad), start + rng.randint(0, 8))
            choices = [rng.randbytes(rng.randint(0, 8)), bytes(bad[rng.randrange(len(bad)) :][:8]), b"", b"9" * 30]
            bad[start:end] = rng.choice(choices)
        try:
            found = header.parse(bytes(bad))
        except (DataLoss, FailedPrecondition):
            continue
        assert found == wanted


def test_a_ledger_that_is_too_long_to_come_back_is_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "MAX_HEADER_BYTES", 100)
    with pytest.raises(FailedPrecondition, match="too long"):
        header.encode(file().manifest, CHECKSUM)

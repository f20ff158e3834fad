"""The portable file's header: a manifest to bytes and back, with checksums over itself and over the tensors. Pure.

It is ASCII, and its metadata are strings, as safetensors wants it:

    format, format_version               "agentmem.agent", "2"; "3" with states, "1" without model_fingerprint
    agent_id, model_id, namespace        whose it was
    fingerprint, tokenizer_hash          of what made the KV, and the tokens
    model_fingerprint                    of the model's files
    calibration                          means and bases of K and V, safetensors in base64; left out where there are
                                         none
    total_tokens, token_sequence         the ledger's tokens: how many, and a JSON list of them
    offsets                              each token's end in the text, in bytes; a JSON list
    prompt_text, prompt_text_encoding    the text in base64, for it may end inside a character
    turns                                a JSON list of [tokens at its end, how many of them it generated]
    opening_bytes, context_policy        as in the contract; each is left out where it is 0
    template_time                        as in the contract; left out where it is empty
    kv_tokens, first_positions           how many tokens have KV, and where each layer's first one is; a JSON list
    geometry                             JSON: dtype, bits (4, "5/4" of K and V, or "4w6" where windows have others),
                                         group_size, layers with kv_heads, k_dim, v_dim, window; and where recurrent
                                         layers have states, those: for each layer a list of arrays with dtype and shape
    state_position                       how many tokens went into the states, as many as have KV; left out without
    tensor_checksum                      xxh3_128 of all bytes behind the header
    metadata_checksum                    xxh3_128 of the header without it, with sorted keys and without spaces

A header is read in bounded memory, whatever it says: nothing is taken for as long as it claims to be.
"""

import base64
import json
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import Ledger, TurnPlace, Uint32
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey, check_text
from inference_service.portable.format import FORMAT, FORMAT_VERSION, KVGeometry, Manifest, check, damaged
from inference_service.text.template import parse_moment

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 64 << 20
"""Room for about three million tokens. Safetensors itself reads up to 100 MB."""
MAX_TURNS = 1 << 17
CHECKSUM_BYTES = 16

_WITHOUT_MODEL = 1
_WITHOUT_STATES = 2
_MAX_STRUCTURE = 4 << 20
"""Characters outside of strings; a tensor takes about 80."""
_MAX_STRINGS = 1 << 17
_MAX_GEOMETRY = 1 << 20
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_METADATA = "__metadata__"
_FAULTS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, InvalidArgument)


def encode(manifest: Manifest, tensor_checksum: bytes) -> bytes:
    """Return the file up to its tensors; a multiple of 8 bytes, as alignment wants it.

    Raises FailedPrecondition for a ledger that is too long to be taken back.
    """
    metadata = _metadata(manifest, tensor_checksum)
    tensors = _tensors(manifest)
    metadata["metadata_checksum"] = _checksum(metadata, tensors)
    text = _compact({_METADATA: metadata, **tensors}).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES or len(manifest.ledger.turns) > MAX_TURNS:
        raise FailedPrecondition("the agent's ledger is too long for a file; fork its first tokens and export the fork")
    return struct.pack("<Q", len(text)) + text


def header_bytes(beginning: bytes | bytearray) -> int:
    """Return how many bytes of a file stand before its tensors, from its first 8 bytes. Raises DataLoss."""
    size = int(struct.unpack_from("<Q", beginning)[0])
    if not 2 <= size <= MAX_HEADER_BYTES:
        raise damaged(f"its header would have {size} bytes")
    return LENGTH_BYTES + size


def parse(text: bytes) -> tuple[Manifest, bytes]:
    """Return what a header says, and the tensors' checksum; `text` is without the 8 bytes of its length.

    Whatever it says is written again and compared, so parsing need not refuse other spellings of the same. Raises
    FailedPrecondition for another version of the format, and DataLoss for all else that is wrong.
    """
    try:
        tensors = _loaded(text)
        metadata = tensors.pop(_METADATA)
        _check_format(metadata)
        if metadata["metadata_checksum"] != _checksum(metadata, tensors):
            raise damaged("the header's checksum is another")
        manifest = _manifest(metadata)
        check(manifest)
        tensor_checksum = bytes.fromhex(metadata["tensor_checksum"])
        expected = _metadata(manifest, tensor_checksum)
    except _FAULTS as error:
        raise damaged("its header is not that of an exported agent") from error
    if {**expected, "metadata_checksum": metadata["metadata_checksum"]} != metadata:
        raise damaged("unexpected metadata")
    if len(tensor_checksum) != CHECKSUM_BYTES:
        raise damaged("the tensors' checksum is none")
    _check_tensors(tensors, _tensors(manifest))
    return manifest, tensor_checksum


def _metadata(manifest: Manifest, tensor_checksum: bytes) -> dict[str, str]:
    ledger = manifest.ledger
    optional = {
        "opening_bytes": ledger.opening_bytes,
        "context_policy": manifest.context_policy,
        "template_time": ledger.template_time,
        "model_fingerprint": manifest.model_fingerprint,
        "calibration": base64.b64encode(manifest.calibration).decode(),
        "state_position": manifest.state_position,
    }
    return {
        **{name: str(value) for name, value in optional.items() if value},
        "format": FORMAT,
        "format_version": str(_version(manifest)),
        "agent_id": manifest.key.agent_id,
        "model_id": manifest.key.model_id,
        "namespace": manifest.key.namespace,
        "fingerprint": manifest.fingerprint,
        "tokenizer_hash": ledger.tokenizer_hash,
        "total_tokens": str(len(ledger)),
        "token_sequence": _compact(ledger.token_ids.tolist()),
        "offsets": _compact(ledger.offsets.tolist()),
        "prompt_text": base64.b64encode(ledger.text).decode(),
        "prompt_text_encoding": "base64",
        "turns": _compact([[turn.end_token, turn.generated_tokens] for turn in ledger.turns]),
        "kv_tokens": str(manifest.kv_tokens),
        "first_positions": _compact(manifest.first_positions),
        "geometry": _compact(_described(manifest.geometry)),
        "tensor_checksum": tensor_checksum.hex(),
    }


def _version(manifest: Manifest) -> int:
    """The lowest version that has a place for all that there is."""
    if manifest.geometry.states:
        return FORMAT_VERSION
    return _WITHOUT_STATES if manifest.model_fingerprint else _WITHOUT_MODEL


def _described(geometry: KVGeometry) -> dict[str, Any]:
    states = [[array._asdict() for array in arrays] for arrays in geometry.states]
    described = {**vars(geometry), "layers": [layer._asdict() for layer in geometry.layers], "states": states}
    return described if states else {name: value for name, value in described.items() if name != "states"}


def _tensors(manifest: Manifest) -> dict[str, Any]:
    return {
        name: {"dtype": place.dtype, "shape": list(place.shape), "data_offsets": [place.start, place.end]}
        for name, place in manifest.places.items()
    }


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Any]) -> str:
    without = {name: value for name, value in metadata.items() if name != "metadata_checksum"}
    canonical = json.dumps({_METADATA: without, **tensors}, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())


def _loaded(data: bytes) -> dict[str, Any]:
    """Return the JSON object, once it is known that it has not more of anything than an exported agent can have."""
    text = data.decode("ascii")
    outside, strings, at = 0, 0, 0
    while strings <= _MAX_STRINGS and (quote := text.find('"', at)) >= 0:
        string = _STRING.match(text, quote)
        if string is None:
            raise ValueError("a string without end")
        outside, strings, at = outside + quote - at, strings + 1, string.end()
    if strings > _MAX_STRINGS or outside + len(text) - at > _MAX_STRUCTURE:
        raise damaged("its header has more parts than any model")
    raw: dict[str, Any] = json.loads(text)
    return raw


def _check_format(metadata: Mapping[str, str]) -> None:
    if metadata["format"] != FORMAT:
        raise damaged("it is not an exported agent")
    if metadata["format_version"] not in map(str, (_WITHOUT_MODEL, _WITHOUT_STATES, FORMAT_VERSION)):
        version = metadata["format_version"][:20]
        reads = f"this worker reads versions up to {FORMAT_VERSION}; export the agent with this version of agentmem"
        raise FailedPrecondition(f"the file has version {version} of the format, and {reads}")


def _check_tensors(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise DataLoss, naming a tensor, unless they are the `expected` ones."""
    for name, tensor in expected.items():
        if name not in found:
            raise damaged(f"the tensor {name} is missing")
        if found[name] != tensor:
            raise damaged(f"the tensor {name} has not the dtype, shape and place that its geometry says")
    if found.keys() != expected.keys():
        raise damaged("it has tensors that are not the model's")


def _manifest(metadata: Mapping[str, str]) -> Manifest:
    total, kv_tokens = int(metadata["total_tokens"]), int(metadata["kv_tokens"])
    turns = metadata["turns"].count("[") - 1
    if turns > MAX_TURNS:
        raise damaged(f"it has more than {MAX_TURNS} turns")
    ends = _numbers(metadata["turns"], 2 * turns, lists=turns).reshape(-1, 2).tolist()
    moment = metadata.get("template_time", "")
    ledger = Ledger(
        token_ids=_numbers(metadata["token_sequence"], total),
        text=base64.b64decode(metadata["prompt_text"], validate=True),
        offsets=_numbers(metadata["offsets"], total),
        tokenizer_hash=metadata["tokenizer_hash"],
        turns=tuple(TurnPlace(end, generated) for end, generated in ends),
        opening_bytes=int(np.uint32(int(metadata.get("opening_bytes", "0")))),
        template_time=parse_moment("template_time", moment) if moment else "",
    )
    if len(metadata["geometry"]) > _MAX_GEOMETRY:
        raise ValueError("too long")
    geometry = KVGeometry.from_json(metadata["geometry"])
    firsts = _numbers(metadata["first_positions"], len(geometry.layers) if kv_tokens else 0).tolist()
    key = AgentKey(*(check_text(name, metadata[name]) for name in ("namespace", "agent_id", "model_id")))
    policy = types_pb2.ContextPolicy.ValueType(int(metadata.get("context_policy", "0")))
    if policy not in types_pb2.ContextPolicy.values():
        raise ValueError("not a context policy")
    return Manifest(
        key,
        metadata["fingerprint"],
        geometry,
        ledger,
        kv_tokens,
        tuple(firsts),
        context_policy=policy,
        model_fingerprint=metadata.get("model_fingerprint", ""),
        calibration=base64.b64decode(metadata.get("calibration", ""), validate=True),
        state_position=int(metadata.get("state_position", "0")),
    )


def _numbers(text: str, count: int, *, lists: int = 0) -> Uint32:
    """Return a JSON list of `count` numbers of 32 bits, in so many `lists` inside."""
    if not 0 <= count <= len(text) or text.count(",") != max(0, count - 1) or text.count("[") != 1 + lists:
        raise ValueError("not that many numbers")
    numbers = np.array(json.loads(text), np.uint32)
    if numbers.size != count:
        raise ValueError("not that many numbers")
    return numbers

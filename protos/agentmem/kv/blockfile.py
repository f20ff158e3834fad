"""KV files: names, headers, and the digest that every load checks. Needs no tensor library.

A file is safetensors. Its name, a chain hash, names its inputs: fingerprint, namespace, previous and own tokens.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import xxhash

from agentmem.v1 import cache_store_pb2

if TYPE_CHECKING:  # the gateway needs no NumPy
    from agentmem.kv.ledger import Uint32

FORMAT_VERSION = 1
BLOCK_TOKENS = 256
TENSORS = ("k.weights", "k.scales", "k.biases", "v.weights", "v.scales", "v.biases")
STATE = "state."
"""The prefix of recurrent states' names, in files of windows."""
NO_PARENT = b""
CHUNK_BYTES = 256 * 1024
"""One message of a stream: larger ones stall the event loop."""

MAX_HEADER_BYTES = 64 * 1024

_DTYPE_BYTES = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}


class BlockFileError(Exception):
    """`reason` is "truncated", "header" or "digest"."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(f"{reason}: {problem}")
        self.reason = reason


@dataclass(frozen=True)
class BlockHeader:
    """A file's safetensors metadata; hashes are hex in the file.

    A window may have the name and shapes of the block that ends where it does. Its tokens are the last before
    first_token + token_count.
    """

    fingerprint: str
    namespace: str
    chain_hash: bytes
    parent: bytes
    first_token: int
    token_count: int
    window: bool = False

    def to_metadata(self) -> dict[str, str]:
        return {
            "format": str(FORMAT_VERSION),
            "fingerprint": self.fingerprint,
            "namespace": self.namespace,
            "chain_hash": self.chain_hash.hex(),
            "parent": self.parent.hex(),
            "first_token": str(self.first_token),
            "token_count": str(self.token_count),
            **({"kind": "window"} if self.window else {}),
        }


class FileKind(IntEnum):
    """As agentmem.v1.FileKind."""

    BLOCK = 1
    WINDOW = 2

    def to_proto(self) -> cache_store_pb2.FileKind.ValueType:
        return cache_store_pb2.FileKind.ValueType(self)


class FileName(NamedTuple):
    """A window at a block's end has the block's chain hash."""

    kind: FileKind
    chain_hash: bytes

    @classmethod
    def of(cls, header: BlockHeader) -> Self:
        return cls.window(header.chain_hash) if header.window else cls.block(header.chain_hash)

    @classmethod
    def block(cls, chain_hash: bytes) -> Self:
        return cls(FileKind.BLOCK, chain_hash)

    @classmethod
    def window(cls, chain_hash: bytes) -> Self:
        return cls(FileKind.WINDOW, chain_hash)

    @classmethod
    def from_proto(cls, name: cache_store_pb2.FileName | cache_store_pb2.StoredFile) -> Self:
        """Raises ValueError for an unknown kind."""
        return cls(FileKind(name.kind), bytes(name.chain_hash))

    def to_proto(self) -> cache_store_pb2.FileName:
        return cache_store_pb2.FileName(kind=self.kind.to_proto(), chain_hash=self.chain_hash)


@dataclass(frozen=True)
class TensorSpec:
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def chain_hash(fingerprint: str, namespace: str, parent: bytes, token_ids: "Sequence[int] | Uint32") -> bytes:
    """Return the name, 32 bytes, of the block of `token_ids` after `parent`, NO_PARENT for the first.

    SHA-256 over length-prefixed parts: a microsecond for 256 tokens, and collisions cannot be crafted.
    """
    digest = hashlib.sha256()
    for part in (fingerprint.encode(), namespace.encode(), parent, _packed(token_ids)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _packed(token_ids: "Sequence[int] | Uint32") -> bytes:
    if isinstance(token_ids, Sequence):
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    return token_ids.astype("<u4", copy=False).tobytes()


def chain_hashes(fingerprint: str, namespace: str, token_ids: "Sequence[int] | Uint32") -> Iterator[bytes]:
    """The last may be a tail."""
    parent = NO_PARENT
    for first in range(0, len(token_ids), BLOCK_TOKENS):
        parent = chain_hash(fingerprint, namespace, parent, token_ids[first : first + BLOCK_TOKENS])
        yield parent


def digest(data: bytes | memoryview) -> bytes:
    """xxh3_128 finds faults, not forgers."""
    return xxhash.xxh3_128_digest(data)


RunningDigest = xxhash.xxh3_128
"""`digest` in pieces."""


def header_bytes(prefix: bytes | memoryview) -> int:
    """Return the header's size from a file's first 8 bytes."""
    if len(prefix) < 8:
        raise BlockFileError("truncated", f"{len(prefix)} bytes")
    size = int(struct.unpack("<Q", prefix[:8])[0])
    if size > MAX_HEADER_BYTES:
        raise BlockFileError("header", f"{size} bytes of header")
    return 8 + size


def parse(prefix: bytes | memoryview, file_size: int) -> tuple[BlockHeader, dict[str, TensorSpec]]:
    """Parse a file's beginning, all checked against each other. Raises BlockFileError."""
    end_of_header = header_bytes(prefix)
    if end_of_header > min(len(prefix), file_size):
        raise BlockFileError("truncated", "the header is cut off")
    try:
        raw: Any = json.loads(bytes(prefix[8:end_of_header]))
        header = _header(raw.pop("__metadata__"))
        specs = {name: _spec(entry, end_of_header) for name, entry in raw.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BlockFileError("header", f"{type(error).__name__} while reading it") from error
    states = {name for name in specs if header.window and name.startswith(STATE)}
    kv = specs.keys() - states
    if kv != {prefix + name for prefix in {_prefix(name) for name in kv} for name in TENSORS}:
        raise BlockFileError("header", "unexpected tensors")
    expected = end_of_header
    for name, spec in sorted(specs.items(), key=lambda item: item[1].start):
        if spec.start != expected or spec.end - spec.start != prod(spec.shape) * _DTYPE_BYTES[spec.dtype]:
            raise BlockFileError("header", "offsets do not match shapes")
        if name not in states and (len(spec.shape) != 4 or spec.shape[2] != header.token_count):
            raise BlockFileError("header", "shapes do not match the token count")
        expected = spec.end
    if expected != file_size:
        raise BlockFileError("truncated", f"{file_size} bytes instead of {expected}")
    return header, specs


def _prefix(name: str) -> str:
    """Return "", or a group's number and a dot."""
    number, dot, rest = name.partition(".")
    return number + dot if number.isdecimal() and rest in TENSORS else ""


def verify(found: BlockHeader, wanted: BlockHeader) -> None:
    for name, value in wanted.__dict__.items():
        if getattr(found, name) != value:
            raise BlockFileError("header", f"{name} differs")


def _header(metadata: Mapping[str, str]) -> BlockHeader:
    if metadata["format"] != str(FORMAT_VERSION):
        raise BlockFileError("header", f"another format than {FORMAT_VERSION}")
    header = BlockHeader(
        fingerprint=metadata["fingerprint"],
        namespace=metadata["namespace"],
        chain_hash=bytes.fromhex(metadata["chain_hash"]),
        parent=bytes.fromhex(metadata["parent"]),
        first_token=int(metadata["first_token"]),
        token_count=int(metadata["token_count"]),
        window="kind" in metadata,
    )
    if header.to_metadata() != dict(metadata) or not all(isinstance(value, str) for value in metadata.values()):
        raise BlockFileError("header", "unexpected metadata")
    return header


def _spec(entry: Mapping[str, Any], data_start: int) -> TensorSpec:
    start, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if entry["dtype"] not in _DTYPE_BYTES or not all(type(n) is int and n > 0 for n in (*shape, end)):
        raise ValueError("dtype or shape")
    if type(start) is not int or start < 0:
        raise ValueError("offset")
    return TensorSpec(entry["dtype"], shape, data_start + start, data_start + end)

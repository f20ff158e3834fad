"""KV files and requests as a worker makes them, without a model: a true header, then tensors of random bytes."""

import json
import os
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from agentmem.kv import blockfile
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2

FINGERPRINT = "f" * 16


def key(agent: str = "ada", namespace: str = "default", model: str = "demo") -> types_pb2.AgentKey:
    return types_pb2.AgentKey(namespace=namespace, agent_id=agent, model_id=model)


def content(header: blockfile.BlockHeader) -> bytes:
    specs, data = {}, b""
    for name in blockfile.TENSORS:
        dtype, width = ("U32", 8) if name.endswith("weights") else ("F32", 1)
        size = header.token_count * width * 4
        specs[name] = {
            "dtype": dtype,
            "shape": [1, 1, header.token_count, width],
            "data_offsets": [len(data), len(data) + size],
        }
        data += os.urandom(size)
    text = json.dumps({"__metadata__": header.to_metadata(), **specs}).encode()
    return struct.pack("<Q", len(text)) + text + data


def header(
    tokens: list[int],
    namespace: str = "default",
    parent: bytes = blockfile.NO_PARENT,
    fingerprint: str = FINGERPRINT,
) -> blockfile.BlockHeader:
    name = blockfile.chain_hash(fingerprint, namespace, parent, tokens)
    return blockfile.BlockHeader(fingerprint, namespace, name, parent, 0, len(tokens))


def write(staged: pb.StagedFile, header: blockfile.BlockHeader, data: bytes | None = None) -> pb.StoredFile:
    data = content(replace(header, window=staged.kind == pb.FILE_KIND_WINDOW)) if data is None else data
    Path(staged.path).write_bytes(data)
    return pb.StoredFile(
        chain_hash=header.chain_hash,
        kind=staged.kind,
        path=staged.path,
        digest=blockfile.digest(data),
        size_bytes=len(data),
        first_token=header.first_token,
        token_count=header.token_count,
    )


def message(name: FileName) -> pb.FileName:
    kind = pb.FILE_KIND_BLOCK if name.kind is FileKind.BLOCK else pb.FILE_KIND_WINDOW
    return pb.FileName(kind=kind, chain_hash=name.chain_hash)


def turn(
    tokens: list[int],
    base: types_pb2.AgentVersion | None = None,
    keep: int = 0,
    agent: types_pb2.AgentKey | None = None,
    **fields: object,
) -> pb.CommitTurnRequest:
    text, offsets = b"", []
    for token in tokens:
        text += str(token).encode()
        offsets.append(len(text))
    request = pb.CommitTurnRequest(
        key=agent or key(),
        base=base,
        keep_tokens=keep,
        token_ids=tokens,
        text=text,
        offsets=offsets,
        tokenizer_hash="t",
        generated_tokens=min(1, len(tokens)),
    )
    request.MergeFrom(pb.CommitTurnRequest(**fields))  # type: ignore[arg-type]
    return request


def read(path: str | Path) -> bytes:
    return Path(path).read_bytes()


def copy(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(Path(source).read_bytes())


def make_directory(path: Path, mode: int = 0o755) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def open_files() -> list[str]:
    """Return the paths that this process has open; none without /proc."""
    found = []
    for descriptor in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            found.append(str(descriptor.readlink()))
    return found


def on_a_full_disk(path: Path) -> IO[bytes]:
    """A new file, of which nothing can be written: the kernel says that the device is full."""
    path.touch()
    return open("/dev/full", "wb", buffering=0)


def parsed(data: bytes) -> tuple[blockfile.BlockHeader, dict[str, tuple[str, tuple[int, ...]]]]:
    header, specs = blockfile.parse(data, len(data))
    return header, {name: (spec.dtype, spec.shape) for name, spec in specs.items()}

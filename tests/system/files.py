"""Agents as files: exported from a running worker, imported into one."""

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import xxhash

from agentmem.v1 import agent_pb2, types_pb2
from tests.system.stack import Client

CHUNK = 256 * 1024


async def exported(client: Client, agent: str) -> bytes:
    """The agent's file."""
    call = client.agents.ExportAgent(agent_pb2.ExportAgentRequest(key=client.key(agent)), timeout=60)
    chunks = [response.chunk async for response in call]
    assert all(0 < len(chunk) <= CHUNK for chunk in chunks)
    return b"".join(chunks)


async def imported(client: Client, file: bytes, agent: str = "", model: str = "", **key: str) -> agent_pb2.Agent:
    """The agent that the file becomes."""
    target = types_pb2.AgentKey(**{"namespace": "default", **key}, agent_id=agent, model_id=model)
    call = client.agents.ImportAgent(messages(file, target), timeout=60)
    return (await call).agent


def messages(file: bytes, key: types_pb2.AgentKey, chunk: int = CHUNK) -> Iterator[agent_pb2.ImportAgentRequest]:
    """The key, then the file in pieces."""
    yield agent_pb2.ImportAgentRequest(key=key)
    for start in range(0, len(file), chunk):
        yield agent_pb2.ImportAgentRequest(chunk=file[start : start + chunk])


async def refusal(client: Client, file: bytes, agent: str = "", model: str = "", **key: str) -> tuple[str, str]:
    """The code and the reason with which a file is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await imported(client, file, agent, model, **key)
    return caught.value.code().name, caught.value.details() or ""


def metadata(file: bytes) -> dict[str, str]:
    """What the file says of itself."""
    (size,) = struct.unpack("<Q", file[:8])
    said: dict[str, str] = json.loads(file[8 : 8 + size])["__metadata__"]
    return said


def forged(file: bytes, change: Callable[[dict[str, str]], object]) -> bytes:
    """The file with other metadata, whose checksum is right."""
    (size,) = struct.unpack("<Q", file[:8])
    raw: dict[str, Any] = json.loads(file[8 : 8 + size])
    said = raw["__metadata__"]
    change(said)
    del said["metadata_checksum"]
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()
    said["metadata_checksum"] = xxhash.xxh3_128_hexdigest(canonical)
    header = json.dumps(raw).encode()
    return struct.pack("<Q", len(header)) + header + file[8 + size :]

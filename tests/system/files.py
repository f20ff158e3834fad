"""Agents as files: exported from a running worker, imported into one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import pytest

from agentmem.v1 import agent_pb2, cache_store_pb2, portable_pb2, types_pb2
from inference_service.portable.format import BEGINNING, framed
from tests.system.client import Client

CHUNK = 256 * 1024


async def exported(client: Client, agent: str) -> bytes:
    call = client.agents.ExportAgent(agent_pb2.ExportAgentRequest(key=client.key(agent)), timeout=60)
    chunks = [response.chunk async for response in call]
    assert all(0 < len(chunk) <= CHUNK for chunk in chunks)
    return b"".join(chunks)


async def imported(client: Client, file: bytes, agent: str = "", model: str = "", **key: str) -> agent_pb2.Agent:
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


@dataclass
class Contents:
    head: portable_pb2.PortableHead
    files: list[tuple[cache_store_pb2.StoredFile, bytes]]

    @property
    def tokens(self) -> int:
        return len(self.head.ledger.token_ids)

    @property
    def kv_tokens(self) -> int:
        """Up to where the KV can be gone on from: its checkpoint, or the end of its blocks."""
        ends = [(file.kind, file.first_token + file.token_count) for file, _ in self.files]
        return max(ends, default=(0, 0))[1]

    @property
    def bytes(self) -> bytes:
        """The file, with right checksums."""
        data = BEGINNING + framed(portable_pb2.PortablePart(head=self.head))
        for file, content in self.files:
            data += framed(portable_pb2.PortablePart(file=file)) + content
        end = portable_pb2.PortableEnd(files=len(self.files))
        return data + framed(portable_pb2.PortablePart(end=end))


def contents(file: bytes) -> Contents:
    at, found = len(BEGINNING), Contents(portable_pb2.PortableHead(), [])
    while True:
        size = int.from_bytes(file[at : at + 4], "little")
        at += 20 + size
        part = portable_pb2.PortablePart.FromString(file[at - size : at])
        match part.WhichOneof("part"):
            case "head":
                found.head = part.head
            case "file":
                found.files.append((part.file, file[at : at + part.file.size_bytes]))
                at += part.file.size_bytes
            case _:
                return found


def forged(file: bytes, change: Callable[[Contents], object]) -> bytes:
    """The file with other contents, whose checksums are right."""
    found = contents(file)
    change(found)
    return found.bytes

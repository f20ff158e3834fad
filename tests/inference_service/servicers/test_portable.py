import asyncio
from collections.abc import AsyncIterator

import pytest

from agentmem.errors import DeadlineExceeded, InvalidArgument
from agentmem.kv.blockfile import CHUNK_BYTES
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.servicers import portable
from inference_service.servicers.portable import SMALL_BYTES, SMALL_CHUNKS, _chunks, _key, _unstalled

KEY = agent_pb2.ImportAgentRequest(key=types_pb2.AgentKey(namespace="ns"))
CHUNK = agent_pb2.ImportAgentRequest(chunk=b"x" * CHUNK_BYTES)


async def sending(
    *requests: agent_pb2.ImportAgentRequest, then: bool = True
) -> AsyncIterator[agent_pb2.ImportAgentRequest]:
    for request in requests:
        yield request
    if not then:
        await asyncio.Event().wait()


async def test_the_key_and_then_chunks() -> None:
    requests = _unstalled(sending(KEY, CHUNK, CHUNK))
    assert await _key(requests) == AgentKey("ns", "", "")
    assert [len(chunk) async for chunk in _chunks(requests)] == [CHUNK_BYTES] * 2


@pytest.mark.parametrize(
    ("first", "field"),
    [
        ((), "key"),
        ((agent_pb2.ImportAgentRequest(),), "key"),
        ((CHUNK,), "key"),
        ((agent_pb2.ImportAgentRequest(key=types_pb2.AgentKey(agent_id="a")),), "key.namespace"),
        ((agent_pb2.ImportAgentRequest(key=types_pb2.AgentKey(namespace="n", agent_id="x" * 300)),), "key.agent_id"),
        ((agent_pb2.ImportAgentRequest(key=types_pb2.AgentKey(namespace="n", model_id="x" * 300)),), "key.model_id"),
    ],
)
async def test_bad_keys(first: tuple[agent_pb2.ImportAgentRequest, ...], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await _key(_unstalled(sending(*first)))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "bad", [KEY, agent_pb2.ImportAgentRequest(), agent_pb2.ImportAgentRequest(chunk=b"x" * (CHUNK_BYTES + 1))]
)
async def test_bad_chunks(bad: agent_pb2.ImportAgentRequest) -> None:
    chunks = _chunks(sending(CHUNK, bad))
    assert await anext(chunks) == CHUNK.chunk
    with pytest.raises(InvalidArgument) as caught:
        await anext(chunks)
    assert caught.value.field == "chunk"


async def test_a_sender_that_stalls_gives_its_place_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "STALL_SECONDS", 0.01)
    requests = _unstalled(sending(KEY, then=False))
    assert await anext(requests) == KEY
    with pytest.raises(DeadlineExceeded, match="import it again"):
        await anext(requests)


async def received(*sizes: int) -> int:
    """How much of a file arrives that comes in such pieces."""
    pieces = [agent_pb2.ImportAgentRequest(chunk=bytes(size)) for size in sizes]
    return sum([len(chunk) async for chunk in _chunks(sending(*pieces))])


async def test_some_chunks_may_be_small() -> None:
    assert await received(*[1] * SMALL_CHUNKS) == SMALL_CHUNKS
    assert await received(*[SMALL_BYTES] * 4 * SMALL_CHUNKS) == 4 * SMALL_CHUNKS * SMALL_BYTES
    assert await received(*[1] * SMALL_CHUNKS, CHUNK_BYTES, *[1] * 255) == SMALL_CHUNKS + CHUNK_BYTES + 255


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES - 1])
async def test_a_file_of_small_chunks_is_refused(size: int) -> None:
    with pytest.raises(InvalidArgument, match="at a time") as refused:
        await received(*[size] * (SMALL_CHUNKS + 1))
    assert refused.value.field == "chunk"

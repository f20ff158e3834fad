from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from agentmem import errors
from agentmem.channels import connect
from agentmem.kv.ledger import NO_VERSION, Ledger, Version
from agentmem.process.server import GrpcServer
from agentmem.v1 import cache_store_pb2, cache_store_pb2_grpc, types_pb2
from agentmem.validation import AgentKey
from inference_service.storage.client import StoreClient

KEY = AgentKey("ns", "agent", "org/model")


class ScriptedStore(cache_store_pb2_grpc.CacheStoreServiceServicer):
    """Answers what a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: Any = None

    def _reply(self, request: Any) -> Any:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def OpenCache(self, request: Any, context: Any) -> Any:
        return self._reply(request)

    async def CommitTurn(self, request: Any, context: Any) -> Any:
        return self._reply(request)


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
async def client(store: ScriptedStore) -> AsyncIterator[StoreClient]:
    services: list[tuple[str, Any, Any]] = [
        ("agentmem.v1.CacheStoreService", cache_store_pb2_grpc.add_CacheStoreServiceServicer_to_server, store),
    ]
    server = GrpcServer("127.0.0.1:0", services)
    await server.start()
    async with connect(f"127.0.0.1:{server.port}") as channel:
        yield StoreClient(channel)
    await server.stop(0)


async def test_open_tells_an_absent_ledger_from_an_empty_one(client: StoreClient, store: ScriptedStore) -> None:
    store.answer = cache_store_pb2.OpenCacheResponse()
    opened = await client.open(KEY)
    assert (opened.version, opened.ledger, opened.turn, opened.files) == (NO_VERSION, None, None, {})
    store.answer = cache_store_pb2.OpenCacheResponse(ledger=cache_store_pb2.Ledger())
    assert (await client.open(KEY)).ledger == Ledger()


async def test_commit(client: StoreClient, store: ScriptedStore) -> None:
    store.answer = cache_store_pb2.CommitTurnResponse(version=types_pb2.AgentVersion(uid="u", version=4))
    commit = cache_store_pb2.CommitTurnRequest(key=KEY.to_proto(), base=Version("u", 3).to_proto(), token_ids=[5, 6])
    assert await client.commit(commit) == (Version("u", 4), None)
    assert store.asked == [commit]
    store.answer.replayed.request_digest = b"other"
    _, replayed = await client.commit(commit)
    assert replayed is not None
    assert replayed.request_digest == b"other"


@pytest.mark.parametrize(
    "error",
    [
        errors.Aborted("older"),
        errors.NotFound("agent", "a"),
        errors.ResourceExhausted("disk", 7),
        errors.Unavailable("the disk is being cleared", 7),
        errors.DataLoss("x"),
    ],
)
async def test_errors_of_the_store_are_raised_as_they_are(
    client: StoreClient, store: ScriptedStore, error: errors.AgentmemError
) -> None:
    store.answer = error
    with pytest.raises(type(error)) as caught:
        await client.open(KEY)
    assert caught.value.message == error.message
    assert list(caught.value.details()) == list(error.details())


async def test_a_store_that_is_not_there_is_unavailable(unused_tcp_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_tcp_port}") as channel:
        with pytest.raises(errors.Unavailable, match="cache store") as caught:
            await StoreClient(channel).open(KEY)
    assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)
    assert caught.value.retry_after > 0

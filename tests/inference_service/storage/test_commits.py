"""Commits whose answer is lost: a real store, killed or cut off between the commit and its answer."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem.channels import connect
from agentmem.errors import Aborted, Unavailable
from agentmem.kv.ledger import NO_VERSION, Version
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey
from inference_service.storage import client as client_module
from inference_service.storage.client import Opened, StoreClient
from tests.cache_service import kv
from tests.cache_service.process import ready
from tests.inference_service.storage.lossy import Proxy, proxy

KEY = AgentKey.from_proto(kv.key())


@dataclass
class World:
    """A store's process, a client behind a proxy, and another one beside it."""

    data: Path
    processes: AsyncExitStack
    store: asyncio.subprocess.Process
    proxy: Proxy
    client: StoreClient
    stranger: StoreClient
    channel: grpc.aio.Channel

    async def restart(self) -> None:
        self.store.kill()
        await self.store.wait()
        self.store, _ = await self.processes.enter_async_context(ready(self.data))

    async def committed(self, number: int) -> Opened:
        """Wait until the agent is at this version."""
        async with asyncio.timeout(30):
            while (opened := await self.stranger.open(KEY)).version.number != number:
                await asyncio.sleep(0.01)
        return opened

    async def unanswered(self, request: pb.CommitTurnRequest, number: int = 1) -> tuple[asyncio.Task[Any], Opened]:
        """A commit that makes a version, and whose answer is lost."""
        await self.client.open(KEY)  # the proxy's connection stands
        self.proxy.loses = "answers"
        return asyncio.create_task(self.client.commit(request)), await self.committed(number)


@asynccontextmanager
async def world_of(data: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        store, _ = await stack.enter_async_context(ready(data))
        between = await stack.enter_async_context(proxy(data / "run/store.sock", data.with_name("p.sock")))
        behind = await stack.enter_async_context(connect(f"unix:{data.with_name('p.sock')}"))
        beside = await stack.enter_async_context(connect(f"unix:{data}/run/store.sock"))
        yield World(data, stack, store, between, StoreClient(behind), StoreClient(beside), behind)


@pytest.fixture
async def world(data: Path) -> AsyncIterator[World]:
    async with world_of(data) as made:
        yield made


def turn(tokens: list[int], base: Version, keep: int = 0, request_id: str = "") -> pb.CommitTurnRequest:
    return kv.turn(tokens, base.to_proto(), keep, request_id=request_id)


@pytest.mark.slow("False-True-", "False-True-r", "True-True-", "True-True-r")
@pytest.mark.parametrize("request_id", ["", "r"])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("creates", [False, True])
async def test_a_commit_whose_answer_is_lost_is_repeated_and_made_once(
    world: World, request_id: str, killed: bool, creates: bool
) -> None:
    base = NO_VERSION
    if not creates:
        base, _ = await world.client.commit(turn([1, 2], NO_VERSION))
    request = turn([3, 4], base, 0 if creates else 2, request_id)
    committing, made = await world.unanswered(request, base.number + 1)
    assert not committing.done()
    if killed:
        await world.restart()
    world.proxy.cut()
    assert await asyncio.wait_for(committing, 60) == (made.version, None)
    opened = await world.committed(base.number + 1)
    assert opened.ledger is not None and opened.ledger.token_ids.tolist() == [1, 2, 3, 4][2 * creates :]
    assert len(opened.ledger.turns) == base.number + 1


async def test_a_repeated_commit_succeeds_although_the_agent_has_gone_on(world: World) -> None:
    committing, made = await world.unanswered(turn([1], NO_VERSION))
    after, _ = await world.stranger.commit(turn([2], made.version, 1))
    world.proxy.cut()
    assert await asyncio.wait_for(committing, 60) == (made.version, None)
    assert (await world.committed(2)).version == after


async def test_a_commit_that_was_lost_is_aborted_where_a_stranger_was_faster(world: World) -> None:
    base, _ = await world.client.commit(turn([1], NO_VERSION))
    world.proxy.loses = "requests"
    committing = asyncio.create_task(world.client.commit(turn([2], base, 1)))
    await asyncio.sleep(0.2)
    theirs, _ = await world.stranger.commit(turn([3], base, 1))
    world.proxy.cut()
    with pytest.raises(Aborted):
        await asyncio.wait_for(committing, 60)
    opened = await world.committed(2)
    assert opened.version == theirs and opened.ledger is not None and opened.ledger.token_ids.tolist() == [1, 3]


async def test_what_a_store_says_of_a_repetition_does_not_settle_the_first_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds store.db for longer than the store waits; the first attempt was made before."""
    said = []
    rpc = world.client._store.CommitTurn

    async def listened(*arguments: object, **options: object) -> object:
        try:
            return await rpc(*arguments, **options)  # type: ignore[arg-type]
        except grpc.aio.AioRpcError as error:
            said.append(error.details())
            raise

    monkeypatch.setattr(world.client._store, "CommitTurn", listened)
    committing, made = await world.unanswered(turn([1], NO_VERSION))
    with closing(sqlite3.connect(world.data / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        world.proxy.cut()
        async with asyncio.timeout(60):
            while not any("another program holds store.db" in str(each) for each in said):
                await asyncio.sleep(0.05)
        assert not committing.done()
        other.execute("ROLLBACK")
    assert await asyncio.wait_for(committing, 60) == (made.version, None)


async def test_a_worker_that_ends_says_that_it_is_unknown(world: World) -> None:
    committing, _ = await world.unanswered(turn([1], NO_VERSION))
    await world.channel.close()
    with pytest.raises(Unavailable, match="not known whether the turn is in the ledger"):
        await asyncio.wait_for(committing, 60)


async def test_equal_turns_of_two_committers_are_two(world: World) -> None:
    """They are the same in all but who commits them."""
    base, _ = await world.client.commit(turn([1], NO_VERSION))
    await world.client.commit(turn([2], base, 1))
    with pytest.raises(Aborted):
        await world.stranger.commit(turn([2], base, 1))


async def test_what_a_store_says_is_an_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was refused is not repeated, and one that nobody answers is given up."""
    base, _ = await world.client.commit(turn([1], NO_VERSION))
    sent = 0
    rpc = world.client._store.CommitTurn

    def counted(*arguments: object, **options: object) -> object:
        nonlocal sent
        sent += 1
        return rpc(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(world.client._store, "CommitTurn", counted)
    with pytest.raises(Aborted):
        await world.client.commit(turn([2], NO_VERSION))
    assert sent == 1
    world.store.kill()
    await world.store.wait()
    world.proxy.cut()
    monkeypatch.setattr(client_module, "COMMIT_SECONDS", 0.5)
    with pytest.raises(Unavailable, match="does not answer"):
        await world.client.commit(turn([2], base, 1))


async def test_a_repetition_without_its_commit_id_is_a_strangers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that these tests find."""

    class Forgetful:
        def __init__(self, rpc: object) -> None:
            self.rpc = rpc

        def __call__(self, request: pb.CommitTurnRequest, **options: object) -> object:
            other = pb.CommitTurnRequest()
            other.CopyFrom(request)
            other.ClearField("commit_id")
            return self.rpc(other, **options)  # type: ignore[operator]

    monkeypatch.setattr(world.client._store, "CommitTurn", Forgetful(world.client._store.CommitTurn))
    committing, _ = await world.unanswered(turn([1], NO_VERSION))
    world.proxy.cut()
    with pytest.raises(Aborted):
        await asyncio.wait_for(committing, 60)

"""Deletion for good: not a byte is left after OK, whatever stood in the way, and a repetition finishes what did not."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agentmem.v1 import agent_pb2, agent_pb2_grpc, cache_store_pb2_grpc
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, running
from tests.cache_service.process import ready
from tests.cache_service.rpc.test_servicer_agents import TOKENS, secret_turn, traces
from tests.cache_service.tiers.test_blocks import add, found, name, on_disk, stage

WORD = "Geheimnis-für-ada "


@contextmanager
def reader(data: Path) -> Iterator[None]:
    with closing(sqlite3.connect(data / "store.db", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM agents").fetchall()
        yield


@pytest.fixture
async def hasty(data: Path) -> AsyncIterator[Running]:
    async with running(data) as store:
        await store.store._database.write(lambda c: c.execute("PRAGMA busy_timeout = 10").fetchall())
        yield store


async def test_a_repeated_deletion_is_ok_once_it_is_scrubbed(hasty: Running) -> None:
    version = (await hasty.cache.CommitTurn(secret_turn("ada"))).version
    await add(hasty, [1], version)
    with reader(hasty.data):
        await hasty.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
        for _ in range(2):
            await fails(hasty.delete(), "UNAVAILABLE")
            assert hasty.store._database.scrub_owed
    assert (await hasty.delete()).deleted == 0, "the first call has deleted it"
    assert traces(hasty.data, b"a text that must not stay") == []
    await fails(hasty.delete(), "NOT_FOUND")


async def test_a_repeated_deletion_of_a_snapshot_is_ok_once_it_is_scrubbed(hasty: Running) -> None:
    version = (await hasty.cache.CommitTurn(secret_turn("ada"))).version
    await hasty.snapshot("s")
    await hasty.cache.CommitTurn(kv.turn([1], version, keep=0))
    await hasty.forget("auto-1")
    request = agent_pb2.DeleteSnapshotRequest(key=kv.key(), name="s")
    with reader(hasty.data):
        await hasty.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
        await fails(hasty.agents.DeleteSnapshot(request), "UNAVAILABLE")
    await hasty.agents.DeleteSnapshot(request)
    assert traces(hasty.data, b"a text that must not stay") == []
    await fails(hasty.agents.DeleteSnapshot(request), "NOT_FOUND")


async def secrets(store: Running) -> list[bytes]:
    """Give `ada` all that an agent can have; what must not be found afterwards. A bystander and a fork's fork stay."""
    text = WORD.encode()
    first = (await store.cache.CommitTurn(secret_turn("ada", label=WORD))).version
    kept = [await add(store, [1], first)]
    await store.fork("fork")
    await store.snapshot(WORD)
    turn = pb.CommitTurnRequest(
        key=kv.key(), base=first, keep_tokens=9, token_ids=TOKENS[:50], text=text * 50, tokenizer_hash="t",
        offsets=[len(text) * n for n in range(1, 51)],
        record=pb.TurnRecord(delta={"text": WORD * 30, "token_ids": TOKENS}),  # type: ignore[arg-type]
    )  # fmt: skip
    second = (await store.cache.CommitTurn(turn)).version
    kept.append(await add(store, [3], second))
    await store.trim(5)
    await store.restore(WORD)
    kept.append(await add(store, [4], None, "ada"))
    patterns = [kv.read(file.path)[-64:] for file in await found(store, *kept)]
    await store.cache.CommitTurn(kv.turn([7], agent=kv.key("eve")))
    assert len(patterns) == 3
    spoken = "a text that must not stay "
    return [
        *patterns, text, spoken.encode(), WORD.encode("utf-16-le"), spoken.encode("utf-16-le"),
        *(b"".join(token.to_bytes(4, "little") for token in TOKENS[at : at + 2]) for at in (0, 48, 398)),
    ]  # fmt: skip


async def test_nothing_is_left_after_forks_snapshots_and_trims(store: Running) -> None:
    patterns = await secrets(store)
    assert all(traces(store.data, pattern) for pattern in patterns if pattern[1:2] != b"\0")
    await store.delete(kv.key("fork"))
    await store.delete()
    assert traces(store.data, *patterns) == [] and on_disk(store.data) == []
    assert (await store.agent("eve")).tokens == 1


@pytest.mark.slow
async def test_a_kill_before_the_scrub_is_made_good_at_the_next_start(data: Path) -> None:
    async with running(data) as store:
        patterns = await secrets(store)
    async with ready(data) as (process, channel):
        agents, cache = agent_pb2_grpc.AgentServiceStub(channel), cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        with reader(data):
            await cache.CommitTurn(kv.turn([1], agent=kv.key("bob")))
            for agent in ("fork", "ada"):
                await fails(agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key(agent))), "UNAVAILABLE")
            process.kill()
            await process.wait()
            assert traces(data, *patterns), "in pages that the WAL replaces"
    async with ready(data) as (process, channel):
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        await fails(agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key())), "NOT_FOUND")
        assert traces(data, *patterns) == []
        process.kill()


async def test_a_staged_file_of_a_deleted_agent_is_not_published(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    header = kv.header([1])
    (staged,) = await stage(store, name(header))
    file = kv.write(staged, header)
    content = kv.read(staged.path)[-64:]
    await store.delete()
    await store.cache.PublishBlocks(
        pb.PublishBlocksRequest(key=kv.key(), version=version, files=[file], fingerprint=kv.FINGERPRINT)
    )
    assert traces(store.data, content) == []

"""The warm tier's limits: who has to go, in which order, what stays, and what is said about it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem.errors import ResourceExhausted
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey
from cache_service.tiers.limits import GIB, DiskLimits, FixedLimits, Reason
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, refused, running
from tests.cache_service.tiers import test_blocks
from tests.cache_service.tiers.test_blocks import BLOCK, add, found, name, on_disk, stage

FILE = len(kv.content(kv.header([0, 0])))
"""Bytes of a file of two tokens."""
LIMIT = 10 * FILE + 200  # headers differ by a few bytes


@pytest.fixture
async def small(data: Path) -> AsyncIterator[Running]:
    async with running(data, DiskLimits(LIMIT, 0, 0.91, 0.61)) as store:
        yield store


async def speak(
    store: Running,
    agent: str,
    blocks: Sequence[int],
    base: types_pb2.AgentVersion | None = None,
    namespace: str = "default",
    **fields: object,
) -> types_pb2.AgentVersion:
    """A turn whose state consists of these blocks; those that don't exist are published."""
    version = (await store.cache.CommitTurn(kv.turn([1], base, agent=kv.key(agent, namespace), **fields))).version
    await hold(store, agent, blocks, version, namespace)
    return version


async def hold(
    store: Running, agent: str, blocks: Sequence[int], version: types_pb2.AgentVersion, namespace: str = "default"
) -> None:
    await test_blocks.hold(store, [kv.header([n, 0], namespace) for n in blocks], version, kv.key(agent, namespace))


async def there(store: Running, *blocks: int, namespace: str = "default") -> list[int]:
    names = [name(kv.header([n, 0], namespace)) for n in blocks]
    hashes = {file.chain_hash for file in await found(store, *names, namespace=namespace)}
    return [n for n, each in zip(blocks, names, strict=True) if each.chain_hash in hashes]


async def evicted(store: Running, agent: str, *blocks: int) -> bool:
    """Return whether OpenCache says that the agent was evicted, and that there is no copy of these blocks."""
    hashes = [kv.header([n, 0]).chain_hash for n in blocks]
    opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(agent), block_hashes=hashes, peek=True))
    return opened.evicted


def bytes_on_disk(data: Path) -> int:
    folders = [data / folder for folder in ("blocks", "windows", "staging")]
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


async def hint(store: Running, **steps: int | None) -> None:
    hints = [agent_pb2.TurnHint(key=kv.key(agent), steps=each) for agent, each in steps.items()]
    await store.agents.SetTurnHints(agent_pb2.SetTurnHintsRequest(hints=hints))


async def pin(store: Running, agent: str, pinned: bool = True) -> None:
    await store.agents.PinAgent(agent_pb2.PinAgentRequest(key=kv.key(agent), pinned=pinned))


def evictions(store: Running, reason: str) -> float | None:
    return store.metric("agentmem_cache_evictions_total", tier="warm", reason=reason)


async def test_who_was_idle_longest_goes_first_and_keeps_the_ledger(small: Running) -> None:
    for number, agent in enumerate("abcd"):
        await speak(small, agent, [2 * number, 2 * number + 1])
    await small.open("a")  # a is used, so b is the idlest
    await speak(small, "e", [8, 9])
    assert await there(small, *range(10)) == [0, 1, 6, 7, 8, 9]
    assert [agent for agent in "abcde" if await evicted(small, agent)] == ["b", "c"]
    assert evictions(small, "capacity") == 2
    opened = await small.open("b")
    assert list(opened.ledger.token_ids) == [1]
    assert small.metric("agentmem_cache_disk_limit_bytes") == LIMIT


async def test_what_nobody_ever_had_goes_before_anybody(small: Running) -> None:
    await speak(small, "a", [0, 1])
    for number in (98, 99):
        await add(small, [number, 0])
    await speak(small, "b", [2, 3])
    await speak(small, "c", [4, 5, 6, 7])
    assert await there(small, 98, 99) == []
    assert await there(small, *range(8)) == [2, 3, 4, 5, 6, 7], "then a, who was idle longest"


async def test_pinned_agents_stay_and_then_there_is_no_room(small: Running) -> None:
    await speak(small, "a", [0, 1, 2, 3, 4])
    await pin(small, "a")
    await speak(small, "b", [5, 6])
    version = await speak(small, "c", [7, 8, 9])
    assert await there(small, *range(10)) == [0, 1, 2, 3, 4, 7, 8, 9], "a is the idlest, but b goes"
    await speak(small, "c", [7, 8, 9, 10], version)
    await pin(small, "c")
    version = (await small.cache.CommitTurn(kv.turn([1], agent=kv.key("d")))).version
    await hold(small, "d", [11], version)
    await pin(small, "d")
    error = await refused(hold(small, "d", [11, 12], version))
    assert isinstance(error, ResourceExhausted) and error.retry_after and "belong to pinned agents" in error.message
    assert await stage(small, name(kv.header([0, 0]))) == [], "what exists needs no room"
    await pin(small, "a", pinned=False)
    await hold(small, "d", [11, 12], version)
    assert await there(small, 0, 11, 12) == [11, 12]


async def test_a_state_that_is_too_large_by_itself_is_not_taken_and_harms_nobody(small: Running) -> None:
    await speak(small, "a", [0, 1])
    await fails(speak(small, "b", range(10, 21)), "RESOURCE_EXHAUSTED")
    assert await there(small, 0, 1, *range(10, 21)) == [0, 1]
    assert len(on_disk(small.data)) == 2
    assert evictions(small, "capacity") == 0


@pytest.mark.slow("0")
@pytest.mark.parametrize("seed", range(3))
async def test_the_limit_holds_after_every_publication(small: Running, seed: int) -> None:
    rng = random.Random(seed)
    versions: dict[str, types_pb2.AgentVersion] = {}
    states: dict[str, list[int]] = {}
    refused = 0
    for _ in range(60):
        agent = rng.choice("abcdef")
        kept = states.get(agent, [])[: rng.randint(0, 5)]
        states[agent] = kept + rng.sample(range(30), rng.randint(1, 4))
        if agent in versions and rng.random() < 0.1:
            await pin(small, agent, pinned=rng.random() < 0.5)
        request = kv.turn([1], versions.get(agent), agent=kv.key(agent))
        versions[agent] = (await small.cache.CommitTurn(request)).version
        try:
            await hold(small, agent, states[agent], versions[agent])
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            refused += 1
        if rng.random() < 0.1:
            file = pb.FileName(kind=BLOCK, chain_hash=kv.header([rng.randrange(30), 0]).chain_hash)
            await small.cache.QuarantineBlock(
                pb.QuarantineBlockRequest(namespace="default", name=file, reason="digest")
            )
        used = bytes_on_disk(small.data)
        assert used <= LIMIT
        assert small.store.warm.used() == used
    assert refused < 60


async def test_a_limit_that_was_lowered_holds_after_the_first_upkeep(data: Path) -> None:
    async with running(data) as store:
        await speak(store, "a", [0, 1, 2])
        await speak(store, "b", [3, 4])
    async with running(data, DiskLimits(2 * FILE + 50, 0, 1.0, 1.0)) as store:
        await store.store.upkeep(0)
        assert await there(store, *range(5)) == [3, 4]
    async with running(data, DiskLimits(FILE, 0)) as store:
        await store.store.upkeep(0)
        assert on_disk(data) == []
        assert await evicted(store, "a") and await evicted(store, "b")


async def test_the_disk_keeps_its_floor(data: Path) -> None:
    async with running(data, DiskLimits(100 * FILE, 3 * FILE)) as store:
        foreign = 0
        store.store.warm.free = lambda: 10 * FILE - bytes_on_disk(data) - foreign
        version = await speak(store, "a", [0, 1, 2])
        await speak(store, "b", [3, 4, 5])
        assert len(on_disk(data)) == 6
        await speak(store, "a", [0, 1, 2], version)
        await speak(store, "c", [6, 7])
        assert await there(store, *range(8)) == [0, 1, 2, 6, 7], "b was the idlest"
        assert evictions(store, "floor") == 1
        foreign = 8 * FILE
        assert "--free-bytes-floor" in await fails(speak(store, "d", [8]), "RESOURCE_EXHAUSTED")
        assert on_disk(data) == []


async def test_a_file_that_is_refused_stays_with_a_snapshot_that_has_it(small: Running) -> None:
    """It was damaged, and is computed again by a publication that turns out too large."""
    first = await speak(small, "a", [0, 1])
    await small.snapshot("one", "a")
    damaged = pb.QuarantineBlockRequest(namespace="default", name=name(kv.header([0, 0])), reason="digest")
    await small.cache.QuarantineBlock(damaged)
    await fails(speak(small, "a", range(20), first, keep=1), "RESOURCE_EXHAUSTED")
    assert await there(small, *range(20)) == [0, 1]
    restore = agent_pb2.RestoreSnapshotRequest(key=kv.key("a"), name="one")
    await small.agents.RestoreSnapshot(restore)
    assert (await small.agent("a")).blocks == 2


async def test_hints_come_before_the_last_use(small: Running) -> None:
    for number, agent in enumerate("abcd"):
        await speak(small, agent, [2 * number, 2 * number + 1])
    await hint(small, a=1, b=7, d=None)
    await speak(small, "e", [8, 9])
    assert await there(small, *range(10)) == [0, 1, 2, 3, 8, 9], "d will not speak again, and c said nothing of it"
    version = (await small.open("b")).version
    await speak(small, "b", [2, 3, 4, 5], version, ends_turn_hint=True)
    assert await there(small, *range(10)) == [0, 1, 2, 3, 4, 5, 8, 9]
    await speak(small, "f", [10, 11])
    assert await there(small, *range(12)) == [0, 1, 10, 11], "b has had its turn"


async def test_a_commit_that_is_no_turn_leaves_the_hint(small: Running) -> None:
    version = await speak(small, "a", [0, 1])
    for number, agent in enumerate("bcd", 1):
        await speak(small, agent, [2 * number, 2 * number + 1])
    await hint(small, a=0)
    await speak(small, "a", [0, 1], version)
    for agent in "bcd":
        await small.open(agent)
    await speak(small, "e", [8, 9])
    assert await there(small, *range(10)) == [0, 1, 6, 7, 8, 9], "a, who was used longest ago, speaks next"


async def test_what_is_said_while_a_turn_is_committed_is_of_the_next_one(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = small.store._database.commit

    async def slowly(*work: Any, **arguments: Any) -> Any:
        done = await commit(*work, **arguments)
        await hint(small, a=0)
        return done

    version = await speak(small, "a", [0, 1])
    await hint(small, a=9)
    with monkeypatch.context() as patched:
        patched.setattr(small.store._database, "commit", slowly)
        await small.cache.CommitTurn(kv.turn([1], version, agent=kv.key("a"), ends_turn_hint=True))
    assert small.store.warm.hints.of(AgentKey.from_proto(kv.key("a")))


async def test_who_was_used_last_goes_if_it_will_not_speak_again(small: Running) -> None:
    await speak(small, "a", [0, 1, 2, 3])
    await speak(small, "b", [4, 5, 6])
    await speak(small, "z", [7])
    await hint(small, z=None)
    small.store.warm.enforce()
    assert await there(small, *range(8)) == [*range(8)], "there is room"
    small.store.warm._limits = FixedLimits(LIMIT, 7 * FILE + FILE // 2, 7 * FILE + FILE // 2, 0)
    small.store.warm.enforce()
    assert await there(small, *range(8)) == [*range(7)], "and not a, who was used before"


def used(data: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(data / "store.db")) as connection:
        (agent,) = connection.execute("SELECT used FROM agents WHERE agent_id = 'ada'").fetchone()
    with closing(sqlite3.connect(data / "warm.db")) as connection:
        (file,) = connection.execute("SELECT used FROM files ORDER BY created").fetchone()
    return agent, file


def wal(data: Path) -> list[tuple[int, int]]:
    found = [(data / f"{name}-wal").stat() for name in ("store.db", "warm.db")]
    return [(each.st_size, each.st_mtime_ns) for each in found]


async def test_opening_writes_nothing_and_the_next_commit_writes_the_use(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    block = await add(store, [1], version)
    before, written = used(store.data), wal(store.data)
    await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(), block_hashes=[block.chain_hash]))
    assert wal(store.data) == written and used(store.data) == before
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
    await add(store, [2])
    after = used(store.data)
    assert after[0] > before[0] and after[1] > before[1]


async def test_to_peek_is_no_use(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    block = await add(store, [1], version)
    before = used(store.data)
    request = pb.OpenCacheRequest(key=kv.key(), block_hashes=[block.chain_hash], peek=True)
    assert len((await store.cache.OpenCache(request)).files) == 1
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
    assert used(store.data) == before


LIMITS = FixedLimits(1000, 900, 700, 50)


@pytest.mark.parametrize(
    ("used", "free", "excess"),
    [
        (900, 100, (0, Reason.CAPACITY)),
        (901, 100, (201, Reason.CAPACITY)),
        (10, 49, (1, Reason.FLOOR)),
        (901, 0, (201, Reason.CAPACITY)),
        (0, 0, (50, Reason.FLOOR)),
    ],
)
def test_what_should_go(used: int, free: int, excess: tuple[int, Reason]) -> None:
    assert LIMITS.excess(used, free) == excess


def test_by_default_half_of_what_is_free_and_there() -> None:
    assert DiskLimits().fixed(2 * GIB, 10 * GIB).warm_bytes == 6 * GIB
    fixed = DiskLimits(1000, 5, 0.9, 0.5).fixed(0, 10)
    assert fixed == FixedLimits(1000, 900, 500, 5)

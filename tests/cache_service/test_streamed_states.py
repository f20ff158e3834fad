"""Files from other nodes: whose they are, and what the warm tier's limits do to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentmem.errors import ResourceExhausted
from agentmem.v1 import types_pb2
from cache_service.files.publication import Spool
from cache_service.tiers.limits import DiskLimits
from tests.cache_service.tiers.test_blocks import add, found, name, on_disk, publish
from tests.cache_service.tiers.test_warm import evictions, pin, small, speak, there

from . import kv
from .conftest import Running, running
from .streams import LARGE, describe, refused, write

__all__ = ["small"]


async def test_the_file_belongs_to_the_agent_before_its_state_is_published(store: Running) -> None:
    """It is erased with the agent, and another state's publication drops it."""
    header = kv.header([1])
    data = kv.content(header)
    for end in ("deleted", "published"):
        version = (await store.cache.CommitTurn(kv.turn([1]))).version
        described = describe(header, data, version=version)
        await write(store, described, data)
        assert (await store.agent()).blocks == 1
        if end == "deleted":
            await store.delete()
        else:
            await publish(store, [], version, [])
        assert on_disk(store.data) == []


async def test_a_state_is_published_without_files(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    old = await add(store, [7], version)
    header = kv.header([1])
    data = kv.content(header)
    described = describe(header, data, version=version)
    await write(store, described, data)
    assert len(await found(store, old, name(header))) == 2, "what the agent had is not dropped yet"
    await publish(store, [], version, [name(header)])
    assert [file.chain_hash for file in await found(store, old, name(header))] == [header.chain_hash]


@pytest.mark.parametrize("stale", [False, True])
async def test_an_older_states_file_is_not_referred_to(store: Running, stale: bool) -> None:
    first = (await store.cache.CommitTurn(kv.turn([1]))).version
    second = (await store.cache.CommitTurn(kv.turn([2], first, keep=1))).version
    await add(store, [9], second)
    header = kv.header([1])
    data = kv.content(header)
    described = describe(header, data, version=first if stale else second)
    await write(store, described, data)
    assert (await store.agent()).blocks == (1 if stale else 2)


async def send(store: Running, agent: str, blocks: Sequence[int], version: types_pb2.AgentVersion) -> None:
    for number in blocks:
        header = kv.header([number, 0])
        data = kv.content(header)
        described = describe(header, data, kv.key(agent), version=version)
        await write(store, described, data)


async def test_no_room_in_the_warm_tier_is_refused_before_a_byte_is_kept(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await speak(small, "a", range(10))
    await pin(small, "a")
    monkeypatch.setattr(Spool, "write", lambda *_: pytest.fail("a byte is kept"))
    data = kv.content(LARGE)
    with pytest.raises(ResourceExhausted, match="--warm-bytes"):
        await write(small, describe(LARGE, data), data)
    assert len(await there(small, *range(10))) == 10 and not list((small.data / "staging").iterdir())


async def test_an_eviction_in_the_middle_of_a_state_takes_nothing_of_it(small: Running) -> None:
    """What was sent is the agent's at once, and the others are older: they go."""
    await speak(small, "a", [0, 1, 2, 3, 4, 5, 6])
    version = (await small.cache.CommitTurn(kv.turn([1], agent=kv.key("b")))).version
    await send(small, "b", [10, 11, 12, 13], version)
    assert await there(small, 0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13) == [10, 11, 12, 13]
    assert evictions(small, "capacity") == 1


async def test_a_file_that_the_tier_cannot_hold_is_withdrawn(data: Path) -> None:
    header = kv.header([1])
    content = kv.content(header)
    async with running(data, DiskLimits(len(content) // 2, 0, 0.9, 0.8)) as store:
        version = (await store.cache.CommitTurn(kv.turn([1]))).version
        described = describe(header, content, version=version)
        await refused(store, described, content, ResourceExhausted)
        assert (await store.agent()).blocks == 0

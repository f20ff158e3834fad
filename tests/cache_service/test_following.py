"""Files follow the ledger's states, in the right order, also where the store died in between."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem.errors import Internal
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import Version
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from cache_service.files import holding
from cache_service.files.holding import Standing
from cache_service.ledger import kv_changes, snapshots
from cache_service.tiers.warm_rows import WarmRows
from tests.cache_service import kv
from tests.cache_service.audit import reading
from tests.cache_service.conftest import Running, running
from tests.cache_service.tiers import test_blocks
from tests.cache_service.tiers.test_blocks import on_disk

Held = dict[tuple[str, int], set[FileName]]


async def furnish(store: Running) -> types_pb2.AgentVersion:
    """An agent of three blocks, [0], [0, 1] and [0, 1, 2], with a snapshot of the first two, and another agent."""
    version = (await store.cache.CommitTurn(kv.turn([0, 1]))).version
    version = await hold(store, version, [[0], [0, 1]])
    await store.snapshot("two")
    version = (await store.cache.CommitTurn(kv.turn([2], version, 2))).version
    return await hold(store, version, [[0], [0, 1], [0, 1, 2]])


async def hold(store: Running, version: types_pb2.AgentVersion, blocks: list[list[int]]) -> types_pb2.AgentVersion:
    await test_blocks.hold(store, [kv.header(tokens) for tokens in blocks], version)
    return version


def held(data: Path) -> Held:
    with reading(data, "warm.db") as connection:
        states = connection.execute("SELECT DISTINCT uid, first_version FROM held").fetchall()
        return {(uid, number): holding.of(connection, uid, number) for uid, number in states}


async def forget_state(store: Running) -> None:
    await store.trim(1)
    await store.forget("two")


CHANGES: dict[str, Callable[[Running], Awaitable[object]]] = {
    "cut": lambda store: store.trim(1),
    "go_back": lambda store: store.restore("two"),
    "branch": lambda store: store.fork("fork", keep_tokens=2),
    "forget_state": forget_state,
    "delete": lambda store: store.delete(),
}


def die_in_between(patch: pytest.MonkeyPatch) -> None:
    """Let warm.db do nothing of what the ledger says from now on, as if the store had died before."""

    def follow(self: WarmRows, *, erase: bool = False) -> Any:
        raise Internal("died")

    patch.setattr(WarmRows, "follow", follow)


@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_left_to_do_is_done_by_the_next_start(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """As where nothing came in between; the uids of forks apart, which are random."""
    whole = data.with_name("whole")
    async with running(whole) as store:
        await furnish(store)
        await CHANGES[change](store)
        wanted = sorted(map(sorted, held(whole).values())), on_disk(whole)
    async with running(data) as store:
        await furnish(store)
        before = held(data)
        with monkeypatch.context() as patch:
            die_in_between(patch)
            with suppress(grpc.aio.AioRpcError):  # deletions say that they are not over
                await CHANGES[change](store)
        assert held(data) == before, "nothing was done yet"
    async with running(data) as store:
        assert (sorted(map(sorted, held(data).values())), on_disk(data)) == wanted
        await store.store.upkeep(0)
        with reading(data) as connection:
            assert connection.execute("SELECT count(*) FROM kv_changes").fetchone() == (0,)


async def test_a_newer_version_that_was_published_stays(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trim that is followed late takes nothing from what came after it."""
    await furnish(store)
    changes = store.store._database.read_blocking(kv_changes.last)
    trimmed = await store.trim(1)
    version = (await store.cache.CommitTurn(kv.turn([7], trimmed.version, 1))).version
    await hold(store, version, [[0], [0, 7]])
    before = held(store.data)
    late = store.store._database.read_blocking(kv_changes.after, changes)

    store.store._rows.change(lambda connection: holding.follow(connection, late))
    assert held(store.data) == before


async def test_a_ledger_of_before_under_a_later_warm_db(data: Path) -> None:
    """A backup of store.db alone: what it says from now on is followed, and what it does not know is nobody's."""
    async with running(data) as store:
        version = (await store.cache.CommitTurn(kv.turn([0]))).version
        await hold(store, version, [[0]])
    backup = (data / "store.db").read_bytes()
    async with running(data) as store:
        await store.cache.CommitTurn(kv.turn([5], agent=kv.key("later")))
        for number in range(5):
            await store.snapshot(f"s{number}", "later")
    (data / "store.db").write_bytes(backup)
    async with running(data) as store:
        assert set(held(data)) <= {(version.uid, 1)}
        await store.delete()
        assert held(data) == {}
        assert on_disk(data) == []


async def test_an_agent_that_has_published_no_whole_state_is_marked_where_it_is_evicted(store: Running) -> None:
    """As after files that came from another node."""
    version = (await store.cache.CommitTurn(kv.turn([0]))).version
    mine, known = Version.from_proto(version), Standing(exists=True, is_known=True)
    names = {FileName(FileKind.BLOCK, kv.header([0]).chain_hash)}
    store.store._rows.change(holding.publish, AgentKey.from_proto(kv.key()), mine, names, known, adds=True)
    await store.evict()
    assert store.store._rows.read_blocking(holding.was_evicted, mine.uid)


async def test_whoever_follows_an_erased_snapshot_owes_a_scrub(store: Running) -> None:
    """The tokens of its files may be in the log of warm.db, also where another transaction came first."""
    await furnish(store)
    rows = store.store._rows
    store.store._database.write_blocking(snapshots.delete, AgentKey.from_proto(kv.key()), "two")
    assert not rows.scrub_owed
    rows.change(lambda _: None)
    assert rows.scrub_owed

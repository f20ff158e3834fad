"""Going on from a snapshot: which one a prompt is found to continue, and the commit that returns to it."""

import sqlite3

from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service.ledger.test_branches import names
from tests.cache_service.tiers.test_blocks import add, found

from . import kv
from .conftest import Running, fails, wrong_field


async def find_snapshot(store: Running, text: bytes, common: int) -> tuple[int, list[int]] | None:
    opened = await store.open()
    request = pb.FindSnapshotRequest(
        key=kv.key(), base=opened.version, text=text, common_tokens=common, tokenizer_hash=opened.ledger.tokenizer_hash
    )
    found = await store.cache.FindSnapshot(request)
    return (found.version.version, list(found.ledger.token_ids)) if found.HasField("version") else None


async def test_a_prompt_finds_the_branch_that_shares_most_with_it(store: Running) -> None:
    await store.commit([1, 2, 3, 4])
    await store.commit([5, 6], keep=2)
    await store.commit([7, 8], keep=3)
    assert await names(store) == ["auto-2", "auto-1"]
    assert await find_snapshot(store, b"12349", 2) == (1, [1, 2, 3, 4])
    assert await find_snapshot(store, b"1256", 3) == (2, [1, 2, 5, 6])
    assert await find_snapshot(store, b"12578", 5) is None, "the present state has more"
    assert await find_snapshot(store, b"12", 2) is None, "all have as much"
    assert await find_snapshot(store, b"99", 0) is None


async def test_snapshots_of_another_tokenizer_or_state_are_passed_over(store: Running) -> None:
    await store.commit([1, 2, 3, 4])
    at = await store.commit([5], keep=1)
    ask = pb.FindSnapshotRequest(key=kv.key(), base=at, text=b"1234", common_tokens=1, tokenizer_hash="another")
    assert not (await store.cache.FindSnapshot(ask)).HasField("version")
    ask.tokenizer_hash = (await store.open()).ledger.tokenizer_hash
    assert (await store.cache.FindSnapshot(ask)).version.version == 1
    ask.base.version += 1
    assert not (await store.cache.FindSnapshot(ask)).HasField("version")
    ask.key.agent_id = "absent"
    assert not (await store.cache.FindSnapshot(ask)).HasField("version")


async def test_a_damaged_snapshot_is_passed_over(store: Running) -> None:
    await store.commit([1, 2, 3, 4])
    await store.commit([5], keep=0)
    assert await find_snapshot(store, b"1234", 0) == (1, [1, 2, 3, 4])
    connection = sqlite3.connect(store.data / "store.db")
    with connection:
        connection.execute("UPDATE segments SET text = CAST('2x4' AS BLOB) WHERE version = 1")
    connection.close()
    assert await find_snapshot(store, b"1234", 0) is None


async def test_a_turn_that_goes_on_from_a_snapshot_shares_its_ledger_and_keeps_the_present(store: Running) -> None:
    at = await store.commit([1, 2, 3, 4])
    block = await add(store, [1, 2, 3], at)
    at = await store.commit([5, 6], keep=1)
    turn = kv.turn([9], at, 3, kv.key(), snapshot_version=1, request_id="r")
    made = (await store.cache.CommitTurn(turn)).version
    assert made.version == at.version + 2, "to return is a version of its own"
    assert await store.tokens() == [1, 2, 3, 9]
    assert await names(store) == ["auto-2", "auto-1"], "what was left can be returned to"
    await store.forget("auto-1")
    assert await found(store, block), "the agent has the files of what it returned to"
    assert (await store.cache.CommitTurn(turn)).replayed.version == made
    assert await find_snapshot(store, b"156", 1) == (2, [1, 5, 6])
    agent = await store.agent()
    assert agent.turns == 1, "of the first turn a part was kept"


async def test_going_back_to_the_oldest_of_the_kept_branches_keeps_its_tokens(store: Running) -> None:
    await store.commit([1, 2, 3, 4])
    for last in range(5, 9):
        await store.commit([last], keep=1)
    assert await names(store) == ["auto-4", "auto-3", "auto-2", "auto-1"]
    at = (await store.open()).version
    await store.cache.CommitTurn(kv.turn([9], at, 4, kv.key(), snapshot_version=1))
    assert await store.tokens() == [1, 2, 3, 4, 9]
    assert await names(store) == ["auto-5", "auto-4", "auto-3", "auto-2"]


async def test_a_snapshot_that_is_gone_or_too_short_changes_nothing(store: Running) -> None:
    await store.commit([1, 2, 3, 4])
    at = await store.commit([5], keep=1)
    await fails(store.cache.CommitTurn(kv.turn([9], at, 5, kv.key(), snapshot_version=1)), "INVALID_ARGUMENT")
    assert (
        await wrong_field(store.cache.CommitTurn(kv.turn([9], at, 1, kv.key(), snapshot_version=2**63)))
        == "snapshot_version"
    )
    await store.forget("auto-1")
    await fails(store.cache.CommitTurn(kv.turn([9], at, 3, kv.key(), snapshot_version=1)), "ABORTED")
    assert await store.tokens() == [1, 5]

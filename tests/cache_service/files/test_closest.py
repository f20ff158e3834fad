"""Blocks that are found by their tokens: against brute force, across restarts, and within a namespace."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import FileName
from agentmem.kv.ledger import ordered, shared_tokens
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from cache_service.files import references, warm_database
from cache_service.files.references import FileRow
from tests.cache_service import kv
from tests.cache_service.conftest import Running, running, wrong_field
from tests.cache_service.test_query_plans import Trace
from tests.cache_service.tiers.test_blocks import name, publish, stage

_TOKENS = st.lists(st.sampled_from([0, 1, 255, 256, 1 << 24, (1 << 32) - 1]), max_size=4)
_PLACES = st.tuples(st.sampled_from(["n", "m"]), st.sampled_from(["f", "g"]), st.sampled_from([b"", b"p" * 32]))


@given(held=st.lists(st.tuples(_PLACES, _TOKENS), max_size=12), place=_PLACES, wanted=_TOKENS.filter(len))
def test_the_closest_shares_as_much_as_any(
    held: list[tuple[tuple[str, str, bytes], list[int]]], place: tuple[str, str, bytes], wanted: list[int]
) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    warm_database.prepare(connection)
    there = {}
    for at, tokens in held:
        namespace, fingerprint, parent = at
        file = FileName.block(repr((at, tokens)).encode())
        key = AgentKey(namespace, "a", "m")
        row = FileRow(file, 0, 4, 1, b"d", ordered(tokens), key, fingerprint, parent)
        references.add(connection, row, 1)
        there[row] = at
    most = max((shared_tokens(row.token_ids, ordered(wanted)) for row, at in there.items() if at == place), default=0)
    found = references.closest(connection, *place, ordered(wanted))
    connection.close()
    assert (found is None) == (most == 0)
    if found is not None:
        assert there[found] == place
        assert shared_tokens(found.token_ids, ordered(wanted)) == most


async def hold(store: Running, tokens: list[int], namespace: str = "default") -> pb.FileName:
    key = kv.key(namespace=namespace)
    opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=key))
    version = (await store.cache.CommitTurn(kv.turn(tokens, opened.version, agent=key))).version
    header = kv.header(tokens, namespace)
    [staged] = await stage(store, name(header), namespace=namespace)
    file = kv.write(staged, header)
    file.token_ids = ordered(tokens)
    await publish(store, [file], version, [name(header)], key)
    return name(header)


def asked(tokens: list[int], **fields: object) -> pb.FindBlockRequest:
    request = pb.FindBlockRequest(namespace="default", fingerprint=kv.FINGERPRINT, token_ids=ordered(tokens))
    request.MergeFrom(pb.FindBlockRequest(**fields))  # type: ignore[arg-type]
    return request


async def test_a_block_is_found_by_its_tokens_also_after_a_restart(data: Path) -> None:
    async with running(data) as store:
        held = await hold(store, [1, 2, 3])
    async with running(data) as store:
        file = (await store.cache.FindBlock(asked([1, 2, 9, 9]))).file
        assert (file.chain_hash, file.token_ids, file.token_count) == (held.chain_hash, ordered([1, 2, 3]), 3)
        assert file.tier == types_pb2.TIER_WARM
        assert Path(file.path).stat().st_size == file.size_bytes
        assert not (await store.cache.FindBlock(asked([2, 1]))).HasField("file")
        for other in ({"namespace": "other"}, {"fingerprint": "0" * 16}, {"parent": held.chain_hash}):
            assert not (await store.cache.FindBlock(asked([1, 2, 3], **other))).HasField("file")
        await store.delete()
        assert not (await store.cache.FindBlock(asked([1, 2, 3]))).HasField("file"), "and with the agent it is gone"


async def test_looking_walks_no_table(store: Running) -> None:
    await hold(store, [1, 2, 3])
    with Trace(store) as trace:
        await store.cache.FindBlock(asked([1, 2, 9]))
    assert not trace.scans()
    plans = store.store._rows.read_blocking(
        lambda c: [row[3] for each in trace.statements["warm.db"] for row in c.execute(f"EXPLAIN QUERY PLAN {each}")]
    )
    assert plans and all("files_by_tokens" in step for step in plans), "and sorts none"


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"token_ids": b"123"}, "token_ids"), ({"token_ids": bytes(1028)}, "token_ids"), ({"parent": b"p"}, "parent")],
)
async def test_what_is_no_place_is_refused(store: Running, fields: dict[str, bytes], field: str) -> None:
    assert await wrong_field(store.cache.FindBlock(asked([1], **fields))) == field


async def test_a_file_with_other_tokens_than_it_has_is_refused(store: Running) -> None:
    header = kv.header([1, 2, 3])
    version = (await store.cache.CommitTurn(kv.turn([1, 2, 3]))).version
    [staged] = await stage(store, name(header))
    file = kv.write(staged, header)
    file.token_ids = ordered([1, 2])
    assert await wrong_field(publish(store, [file], version, [name(header)])) == "files[0].token_ids"

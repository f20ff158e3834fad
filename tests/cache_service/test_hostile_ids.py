"""Texts that file systems, SQL and terminals trip over: each names something of its own, and none becomes a path."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmem.kv import blockfile
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service.tiers.test_blocks import found, name, publish, stage

from . import audit, kv
from .conftest import Running, fails, running, wrong_field

HOSTILE = [
    *("../../etc/passwd", "..", ".", "/", "/etc/passwd", "a/b", "a\\b", "..\\..\\a", "C:\\a", "%2e%2e", "~", "$HOME"),
    *("a", "A", "a.", "a..", "a ", " a", "\ta", "a\n", "a\nb", "a\r\nb", "a\0b", "a\0c", "a\0", "\0", "%", "_"),
    *("CON", "con", "CON.txt", "nul", "LPT1:", "-rf", "--data=/", "*", "?", "[a]", "'; DROP TABLE agents; --"),
    *("é", "e\u0301", "ß", "SS", "ı", "i", "\ufeffa", "\u200ba", "\u202ea", "\u200fa", "\u2066a\u2069", "\u2028"),
    *("🙂" * 64, "🙂" * 63, "x" * 256, "x" * 255, "\U0010ffff", "\ufffd", "\x1b[2J"),
]
SHORT = [text for text in HOSTILE if len(text.encode()) <= 128]
PARTS = ("agent", "model", "namespace")
PLACES = re.compile(
    r"(store|warm)\.db(-wal|-shm)?|store\.sock(\.lock)?|lock|probe|staging|quarantine|(blocks|windows)(/[0-9a-f]{2}(/[0-9a-f]{64}\.safetensors)?)?"
)


@pytest.fixture
async def deep(data: Path) -> AsyncIterator[Running]:
    """A store some directories down, so that a path that leads upwards ends where one can see it."""
    folder = data / "1" / "2" / "3"
    folder.mkdir(parents=True)
    async with running(folder / "d") as store:
        yield store


def check_paths(store: Running) -> None:
    """All that there is, from the top on, is the store's own."""
    for path in store.data.parents[3].rglob("*"):
        if path not in (store.data, *store.data.parents):
            assert PLACES.fullmatch(path.relative_to(store.data).as_posix()), path


def keys(part: str) -> list[types_pb2.AgentKey]:
    return [kv.key(**{part: text}) for text in HOSTILE]


def header(key: types_pb2.AgentKey, number: int) -> blockfile.BlockHeader:
    return kv.header([number, 1], key.namespace)


async def add_file(store: Running, key: types_pb2.AgentKey, number: int, version: types_pb2.AgentVersion) -> None:
    wanted = header(key, number)
    staged = await stage(store, name(wanted), namespace=key.namespace)
    await publish(store, [kv.write(file, wanted) for file in staged], version, [name(wanted)], key)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
async def test_each_names_a_memory_of_its_own_with_files(deep: Running, part: str) -> None:
    for number, key in enumerate(keys(part)):
        version = (await deep.cache.CommitTurn(kv.turn([number], agent=key))).version
        await add_file(deep, key, number, version)
    check_paths(deep)
    for number, key in enumerate(keys(part)):
        opened = await deep.cache.OpenCache(pb.OpenCacheRequest(key=key))
        assert list(opened.ledger.token_ids) == [number]
        agent = (await deep.agents.GetAgent(agent_pb2.GetAgentRequest(key=key))).agent
        assert agent.key == key and agent.blocks == 1
    left = {number: key for number, key in enumerate(keys(part))}
    for number, key in enumerate(keys(part)):
        assert (await deep.delete(key)).freed_bytes > 0
        del left[number]
        assert not await found(deep, name(header(key, number)), namespace=key.namespace)
    check_paths(deep)
    audit.check_empty(deep.data)


async def ids(store: Running) -> list[str]:
    page = await store.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default", page_size=1000))
    return [agent.key.agent_id for agent in page.agents]


@pytest.mark.slow
async def test_each_names_a_snapshot(deep: Running) -> None:
    version = types_pb2.AgentVersion()
    for number, text in enumerate(SHORT):
        version = (await deep.cache.CommitTurn(kv.turn([number], version, keep=0))).version
        await add_file(deep, kv.key(), number, version)
        await deep.snapshot(text)
    listed = await deep.agents.ListSnapshots(agent_pb2.ListSnapshotsRequest(key=kv.key(), page_size=1000))
    assert [each.name for each in reversed(listed.snapshots) if not each.automatic] == SHORT
    for number, text in enumerate(SHORT):
        request = agent_pb2.RestoreSnapshotRequest(key=kv.key(), name=text)
        assert (await deep.agents.RestoreSnapshot(request)).agent.blocks == 1
        opened = await deep.open()
        assert list(opened.ledger.token_ids) == [number]
    check_paths(deep)
    for text in SHORT:
        await deep.forget(text)
    await deep.delete()
    audit.check_empty(deep.data)


@pytest.mark.parametrize("field", ["workflow_id", "namespace"])
async def test_each_names_a_workflow(deep: Running, field: str) -> None:
    names = [{"namespace": "n", "workflow_id": "w", field: text} for text in HOSTILE]
    for number, each in enumerate(names):
        record = pb.WorkflowRecord(**each, payload=bytes([number]))  # type: ignore[arg-type]
        await deep.cache.PutWorkflowRecord(pb.PutWorkflowRecordRequest(record=record))
    for number, each in enumerate(names):
        record = (await deep.cache.GetWorkflowRecord(pb.GetWorkflowRecordRequest(**each))).record
        assert (record.payload, record.version) == (bytes([number]), 1)
    check_paths(deep)
    for number, each in enumerate(names):
        await deep.cache.DeleteWorkflowRecord(pb.DeleteWorkflowRecordRequest(**each, version=1))
        with audit.reading(deep.data) as connection:
            left = connection.execute("SELECT content FROM workflow_parts ORDER BY record").fetchall()
        assert left == [(bytes([kept]),) for kept in range(number + 1, len(names))]
    check_paths(deep)


async def test_what_is_longer_than_allowed_is_refused(deep: Running) -> None:
    for text in ("x" * 257, "🙂" * 64 + "x", "../" * 1000):
        for part in PARTS:
            await fails(deep.cache.CommitTurn(kv.turn([1], agent=kv.key(**{part: text}))), "INVALID_ARGUMENT")
        assert await wrong_field(deep.cache.CommitTurn(kv.turn([1], label=text))) == "label"
        for field in ("namespace", "workflow_id"):
            each = {"namespace": "n", "workflow_id": "w", field: text}
            record = pb.PutWorkflowRecordRequest(record=pb.WorkflowRecord(**each))  # type: ignore[arg-type]
            assert await wrong_field(deep.cache.PutWorkflowRecord(record)) == f"record.{field}"
            assert await wrong_field(deep.cache.DeleteWorkflowRecord(pb.DeleteWorkflowRecordRequest(**each))) == field
    assert await ids(deep) == []
    check_paths(deep)

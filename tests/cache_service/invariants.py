"""A store's invariants hold whatever happened to it: what readers get, and what lies in its directory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from agentmem.kv import blockfile
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb

from . import kv
from .conftest import Running
from .scenarios import OTHER, Store, chain

BLOCKS = {chain(number).chain_hash: chain(number) for number in range(30)}
AGENTS = (kv.key(), kv.key("eve"), kv.key("mallory"), kv.key("new"), kv.key("fork"), OTHER)
REQUESTS = {"ada": ("ada 2", "ada 7", "ada 8"), "mallory": ("mallory 2",), "new": ("new 1",)}


@dataclass(frozen=True)
class View:
    """All that can be asked: agents with ledgers, replays and snapshots; files; the workflow's record."""

    agents: dict[str, dict[str, object]]
    files: frozenset[tuple[int, bytes]]
    record: tuple[int, bytes, bytes]

    def without_kv(self) -> View:
        agents = {
            key: {name: value for name, value in each.items() if name != "KV"} for key, each in self.agents.items()
        }
        return View(agents, frozenset(), self.record)


async def view(store: Store) -> View:
    """Return a reader's present view. Asserts that every named file is what it should be, unless it is gone by now."""
    agents: dict[str, dict[str, object]] = {}
    for key in AGENTS:
        opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=key, peek=True))
        if opened.version.version:
            agents[f"{key.namespace}/{key.agent_id}"] = await _agent(store, key, opened)
    found = await files(store)
    try:
        request = pb.GetWorkflowRecordRequest(namespace="default", workflow_id="w")
        found_run = await store.cache.GetWorkflowRecord(request)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        found_run = pb.GetWorkflowRecordResponse()
    record = found_run.record
    run = (record.version, record.payload, record.summary, *found_run.events)
    return View(agents, frozenset((file.kind, file.chain_hash) for file in found), run)


async def _agent(store: Store, key: types_pb2.AgentKey, opened: pb.OpenCacheResponse) -> dict[str, object]:
    agent = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=key))).agent
    snapshots = (await store.agents.ListSnapshots(agent_pb2.ListSnapshotsRequest(key=key, page_size=100))).snapshots
    replays = {}
    for request in REQUESTS.get(key.agent_id, ()):
        again = pb.OpenCacheRequest(key=key, request_id=request, known=opened.version, peek=True)
        turn = (await store.cache.OpenCache(again)).turn
        replays[request] = (turn.version.version, turn.request_digest)
    created_here = key.agent_id in ("new", "fork")
    return {
        "version": (opened.version.version, "" if created_here else opened.version.uid),
        "ledger": opened.ledger.SerializeToString(deterministic=True),
        "size": (agent.tokens, agent.turns, agent.text_bytes),
        "KV": (agent.blocks, agent.warm_tokens, agent.pinned),
        "snapshots": [(each.name, each.version.version, each.tokens, each.automatic) for each in snapshots],
        "replays": replays,
    }


async def files(store: Store) -> list[pb.StoredFile]:
    """The files that readers are given, each of them verified as a worker verifies it."""
    names = pb.OpenCacheRequest(key=kv.key(""), block_hashes=BLOCKS, window_hashes=BLOCKS, peek=True)
    found = list((await store.cache.OpenCache(names)).files)
    for file in found:
        try:
            data = kv.read(file.path)
        except FileNotFoundError:  # never seen together with a row, but a reader is between the two
            again = (await store.cache.OpenCache(names)).files
            assert file.chain_hash not in {each.chain_hash for each in again}, "a row without a file"
            continue
        assert blockfile.digest(data) == file.digest, "a file that is not what was published"
        header, _ = blockfile.parse(data, len(data))
        assert (header.chain_hash, header.namespace) == (file.chain_hash, "default"), "another's file"
        assert header.window == (file.kind == pb.FILE_KIND_WINDOW)
    return found


def paths(data: Path) -> set[str]:
    folders = [data / folder for folder in ("blocks", "windows", "staging")]
    return {str(path) for folder in folders for path in folder.rglob("*") if path.is_file()}


def check_directory(store: Running) -> None:
    """Files are exactly those of rows; rows are consistent; no segment is there that nobody stands on."""
    wanted: set[str] = set()

    def look_at_files(connection: sqlite3.Connection) -> set[str]:
        for kind, chain_hash in connection.execute("SELECT kind, chain_hash FROM files"):
            folder = store.data / ("blocks" if kind == pb.FILE_KIND_BLOCK else "windows") / chain_hash[:1].hex()
            wanted.add(str(folder / f"{chain_hash.hex()}.safetensors"))
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {uid for (uid,) in connection.execute("SELECT uid FROM held UNION SELECT uid FROM published")}

    def look(connection: sqlite3.Connection) -> set[str]:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        unused = connection.execute(
            "WITH RECURSIVE used (id) AS (SELECT segment FROM turns WHERE segment IS NOT NULL"
            " UNION SELECT head_segment FROM snapshots UNION SELECT head_segment FROM agents"
            " UNION SELECT s.parent_id FROM used JOIN segments AS s ON s.id = used.id WHERE s.parent_id IS NOT NULL)"
            " SELECT id FROM segments WHERE id NOT IN used"
        )
        assert unused.fetchall() == [], "segments that nobody stands on"
        return {uid for (uid,) in connection.execute("SELECT uid FROM agents")}

    holders = store.store._rows.read_blocking(look_at_files)
    assert holders <= store.store._database.read_blocking(look), "files of agents that are not there"
    found = paths(store.data)
    assert found == wanted, (sorted(found - wanted), sorted(wanted - found))
    assert store.store.warm.used() == sum(Path(path).stat().st_size for path in paths(store.data))


def holds(data: Path, text: bytes) -> list[str]:
    return [str(path) for path in data.rglob("*") if path.is_file() and text in path.read_bytes()]


def expect(found: View, allowed: Sequence[View], what: str = "") -> None:
    if found not in allowed:
        raise AssertionError(f"{what}\n{differences(found, allowed)}")


def differences(found: View, allowed: Iterable[View]) -> str:
    lines = []
    for each in allowed:
        lines.append("--- against one that is allowed:")
        for key in sorted(found.agents.keys() | each.agents.keys()):
            if found.agents.get(key) != each.agents.get(key):
                lines.append(f"{key}: {found.agents.get(key)} instead of {each.agents.get(key)}")
        if found.files != each.files:
            lines.append(f"files: {len(found.files - each.files)} more, {len(each.files - found.files)} fewer")
        if found.record != each.record:
            lines.append(f"record: {found.record} instead of {each.record}")
    return "\n".join(lines)

"""A store against the model: what it answers, what is in its database, and what lies in its directory.

The database is read by a connection of its own.
"""

import asyncio
import sqlite3
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from agentmem.kv import blockfile
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.files import holding, references
from cache_service.ledger import segments, snapshots
from cache_service.ledger.segments import Head
from cache_service.tiers import quotas

from . import kv
from .conftest import Running
from .model import State, World

FOLDERS = {FileKind.BLOCK: "blocks", FileKind.WINDOW: "windows"}
TABLES = {
    "store.db": ("segments", "agents", "turns", "object_refs", "snapshots", "kv_changes"),
    "warm.db": ("files", "held", "published"),
}


@contextmanager
def reading(data: Path, name: str = "store.db") -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"file:{data}/{name}?mode=ro", uri=True, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


async def check_answers(store: Running, world: World, names: Set[FileName]) -> None:
    """Agents, their ledgers and snapshots, and which of all names that there ever were exist."""
    listed = await store.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default"))
    assert [agent.key.agent_id for agent in listed.agents] == sorted(world.agents)
    await asyncio.gather(
        _check_found(store, world, names), *(_check_agent(store, world, agent) for agent in listed.agents)
    )


async def _check_agent(store: Running, world: World, agent: agent_pb2.Agent) -> None:
    memory = world.agents[agent.key.agent_id]
    opened, kept = await asyncio.gather(
        store.cache.OpenCache(pb.OpenCacheRequest(key=agent.key, peek=True)),
        store.agents.ListSnapshots(agent_pb2.ListSnapshotsRequest(key=agent.key)),
    )
    assert (opened.version, opened.evicted) == (agent.version, memory.evicted)
    assert (agent.version.uid, agent.version.version) == (memory.uid, memory.version)
    wanted, found = kv.turn([token.id for token in memory.state.tokens]), opened.ledger
    assert (found.token_ids, found.text, found.offsets) == (wanted.token_ids, wanted.text, wanted.offsets)
    turns = [(turn.version, turn.end_token, turn.generated_tokens) for turn in found.turns]
    assert turns == [turn[1:] for turn in memory.state.turns]
    assert (agent.tokens, agent.turns, agent.text_bytes) == (len(found.token_ids), len(turns), len(found.text))
    warm = [world.files[name] for name in memory.files & world.files.keys()]
    assert agent.warm_bytes == sum(file.size for file in warm)
    assert agent.warm_tokens == sum(file.header.token_count for file in warm if not file.header.window)
    flags = (agent.pinned, agent.HasField("ttl"), agent.HasField("delete_after"))
    assert flags == (memory.pinned, memory.expires, memory.ends)
    assert [(each.name, each.version.version, each.tokens) for each in reversed(kept.snapshots)] == [
        (name, each.version, len(each.state.tokens)) for name, each in memory.kept.items()
    ]


async def _check_found(store: Running, world: World, names: Set[FileName]) -> None:
    request = pb.OpenCacheRequest(key=kv.key(""), peek=True)
    for name in names:
        (request.block_hashes if name.kind is FileKind.BLOCK else request.window_hashes).append(name.chain_hash)
    opened = await store.cache.OpenCache(request)
    digests = {FileName(FileKind(file.kind), file.chain_hash): file.digest for file in opened.files}
    assert digests == {name: file.digest for name, file in world.files.items()}
    for file in opened.files:
        assert blockfile.digest(kv.read(file.path)) == file.digest


def check(data: Path, world: World) -> None:
    """Check what no RPC shows: files' holders, snapshots' ledgers, counts, and that there are no orphans."""
    with reading(data) as connection, reading(data, "warm.db") as warm:
        for memory in world.agents.values():
            assert holding.of(warm, memory.uid) == memory.files
            kept = {each.name: each for each in _snapshots(connection, memory.uid)}
            assert list(kept) == list(memory.kept)
            for name, wanted in memory.kept.items():
                _check_ledger(connection, kept[name].head, wanted.state)
                assert holding.of(warm, memory.uid, wanted.version) == wanted.files
        rows = warm.execute("SELECT kind, chain_hash, digest, size_bytes, agent_id FROM files").fetchall()
        found = {FileName(FileKind(kind), name): (*rest,) for kind, name, *rest in rows}
        assert found == {name: (file.digest, file.size, file.origin) for name, file in world.files.items()}
        for kind, size in references.sizes(warm).items():
            assert size == sum(file.size for name, file in world.files.items() if name.kind is kind), "usage"
        (tokens,) = connection.execute("SELECT coalesce(sum(tokens), 0) FROM segments").fetchone()
        alive = {(at, token) for state in world.states for at, token in enumerate(state.tokens)}
        assert tokens == len(alive)
        (records,) = connection.execute("SELECT coalesce(sum(length(record)), 0) FROM turns").fetchone()
        kv_bytes = sum(file.size for file in world.files.values())
        ledger_bytes = sum(8 + len(str(token.id)) for _, token in alive) + records
        found_bytes = quotas.kv_bytes(warm, "default"), quotas.ledger_bytes(connection, "default")
        assert found_bytes == (kv_bytes, ledger_bytes)
        assert quotas.all_ledger_bytes(connection) == quotas.ledger_sums(connection)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def check_files(data: Path, world: World, staged: int) -> None:
    """On disk is what has a row, and what waits in staging/."""
    for kind, folder in FOLDERS.items():
        paths = {path.relative_to(data / folder).as_posix() for path in (data / folder).rglob("*") if path.is_file()}
        hashes = [name.chain_hash.hex() for name in world.files if name.kind is kind]
        assert paths == {f"{name[:2]}/{name}.safetensors" for name in hashes}
    assert len(list((data / "staging").iterdir())) == staged


def check_empty(data: Path) -> None:
    for name, tables in TABLES.items():
        with reading(data, name) as connection:
            for table in tables:
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    check_files(data, World(), 0)


def _snapshots(connection: sqlite3.Connection, uid: str) -> list[snapshots.Snapshot]:
    rows = connection.execute("SELECT name FROM snapshots WHERE uid = ? ORDER BY id", (uid,)).fetchall()
    return [snapshots.existing(connection, uid, name) for (name,) in rows]


def _check_ledger(connection: sqlite3.Connection, head: Head, state: State) -> None:
    content = segments.read(connection, head)
    assert content.token_ids.tolist() == [token.id for token in state.tokens]
    assert [(turn.version, turn.end_token, turn.generated_tokens) for turn in content.turns] == [
        tuple(turn[1:]) for turn in state.turns
    ]
    assert head[1:] == (len(content.token_ids), len(content.text), len(content.turns))

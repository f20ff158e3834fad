"""`agentmem store recover`: what is readable of a damaged database serves again; the old directory stays as it is."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.ledger import schema
from cache_service.offline.check import check
from cache_service.offline.commands import main
from cache_service.offline.findings import CannotCheck
from cache_service.offline.recover import recover
from cache_service.offline.states import RecoveredAgent
from tests import scratch

from .. import kv
from ..conftest import running
from .directory import (
    ADA,
    block,
    change,
    database_of,
    everything,
    fill,
    fill_branches,
    pages_of,
    publish,
    query,
    zero_page,
    zero_table,
)

pytestmark = pytest.mark.sampled(2)

AGENTS, TURNS = 40, 6
HELD = "SELECT DISTINCT uid, kind, chain_hash FROM held ORDER BY 1, 2, 3"


def new(data: Path) -> Path:
    return data.with_name("new")


async def fill_many(data: Path) -> dict[str, list[int]]:
    """A directory whose tables have many pages; each agent's ledger."""
    told = {}
    async with running(data) as store:
        for number in range(AGENTS):
            name, version, tokens = f"agent-{number:03d}", None, []
            for turn in range(TURNS):
                added = [1000 * number + 100 * turn + each for each in range(80)]
                request = kv.turn(added, version, len(tokens), kv.key(name), request_id=f"r{turn}")
                version = (await store.cache.CommitTurn(request)).version
                tokens += added
            assert version is not None
            await publish(store, tokens, version, name)
            told[name] = tokens
        for number in range(50):
            request = pb.PutWorkflowRecordRequest(
                record=pb.WorkflowRecord(namespace="default", workflow_id=f"w{number}", payload=bytes(300))
            )
            await store.cache.PutWorkflowRecord(request)
    return told


@pytest.fixture(scope="session")
def many() -> Iterator[tuple[Path, dict[str, list[int]]]]:
    parent = Path(tempfile.mkdtemp(dir=scratch.FOLDER, prefix="am"))
    told = asyncio.run(fill_many(parent / "d"))
    for leftover in (parent / "d").glob("store.sock*"):
        leftover.unlink()
    yield parent / "d", told
    shutil.rmtree(parent)


@pytest.fixture
def told(data: Path, many: tuple[Path, dict[str, list[int]]]) -> dict[str, list[int]]:
    template, told = many
    shutil.copytree(template, data)
    return told


async def serves(root: Path, told: dict[str, list[int]], agents: list[RecoveredAgent]) -> None:
    """The recovered directory passes the check; its agents have a beginning of what they had, and go on."""
    assert check(root).findings == []
    async with running(root) as store:
        for agent in agents:
            name = agent.key.agent_id
            if agent.state == "gone":
                continue
            tokens = await store.tokens(name)
            assert tokens == told[name][: len(tokens)] and len(tokens) == agent.tokens
            assert agent.state == "in part" or tokens == told[name]
            described = await store.agent(name)
            assert described.turns == agent.turns and described.blocks >= agent.tokens // 256
            await store.cache.CommitTurn(kv.turn([7], described.version, len(tokens), kv.key(name)))
            assert await store.tokens(name) == [*tokens, 7]
    assert {finding.what for finding in check(root).findings} == set()


async def test_a_flipped_bit_that_sqlite_does_not_see_costs_that_turn(data: Path, told: dict[str, list[int]]) -> None:
    content = bytearray((data / "store.db").read_bytes())
    at = content.find(struct.pack("<3I", *told["agent-003"][-3:]))
    content[at] ^= 1
    (data / "store.db").write_bytes(content)
    found = recover(data, new(data))
    states = {agent.key.agent_id: (agent.state, agent.tokens) for agent in found.agents}
    assert states.pop("agent-003") == ("in part", len(told["agent-003"]) - 80)
    assert {state for state, _ in states.values()} == {"whole"} and found.damaged == ["segments"]
    await serves(new(data), told, found.agents)


async def test_a_whole_directory_is_copied_whole(data: Path) -> None:
    await fill_branches(data)
    before = everything(data)
    found = recover(data, new(data))
    assert found.is_whole and found.damaged == []
    assert everything(data) == before
    assert {agent.key.agent_id for agent in found.agents} == {"ada", "bob", "cut", "eve", "idle", "none"}
    assert check(new(data)).findings == []
    for table in ("segments", "turns"):
        assert query(new(data), f"SELECT * FROM {table} ORDER BY 1, 2") == query(
            data, f"SELECT * FROM {table} ORDER BY 1, 2"
        )
    assert query(new(data), "SELECT name FROM snapshots ORDER BY id") == query(
        data, "SELECT name FROM snapshots ORDER BY id"
    )
    assert query(data, HELD) == query(new(data), HELD), "snapshots keep their numbers"
    assert os.path.samefile(block(data, ADA, 0), block(new(data), ADA, 0)), "linked, not copied"
    assert sorted(path.name for path in new(data).iterdir()) == [
        "blocks", "lock", "staging", "store.db", "warm.db", "windows",
    ]  # fmt: skip
    async with running(new(data)) as store:
        request = agent_pb2.RestoreSnapshotRequest(key=kv.key(), name="mine")
        assert (await store.agents.RestoreSnapshot(request)).agent.blocks == 3
        assert await store.tokens("ada") == ADA


async def test_a_damaged_tail_of_a_row_costs_that_turn(data: Path, told: dict[str, list[int]]) -> None:
    """The content of one segment is lost, and the place where it stood is known."""
    change(data, "UPDATE segments SET offsets = zeroblob(length(offsets)) WHERE version = 4 AND id = 100")
    found = recover(data, new(data))
    (hurt,) = (agent for agent in found.agents if agent.state != "whole")
    assert (hurt.state, hurt.turns, hurt.had_turns, hurt.tokens) == ("in part", 3, TURNS, 240)
    await serves(new(data), told, found.agents)
    async with running(new(data)) as store:
        for number, is_there in ((2, True), (3, False)):
            request = pb.OpenCacheRequest(key=hurt.key.to_proto(), request_id=f"r{number}")
            assert (await store.cache.OpenCache(request)).HasField("turn") == is_there, "a lost turn is not replayed"


@pytest.mark.parametrize("at", [0, -1])
async def test_the_first_and_the_last_leaf(data: Path, told: dict[str, list[int]], at: int) -> None:
    zero_page(data / "store.db", pages_of(data, "segments", "leaf")[at])
    found = recover(data, new(data))
    hurt = [agent for agent in found.agents if agent.state != "whole"]
    assert hurt and {agent.key.agent_id for agent in hurt} <= {
        f"agent-{n:03d}" for n in ((0, 1) if at == 0 else (38, 39))
    }
    await serves(new(data), told, found.agents)


@pytest.mark.slow
async def test_agents_whose_rows_are_lost_are_named(data: Path, told: dict[str, list[int]]) -> None:
    leaves = pages_of(data, "agents", "leaf")
    zero_page(data / "store.db", leaves[1])
    found = recover(data, new(data))
    gone = [agent for agent in found.agents if agent.state == "gone"]
    assert len(found.agents) == AGENTS and gone and not found.is_whole
    assert all(agent.had_tokens is None for agent in gone)
    await serves(new(data), told, found.agents)
    with pytest.raises(sqlite3.DatabaseError), closing(sqlite3.connect(data / "store.db")) as connection:
        connection.execute("SELECT * FROM agents NOT INDEXED").fetchall()


async def test_an_older_schemas_rows_get_the_defaults_of_new_columns(
    data: Path, told: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    added = "; ".join(
        f"ALTER TABLE {table} ADD COLUMN more INTEGER NOT NULL DEFAULT 7" for table in ("agents", "segments")
    )
    monkeypatch.setattr(schema, "SCRIPTS", (*schema.SCRIPTS, f"{added};"))
    zero_page(data / "store.db", pages_of(data, "segments", "leaf")[0])
    found = recover(data, new(data))
    assert [agent.state for agent in found.agents].count("whole") >= AGENTS - 2
    assert {row[0] for row in query(new(data), "SELECT more FROM agents UNION SELECT more FROM segments")} == {7}
    await serves(new(data), told, found.agents)


async def test_a_damaged_name_of_a_column_costs_no_ledger(data: Path) -> None:
    await fill(data)
    content = (data / "store.db").read_bytes()
    at = content.index(b"request_id", content.index(b"CREATE TABLE turns"))
    (data / "store.db").write_bytes(content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :])
    found = recover(data, new(data))
    assert found.damaged == ["turns"] and {agent.state for agent in found.agents} == {"whole"}


@pytest.mark.parametrize("table", ["turns", "files", "workflow_parts"])
async def test_damage_elsewhere_leaves_the_ledgers_whole(data: Path, told: dict[str, list[int]], table: str) -> None:
    leaves = pages_of(data, table, "leaf")
    zero_page(database_of(data, table), leaves[len(leaves) // 2])
    found = recover(data, new(data))
    assert found.damaged == ([] if table == "files" else [table])
    assert {agent.state for agent in found.agents} == {"whole"}
    assert found.workflow_records == 50 or table == "workflow_parts"
    async with running(new(data)) as store:
        for name, tokens in told.items():
            assert await store.tokens(name) == tokens
    assert check(new(data)).findings == []


@pytest.mark.parametrize("table", ["held", "files", "held_by_file", "agents_by_head", "turns_by_segment"])
async def test_what_follows_from_the_rest_is_made_again(data: Path, table: str) -> None:
    await fill_branches(data)
    held = query(data, HELD)
    zero_table(data, table)
    found = recover(data, new(data))
    assert {agent.state for agent in found.agents} == {"whole"}
    async with running(new(data)):
        pass
    assert check(new(data)).findings == []
    assert set(held) <= set(query(new(data), HELD))


async def test_a_file_whose_mode_a_link_would_share_is_copied(data: Path) -> None:
    await fill(data)
    block(data, ADA, 1).chmod(0o644)
    recover(data, new(data))
    copied = block(new(data), ADA, 1)
    assert not os.path.samefile(copied, block(data, ADA, 1)) and copied.stat().st_mode & 0o777 == 0o600
    assert block(data, ADA, 1).stat().st_mode & 0o777 == 0o644
    assert check(new(data)).findings == []


HOPELESS: dict[str, Callable[[Path], object]] = {
    "the first page": lambda data: zero_page(data / "store.db", 1),
    "all of it": lambda data: (data / "store.db").write_bytes(os.urandom(100_000)),
    "ledgers": lambda data: zero_table(data, "segments"),
    "agents": lambda data: zero_table(data, "agents"),
}


@pytest.mark.parametrize("damage", HOPELESS)
@pytest.mark.parametrize("exists", [False, True])
async def test_where_nothing_can_be_done_it_says_so_and_leaves_nothing(data: Path, damage: str, exists: bool) -> None:
    await fill(data)
    HOPELESS[damage](data)
    before = everything(data)
    if exists:
        new(data).mkdir()
    result = CliRunner().invoke(main, ["recover", str(data), str(new(data))])
    assert result.exit_code == 2 and "nothing can be recovered" in result.output
    assert everything(data) == before
    assert not new(data).exists() or (exists and not any(new(data).iterdir()))


async def test_what_is_refused(data: Path, tmp_path: Path) -> None:
    await fill(data)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(CannotCheck, match="is not empty; choose a new directory"):
        recover(data, tmp_path / "full")
    with pytest.raises(CannotCheck, match="is not empty"):
        recover(data, tmp_path / "full" / "thesis.txt")
    with pytest.raises(CannotCheck, match="is not written to"):
        recover(data, data / "new")
    with pytest.raises(CannotCheck, match=r"no store\.db"):
        recover(tmp_path, tmp_path / "new")
    async with running(data):
        with pytest.raises(CannotCheck, match="stop it"):
            recover(data, tmp_path / "new")
    change_version = sqlite3.connect(data / "store.db")
    change_version.execute(f"PRAGMA user_version = {schema.version() + 1}")
    change_version.close()
    with pytest.raises(CannotCheck, match="newer agentmem"):
        recover(data, tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_what_stands_only_in_the_wal_is_recovered(data: Path) -> None:
    copy = data.with_name("crashed")
    async with running(data) as store:
        await store.cache.CommitTurn(kv.turn(ADA))
        shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock*", "*-shm"))
    before = everything(copy)
    found = recover(copy, new(data))
    assert [agent.tokens for agent in found.agents] == [len(ADA)] and everything(copy) == before


async def test_the_command_tells_people_and_machines(data: Path) -> None:
    await fill(data)
    result = CliRunner().invoke(main, ["recover", str(data), str(new(data))])
    assert result.exit_code == 0 and "whole" in result.output and "default/ada/demo: 612 tokens" in result.output
    change(data, "UPDATE segments SET text = x'00' WHERE id = 3")
    result = CliRunner().invoke(main, ["recover", str(data), str(data.with_name("other")), "--json"])
    told = json.loads(result.output)
    (ada,) = (agent for agent in told["agents"] if agent["agent_id"] == "ada")
    assert result.exit_code == 1 and not told["whole"]
    assert (ada["state"], ada["tokens"], ada["had_tokens"]) == ("in part", 200, 612)
    result = CliRunner().invoke(main, ["recover", str(data), str(data.with_name("third"))])
    assert "in part  default/ada/demo: up to turn 0 of 1, 200 of 612 tokens" in result.output


@pytest.mark.slow("1")
@pytest.mark.parametrize("seed", range(8))
async def test_random_damage_never_makes_a_wrong_ledger(data: Path, told: dict[str, list[int]], seed: int) -> None:
    """Whatever pages are lost: what is recovered passes the check, and each ledger is a beginning of what it was."""
    rng = random.Random(seed)
    pages = (data / "store.db").stat().st_size // 4096
    for page in rng.sample(range(2, pages), rng.choice([1, 3, 10])):
        zero_page(data / "store.db", page)
    try:
        found = recover(data, new(data))
    except CannotCheck:
        assert not new(data).exists()
        return
    await serves(new(data), told, found.agents)

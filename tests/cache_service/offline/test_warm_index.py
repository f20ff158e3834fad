"""`agentmem store check` of warm.db, where it is of no use, and of objects."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.v1 import agent_pb2
from cache_service.files import warm_database
from cache_service.offline.check import check
from cache_service.offline.commands import main
from cache_service.offline.findings import CannotCheck
from cache_service.offline.usage import usage

from .. import kv
from ..conftest import running
from .directory import (
    Fault,
    change,
    everything,
    fill_branches,
    ledgers,
    query,
    zero_table,
)

HELD = "SELECT DISTINCT uid, kind, chain_hash FROM held ORDER BY 1, 2, 3"
UNUSABLE: dict[str, Fault] = {
    "missing": lambda data: (data / "warm.db").unlink(),
    "empty": lambda data: (data / "warm.db").write_bytes(b"") and None,
    "zeros": lambda data: (data / "warm.db").write_bytes(bytes(8192)) and None,
    "cut off": lambda data: (data / "warm.db").write_bytes((data / "warm.db").read_bytes()[:6000]) and None,
    "a page of zeros": lambda data: zero_table(data, "held"),
    "an index of zeros": lambda data: zero_table(data, "held_by_file"),
    "of a newer version": lambda data: set_version(data / "warm.db", warm_database.VERSION + 1),
}


def set_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


def files(data: Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in everything(data).items() if name.endswith(".safetensors")}


@pytest.fixture
async def branched(data: Path) -> Path:
    await fill_branches(data)
    return data


@pytest.mark.parametrize("fault", UNUSABLE)
async def test_a_warm_db_of_no_use_is_named_and_the_next_start_makes_it_anew(branched: Path, fault: str) -> None:
    held, kept, before = set(query(branched, HELD)), ledgers(branched), files(branched)
    UNUSABLE[fault](branched)
    damaged = everything(branched)
    (finding,) = check(branched).findings
    assert finding.what == "warm" and finding.where == "warm.db" and finding.problem and not finding.mendable
    assert check(branched, repair=True).mended == []
    assert everything(branched) == damaged, "looking changes nothing"
    async with running(branched) as store:
        agent = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key("eve")))).agent
        assert agent.blocks == 3
    assert held <= set(query(branched, HELD)), "whoever held a file does"
    assert check(branched).findings == []
    assert ledgers(branched) == kept and files(branched) == before


@pytest.mark.parametrize("fault", ["missing", "empty", "of a newer version"])
async def test_du_says_what_to_do(branched: Path, fault: str) -> None:
    UNUSABLE[fault](branched)
    with pytest.raises(CannotCheck, match=r"warm\.db is .*; start the store once"):
        usage(branched)
    assert CliRunner().invoke(main, ["du", str(branched)]).exit_code == 2


async def test_an_object_of_nobody_is_let_go(branched: Path) -> None:
    before, kept = files(branched), ledgers(branched)
    change(
        branched,
        "INSERT INTO objects SELECT kind, chain_hash, namespace, agent_id, model_id, fingerprint, parent, first_token,"
        " token_count, size_bytes, digest, 1, '', '' FROM files LIMIT 1",
    )
    (finding,) = check(branched).findings
    assert finding.what == "object" and finding.mendable
    assert check(branched, repair=True).is_clean
    assert check(branched).findings == []
    assert files(branched) == before and ledgers(branched) == kept
    assert query(branched, "SELECT count(*) FROM object_deletions") == [(1,)]

"""`agentmem store check` of forks, snapshots, cuts and evictions, of a warm.db of no use, and of objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cache_service.ledger import segments
from cache_service.offline.check import check
from cache_service.offline.commands import main
from cache_service.offline.findings import CannotCheck
from cache_service.offline.usage import usage
from tests.cache_service.conftest import running
from tests.cache_service.offline.directory import ADA, block, change, everything, fill_branches, flip, ledgers, query
from tests.cache_service.test_lost_warm_database import LOST


@pytest.fixture
async def branched(data: Path) -> Path:
    await fill_branches(data)
    return data


async def test_what_forks_snapshots_cuts_and_evictions_leave_is_clean(branched: Path) -> None:
    assert query(branched, "SELECT count(*) FROM snapshots WHERE automatic") == [(4,)]
    assert query(branched, "SELECT count(*) FROM segments WHERE generated_tokens = -1")[0][0] == 1, "one is cut"
    assert query(branched, "SELECT count(*) FROM turns WHERE segment IS NULL")[0][0] > 0
    assert query(branched, "SELECT count(*) FROM published WHERE evicted = 1")[0][0] > 0
    assert query(branched, "SELECT count(*) FROM held WHERE last_version IS NOT NULL")[0][0] > 0
    before = everything(branched)
    checked = check(branched)
    assert checked.findings == []
    assert everything(branched) == before
    assert check(branched, repair=True).mended == []
    async with running(branched) as store:
        assert [(await store.agent(name)).tokens for name in ("ada", "eve", "cut", "none")] == [258, len(ADA), 302, 2]


SNAPSHOT_FAULTS = {
    "tokens": "UPDATE snapshots SET tokens = tokens + 1 WHERE name = 'mine'",
    "bytes": "UPDATE snapshots SET text_bytes = text_bytes - 1 WHERE name = 'mine'",
    "turns": "UPDATE snapshots SET turns = 9 WHERE name = 'mine'",
    "version": "UPDATE snapshots SET version = 99 WHERE name = 'mine'",
    "head": "UPDATE snapshots SET head_segment = 99 WHERE name = 'mine'",
    "turn of another segment": "UPDATE turns SET version = 4 WHERE version = 2"
    " AND uid = (SELECT uid FROM agents WHERE agent_id = 'ada')",
    "segment of another namespace": "UPDATE segments SET namespace = 'other' WHERE id = 2",
    "turn of another namespace": "UPDATE turns SET namespace = 'other' WHERE version = 2"
    " AND uid = (SELECT uid FROM agents WHERE agent_id = 'ada')",
    "cut segment with a turn": "UPDATE segments SET generated_tokens = -1, turns = turns - 1 WHERE id = 2",
}


@pytest.mark.parametrize("fault", SNAPSHOT_FAULTS)
async def test_damage_of_a_snapshot_is_named_with_its_agent_and_left(branched: Path, fault: str) -> None:
    change(branched, SNAPSHOT_FAULTS[fault])
    kept = ledgers(branched)
    for _ in range(2):
        damage = [finding for finding in check(branched, repair=True).findings if finding.what == "ledger"]
        assert damage and "default/ada/demo" in {agent for finding in damage for agent in finding.agents}
        assert ledgers(branched) == kept


_ORPHAN: dict[str, Any] = {
    **{"namespace": "default", "parent_id": None, "parent_tokens": 0, "parent_bytes": 0, "tokens": 1, "text_bytes": 6},
    **{"generated_tokens": 0, "version": 1, "turns": 1, "tokenizer_hash": "t", "opening_bytes": 0, "template_time": ""},
    **{"token_ids": b"\7\0\0\0", "text": b"secret", "offsets": b"\6\0\0\0"},
}


def plant(data: Path) -> None:
    row = {**_ORPHAN, "digest": segments.digest(_ORPHAN)}
    change(data, f"INSERT INTO segments ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", *row.values())


MENDABLE = {
    "a namespace's sum that is wrong": ("UPDATE namespaces SET ledger_bytes = ledger_bytes + 1", "usage"),
    "a namespace's sum of nothing": ("INSERT INTO namespaces VALUES ('other', 1)", "usage"),
    "a segment that nobody stands on": ("", "unerased"),
    "a rest that nobody needs": (
        "DELETE FROM turns WHERE uid = (SELECT uid FROM agents WHERE agent_id = 'bob');"
        "DELETE FROM held WHERE uid = (SELECT uid FROM agents WHERE agent_id = 'bob');"
        "UPDATE agents SET tokens = 10, text_bytes = 11, turns = 0 WHERE agent_id = 'bob'",
        "unerased",
    ),
}


@pytest.mark.parametrize("fault", MENDABLE)
async def test_what_is_counted_or_left_over_is_mended(branched: Path, fault: str) -> None:
    statements, what = MENDABLE[fault]
    for statement in statements.split(";"):
        change(branched, statement) if statement else plant(branched)
    agents = query(branched, "SELECT * FROM agents ORDER BY uid")
    found = check(branched)
    assert {finding.what for finding in found.findings} == {what} and all(f.mendable for f in found.findings)
    assert check(branched, repair=True).is_clean
    assert check(branched).findings == []
    assert query(branched, "SELECT * FROM agents ORDER BY uid") == agents
    async with running(branched) as store:
        assert (await store.agent("ada")).tokens == 258
    assert b"secret" not in (branched / "store.db").read_bytes()


async def test_a_file_that_only_a_snapshot_refers_to_is_named_with_its_agent(branched: Path) -> None:
    others = "last_version IS NULL AND uid NOT IN (SELECT uid FROM agents WHERE agent_id = 'bob')"
    change(branched, f"DELETE FROM held WHERE {others}")
    flip(block(branched, ADA, -1))
    (finding,) = check(branched, repair=True).findings
    assert finding.what == "digest" and finding.agents == ("default/ada/demo",)
    assert check(branched).is_clean


def files(data: Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in everything(data).items() if name.endswith(".safetensors")}


@pytest.mark.parametrize("fault", LOST)
async def test_a_warm_db_of_no_use_is_named(branched: Path, fault: str) -> None:
    LOST[fault](branched)
    damaged = everything(branched)
    (finding,) = check(branched).findings
    assert finding.what == "warm" and finding.where == "warm.db" and finding.problem and not finding.mendable
    assert check(branched, repair=True).mended == []
    assert everything(branched) == damaged, "looking changes nothing"


@pytest.mark.parametrize("fault", ["missing", "empty", "of a newer version"])
async def test_du_says_what_to_do(branched: Path, fault: str) -> None:
    LOST[fault](branched)
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

"""`agentmem store check` of warm.db: where it is of no use, and where it says what the ledger does not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.v1 import agent_pb2
from agentmem.validation import AgentKey
from cache_service.files import warm_database
from cache_service.ledger import agents
from cache_service.offline.check import check
from cache_service.offline.commands import main
from cache_service.offline.database import writing
from cache_service.offline.findings import CannotCheck
from cache_service.offline.usage import usage

from .. import kv
from ..conftest import running
from .directory import (
    ADA,
    Fault,
    block,
    change,
    everything,
    fill_branches,
    flip,
    ledgers,
    query,
    zero_table,
)

HELD = "SELECT uid, snapshot, kind, chain_hash FROM held"
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
async def test_a_warm_db_of_no_use_is_made_anew_of_ledgers_and_files(branched: Path, fault: str) -> None:
    held, kept, before = set(query(branched, HELD)), ledgers(branched), files(branched)
    UNUSABLE[fault](branched)
    damaged = everything(branched)
    (finding,) = check(branched).findings
    assert finding.what == "warm" and finding.where == "warm.db" and finding.problem and finding.mend
    assert everything(branched) == damaged, "looking changes nothing"
    assert check(branched, repair=True).is_clean
    assert check(branched).findings == []
    assert held <= set(query(branched, HELD)), "whoever held a file does"
    assert ledgers(branched) == kept and files(branched) == before
    async with running(branched) as store:
        agent = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key("eve")))).agent
        assert agent.blocks == 3
        await store.delete(kv.key("bob"))
    assert files(branched).keys() < before.keys(), "and goes with its agent"


async def test_files_that_no_ledger_names_are_nobodys_and_go(branched: Path) -> None:
    """They may be of an agent that was deleted when warm.db was lost."""
    stray = block(branched, [*ADA[:-1], 1], -1)
    stray.parent.mkdir(mode=0o700, exist_ok=True)
    stray.write_bytes(block(branched, ADA, -1).read_bytes())
    stray.chmod(0o600)
    (branched / "warm.db").unlink()
    check(branched, repair=True)
    assert [finding.what for finding in check(branched, repair=True).findings] == ["orphan"] and not stray.exists()


async def test_a_ledger_that_cannot_be_read_costs_its_own_files(branched: Path) -> None:
    lost = "UPDATE segments SET token_ids = x'00' WHERE id = (SELECT head_segment FROM agents WHERE agent_id = 'bob')"
    change(branched, lost)
    (branched / "warm.db").unlink()
    checked = check(branched, repair=True)
    assert {finding.what for finding in checked.findings} == {"ledger", "warm"}
    holders = {row[0] for row in query(branched, "SELECT DISTINCT agent_id FROM held JOIN agents USING (uid)")}
    assert holders == {"ada", "cut", "eve", "idle"}, "idle has the beginning of what bob had"


@pytest.mark.parametrize("fault", ["missing", "empty", "of a newer version"])
async def test_du_says_what_to_do(branched: Path, fault: str) -> None:
    UNUSABLE[fault](branched)
    with pytest.raises(CannotCheck, match=r"warm\.db is .*; start the store once"):
        usage(branched)
    assert CliRunner().invoke(main, ["du", str(branched)]).exit_code == 2


NOBODY = "INSERT INTO held SELECT {}, kind, chain_hash FROM files WHERE agent_id = 'bob'"
OBJECT = (
    "INSERT INTO objects SELECT kind, chain_hash, namespace, agent_id, model_id, fingerprint, parent, first_token,"
    " token_count, size_bytes, digest, 1, '', '' FROM files LIMIT 1"
)
STRANGE = {
    "an agent that is not": (NOBODY.format("'nobody', 0"), "held"),
    "a snapshot that is not": (NOBODY.format("(SELECT uid FROM agents WHERE agent_id = 'ada'), 999"), "held"),
    "published of an agent that is not": ("INSERT INTO published VALUES ('nobody', 1)", "held"),
    "published of a version to come": ("UPDATE published SET version = version + 99", "held"),
    "a change to come": ("UPDATE followed SET change = 100000", "held"),
    "an object of nobody": (OBJECT, "object"),
}


@pytest.mark.parametrize("fault", STRANGE)
async def test_what_the_ledger_does_not_say_is_found_and_mended(branched: Path, fault: str) -> None:
    statement, what = STRANGE[fault]
    before, kept = files(branched), ledgers(branched)
    change(branched, statement)
    found = check(branched).findings
    assert {finding.what for finding in found} == {what} and all(finding.mend for finding in found)
    assert all(finding.where and finding.problem and finding.consequence and finding.repair for finding in found)
    assert check(branched, repair=True).is_clean
    assert check(branched).findings == []
    assert files(branched) == before, "others hold them"
    assert ledgers(branched) == kept
    assert query(branched, "SELECT count(*) FROM object_deletions") == [(int(what == "object"),)]


async def test_a_file_that_only_a_stranger_holds_goes(branched: Path) -> None:
    change(branched, "UPDATE held SET uid = 'nobody' WHERE uid = (SELECT uid FROM agents WHERE agent_id = 'bob')")
    assert check(branched, repair=True).is_clean
    assert not any("bob" in row for row in query(branched, "SELECT agent_id FROM files"))
    assert check(branched).findings == []


async def test_a_file_that_goes_is_not_set_aside(branched: Path) -> None:
    """It is damaged, too, and one mend has let it go before the other moves it."""
    change(branched, "UPDATE held SET uid = 'nobody' WHERE uid = (SELECT uid FROM agents WHERE agent_id = 'bob')")
    ((chain_hash,),) = query(branched, "SELECT chain_hash FROM files WHERE agent_id = 'bob' AND kind = 2")
    flip(branched / "windows" / chain_hash.hex()[:2] / f"{chain_hash.hex()}.safetensors")
    assert {finding.what for finding in check(branched, repair=True).findings} == {"digest", "held"}
    assert check(branched).findings == []


async def test_a_deletion_that_was_not_followed_is(branched: Path) -> None:
    """A crash came after the ledger's transaction: no byte of KV of who was deleted may stay."""
    mine = {row[0].hex() for row in query(branched, "SELECT chain_hash FROM files WHERE agent_id = 'bob'")}
    with writing(branched / "store.db") as ledger:
        agents.delete(ledger, AgentKey("default", "bob", "demo"))
    (finding,) = check(branched).findings
    assert (finding.what, finding.where) == ("held", "table kv_changes") and "deleted" in finding.consequence
    assert check(branched, repair=True).is_clean
    assert check(branched).findings == []
    assert mine and not any(name.hex() in mine for (name,) in query(branched, "SELECT chain_hash FROM files"))
    assert not any(Path(name).stem in mine for name in files(branched))

"""`agentmem store check` of warm.db, where it is of no use, and of objects."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cache_service.offline.check import check
from cache_service.offline.commands import main
from cache_service.offline.findings import CannotCheck
from cache_service.offline.usage import usage

from ..test_lost_warm_database import LOST
from .directory import change, everything, fill_branches, ledgers, query


def files(data: Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in everything(data).items() if name.endswith(".safetensors")}


@pytest.fixture
async def branched(data: Path) -> Path:
    await fill_branches(data)
    return data


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

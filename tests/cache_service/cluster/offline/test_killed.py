"""An import that is killed at any of its steps: no store serves what is half moved, and a repetition ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cache_service.cluster.offline import importing
from cache_service.cluster.offline.checking import check
from cache_service.cluster.postgres.settings import Settings
from cache_service.files.directory import DirectoryUnusable
from cache_service.offline.database import DatabaseDamaged
from tests.cache_service import kv
from tests.cache_service.conftest import running
from tests.postgres import Server

_CHILD = """
import os, signal, sys
from pathlib import Path
from cache_service.cluster.postgres.settings import Settings
from cache_service.cluster.offline import importing, rows
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
owner = {"importing": importing, "rows": rows}[sys.argv[4]]
real, calls = getattr(owner, sys.argv[5]), int(sys.argv[6])
def late(*args, **named):
    global calls
    if calls == 0:
        die()
    calls -= 1
    return real(*args, **named)
setattr(owner, sys.argv[5], late)
importing.bring(Path(sys.argv[1]), Settings(sys.argv[2], sys.argv[3], "a", "nothing"))
"""
POINTS = {
    "before its new name": ("importing", "_rename", 0),
    "begun": ("importing", "_move_all", 0),
    "rows are written": ("rows", "_draw", 1),
    "committed": ("importing", "_rename", 1),
}


def kill(branched: Path, cluster: Settings, point: str) -> None:
    command = [sys.executable, "-c", _CHILD, str(branched), cluster.conninfo, cluster.schema, *map(str, POINTS[point])]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.slow("committed", "begun")
@pytest.mark.parametrize("point", POINTS)
async def test_an_import_that_is_killed_is_ended_by_its_repetition(
    branched: Path, cluster: Settings, postgres_server: Server, point: str
) -> None:
    kill(branched, cluster, point)
    if not (branched / "store.db").exists():
        with pytest.raises(DatabaseDamaged, match="agentmem cluster import"):
            async with running(branched):
                pass
        with pytest.raises(DirectoryUnusable, match="agentmem cluster import"):
            async with running(branched, cluster=cluster):
                pass
    assert not importing.bring(branched, cluster).was_done
    checked = check(cluster)
    assert (checked.findings, checked.agents) == ([], 6)
    with postgres_server.connect() as connection:
        rows = connection.execute(f'SELECT count(*) FROM "{cluster.schema}".imports'.encode()).fetchone()
    assert rows == (1,)
    assert importing.bring(branched, cluster).was_done
    async with running(branched, cluster=cluster) as store:
        agent = await store.agent("eve")
        assert agent.tokens > 0


async def test_an_import_that_is_refused_after_a_kill_lets_the_store_start_again(
    branched: Path, cluster: Settings
) -> None:
    kill(branched, cluster, "rows are written")
    async with running(branched.with_name("other"), cluster=cluster) as store:
        await store.cache.CommitTurn(kv.turn([1, 2, 3]))
    with pytest.raises(importing.Refused):
        importing.bring(branched, cluster)
    async with running(branched):
        assert (branched / "store.db").exists()

"""`agentmem cluster check` finds each kind of damage, and mends sums only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cache_service.cluster.offline import exporting, importing
from cache_service.cluster.offline.checking import check
from cache_service.cluster.postgres.settings import Settings
from cache_service.offline.findings import CannotCheck
from tests.postgres import Server

DAMAGE = {  # what `offline.ledgers` finds it finds on SQLite, too
    "a segment's text": ("UPDATE segments SET text = '\\x00' || substr(text, 2) WHERE tokens > 2", "ledger"),
    "bytes of a namespace": ("UPDATE namespaces SET ledger_bytes = ledger_bytes + 5", "usage"),
    "a torn run": ("DELETE FROM workflow_parts WHERE number = 1", "ledger"),
    "a reference without its object": (
        "INSERT INTO object_refs SELECT uid, 1, '\\x01', 1 FROM agents LIMIT 1",
        "object",
    ),
    "an object of nobody": (
        "INSERT INTO objects SELECT 1, '\\x02', namespace, agent_id, model_id, 'f', '', 0, 1, 1, '', 1, '', ''"
        " FROM agents LIMIT 1",
        "object",
    ),
    "a change that a node has not followed": (
        "INSERT INTO nodes SELECT 'slow', 1, '', '', 9000000000000000000, 0, '';"
        "INSERT INTO kv_changes (uid, source_version, tokens, version, namespace, made)"
        " SELECT uid, 0, 0, 0, namespace, 1 FROM agents LIMIT 1",
        "held",
    ),
}


def damage(server: Server, schema: str, statements: str) -> None:
    """Change rows with triggers and foreign keys switched off."""
    with server.connect() as connection:
        connection.execute(f'SET session_replication_role = replica; SET search_path = "{schema}"'.encode())
        for statement in statements.split(";"):
            assert connection.execute(statement.encode()).rowcount > 0


@pytest.mark.parametrize("kind", DAMAGE)
async def test_damage_is_found(furnished: Path, cluster: Settings, postgres_server: Server, kind: str) -> None:
    importing.bring(furnished, cluster)
    assert check(cluster).findings == []
    statements, what = DAMAGE[kind]
    damage(postgres_server, cluster.schema, statements)
    found = check(cluster)
    assert what in {finding.what for finding in found.findings}
    assert not found.is_clean
    fixed = check(cluster, repair=True)
    assert {finding.what for finding in fixed.mended} <= {"usage"}
    assert "usage" not in {finding.what for finding in check(cluster).findings}


async def test_a_damaged_cluster_is_not_exported(
    furnished: Path, cluster: Settings, postgres_server: Server, tmp_path: Path
) -> None:
    importing.bring(furnished, cluster)
    damage(postgres_server, cluster.schema, DAMAGE["a segment's text"][0])
    with pytest.raises(CannotCheck, match="digest differs"):
        exporting.take(tmp_path / "new", cluster)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
async def test_the_commands_say_what_they_did_and_how_it_ended(
    furnished: Path, cluster: Settings, postgres_server: Server, tmp_path: Path
) -> None:
    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = [f"--cluster={cluster.conninfo}", "--cluster-survives=nothing", f"--schema={cluster.schema}"]
        command = [sys.executable, "-m", "gateway.cli.main", "cluster", name, *where, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("import", str(furnished), "--node=a")
    assert (done.returncode, done.stderr) == (0, "")
    assert "agents" in done.stdout
    assert "imported before" in run("import", str(furnished)).stdout
    assert run("check").returncode == 0
    done = run("export", str(tmp_path / "one"), "--namespace=other", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["agents"] == 1
    assert run("export", str(tmp_path / "one")).returncode == 2
    damage(postgres_server, cluster.schema, DAMAGE["bytes of a namespace"][0])
    done = run("check", "--json")
    assert (done.returncode, json.loads(done.stdout)["clean"]) == (1, False)
    assert run("check", "--fix").returncode == 0
    assert run("check").returncode == 0

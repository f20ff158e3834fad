"""`agentmem store du`: every byte once by kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.v1 import cache_store_pb2 as pb
from cache_service.offline.commands import main
from cache_service.offline.findings import CannotCheck
from cache_service.offline.usage import usage

from .. import kv
from ..conftest import running
from .directory import ADA, EVE, block, everything, fill, fill_branches, headers, query


@pytest.fixture
async def filled(data: Path) -> Path:
    await fill(data)
    return data


def kv_bytes(data: Path) -> int:
    return sum(
        path.stat().st_size for folder in ("blocks", "windows") for path in (data / folder).rglob("*") if path.is_file()
    )


def ledger_bytes(data: Path) -> int:
    (segments,) = query(data, "SELECT total(8 * tokens + text_bytes) FROM segments")[0]
    (records,) = query(data, "SELECT total(length(record)) FROM turns")[0]
    return int(segments + records)


async def test_kinds_agents_and_namespaces_Totals(filled: Path) -> None:
    before = everything(filled)
    found = usage(filled)
    agents = {agent.key.agent_id: agent for agent in found.agents}
    shared = sum(block(filled, ADA, index).stat().st_size for index in (0, 1))
    assert agents["ada"].kv_shared == agents["eve"].kv_shared == shared
    for name, tokens in (("ada", ADA), ("eve", EVE)):
        tail = headers(tokens)[-1].chain_hash.hex()
        own = [path for path in filled.rglob(f"{tail}.safetensors")]
        if name == "ada":  # what a turn has dropped is still her automatic snapshot's
            own += filled.rglob(f"{headers(ADA[:300])[-1].chain_hash.hex()}.safetensors")
        assert len(own) == (4 if name == "ada" else 2)
        assert agents[name].kv_own == sum(path.stat().st_size for path in own)
    assert found.totals["blocks"] + found.totals["windows"] == kv_bytes(filled)
    assert sum(agent.ledger for agent in found.agents) == ledger_bytes(filled)
    assert found.namespaces == {"default": kv_bytes(filled) + ledger_bytes(filled)}, "as its quota counts them"
    assert found.totals["staging"] == 0 and found.totals["database"] == sum(
        path.stat().st_size for path in filled.glob("*.db")
    )
    assert everything(filled) == before


async def test_forks_share_and_an_agent_whose_kv_was_evicted_has_none(data: Path) -> None:
    await fill_branches(data)
    found = {agent.key.agent_id: agent for agent in usage(data).agents}
    assert found["bob"].kv_own > 0 < found["ada"].kv_shared == found["eve"].kv_shared
    assert found["idle"].kv_own == 0 < found["idle"].ledger
    assert sum(usage(data).namespaces.values()) == kv_bytes(data) + ledger_bytes(data)


async def test_records_of_runs_are_the_namespaces_as_its_quota_counts_them(data: Path) -> None:
    async with running(data) as store:
        await store.cache.CommitTurn(kv.turn([1, 2]))
        for namespace, payload in (("default", b"p" * 1000), ("other", b"q")):
            record = pb.WorkflowRecord(namespace=namespace, workflow_id="w", summary=b"s" * 30, payload=payload)
            await store.cache.PutWorkflowRecord(pb.PutWorkflowRecordRequest(record=record))
    counted = query(data, "SELECT namespace, ledger_bytes FROM namespaces")
    assert usage(data).namespaces == dict(counted) == {"default": ledger_bytes(data) + 1030, "other": 31}


async def test_the_command_tells_people_and_machines(filled: Path) -> None:
    result = CliRunner().invoke(main, ["du", str(filled)])
    assert result.exit_code == 0 and "default/ada/demo" in result.output
    result = CliRunner().invoke(main, ["du", str(filled), "--json"])
    told = json.loads(result.output)
    assert {agent["agent_id"] for agent in told["agents"]} == {"ada", "eve", "bob"} and told["totals"]["blocks"] > 0
    assert CliRunner().invoke(main, ["du", str(filled / "nothing")]).exit_code == 2


def test_no_store_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CannotCheck, match=r"no store\.db"):
        usage(tmp_path)

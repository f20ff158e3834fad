"""Every table of the commands at 80 columns, with long names and large numbers: only names and notes may wrap."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console
from rich.table import Table

from agentmem.v1 import agent_pb2, model_pb2, types_pb2, workflow_pb2
from gateway.cli.agents import agents_table
from gateway.cli.branches import snapshots_table
from gateway.cli.keys import keys_table
from gateway.cli.model_tables import models_table
from gateway.edge.keys import new
from gateway.workflows.cli.runs import workflows_table

COLUMNS = 80
NOW = datetime(2026, 7, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=365)
MODEL = "mlx-community/Llama-3.2-3B-Instruct-4bit"
WORKFLOW = "b6a5a79c-8429-4462-9999-0641f50b3e98"
KEY = types_pb2.AgentKey(agent_id="customer-4711/support-assistant", model_id=MODEL)
VERSION = types_pb2.AgentVersion(version=1234)


def agents() -> Table:
    agent = agent_pb2.Agent(key=KEY, version=VERSION, tokens=131_072, turns=1234, warm_bytes=999_900_000)
    agent.tier = types_pb2.TIER_REMOTE
    agent.update_time.FromDatetime(LONG_AGO)
    return agents_table([agent], NOW)


def snapshots() -> Table:
    snapshot = agent_pb2.Snapshot(name="before-the-long-negotiation-of-monday", version=VERSION, tokens=131_072)
    snapshot.create_time.FromDatetime(LONG_AGO)
    return snapshots_table([snapshot])


def models() -> Table:
    model = model_pb2.Model(model_id=MODEL, context_length=131_072, weight_bytes=999_900_000, pinned=True)
    model.memory.agents_4k = 12_345
    return models_table([model])


def workflows() -> Table:
    run = workflow_pb2.Workflow(workflow_id=WORKFLOW, name="code-review-of-the-team", turns=12_345)
    run.state = workflow_pb2.WORKFLOW_STATE_CANCELLED
    run.update_time.FromDatetime(LONG_AGO)
    return workflows_table([run], NOW)


def keys() -> Table:
    limits = {"expires": NOW + timedelta(hours=1), "admin": True, "max_running": 64, "max_per_minute": 120_000}
    key, _ = new("the-team-of-customer-4711", LONG_AGO, label="continuous integration", **limits)
    return keys_table([key], NOW)


@pytest.mark.parametrize("table", [agents, snapshots, models, workflows, keys])
def test_a_table_fits(table: object) -> None:
    assert callable(table)
    built = table()
    written = io.StringIO()
    Console(file=written, width=COLUMNS).print(built)
    lines = written.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= COLUMNS
    assert "…" not in written.getvalue()
    words = written.getvalue().split()
    for column in built.columns:
        assert set(str(column.header).split()) <= set(words), f"the header {column.header!r} is broken"
        if column.no_wrap or column.justify == "right":
            cells = {word for cell in column.cells for word in str(cell).split()}
            assert cells <= set(words), f"a value of {column.header!r} is broken"

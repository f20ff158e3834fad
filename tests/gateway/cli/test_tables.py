"""Every table of the commands at 80 columns, with long names and large numbers: only names and notes may wrap."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console
from rich.table import Table

from agentmem.v1 import agent_pb2, model_pb2, types_pb2
from gateway.cli.agents import agents_table
from gateway.cli.branches import snapshots_table
from gateway.cli.keys import keys_table
from gateway.cli.models import models_table
from gateway.edge.keys import new

COLUMNS = 80
NOW = datetime(2026, 7, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=365)
MODEL = "mlx-community/Llama-3.2-3B-Instruct-4bit"
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


def keys() -> Table:
    limits = {"expires": NOW + timedelta(hours=1), "admin": True, "max_running": 64, "max_per_minute": 120_000}
    key, _ = new("the-team-of-customer-4711", LONG_AGO, label="continuous integration", **limits)
    return keys_table([key], NOW)


@pytest.mark.parametrize("table", [agents, snapshots, models, keys])
def test_a_table_fits(table: Callable[[], Table]) -> None:
    assert_fits(table())


def assert_fits(built: Table) -> None:
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

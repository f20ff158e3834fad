"""The command itself, run on a scripted gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main

from ...conftest import Command
from .scripted import ScriptedWorkflows

DEFINITION = """\
workflow: prison
agents: {warden: {}, marco: {}, danny: {}}
phases:
  - {name: yard, agents: [marco, danny], listeners: [warden]}
"""


@pytest.fixture
async def workflows() -> AsyncIterator[ScriptedWorkflows]:
    served = ScriptedWorkflows()
    await served.start()
    yield served
    await served.stop()


@pytest.fixture
def agentmem(workflows: ScriptedWorkflows) -> Command:
    async def run(*arguments: str, say: str = "") -> Result:
        given = [*arguments, "--gateway", workflows.address]
        return await asyncio.to_thread(CliRunner().invoke, main, given, input=say)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prison.yaml"
    path.write_text(DEFINITION)
    return path

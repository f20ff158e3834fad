from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmem import AsyncClient, errors
from agentmem.v1 import workflow_pb2
from tests.gateway.scripted import script
from tests.gateway.workflows.cli.events import RUN, Event
from tests.gateway.workflows.cli.scripted import ScriptedWorkflows, after

PATIENCE = 1.5
"""Seconds. An outage has two attempts, each a tenth of a second after the one before, or a little more."""


async def followed(workflows: ScriptedWorkflows, patience: float = 60) -> tuple[list[Event], list[str]]:
    outages = list[str]()
    async with AsyncClient(workflows.address, patience=patience, on_outage=outages.append) as client:
        request = workflow_pb2.RunWorkflowRequest(resume_workflow_id="wf-1")
        return [event async for event in client.workflows.raw_events(request) if event is not None], outages


async def test_patience_begins_anew_with_what_is_new(workflows: ScriptedWorkflows) -> None:
    """One event each time: all outages together are longer than the patience, each of them is not."""

    async def one_at_a_time(request: Any) -> AsyncIterator[Event]:
        if len(workflows.runs_asked) > 1 and len(workflows.runs_asked) % 2:
            raise errors.Unavailable("restarting", retry_after=0.1)
        yield after(RUN, request.after_sequence)[0]
        raise errors.Unavailable("restarting", retry_after=0.1)

    workflows.script = one_at_a_time
    began = time.monotonic()
    events, outages = await followed(workflows, PATIENCE)
    assert time.monotonic() - began > PATIENCE
    assert events == after(RUN, 0)
    assert set(outages) == {"restarting"}


async def test_a_gateway_that_never_tells_anything_new_is_given_up(workflows: ScriptedWorkflows) -> None:
    workflows.script = script([*RUN[:3], errors.Unavailable("restarting", retry_after=0.1)])
    with pytest.raises(errors.Unavailable, match="restarting"):
        await followed(workflows, 0.3)
    assert len(workflows.runs_asked) > 1


async def test_what_comes_after_the_end_does_not_matter(workflows: ScriptedWorkflows) -> None:
    workflows.script = script([*RUN, errors.Unavailable("draining")])
    assert await followed(workflows) == (RUN, [])
    assert len(workflows.runs_asked) == 1

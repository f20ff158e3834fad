from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from agentmem import errors
from agentmem.channels import connect
from agentmem.v1 import workflow_pb2
from gateway.cli import client
from gateway.cli.workflows.run import follow
from gateway.cli.workflows.state import Run
from gateway.cli.workflows.view import View
from tests.gateway.cli.workflows.events import RUN, Event
from tests.gateway.cli.workflows.scripted import ScriptedWorkflows, after


async def followed(workflows: ScriptedWorkflows) -> tuple[Run, list[str]]:
    outages = list[str]()

    class Silent(View):
        def outage(self, why: str) -> None:
            outages.append(why)

    view = Silent(Run())
    async with connect(workflows.address) as channel:
        await follow(channel, workflow_pb2.RunWorkflowRequest(resume_workflow_id="wf-1"), view)
    return view.run, outages


async def test_patience_begins_anew_with_what_is_new(
    workflows: ScriptedWorkflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event each time: all outages together are longer than PATIENCE, each of them is not."""
    monkeypatch.setattr(client, "PATIENCE", 0.3)

    async def one_at_a_time(request: Any) -> AsyncIterator[Event]:
        if len(workflows.runs_asked) > 1 and len(workflows.runs_asked) % 2:
            raise errors.Unavailable("restarting", retry_after=0.05)
        yield after(RUN, request.after_sequence)[0]
        raise errors.Unavailable("restarting", retry_after=0.05)

    workflows.script = one_at_a_time
    run, outages = await followed(workflows)
    assert run.finished
    assert set(outages) == {"restarting"}


async def test_a_gateway_that_never_tells_anything_new_is_given_up(
    workflows: ScriptedWorkflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.3)

    async def again(_: Any) -> AsyncIterator[Event]:
        for event in RUN[:3]:
            yield event
        raise errors.Unavailable("restarting", retry_after=0.1)

    workflows.script = again
    with pytest.raises(grpc.aio.AioRpcError):
        await followed(workflows)
    assert len(workflows.runs_asked) > 1


async def test_what_comes_after_the_end_does_not_matter(workflows: ScriptedWorkflows) -> None:
    async def stops(_: Any) -> AsyncIterator[Event]:
        for event in RUN:
            yield event
        raise errors.Unavailable("draining")

    workflows.script = stops
    run, outages = await followed(workflows)
    assert (run.finished, outages, len(workflows.runs_asked)) == (True, [], 1)

"""A workflow on a live stack, by RunWorkflow, also through the death of worker and store."""

import asyncio
import json
from contextlib import aclosing

from agentmem.client import AsyncClient
from agentmem.v1 import workflow_pb2
from benchmarks.live import LiveStack
from benchmarks.working_memory.scenarios import Scenario
from benchmarks.working_memory.scores import Performance
from benchmarks.working_memory.text import work

_JOINED = 20
"""Times that a run is joined before it has failed."""


async def perform(stack: LiveStack, scenario: Scenario, request_id: str, kill_in: str = "") -> Performance:
    """Raises RuntimeError."""
    request = workflow_pb2.RunWorkflowRequest(request_id=request_id, definition_yaml=json.dumps(scenario.definition))
    performance, killing, began = Performance(), None, 0.0
    async with AsyncClient(stack.addresses["grpc"]) as client:
        for _ in range(_JOINED):
            async with aclosing(client.workflows.raw_events(request)) as events:
                async for event in events:
                    if event is None:
                        continue
                    request.after_sequence = max(request.after_sequence, event.sequence)
                    now = event.time.ToMicroseconds() / 1e6
                    match event.WhichOneof("event"):
                        case "started":
                            began = began or now
                        case "agent_speaking" if event.agent_speaking.phase == kill_in and killing is None:
                            killing = asyncio.create_task(stack.kill("worker", "store"))
                        case "agent_spoke":
                            told = event.agent_spoke
                            performance.works.append(work("turn", told, told.text))
                        case "agent_listened":
                            heard = event.agent_listened
                            kind = "note" if heard.usage.completion_tokens else "silent"
                            performance.works.append(work(kind, heard, heard.note))
                        case "finished" if event.finished.workflow.state == workflow_pb2.WORKFLOW_STATE_SUCCEEDED:
                            performance.seconds = now - began
                            if killing is not None:
                                performance.notices["seconds_until_both_served"] = await killing
                            return performance
                        case "finished" if killing is None:
                            raise RuntimeError(f"the run failed: {event.finished.workflow.error}")
            await asyncio.sleep(0.5)
    raise RuntimeError(f"the run {request_id} does not go on")

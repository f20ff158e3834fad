"""A workflow on a live stack, by RunWorkflow, also through the death of worker and store."""

import asyncio
import json

import grpc

from agentmem.channels import closing_stream, connect
from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from benchmarks.live import LiveStack
from benchmarks.working_memory.scenarios import Scenario
from benchmarks.working_memory.scores import Performance, Work
from benchmarks.working_memory.text import work

_JOINED_AGAIN = 20
"""Times that a run is joined again before its failure is one."""


class LiveRun:
    """One run. `kill_in` names a phase in whose first turns worker and store die by SIGKILL."""

    def __init__(self, stack: LiveStack, scenario: Scenario, request_id: str, kill_in: str = "") -> None:
        self._stack = stack
        self._request = workflow_pb2.RunWorkflowRequest(
            request_id=request_id, definition_yaml=json.dumps(scenario.definition)
        )
        self._kill_in = kill_in
        self._killing: asyncio.Task[float] | None = None
        self._performance = Performance()
        self._phase, self._began = "", 0.0

    async def perform(self) -> Performance:
        """Run it to its end, joining it again where that is lost. Raises RuntimeError if it does not succeed."""
        channel = connect(self._stack.addresses["grpc"])
        try:
            joined = 1
            while not await self._follow(workflow_pb2_grpc.WorkflowServiceStub(channel)):
                joined += 1
                if joined > _JOINED_AGAIN:
                    raise RuntimeError(f"the run {self._request.request_id} does not go on")
                await asyncio.sleep(0.5)
        finally:
            await channel.close(None)
        if self._killing is not None:
            replayed = sum(each.replayed for each in self._performance.works)
            self._performance.notices["killed"] = {
                "phase": self._kill_in,
                "seconds_until_both_served": await self._killing,
                "joined": joined,
                "replayed": replayed,
            }
        return self._performance

    async def _follow(self, workflows: "workflow_pb2_grpc.WorkflowServiceAsyncStub") -> bool:
        """Whether the run has ended well; False where it is to be joined again."""
        try:
            async with closing_stream(workflows.RunWorkflow(self._request)) as events:
                async for event in events:
                    self._request.after_sequence = max(self._request.after_sequence, event.sequence)
                    if event.HasField("finished"):
                        return self._ended(event)
                    self._take(event)
        except grpc.aio.AioRpcError as error:
            if self._killing is None or error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
        return False

    def _ended(self, event: workflow_pb2.RunWorkflowResponse) -> bool:
        workflow = event.finished.workflow
        if workflow.state == workflow_pb2.WORKFLOW_STATE_SUCCEEDED:
            self._next_phase("", event)
            return True
        if self._killing is None:
            raise RuntimeError(f"the run ended as {workflow_pb2.WorkflowState.Name(workflow.state)}: {workflow.error}")
        return False

    def _take(self, event: workflow_pb2.RunWorkflowResponse) -> None:
        match event.WhichOneof("event"):
            case "started":
                self._began = event.time.ToMicroseconds() / 1e6
            case "phase_started" if event.phase_started.round == 1:
                self._next_phase(event.phase_started.phase, event)
            case "agent_speaking" if event.agent_speaking.phase == self._kill_in and self._killing is None:
                self._killing = asyncio.create_task(self._stack.kill("worker", "store"))
            case "agent_spoke":
                self._performance.works.append(_spoken(event.agent_spoke))
            case "agent_listened":
                self._performance.works.append(_listened(event.agent_listened))

    def _next_phase(self, phase: str, event: workflow_pb2.RunWorkflowResponse) -> None:
        now = event.time.ToMicroseconds() / 1e6
        self._performance.phase_seconds[self._phase] = now - self._began
        self._phase, self._began = phase, now


def _spoken(told: workflow_pb2.AgentSpoke) -> Work:
    return work("turn", told.phase, told.agent_id, told.text, told.usage, told.timings, replayed=told.replayed)


def _listened(told: workflow_pb2.AgentListened) -> Work:
    kind = "note" if told.usage.completion_tokens else "silent"
    return work(kind, told.phase, told.agent_id, told.note, told.usage, told.timings, replayed=told.replayed)

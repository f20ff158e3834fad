"""A gateway that serves runs as a test tells it to: a real gRPC server on TCP, without a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agentmem.errors import FailedPrecondition, NotFound
from agentmem.process.server import GrpcServer
from agentmem.v1 import workflow_pb2, workflow_pb2_grpc

from .events import RUN, Event

Script = Callable[[workflow_pb2.RunWorkflowRequest], AsyncIterator[Event]]


def after(events: Sequence[Event], sequence: int) -> list[Event]:
    """Return the rest of the log for a client that has seen the events up to `sequence`."""
    growing = ("agent_speaking", "agent_delta")
    return [event for event in events if event.sequence > sequence and event.WhichOneof("event") not in growing]


async def whole(request: workflow_pb2.RunWorkflowRequest) -> AsyncIterator[Event]:
    for event in after(RUN, request.after_sequence) if request.after_sequence else RUN:
        yield event


class ScriptedWorkflows(workflow_pb2_grpc.WorkflowServiceServicer):
    """Serves RunWorkflow by `script`, records all requests, and knows the runs that it is given."""

    def __init__(self) -> None:
        self.script: Script = whole
        self.requests: list[Any] = []
        self.runs: list[workflow_pb2.Workflow] = []
        register = workflow_pb2_grpc.add_WorkflowServiceServicer_to_server
        self._server = GrpcServer("127.0.0.1:0", [("agentmem.v1.WorkflowService", register, self)])

    async def start(self) -> None:
        await self._server.start()
        await self._server.set_serving(True)

    async def stop(self) -> None:
        await self._server.stop(0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    @property
    def runs_asked(self) -> list[workflow_pb2.RunWorkflowRequest]:
        return [request for request in self.requests if isinstance(request, workflow_pb2.RunWorkflowRequest)]

    async def RunWorkflow(self, request: Any, context: Any) -> AsyncIterator[Event]:
        self.requests.append(request)
        async for event in self.script(request):
            yield event

    async def GetWorkflow(self, request: Any, context: Any) -> workflow_pb2.GetWorkflowResponse:
        self.requests.append(request)
        return workflow_pb2.GetWorkflowResponse(workflow=self._known(request.workflow_id))

    async def ListWorkflows(self, request: Any, context: Any) -> workflow_pb2.ListWorkflowsResponse:
        self.requests.append(request)
        first, size = int(request.page_token or 0), 2
        more = str(first + size) if first + size < len(self.runs) else ""
        return workflow_pb2.ListWorkflowsResponse(workflows=self.runs[first : first + size], next_page_token=more)

    async def CancelWorkflow(self, request: Any, context: Any) -> workflow_pb2.CancelWorkflowResponse:
        self.requests.append(request)
        run = self._known(request.workflow_id)
        if run.state == workflow_pb2.WORKFLOW_STATE_RUNNING:
            run.state = workflow_pb2.WORKFLOW_STATE_CANCELLED
        return workflow_pb2.CancelWorkflowResponse(workflow=run)

    async def DeleteWorkflow(self, request: Any, context: Any) -> workflow_pb2.DeleteWorkflowResponse:
        self.requests.append(request)
        run = self._known(request.workflow_id)
        if run.state == workflow_pb2.WORKFLOW_STATE_RUNNING:
            raise FailedPrecondition("the run is going on; cancel it first")
        self.runs.remove(run)
        return workflow_pb2.DeleteWorkflowResponse()

    def _known(self, workflow_id: str) -> workflow_pb2.Workflow:
        for run in self.runs:
            if run.workflow_id == workflow_id:
                return run
        raise NotFound("workflow", workflow_id)

"""WorkflowService of the gateway's gRPC server, and of a node's door what other gateways ask about this one's runs."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc

from agentmem import paging
from agentmem.errors import InvalidArgument
from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from agentmem.validation import MAX_REQUEST_ID_BYTES, check_text
from gateway.edge.authorization import authorize_namespace
from gateway.edge.callers import Caller, caller
from gateway.grpc.forwarding import write_in_time
from gateway.workflows.owners import KEY_ID
from gateway.workflows.runs import Runs

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]


class WorkflowServicer(workflow_pb2_grpc.WorkflowServiceServicer):
    """Begins, shows, cancels and erases runs. `stall_limit` is as in GatewaySettings."""

    def __init__(self, runs: Runs, stall_limit: float) -> None:
        self._runs = runs
        self._stall_limit = stall_limit

    async def RunWorkflow(
        self, request: workflow_pb2.RunWorkflowRequest, context: "_Context"
    ) -> AsyncIterator[workflow_pb2.RunWorkflowResponse]:
        authorize_namespace(request, caller().namespace)
        async with aclosing(await self._events(request)) as events:
            async for event in events:
                await write_in_time(context, event, self._stall_limit)
        return
        yield workflow_pb2.RunWorkflowResponse()  # a generator, as servers demand; only write() shows a stalled reader

    async def GetWorkflow(
        self, request: workflow_pb2.GetWorkflowRequest, context: "_Context"
    ) -> workflow_pb2.GetWorkflowResponse:
        return workflow_pb2.GetWorkflowResponse(workflow=await self._runs.get(*_named(request)))

    async def ListWorkflows(
        self, request: workflow_pb2.ListWorkflowsRequest, context: "_Context"
    ) -> workflow_pb2.ListWorkflowsResponse:
        authorize_namespace(request, caller().namespace)
        runs, token = await self._runs.page(request.namespace, paging.asked_size(request), request.page_token)
        return workflow_pb2.ListWorkflowsResponse(workflows=runs, next_page_token=token)

    async def CancelWorkflow(
        self, request: workflow_pb2.CancelWorkflowRequest, context: "_Context"
    ) -> workflow_pb2.CancelWorkflowResponse:
        return workflow_pb2.CancelWorkflowResponse(workflow=await self._runs.cancel(caller(), _named(request)[1]))

    async def DeleteWorkflow(
        self, request: workflow_pb2.DeleteWorkflowRequest, context: "_Context"
    ) -> workflow_pb2.DeleteWorkflowResponse:
        await self._runs.delete(*_named(request))
        return workflow_pb2.DeleteWorkflowResponse()

    async def _events(
        self, request: workflow_pb2.RunWorkflowRequest
    ) -> "AsyncGenerator[workflow_pb2.RunWorkflowResponse, None]":
        request_id = check_text("request_id", request.request_id, max_bytes=MAX_REQUEST_ID_BYTES, allow_empty=True)
        match request.WhichOneof("source"):
            case "definition_yaml":
                variables = dict(request.variables)
                return await self._runs.begin(
                    caller(), request_id, request.definition_yaml, variables, request.after_sequence
                )
            case "resume_workflow_id":
                if request.variables:
                    raise InvalidArgument("variables", "must be empty with resume_workflow_id: the run has its own")
                workflow_id = check_text("resume_workflow_id", request.resume_workflow_id)
                return await self._runs.resume(caller(), workflow_id, request.after_sequence)
            case _:
                raise InvalidArgument("source", "is required: definition_yaml or resume_workflow_id")


class NodeWorkflowServicer:
    """Answers the gateways of other nodes about runs that they believe to go on here; it asks no others in turn.

    Its callers were authenticated where they came in: their namespace is in the request, and the id of their key in
    the metadata.
    """

    def __init__(self, runs: Runs, stall_limit: float) -> None:
        self._runs = runs
        self._stall_limit = stall_limit

    async def RunWorkflow(
        self, request: workflow_pb2.RunWorkflowRequest, context: "_Context"
    ) -> AsyncIterator[workflow_pb2.RunWorkflowResponse]:
        """Stream the events of a run, as `Runs.resume` does."""
        workflow_id = check_text("resume_workflow_id", request.resume_workflow_id)
        who = _on_behalf(request.namespace, context)
        found = await self._runs.resume(who, workflow_id, request.after_sequence, at_owner=True)
        async with aclosing(found) as events:
            async for event in events:
                await write_in_time(context, event, self._stall_limit)
        return
        yield workflow_pb2.RunWorkflowResponse()  # as above

    async def CancelWorkflow(
        self, request: workflow_pb2.CancelWorkflowRequest, context: "_Context"
    ) -> workflow_pb2.CancelWorkflowResponse:
        """End a run."""
        workflow_id = check_text("workflow_id", request.workflow_id)
        who = _on_behalf(request.namespace, context)
        return workflow_pb2.CancelWorkflowResponse(workflow=await self._runs.cancel(who, workflow_id, at_owner=True))


def _on_behalf(namespace: str, context: "_Context") -> Caller:
    """Return the caller for whom another node's gateway asks."""
    sent = dict(context.invocation_metadata() or ())
    return Caller(check_text("namespace", namespace), str(sent.get(KEY_ID, "")))


def _named(
    request: workflow_pb2.GetWorkflowRequest | workflow_pb2.CancelWorkflowRequest | workflow_pb2.DeleteWorkflowRequest,
) -> tuple[str, str]:
    authorize_namespace(request, caller().namespace)
    return request.namespace, check_text("workflow_id", request.workflow_id)

"""WorkflowService of the gateway."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc

from agentmem import paging
from agentmem.errors import InvalidArgument
from agentmem.rpcs import rpc_of
from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from agentmem.validation import MAX_REQUEST_ID_BYTES, check_text
from gateway.edge.authorization import authorize_namespace
from gateway.edge.callers import caller
from gateway.grpc.forwarding import write_in_time
from gateway.workflows.definition.parser import MalformedDefinition, load
from gateway.workflows.runs import Runs

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]


class WorkflowServicer(workflow_pb2_grpc.WorkflowServiceServicer):
    """Also a `gateway.worker.Service`, for REST. `stall_limit` is as in GatewaySettings."""

    def __init__(self, runs: Runs, stall_limit: float) -> None:
        self._runs = runs
        self._stall_limit = stall_limit

    async def RunWorkflow(
        self, request: workflow_pb2.RunWorkflowRequest, context: "_Context"
    ) -> AsyncIterator[workflow_pb2.RunWorkflowResponse]:
        async with aclosing(self.stream(request)) as events:
            async for event in events:
                await write_in_time(context, event, self._stall_limit)
        return
        yield workflow_pb2.RunWorkflowResponse()  # a generator, as servers demand; only write() shows a stalled reader

    async def CheckWorkflow(
        self, request: workflow_pb2.CheckWorkflowRequest, context: "_Context"
    ) -> workflow_pb2.CheckWorkflowResponse:
        return await asyncio.to_thread(_checked, request.definition_yaml, dict(request.variables))

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
        return workflow_pb2.CancelWorkflowResponse(workflow=await self._runs.cancel(*_named(request)))

    async def DeleteWorkflow(
        self, request: workflow_pb2.DeleteWorkflowRequest, context: "_Context"
    ) -> workflow_pb2.DeleteWorkflowResponse:
        await self._runs.delete(*_named(request))
        return workflow_pb2.DeleteWorkflowResponse()

    async def call(self, request: Any, timeout: float | None = None) -> Any:
        return await getattr(self, rpc_of(request).method.name)(request, None)

    async def stream(self, request: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        async with aclosing(await self._events(request)) as events:
            async for event in events:
                yield event

    async def _events(
        self, request: workflow_pb2.RunWorkflowRequest
    ) -> "AsyncGenerator[workflow_pb2.RunWorkflowResponse, None]":
        """Raise AgentmemError before anything has begun."""
        authorize_namespace(request, caller().namespace)
        request_id = check_text("request_id", request.request_id, max_bytes=MAX_REQUEST_ID_BYTES, allow_empty=True)
        source = request.WhichOneof("source")
        match source:
            case "definition_yaml":
                variables = dict(request.variables)
                return await self._runs.begin(
                    caller(), request_id, request.definition_yaml, variables, request.after_sequence
                )
            case "resume_workflow_id" | "watch_workflow_id":
                if request.variables:
                    raise InvalidArgument("variables", f"must be empty with {source}: the run has its own")
                workflow_id = check_text(source, getattr(request, source))
                follow = self._runs.resume if source == "resume_workflow_id" else self._runs.watch
                return await follow(caller(), workflow_id, request.after_sequence)
            case _:
                raise InvalidArgument("source", "is required: definition_yaml, resume_workflow_id or watch_workflow_id")


def _checked(text: str, variables: Mapping[str, str]) -> workflow_pb2.CheckWorkflowResponse:
    answer = workflow_pb2.CheckWorkflowResponse()
    try:
        definition = load(text, variables)
    except MalformedDefinition as error:
        for one in error.diagnostics:
            answer.mistakes.add(field=one.field, problem=one.message, line=one.line, column=one.column)
    else:
        answer.name = definition.workflow
        answer.agents.extend(definition.agents)
        answer.phases.extend(phase.name for phase in definition.phases)
    return answer


def _named(
    request: workflow_pb2.GetWorkflowRequest | workflow_pb2.CancelWorkflowRequest | workflow_pb2.DeleteWorkflowRequest,
) -> tuple[str, str]:
    authorize_namespace(request, caller().namespace)
    return request.namespace, check_text("workflow_id", request.workflow_id)

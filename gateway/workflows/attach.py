"""Has a gateway serve workflows."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from gateway.extension import Extension, Parts
from gateway.workflows.metrics import WorkflowMetrics
from gateway.workflows.owners import Nodes
from gateway.workflows.records import Records
from gateway.workflows.runs import Runs
from gateway.workflows.servicer import NodeWorkflowServicer, WorkflowServicer
from gateway.workflows.takeover import Takeover

_SERVICE: Final = workflow_pb2.DESCRIPTOR.services_by_name["WorkflowService"]


def attach(parts: Parts) -> None:
    """Add WorkflowService to the gateway, and to the door of its node."""
    settings, nodes = parts.settings, parts.cluster
    metrics = WorkflowMetrics(parts.metrics.registry)
    records = Records(parts.store)
    runs = Runs(records, parts.running, parts.authenticator, metrics, settings.max_workflows, nodes)
    if nodes is not None:
        nodes.serve(_SERVICE, NodeWorkflowServicer(runs, settings.stall_limit))
    register = workflow_pb2_grpc.add_WorkflowServiceServicer_to_server
    parts.services.append((_SERVICE.full_name, register, WorkflowServicer(runs, settings.stall_limit)))
    parts.extensions.append(LiveWorkflows(runs, nodes))


class LiveWorkflows(Extension):
    """The runs that go on here, from the gateway's start to its end."""

    def __init__(self, runs: Runs, nodes: Nodes | None) -> None:
        self.runs = runs
        self._nodes = nodes
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> Mapping[str, str]:
        if self._nodes is not None:
            self._tasks = {asyncio.create_task(Takeover(self.runs, self._nodes).watch())}
        return {}

    def tasks(self) -> set[asyncio.Task[Any]]:
        return self._tasks

    async def leave(self) -> None:
        """A takeover that is being written ends by itself, and must not delay what follows."""
        for task in self._tasks:
            task.cancel()

    async def stop(self, grace: float) -> None:
        """Runs go on where they were when they are asked for again."""
        await self.runs.live.stop(grace)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)  # a takeover may wait for the store

"""Has a gateway serve workflows."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from gateway.extension import Extension, Parts
from gateway.workflows.attendance import Attendance
from gateway.workflows.live import WorkflowMetrics
from gateway.workflows.records import Records
from gateway.workflows.runs import Runs
from gateway.workflows.servicer import WorkflowServicer

_SERVICE: Final = workflow_pb2.DESCRIPTOR.services_by_name["WorkflowService"]


def attach(parts: Parts) -> None:
    settings, metrics, records = parts.settings, WorkflowMetrics(parts.metrics.registry), Records(parts.store)
    runs = Runs(records, parts.running, parts.authenticator, metrics, settings.max_workflows)
    register = workflow_pb2_grpc.add_WorkflowServiceServicer_to_server
    parts.services.append((_SERVICE.full_name, register, WorkflowServicer(runs, settings.stall_limit)))
    attendance = Attendance(runs, records, lambda: parts.peers.unready or parts.unready())
    parts.extensions.append(LiveWorkflows(runs, attendance))


class LiveWorkflows(Extension):
    def __init__(self, runs: Runs, attendance: Attendance) -> None:
        self.runs = runs
        self._attendance = attendance

    async def start(self) -> Mapping[str, str]:
        self._watching = asyncio.create_task(self._attendance.watch())
        return {}

    def tasks(self) -> set[asyncio.Task[Any]]:
        return {self._watching}

    async def stop(self, grace: float) -> None:
        await self.runs.live.stop(grace)
        self._watching.cancel()
        await asyncio.wait({self._watching}, timeout=1)  # a takeover may wait for the store
        await self._attendance.leave()

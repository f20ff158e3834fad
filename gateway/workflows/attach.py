"""Has a gateway serve workflows."""

from typing import Final

from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from gateway.extension import Parts
from gateway.workflows.attendance import Attendance
from gateway.workflows.live import LiveRuns, WorkflowMetrics
from gateway.workflows.records import Records
from gateway.workflows.runs import Runs
from gateway.workflows.servicer import WorkflowServicer
from gateway.workflows.worker import PatientWorker

_SERVICE: Final = workflow_pb2.DESCRIPTOR.services_by_name["WorkflowService"]


def attach(parts: Parts) -> None:
    settings, metrics = parts.settings, WorkflowMetrics(parts.metrics.registry)
    records, worker = Records(parts.store), PatientWorker(parts.running)
    runs = Runs(LiveRuns(records, worker, parts.authenticator, metrics, settings.max_workflows))
    register = workflow_pb2_grpc.add_WorkflowServiceServicer_to_server
    parts.services.append((_SERVICE.full_name, register, WorkflowServicer(runs, settings.stall_limit)))
    parts.extensions.append(Attendance(runs, lambda: parts.peers.unready or parts.unready()))

"""Metrics of workflow runs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from agentmem.v1 import workflow_pb2
from agentmem.words import short_name
from gateway.workflows.metrics import WorkflowMetrics

State = workflow_pb2.WorkflowState


def test_series_that_can_be_known_begin_at_zero() -> None:
    registry = CollectorRegistry()
    WorkflowMetrics(registry)
    going_on = (State.WORKFLOW_STATE_UNSPECIFIED, State.WORKFLOW_STATE_RUNNING)
    for state in (state for state in State.values() if state not in going_on):
        labels = {"state": short_name(State.DESCRIPTOR, state)}
        assert registry.get_sample_value("agentmem_gateway_workflows_ended_total", labels) == 0

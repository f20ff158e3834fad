from prometheus_client import CollectorRegistry, Counter, Gauge


class WorkflowMetrics:
    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.running = Gauge(
            "agentmem_gateway_workflows_running", "Workflow runs that go on in this gateway.", registry=registry
        )
        self.ended = Counter(
            "agentmem_gateway_workflows_ended_total",
            "Workflow runs that ended here, by how: succeeded, failed, cancelled, interrupted.",
            ["state"],
            registry=registry,
        )
        self.taken_over = Counter(
            "agentmem_gateway_workflows_taken_over_total",
            "Workflow runs whose gateway was gone, and that this gateway went on with unasked.",
            registry=registry,
        )
        for state in ("succeeded", "failed", "cancelled", "interrupted"):
            self.ended.labels(state)

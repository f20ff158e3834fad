from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.cluster.router import Reason


class ClusterMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes = Gauge(
            "agentmem_gateway_cluster_nodes",
            "Nodes of the cluster, known and ready ones, as this gateway last read; 0 on a single machine.",
            ["state"],
            registry=registry,
        )
        self.cluster_age = Gauge(
            "agentmem_gateway_cluster_sync_age_seconds",
            "Seconds since this gateway last read the list of nodes; 0 on a single machine.",
            registry=registry,
        )
        self.routed = Counter(
            "agentmem_gateway_turns_routed_total",
            "Turns in a cluster by why they went to their node: claim (one of the agent runs there), last (the agent's "
            "state was committed there), rendezvous, load (of no agent), local (no node is ready).",
            ["reason"],
            registry=registry,
        )
        self.rerouted = Counter(
            "agentmem_gateway_turns_rerouted_total",
            "Calls that were sent again before they had begun: unreachable (to the next node), aborted (two nodes "
            "computed turns of one agent).",
            ["reason"],
            registry=registry,
        )
        for state in ("known", "ready"):
            self._nodes.labels(state)
        for reason in Reason:
            self.routed.labels(reason)
        for why in ("unreachable", "aborted"):
            self.rerouted.labels(why)

    def nodes(self, known: int, ready: int) -> None:
        self._nodes.labels("known").set(known)
        self._nodes.labels("ready").set(ready)

"""What every process tells Prometheus about itself, whatever it serves."""

from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics

from agentmem.grpc_metrics import RpcMetrics

disable_created_metrics()  # type: ignore[no-untyped-call]
# Else a third of every page would be the times at which series were made, as metrics of their own.


class ProcessMetrics:
    """One process: `service` is gateway, worker or store, `peers` are the services that it calls.

    `rpcs` are those of its gRPC server. Any thread.
    """

    def __init__(self, registry: CollectorRegistry, service: str, peers: Iterable[str] = ()) -> None:
        build = Gauge("agentmem_build_info", "1, with what runs.", ["service", "version"], registry=registry)
        build.labels(service, version("agentmem")).set(1)
        self._ready = Gauge("agentmem_ready", "1 while the process itself says SERVING, else 0.", registry=registry)
        self._peers = {}
        if peers:
            up = Gauge(
                "agentmem_peer_up",
                "1 while another process that this one calls says SERVING, else 0; asked every second or more often.",
                ["peer"],
                registry=registry,
            )
            self._peers = {peer: up.labels(peer) for peer in peers}
        ProcessCollector(registry=registry)
        self.rpcs = RpcMetrics(registry)

    def serving(self, ready: bool) -> None:
        """What the process says of itself from now on."""
        self._ready.set(ready)

    def answered(self, peer: str, up: bool) -> None:
        """What a peer said of itself, or that it said nothing."""
        self._peers[peer].set(up)

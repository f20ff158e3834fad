"""The worker's metrics. No agent id in a label; all counters in base units."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agentmem.exposition import LATENCY_BUCKETS
from agentmem.v1 import types_pb2
from inference_service.memory.match import Reason

TIERS = {
    types_pb2.TIER_NONE: "none",
    types_pb2.TIER_HOT: "hot",
    types_pb2.TIER_WARM: "warm",
    types_pb2.TIER_REMOTE: "remote",
}


class WorkerMetrics:
    """Every metric of the worker, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"agentmem_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"agentmem_{name}_seconds", text, labels, buckets=LATENCY_BUCKETS, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"agentmem_{name}", text, labels, registry=registry)

        self.running = gauge("num_requests_running", "Requests that the engine works on.")
        self.waiting = gauge("num_requests_waiting", "Requests that wait for their agent or for the engine.")
        self.queries = counter("prefix_cache_queries", "Prompt tokens of requests that may reuse KV.")
        self.hits = counter("prefix_cache_hits", "Prompt tokens whose KV was reused.", "tier")
        self.lookups = counter(
            "cache_lookups", "Requests by match, slowest tier used and miss reason.", "match", "tier", "reason"
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens, reused ones included.")
        self.prompt_tokens_cached = counter("prompt_tokens_cached", "Prompt tokens that were not computed.", "tier")
        self.generation_tokens = counter("generation_tokens", "Tokens sampled.")
        self.time_to_first_token = histogram(
            "time_to_first_token", "From arrival at the worker to the first token, by slowest tier used.", "tier"
        )
        self.inter_token_latency = histogram(
            "inter_token_latency", "Mean time between two tokens of a request, observed once at its end."
        )
        self.e2e_latency = histogram("e2e_request_latency", "From arrival at the worker to the end of the request.")
        self.queue_time = histogram(
            "request_queue_time", "From arrival at the worker until the engine took the request up."
        )
        self.prefill_time = histogram("request_prefill_time", "Computing the prompt's KV that was not reused.")
        self.finished = counter("requests_finished", "Requests that ended, by how.", "reason")
        self.load_seconds = histogram("cache_load", "Reading, verifying and assembling KV from disk.")
        self.load_bytes = counter("cache_load_bytes", "Bytes of KV read from disk.")
        self.store_seconds = histogram("cache_store", "Writing and publishing the KV of one turn.")
        self.store_bytes = counter("cache_store_bytes", "Bytes of KV written to disk.")
        self.store_failures = counter(
            "cache_store_failures", "Turns whose KV could not be written; the ledger has them."
        )
        self.evictions = counter("cache_evictions", "Agents whose KV was dropped from a tier.", "tier", "reason")
        self.load_failures = counter("cache_load_failures", "Files that could not be used, by fault.", "reason")
        self.store_transfer = gauge("store_transfer", "1 for how files of KV travel to and from the store.", "transfer")
        self.hot_agents = gauge("cache_agents", "Agents whose KV is in a tier.", "tier")
        self.pool_blocks = gauge("pool_blocks", "Blocks of the pool of full-attention layers.", "state")
        self.cache_usage = gauge("kv_cache_usage_ratio", "Share of the pool's blocks that somebody uses.")
        self.mlx_memory = gauge("mlx_memory_bytes", "Memory as MLX counts it.", "kind")
        self.batch_size = gauge("batch_size", "Sequences that decode together now.")
        self.model_info = gauge("model_info", "1 for each model that is loaded.", "model_id")
        self.model_loads = counter("model_loads", "Models that were loaded, or could not be.", "model_id", "result")
        self.model_unloads = counter("model_unloads", "Models that were unloaded, by why.", "model_id", "reason")
        self.model_load_seconds = histogram(
            "model_load", "Reading a model, proving it and taking its memory; not waiting for others to go."
        )

    def looked_up(self, match: types_pb2.Match.ValueType, tier: types_pb2.Tier.ValueType, reason: Reason) -> None:
        """Count one lookup."""
        self.lookups.labels(
            types_pb2.Match.Name(match).removeprefix("MATCH_").lower(),
            TIERS[tier],
            "" if not reason else types_pb2.MissReason.Name(reason).removeprefix("MISS_REASON_").lower(),
        ).inc()

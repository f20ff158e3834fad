"""The worker's metrics, without agent ids in labels. With `namespace_label` those of turns also have `namespace`."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agentmem import errors
from agentmem.process.exposition import LATENCY_BUCKETS
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from agentmem.words import short_names

TIERS = {
    types_pb2.TIER_NONE: "none",
    types_pb2.TIER_HOT: "hot",
    types_pb2.TIER_WARM: "warm",
    types_pb2.TIER_REMOTE: "remote",
}
REPLAYED = "replayed"
_ERRORS = (
    *(errors.InvalidArgument, errors.NotFound, errors.Aborted, errors.FailedPrecondition, errors.ResourceExhausted),
    *(errors.Unavailable, errors.DeadlineExceeded, errors.DataLoss, errors.Cancelled, errors.Internal),
)
"""Other errors get series when they happen."""


class WorkerMetrics:
    """Series of `models` begin at 0."""

    def __init__(
        self, registry: CollectorRegistry, models: Iterable[str] = (), *, namespace_label: bool = False
    ) -> None:
        per_turn = ("model_id", "namespace") if namespace_label else ("model_id",)
        self._namespace_label = namespace_label

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"agentmem_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"agentmem_{name}_seconds", text, labels, buckets=LATENCY_BUCKETS, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"agentmem_{name}", text, labels, registry=registry)

        self.running = gauge("num_requests_running", "Requests that the engine works on now.", "model_id")
        self.waiting = gauge(
            "num_requests_waiting", "Requests that wait now: for their model, agent, memory or the engine.", "model_id"
        )
        self.requests_limit = gauge(
            "requests_limit", "Requests that may run or wait, of all models together, before others are refused."
        )
        self.queries = counter(
            "prefix_cache_queries",
            "Prompt tokens of requests that may reuse KV, when the engine starts them.",
            *per_turn,
        )
        self.hits = counter(
            "prefix_cache_hits",
            "Prompt tokens of requests whose KV was reused, by where it was: hot (pool),"
            " warm (disk), remote (object store, another node).",
            *per_turn,
            "tier",
        )
        self.lookups = counter(
            "cache_lookups",
            "Requests that may reuse KV, when the engine starts them: by how the prompt relates to the ledger, the"
            " slowest tier used, and why not more was reused (empty: all that could be was).",
            *per_turn,
            *("match", "tier", "reason"),
        )
        self.prompt_tokens = counter(
            "prompt_tokens", "Prompt tokens of all requests that the engine started, reused ones included.", *per_turn
        )
        self.prompt_tokens_cached = counter(
            "prompt_tokens_cached", "Prompt tokens that were not computed, by where their KV was.", *per_turn, "tier"
        )
        self.generation_tokens = counter(
            "generation_tokens", "Tokens sampled, as they are; those of replayed turns are not.", *per_turn
        )
        self.time_to_first_token = histogram(
            "time_to_first_token",
            "Seconds from a request's arrival at the worker to its first token, by the slowest tier used; requests that"
            " went well.",
            *per_turn,
            "tier",
        )
        self.inter_token_latency = histogram(
            "inter_token_latency", "Seconds between a token of a request and the next one: every gap.", *per_turn
        )
        self.e2e_latency = histogram(
            "e2e_request_latency",
            "Seconds from a request's arrival at the worker to its end; requests that went well.",
            *per_turn,
        )
        self.queue_time = histogram(
            "request_queue_time",
            "Seconds from a request's arrival at the worker until the engine started it, loading KV included.",
            *per_turn,
        )
        self.prefill_time = histogram(
            "request_prefill_time",
            "Seconds of computing the prompt's KV that was not reused; requests that went well.",
            *per_turn,
        )
        self.finished = counter(
            "requests_finished",
            "Requests for registered models that ended, by how: a finish reason, replayed, or the code of an error in"
            " small letters; refused ones count at once.",
            *per_turn,
            "reason",
        )
        self.context_trims = counter(
            "context_trims",
            "Turns that dropped the oldest turns of an agent whose memory outgrew the model's context, by what was"
            " done: trim, or summarize.",
            *per_turn,
            "policy",
        )
        self.load_seconds = histogram(
            "cache_load", "Seconds of reading, verifying and assembling KV from disk, where there was any.", "model_id"
        )
        self.load_bytes = counter("cache_load_bytes", "Bytes of KV files that were read and used.", "model_id")
        self.fetch_seconds = histogram(
            "cache_fetch",
            "Seconds of fetching a turn's files of KV to this machine's disk, from other nodes or the object store.",
            "source",
        )
        self.fetch_bytes = counter("cache_fetch_bytes", "Bytes of KV files that came, in these seconds.", "source")
        self.fetch_choices = counter(
            "cache_fetch_choices",
            "Turns that found KV on other nodes or in the object store, and no nearer: those that fetched it, and those"
            " that computed it because that was estimated to be faster.",
            "model_id",
            "choice",
        )
        self.load_failures = counter(
            "cache_load_failures",
            "Files of KV that could not be used, by fault, such as digest, header,"
            " truncated, missing, io_error; each a miss.",
            "model_id",
            "reason",
        )
        self.store_seconds = histogram(
            "cache_store", "Seconds of writing and publishing the KV of one turn, once it is done.", "model_id"
        )
        self.store_bytes = counter("cache_store_bytes", "Bytes of KV files written and published.", "model_id")
        self.store_failures = counter(
            "cache_store_failures", "Turns whose KV could not be written; the ledger has them.", "model_id"
        )
        self.evictions = counter(
            "cache_evictions",
            "Agents whose KV left the pool (hot): to free memory (capacity), on request, or with their model (unload).",
            "model_id",
            "tier",
            "reason",
        )
        self.hot_agents = gauge(
            "cache_agents", "Agents whose KV is in a loaded model's pool now (hot).", "model_id", "tier"
        )
        self.pool_blocks = gauge(
            "pool_blocks",
            "Blocks of a loaded model's pool of full-attention layers: free or used.",
            "model_id",
            "state",
        )
        self.cache_usage = gauge(
            "kv_cache_usage_ratio", "Share of a loaded model's pool that is in use, from 0 to 1.", "model_id"
        )
        self.batch_size = gauge("batch_size", "Sequences of a loaded model that generate now.", "model_id")
        self.engine_steps = counter(
            "engine_steps",
            "Steps of the engine, when they are done: one chunk of a prompt (prefill), or one pass (decode), which has"
            " a token of each sequence that generates, several of one that speculates, and short prompts; the last pass"
            " of a turn computes KV of its last token.",
            "kind",
        )
        self.drafted_tokens = counter(
            "speculation_drafted_tokens",
            "Tokens that a step computed because they stand in the context behind the same ones; see"
            " speculation_accepted_tokens.",
            "model_id",
        )
        self.accepted_tokens = counter(
            "speculation_accepted_tokens",
            "Of the tokens drafted those that were generated: each saved a step of the engine.",
            "model_id",
        )
        self.engine_alive = gauge("engine_alive", "1 while the thread that owns MLX runs, else 0.")
        self.mlx_memory = gauge(
            "mlx_memory_bytes", "Bytes of memory as MLX counts them: active, the peak of that, and its cache.", "kind"
        )
        self.wired_limit = gauge(
            "worker_wired_limit_bytes", "Bytes that macOS may keep resident for loaded models; 0 without Metal."
        )
        self.memory_pressure = gauge(
            "worker_memory_pressure", "The system's memory pressure on macOS: 1 normal, 2 warning, 4 critical; else 1."
        )
        self.model_info = gauge(
            "model_info", "1 for each model that is loaded, with its KV bits.", "model_id", "kv_bits"
        )
        self.model_loads = counter(
            "model_loads", "Models that were loaded, or could not be (failed).", "model_id", "result"
        )
        self.model_unloads = counter(
            "model_unloads",
            "Models that were unloaded: for another (swap), on request, unused for their ttl, or measured since.",
            "model_id",
            "reason",
        )
        self.model_load_seconds = histogram(
            "model_load", "Seconds of reading a model, proving it and taking its memory; not of waiting for others."
        )
        self.models: set[str] = set()
        for kind in ("prefill", "decode"):
            self.engine_steps.labels(kind)
        for model_id in models:
            self.register(model_id)

    def turn(self, key: AgentKey) -> tuple[str, ...]:
        return (key.model_id, key.namespace) if self._namespace_label else (key.model_id,)

    def speculation(self, model_id: str) -> Callable[[int, int], None]:
        """Return a counter of drafted and right tokens. Any thread."""
        drafted, accepted = self.drafted_tokens.labels(model_id), self.accepted_tokens.labels(model_id)

        def count(tokens: int, right: int) -> None:
            drafted.inc(tokens)
            accepted.inc(right)

        return count

    def register(self, model_id: str) -> None:
        """Begin series at 0 that rules take rates of; namespaces are not known."""
        self.models.add(model_id)
        for metric in (self.running, self.waiting, self.store_failures, self.drafted_tokens, self.accepted_tokens):
            metric.labels(model_id)
        if self._namespace_label:
            return
        for counter in (self.queries, self.prompt_tokens, self.generation_tokens):
            counter.labels(model_id)
        for histogram in (self.inter_token_latency, self.e2e_latency, self.queue_time, self.prefill_time):
            histogram.labels(model_id)
        for tier in TIERS.values():
            self.time_to_first_token.labels(model_id, tier)
            if tier != TIERS[types_pb2.TIER_NONE]:
                self.hits.labels(model_id, tier)
                self.prompt_tokens_cached.labels(model_id, tier)
        reasons = short_names(types_pb2.FinishReason.DESCRIPTOR).values()
        for reason in (*reasons, REPLAYED, *(error.code.name.lower() for error in _ERRORS)):
            self.finished.labels(model_id, reason)


def reason_of(error: Exception) -> str:
    return error.code.name.lower() if isinstance(error, errors.AgentmemError) else "internal"

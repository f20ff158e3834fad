"""The metrics that figures are made of, by the names of their samples. `deploy/METRICS.md` says what they mean."""

from typing import Final

START: Final = "process_start_time_seconds"
MEMORY: Final = "process_resident_memory_bytes"
CPU: Final = "process_cpu_seconds_total"
BUILD: Final = "agentmem_build_info"
READY: Final = "agentmem_ready"
PEERS: Final = "agentmem_peer_up"
RPCS: Final = "grpc_server_handled_total"

STREAMS: Final = "agentmem_gateway_num_requests_running"
WORKFLOWS: Final = "agentmem_gateway_workflows_running"
HTTP: Final = "agentmem_http_requests_total"

RUNNING: Final = "agentmem_num_requests_running"
WAITING: Final = "agentmem_num_requests_waiting"
BATCH: Final = "agentmem_batch_size"
LOADED: Final = "agentmem_model_info"
POOL: Final = "agentmem_pool_blocks"
FINISHED: Final = "agentmem_requests_finished_total"
GENERATED: Final = "agentmem_generation_tokens_total"
PROMPT: Final = "agentmem_prompt_tokens_total"
REUSED: Final = "agentmem_prompt_tokens_cached_total"
QUERIES: Final = "agentmem_prefix_cache_queries_total"
HITS: Final = "agentmem_prefix_cache_hits_total"
FIRST_TOKEN: Final = "agentmem_time_to_first_token_seconds"
BETWEEN_TOKENS: Final = "agentmem_inter_token_latency_seconds"
LOADS: Final = "agentmem_cache_load_bytes_total"
STORES: Final = "agentmem_cache_store_bytes_total"

AGENTS: Final = "agentmem_cache_agents"
EVICTIONS: Final = "agentmem_cache_evictions_total"

DISK: Final = "agentmem_cache_disk_bytes"
DISK_LIMIT: Final = "agentmem_cache_disk_limit_bytes"
DISK_FREE: Final = "agentmem_cache_disk_free_bytes"
DISK_FLOOR: Final = "agentmem_cache_disk_free_floor_bytes"
QUARANTINED: Final = "agentmem_cache_quarantined_total"

TIERS: Final = ("hot", "warm", "remote", "none")
"""Values of the label `tier`, the fastest first."""

HISTOGRAMS: Final = (FIRST_TOKEN, BETWEEN_TOKENS)
_OF_ALL: Final = (START, MEMORY, CPU, BUILD, READY, RPCS)
BY_SERVICE: Final = {
    "gateway": (*_OF_ALL, PEERS, STREAMS, WORKFLOWS, HTTP),
    "worker": (
        *(*_OF_ALL, PEERS, RUNNING, WAITING, BATCH, LOADED, POOL, FINISHED, GENERATED, PROMPT, REUSED, QUERIES, HITS),
        *(LOADS, STORES, AGENTS, EVICTIONS, *HISTOGRAMS),
    ),
    "store": (*_OF_ALL, AGENTS, EVICTIONS, DISK, DISK_LIMIT, DISK_FREE, DISK_FLOOR, QUARANTINED),
}
"""Whose page has what."""

SAMPLES: Final = frozenset(
    sample
    for names in BY_SERVICE.values()
    for name in names
    for sample in ([f"{name}_bucket", f"{name}_count"] if name in HISTOGRAMS else [name])
)
"""The lines of pages that are read; the others are most of a page."""

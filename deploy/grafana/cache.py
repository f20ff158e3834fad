"""What is reused and from where, what is not and why, and the room that there is for it."""

from deploy.grafana.panels import Board, lines, number
from deploy.grafana.queries import MODEL, STACK, increase, quantile, rate, share, total


def cache() -> Board:
    """KV in all its tiers."""
    board = Board("agentmem-cache", "Agentmem / Cache", "What is reused, from which tier, and where KV is kept.")
    asked = rate("agentmem_prefix_cache_queries_total")
    board.row(
        "Reuse",
        lines(
            "Hit rate in tokens, by tier",
            "Share of prompt tokens that were reused, by the tier that had them. The sum falls: look at the miss "
            "reasons. Hot gives way to warm: the pool is too small for all agents that are active.",
            "percentunit",
            (share(rate("agentmem_prefix_cache_hits_total", "tier"), asked, "tier"), "{{tier}}"),
            stacked=True,
            most=1,
        ),
        lines(
            "Why something was not reused",
            "Requests that reused less than they might have, by reason. evicted: raise --warm-bytes. diverged: clients "
            "change the beginning of prompts. template: the chat template renders earlier turns in another way. "
            "not_trimmable: a model with windows or recurrent layers was to go back behind its checkpoints. corrupt, "
            "io_error: see AgentmemQuarantineGrows. incompatible: the model's files have changed. absent: new agents.",
            "reqps",
            (rate("agentmem_cache_lookups_total", "reason", f'{MODEL},reason!=""'), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Matches",
            "How prompts relate to what the agent remembers. Much PARTIAL or DIVERGE: clients rewrite history (a "
            "changed system prompt, a time of day in it), and pay for it with prefill.",
            "reqps",
            (rate("agentmem_cache_lookups_total", "match"), "{{match}}"),
            stacked=True,
        ),
    )
    board.row(
        "Pool (hot)",
        lines(
            "Pool in use",
            "Share of the pool's blocks in use. Near 1 is as it should be: idle agents stay until others "
            "need the room. Bad only with evictions or a queue: raise --pool-bytes.",
            "percentunit",
            (f"max by (model_id) (agentmem_kv_cache_usage_ratio{{{MODEL}}})", "{{model_id}}"),
            most=1,
        ),
        lines(
            "Blocks of the pool",
            "Blocks by state; each holds the KV of 256 tokens. Used are also those of idle agents, who make room when "
            "somebody needs it; requests that wait nonetheless wait for what runs (--room-wait).",
            "short",
            (total("agentmem_pool_blocks", "state"), "{{state}}"),
            stacked=True,
        ),
        lines(
            "Memory of MLX",
            "Bytes as MLX counts them. Active memory that grows without end: restart the worker, and tell us; a peak "
            "near the device's memory: lower --pool-bytes and --batch-bytes.",
            "bytes",
            (total("agentmem_mlx_memory_bytes", "kind", STACK), "{{kind}}"),
        ),
    )
    board.row(
        "Disk (warm)",
        lines(
            "Files of KV against their limit",
            "Bytes in the data directory by kind, and --warm-bytes, which all but the ledger count against. Above "
            "95 %: nobody may be evicted; see AgentmemDiskNearLimit. Quarantine grows: see AgentmemQuarantineGrows.",
            "bytes",
            (total("agentmem_cache_disk_bytes", "kind", STACK), "{{kind}}"),
            (total("agentmem_cache_disk_limit_bytes", where=STACK), "limit"),
        ),
        lines(
            "Free disk against its floor",
            "What the disk of the data directory has free, and what has to stay free. At the floor agents are evicted "
            "to give disk back: find what else fills the disk (AgentmemDiskNearFloor).",
            "bytes",
            (total("agentmem_cache_disk_free_bytes", where=STACK), "free"),
            (total("agentmem_cache_disk_free_floor_bytes", where=STACK), "floor"),
        ),
        lines(
            "Evictions",
            "Agents whose KV was dropped, by tier and why. Constant evictions of agents that come back: more room in "
            "that tier (--pool-bytes, --warm-bytes). floor: the disk is full of other things.",
            "ops",
            (rate("agentmem_cache_evictions_total", "tier, reason", STACK), "{{tier}} {{reason}}"),
        ),
    )
    board.row(
        "Between disk and memory",
        lines(
            "Loads",
            "Reading, verifying and assembling KV from files. Slow: a slow or busy disk; compare with the bytes.",
            "s",
            (quantile(0.5, "agentmem_cache_load_seconds"), "p50"),
            (quantile(0.95, "agentmem_cache_load_seconds"), "p95"),
        ),
        lines(
            "Stores",
            "Writing and publishing the KV of a turn, off the request's path. Slower than turns come: KV waits in "
            "memory; use a faster disk.",
            "s",
            (quantile(0.5, "agentmem_cache_store_seconds"), "p50"),
            (quantile(0.95, "agentmem_cache_store_seconds"), "p95"),
        ),
        lines(
            "Bytes",
            "Bytes of KV read and written a second. Many read with a small pool: the same agents come and go; raise "
            "--pool-bytes.",
            "Bps",
            (rate("agentmem_cache_load_bytes_total"), "loaded"),
            (rate("agentmem_cache_store_bytes_total"), "stored"),
        ),
    )
    board.row(
        "Damage",
        lines(
            "Quarantined",
            "Files that failed verification in the range shown, by what was wrong. Any: check the disk, then run "
            "`agentmem store check` (AgentmemQuarantineGrows).",
            "short",
            (increase("agentmem_cache_quarantined_total", "reason", STACK), "{{reason}}"),
        ),
        lines(
            "Files that could not be used",
            "Files that the worker opened in vain in the range shown, by fault. Each was computed again from the "
            "ledger. missing is harmless after an eviction; the others are as in Quarantined.",
            "short",
            (increase("agentmem_cache_load_failures_total", "reason"), "{{reason}}"),
        ),
        lines(
            "KV that was not written",
            "Turns in the range shown whose KV could not be written; the ledger has them. Any: see "
            "AgentmemKvNotWritten.",
            "short",
            (increase("agentmem_cache_store_failures_total"), "turns"),
        ),
        lines(
            "Failures of the ledger",
            "Reads and writes of the ledger that failed in the range shown, by why. Any: see AgentmemLedgerWritesFail; "
            "those turns failed and changed nothing.",
            "short",
            (increase("agentmem_ledger_failures_total", "reason", STACK), "{{reason}}"),
        ),
    )
    board.row(
        "Models",
        number(
            "Loaded",
            "1 for each model that is loaded. One that requests name, and that is not here, has to be loaded first.",
            "short",
            (f"max by (model_id) (agentmem_model_info{{{MODEL}}})", "{{model_id}}"),
        ),
        lines(
            "Loads and unloads",
            "Models that were loaded, by result, and unloaded, by why, in the range shown. Many swaps: requests "
            "alternate between models; raise --loaded-models, or give each a worker. failed: read the worker's log.",
            "short",
            (increase("agentmem_model_loads_total", "model_id, result"), "{{model_id}} {{result}}"),
            (increase("agentmem_model_unloads_total", "model_id, reason"), "{{model_id}} {{reason}}"),
        ),
        lines(
            "Time of a load",
            "Reading a model, proving it and taking its memory. The first load of a model measures and takes longer.",
            "s",
            (quantile(0.95, "agentmem_model_load_seconds", where=STACK), "p95"),
        ),
    )
    board.row(
        "Object store (remote); nothing without --remote",
        number(
            "Answers",
            "1 while the object store answers and its prefix is ours. 0: uploads wait, and what was evicted from the "
            "disk is computed again; look at the store's log for the reason.",
            "short",
            (f"min by (instance) (agentmem_remote_up{{{STACK}}})", "{{instance}}"),
            bad=-1,
        ),
        lines(
            "Backlog",
            "Files to upload, and objects to delete. Grows without end: the object store is too slow, or refuses.",
            "short",
            (total("agentmem_remote_backlog", "operation", STACK), "{{operation}}"),
        ),
        lines(
            "Bytes there and back",
            "Bytes uploaded and fetched a second. Many fetched: the disk is too small for agents that come back.",
            "Bps",
            (rate("agentmem_remote_upload_bytes_total", where=STACK), "uploaded"),
            (rate("agentmem_remote_fetch_bytes_total", where=STACK), "fetched"),
        ),
        lines(
            "Fetches and failures",
            "Files that were asked of the object store, by result, and requests that failed after their retries. "
            "damaged or missing: somebody else changes the bucket.",
            "ops",
            (rate("agentmem_remote_fetches_total", "result", STACK), "{{result}}"),
            (rate("agentmem_remote_failures_total", "operation", STACK), "{{operation}} failed"),
        ),
    )
    return board

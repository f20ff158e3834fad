"""Are turns quick, how many are there, and how many wait?"""

from deploy.grafana.panels import Board, Target, lines, number
from deploy.grafana.queries import MODEL, READY, STACK, quantile, rate, share, some, total

_FIRST = "agentmem_time_to_first_token_seconds"


def _percentiles(histogram: str) -> tuple[Target, ...]:
    return tuple((quantile(q, histogram), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


def overview() -> Board:
    """The first page to open."""
    board = Board("agentmem-overview", "Agentmem / Overview", "Whether turns are quick, how many there are, who waits.")
    hits, asked = rate("agentmem_prefix_cache_hits_total"), rate("agentmem_prefix_cache_queries_total")
    board.row(
        "Now",
        number(
            "Ready",
            "1 while a process says that it serves. 0: it says that it does not (AgentmemNotReady in "
            "deploy/RUNBOOK.md), or its page cannot be read (AgentmemProcessDown).",
            "short",
            (READY, "{{instance}} {{service}}"),
            bad=-1,
        ),
        number(
            "Alerts",
            "How many alerts fire. More than none: open /alerts of Prometheus and read the section of each in "
            "deploy/RUNBOOK.md.",
            "short",
            (f'count(ALERTS{{alertstate="firing",alertname=~"Agentmem.*",{STACK}}}) or vector(0)', "firing"),
            bad=1,
        ),
        number(
            "Reused",
            "Share of prompt tokens whose KV was not computed again. Low with agents that come back: look at the miss "
            "reasons in Agentmem / Cache.",
            "percentunit",
            (share(hits, asked), "reused"),
        ),
        number(
            "Running and waiting",
            "Requests that run, and that wait. Many that wait while few run: the pool has no room, or a model is being "
            "swapped; see Pool in Agentmem / Cache.",
            "short",
            (total("agentmem_num_requests_running"), "running"),
            (total("agentmem_num_requests_waiting"), "waiting"),
        ),
        number(
            "Errors",
            "Share of the doors' answers that are the servers' fault. Red: see AgentmemErrors in deploy/RUNBOOK.md.",
            "percentunit",
            (f"max(instance:agentmem_errors:ratio_rate5m{{{STACK}}})", "errors"),
            bad=0.05,
        ),
        height=5,
    )
    board.row(
        "Time to the first token",
        lines(
            "First token by tier, median",
            "From a request's arrival at the worker to its first token, by the slowest tier that its KV came from. Hot "
            "and warm should be far below none. If they are not: look at loads and at the queue.",
            "s",
            (quantile(0.5, _FIRST, "tier"), "{{tier}}"),
        ),
        lines(
            "First token by tier, 95th percentile",
            "One turn in twenty waits longer. Tier none grows with the length of prompts; the others should not. High "
            "everywhere: too many requests for this machine; see the queue.",
            "s",
            (quantile(0.95, _FIRST, "tier"), "{{tier}}"),
        ),
        lines(
            "Where the time goes, 95th percentile",
            "Waiting, and computing the prompt. Mostly queue: fewer requests at a time, a larger pool, or fewer "
            "models. Mostly prefill: prompts are not reused; see miss reasons.",
            "s",
            (quantile(0.95, "agentmem_request_queue_time_seconds"), "queue"),
            (quantile(0.95, "agentmem_request_prefill_time_seconds"), "prefill"),
        ),
    )
    board.row(
        "Tokens",
        lines(
            "Between two tokens",
            "Every gap between two tokens of a stream. A p99 far above the median: long prompts of others are computed "
            "in between; above a second, streams visibly stall.",
            "s",
            *_percentiles("agentmem_inter_token_latency_seconds"),
        ),
        lines(
            "Prompt tokens",
            "Prompt tokens a second, and how many of them were reused. The distance is what had to be computed. Reused "
            "falls while the sum stays: look at the miss reasons.",
            "short",
            (rate("agentmem_prompt_tokens_total"), "prompt"),
            (rate("agentmem_prompt_tokens_cached_total"), "reused"),
        ),
        lines(
            "Generated tokens",
            "Tokens sampled a second, by model. Falls while requests run: long prompts are being computed, or the "
            "engine stalls (engine steps, below).",
            "short",
            (rate("agentmem_generation_tokens_total", "model_id"), "{{model_id}}"),
        ),
    )
    board.row(
        "Requests",
        lines(
            "Queue",
            "Requests that run and wait, and the limit above which others are refused (--max-requests). At the limit: "
            "see AgentmemQueueFull in deploy/RUNBOOK.md.",
            "short",
            (total("agentmem_num_requests_running"), "running"),
            (total("agentmem_num_requests_waiting"), "waiting"),
            (total("agentmem_requests_limit", where=STACK), "limit"),
        ),
        lines(
            "Finished",
            "Requests that ended, by how: stop, length and the like are good ends, names of gRPC codes are failures. "
            "Many failures: search the worker's log for the code, and see AgentmemErrors.",
            "reqps",
            (some(rate("agentmem_requests_finished_total", "reason")), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Whole requests",
            "From arrival at the worker to the end. It is what was asked for (max_tokens) as much as speed; compare it "
            "with the first token and the gaps between tokens before you judge it.",
            "s",
            *_percentiles("agentmem_e2e_request_latency_seconds"),
        ),
    )
    board.row(
        "Engine",
        lines(
            "Steps",
            "Steps of the engine a second: chunks of prompts, and passes of who generates. None while requests run: "
            "see AgentmemEngineStalled in deploy/RUNBOOK.md.",
            "ops",
            (rate("agentmem_engine_steps_total", "kind", STACK), "{{kind}}"),
        ),
        lines(
            "Generating",
            "Sequences that generate, which share passes of the model. Others that run wait for their prompts: long "
            "ones are computed one after the other.",
            "short",
            (f"max by (model_id) (agentmem_batch_size{{{MODEL}}})", "{{model_id}}"),
        ),
        lines(
            "Speculation",
            "Tokens a second that were drafted from the context, and how many of them were right: each saved a step of "
            "the engine. Few drafts are normal where nothing is repeated, or where sequences decode together.",
            "short",
            (rate("agentmem_speculation_drafted_tokens_total"), "drafted"),
            (rate("agentmem_speculation_accepted_tokens_total"), "right"),
        ),
        lines(
            "At the doors",
            "Generations that the gateway is answering, by door. More than the worker has: they wait for a model, or "
            "their readers are slow.",
            "short",
            (total("agentmem_gateway_num_requests_running", "door", STACK), "{{door}}"),
        ),
    )
    return board

"""Who remembers: agents by tier, their turns, how conversations found them, and workflows."""

from deploy.grafana.panels import Board, lines, number
from deploy.grafana.queries import MODEL, STACK, increase, rate, share, some, total


def agents() -> Board:
    """Agents, counted; never named, for their ids are no labels."""
    board = Board(
        "agentmem-agents", "Agentmem / Agents", "Agents by tier, their turns, and workflows. Counts, no names."
    )
    board.row(
        "Agents",
        number(
            "By tier",
            "Agents by the store's tier that holds their KV, and, counted once more, those that are hot. none: their "
            "next turn computes all of it. Many none that come back: raise --warm-bytes.",
            "short",
            (total("agentmem_cache_agents", "tier", STACK), "{{tier}}"),
        ),
        lines(
            "By tier, over time",
            "The same over time. hot falls to nothing: the worker was restarted, or its model unloaded; warm falls: "
            "evictions, see Agentmem / Cache.",
            "short",
            (total("agentmem_cache_agents", "tier", STACK), "{{tier}}"),
        ),
        lines(
            "Hot, by model",
            "Agents whose KV is in the pool of a model. Fewer than are active: raise --pool-bytes.",
            "short",
            (total("agentmem_cache_agents", "model_id", f'{MODEL},tier="hot"'), "{{model_id}}"),
        ),
    )
    turns = rate("agentmem_cache_lookups_total")
    board.row(
        "Turns",
        lines(
            "By tier used",
            "Turns that look for KV, a second, by the slowest tier used. none grows: new agents, or old ones that are "
            "not found again; look at the matches beside.",
            "reqps",
            (rate("agentmem_cache_lookups_total", "tier"), "{{tier}}"),
            stacked=True,
        ),
        lines(
            "What a turn is",
            "How prompts relate to what agents remember. NEW from clients that should go on: they send no agent id, or "
            "change it.",
            "reqps",
            (rate("agentmem_cache_lookups_total", "match"), "{{match}}"),
            stacked=True,
        ),
        lines(
            "Tokens of a turn",
            "Prompt tokens of a turn on average, and those it computed. Both grow: conversations get long; computed "
            "grows alone: reuse is lost.",
            "short",
            (share(rate("agentmem_prefix_cache_queries_total"), turns), "prompt"),
            (
                share(
                    f"({rate('agentmem_prompt_tokens_total')} - {rate('agentmem_prompt_tokens_cached_total')})", turns
                ),
                "computed",
            ),
        ),
    )
    board.row(
        "Conversations over HTTP",
        lines(
            "How turns came to their agent",
            "named: by X-Agent-ID or the like. retried, continued, forked, new: found by content. none: kept nowhere. "
            "Much forked or new from one client: it changes the history it sends; give it an agent id.",
            "reqps",
            (rate("agentmem_gateway_agents_resolved_total", "how", STACK), "{{how}}"),
            stacked=True,
        ),
        lines(
            "Calls that look after agents",
            "Calls of AgentService at the gRPC door, by method. Bursts of DeleteAgent or EvictAgent explain agents "
            "that start anew.",
            "reqps",
            (
                some(
                    rate(
                        "grpc_server_handled_total",
                        "grpc_method",
                        f'{STACK},service="gateway",grpc_service="agentmem.v1.AgentService"',
                    )
                ),
                "{{grpc_method}}",
            ),
        ),
    )
    board.row(
        "Workflows",
        number(
            "Running",
            "Workflow runs that go on in the gateway. At max_workflows others are refused.",
            "short",
            (total("agentmem_gateway_workflows_running", where=STACK), "running"),
        ),
        lines(
            "Ended",
            "Runs that ended in the range shown, by how. interrupted: the gateway went away or lost its worker; resume "
            "them with `agentmem run --resume`. failed: the run's record says why.",
            "short",
            (increase("agentmem_gateway_workflows_ended_total", "state", STACK), "{{state}}"),
        ),
    )
    return board

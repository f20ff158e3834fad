"""Nodes of a cluster: who is there, where turns run, and KV of other nodes. Nothing on a single machine."""

from deploy.grafana.panels import Board, lines, number
from deploy.grafana.queries import STACK, rate, total

_KNOWN = f'max(agentmem_gateway_cluster_nodes{{{STACK},state="known"}})'
_READY = f'max(agentmem_gateway_cluster_nodes{{{STACK},state="ready"}})'


def cluster() -> Board:
    """`instance` is the node here."""
    board = Board("agentmem-cluster", "Agentmem / Cluster", "Nodes, where turns run, KV of other nodes.", models=False)
    board.row(
        "Nodes",
        number(
            "Ready",
            "Nodes that serve, and that the cluster knows. Fewer ready ones: `agentmem cluster status` says which; see "
            "AgentmemNodesNotReady in deploy/RUNBOOK.md.",
            "short",
            (_READY, "ready"),
            (_KNOWN, "known"),
        ),
        number(
            "Gone",
            "Nodes that have not been heard of for ten seconds and have not said that they leave, as each node sees "
            "it. See AgentmemNodeGone in deploy/RUNBOOK.md.",
            "short",
            (f'max by (instance) (agentmem_cluster_nodes{{{STACK},state="gone"}})', "{{instance}}"),
            bad=1,
        ),
        number(
            "Last heartbeat",
            "Seconds since the database has answered a node's heartbeat; they come every two. Red: AgentmemNodeCutOff "
            "in deploy/RUNBOOK.md.",
            "s",
            (f"max by (instance) (agentmem_cluster_heartbeat_age_seconds{{{STACK}}})", "{{instance}}"),
            bad=8,
        ),
        height=5,
    )
    board.row(
        "Over time",
        lines(
            "Nodes by state",
            "As they know each other. draining: one is being stopped; other: it starts, loads a model, or cannot "
            "serve. Nodes of different views: one of them is cut off.",
            "short",
            (f"max by (state) (agentmem_cluster_nodes{{{STACK}}})", "{{state}}"),
        ),
        lines(
            "Heartbeats",
            "Seconds since the database has answered each node's heartbeat. All rise together: the database fails over "
            "or is away; one alone: that node, or its network.",
            "s",
            (f"max by (instance) (agentmem_cluster_heartbeat_age_seconds{{{STACK}}})", "{{instance}}"),
        ),
        lines(
            "What gateways know",
            "Seconds since each gateway last read the list of nodes from its store. It rises with the heartbeat's age; "
            "alone: the store of that node hangs.",
            "s",
            (f"max by (instance) (agentmem_gateway_cluster_sync_age_seconds{{{STACK}}})", "{{instance}}"),
        ),
    )
    board.row(
        "Turns",
        lines(
            "Where turns go",
            "Turns a second by why they went to their node. claim and last are where the KV is. Many by rendezvous: "
            "new agents, or a node that is full or gone. local: no node is ready.",
            "reqps",
            (rate("agentmem_gateway_turns_routed_total", "reason", STACK), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Sent again",
            "Calls a second that were sent again before they had begun. unreachable: their node could not be reached; "
            "aborted: two nodes computed turns of one agent, which clients ask for at once.",
            "reqps",
            (rate("agentmem_gateway_turns_rerouted_total", "reason", STACK), "{{reason}}"),
        ),
        lines(
            "Running by node",
            "Requests that run on each node. Uneven for long: agents of few keys, or nodes without a model that others "
            "have; a node that has 1.25 times the mean is passed over.",
            "short",
            (total("agentmem_num_requests_running", "instance", STACK), "{{instance}}"),
        ),
    )
    board.row(
        "KV of other nodes",
        lines(
            "Files fetched",
            "Files of KV that nodes asked of others, a second. failed: the other was away, or had evicted it "
            "meanwhile; see AgentmemPeerFetchesFail in deploy/RUNBOOK.md.",
            "ops",
            (rate("agentmem_peer_fetches_total", "result", STACK), "{{result}}"),
        ),
        lines(
            "Bytes fetched",
            "Bytes that came from other nodes a second, by who asked. Much of it all the time: agents change nodes "
            "with every turn; see where turns go.",
            "Bps",
            (rate("agentmem_peer_fetch_bytes_total", "instance", STACK), "{{instance}}"),
        ),
        lines(
            "Ledger failures",
            "Reads and writes of the ledger that failed, a second, by fault. unreachable: the database was away, or "
            "the connection was lost; see AgentmemLedgerUnreachable in deploy/RUNBOOK.md.",
            "ops",
            (rate("agentmem_ledger_failures_total", "reason", STACK), "{{reason}}"),
        ),
    )
    return board

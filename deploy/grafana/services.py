"""The three processes: their RPCs, the HTTP door, and what they take of the machine."""

from deploy.grafana.panels import Board, lines, number
from deploy.grafana.queries import READY, STACK, quantile, rate, some, total

_PROBES = 'route!~"/healthz|/readyz|/metrics"'
_STREAMS = 'grpc_type!="unary"'


def services() -> Board:
    """Processes have no model."""
    board = Board("agentmem-services", "Agentmem / Services", "RPCs, HTTP, and what the processes take.", models=False)
    board.row(
        "Processes",
        number(
            "Ready",
            "1 while a process says that it serves. 0 for long: see AgentmemNotReady in deploy/RUNBOOK.md, or "
            "AgentmemProcessDown where its page cannot be read.",
            "short",
            (READY, "{{instance}} {{service}}"),
            bad=-1,
        ),
        number(
            "Reach one another",
            "1 while a process gets answers from another. 0: see AgentmemStoreUnreachable and "
            "AgentmemWorkerUnreachable.",
            "short",
            (f"min by (service, peer) (agentmem_peer_up{{{STACK}}})", "{{service}} to {{peer}}"),
            bad=-1,
        ),
        number(
            "Running since",
            "When each process began. Minutes ago, and nobody restarted it: see AgentmemRestarts. On Linux only.",
            "dateTimeFromNow",
            (f"1000 * max by (instance, service) (process_start_time_seconds{{{STACK}}})", "{{instance}} {{service}}"),
        ),
        number(
            "Versions",
            "What runs, by version. Two at once after an upgrade: restart the older.",
            "short",
            (f"count by (version) (agentmem_build_info{{{STACK}}})", "{{version}}"),
        ),
        height=5,
    )
    board.row(
        "RPCs",
        lines(
            "Calls",
            "RPCs that ended, a second, by process and method. Explains load: who calls what.",
            "reqps",
            (some(rate("grpc_server_handled_total", "service, grpc_method", STACK)), "{{service}} {{grpc_method}}"),
        ),
        lines(
            "Calls that failed",
            "RPCs that did not end with OK, by process and code. UNAVAILABLE: something is down or draining. "
            "RESOURCE_EXHAUSTED: full. INTERNAL: a bug or a disk; search the log for the incident id.",
            "reqps",
            (
                some(rate("grpc_server_handled_total", "service, grpc_code", f'{STACK},grpc_code!="OK"')),
                "{{service}} {{grpc_code}}",
            ),
            stacked=True,
        ),
        lines(
            "Time of calls, 95th percentile",
            "From the first message to the status, by process and method. Generate is as long as what it generates. "
            "CommitTurn of the store above 0.1 s: a slow disk; every turn waits for it.",
            "s",
            (
                quantile(0.95, "grpc_server_handling_seconds", "service, grpc_method", STACK),
                "{{service}} {{grpc_method}}",
            ),
        ),
    )
    board.row(
        "Streams",
        lines(
            "Open calls",
            "Calls that began and have not ended. Grows without end: clients leave streams open, or the engine stalls.",
            "short",
            (
                f"sum by (service) (grpc_server_started_total{{{STACK}}})"
                f" - sum by (service) (grpc_server_handled_total{{{STACK}}})",
                "{{service}}",
            ),
        ),
        lines(
            "Messages of streams",
            "Messages received and sent a second in streaming calls. Sent falls while calls stay open: readers stall.",
            "ops",
            (rate("grpc_server_msg_received_total", "service", f"{STACK},{_STREAMS}"), "{{service}} received"),
            (rate("grpc_server_msg_sent_total", "service", f"{STACK},{_STREAMS}"), "{{service}} sent"),
        ),
        lines(
            "Open streams of the doors",
            "Generations that a door is answering. At the most streams that a key may have: its callers get 429.",
            "short",
            (total("agentmem_gateway_num_requests_running", "door", STACK), "{{door}}"),
        ),
    )
    board.row(
        "HTTP",
        lines(
            "Requests",
            "HTTP requests answered a second, by route, without probes. What loads the gateway; compare it with calls.",
            "reqps",
            (some(rate("agentmem_http_requests_total", "route", f"{STACK},{_PROBES}")), "{{route}}"),
        ),
        lines(
            "Answers that are not 2xx",
            "By route and status. 4xx is the caller's (429: full), 499: it went away first, 5xx is ours: see "
            "AgentmemErrors in deploy/RUNBOOK.md.",
            "reqps",
            (
                some(rate("agentmem_http_requests_total", "route, code", f'{STACK},{_PROBES},code!~"2.."')),
                "{{code}} {{route}}",
            ),
            stacked=True,
        ),
        lines(
            "Generations, door to door",
            "From a generation's arrival at a door to the end of its answer. Much longer than Whole requests in "
            "Agentmem / Overview: readers are slow, or models are being swapped.",
            "s",
            (quantile(0.5, "agentmem_gateway_e2e_request_latency_seconds", "door", STACK), "{{door}} p50"),
            (quantile(0.95, "agentmem_gateway_e2e_request_latency_seconds", "door", STACK), "{{door}} p95"),
        ),
    )
    board.row(
        "Machine (Linux only)",
        lines(
            "Resident memory",
            "Memory of each process. Grows for hours under the same load: a leak; restart it, and tell us.",
            "bytes",
            (total("process_resident_memory_bytes", "instance, service", STACK), "{{instance}} {{service}}"),
        ),
        lines(
            "Processor",
            "Cores that each process keeps busy. The worker is busy while it computes; gateway or store above one "
            "core: they are the bottleneck.",
            "short",
            (rate("process_cpu_seconds_total", "instance, service", STACK), "{{instance}} {{service}}"),
        ),
        lines(
            "File descriptors",
            "Open files and sockets of each process, and how many it may have at most. Near the limit: raise "
            "`ulimit -n` (LimitNOFILE= of systemd).",
            "short",
            (total("process_open_fds", "instance, service", STACK), "{{instance}} {{service}}"),
            (f"min(process_max_fds{{{STACK}}})", "limit"),
        ),
    )
    return board

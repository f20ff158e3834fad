"""Figures of the processes: whether they are up, what they take, and their RPCs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from gateway.cli.top import names
from gateway.cli.top.figures import DoorFigures, ProcessFigures, State
from gateway.cli.top.history import Observation
from gateway.cli.top.interval import Interval
from gateway.cli.top.page import Page
from gateway.cli.top.reading import Service, Silence

FAILED: Final = (
    *("UNKNOWN", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
)
"""Statuses that say that the server could not, where others say that the client should not have."""


def process_figures(service: Service, address: str, seen: Observation, now: datetime) -> ProcessFigures:
    """Those of one process, whose page is at `address`."""
    page, interval = seen.page, seen.interval
    state, why = _state(page)
    if isinstance(page, Silence):
        page = Page()
    started = page.total(names.START)
    codes = {} if interval is None else interval.increases("grpc_code", names.RPCS)
    failed = {code: count for code, count in codes.items() if code in FAILED}
    memory = page.total(names.MEMORY)
    return ProcessFigures(
        service=service,
        address=address,
        state=state,
        why=why,
        version=next(iter(page.values_of("version", names.BUILD)), None),
        interval_seconds=None if interval is None else interval.seconds,
        memory_bytes=None if memory is None else int(memory),
        cpu_cores=None if interval is None else interval.rate(names.CPU),
        uptime_seconds=None if started is None else max(0.0, now.timestamp() - started),
        restarts=seen.restarts,
        rpcs_per_second=_per_second(interval, codes),
        failed_rpcs_per_second=_per_second(interval, failed),
        peers={peer: up > 0 for peer, up in page.by("peer", names.PEERS).items()},
    )


def door_figures(seen: Observation) -> DoorFigures | None:
    """Those of the gateway's doors; None where its page cannot be read."""
    if isinstance(seen.page, Silence):
        return None
    interval, workflows = seen.interval, seen.page.total(names.WORKFLOWS)
    streams = seen.page.by("door", names.STREAMS)
    answered = {} if interval is None else interval.increases("code", names.HTTP)
    failed = {code: count for code, count in answered.items() if code >= "500"}
    return DoorFigures(
        streams={door: int(count) for door, count in streams.items()},
        http_requests_per_second=_per_second(interval, answered),
        http_failures_per_second=_per_second(interval, failed),
        workflows_running=None if workflows is None else int(workflows),
    )


def _state(page: Page | Silence) -> tuple[State, str | None]:
    if isinstance(page, Silence):
        return "down", page.why
    unreachable = [peer for peer, up in page.by("peer", names.PEERS).items() if not up]
    missing = f"does not reach the {' and the '.join(unreachable)}" if unreachable else None
    if page.total(names.READY) == 0:
        return "not_ready", missing or "it says that it is not serving; its log says why"
    return "up", missing


def _per_second(interval: Interval | None, counts: Mapping[str, float]) -> float | None:
    if interval is None or interval.seconds <= 0:
        return None
    return sum(counts.values()) / interval.seconds

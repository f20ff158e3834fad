"""Figures as tables and lines for people. Each section is a list of lines, none wider than it is told."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rich.text import Text

from gateway.cli.text import counted, printable, span
from gateway.cli.top import amounts
from gateway.cli.top.columns import Column, Grid
from gateway.cli.top.figures import Figures, Latency, ModelFigures, ProcessFigures, StorageFigures
from gateway.cli.top.names import TIERS

_STATES: Final = {"up": ("up", "green"), "not_ready": ("not ready", "yellow"), "down": ("down", "bold red")}
_FULL: Final = 0.9
"""Of a pool or a disk's limit: from there on it is worth a look."""

Lines = list[Text]


def processes(figures: Figures, width: int) -> Lines:
    """The three processes, and why those that are not well are not."""
    columns = (
        *(Column("process", right=False), Column("state", right=False), Column("RPC/s", 2), Column("failed/s", 2)),
        *(Column("memory", 3), Column("CPU", 4), Column("uptime", 5), Column("restarts", 1), Column("version", 6)),
    )
    lines = Grid(columns, [_process(one) for one in figures.processes]).lines(width)
    for one in figures.processes:
        if one.why:
            style = "bold red" if one.state == "down" else "yellow"
            lines.append(_line(width, (f"{one.service}: {printable(one.why)}", style)))
    return lines


def states(figures: Figures, width: int) -> Lines:
    """The processes in one line, for where there is no room."""
    parts = [(f"{one.service} {_STATES[one.state][0]}", _STATES[one.state][1]) for one in figures.processes]
    return [_joined(width, *parts)]


def models(figures: Figures, width: int) -> Lines:
    """The models: what they do now, and what memory gives."""
    columns = (
        *(Column("model", right=False), Column("state", 7, right=False), Column("running"), Column("waiting", 1)),
        *(Column("batch", 6), Column("decode/s", 2), Column("prefill/s", 4), Column("hits now", 3)),
        *(Column("ever", 8), Column("pool used", 5), Column("hot agents", 9), Column("requests/s", 10)),
    )
    lines = Grid(columns, [_model(one) for one in figures.models]).lines(width) if figures.models else []
    if figures.models_error:
        lines.append(_line(width, (f"models: {printable(figures.models_error)}", "yellow")))
    return lines


def latencies(figures: Figures, width: int) -> Lines:
    """Times of the interval, of models that had any."""
    rows: list[list[Text]] = []
    for model in figures.models:
        for tier in TIERS:
            if tier in model.time_to_first_token:
                rows.append(_latency(model, f"first token, {tier}", model.time_to_first_token[tier]))
        if model.inter_token_latency and model.inter_token_latency.count:
            rows.append(_latency(model, "between tokens", model.inter_token_latency))
    columns = (
        *(Column("model", right=False), Column("time to", right=False)),
        *(Column("p50"), Column("p95"), Column("p99", 1), Column("measured", 2)),
    )
    return Grid(columns, rows).lines(width) if rows else []


def storage(figures: Figures, width: int) -> Lines:
    """The doors, agents by tier, the disk, and what was dropped."""
    told = figures.storage
    tiers = [f"{tier} {figures.agents_by_tier[tier]:,}" for tier in TIERS if tier in figures.agents_by_tier]
    known = f"{'' if figures.agents_all_listed else 'more than '}{counted(figures.agents_known or 0, 'agent')} to list"
    lines = [
        _joined(
            width,
            ("agents: " + (" · ".join(tiers) or amounts.UNKNOWN), ""),
            *([(known, "dim")] if figures.agents_known else []),
        ),
        _disk(told, width),
        _joined(
            width,
            (f"KV: loads {amounts.size(told.load_bytes_per_second)}/s", ""),
            (f"stores {amounts.size(told.store_bytes_per_second)}/s", ""),
        ),
        _joined(
            width,
            _dropped("quarantined", told.quarantined, told.quarantined_since_start, "bold red"),
            _dropped("evicted", _all(told.evictions), _all(told.evictions_since_start), "yellow"),
        ),
    ]
    if figures.doors:
        doors = figures.doors
        failed = doors.http_failures_per_second or 0
        lines.append(
            _joined(
                width,
                ("streams: " + " · ".join(f"{door} {number}" for door, number in doors.streams.items()), ""),
                (f"{amounts.rate(doors.http_requests_per_second)} HTTP requests/s", ""),
                (f"{amounts.rate(doors.http_failures_per_second)} failed/s", "red" if failed else ""),
                (counted(doors.workflows_running or 0, "workflow"), ""),
            )
        )
    return lines


def agents(figures: Figures, width: int) -> Lines:
    """The agents that were used last, the last one first."""
    if figures.agents_error == figures.models_error is not None:
        return []  # said already
    if figures.agents_error:
        return [_line(width, (f"agents: {printable(figures.agents_error)}", "yellow"))]
    if not figures.recent_agents:
        return []
    now = datetime.fromisoformat(figures.time)
    columns = (
        *(Column("agent", right=False), Column("model", 3, right=False), Column("tier", right=False)),
        *(Column("tokens", 1), Column("turns", 4), Column("last turn", 2, right=False)),
    )
    rows = [
        [
            *(Text(printable(text)) for text in (one.agent_id, one.model_id, one.tier)),
            *(Text(amounts.count(number)) for number in (one.tokens, one.turns)),
            Text(_ago(one.last_turn, now)),
        ]
        for one in figures.recent_agents
    ]
    return Grid(columns, rows).lines(width)


def _process(one: ProcessFigures) -> list[Text]:
    name, style = _STATES[one.state]
    return [
        Text(one.service),
        Text(name, style),
        Text(amounts.rate(one.rpcs_per_second)),
        Text(amounts.rate(one.failed_rpcs_per_second), "red" if one.failed_rpcs_per_second else ""),
        Text(amounts.size(one.memory_bytes)),
        Text(amounts.UNKNOWN if one.cpu_cores is None else f"{100 * one.cpu_cores:.0f} %"),
        Text(amounts.UNKNOWN if one.uptime_seconds is None else span(one.uptime_seconds)),
        Text(amounts.count(one.restarts), "yellow" if one.restarts else ""),
        Text(printable(one.version or amounts.UNKNOWN)),
    ]


def _model(one: ModelFigures) -> list[Text]:
    blocks = one.pool.used_blocks + one.pool.free_blocks if one.pool else 0
    used = one.pool.used_blocks / blocks if one.pool and blocks else 0.0
    pool = f"{one.pool.used_blocks:,} of {blocks:,}" if one.pool and blocks else amounts.UNKNOWN
    return [
        Text(printable(one.model_id), "bold" if one.default else ""),
        Text(one.state or amounts.UNKNOWN, "red" if one.state == "failed" else ""),
        Text(amounts.count(one.running)),
        Text(amounts.count(one.waiting), "yellow" if one.waiting else ""),
        Text(amounts.count(one.batch_size)),
        Text(amounts.rate(one.decode_tokens_per_second)),
        Text(amounts.rate(one.prefill_tokens_per_second)),
        Text(amounts.share(one.hit_rate.interval)),
        Text(amounts.share(one.hit_rate.since_start)),
        Text(pool, "yellow" if used > _FULL else ""),
        Text(amounts.count(one.hot_agents)),
        Text(amounts.rate(one.requests_per_second)),
    ]


def _latency(model: ModelFigures, what: str, latency: Latency) -> list[Text]:
    times = (latency.p50_seconds, latency.p95_seconds, latency.p99_seconds)
    cells = (printable(model.model_id), what, *(amounts.time(seconds) for seconds in times))
    return [*(Text(cell) for cell in cells), Text(amounts.count(latency.count))]


def _disk(told: StorageFigures, width: int) -> Text:
    # The ledger is no file of KV, and is not in the limit.
    taken = sum(size for kind, size in told.disk_bytes.items() if kind != "ledger") if told.disk_bytes else None
    limit, free, floor = told.disk_limit_bytes, told.disk_free_bytes, told.disk_free_floor_bytes
    full = taken is not None and limit is not None and taken > _FULL * limit
    low = free is not None and floor is not None and free <= floor
    return _joined(
        width,
        (f"disk: {amounts.size(taken)} of {amounts.size(limit)}", "yellow" if full else ""),
        (f"free {amounts.size(free)}, floor {amounts.size(floor)}", "bold red" if low else ""),
        (f"ledgers {amounts.size(told.disk_bytes.get('ledger'))}", ""),
    )


def _dropped(what: str, now: dict[str, int], ever: dict[str, int], style: str) -> tuple[str, str]:
    reasons = f" ({', '.join(f'{name} {number:,}' for name, number in now.items())})" if now else ""
    return f"{what} {sum(now.values()):,}{reasons}, {sum(ever.values()):,} since start", style if now else ""


def _all(by_tier: dict[str, dict[str, int]]) -> dict[str, int]:
    return {f"{tier} {reason}": number for tier, counts in by_tier.items() for reason, number in counts.items()}


def _ago(then: str | None, now: datetime) -> str:
    return "never" if then is None else f"{span((now - datetime.fromisoformat(then)).total_seconds())} ago"


def _line(width: int, *parts: tuple[str, str]) -> Text:
    line = Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line


def _joined(width: int, *parts: tuple[str, str]) -> Text:
    first, *others = parts
    return _line(width, first, *(part for other in others for part in ((" · ", "dim"), other)))

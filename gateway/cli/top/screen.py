"""The figures for people: one screen, of which a small terminal shows the upper left part. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from agentmem.console import LINE, RIGHT, table
from agentmem.sizes import byte_size
from agentmem.words import printable
from gateway.cli.text import span
from gateway.cli.top.measure import Figures, silent

NOTHING_ANSWERS: Final = (
    "nothing answers; start Agentmem with `agentmem up`, or name its addresses with --metrics and --gateway"
)
_UNKNOWN: Final = "–"
_WIDEST: Final = 250
_NAME: Final = {"no_wrap": True, "max_width": 40}
_LINES: Final = ("service", "state", "what", "tier", "name", "loaded", "address")
_TEXTS: Final = {"model_id": _NAME, "agent_id": _NAME, **dict.fromkeys(_LINES, LINE)}
"""Columns of texts by their figure; all others are of numbers, on the right."""

_STATES: Final = {
    **dict.fromkeys(("up", "ready"), "green"),
    **dict.fromkeys(("not_ready", "draining"), "yellow"),
    **dict.fromkeys(("down", "failed", "gone"), "bold red"),
}
_ALARMS: Final = {"failures_per_second": "red", "restarts": "yellow", "waiting": "yellow"}
"""Styles of figures that should be 0."""

# Tables: the figure of each column, by its title.
_PROCESSES: Final = {
    "process": "service",
    "state": "state",
    "req/s": "requests_per_second",
    "failed/s": "failures_per_second",
    "memory": "memory_bytes",
    "CPU": "cpu_cores",
    "uptime": "uptime_seconds",
    "restarts": "restarts",
    "version": "version",
}
_MODELS: Final = {
    "model": "model_id",
    "state": "state",
    "running": "running",
    "waiting": "waiting",
    "decode/s": "decode_tokens_per_second",
    "prefill/s": "prefill_tokens_per_second",
    "hits": "hit_rate",
    "pool": "pool_used",
}
_LATENCIES: Final = {
    "model": "model_id",
    "time to": "what",
    "p50": "p50_seconds",
    "p95": "p95_seconds",
    "p99": "p99_seconds",
    "measured": "count",
}
_NODES: Final = {
    "node": "name",
    "state": "state",
    "turns": "turns",
    "heard": "heard",
    "models": "loaded",
    "address": "address",
    "version": "version",
}
_AGENTS: Final = {
    "agent": "agent_id",
    "model": "model_id",
    "tier": "tier",
    "tokens": "tokens",
    "turns": "turns",
    "last turn": "last_turn",
}


class Screen:
    """The screen of an interval. Lines keep their layout on a narrow terminal, which shows their beginnings."""

    def __init__(self, figures: Figures, gateway: str) -> None:
        at = datetime.fromisoformat(figures["time"])
        over = f"last {figures['interval_seconds']:.1f} s" if figures["interval_seconds"] else "measuring …"
        processes, models, agents = figures["processes"], figures["models"], figures["recent_agents"]
        agents_error = None if figures["agents_error"] == figures["models_error"] else figures["agents_error"]
        parts: tuple[list[RenderableType], ...] = (
            [Text(f"agentmem top · {gateway} · {at.astimezone():%H:%M:%S} · {over}", "bold")],
            [Text(NOTHING_ANSWERS, "bold red")] if silent(figures) else [],
            [
                *_table(_PROCESSES, processes),
                *(note for one in processes for note in _note(one["service"], one["why"])),
            ],
            [*_table(_NODES, map(_with_models, figures["nodes"] or ())), *_note("cluster", figures["nodes_error"])],
            [*_table(_MODELS, map(_with_pool, models)), *_note("models", figures["models_error"])],
            [*_table(_LATENCIES, _latencies(models))],
            [*_cache(figures["cache"])],
            [*_note("agents", agents_error), *_table(_AGENTS, (_with_age(agent, at) for agent in agents))],
        )
        self._lines = Group(*(line for part in parts if part for line in (*part, "")))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._lines, options.update(width=_WIDEST))


def written(name: str, value: Any) -> str:
    """Return a figure for people. Its name says its unit."""
    if value is None:
        return _UNKNOWN
    if isinstance(value, str):
        return printable(value.replace("_", " ") if name == "state" else value)
    if name == "uptime_seconds":
        return span(value)
    if name in ("cpu_cores", "hit_rate", "pool_used"):
        return f"{100 * value:.0f} %"
    if name.endswith("bytes_per_second"):
        return f"{byte_size(int(value))}/s"
    if name.endswith("_per_second"):  # 0, <0.01, 0.04, 3.2, 1,234
        if value < 0.01:
            return "<0.01" if value > 0 else "0"
        return f"{value:.2f}" if value < 0.095 else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
    if name.endswith("_seconds"):  # 0.8 ms, 25 ms, 1.2 s, 120 s
        amount, unit = (1000 * value, "ms") if value < 0.9995 else (value, "s")
        return f"{amount:.{1 if amount < 9.95 else 0}f} {unit}"
    return byte_size(value) if name.endswith("_bytes") else f"{value:,}"


def _table(columns: Mapping[str, str], rows: Iterable[Figures]) -> Iterator[RenderableType]:
    """Yield the table, unless it has no rows."""
    cells = [[Text(written(name, row[name]), _style(name, row[name])) for name in columns.values()] for row in rows]
    if cells:
        yield table({title: _TEXTS.get(name, RIGHT) for title, name in columns.items()}, cells, header_style="dim")


def _style(name: str, value: Any) -> str:
    return _STATES.get(value, "") if name == "state" else _ALARMS.get(name, "") if value else ""


def _note(what: str, why: str | None) -> Iterator[Text]:
    if why:
        yield Text(f"{what}: {printable(why)}", "yellow")


def _with_pool(model: Figures) -> Figures:
    used, free = model["pool_used_blocks"], model["pool_free_blocks"]
    return {
        **model,
        "pool_used": used / (used + free) if used is not None and free is not None and used + free else None,
    }


def _with_models(node: Figures) -> Figures:
    heard = f"{span(node['heard_ago_seconds'])} ago"
    return {**node, "loaded": ", ".join(node["models"]) or _UNKNOWN, "heard": heard}


def _with_age(agent: Figures, now: datetime) -> Figures:
    then = agent["last_turn"]
    ago = then and f"{span((now - datetime.fromisoformat(then)).total_seconds())} ago"
    return {**agent, "last_turn": ago or "never"}


def _latencies(models: list[Figures]) -> Iterator[Figures]:
    for model in models:
        firsts = {f"first token, {tier}": latency for tier, latency in model["time_to_first_token"].items()}
        for what, latency in {**firsts, "between tokens": model["inter_token_latency"]}.items():
            if latency:
                yield {"model_id": model["model_id"], "what": what, **latency}


def _cache(cache: Figures) -> Iterator[Text]:
    shown = {name: written(name, value) for name, value in cache.items() if not isinstance(value, dict)}
    free, floor = cache["disk_free_bytes"], cache["disk_free_floor_bytes"]
    tiers = [f"{tier} {number:,}" for tier, number in cache["agents_by_tier"].items()]
    kinds = [f"{kind} {byte_size(size)}" for kind, size in cache["disk_bytes"].items()]
    yield Text(f"agents: {' · '.join(tiers) or _UNKNOWN}")
    yield Text(f"disk: {' · '.join(kinds) or _UNKNOWN} · KV's limit {shown['disk_limit_bytes']}")
    low = free is not None and floor is not None and free <= floor
    yield Text(f"disk free: {shown['disk_free_bytes']}, floor {written('_bytes', floor)}", "bold red" if low else "")
    yield Text(f"KV: loads {shown['load_bytes_per_second']} · stores {shown['store_bytes_per_second']}")
    for what, name, style in (
        ("evicted", "evictions", "yellow"),
        ("quarantined since start", "quarantined_since_start", "bold red"),
    ):
        reasons = [f"{reason} {number:,}" for reason, number in cache[name].items()]
        why = f" ({', '.join(reasons)})" if reasons else ""
        yield Text(f"{what}: {sum(cache[name].values()):,}{why}", style if reasons else "")

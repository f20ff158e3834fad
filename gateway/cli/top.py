"""`agentmem top`: GET /v1/overview on a terminal."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from agentmem.console import LINE, RIGHT, console, table, write_json
from agentmem.sizes import byte_size
from agentmem.words import printable
from gateway.cli.http import Door, http_options
from gateway.cli.text import span

_PATH: Final = "/v1/overview"
_FIELDS: Final = frozenset({"time", "interval_seconds", "processes", "models", "turns_running"})
_INTERRUPTED: Final = 130
_UNKNOWN: Final = "–"
_WIDEST: Final = 250
_NAME: Final = {"no_wrap": True, "max_width": 40}
_STATES: Final = {"up": "green", "not_ready": "yellow", "down": "bold red"}

_TEXTS: Final = dict.fromkeys(("process", "state", "latency"), LINE) | dict.fromkeys(
    ("model", "agent", "namespace"), _NAME
)
"""Text columns; all others have numbers, on the right."""

Json = dict[str, Any]


@click.command()
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(1, 3600),
    default=2.0,
    show_default=True,
    help="Between two questions; rates and percentiles are of the time between two readings of the gateway.",
)
@click.option("--once", is_flag=True, help="Show what lies between two readings, and end; so it is without a terminal.")
@http_options
def top(door: Door, interval: float, once: bool, as_json: bool) -> None:
    """Show what gateway, worker and store do: requests, tokens, latencies, cache hits, pool, disk, turns.

    Ctrl-C ends it. If there are keys, an admin's is needed. --json writes the answer of GET /v1/overview as a line for
    each interval, or once with --once. Without a terminal --once is implied.
    """
    for name in ("COLUMNS", "LINES"):  # rich would take these, which do not follow the window
        os.environ.pop(name, None)
    to = console()
    once = once or not (as_json or (sys.stdout.isatty() and not to.is_dumb_terminal))
    answers = overviews(door, interval)
    try:
        if once or as_json:
            _write(answers, once, as_json)
        else:
            _live(answers, to)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED if once else 0)


def overviews(door: Door, interval: float) -> Iterator[Json | str]:
    """Yield each new overview, or why there is none. Raises ClickException if the first fails."""
    last = door.ask(_PATH, _FIELDS)
    yield last
    while True:
        time.sleep(interval)
        try:
            answer = door.ask(_PATH, _FIELDS)
        except click.ClickException as error:
            yield error.message
            continue
        if answer["time"] != last["time"]:
            yield answer
        last = answer


def _write(answers: Iterator[Json | str], once: bool, as_json: bool) -> None:
    """Write one interval or all; the first may be long ago."""
    next(answers)
    for answer in answers:
        if isinstance(answer, str):
            if once:
                raise click.ClickException(answer)
            click.echo(f"Error: {answer}", err=True)
            continue
        if as_json:
            write_json(answer)
        else:
            console().print(Screen(answer))
        if once:
            return


def _live(answers: Iterator[Json | str], to: Console) -> None:
    """Show overviews on the terminal's other screen, which SIGTERM and SIGHUP leave, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    shown: RenderableType = Text("agentmem top · reading …")
    with Live(shown, console=to, screen=True, auto_refresh=False) as live:
        for answer in answers:
            if isinstance(answer, str):
                live.update(Group(Text(answer, "bold red"), shown), refresh=True)
            else:
                shown = Screen(answer)
                live.update(shown, refresh=True)


class Screen:
    """An overview for people. Narrow terminals show the beginnings of lines."""

    def __init__(self, overview: Json) -> None:
        at = datetime.fromisoformat(overview["time"])
        seconds, models = overview["interval_seconds"], overview["models"] or []
        over = f"last {seconds:.1f} s" if seconds else "measuring …"
        processes = (_process(each, at.timestamp()) for each in overview["processes"])
        whys = [(each["service"], each["why"]) for each in overview["processes"] if each["why"]]
        parts: list[list[RenderableType]] = [
            [Text(f"agentmem top · {at.astimezone():%H:%M:%S} · {over}", "bold")],
            [
                *_table("process, state, req/s, failed/s, memory, CPU, uptime, version", processes),
                *(Text(f"{service}: {printable(why)}", "yellow") for service, why in whys),
            ],
            _table("model, state, running, waiting, decode/s, prefill/s, cache hit, pool", map(_model, models)),
            _table("model, latency, p50, p95, p99, measured", (row for each in models for row in _latencies(each))),
            [table({"name": LINE, "value": LINE}, _room(overview), show_header=False)],
            _table("agent, state, for, model, namespace", (_turn(each, at) for each in overview["turns_running"])),
        ]
        self._lines = Group(*(line for part in parts if part for line in (*part, "")))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._lines, options.update(width=_WIDEST))


def _table(titles: str, rows: Iterable[Iterable[str | Text]]) -> list[RenderableType]:
    found = [*rows]
    return [table({t: _TEXTS.get(t, RIGHT) for t in titles.split(", ")}, found, header_style="dim")] if found else []


def _process(told: Json, now: float) -> Iterator[str | Text]:
    started = told["start_time_seconds"]
    yield told["service"]
    yield Text(told["state"].replace("_", " "), _STATES[told["state"]])
    yield rate(told["requests_per_second"])
    yield Text(rate(told["failures_per_second"]), "red" if told["failures_per_second"] else "")
    yield _size(told["memory_bytes"])
    yield _share(told["cpu_cores"])
    yield _UNKNOWN if started is None else span(now - started)
    yield told["version"] or _UNKNOWN


def _model(told: Json) -> Iterator[str | Text]:
    prompt, pool = told["prompt_tokens_per_second"], told["pool_blocks"]
    asked, blocks = sum(prompt.values()) if prompt else 0, sum(pool.values())
    yield told["model_id"]
    yield "loaded" if told["loaded"] else "not loaded"
    yield f"{told['running']:,}"
    yield Text(f"{told['waiting']:,}", "yellow" if told["waiting"] else "")
    yield rate(told["generated_tokens_per_second"])
    yield rate(prompt and prompt["computed"])
    yield _share(1 - prompt["computed"] / asked if asked else None)
    yield _share(pool["used"] / blocks if blocks else None)


def _latencies(model: Json) -> Iterator[Iterable[str]]:
    by_tier = model["time_to_first_token"].items()
    firsts = {f"TTFT, {'computed' if tier == 'none' else tier}": latency for tier, latency in by_tier}
    for what, latency in {**firsts, "between tokens": model["inter_token_latency"]}.items():
        if latency:
            percentiles = (duration(latency[f"p{percent}_seconds"]) for percent in (50, 95, 99))
            yield [model["model_id"], what, *percentiles, f"{latency['count']:,}"]


def _room(told: Json) -> Iterator[tuple[str, Text]]:
    disk, remote, models = told["disk"], told["remote"], told["models"] or []
    yield "agents", Text(_listed(told["agents_by_tier"]))
    if disk:
        limit, free, floor = (disk[f"{what}_bytes"] for what in ("limit", "free", "free_floor"))
        yield "disk", Text(" · ".join(f"{kind} {_size(amount)}" for kind, amount in disk["bytes"].items()))
        low = free is not None and floor is not None and free <= floor
        yield (
            "disk free",
            Text(f"{_size(free)}, floor {_size(floor)} · KV's limit {_size(limit)}", "bold red" if low else ""),
        )
    loads, stores = (sum(each[f"{what}_bytes_per_second"] or 0 for each in models) for what in ("loaded", "stored"))
    yield "KV", Text(f"loads {_size(loads)}/s · stores {_size(stores)}/s")
    evicted = Counter(disk["evictions"] if disk else {})
    for each in models:
        evicted.update({f"{reason} (pool)": number for reason, number in each["evictions"].items()})
    yield "evicted", Text(_listed(evicted))
    if remote:
        yield "object store", Text(f"{'answers' if remote['up'] else 'does not answer'} · {_size(remote['bytes'])}")
    if told["quarantined"]:
        yield "damaged files", Text(_listed(told["quarantined"]), "bold red")


def _turn(told: Json, now: datetime) -> Iterable[str]:
    seconds = (now - datetime.fromisoformat(told["since"])).total_seconds()
    return told["agent_id"] or _UNKNOWN, told["state"], span(seconds), told["model_id"], told["namespace"]


def _listed(counts: Mapping[str, int]) -> str:
    return " · ".join(f"{name} {number:,}" for name, number in counts.items() if number) or _UNKNOWN


def _size(amount: float | None) -> str:
    return _UNKNOWN if amount is None else byte_size(int(amount))


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{100 * value:.0f} %"


def rate(value: float | None) -> str:
    """Return a rate: "0", "0.04", "3.2", "1,234"."""
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if not value or value >= 9.95 else f"{value:.2g}"


def duration(seconds: float | None) -> str:
    """Return a time: "0.8 ms", "25 ms", "1.2 s", "120 s"."""
    if seconds is None:
        return _UNKNOWN
    amount, unit = (1000 * seconds, "ms") if seconds < 0.9995 else (seconds, "s")
    return f"{amount:.{1 if amount < 9.95 else 0}f} {unit}"

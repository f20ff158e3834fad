"""`agentmem top`: the command."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from agentmem import layout
from agentmem.addresses import Address, parse_address
from gateway.cli.client import gateway_option, json_option, write_json
from gateway.cli.connection import connection
from gateway.cli.mistakes import Mistake
from gateway.cli.text import console
from gateway.cli.top import screen
from gateway.cli.top.figures import Figures, json_schema
from gateway.cli.top.reading import Service
from gateway.cli.top.terminal import Screen, stop_on_signals
from gateway.cli.top.watching import Watched, unless, watch

_READINGS: Final = 2
_LAST_PORT: Final = 65535
_INTERRUPTED: Final = 130


@click.command()
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    default=layout.metrics(),
    show_default=True,
    help="The gateway's page of metrics; the worker's is at PORT+1, the store's at PORT+2.",
)
@click.option("--worker-metrics", metavar="HOST:PORT", help="The worker's page, where it is elsewhere.")
@click.option("--store-metrics", metavar="HOST:PORT", help="The store's page, where it is elsewhere.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Between two readings; rates and percentiles are of that time.",
)
@click.option(
    "--agents",
    "most_agents",
    metavar="N",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    help="Show at most N agents, those used last; 0 asks for none.",
)
@click.option("--once", is_flag=True, help="Show what lies between two readings, and end; so it is without a terminal.")
@click.option("--schema", is_flag=True, help="Write the JSON Schema of what --json writes. Needs no gateway.")
@gateway_option
@json_option
def top(
    metrics: str,
    worker_metrics: str | None,
    store_metrics: str | None,
    interval: float,
    most_agents: int,
    once: bool,
    schema: bool,
    gateway: str,
    as_json: bool,
) -> None:
    """Show what store, worker and gateway do: requests, tokens, times, hit rates, the pool, the disk, agents.

    q or Ctrl-C ends it. What does not answer is shown as down, and looked for again. With --json a line for each
    interval, until Ctrl-C or with --once a single one. Without a terminal it is as with --once. Ends with 1 if at the
    end of --once nothing answers.
    """
    if schema:
        click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
        return
    pages = addresses(metrics, worker_metrics, store_metrics)
    watched = Watched(pages, gateway, connection(gateway), interval, most_agents)
    to = console()
    if as_json and not once:
        asyncio.run(_each(watched))
    elif once or not sys.stdout.isatty() or to.is_dumb_terminal:
        figures = asyncio.run(_once(watched))
        if figures is None:
            click.get_current_context().exit(_INTERRUPTED)
        if as_json:
            write_json(figures.model_dump(mode="json"))
        else:
            for line in screen.plain(figures, gateway, to.width):
                to.print(line, soft_wrap=True)
        if figures.silent:
            raise click.ClickException(screen.NOTHING_ANSWERS)
    else:
        asyncio.run(_live(watched, to))


def addresses(metrics: str, worker: str | None, store: str | None) -> dict[Service, str]:
    """Where each process has its page of metrics. Raises Mistake."""
    gateway = _address("--metrics", metrics)
    last = max(layout.WORKER_METRICS, layout.STORE_METRICS)
    if gateway.port + last > _LAST_PORT and None in (worker, store):
        raise Mistake(f"--metrics: worker and store have the next two ports, which {metrics} has not")
    return {
        "gateway": str(gateway),
        "worker": str(_address("--worker-metrics", worker) if worker else gateway.offset(layout.WORKER_METRICS)),
        "store": str(_address("--store-metrics", store) if store else gateway.offset(layout.STORE_METRICS)),
    }


def _address(flag: str, text: str) -> Address:
    try:
        address = parse_address(text)
    except ValueError as error:
        raise Mistake(f"{flag}: {error}") from error
    if not address.port:
        raise Mistake(f"{flag}: {text} has no port that can be read; give the one that it really has")
    return address


async def _once(watched: Watched) -> Figures | None:
    """The figures of two readings; None where it was stopped before."""
    told: list[Figures] = []

    def second(figures: Figures) -> bool:
        told.append(figures)
        return len(told) < _READINGS

    stopping = asyncio.Event()
    stop_on_signals(stopping)
    return told[-1] if await unless(stopping, watch(watched, second)) else None


async def _each(watched: Watched) -> None:
    def write(figures: Figures) -> bool:
        if figures.interval_seconds:  # the first reading has nothing to compare with
            write_json(figures.model_dump(mode="json"))
        return True

    stopping = asyncio.Event()
    stop_on_signals(stopping)
    await unless(stopping, watch(watched, write))


async def _live(watched: Watched, to: Console) -> None:
    latest: Figures | None = None

    def draw(width: int, height: int) -> list[Text]:
        if latest is None:
            return [Text(f"agentmem top · {watched.gateway} · reading …", no_wrap=True, overflow="ellipsis")]
        return screen.fitted(latest, watched.gateway, width, height)

    def show(figures: Figures) -> bool:
        nonlocal latest
        latest = figures
        live.redraw()
        return True

    stopping = asyncio.Event()
    stop_on_signals(stopping)
    with Screen(to, draw, stopping) as live:
        await unless(stopping, watch(watched, show))

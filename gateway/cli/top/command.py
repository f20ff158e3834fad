"""`agentmem top`: the command, and the terminal of its live view."""

import asyncio
import os
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from agentmem import layout
from agentmem.addresses import Address
from agentmem.channels import ClientTls
from agentmem.console import Mistake, console
from gateway.cli.client import Client, client_options, flag_address, warn_of_clear_text
from gateway.cli.top.measure import Figures, History, silent
from gateway.cli.top.screen import NOTHING_ANSWERS, Screen
from gateway.cli.top.sources import HttpDoor, Sources
from gateway.scraping import Service

_LAST_PORT: Final = 65535
_INTERRUPTED: Final = 130

_T = TypeVar("_T")


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
@click.option(
    "--http",
    metavar="HOST:PORT",
    default=layout.HTTP,
    show_default=True,
    help="The gateway's HTTP door, asked for the nodes where it is of a cluster; with keys, an admin's is needed.",
)
@click.option("--once", is_flag=True, help="Show what lies between two readings, and end; so it is without a terminal.")
@client_options
def top(
    client: Client,
    metrics: str,
    worker_metrics: str | None,
    store_metrics: str | None,
    interval: float,
    most_agents: int,
    http: str,
    once: bool,
) -> None:
    """Show what store, worker and gateway do: requests, tokens, times, hit rates, the pool, the disk, agents.

    Ctrl-C ends it. What does not answer is shown as down, and looked for again. With --json a line for each
    interval, until Ctrl-C or with --once a single one. Without a terminal it is as with --once. Ends with 1 if at the
    end of --once nothing answers.
    """
    pages = addresses(metrics, worker_metrics, store_metrics)
    door = HttpDoor(str(_address("--http", http)), client.key, None if client.tls is None else context(client.tls))
    warn_of_clear_text(client.key, door.address, "--tls or --ca FILE", tls=client.tls is not None)
    measured = measure(client, pages, interval, most_agents, door)
    for name in ("COLUMNS", "LINES"):  # which rich believes, and which do not change with the window
        os.environ.pop(name, None)
    to = console()
    once = once or not (client.as_json or (sys.stdout.isatty() and not to.is_dumb_terminal))
    shown = _write(measured, client, once) if once or client.as_json else _live(measured, client.gateway, to)
    ended = asyncio.run(until_stopped(shown))
    if once and ended is None:
        sys.exit(_INTERRUPTED)


def addresses(metrics: str, worker: str | None, store: str | None) -> dict[Service, str]:
    """Return where each process has its page of metrics. Raises Mistake."""
    gateway = _address("--metrics", metrics)
    if gateway.port + layout.STORE_METRICS > _LAST_PORT and None in (worker, store):
        raise Mistake(f"--metrics: worker and store have the next two ports, which {metrics} has not")
    return {
        "gateway": str(gateway),
        "worker": str(_address("--worker-metrics", worker) if worker else gateway.offset(layout.WORKER_METRICS)),
        "store": str(_address("--store-metrics", store) if store else gateway.offset(layout.STORE_METRICS)),
    }


def context(tls: ClientTls) -> ssl.SSLContext:
    """Return the same TLS as the standard library takes it. Raises Mistake."""
    try:
        made = ssl.create_default_context(cadata=tls.ca.decode() if tls.ca else None)
        if tls.cert and tls.key:
            with tempfile.NamedTemporaryFile() as file:  # which takes files only
                file.write(tls.cert + b"\n" + tls.key)
                file.flush()
                made.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise Mistake(f"--ca, --client-cert or --client-key: {error}") from error
    return made


def _address(flag: str, text: str) -> Address:
    address = flag_address(flag, text)
    if not address.port:
        raise Mistake(f"{flag}: {text} has no port that can be read; give the one that it really has")
    return address


async def measure(
    client: Client,
    pages: Mapping[Service, str],
    interval: float,
    most_agents: int,
    door: HttpDoor | None = None,
) -> AsyncIterator[Figures]:
    """Yield the figures of readings `interval` seconds apart; the first has nothing to compare with."""
    history = History(most_agents)
    async with client.channel() as channel:
        sources = Sources(pages, channel, client.explain, most_agents > 0, door)
        due = time.monotonic()
        while True:
            yield history.add(await sources.read())
            due = max(due + interval, time.monotonic())
            await asyncio.sleep(due - time.monotonic())


async def _write(measured: AsyncIterator[Figures], client: Client, once: bool) -> bool:
    """Write each interval, or one. Raises ClickException if nothing answers at the end of that one."""
    async for figures in measured:
        if not figures["interval_seconds"]:  # the first reading has nothing to compare with
            continue
        client.show(figures, Screen(figures, client.gateway))
        if once and silent(figures):
            raise click.ClickException(NOTHING_ANSWERS)
        if once:
            break
    return True


async def until_stopped(work: Coroutine[Any, Any, _T]) -> _T | None:
    """Return the result of `work`, or None where Ctrl-C or another signal ended it."""
    task = asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def _live(measured: AsyncIterator[Figures], gateway: str, to: Console) -> None:
    """Show each interval on the terminal's other screen, which Ctrl-Z leaves as well until the command goes on."""
    loop = asyncio.get_running_loop()
    with Live(Text(f"agentmem top · {gateway} · reading …"), console=to, screen=True, auto_refresh=False) as live:

        def pause() -> None:
            live.stop()
            os.kill(os.getpid(), signal.SIGSTOP)  # and here it goes on
            live.start(refresh=True)

        loop.add_signal_handler(signal.SIGWINCH, live.refresh)
        loop.add_signal_handler(signal.SIGTSTP, pause)
        async for figures in measured:
            live.update(Screen(figures, gateway), refresh=True)

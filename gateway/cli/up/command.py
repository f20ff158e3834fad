import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import click

from agentmem import layout
from agentmem.process import logs
from agentmem.process.service import ServiceManager, is_managed
from gateway.cli.text import say
from gateway.cli.up.default_model import check_hub, default_of
from gateway.cli.up.fetching import fetch
from gateway.cli.up.lock import UpLock
from gateway.cli.up.openblas import preload_here
from gateway.cli.up.output import Output, output
from gateway.cli.up.parameters import UpCommand
from gateway.cli.up.preflight import check, check_ports
from gateway.cli.up.readiness import default_failure, gateway_addresses, unready
from gateway.cli.up.settings import (
    UpSettings,
    service_arguments,
    store_environment,
    up_settings,
)
from gateway.cli.up.status import not_serving, status_lines
from gateway.cli.up.supervisor import Service, ServiceFailed, Supervisor

_LOADING = "loading the model"
_PROBE_TIMEOUT = 2.0


@click.command(cls=UpCommand)
def up(**given: Any) -> None:
    """Start store, worker and gateway, and keep them running until Ctrl-C. MODEL is as for --model.

    Each flag is also a variable, AGENTMEM_UP_…, and a key of the table [up] in the TOML file that AGENTMEM_CONFIG
    names. Other options of the services are there in [worker], [store] and [gateway], or AGENTMEM_WORKER_…,
    AGENTMEM_STORE_… and AGENTMEM_GATEWAY_…; `agentmem-worker --help` and so on list them.

    At a terminal the default model is downloaded first. Exit status 2: a mistake, a default model that cannot be
    loaded, or a hub that does not answer, before anything was started; 1: a service cannot be kept running.
    """
    settings = up_settings(given)
    logs.configure("up", settings.log_level, settings.log_format)
    check(settings)
    with closing(UpLock(settings.data_directory, settings.grace + layout.END_SECONDS, say)) as lock:
        check_ports(settings)  # after the lock, whose message says that an earlier up may have them
        if not is_managed():  # else the network may come later, and the worker tries again
            check_hub(settings)
        if sys.stdout.isatty():  # without a terminal the worker fetches it, and the others serve
            fetch(default_of(settings).source, settings)
        shown = output(settings)
        try:
            asyncio.run(_run(settings, lock, shown))
        except ServiceFailed as error:
            raise click.ClickException(shown.explained(error)) from error


async def _run(settings: UpSettings, lock: UpLock, shown: Output) -> None:
    stopping = asyncio.Event()
    manager = ServiceManager.of_this_process()

    def stop() -> None:
        if not stopping.is_set():  # Ctrl-C may be pressed again
            stopping.set()
            manager.stopping()
            shown.say(f"stopping; requests that run have {settings.grace:g} s to end…")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    address_file = settings.run_directory / layout.GATEWAY_FILE
    await asyncio.to_thread(address_file.unlink, missing_ok=True)
    patience = settings.grace + layout.END_SECONDS
    supervisor = Supervisor(
        services(settings, shown), patience, shown.say, [lock.fileno], course=shown.course, relay=shown.relay
    )

    def status() -> Iterator[str]:
        if addresses := gateway_addresses(settings.run_directory):
            yield f"services {', '.join(f'{name} (pid {pid})' for name, pid in supervisor.pids.items())}"
            yield from status_lines(settings, addresses)

    following = asyncio.create_task(shown.follow(lambda: supervisor.unready and not stopping.is_set(), status))

    async def started() -> None:
        addresses = gateway_addresses(settings.run_directory)
        lock.write(http=addresses["http"], grpc=addresses["grpc"])
        failure = await default_failure(settings.run_directory, _PROBE_TIMEOUT)
        shown.announce(status())
        shown.say(f"{not_serving(settings, failure) if failure else 'Ready.'} Ctrl-C stops.")
        but = f", but not {default_of(settings).model_id}" if failure else ""
        manager.ready(f"serving{but}, HTTP on {addresses['http']}, gRPC on {addresses['grpc']}")

    try:
        await supervisor.run(stopping, started)
    finally:
        following.cancel()
    shown.say("stopped")


def services(settings: UpSettings, shown: Output) -> list[Service]:
    arguments, run, blas = service_arguments(settings), settings.run_directory, preload_here()
    if blas.advice:
        shown.say(f"{blas.message}: {blas.advice}")
    elif blas.message:
        shown.course(blas.message)

    async def ready(name: str) -> bool:
        return await unready(run, name, _PROBE_TIMEOUT) == ""

    return [
        Service("store", "cache_service", arguments.store, partial(ready, "store"), store_environment(settings)),
        Service("worker", "inference_service", arguments.worker, partial(ready, "worker"), blas.environment, _LOADING),
        Service("gateway", "gateway", arguments.gateway, partial(ready, "gateway")),
    ]

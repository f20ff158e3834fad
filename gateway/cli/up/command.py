import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import click

from agentmem import layout
from agentmem.addresses import parse_address
from agentmem.process import logs
from agentmem.process.model_registry import register
from agentmem.process.model_sources import DEMO
from agentmem.process.service import ServiceManager, is_managed
from agentmem.words import printable
from gateway.cli.text import say
from gateway.cli.up.background import fetch
from gateway.cli.up.default_model import check_hub, default_of
from gateway.cli.up.lock import UpLock
from gateway.cli.up.log_file import keep_short
from gateway.cli.up.openblas import preload_here
from gateway.cli.up.parameters import UpCommand
from gateway.cli.up.preflight import check, check_ports
from gateway.cli.up.readiness import default_failure, gateway_addresses, unready
from gateway.cli.up.settings import (
    UpSettings,
    gateway_settings,
    service_arguments,
    store_environment,
    up_settings,
)
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
        try:
            asyncio.run(_run(settings, lock))
        except ServiceFailed as error:
            raise click.ClickException(str(error)) from error


async def _run(settings: UpSettings, lock: UpLock) -> None:
    stopping = asyncio.Event()
    manager = ServiceManager.of_this_process()

    def stop() -> None:
        if not stopping.is_set():  # Ctrl-C may be pressed again
            stopping.set()
            manager.stopping()
            say(f"stopping; requests that run have {settings.grace:g} s to end…")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    address_file = settings.run_directory / layout.GATEWAY_FILE
    await asyncio.to_thread(address_file.unlink, missing_ok=True)
    short = asyncio.create_task(keep_short(settings.data_directory))
    supervisor = Supervisor(services(settings), settings.grace + layout.END_SECONDS, say, [lock.fileno])

    async def started() -> None:
        addresses = gateway_addresses(settings.run_directory)
        lock.write(http=addresses["http"], grpc=addresses["grpc"])
        failure = await default_failure(settings.run_directory, _PROBE_TIMEOUT)
        _announce(settings, addresses)
        say(f"{not_serving(settings, failure) if failure else 'Ready.'} Ctrl-C stops.")
        but = f", but not {default_of(settings).model_id}" if failure else ""
        manager.ready(f"serving{but}, HTTP on {addresses['http']}, gRPC on {addresses['grpc']}")

    try:
        await supervisor.run(stopping, started)
    finally:
        short.cancel()
    say("stopped")


def services(settings: UpSettings) -> list[Service]:
    arguments, run, blas = service_arguments(settings), settings.run_directory, preload_here()
    if blas.message:
        say(f"{blas.message}: {blas.advice}" if blas.advice else blas.message)

    async def ready(name: str) -> bool:
        return await unready(run, name, _PROBE_TIMEOUT) == ""

    return [
        Service("store", "cache_service", arguments.store, partial(ready, "store"), store_environment(settings)),
        Service("worker", "inference_service", arguments.worker, partial(ready, "worker"), blas.environment, _LOADING),
        Service("gateway", "gateway", arguments.gateway, partial(ready, "gateway")),
    ]


def about_models(settings: UpSettings) -> Iterator[str]:
    registered = register(settings.model, settings.adapter, settings.models)
    first, *others = registered.values()
    if first.source != DEMO:
        more = f", and {', '.join(each.model_id for each in others)}" if others else ""
        yield f"model    {first.model_id}{more}"
        return
    world = "it recalls what it is told of its small world (The key is in the cellar.), and can do nothing else"
    yield f"model    demo, of 5.5 million parameters: {world}"
    yield "         a real one: `agentmem models search`, then `agentmem up --model NAME`"


def _announce(settings: UpSettings, addresses: dict[str, str]) -> None:
    scheme = "https" if "tls" in addresses else "http"
    say(f"HTTP     {scheme}://{addresses['http']}/v1   (OpenAI; Anthropic without /v1)")
    if gateway_settings(settings).ui:
        say(f"page     {scheme}://{addresses['http']}/ui/   (memories, chats and models, in a browser)")
    say(f"gRPC     {addresses['grpc']}{'   (TLS)' if 'tls' in addresses else ''}")
    if settings.node:
        say(f"cluster  node {settings.node}, which others reach at {settings.advertise}")
    if settings.metrics:
        others = "" if parse_address(settings.metrics).port == 0 else "   (worker and store at the next two ports)"
        say(f"metrics  http://{addresses['metrics']}/metrics{others}")
    say(f"data     {settings.data_directory}")
    gateway = gateway_settings(settings)
    for line in about_models(settings):
        say(line)
    unused = layout.key_file(settings.data)
    if gateway.cluster_keys:
        say("keys     those of the cluster")
    elif gateway.keys is not None:
        say(f"keys     {gateway.keys}")
    elif unused.exists():
        say(f"keys     none are asked for; `--keys {unused}` asks for those of that file")


def not_serving(settings: UpSettings, failure: str) -> str:
    first, *others = register(settings.model, settings.adapter, settings.models)
    return f"NOT serving {first}: {printable(failure).rstrip('.')}. It serves {', '.join(others) or 'nothing'}."

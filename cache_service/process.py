import asyncio
import logging
import sqlite3
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from prometheus_client import CollectorRegistry

from agentmem.errors import Internal
from agentmem.process import logs
from agentmem.process.exposition import MetricsServer
from agentmem.process.health import WRITES
from agentmem.process.server import GrpcServer
from agentmem.process.service import ServiceManager
from agentmem.process.settings import SettingsError
from cache_service.files.directory import DataDirectory, DirectoryUnusable
from cache_service.ledger.schema import SchemaTooNew
from cache_service.ledger_home import LedgerHome
from cache_service.own_ledger import OwnLedger
from cache_service.settings import StoreSettings
from cache_service.store import Store
from cache_service.tiers.remote.contract import RemoteRefused

log = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0
_CLUSTER: Final = "cache_service.cluster"
"""The ring around this store."""


async def serve(settings: StoreSettings, stopping: asyncio.Event) -> None:
    """Serve one data directory until `stopping` is set; then let running calls end."""
    manager = ServiceManager.of_this_process()
    manager.status("checking and opening the data directory")
    registry = CollectorRegistry()
    store = await asyncio.to_thread(_open, settings, registry)
    try:
        metrics = MetricsServer(settings.metrics, registry)
        work: list[asyncio.Task[Any]] = [
            asyncio.create_task(store.keep_up()),
            asyncio.create_task(manager.keep_alive(lambda: True)),
        ]
        try:
            server = GrpcServer(settings.address, store.services, metrics=store.process_metrics)
            await server.start()
            await server.set_serving(True)
            watching = asyncio.create_task(_watch_disk(store, server))
            work += [watching, stop := asyncio.create_task(stopping.wait())]
            logs.event(log, "ready", address=settings.address, data=str(settings.data_directory))
            manager.ready("serving")
            await asyncio.wait({watching, stop}, return_when=asyncio.FIRST_COMPLETED)
            manager.stopping()
            logs.event(log, "stopping")
            await server.stop(settings.grace if stopping.is_set() else 0)
            if watching.done():
                watching.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work)
            await store.disconnect()
            await asyncio.to_thread(metrics.stop)
    finally:
        await asyncio.to_thread(store.close)


async def _watch_disk(store: Store, server: GrpcServer) -> None:
    """Set the health service by whether ledgers can be written. Raises as LedgerHome.stay_whole."""
    said = ""
    while True:
        await store.ledger.stay_whole()
        problem = await store.ledger.problem()
        await server.set_health(WRITES, problem)
        if problem and not said:
            logs.event(log, "ledgers cannot be written", logging.ERROR, problem=problem)
        elif said and not problem:
            logs.event(log, "ledgers can be written again")
        said = problem
        await asyncio.sleep(_WATCH_SECONDS)


def _open(settings: StoreSettings, registry: CollectorRegistry) -> Store:
    try:
        return Store(
            settings.data_directory,
            registry,
            settings.limits,
            settings.quotas,
            settings.remote_settings,
            partial(_shared, settings) if settings.cluster.get_secret_value() else OwnLedger,
        )
    except RemoteRefused as error:
        raise SettingsError(str(error)) from error
    except (SchemaTooNew, Internal, OSError, sqlite3.Error) as error:
        raise DirectoryUnusable(f"cannot open {settings.data_directory}: {error}") from error


def _shared(settings: StoreSettings, directory: DataDirectory) -> LedgerHome:
    """Raises SettingsError."""
    if (spec := find_spec(_CLUSTER)) is None or spec.origin is None:
        raise SettingsError("cluster: this installation has no clusters")
    home: LedgerHome = import_module(f"{_CLUSTER}.ledger").attach(settings, directory)
    return home

"""The cache store's process: `agentmem-store`, or `python -m cache_service`."""

import asyncio
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from agentmem import logs
from agentmem.exposition import AddressInUse, MetricsServer
from agentmem.server import AddressError, GrpcServer
from agentmem.settings import SettingsError, load
from cache_service.files import DirectoryUnusable
from cache_service.schema import SchemaTooNew
from cache_service.settings import StoreSettings
from cache_service.store import Store

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Exit status 2: a wrong setting or address; 1: the data directory can't be used."""
    try:
        settings = load(StoreSettings, arguments)
        logs.configure("store", settings.log_level, settings.log_format)
    except (SettingsError, ValueError) as error:
        _give_up(2, error)
    os.umask(0o077)
    try:
        asyncio.run(serve(settings))
    except (AddressError, AddressInUse) as error:
        _give_up(2, error)
    except DirectoryUnusable as error:
        _give_up(1, error)
    except (SchemaTooNew, OSError, sqlite3.Error) as error:
        _give_up(1, f"cannot open {settings.data_directory}: {error}")


async def serve(settings: StoreSettings) -> None:
    """Serve one data directory until a signal comes; then let running calls end, and close it."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    registry = CollectorRegistry()
    store = await asyncio.to_thread(Store, settings.data_directory, registry, settings.limits, settings.quotas)
    try:
        metrics = MetricsServer(settings.metrics, registry)
        upkeep = asyncio.create_task(store.keep_up())
        try:
            server = GrpcServer(settings.address, store.services)
            await server.start()
            await server.set_serving(True)
            logs.event(log, "ready", address=settings.address, data=str(settings.data_directory))
            await stopping.wait()
            logs.event(log, "stopping")
            await server.stop(settings.grace)
        finally:
            upkeep.cancel()
            await asyncio.wait([upkeep])
            await asyncio.to_thread(metrics.stop)
    finally:
        await asyncio.to_thread(store.close)


def _give_up(status: int, problem: object) -> None:
    sys.stderr.write(f"agentmem-store: {problem}\n")
    raise SystemExit(status)


if __name__ == "__main__":
    main()

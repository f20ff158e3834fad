"""What the inference worker's process does, once MLX is known to be there."""

import asyncio
import logging
import signal

from prometheus_client import CollectorRegistry

from agentmem import logs
from agentmem.exposition import MetricsServer
from agentmem.notify import ServiceManager
from agentmem.service import BUG
from inference_service.compiled import keep_private
from inference_service.models.fetching import go_offline
from inference_service.settings import WorkerSettings
from inference_service.worker import Worker

log = logging.getLogger(__name__)


async def serve(settings: WorkerSettings) -> int | None:
    """Serve until a signal comes, or until the engine died.

    Returns the exit status where the process must end at once: the engine thread died, or is in the middle of something
    long, and nothing can be taken down in order any more. Raises SettingsError for a model that cannot be registered,
    and what loading raises.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    keep_private()
    if settings.offline:
        go_offline()
    registry = CollectorRegistry()
    manager = ServiceManager.of_this_process()
    worker = Worker(settings, registry, manager)
    metrics = MetricsServer(settings.metrics, registry)
    watched = asyncio.create_task(manager.keep_alive(lambda: worker.engine_alive))
    try:
        ends = [asyncio.create_task(event.wait()) for event in (stopping, worker.failed)]
        starting = asyncio.create_task(worker.start())
        await asyncio.wait([starting, *ends], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in (starting, *ends):
            end.cancel()
        manager.stopping()
        logs.event(log, "stopping", engine_failed=worker.failed.is_set())
    finally:
        await worker.stop()
        await asyncio.to_thread(metrics.stop)
        watched.cancel()
    if worker.failed.is_set():
        return BUG
    return 0 if worker.engine_alive else None

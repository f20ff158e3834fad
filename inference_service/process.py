"""The worker's process, with MLX."""

import asyncio
import logging
import os
from collections.abc import MutableMapping

from prometheus_client import CollectorRegistry

from agentmem.layout import user_cache
from agentmem.process import logs
from agentmem.process.exposition import MetricsServer
from agentmem.process.logs import event
from agentmem.process.service import ServiceManager
from inference_service.models.sources import go_offline
from inference_service.settings import WorkerSettings
from inference_service.worker import Worker

log = logging.getLogger(__name__)


def keep_private(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set TMPDIR to a directory of this user's own, before MLX compiles anything.

    MLX loads any library that is in its directory for temporary files: in a shared /tmp maybe another user's. Without a
    home, for a service with a /tmp of its own, all stays as it is.
    """
    if environment.get("TMPDIR"):
        return
    try:
        folder = user_cache(environment) / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # Raises where it is another user's.
    except (OSError, RuntimeError) as error:
        event(log, "what MLX compiles is kept in /tmp", logging.WARNING, error=str(error))
        return
    environment["TMPDIR"] = str(folder)


async def serve(settings: WorkerSettings, stopping: asyncio.Event) -> int:
    """Serve until `stopping`, or until the engine died; return the exit status.

    Nothing is taken down afterwards: the engine may be busy or dead, and threads that outlive CUDA's runtime abort the
    process (ml-explore/mlx#4506). Raises SettingsError, and errors of loading.
    """
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
    return worker.status

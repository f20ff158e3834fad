"""The inference worker's process: `agentmem-worker`, or `python -m inference_service`."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from agentmem import logs
from agentmem.errors import AgentmemError
from agentmem.exposition import AddressInUse, MetricsServer
from agentmem.server import AddressError
from agentmem.settings import SettingsError, load
from inference_service.settings import WorkerSettings
from inference_service.worker import Worker

log = logging.getLogger(__name__)

_FAILED = 70


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT.

    Exit status 2: a wrong setting or address; 1: the model cannot be served; 70: it failed, or its engine thread died,
    and should be started again.
    """
    try:
        settings = load(WorkerSettings, arguments)
        logs.configure("worker", settings.log_level, settings.log_format)
    except (SettingsError, ValueError) as error:
        _give_up(2, error)
    os.umask(0o077)
    try:
        status = asyncio.run(serve(settings))
    except (AddressError, AddressInUse, ValueError) as error:
        _give_up(2, error)
    except AgentmemError as error:
        _give_up(1, error)
    except Exception:
        log.critical("the worker failed", exc_info=True)
        raise SystemExit(_FAILED) from None
    if status is not None:
        # The engine thread died, or is in the middle of something long: nothing can be taken down in order any more.
        os._exit(status)


async def serve(settings: WorkerSettings) -> int | None:
    """Serve until a signal comes, or until the engine died; the exit status, where the process must end at once."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    registry = CollectorRegistry()
    worker = Worker(settings, registry)
    metrics = MetricsServer(settings.metrics, registry)
    try:
        ends = [asyncio.create_task(event.wait()) for event in (stopping, worker.failed)]
        starting = asyncio.create_task(worker.start())
        await asyncio.wait([starting, *ends], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in (starting, *ends):
            end.cancel()
        logs.event(log, "stopping", engine_failed=worker.failed.is_set())
    finally:
        await worker.stop()
        await asyncio.to_thread(metrics.stop)
    if worker.failed.is_set():
        return _FAILED
    return 0 if worker.engine_alive else None


def _give_up(status: int, problem: object) -> None:
    sys.stderr.write(f"agentmem-worker: {problem}\n")
    raise SystemExit(status)


if __name__ == "__main__":
    main()

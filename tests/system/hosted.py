"""Services in the tests' own process: real sockets, one event loop on a thread of its own. They cannot be killed.

A start costs no interpreter, imports or fork: only what the service does itself (open files, load a model, listen).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from agentmem.process.logs import formatter
from agentmem.process.settings import ServiceSettings, load
from cache_service.process import serve as serve_store
from cache_service.settings import StoreSettings
from gateway.app import run as serve_gateway
from gateway.settings import GatewaySettings
from inference_service.process import serve as serve_worker
from inference_service.settings import WorkerSettings

_LOGGERS = ("agentmem", "cache_service", "gateway", "inference_service")


class _Service(NamedTuple):
    name: str
    settings: type[ServiceSettings]
    serve: Callable[[Any, asyncio.Event], Awaitable[int | None]]


_SERVICES = {
    "cache_service": _Service("store", StoreSettings, serve_store),
    "gateway": _Service("gateway", GatewaySettings, serve_gateway),
    "inference_service": _Service("worker", WorkerSettings, serve_worker),
}


class Hosted:
    """`python -m MODULE ARGUMENTS…` as a task that appends to `log`: the part of subprocess.Popen that is used here."""

    def __init__(self, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> None:
        module, *arguments = command
        del environment  # this process's own
        service = _SERVICES[module]
        self._stopping = asyncio.Event()
        settings = load(service.settings, arguments)
        self._ended = asyncio.run_coroutine_threadsafe(self._run(service, settings, log), _loop())

    pid = os.getpid()

    def poll(self) -> int | None:
        """Return the exit status, or None while it serves."""
        if not self._ended.done():
            return None
        return 1 if self._ended.exception() else self._ended.result() or 0

    def wait(self, timeout: float | None = None) -> int:
        concurrent.futures.wait([self._ended], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("a hosted service", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """End it in order. Raises ValueError for signals that would end the tests, too."""
        if number != signal.SIGTERM:
            raise ValueError(f"{signal.Signals(number).name} would end the tests: start processes for that")
        _loop().call_soon_threadsafe(self._stopping.set)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it in order, for there is no other way."""
        self.terminate()

    async def _run(self, service: _Service, settings: ServiceSettings, log: Path) -> int | None:
        _LOG.set(log)
        _LOG_FILES.attach()
        try:
            return await service.serve(settings, self._stopping)
        except BaseException:
            logging.getLogger(service.serve.__module__).critical("the %s failed", service.name, exc_info=True)
            raise
        finally:
            _LOG_FILES.detach()


_LOG: ContextVar[Path] = ContextVar("log")


class _LogFiles(logging.Handler):
    """Appends each record to the log of the service on whose behalf it is made; others are dropped.

    Loggers have it, and a level at which services log, while a service is hosted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(formatter("hosted", "text"))
        self._services = 0

    def attach(self) -> None:
        """Count a service that begins."""
        self._services += 1
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).setLevel(logging.INFO)

    def detach(self) -> None:
        """Count one that has ended."""
        self._services -= 1
        for name in _LOGGERS if not self._services else ():
            logging.getLogger(name).removeHandler(self)
            logging.getLogger(name).setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        if (log := _LOG.get(None)) is not None and log.parent.is_dir():
            with log.open("a") as file:
                file.write(f"{self.format(record)}\n")


_LOG_FILES = _LogFiles()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="hosted", daemon=True).start()
    return loop

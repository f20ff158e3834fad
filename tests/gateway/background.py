"""A gateway before a scripted worker and a real store, on an event loop of its own.

For tests whose client is not async.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gateway.app import Gateway
from tests.cache_service import conftest as stores

from .running import settings
from .scripted import ScriptedWorker


class Served(NamedTuple):
    url: str
    worker: ScriptedWorker


@contextmanager
def served(**changed: Any) -> Iterator[Served]:
    """A gateway, with settings changed, and its worker, while the block runs."""
    run_dir = Path(tempfile.mkdtemp(dir="/tmp", prefix="am"))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    stack = AsyncExitStack()

    async def start() -> tuple[Gateway, ScriptedWorker]:
        await stack.enter_async_context(stores.running(run_dir))
        worker = ScriptedWorker(f"{run_dir}/worker.sock")
        await worker.start()
        gateway = Gateway(settings(run_dir, **changed))
        await gateway.start()
        return gateway, worker

    gateway, worker = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield Served(f"http://{gateway.addresses['http']}", worker)
    finally:
        asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result(30)
        asyncio.run_coroutine_threadsafe(worker.stop(), loop).result(30)
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
        shutil.rmtree(run_dir)

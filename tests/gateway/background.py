"""A gateway before a scripted worker and a real store, on an event loop of its own.

For tests whose client is not async.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cache_service import conftest as stores

from .running import running
from .scripted import ScriptedWorker


class Served(NamedTuple):
    url: str
    worker: ScriptedWorker


@contextmanager
def looping() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Yield a function that runs a coroutine on an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@contextmanager
def served(**changed: Any) -> Iterator[Served]:
    """A gateway, with settings changed, and its worker, while the block runs."""
    stack = AsyncExitStack()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="am") as directory, looping() as run:
        run_dir = Path(directory)

        async def start() -> Served:
            await stack.enter_async_context(stores.running(run_dir))
            worker = ScriptedWorker(f"{run_dir}/worker.sock")
            await worker.start()
            stack.push_async_callback(worker.stop)
            gateway = await stack.enter_async_context(running(run_dir, **changed))
            return Served(f"http://{gateway.addresses['http']}", worker)

        try:
            yield run(start())
        finally:
            run(stack.aclose())

"""What tests of running gateways share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.settings import GatewaySettings

ANY_PORT = "127.0.0.1:0"


def settings(run_dir: Path, **changed: Any) -> GatewaySettings:
    """Settings with any ports, and limits small enough to be met."""
    given: dict[str, Any] = {
        "run_dir": run_dir,
        "http": ANY_PORT,
        "grpc": ANY_PORT,
        "metrics": "",
        "grace": 5.0,
        "max_body_bytes": 64 * 1024,
    }
    return GatewaySettings(**{**given, **changed})


@asynccontextmanager
async def running(run_dir: Path, **changed: Any) -> AsyncIterator[Gateway]:
    gateway = Gateway(settings(run_dir, **changed))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


async def eventually(true: Callable[[], bool], within: float = 20.0) -> None:
    """Wait until `true()`; fails after `within` seconds."""
    async with asyncio.timeout(within):
        while not true():
            await asyncio.sleep(0.01)

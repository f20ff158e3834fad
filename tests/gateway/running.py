"""Helpers of tests of running gateways."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

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


@asynccontextmanager
async def connected(gateway: Gateway) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the HTTP server, over which nothing was said yet."""
    host, _, port = gateway.addresses["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


def answers(gateway: Gateway, route: str, code: str, method: str = "POST") -> float | None:
    """How often a route was answered so, as the metrics have it."""
    labels = {"route": route, "method": method, "code": code}
    return gateway.metrics.registry.get_sample_value("agentmem_http_requests_total", labels)


def answered(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Requests as the log has them."""
    return [record.fields for record in caplog.records if record.message == "answered"]  # type: ignore[attr-defined]


def events(text: str) -> list[tuple[str, Any]]:
    """Server-sent events of REST: their names and data."""
    blocks = (block.split("\n") for block in text.removesuffix("\n\n").split("\n\n"))
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


async def eventually(true: Callable[[], bool], within: float = 20.0) -> None:
    """Wait until `true()`; fails after `within` seconds."""
    async with asyncio.timeout(within):
        while not true():
            await asyncio.sleep(0.01)

"""Readings at regular times, until somebody stops it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import grpc

from agentmem.channels import connect
from gateway.cli.client import explanation
from gateway.cli.connection import Connection
from gateway.cli.top.concluding import conclude
from gateway.cli.top.figures import Figures
from gateway.cli.top.history import History
from gateway.cli.top.reading import Service
from gateway.cli.top.sources import Sources


@dataclass(frozen=True)
class Watched:
    """What to read: the pages, the gateway and how to connect to it; how often, in seconds; and how many agents."""

    pages: Mapping[Service, str]
    gateway: str
    connection: Connection
    interval: float
    agents: int


async def watch(watched: Watched, told: Callable[[Figures], bool]) -> None:
    """Call `told` with the figures of each reading, the first of which has no interval, until it returns False."""
    key, tls = watched.connection

    def explain(error: grpc.aio.AioRpcError) -> str:
        return explanation(error, watched.gateway, key=key, tls=tls)

    async with connect(watched.gateway, key=key, tls=tls) as channel:
        sources, history = Sources(watched.pages, channel, explain, watched.agents), History()
        due = time.monotonic()
        while True:
            history.tell(await sources.read())
            if not told(conclude(history, watched.pages)):
                return
            due = max(due + watched.interval, time.monotonic())
            await asyncio.sleep(due - time.monotonic())


async def unless(stopping: asyncio.Event, work: Awaitable[None]) -> bool:
    """Do `work`, or leave it where it is as soon as `stopping` is set; whether it was done."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
        return doing.done()
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)

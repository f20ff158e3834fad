"""A gateway with keys, and clients that show them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import httpx

from agentmem.channels import connect
from gateway.app import Gateway
from gateway.edge.key_file import changing
from gateway.edge.keys import new

from .running import running


def add_key(run_dir: Path, namespace: str = "team-a", **fields: Any) -> str:
    key, shown = new(namespace, datetime.now(UTC), **fields)
    with changing(run_dir / "keys.json") as keys:
        keys[key.id] = key
    return str(shown)


def revoke(run_dir: Path, shown: str) -> None:
    with changing(run_dir / "keys.json") as keys:
        del keys[shown.split("_")[1]]


def secured(run_dir: Path, **changed: Any) -> AbstractAsyncContextManager[Gateway]:
    return running(run_dir, keys=run_dir / "keys.json", **changed)


@asynccontextmanager
async def showing(gateway: Gateway, key: str) -> AsyncIterator[tuple[httpx.AsyncClient, grpc.aio.Channel]]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}", headers=headers, timeout=30) as http,
        connect(gateway.addresses["grpc"], key=key) as channel,
    ):
        yield http, channel

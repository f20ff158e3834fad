"""Which services of a run directory run, and whether they are ready, asked live."""

import asyncio
import json
from pathlib import Path

from agentmem import layout
from agentmem.addresses import parse_address
from agentmem.channels import connect
from agentmem.process.sockets import listens
from gateway import upstream

NAMES = ("store", "worker", "gateway")
"""The services, each after those that it needs."""


async def unready(run: Path, name: str, seconds: float) -> str | None:
    """Return why a service is not ready, empty if it is, and None where nothing listens.

    A gateway is known by the addresses that it wrote. With TLS it may ask for a client certificate, and have one for
    another name: that it listens is enough.
    """
    addresses = gateway_addresses(run)
    sockets = {"store": layout.store_socket(run), "worker": layout.worker_socket(run)}
    target = sockets.get(name) or addresses.get("grpc")
    if target is None or not await asyncio.to_thread(listens, target):
        return None
    if name == "gateway" and "tls" in addresses:
        return ""
    async with connect(target) as channel:
        service = "agentmem.v1.InferenceService" if name == "worker" else ""
        return await upstream.unready_reason(channel, service, seconds, name)


def gateway_addresses(run: Path) -> dict[str, str]:
    """Return the addresses that a gateway wrote, by door; none where it has ended well, or something else wrote."""
    try:
        addresses: dict[str, str] = json.loads((run / layout.GATEWAY_FILE).read_text(encoding="utf-8"))
        for door in ("http", "grpc"):
            parse_address(addresses[door])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return addresses

import asyncio
import json
from pathlib import Path

import grpc

from agentmem import layout
from agentmem.addresses import parse_address
from agentmem.channels import connect
from agentmem.process.sockets import listens
from agentmem.v1 import model_pb2
from agentmem.v1.model_pb2_grpc import ModelServiceStub
from gateway import upstream

NAMES = ("store", "worker", "gateway")
"""Each after those that it needs."""


async def unready(run: Path, name: str, seconds: float) -> str | None:
    """Return why a service is not ready, "" if it is, None if nothing listens.

    A gateway with TLS only has to listen: it may ask for a client certificate.
    """
    found = await _readiness(run, name, seconds)
    return None if found is None else found.reason


async def _readiness(run: Path, name: str, seconds: float) -> upstream.Readiness | None:
    addresses = gateway_addresses(run)
    sockets = {"store": layout.store_socket(run), "worker": layout.worker_socket(run)}
    target = sockets.get(name) or addresses.get("grpc")
    if target is None or not await asyncio.to_thread(listens, target):
        return None
    if name == "gateway" and "tls" in addresses:
        return upstream.Readiness()
    async with connect(target) as channel:
        service = upstream.WORKER_SERVICE if name == "worker" else ""
        return await upstream.readiness(channel, service, seconds, name)


async def start_line(run: Path, seconds: float) -> str:
    """Return what a start waits for; "" after it."""
    for name in NAMES:
        found = await _readiness(run, name, seconds)
        if found is None or found.reason:
            return found.reason if found and found.loading else f"starting Agentmem: {name}"
    return ""


async def default_failure(run: Path, seconds: float) -> str:
    """Return why the worker could not load its default model, in one line, or ""."""
    async with connect(layout.worker_socket(run)) as channel:
        try:
            answer = await ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest(), timeout=seconds)
        except grpc.aio.AioRpcError:
            return ""
    default = answer.models[0]  # GetModel would ask the hub
    return " ".join(default.error.split()) if default.state == model_pb2.MODEL_STATE_FAILED else ""


def gateway_addresses(run: Path) -> dict[str, str]:
    """Return the addresses that a gateway wrote, by door; none after it ended."""
    try:
        addresses: dict[str, str] = json.loads((run / layout.GATEWAY_FILE).read_text(encoding="utf-8"))
        for door in ("http", "grpc"):
            parse_address(addresses[door])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return addresses

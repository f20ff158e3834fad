"""Which services run on a run directory, and whether they say that they are ready."""

import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from agentmem import layout
from agentmem.addresses import parse_address
from agentmem.channels import connect
from agentmem.checkup import Finding, listens, ok, warning
from gateway import upstream

_SECONDS = 5.0
"""A machine that is busy is not to be told as broken."""
_NAME = "running"


class Running(NamedTuple):
    """Services that accept connections, each with why it is not ready, "" if it is; and the gateway's addresses."""

    unready: dict[str, str]
    addresses: dict[str, str]


NOTHING: Final = Running({}, {})


async def look(run: Path) -> Running:
    """Ask those that listen in the directory. A gateway is known by the addresses that it wrote there."""
    unready: dict[str, str] = {}
    for name, target, service in (
        ("store", layout.store_socket(run), ""),
        ("worker", layout.worker_socket(run), "agentmem.v1.InferenceService"),
    ):
        if listens(target):
            unready[name] = await _reason(name, target, service)
    addresses = _addresses(run / layout.GATEWAY_FILE)
    if addresses and _accepts(addresses["grpc"]):
        # With TLS it may want a certificate that is signed; that it listens says enough then.
        unready["gateway"] = "" if "tls" in addresses else await _reason("gateway", addresses["grpc"])
        return Running(unready, addresses)
    return Running(unready, {})


def judged(found: Running) -> Finding:
    """What it means that these run."""
    facts = {name: reason or "ready" for name, reason in found.unready.items()}
    if not found.unready:
        return ok(_NAME, "no service of Agentmem runs on this run directory", facts=facts)
    absent = [name for name in ("store", "worker", "gateway") if name not in found.unready]
    waiting = [f"the {name} is not ready ({reason})" for name, reason in found.unready.items() if reason]
    if absent:
        verb = "runs" if len(found.unready) == 1 else "run"
        told = "; ".join([f"{_and(found.unready)} {verb}, and no {' and no '.join(absent)}", *waiting])
        return warning(_NAME, told, "start what is missing, or stop the rest before `agentmem up`", facts=facts)
    if waiting:
        return warning(
            _NAME, "; ".join(waiting), "wait if a model is being loaded; else read that service's log", facts=facts
        )
    return ok(_NAME, f"store, worker and gateway run and are ready, at http {found.addresses['http']}", facts=facts)


def _accepts(address: str) -> bool:
    """Whether somebody accepts connections at a TCP address."""
    try:
        where = parse_address(address)
        with socket.create_connection((where.host, where.port), _SECONDS):
            return True
    except (OSError, ValueError):
        return False


async def _reason(name: str, target: str, service: str = "") -> str:
    async with connect(target) as channel:
        return await upstream.unready_reason(channel, service, _SECONDS, name)


def _addresses(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or not {"http", "grpc"} <= found.keys():
        return {}
    return {str(door): str(address) for door, address in found.items()}


def _and(names: Iterable[str]) -> str:
    return " and ".join(f"the {name}" for name in names)

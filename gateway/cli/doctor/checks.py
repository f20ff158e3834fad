"""The gateway's checks: versions, settings, limits, the run directory, what runs already, and ports."""

import asyncio
import os
import platform
import resource
import stat
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import psutil
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentmem import layout
from agentmem.console import Mistake
from agentmem.process.checkup import Checks, Finding, Findings, main, ok, problem, refused, usable_directory, warning
from agentmem.process.settings import SettingsError
from agentmem.process.sockets import MAX_SOCKET_PATH_BYTES, Address, parse_address
from gateway.cli.up.openblas import preload_here
from gateway.cli.up.preflight import doors
from gateway.cli.up.readiness import NAMES, gateway_addresses, unready
from gateway.cli.up.settings import UpSettings, gateway_settings
from gateway.pages import Page
from gateway.scraping import Service, read_page
from gateway.settings import GatewaySettings, check_files

_NAME = "agentmem"
_LOCK = Path(__file__).parents[3] / "uv.lock"
_SERVERS = frozenset({"server", "metal", "cpu", "cuda13"})
"""Extras that are builds of MLX, which the worker checks."""

_MOST = 6
_SECONDS = 5.0
"""A machine that is busy is not broken, nor another program."""

_OWN_FILES, _FEW_FILES = 128, 512
"""What a process has open besides connections (libraries, logs, the database, files of KV), and a low limit."""


class Running(NamedTuple):
    """Services that accept connections, each with why it is not ready ("" if it is), and the gateway's addresses."""

    unready: dict[str, str]
    addresses: dict[str, str]


def checks(settings: UpSettings) -> Checks:
    """Return the checks of a gateway that `agentmem up` would start with these settings."""
    run = settings.run_directory
    return {
        "versions": versions,
        "extras": extras,
        "gateway settings": partial(settings_of_gateway, settings),
        "open files": partial(open_files, settings),
        "BLAS": blas,
        "run directory": partial(run_directory, run),
        "running": lambda: [judge_running(asyncio.run(running(run)))],
        "ports": lambda: ports(settings, asyncio.run(running(run))),
    }


def versions() -> Findings:
    """Check Python and libraries against what Agentmem requires, and against uv.lock where there is one."""
    try:
        ours = metadata.metadata(_NAME)
    except metadata.PackageNotFoundError:
        return [warning("agentmem is not installed, so what it needs is not known", "make setup, or pip install it")]
    about = f"agentmem {ours['Version']}, Python {platform.python_version()}"
    if wrong := [*unmet(""), *unmet("server")]:
        return [problem(f"{about}: {_some(wrong)}", "make setup, or pip install --upgrade agentmem")]
    if not _LOCK.is_file():
        return [ok(f"{about}, and all libraries are as they are asked for")]
    if others := unlike(tomllib.loads(_LOCK.read_text(encoding="utf-8")), _installed()):
        return [warning(f"{about}; other versions than were tested: {_some(others)}", "make setup")]
    return [ok(f"{about}, and all libraries are as in uv.lock")]


def extras() -> Findings:
    """Say which of the optional parts are installed."""
    with suppress(metadata.PackageNotFoundError):
        for name in sorted({*(metadata.metadata(_NAME).get_all("Provides-Extra") or ())} - _SERVERS):
            if wrong := unmet(name):
                yield ok(f"{name} is not there: {_some(wrong)}", f"pip install 'agentmem[{name}]', if you want it")
            else:
                yield ok(f"{name} is there")


def unmet(extra: str) -> list[str]:
    """Return what is missing or of another version, of what `extra` adds; "" is what is always required."""
    wrong, installed = [], _installed()
    for each in map(Requirement, metadata.requires(_NAME) or ()):
        always, applies = (each.marker is None or each.marker.evaluate({"extra": name}) for name in ("", extra))
        if not applies or (extra and always):
            continue
        version = installed.get(canonicalize_name(each.name))
        if version is None:
            wrong.append(f"{each.name} is missing")
        elif not each.specifier.contains(version, prereleases=True):
            wrong.append(f"{each.name} {version} is not {each.specifier}")
    return wrong


def unlike(lock: Mapping[str, Any], installed: Mapping[str, str]) -> list[str]:
    """Return installed packages that are not of a version in the lock, which may have several, for several systems."""
    locked: dict[str, set[str]] = {}
    for package in lock.get("package", ()):
        if "version" in package and package["name"] != _NAME:
            locked.setdefault(canonicalize_name(package["name"]), set()).add(package["version"])
    return [
        f"{name} {installed[name]} instead of {' or '.join(sorted(found))}"
        for name, found in sorted(locked.items())
        if name in installed and installed[name] not in found
    ]


def _installed() -> dict[str, str]:
    return {canonicalize_name(found.metadata["Name"]): found.version for found in metadata.distributions()}


def _some(words: list[str]) -> str:
    return ", ".join(words[:_MOST]) + (f" and {len(words) - _MOST} more" if len(words) > _MOST else "")


def settings_of_gateway(settings: UpSettings) -> Findings:
    """Check that the gateway would take its settings, and can read its files. Raise SettingsError."""
    check_files(gateway_settings(settings))
    return [ok("settings, keys and certificates can be read")]


def open_files(settings: UpSettings) -> Findings:
    """Check the soft limit, which the services inherit, against the connections that HTTP and gRPC together take."""
    try:
        connections = 2 * gateway_settings(settings).max_connections
    except SettingsError:  # found by the check of the gateway's settings
        connections = 2 * GatewaySettings.model_fields["max_connections"].default
    soft, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], connections + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return [ok("any number" if soft == resource.RLIM_INFINITY else f"{soft:,} per process")]
    raised = (
        f"ulimit -n {needed} before `agentmem up` (LimitNOFILE in a systemd unit, NumberOfFiles in a launchd plist)"
    )
    if soft < _OWN_FILES:
        return [problem(f"{soft:,} per process: services cannot start with so few", raised)]
    fewer = f"{soft:,} per process: enough for {soft - _OWN_FILES:,} of {connections:,} connections"
    return [(warning if soft < _FEW_FILES else ok)(fewer, raised)]


def blas() -> Findings:
    """Say which BLAS is preloaded into the worker."""
    found = preload_here()
    if not found.message:
        return [ok("none is preloaded here: MLX brings what it needs")]
    what = found.message.replace("preloaded", "is preloaded into the worker by agentmem up")
    return [warning(what, found.advice) if found.advice else ok(what)]


def run_directory(directory: Path) -> Findings:
    """Check that the sockets' paths are short enough, and that only this user can put sockets into the directory."""
    sockets = layout.store_socket(directory), layout.worker_socket(directory)
    over = max(len(os.fsencode(path.removeprefix("unix:"))) for path in sockets) - MAX_SOCKET_PATH_BYTES
    if over > 0:
        most = f"{over} bytes longer than the {MAX_SOCKET_PATH_BYTES} that the system takes"
        yield problem(f"the sockets' paths in {directory} are {most}", "choose a shorter --run-dir")
    if unusable := usable_directory(directory, "--run-dir"):
        yield unusable
        return
    mode, close = stat.S_IMODE(directory.stat().st_mode), f"chmod 700 {quote(str(directory))}"
    opened = f"{directory} has mode {mode:04o}: others"
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield problem(f"{opened} could put their sockets in place of ours", close)
    elif mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield warning(f"{opened} see what is there, and cannot connect", close)
    else:
        yield ok(str(directory))


async def running(run: Path) -> Running:
    """Ask the services that listen in the run directory."""
    asked = {name: await unready(run, name, _SECONDS) for name in NAMES}
    there = {name: reason for name, reason in asked.items() if reason is not None}
    return Running(there, gateway_addresses(run) if "gateway" in there else {})


def judge_running(found: Running) -> Finding:
    """Return what it means that these run."""
    facts = {name: reason or "ready" for name, reason in found.unready.items()}
    if not facts:
        return ok("no service of Agentmem runs on this run directory")
    waiting = [f"the {name} is not ready ({reason})" for name, reason in found.unready.items() if reason]
    absent = [f"no {name} runs" for name in NAMES if name not in facts]
    if absent:
        some = ", ".join([*absent, *waiting, f"but there is the {' and the '.join(facts)}"])
        return warning(some, "start what is missing, or stop the rest before `agentmem up`", facts)
    if waiting:
        return warning(", ".join(waiting), "wait if a model is being loaded; else read that service's log", facts)
    return ok(f"store, worker and gateway run and are ready, at http {found.addresses['http']}", facts=facts)


def ports(settings: UpSettings, found: Running) -> Findings:
    """Check that each port is free, or held by the Agentmem that runs on our run directory."""
    free: list[str] = []
    ours: list[str] = []
    try:
        for flag, address, refused_for in doors(settings):
            if not refused_for:
                free.append(str(address.port or f"any ({flag.split()[0]})"))
            elif _is_ours(address, settings, found):
                ours.append(str(address.port))
            else:
                cannot = f"{flag.partition(' (')[0]}: cannot listen on {address}: {refused_for}{_holder(address)}"
                yield problem(cannot, "choose another port, or end that program")
    except Mistake as error:
        yield refused(error)
    for what, held in (("free", free), ("held by the Agentmem that runs here", ours)):
        if held:
            yield ok(f"{what}: {', '.join(dict.fromkeys(held))}")


def _is_ours(address: Address, settings: UpSettings, found: Running) -> bool:
    """Return whether a service that runs on our run directory listens there: by its address, or its page of metrics."""
    if str(address) in (found.addresses.get(door) for door in ("http", "grpc", "metrics")):
        return True
    behind = address.port - parse_address(settings.metrics).port if settings.metrics else 0
    services: dict[int, Service] = {layout.WORKER_METRICS: "worker", layout.STORE_METRICS: "store"}
    service = services.get(behind)
    return service in found.unready and isinstance(asyncio.run(read_page(service, str(address))), Page)


def _holder(address: Address) -> str:
    """Return who listens there, where the system tells; macOS tells of one's own processes only."""
    with suppress(psutil.Error):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.pid and each.laddr and each.laddr.port == address.port:
                return f" by process {each.pid}, {' '.join(psutil.Process(each.pid).cmdline())[:120]}"
    return ""


if __name__ == "__main__":
    main(UpSettings, "up", checks)

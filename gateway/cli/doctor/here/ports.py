"""Whether the services can have their ports, or whose they are."""

import http.client
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import psutil

from agentmem import layout
from agentmem.addresses import Address, parse_address
from agentmem.checkup import Finding, ok, problem
from gateway.cli.doctor.here.running import Running
from gateway.cli.preflight import WrongSetting, unbindable, wanted
from gateway.cli.up_settings import UpSettings

_NAME = "ports"
_SECONDS = 5.0
"""A machine that is busy is not to be taken for another program."""
_PAGE_BYTES = 4 * 1024 * 1024


def ports(settings: UpSettings, running: Running) -> Iterator[Finding]:
    """A finding for each port that is somebody else's, and one for all that are free or ours."""
    free: list[str] = []
    ours: list[str] = []
    taken: dict[Address, str] = {}
    try:
        for flag, address in wanted(settings):
            if address.port == 0:
                free.append(f"any ({flag.split()[0]})")
            elif address in taken:
                yield problem(
                    _NAME, f"{flag}: port {address.port} is that of {taken[address]}, too", "choose another port"
                )
            elif not (refused := unbindable(address)):
                free.append(str(address.port))
            elif _is_ours(address, settings, running):
                ours.append(str(address.port))
            else:
                told = f"{flag.partition(' (')[0]}: cannot listen on {address}: {refused}{_holder(address)}"
                yield problem(_NAME, told, "choose another port, or end that program", facts={"port": address.port})
            taken[address] = flag
    except WrongSetting as error:
        yield problem(_NAME, str(error), "choose another port")
    if free:
        yield ok(_NAME, f"free: {', '.join(dict.fromkeys(free))}")
    if ours:
        unready = [name for name, reason in running.unready.items() if reason]
        state = f"not ready: {', '.join(unready)}" if unready else "ready"
        yield ok(_NAME, f"held by the Agentmem that runs here, which is {state}: {', '.join(ours)}")


def _is_ours(address: Address, settings: UpSettings, running: Running) -> bool:
    """Whether a service that runs on our run directory listens there."""
    if str(address) in (running.addresses.get(door) for door in ("http", "grpc", "metrics")):
        return True
    if not settings.metrics:
        return False
    behind = address.port - parse_address(settings.metrics).port
    services = {layout.WORKER_METRICS: "worker", layout.STORE_METRICS: "store"}
    return services.get(behind) in running.unready and _shows_our_metrics(address)


def _shows_our_metrics(address: Address) -> bool:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_SECONDS)
    try:
        connection.request("GET", "/metrics")
        return b"\nagentmem_build_info{" in connection.getresponse().read(_PAGE_BYTES)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _holder(address: Address) -> str:
    """Who listens there, where the system tells."""
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.pid and each.laddr and each.laddr.port == address.port:
                words = psutil.Process(each.pid).cmdline()
                return f" by process {each.pid}, {'another Agentmem' if is_agentmem(words) else ' '.join(words)[:80]}"
    except psutil.Error:  # macOS tells of one's own processes only
        return ""
    return ""


def is_agentmem(words: Sequence[str]) -> bool:
    """Whether a command line is of `agentmem`, its services or its modules; a path that leads there is none."""
    return any(re.match(r"agentmem\b", PurePath(word).name) for word in words[:3])

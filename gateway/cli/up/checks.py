"""Checks of `agentmem doctor` about what `agentmem up` starts, but for those of store and worker."""

import asyncio
import platform
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from agentmem.distribution import version
from agentmem.process.checkup import Checks, Finding, Findings, ok, problem, warning
from agentmem.process.open_files import OWN, raised
from gateway.cli.up import preflight
from gateway.cli.up.openblas import preload_here
from gateway.cli.up.readiness import NAMES, unready
from gateway.cli.up.settings import UpSettings, gateway_settings

SETTINGS: Final = UpSettings
_ANSWER_SECONDS: Final = 5.0
_FEW_FILES: Final = 512


def checks(settings: UpSettings) -> Checks:
    return {
        "versions": lambda: [ok(f"agentmem {version()}, Python {platform.python_version()}")],
        "settings": partial(start, settings),
        "open files": partial(open_files, settings),
        "BLAS": blas,
        "running": lambda: [judge_running(asyncio.run(running(settings.run_directory)))],
        "ports": partial(ports, settings),
    }


def start(settings: UpSettings) -> Findings:
    """Check what `agentmem up` checks first. Raises Mistake."""
    preflight.check(settings)
    return [ok("data directory, models, keys and certificates are as they should be")]


def open_files(settings: UpSettings) -> Findings:
    """Check the limit, as services raise it, against their connections."""
    limit, connections = raised(), 2 * gateway_settings(settings).max_connections
    if limit >= connections + OWN:
        return [ok(f"{limit:,} per process")]
    few = f"{limit:,} per process: enough for {max(0, limit - OWN):,} of {connections:,} connections"
    state = problem if limit < OWN else warning if limit < _FEW_FILES else ok
    more = "raise the hard limit: limits.conf, LimitNOFILE in a systemd unit, HardResourceLimits in a launchd plist"
    return [state(few, more)]


def blas() -> Findings:
    found = preload_here()
    if found.advice:
        return [warning(found.message, found.advice)]
    return [ok(found.message or "none is preloaded: MLX brings what it needs")]


async def running(run: Path) -> dict[str, str]:
    found = {name: await unready(run, name, _ANSWER_SECONDS) for name in NAMES}
    return {name: reason for name, reason in found.items() if reason is not None}


def judge_running(found: Mapping[str, str]) -> Finding:
    if not found:
        return ok("no service of Agentmem runs on this run directory")
    facts = {name: reason or "ready" for name, reason in found.items()}
    wrong = [f"the {name} is not ready ({reason})" for name, reason in found.items() if reason]
    wrong += [f"no {name} runs, but there is the {' and the '.join(found)}" for name in NAMES if name not in found]
    if not wrong:
        return ok("store, worker and gateway run and are ready", facts=facts)
    advice = "wait if a model is being loaded; else read that service's log, or stop the rest before `agentmem up`"
    return warning(", ".join(wrong), advice, facts)


def ports(settings: UpSettings) -> Findings:
    """Check that ports are free, unless services run. Raises Mistake."""
    if asyncio.run(running(settings.run_directory)):
        return [ok("not checked while services run here")]
    preflight.check_ports(settings)
    return [ok("all can be had")]

"""Checks of variables, and of the services' own settings in variables and TOML, before anything starts."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from agentmem import layout
from agentmem.client.connection import ADDRESS, KEY
from agentmem.console import Mistake
from agentmem.process.models import VARIABLE as OFFLINE
from agentmem.process.settings import CONFIG_VARIABLE
from agentmem.process.trial import REFUSED
from gateway.cli.up.settings import UpSettings, service_arguments, store_environment

_PREFIX: Final = "AGENTMEM_"
_SERVICES: Final = ("UP", "GATEWAY", "STORE", "WORKER")
_CLIENT: Final = (ADDRESS, KEY, *(f"{_PREFIX}{name}" for name in ("TLS", "CA", "CLIENT_CERT", "CLIENT_KEY")))
_OF_EXAMPLES: Final = ("AGENTMEM_MODEL", "AGENTMEM_MODELS")
"""Read by deploy/."""
_ALIKE: Final = 0.8
_SECONDS: Final = 60.0


class _Service(NamedTuple):
    settings: str
    arguments: Sequence[str]
    address: str
    environment: Mapping[str, str]


def check_variables(settings: UpSettings) -> None:
    """Raise Mistake for variables that nobody reads, and for what store and worker would refuse."""
    if unread := [*_unread()]:
        raise Mistake("\n".join(unread))
    for name, service in _services(settings).items():
        prefix = f"{_PREFIX}{name.upper()}_"
        if CONFIG_VARIABLE in os.environ or any(each.startswith(prefix) for each in os.environ):
            _try(name, service)


def _unread() -> Iterator[str]:
    """Yield a line about each variable that looks like one of ours."""
    ours = {name.upper(): f"{_PREFIX}UP_{name.upper()}" for name in UpSettings.model_fields}
    ours |= {name.removeprefix(_PREFIX): name for name in (*_CLIENT, *_OF_EXAMPLES, CONFIG_VARIABLE, OFFLINE)}
    for variable in sorted(os.environ):
        name = variable.removeprefix(_PREFIX)
        service, _, rest = name.partition("_")
        if name == variable or ours.get(name) == variable or service in _SERVICES:
            continue
        meant = [ours[each] for each in get_close_matches(name, ours, 1, _ALIKE)]
        meant += [f"{_PREFIX}{each}_{rest}" for each in get_close_matches(service, _SERVICES, 1, _ALIKE) if rest]
        if meant:
            yield f"{variable} is read by nothing; did you mean {meant[0]}?"


def _services(settings: UpSettings) -> dict[str, _Service]:
    told, run = service_arguments(settings), settings.run_directory
    store, worker = layout.store_socket(run), layout.worker_socket(run)
    return {
        "store": _Service("cache_service.settings:StoreSettings", told.store, store, store_environment(settings)),
        "worker": _Service("inference_service.settings:WorkerSettings", told.worker, worker, {}),
    }


def _try(name: str, service: _Service) -> None:
    """Load a service's settings in a process of their own. Raises Mistake."""
    words = (sys.executable, "-m", "agentmem.process.trial", service.settings, *service.arguments)
    environment = {**os.environ, **service.environment}
    try:
        tried = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return  # the service itself says what is wrong
    if tried.returncode == REFUSED:
        raise Mistake("\n".join(_by_variable(name, line) for line in tried.stderr.splitlines()))
    if tried.returncode == 0 and tried.stdout != service.address:
        raise Mistake(f"listen of the {name}: `agentmem up` gives it {service.address}; leave it out, or set --run-dir")


def _by_variable(service: str, line: str) -> str:
    setting, _, problem = line.partition(": ")
    variable = f"{_PREFIX}{service}_{setting}".upper()
    return f"{variable}: {problem}" if variable in os.environ else line

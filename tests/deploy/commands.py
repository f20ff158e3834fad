from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

from agentmem.process.settings import ServiceSettings, load
from cache_service.settings import StoreSettings
from gateway.cli.up.settings import UpSettings
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

_PROGRAMS: Mapping[tuple[str, ...], type[ServiceSettings]] = {
    ("agentmem-store",): StoreSettings,
    ("agentmem-worker",): WorkerSettings,
    ("agentmem-gateway",): GatewaySettings,
    ("agentmem", "up"): UpSettings,
}


def settings_of(command: Sequence[str], environment: Mapping[str, str]) -> ServiceSettings:
    """What the command's program makes of its flags in this environment alone. Raises for what is no flag of it."""
    program, *arguments = command
    for words, settings in _PROGRAMS.items():
        if (Path(program).name, *arguments[: len(words) - 1]) == words:
            with mock.patch.dict(os.environ, environment, clear=True):
                return load(settings, arguments[len(words) - 1 :])
    raise AssertionError(f"{program} is none of our programs")

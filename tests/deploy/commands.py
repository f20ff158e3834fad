"""Commands and environments of files under deploy/: what our programs make of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from agentmem import layout
from agentmem.process.settings import ServiceSettings, load
from cache_service.settings import StoreSettings
from gateway.cli.up.settings import UpSettings, service_arguments, store_environment
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
    """Return the settings of a command's flags in this environment alone. Raises for what is no flag of it."""
    program, *arguments = command
    for words, settings in _PROGRAMS.items():
        if (Path(program).name, *arguments[: len(words) - 1]) == words:
            with mock.patch.dict(os.environ, environment, clear=True):
                return load(settings, arguments[len(words) - 1 :])
    raise AssertionError(f"{program} is none of our programs")


MANAGED = frozenset(
    {
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "HF_TOKEN", "HF_HOME", "XDG_CACHE_HOME"),
        *("CUDA_CACHE_PATH", "LD_PRELOAD", "OPENBLAS_THREAD_TIMEOUT", "PATH", "PYTHONDONTWRITEBYTECODE"),
    }
)
"""Variables of others than us that the files may set."""


@dataclass(frozen=True)
class Started:
    up: UpSettings
    store: StoreSettings
    worker: WorkerSettings
    gateway: GatewaySettings

    @property
    def stop_seconds(self) -> float:
        return 3 * (self.up.grace + layout.END_SECONDS)


def started(command: Sequence[str], environment: Mapping[str, str]) -> Started:
    """Raises for a flag that `agentmem up` does not know, and for a variable that is nobody's setting."""
    unknown = [name for name in environment if name not in MANAGED and not _is_setting(name)]
    assert not unknown, f"nobody reads {unknown}"
    up = settings_of(command, environment)
    assert isinstance(up, UpSettings)
    services = service_arguments(up)
    with mock.patch.dict(os.environ, {**environment, **store_environment(up)}, clear=True):
        return Started(
            up,
            load(StoreSettings, services.store),
            load(WorkerSettings, services.worker),
            load(GatewaySettings, services.gateway),
        )


def _is_setting(name: str) -> bool:
    return any(
        name in {f"{each.model_config['env_prefix']}{field}".upper() for field in each.model_fields}
        for each in _PROGRAMS.values()
    )

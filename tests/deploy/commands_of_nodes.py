"""Nodes of a cluster as files of deploy/ start them: what `agentmem up` and its three services make of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest import mock

from agentmem import layout
from agentmem.process.settings import ServiceSettings, load
from cache_service.settings import StoreSettings
from gateway.cli.up.settings import UpSettings, service_arguments, store_environment
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings

from .commands import settings_of

_BY_PREFIX: Mapping[str, type[ServiceSettings]] = {
    "AGENTMEM_UP_": UpSettings,
    "AGENTMEM_STORE_": StoreSettings,
    "AGENTMEM_WORKER_": WorkerSettings,
    "AGENTMEM_GATEWAY_": GatewaySettings,
}
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
        name.startswith(prefix) and name.removeprefix(prefix).lower() in settings.model_fields
        for prefix, settings in _BY_PREFIX.items()
    )

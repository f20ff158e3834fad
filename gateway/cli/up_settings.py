"""Settings of `agentmem up`, and what the three services are told because of them."""

from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.addresses import OptionalLoopbackAddress, parse_address
from agentmem.model_settings import ModelSettings
from gateway.door_settings import DoorSettings


class UpSettings(ModelSettings, DoorSettings):
    """Starts store, worker and gateway, and keeps them running until Ctrl-C.

    Each flag is also a variable, AGENTMEM_UP_…, and a key of the table [up] in the TOML file that AGENTMEM_CONFIG
    names. All other options of the services can be given there in [worker], [store] and [gateway], or as
    AGENTMEM_WORKER_…, AGENTMEM_STORE_… and AGENTMEM_GATEWAY_…; `agentmem-worker --help` and so on list them.
    """

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_UP_", cli_prog_name="agentmem up")
    toml_table: ClassVar[str] = "up"

    loaded_models: int | None = Field(None, ge=1, description="models that may be loaded at once (default: 1)")
    data: Path = Field(layout.DATA, description="directory of all that is kept")
    run_dir: Path | None = Field(None, description="directory of the sockets (default: DATA/run)")
    metrics: OptionalLoopbackAddress = Field(
        layout.metrics(),
        description="HOST:PORT of the gateway's /metrics; worker at PORT+1, store at PORT+2; empty: none",
    )
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running requests get at shutdown")

    @property
    def data_directory(self) -> Path:
        """The data directory, absolute."""
        return layout.data_directory(self.data)

    @property
    def run_directory(self) -> Path:
        """The directory of the sockets, absolute."""
        return layout.run_directory(self.data, self.run_dir)


class ServiceArguments(NamedTuple):
    """Command-line arguments of the three services."""

    store: list[str]
    worker: list[str]
    gateway: list[str]


def service_arguments(settings: UpSettings) -> ServiceArguments:
    """What each service is told."""
    run = _flag("run-dir", settings.run_directory)
    data = _flag("data", settings.data_directory)
    common = _flag("log-level", settings.log_level) + _flag("log-format", settings.log_format)
    common += _flag("grace", settings.grace) + (_flag("otlp", settings.otlp) if settings.otlp else [])
    models = _flag("model", *settings.model) + _flag("adapter", *settings.adapter)
    if settings.models is not None:
        models += _flag("models", settings.models)
    if settings.offline:
        models.append("--offline")
    if settings.loaded_models is not None:
        models += _flag("loaded-models", settings.loaded_models)
    doors = _flag("http", settings.http) + _flag("grpc", settings.grpc)
    for name in ("keys", "tls_cert", "tls_key", "tls_client_ca"):
        path: Path | None = getattr(settings, name)
        if path is not None:
            doors += _flag(name.replace("_", "-"), path)
    doors += _flag("allowed-host", *settings.allowed_host)
    return ServiceArguments(
        store=[*data, *run, *_flag("metrics", _metrics(settings, layout.STORE_METRICS)), *common],
        worker=[*data, *run, *models, *_flag("metrics", _metrics(settings, layout.WORKER_METRICS)), *common],
        gateway=[*run, *doors, *_flag("metrics", _metrics(settings, 0)), *common],
    )


def _flag(name: str, *values: object) -> list[str]:
    """The flag once for each value; in one word, for a value may begin with a dash."""
    return [f"--{name}={value}" for value in values]


def _metrics(settings: UpSettings, offset: int) -> str:
    return str(parse_address(settings.metrics).offset(offset)) if settings.metrics else ""

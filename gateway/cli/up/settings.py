from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.console import Mistake
from agentmem.kv.bits import KVBitsText
from agentmem.kv.object_location import LocationText
from agentmem.process.models import ModelSettings
from agentmem.process.settings import SettingsError, load, loaded
from agentmem.process.sockets import OptionalLoopbackAddress, parse_address
from gateway.settings import GatewaySettings, ListenSettings


class UpSettings(ModelSettings, ListenSettings):
    """Starts store, worker and gateway, and keeps them running until Ctrl-C."""

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_UP_", cli_prog_name="agentmem up")
    toml_table: ClassVar[str] = "up"

    loaded_models: int | None = Field(None, ge=1, description="models that may be loaded at once (default: 1)")
    context_length: int | None = Field(
        None, ge=1, description="tokens of context (default: what the model says, as far as memory holds it)"
    )
    kv_bits: KVBitsText | None = Field(
        None,
        description="bits per element of K and V, as 4, or of each, as 5/4 (3, 4, 5, 6 or 8); 4w6: 6 in windows; "
        "auto: as few as are good (default: auto)",
    )
    data: Path = Field(layout.DATA, description="directory of all that is kept")
    run_dir: Path | None = Field(None, description="directory of the sockets (default: DATA/run)")
    metrics: OptionalLoopbackAddress = Field(
        layout.metrics(),
        description="HOST:PORT of the gateway's /metrics; worker at PORT+1, store at PORT+2; empty: none",
    )
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running requests get at shutdown")
    remote: LocationText | None = Field(
        None, description="where copies of files of KV are kept, as s3://BUCKET/PREFIX (default: on this disk only)"
    )
    cluster: SecretStr = Field(
        SecretStr(""),
        description="postgresql://… of the ledger that all nodes of a cluster share; one with a password belongs into "
        "the variable AGENTMEM_UP_CLUSTER, which no other user sees",
    )
    cluster_survives: Literal["server", "crash", "nothing"] | None = Field(
        None,
        description="what a committed turn must outlive there: the loss of a server (needs a synchronous standby), a "
        "crash of its machine, or nothing (default: server)",
    )

    @field_validator("cluster")
    @classmethod
    def _is_postgresql(cls, given: SecretStr) -> SecretStr:
        url = given.get_secret_value()
        if url and not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("is no URL of PostgreSQL; write postgresql://USER@HOST:PORT/DATABASE")
        return given

    @model_validator(mode="after")
    def _whole_cluster(self) -> Self:
        if self.cluster and not self.node:
            raise ValueError("cluster: set node, advertise and cluster_tls too; a node of a cluster has all")
        if self.node and not self.cluster:
            raise ValueError("node: set cluster too, the URL of the PostgreSQL that all nodes share")
        if self.cluster_survives and not self.cluster:
            raise ValueError("cluster_survives: is about the ledger of a cluster; set cluster too, or leave it out")
        return self

    @property
    def data_directory(self) -> Path:
        return layout.data_directory(self.data)

    @property
    def run_directory(self) -> Path:
        return layout.run_directory(self.data, self.run_dir)


def gateway_settings(settings: UpSettings) -> GatewaySettings:
    """Return the started gateway's settings, which also has an environment. Raises SettingsError."""
    return load(GatewaySettings, service_arguments(settings).gateway)


def up_settings(given: Mapping[str, Any]) -> UpSettings:
    """Return settings from options, environment and TOML file. Raises Mistake."""
    if shows_password(given.get("cluster") or ""):
        raise Mistake("--cluster: a password on a command line is seen by all users; set AGENTMEM_UP_CLUSTER instead")
    try:
        return loaded(UpSettings, given)
    except SettingsError as error:
        raise Mistake(str(error)) from error


class ServiceArguments(NamedTuple):
    store: list[str]
    worker: list[str]
    gateway: list[str]


def shows_password(url: str) -> bool:
    """Return whether an argument has a PostgreSQL password."""
    if not url.startswith(("postgresql://", "postgres://")):
        return False
    authority, _, query = url.partition("://")[2].partition("?")
    return ":" in authority.rpartition("@")[0] or "password=" in query


def store_environment(settings: UpSettings) -> dict[str, str]:
    """Return the store's variables that are too secret for a command line."""
    url = settings.cluster.get_secret_value()
    return {"AGENTMEM_STORE_CLUSTER": url} if url else {}


def service_arguments(settings: UpSettings) -> ServiceArguments:
    def given(*names: str) -> dict[str, Any]:
        return {name: getattr(settings, name) for name in names}

    def common(behind: int) -> dict[str, Any]:
        metrics = str(parse_address(settings.metrics).offset(behind)) if settings.metrics else ""
        shared = given("log_level", "log_format", "grace")
        return {"run_dir": settings.run_directory, "metrics": metrics, **shared, "otlp": settings.otlp or None}

    data = {"data": settings.data_directory}
    models = given("model", "adapter", "models", "offline", "loaded_models", "context_length", "kv_bits")
    servers = given("http", "grpc", "keys", "cluster_keys", "tls_cert", "tls_key", "tls_client_ca", "allowed_host")
    node = given("node", "advertise", "cluster_tls") if settings.node else {}
    ledger = {**given("remote", "cluster_survives"), **node}
    return ServiceArguments(
        store=flags({**data, **ledger, **common(layout.STORE_METRICS)}),
        worker=flags({**data, **models, **common(layout.WORKER_METRICS)}),
        gateway=flags(
            {**servers, "no_ui": not settings.ui, **node, "node_listen": settings.node_listen or None, **common(0)}
        ),
    )


def flags(values: Mapping[str, Any]) -> list[str]:
    """Return a flag for each value or item, in one word, since values may begin with a dash."""
    found: list[str] = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif value is not None and value is not False:
            found += [f"{flag}={one}" for one in (value if isinstance(value, (list, tuple)) else [value])]
    return found

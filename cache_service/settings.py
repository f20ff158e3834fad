"""Settings of the cache store."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.kv.object_location import NONE, Location, LocationText
from agentmem.process.settings import ServiceSettings
from agentmem.process.sockets import OptionalLoopbackAddress, OptionalTcpAddress, OptionalUnixSocket
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.quotas import Quotas
from cache_service.tiers.remote.contract import RemoteSettings, check_endpoint

Survives = Literal["server", "crash", "nothing"]

NODE_NAME: Final = r"^([a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)?$"
"""A host name, or nothing."""


class StoreSettings(ServiceSettings):
    """Keeps the ledgers and KV of agents in one data directory, for one worker, and its gateway's workflow runs.

    Each flag is also a variable, AGENTMEM_STORE_…, and a key of the table [store] in the TOML file that AGENTMEM_CONFIG
    names.
    """

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_STORE_", cli_prog_name="agentmem-store")
    toml_table = "store"

    data: Path = Field(layout.DATA, description="directory of ledgers and KV; one store per directory")
    run_dir: Path | None = Field(None, description="directory of the socket (default: run/ in the data directory)")
    listen: OptionalUnixSocket = Field(
        "",
        description="Unix socket to serve on, as unix:PATH (default: unix:RUN_DIR/store.sock); callers are trusted",
    )
    metrics: OptionalLoopbackAddress = Field(
        layout.metrics(layout.STORE_METRICS), description="HOST:PORT of /metrics; empty: none"
    )
    warm_bytes: int | None = Field(
        None,
        ge=1,
        description="bytes that all files of KV may take, those being written included; idle agents"
        " lose theirs first (default: half of what is free at start plus what is there already)",
    )
    namespace_bytes: int | None = Field(
        None,
        ge=1,
        description="bytes that each namespace may take, its ledgers and files of KV together; its own idle agents lose"
        " their KV first, and then turns are refused (default: no quota)",
    )
    namespaces: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description="the same for single namespaces; repeatable, in the TOML file a table of names",
    )
    free_bytes_floor: int = Field(DiskLimits.free_bytes_floor, ge=0, description="bytes of the disk that stay free")
    remote: LocationText = Field(
        NONE,
        description="where copies of files of KV are kept, as s3://BUCKET/PREFIX; credentials come from AWS's"
        " environment or configuration (default: none, KV is on this disk only)",
    )
    remote_endpoint: Annotated[str, AfterValidator(check_endpoint)] = Field(
        "", description="address of an S3 that isn't AWS's, as https://HOST:PORT; http:// is for trusted networks only"
    )
    remote_region: str = Field("", description="the bucket's region (default: as AWS's environment says)")
    remote_timeout: float = Field(30.0, gt=0, description="seconds that one request to the object store may take")
    cluster: SecretStr = Field(
        SecretStr(""),
        description="where the ledgers are that several machines share, as postgresql://USER@HOST/DATABASE; with a"
        " password better given as AGENTMEM_STORE_CLUSTER (default: none, they are in the data directory)",
    )
    cluster_survives: Survives = Field(
        "server",
        description="what an acknowledged turn must survive: the loss of the database's server (it has a synchronous"
        " standby), its crash only, or nothing",
    )
    node: str = Field("", description="this node's name in the cluster, and of no other", pattern=NODE_NAME)
    advertise: OptionalTcpAddress = Field("", description="HOST:PORT where other nodes reach this one's gateway")
    cluster_tls: Path | None = Field(
        None, description="directory of ca.pem, node.pem and node-key.pem, for calls between nodes"
    )
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running calls get when the store stops")

    @property
    def limits(self) -> DiskLimits:
        return DiskLimits(self.warm_bytes, self.free_bytes_floor)

    @property
    def remote_settings(self) -> RemoteSettings:
        return RemoteSettings(
            Location.parse(self.remote), self.remote_endpoint, self.remote_region, self.remote_timeout
        )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        given = {"cluster": self.cluster.get_secret_value(), "node": self.node, "advertise": self.advertise}
        if any(given.values()) and not all(given.values()):
            missing = ", ".join(name for name, value in given.items() if not value)
            raise ValueError(f"cluster, node and advertise go together; set {missing}, too")
        return self

    @property
    def quotas(self) -> Quotas:
        return Quotas(self.namespace_bytes, self.namespaces)

    @property
    def data_directory(self) -> Path:
        return layout.data_directory(self.data)

    @property
    def address(self) -> str:
        return self.listen or layout.store_socket(layout.run_directory(self.data, self.run_dir))

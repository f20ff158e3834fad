"""Settings of the cache store: flags, `AGENTMEM_STORE_…`, or the table `store` of the TOML file."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.settings import ServiceSettings
from agentmem.sockets import OptionalLoopbackAddress, OptionalUnixSocket
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.quotas import Quotas
from cache_service.tiers.remote.contract import Location, RemoteSettings, check_endpoint


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
        description="bytes that all files of KV may take, those being written and in quarantine included; idle agents"
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
    remote: str = Field(
        "none",
        description="where copies of files of KV are kept, as s3://BUCKET/PREFIX; credentials come from AWS's"
        " environment or configuration (default: none, KV is on this disk only)",
    )
    remote_endpoint: Annotated[str, AfterValidator(check_endpoint)] = Field(
        "", description="address of an S3 that isn't AWS's, as https://HOST:PORT; http:// is for trusted networks only"
    )
    remote_region: str = Field("", description="the bucket's region (default: as AWS's environment says)")
    remote_timeout: float = Field(30.0, gt=0, description="seconds that one request to the object store may take")
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running calls get when the store stops")

    @property
    def limits(self) -> DiskLimits:
        """The limits of the warm tier."""
        return DiskLimits(self.warm_bytes, self.free_bytes_floor)

    @field_validator("remote")
    @classmethod
    def _is_location(cls, value: str) -> str:
        Location.parse(value)
        return value

    @property
    def remote_settings(self) -> RemoteSettings:
        """Which remote tier there is."""
        return RemoteSettings(
            Location.parse(self.remote), self.remote_endpoint, self.remote_region, self.remote_timeout
        )

    @property
    def quotas(self) -> Quotas:
        """What each namespace may take."""
        return Quotas(self.namespace_bytes, self.namespaces)

    @property
    def data_directory(self) -> Path:
        """The data directory, absolute."""
        return layout.data_directory(self.data)

    @property
    def address(self) -> str:
        """The address to serve on."""
        return self.listen or layout.store_socket(layout.run_directory(self.data, self.run_dir))

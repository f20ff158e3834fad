"""Settings of the gateway process."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.addresses import OptionalLoopbackAddress
from agentmem.keys import DEFAULT_NAMESPACE
from agentmem.v1 import types_pb2
from gateway.callers import Limits
from gateway.door_settings import DoorSettings
from gateway.fields import check_namespace

_DAY: Final = 24 * 3600.0


class GatewaySettings(DoorSettings):
    """Serves the APIs of OpenAI and Anthropic over HTTP, and the contract over gRPC, before one worker and its store.

    Each flag is also a variable, AGENTMEM_GATEWAY_…, and a key of the table [gateway] in the TOML file that
    AGENTMEM_CONFIG names.
    """

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_GATEWAY_", cli_prog_name="agentmem-gateway")
    toml_table: ClassVar[str] = "gateway"

    run_dir: Path | None = Field(None, description=f"directory of the sockets (default: {layout.DATA / layout.RUN})")
    worker: str = Field("", description="the worker's gRPC target (default: unix:RUN_DIR/worker.sock)")
    store: str = Field("", description="the cache store's gRPC target (default: unix:RUN_DIR/store.sock)")
    metrics: OptionalLoopbackAddress = Field(layout.metrics(), description="HOST:PORT of /metrics; empty: none")
    namespace: Annotated[str, AfterValidator(check_namespace)] = Field(
        DEFAULT_NAMESPACE, description="the namespace of all callers; with --keys each key has its own"
    )
    cors_origin: list[str] = Field(
        default_factory=list, description="origin of web pages that may call the HTTP door, or *; repeatable"
    )
    anonymous: Literal["keep", "forget"] = Field(
        "keep", description="what happens to conversations without X-Agent-ID: keep (found again by content), or forget"
    )
    conversation_ttl: float = Field(
        7 * _DAY, ge=0, description="idle seconds until the KV of such a conversation expires; 0: never"
    )
    conversation_delete_after: float = Field(
        30 * _DAY, ge=0, description="idle seconds until such a conversation is deleted; 0: never"
    )
    max_running: int | None = Field(
        None, ge=0, description="requests of a caller that may run at once; 0: any number (default: with --keys 64)"
    )
    max_per_minute: int | None = Field(
        None, ge=0, description="requests of a caller in a minute; 0: any number (default: with --keys 1200)"
    )
    max_body_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024,
        description="largest body of an HTTP request, and message over gRPC (there at least 512 KiB)",
    )
    max_import_bytes: int = Field(
        64 * 1024**3, ge=1024, description="largest file of an agent that is imported over HTTP"
    )
    body_timeout: float = Field(
        30.0, gt=0, description="seconds to wait for an HTTP request's body; 1 more for each 16 KiB of it"
    )
    max_header_bytes: int = Field(16 * 1024, ge=1024, description="largest headers of a request, and gRPC metadata")
    header_timeout: float = Field(10.0, gt=0, description="seconds an HTTP connection may take to send its headers")
    max_connections: int = Field(512, ge=1, description="connections to each door at once")
    max_streams: int = Field(256, ge=1, description="calls at once of one connection to the gRPC door")
    max_workflows: int = Field(16, ge=1, description="workflow runs of a namespace that go on at once")
    stream_queue: int = Field(1024, ge=1, description="events a stream may be ahead of its reader")
    stall_limit: float = Field(30.0, gt=0, description="seconds a reader may take nothing before its stream is aborted")
    keep_alive: float = Field(
        15.0, gt=0, description="seconds of silence after which a comment goes out on a stream of events, for proxies"
    )
    ready_timeout: float = Field(1.0, gt=0, description="seconds that worker and store may take to say that they serve")
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running requests get at shutdown")

    def limits(self, default: Limits) -> Limits:
        """What a caller may ask for; `default` where nothing is set."""
        return Limits(
            default.running if self.max_running is None else self.max_running,
            default.per_minute if self.max_per_minute is None else self.max_per_minute,
        )

    @property
    def expiry(self) -> types_pb2.Expiry:
        """What agents get that nobody named."""
        times = types_pb2.Expiry()
        for field, seconds in (
            (times.ttl, self.conversation_ttl),
            (times.delete_after, self.conversation_delete_after),
        ):
            if seconds:
                field.FromTimedelta(timedelta(seconds=seconds))
        return times

    @property
    def run_directory(self) -> Path:
        """The directory of the sockets, absolute."""
        return layout.run_directory(layout.DATA, self.run_dir)

    @property
    def worker_target(self) -> str:
        """Where the worker listens."""
        return self.worker or layout.worker_socket(self.run_directory)

    @property
    def store_target(self) -> str:
        """Where the cache store listens."""
        return self.store or layout.store_socket(self.run_directory)

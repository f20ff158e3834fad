"""Settings of the gateway process."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.addresses import LoopbackAddress, OptionalLoopbackAddress
from agentmem.errors import InvalidArgument
from agentmem.keys import DEFAULT_NAMESPACE, check_text
from agentmem.settings import ServiceSettings
from agentmem.v1 import types_pb2

_DAY: Final = 24 * 3600.0


def _namespace(value: str) -> str:
    try:
        return check_text("namespace", value)
    except InvalidArgument as error:
        raise ValueError(error.problem) from None


class GatewaySettings(ServiceSettings):
    """Serves OpenAI's chat API over HTTP, and the contract over gRPC, before one worker.

    Each flag is also a variable, AGENTMEM_GATEWAY_…, and a key of the table [gateway] in the TOML file that
    AGENTMEM_CONFIG names.
    """

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_GATEWAY_", cli_prog_name="agentmem-gateway")
    toml_table: ClassVar[str] = "gateway"

    run_dir: Path | None = Field(None, description=f"directory of the sockets (default: {layout.DATA / layout.RUN})")
    worker: str = Field("", description="the worker's gRPC target (default: unix:RUN_DIR/worker.sock)")
    http: LoopbackAddress = Field(layout.HTTP, description="HOST:PORT of the HTTP door; port 0 takes any")
    grpc: LoopbackAddress = Field(layout.GRPC, description="HOST:PORT of the gRPC door; port 0 takes any")
    metrics: OptionalLoopbackAddress = Field(layout.metrics(), description="HOST:PORT of /metrics; empty: none")
    namespace: Annotated[str, AfterValidator(_namespace)] = Field(
        DEFAULT_NAMESPACE, description="the namespace of all callers"
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
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="largest body of an HTTP request")
    stream_queue: int = Field(1024, ge=1, description="events a stream may be ahead of its reader")
    stall_limit: float = Field(30.0, gt=0, description="seconds a reader may take nothing before its stream is aborted")
    ready_timeout: float = Field(1.0, gt=0, description="seconds /readyz waits for the worker's health")
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running requests get at shutdown")

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

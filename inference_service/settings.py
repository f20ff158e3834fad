"""The worker's settings."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.kv.bits import AUTO, KVBitsText
from agentmem.process.models import ModelSettings
from agentmem.process.sockets import OptionalLoopbackAddress, OptionalUnixSocket


def _known_wired(given: object) -> object:
    if given in ("auto", "off") or (str(given).isdecimal() and not isinstance(given, bool)):
        return given
    raise ValueError(f"{given!r} is neither auto nor off nor a number of bytes")


Wired = Annotated[Literal["auto", "off"] | int, BeforeValidator(_known_wired)]


class WorkerSettings(ModelSettings):
    """Computes turns: loads models, keeps agents' KV in memory, restores it from the cache store.

    Each flag is also a variable, AGENTMEM_WORKER_…, and a key of the table [worker] in the TOML file that
    AGENTMEM_CONFIG names.
    """

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_WORKER_", cli_prog_name="agentmem-worker")
    toml_table: ClassVar[str] = "worker"

    data: Path = Field(layout.DATA, description="data directory; the worker keeps what it has measured of models there")
    run_dir: Path | None = Field(None, description="directory of the sockets (default: DATA/run)")
    listen: OptionalUnixSocket = Field(
        "",
        description="Unix socket to serve on, as unix:PATH (default: unix:RUN_DIR/worker.sock); callers are trusted",
    )
    store: str = Field("", description="the cache store's gRPC target (default: unix:RUN_DIR/store.sock)")
    metrics: OptionalLoopbackAddress = Field(
        layout.metrics(layout.WORKER_METRICS), description="HOST:PORT of /metrics; empty: none"
    )
    namespace_label: bool = Field(
        False, description="metrics of turns have the label namespace; for a few namespaces, because each has series"
    )
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running requests get at shut-down")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="compute dtype; auto is float32 on CPU and the model's own elsewhere"
    )
    kv_bits: KVBitsText = Field(
        AUTO,
        description="bits per element of K and V, as 4, or of each, as 5/4 (3, 4, 5, 6 or 8); 4w6: 6 in windows; "
        "auto: as few as are good",
    )
    kv_group_size: Literal[32, 64] | None = Field(
        None, description="elements per quantization group; 64, or 32 where heads are no multiple of 64 wide"
    )
    quality_check: bool = Field(
        True, description="compare quantized KV with unquantized KV when a model is loaded for the first time"
    )
    measure_first_bytes: int = Field(
        128 << 20,
        ge=0,
        description=(
            "a new model with more bytes of weights serves at once, with 8 bits, and is measured between its turns; "
            "agents that it has met by then are computed again once"
        ),
    )
    speculation: bool = Field(
        True,
        description=(
            "compute several tokens in a step where a request repeats what stands in its context, and that is faster"
        ),
    )
    context_length: int | None = Field(
        None, ge=1, description="tokens of context (default: what the model says, as far as memory holds it)"
    )
    default_max_tokens: int = Field(1024, ge=1, description="max_tokens of requests that name none")
    pool_bytes: int | None = Field(
        None,
        ge=1,
        description=(
            "bytes of memory for agents' KV (default: what the model leaves, on CPUs and Macs half of it; at most 32"
            " agents at the end of their context)"
        ),
    )
    free_memory_floor: int | None = Field(
        None,
        ge=0,
        description=(
            "bytes of the device's memory that stay free for other processes (default: a twentieth of it); looked at "
            "when models are loaded and turns begin"
        ),
    )
    wired: Wired = Field(
        "auto",
        description=(
            "bytes of memory that macOS keeps resident for the GPU; auto: what loaded models need, but 35 % of memory, "
            "and at least 8 GiB, stay the system's"
        ),
    )
    keep_warm: float = Field(
        60.0,
        ge=0,
        description=(
            "seconds after a turn in which a Mac's GPU is kept from clocking down, by a tiny product each second; not "
            "on its battery, and 0 is never"
        ),
    )
    typical_tokens: int = Field(
        4096,
        ge=256,
        description=(
            "tokens of a typical agent; for models with sliding windows or recurrent layers, whose pool has a "
            "checkpoint for each"
        ),
    )
    loaded_models: int = Field(
        1, ge=1, description="models that may be loaded at once, with even shares of what is free for KV at a load"
    )
    swap_wait: float = Field(
        50.0,
        ge=0,
        description="seconds a request waits for its model to be loaded before it is refused; proxies wait a minute",
    )
    min_residency: float = Field(
        5.0, ge=0, description="seconds that a model stays loaded at least before another may take its place"
    )
    room_wait: float = Field(30.0, ge=0, description="seconds a request waits for memory before it is refused")
    max_requests: int = Field(64, ge=1, description="requests that may run or wait before others are refused")
    min_restore_tokens: int | None = Field(
        None,
        ge=1,
        description="a shorter common beginning is not worth restoring (default: 16; 128 on a GPU with its own memory)",
    )

    @property
    def data_directory(self) -> Path:
        return layout.data_directory(self.data)

    @property
    def run_directory(self) -> Path:
        return layout.run_directory(self.data, self.run_dir)

    @property
    def address(self) -> str:
        return self.listen or layout.worker_socket(self.run_directory)

    @property
    def store_target(self) -> str:
        return self.store or layout.store_socket(self.run_directory)

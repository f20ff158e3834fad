"""What `agentmem top` shows, as --json writes it: one object for each interval. `--schema` writes this as JSON Schema.

Names end in their units. "Interval" is the time since the reading before; what is null is not known: its source did
not answer, or there was nothing to measure. Rates are per second of the interval and never negative; a process that was
restarted counts from zero again.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema

from gateway.cli.top.reading import Service

ByTier = dict[str, int]
State = Literal["up", "not_ready", "down"]


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class Latency(_Figures):
    """A distribution of times in the interval, from a histogram: exact to the width of its buckets."""

    count: int
    """How many were measured."""
    p50_seconds: float | None
    """Half took at most so long."""
    p95_seconds: float | None
    """95 % took at most so long."""
    p99_seconds: float | None
    """99 % took at most so long."""


class HitRate(_Figures):
    """Which share of prompt tokens was reused, of requests that may reuse KV; 0 to 1."""

    interval: float | None
    """Of those in the interval."""
    since_start: float | None
    """Of those since the worker started."""


class Pool(_Figures):
    """Blocks of a model's pool."""

    used_blocks: int
    """That somebody uses."""
    free_blocks: int
    """That nobody uses."""


class Tokens(_Figures):
    """Tokens of a model since its worker started."""

    prompt: int
    """Of prompts, reused ones included."""
    reused: ByTier
    """Of prompts, whose KV was found, by the tier where."""
    generated: int
    """Sampled."""


class ModelFigures(_Figures):
    """A registered model."""

    model_id: str
    """Its name."""
    state: str | None
    """registered, loading, loaded, draining or failed."""
    default: bool
    """It is what requests without a model mean."""
    running: int | None
    """Requests that the engine works on."""
    waiting: int | None
    """Requests that wait for their agent or for the engine."""
    batch_size: int | None
    """Sequences that decode together."""
    requests_per_second: float | None
    """Requests that ended, well or not."""
    decode_tokens_per_second: float | None
    """Tokens sampled."""
    prefill_tokens_per_second: float | None
    """Prompt tokens that were computed: those that were not reused."""
    time_to_first_token: dict[str, Latency]
    """From arrival at the worker to the first token, by the slowest tier used; tiers without a request are left out."""
    inter_token_latency: Latency | None
    """Between two tokens of a request."""
    hit_rate: HitRate
    """What memory gave."""
    tokens: Tokens | None
    """What was done since the worker started."""
    pool: Pool | None
    """Its KV in memory."""
    hot_agents: int | None
    """Agents whose KV is in the pool."""


class StorageFigures(_Figures):
    """KV beyond the pool. Loads and stores are the worker's, the rest is the store's."""

    disk_bytes: dict[str, int]
    """In the data directory, by kind; empty if not known."""
    disk_limit_bytes: int | None
    """What all files of KV together may take."""
    disk_free_bytes: int | None
    """Free on the disk."""
    disk_free_floor_bytes: int | None
    """Where KV is dropped to keep so much of the disk free."""
    load_bytes_per_second: float | None
    """KV read from disk."""
    store_bytes_per_second: float | None
    """KV written to disk."""
    evictions: dict[str, dict[str, int]]
    """Agents whose KV was dropped in the interval, by tier, then reason; zeros are left out."""
    evictions_since_start: dict[str, dict[str, int]]
    """The same since the worker (tier hot) or the store (the others) started."""
    quarantined: dict[str, int]
    """Files that failed verification in the interval, by reason; zeros are left out."""
    quarantined_since_start: dict[str, int]
    """The same since the store started."""


class DoorFigures(_Figures):
    """The gateway's doors."""

    streams: dict[str, int]
    """Generations that are being answered, by door: http, grpc."""
    http_requests_per_second: float | None
    """HTTP requests answered."""
    http_failures_per_second: float | None
    """Those of them that failed here or behind: statuses of 500 and more."""
    workflows_running: int | None
    """Runs of workflows that go on."""


class ProcessFigures(_Figures):
    """One of the three processes."""

    service: Service
    """Which."""
    address: str
    """Of its metrics page."""
    state: State
    """`down`: its page cannot be read. `not_ready`: it says itself that it does not serve."""
    why: str | None
    """Why it is not up."""
    version: str | None
    """What it runs."""
    interval_seconds: float | None
    """What its rates are over: longer than the interval if its page could not be read meanwhile."""
    memory_bytes: int | None
    """Resident memory; null on systems that do not tell."""
    cpu_cores: float | None
    """CPU seconds per second; null on systems that do not tell."""
    uptime_seconds: float | None
    """Since it started; null on systems that do not tell."""
    restarts: int
    """Seen since this command started."""
    rpcs_per_second: float | None
    """RPCs that ended, all services but health checks and reflection."""
    failed_rpcs_per_second: float | None
    """Those of them that the server could not do: UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED,
    INTERNAL, UNAVAILABLE and DATA_LOSS."""
    peers: dict[str, bool]
    """Whether it reaches the processes behind it."""


class AgentFigures(_Figures):
    """An agent of the caller's namespace."""

    agent_id: str
    """Its name."""
    model_id: str
    """Its model."""
    tier: str
    """The hottest tier that has KV of it: hot, warm, remote or none."""
    tokens: int
    """In its ledger."""
    turns: int
    """Committed."""
    last_turn: str | None
    """When the last one was committed, RFC 3339."""


class Figures(_Figures):
    """One interval."""

    time: str
    """Its end, RFC 3339."""
    interval_seconds: float
    """Its length."""
    processes: list[ProcessFigures]
    """gateway, worker, store."""
    doors: DoorFigures | None
    """What the gateway answers."""
    models: list[ModelFigures]
    """The default first, then by name; those that metrics tell of where the gateway does not list them."""
    models_error: str | None
    """Why the gateway does not list them."""
    agents_by_tier: ByTier
    """hot is the worker's count, the others are the store's: a hot agent is counted in one of them, too."""
    storage: StorageFigures
    """KV beyond the pool."""
    recent_agents: list[AgentFigures]
    """Those used last, the last one first; as many as --agents says."""
    agents_known: int | None
    """How many the caller's namespace has."""
    agents_all_listed: bool
    """False: there are more than were looked at, and recent_agents may lack some."""
    agents_error: str | None
    """Why the gateway does not list them."""

    @property
    def silent(self) -> bool:
        """No source answered at all."""
        return self.models_error is not None and all(one.state == "down" for one in self.processes)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of what --json writes, as `deploy/top.schema.json` has it."""
    made = Figures.model_json_schema(mode="serialization", schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **made, "title": "agentmem top --json"}


class _Generator(GenerateJsonSchema):
    """Without the titles that only repeat the fields' names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

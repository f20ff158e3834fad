"""What a reading holds: for each source its answer, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from agentmem.v1 import agent_pb2, model_pb2
from gateway.cli.top.page import Page

Service = Literal["gateway", "worker", "store"]
SERVICES: Final[tuple[Service, ...]] = ("gateway", "worker", "store")


@dataclass(frozen=True)
class Silence:
    """A source that did not answer, and why, in words for people."""

    why: str


@dataclass(frozen=True)
class Agents:
    """Agents that the gateway listed: those used last, the last one first, of `known` that it has, or at least that
    many where not all were listed."""

    recent: tuple[agent_pb2.Agent, ...]
    known: int
    all_listed: bool


@dataclass(frozen=True)
class Reading:
    """All sources at one time: `at` on a clock that never goes back, in seconds, and `time` for people, UTC.

    `agents` is None where nobody wants to know.
    """

    at: float
    time: datetime
    pages: Mapping[Service, Page | Silence]
    models: tuple[model_pb2.Model, ...] | Silence
    agents: Agents | Silence | None


def latest(agents: list[agent_pb2.Agent], most: int, *, all_listed: bool) -> Agents:
    """The `most` agents that were used last, by the end of their last turns."""
    ordered = sorted(agents, key=lambda agent: (-agent.update_time.ToNanoseconds(), agent.key.agent_id))
    return Agents(tuple(ordered[:most]), len(agents), all_listed)

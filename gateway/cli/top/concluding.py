"""Figures from the history of readings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC

from agentmem.v1 import agent_pb2
from gateway.cli.text import iso_time
from gateway.cli.top.figures import AgentFigures, Figures
from gateway.cli.top.history import History
from gateway.cli.top.of_models import model_figures
from gateway.cli.top.of_processes import door_figures, process_figures
from gateway.cli.top.of_storage import agents_by_tier, storage_figures
from gateway.cli.top.reading import SERVICES, Agents, Service, Silence
from gateway.memory_report import tier_name


def conclude(history: History, addresses: Mapping[Service, str]) -> Figures:
    """The figures of the latest interval. There must have been a reading; `addresses` are those of the pages."""
    reading, seen = history.reading, history.processes
    assert reading is not None
    agents = reading.agents if isinstance(reading.agents, Agents) else None
    return Figures(
        time=reading.time.astimezone(UTC).isoformat(timespec="milliseconds"),
        interval_seconds=history.seconds,
        processes=[process_figures(one, addresses[one], seen[one], reading.time) for one in SERVICES],
        doors=door_figures(seen["gateway"]),
        models=model_figures(seen["worker"], reading.models),
        models_error=reading.models.why if isinstance(reading.models, Silence) else None,
        agents_by_tier=agents_by_tier(seen["worker"], seen["store"]),
        storage=storage_figures(seen["worker"], seen["store"]),
        recent_agents=[_agent(one) for one in agents.recent] if agents else [],
        agents_known=agents.known if agents else None,
        agents_all_listed=agents is not None and agents.all_listed,
        agents_error=reading.agents.why if isinstance(reading.agents, Silence) else None,
    )


def _agent(agent: agent_pb2.Agent) -> AgentFigures:
    return AgentFigures(
        agent_id=agent.key.agent_id,
        model_id=agent.key.model_id,
        tier=tier_name(agent.tier),
        tokens=agent.tokens,
        turns=agent.turns,
        last_turn=iso_time(agent.update_time),
    )

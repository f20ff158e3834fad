"""What a run tells, as events of the contract. Pure."""

import json

from agentmem.v1 import inference_pb2, workflow_pb2
from gateway.workflows.definition.schema import Phase
from gateway.workflows.log import Event
from gateway.workflows.program import PhaseEnd, Step, Turn
from gateway.workflows.turns import Done


def phase_started(phase: Phase, number: int) -> Event:
    """A round began."""
    return Event(
        phase_started=workflow_pb2.PhaseStarted(
            phase=phase.name,
            round=number,
            topology=phase.topology,
            channel=phase.channel,
            agents=[*phase.agents, *phase.listeners],
        )
    )


def speaking(step: Step, agent: str, started: inference_pb2.Started) -> Event:
    """An agent began to speak."""
    return Event(
        agent_speaking=workflow_pb2.AgentSpeaking(
            agent_id=agent, cache=started.cache, phase=step.phase, round=step.round
        )
    )


def spoke(step: Step, agent: str, done: Done) -> Event:
    """An agent's turn is durable."""
    finished = done.finished
    return Event(
        agent_spoke=workflow_pb2.AgentSpoke(
            agent_id=agent,
            text=done.text,
            usage=finished.usage,
            timings=finished.timings,
            version=finished.version,
            cache=done.started.cache,
            phase=step.phase,
            round=step.round,
            reason=finished.reason,
            replayed=finished.replayed,
        )
    )


def listened(step: Step, agent: str, done: Done) -> Event:
    """An agent has taken in what it heard."""
    finished = done.finished
    return Event(
        agent_listened=workflow_pb2.AgentListened(
            agent_id=agent,
            cache=done.started.cache,
            usage=finished.usage,
            timings=finished.timings,
            version=finished.version,
            phase=step.phase,
            round=step.round,
            replayed=finished.replayed,
            note=done.text,
        )
    )


def heard(turn: Turn, channel: str) -> Event:
    """Who hears what an agent said."""
    return Event(
        agents_heard=workflow_pb2.AgentsHeard(
            speaker=turn.agent,
            listeners=turn.audience.listeners,
            bystanders=turn.audience.bystanders,
            channel=channel,
        )
    )


def outcome(ended: PhaseEnd) -> Event:
    """What came of a phase."""
    return Event(
        phase_outcome=workflow_pb2.PhaseOutcome(
            phase=ended.phase,
            outcome_json=json.dumps(ended.outcome, ensure_ascii=False, allow_nan=False),
            rounds=ended.rounds,
        )
    )

"""The events of a short run, of all kinds: two who whisper, one who only learns of it, and a vote."""

from __future__ import annotations

from typing import Any

from agentmem.v1 import types_pb2, workflow_pb2
from gateway.workflows.event_log import Totals

Event = workflow_pb2.RunWorkflowResponse
ID = "wf-1"


def workflow(state: Any = workflow_pb2.WORKFLOW_STATE_SUCCEEDED, **fields: Any) -> workflow_pb2.Workflow:
    agents = [
        workflow_pb2.WorkflowAgent(
            name=name,
            key=types_pb2.AgentKey(agent_id=f"{ID}/{name}", model_id="demo"),
            persists=name == "warden",
        )
        for name in ("warden", "marco", "danny")
    ]
    described = workflow_pb2.Workflow(workflow_id=ID, name="prison", state=state, agents=agents, **fields)
    described.create_time.seconds = 1_700_000_000
    return described


def usage(prompt: int, hot: int = 0, warm: int = 0, said: int = 0) -> types_pb2.Usage:
    tiers = ((types_pb2.TIER_HOT, hot), (types_pb2.TIER_WARM, warm))
    cached = [types_pb2.TierTokens(tier=tier, tokens=tokens) for tier, tokens in tiers if tokens]
    return types_pb2.Usage(prompt_tokens=prompt, cached=cached, completion_tokens=said)


def step(match: Any, counts: types_pb2.Usage, missed: Any = 0, first: int = 20) -> dict[str, Any]:
    timings = types_pb2.Timings()
    timings.prefill.FromMilliseconds(30)
    if counts.completion_tokens:
        timings.time_to_first_token.FromMilliseconds(first)
        timings.decode.FromMilliseconds(500)
    cache = types_pb2.CacheReport(
        match=match, cached=counts.cached, prompt_tokens=counts.prompt_tokens, miss_reason=missed
    )
    return {"usage": counts, "timings": timings, "cache": cache}


NEW, EXTEND = types_pb2.MATCH_NEW, types_pb2.MATCH_EXTEND
ABSENT, EVICTED = types_pb2.MISS_REASON_ABSENT, types_pb2.MISS_REASON_EVICTED


def numbered(*told: dict[str, Any]) -> list[Event]:
    """Events, a second apart, with their numbers and sums; growing text has the number of the event before."""
    events: list[Event] = []
    number, totals = 0, Totals()
    for fields in told:
        number += not {"agent_speaking", "agent_delta"} & set(fields)
        event = Event(sequence=number, **fields)
        event.time.seconds = 1_700_000_000 + number
        totals.add(event)
        if event.HasField("finished"):
            event.finished.workflow.totals.CopyFrom(totals.sums)
            event.finished.workflow.update_time.CopyFrom(event.time)
        events.append(event)
    return events


def speaking(agent: str, phase: str, round: int = 1) -> dict[str, Any]:
    return {"agent_speaking": workflow_pb2.AgentSpeaking(agent_id=agent, phase=phase, round=round)}


def delta(agent: str, text: str) -> dict[str, Any]:
    return {"agent_delta": workflow_pb2.AgentDelta(agent_id=agent, text=text)}


def spoke(agent: str, text: str, phase: str, told: dict[str, Any], **fields: Any) -> dict[str, Any]:
    reason = types_pb2.FINISH_REASON_STOP
    return {
        "agent_spoke": workflow_pb2.AgentSpoke(
            agent_id=agent, text=text, phase=phase, round=1, **{"reason": reason, **told, **fields}
        )
    }


def listened(agent: str, phase: str, told: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"agent_listened": workflow_pb2.AgentListened(agent_id=agent, phase=phase, **{"round": 1, **told, **fields})}


def phase(name: str, topology: str, channel: str, *agents: str) -> dict[str, Any]:
    return {
        "phase_started": workflow_pb2.PhaseStarted(
            phase=name, round=1, topology=topology, channel=channel, agents=agents
        )
    }


RUN = numbered(
    {"started": workflow_pb2.WorkflowStarted(workflow=workflow(workflow_pb2.WORKFLOW_STATE_RUNNING))},
    listened("marco", "yard", step(NEW, usage(10), ABSENT), round=0),
    phase("yard", "all_at_once", "whisper", "marco", "danny", "warden"),
    speaking("marco", "yard"),
    speaking("danny", "yard"),
    delta("marco", "The boat"),
    delta("danny", "I saw"),
    delta("marco", " is green."),
    delta("danny", " nothing."),
    spoke("danny", "I saw nothing.", "yard", step(NEW, usage(20, said=5), ABSENT), listeners=["marco"]),
    spoke(
        "marco",
        "The boat is green.",
        "yard",
        step(EXTEND, usage(30, hot=10, said=6)),
        listeners=["danny"],
        bystanders=["warden"],
        channel="whisper",
    ),
    listened("danny", "yard", step(EXTEND, usage(40, hot=25, said=8)), note="Noted:\nthe boat."),
    phase("verdict", "round_robin", "public", "warden", "marco", "danny"),
    speaking("warden", "verdict"),
    delta("warden", "Green."),
    spoke(
        "warden",
        "Green.",
        "verdict",
        step(NEW, usage(50, said=2), ABSENT),
        listeners=["marco", "danny"],
        replayed=True,
    ),
    speaking("marco", "verdict"),
    spoke(
        "marco",
        "I vote green",
        "verdict",
        step(EXTEND, usage(60, warm=16, said=3), EVICTED),
        reason=types_pb2.FINISH_REASON_LENGTH,
    ),
    {
        "phase_outcome": workflow_pb2.PhaseOutcome(
            phase="verdict", rounds=1, outcome_json='{"winner": "green", "votes": {"marco": "green", "danny": null}}'
        )
    },
    {"finished": workflow_pb2.WorkflowFinished(workflow=workflow(phase="verdict", turns=4))},
)
"""All kinds of events; the two speakers of the yard speak at the same time."""

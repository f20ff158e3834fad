"""Messages and filters of the storage half of AgentService. Mistakes are InvalidArgument."""

import json
from collections.abc import Iterator

from agentmem.errors import InvalidArgument
from agentmem.v1 import agent_pb2, cache_store_pb2, types_pb2
from agentmem.validation import AgentKey, check_text
from cache_service.files.holding import Warmth
from cache_service.ledger.agents import Agent
from cache_service.ledger.history import Entry
from cache_service.ledger.snapshots import Snapshot


def agent_message(agent: Agent, warmth: Warmth) -> agent_pb2.Agent:
    """The worker overrides the tier of what it holds in memory."""
    tier = types_pb2.TIER_REMOTE if agent.remote else types_pb2.TIER_NONE
    message = agent_pb2.Agent(
        key=agent.key.to_proto(),
        version=agent.version.to_proto(),
        tokens=agent.tokens,
        turns=agent.turns,
        text_bytes=agent.text_bytes,
        warm_bytes=warmth.bytes,
        blocks=warmth.blocks,
        warm_tokens=warmth.tokens,
        tier=types_pb2.TIER_WARM if warmth.files else tier,
        pinned=bool(agent.pinned),
        context_policy=types_pb2.ContextPolicy.ValueType(agent.context_policy),
        template_time=agent.template_time,
    )
    for duration, nanoseconds in ((message.ttl, agent.ttl), (message.delete_after, agent.delete_after)):
        if nanoseconds is not None:
            duration.FromNanoseconds(nanoseconds)
    message.create_time.FromNanoseconds(agent.created)
    message.update_time.FromNanoseconds(agent.updated)
    if agent.forked_from is not None:
        message.forked_from.agent_id, message.forked_from.version = agent.forked_from, agent.forked_version or 0
    return message


def turn_message(entry: Entry, *, text: bool) -> agent_pb2.Turn:
    message = agent_pb2.Turn(
        version=entry.version,
        first_token=entry.first_token,
        tokens=entry.tokens,
        generated_tokens=entry.generated_tokens,
        cut=entry.cut,
        request_id=entry.request_id,
    )
    if entry.created:
        message.create_time.FromNanoseconds(entry.created)
    record = cache_store_pb2.TurnRecord.FromString(entry.record or b"")
    if record.HasField("finished"):
        told = record.finished
        report = agent_pb2.TurnReport(
            cache=record.started.cache, usage=told.usage, timings=told.timings, reason=told.reason
        )
        message.report.CopyFrom(report)
    if text:
        message.messages.extend(_messages(entry, record))
        message.text = entry.prompt + entry.generated
    return message


def _messages(entry: Entry, record: cache_store_pb2.TurnRecord) -> Iterator[types_pb2.ChatMessage]:
    said = False
    for place in record.messages:
        start, end = entry.prompt_bytes - place.start_from_end, entry.prompt_bytes - place.end_from_end
        if start >= 0 and (content := entry.prompt[start:end]):
            yield types_pb2.ChatMessage(role=place.role, content=content.decode(errors="replace"))
            said = True
    if entry.prompt and not said:
        yield types_pb2.ChatMessage(content=entry.prompt.decode(errors="replace"))
    if entry.generated_tokens:
        if entry.cut or not entry.record:  # empty for turns of an import
            yield types_pb2.ChatMessage(role="assistant", content=entry.generated.decode(errors="replace"))
            return
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in record.delta.tool_calls
        ]
        yield types_pb2.ChatMessage(
            role="assistant",
            content=record.delta.text,
            reasoning_content=record.delta.reasoning or None,
            tool_calls_json=json.dumps(calls, ensure_ascii=False) if calls else None,
        )


def snapshot_message(key: AgentKey, snapshot: Snapshot) -> agent_pb2.Snapshot:
    message = agent_pb2.Snapshot(
        key=key.to_proto(),
        name=snapshot.name,
        version=snapshot.version.to_proto(),
        tokens=snapshot.head.tokens,
        automatic=bool(snapshot.automatic),
    )
    message.create_time.FromNanoseconds(snapshot.created)
    return message


def only_hot(tier: types_pb2.Tier.ValueType) -> bool:
    """Return whether an EvictAgentRequest is about nothing that the store has."""
    if tier not in types_pb2.Tier.values() or tier == types_pb2.TIER_NONE:
        raise InvalidArgument("tier", "must be TIER_HOT, TIER_WARM or TIER_REMOTE")
    return tier in (types_pb2.TIER_UNSPECIFIED, types_pb2.TIER_HOT)


def agent_filter(request: agent_pb2.ListAgentsRequest) -> AgentKey:
    return AgentKey(
        check_text("namespace", request.namespace),
        check_text("agent_id", request.agent_id, allow_empty=True),
        check_text("model_id", request.model_id, allow_empty=True),
    )

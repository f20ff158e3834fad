import re
from functools import cache
from typing import Final

from google.protobuf.descriptor import EnumDescriptor

from agentmem.v1 import inference_pb2, types_pb2


def printable(text: str, keep: str = "") -> str:
    """Escape control characters, except those in `keep`."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


@cache
def short_names(enum: EnumDescriptor) -> dict[int, str]:
    """Return short names ("hot") by number, without 0."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values if value.number}


def short_name(enum: EnumDescriptor, number: int) -> str:
    return short_names(enum).get(number, "")


NAME_HEADER: Final = "X-Agent-Name"
_CONVERSATION_ID: Final = re.compile(r"conv-(?:(?P<name>.+)-)?[0-9a-f]{32}", re.DOTALL)


def is_conversation(agent_id: str) -> bool:
    """Return whether the gateway made the agent, for a conversation that named none."""
    return _CONVERSATION_ID.fullmatch(agent_id) is not None


def conversation_name(agent_id: str) -> str:
    """Return the name that NAME_HEADER gave to a conversation's agent, or ""."""
    found = _CONVERSATION_ID.fullmatch(agent_id)
    return (found and found["name"]) or ""


def is_anonymous(agent_id: str) -> bool:
    return is_conversation(agent_id) and not conversation_name(agent_id)


_LENGTH = frozenset({types_pb2.FINISH_REASON_LENGTH, types_pb2.FINISH_REASON_CONTEXT})


def cut_short(reason: types_pb2.FinishReason.ValueType) -> bool:
    return reason in _LENGTH


def finish_reason(reason: types_pb2.FinishReason.ValueType) -> str:
    """Return OpenAI's reason: "length", "tool_calls" or "stop"."""
    if reason == types_pb2.FINISH_REASON_TOOL_CALLS:
        return "tool_calls"
    return "length" if cut_short(reason) else "stop"


def warning(started: inference_pb2.Started) -> str:
    """Return a sentence in ASCII about effects that the caller may not expect, or ""."""
    if started.HasField("context_trim"):
        return _trimmed(started.context_trim)
    if not started.dropped_tokens:
        return ""
    return (
        f"{started.dropped_tokens} tokens of the agent's memory do not agree with this conversation and were left "
        f"behind; its snapshot {started.dropped_snapshot} keeps them"
    )


def _trimmed(trim: types_pb2.ContextTrim) -> str:
    turns = "turn" if trim.dropped_turns == 1 else f"{trim.dropped_turns} turns"
    text = f"the memory outgrew the model's context, so its oldest {turns} ({trim.dropped_tokens} tokens) "
    text += "became a note" if trim.policy == types_pb2.CONTEXT_POLICY_SUMMARIZE else "were dropped"
    if trim.summary_failure:
        text += f" without a note, since {trim.summary_failure}"
    kept = "it" if trim.dropped_turns == 1 else "them"
    return f"{text}; its snapshot {trim.snapshot} keeps {kept}" if trim.snapshot else text


def tier_name(tier: types_pb2.Tier.ValueType) -> str:
    """Return "hot", "warm", "remote" or "none"."""
    return short_name(types_pb2.Tier.DESCRIPTOR, tier)


def hit(cached: int, prompt: int) -> str:
    """Return "12/20 (60 %)", of a prompt's tokens."""
    return f"{cached:,}/{prompt:,} ({100 * cached / max(1, prompt):.0f} %)"


def cached_tokens(usage: types_pb2.Usage) -> int:
    return sum(part.tokens for part in usage.cached)

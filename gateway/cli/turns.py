"""Turns as lines for people."""

from collections.abc import Iterable

from agentmem.v1 import agent_pb2, inference_pb2, types_pb2, workflow_pb2
from agentmem.words import cut_short, hit, printable, short_name, tier_name
from gateway.cli.text import iso_time

_LAYOUT = "\n\t"


def turn_line(
    cache: types_pb2.CacheReport, ended: inference_pb2.Finished | workflow_pb2.AgentSpoke | workflow_pb2.AgentListened
) -> str:
    """Return match, cache hit, TTFT, tokens per second, and exceptions."""
    usage, timings = ended.usage, ended.timings
    parts = [match_name(cache).upper(), cache_hit(usage.cached, usage.prompt_tokens)]
    decode = timings.decode.ToTimedelta().total_seconds()
    if usage.completion_tokens:
        parts.append(f"TTFT {timings.time_to_first_token.ToTimedelta().total_seconds():.2f} s")
        if decode > 0:
            parts.append(f"{usage.completion_tokens / decode:.1f} tokens/s")
    else:
        parts.append(f"prefill {timings.prefill.ToTimedelta().total_seconds():.2f} s")
    missed = short_name(types_pb2.MissReason.DESCRIPTOR, cache.miss_reason)
    if missed and cache.match != types_pb2.MATCH_NEW:  # a new agent has nothing to miss
        parts.append(f"missed: {missed}")
    if not isinstance(ended, workflow_pb2.AgentListened) and cut_short(ended.reason):
        parts.append("cut at the length limit")
    if ended.replayed:
        parts.append("replayed")
    return " · ".join(part for part in parts if part)


def cache_hit(cached: Iterable[types_pb2.TierTokens], prompt_tokens: int) -> str:
    """Return "cache hit 12/20 (60 %): hot 7, warm 5", of a prompt's tokens."""
    tiers = {tier_name(part.tier): part.tokens for part in cached}
    share = f"cache hit {hit(sum(tiers.values()), prompt_tokens)}"
    listed = ", ".join(f"{tier} {tokens:,}" for tier, tokens in tiers.items())
    return f"{share}: {listed}" if tiers else share


def match_name(cache: types_pb2.CacheReport) -> str:
    """Return "new", "exact", "extend", "partial" or "diverge"."""
    return short_name(types_pb2.Match.DESCRIPTOR, cache.match)


def turn_text(turn: agent_pb2.Turn) -> str:
    """Return a line about a turn, and its messages with their roles."""
    parts = [f"version {turn.version}", f"{turn.tokens:,} tokens, {turn.generated_tokens:,} generated"]
    if time := iso_time(turn.create_time):
        parts.append(time)
    if turn.request_id:
        parts.append(printable(turn.request_id))
    if turn.cut:
        parts.append("its end was dropped")
    lines = ["", " · ".join(parts)]
    for message in turn.messages:
        role, content = printable(message.role), printable(message.content, keep=_LAYOUT)
        if message.reasoning_content:
            lines.append(f"{role} thinks: {printable(message.reasoning_content, keep=_LAYOUT)}")
        lines.append(f"{role or 'as rendered'}: {content}".rstrip())  # text of unknown messages has no role
        if message.tool_calls_json:
            lines.append(f"{role} calls: {printable(message.tool_calls_json)}")
    return "\n".join(lines)

"""What a turn tells of the agent's memory, as JSON: the same for every dialect and for the command line."""

from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2, types_pb2
from gateway.enums import short_name
from gateway.exchange import Json

_TIMINGS = ("queue", "load", "prefill", "decode", "time_to_first_token")


def memory_report(started: inference_pb2.Started, finished: inference_pb2.Finished, agent_id: str) -> Json:
    """The agent, how the prompt matched, what it left behind, tokens reused per tier, version, durability, timings.

    `snapshot_version` is that of the snapshot which the prompt goes on from, None where that is the present state.
    Timings are in seconds. An empty `agent_id` says that nothing is kept.
    """
    cache = started.cache
    version = finished.version
    return {
        "agent_id": agent_id or None,
        "match": short_name(types_pb2.Match.DESCRIPTOR, cache.match),
        "cached": {tier_name(part.tier): part.tokens for part in finished.usage.cached},
        "miss_reason": short_name(types_pb2.MissReason.DESCRIPTOR, cache.miss_reason) or None,
        "snapshot_version": cache.snapshot_version or None,
        "context_remaining": started.context_remaining,
        "appended": started.appended,
        "dropped_tokens": started.dropped_tokens,
        "context_trim": _context_trim(started),
        "warning": warning(started) or None,
        "version": {"uid": version.uid, "version": version.version} if finished.HasField("version") else None,
        "durable": finished.durable,
        "replayed": finished.replayed,
        "timings": {name: _seconds(getattr(finished.timings, name)) for name in _TIMINGS},
    }


def warning(started: inference_pb2.Started) -> str:
    """What the caller may not have meant, as a sentence in ASCII; empty if there is nothing."""
    if started.HasField("context_trim"):
        return _trimmed(started.context_trim)
    if not started.dropped_tokens:
        return ""
    return (
        f"{started.dropped_tokens} tokens of the agent's memory do not agree with this conversation and were left "
        f"behind; its snapshot {started.dropped_snapshot} keeps them"
    )


def _context_trim(started: inference_pb2.Started) -> Json | None:
    if not started.HasField("context_trim"):
        return None
    trim = started.context_trim
    return {
        "policy": short_name(types_pb2.ContextPolicy.DESCRIPTOR, trim.policy),
        "dropped_tokens": trim.dropped_tokens,
        "dropped_turns": trim.dropped_turns,
        "snapshot": trim.snapshot or None,
        "summary": trim.summary or None,
        "summary_failure": trim.summary_failure or None,
    }


def _trimmed(trim: types_pb2.ContextTrim) -> str:
    turns = "turn" if trim.dropped_turns == 1 else f"{trim.dropped_turns} turns"
    told = f"the memory outgrew the model's context, so its oldest {turns} ({trim.dropped_tokens} tokens) "
    told += "became a note" if trim.policy == types_pb2.CONTEXT_POLICY_SUMMARIZE else "were dropped"
    if trim.summary_failure:
        told += f" without a note, since {trim.summary_failure}"
    kept = "it" if trim.dropped_turns == 1 else "them"
    return f"{told}; its snapshot {trim.snapshot} keeps {kept}" if trim.snapshot else told


def tier_name(tier: "types_pb2.Tier.ValueType") -> str:
    """ "hot", "warm", "remote" or "none"."""
    return short_name(types_pb2.Tier.DESCRIPTOR, tier)


def cached_tokens(usage: types_pb2.Usage) -> int:
    """Prompt tokens that came from memory, of all tiers."""
    return sum(part.tokens for part in usage.cached)


def _seconds(duration: Duration) -> float:
    return round(duration.ToTimedelta().total_seconds(), 6)

"""What a turn tells of the agent's memory, as JSON: the same for every dialect and for the command line."""

from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2, types_pb2
from gateway.enums import short_name
from gateway.exchange import Json

_TIMINGS = ("queue", "load", "prefill", "decode", "time_to_first_token")


def memory_report(started: inference_pb2.Started, finished: inference_pb2.Finished, agent_id: str) -> Json:
    """The agent, how the prompt matched, tokens reused per tier, version, durability, and timings in seconds.

    `snapshot_version` is that of the snapshot which the prompt goes on from, None where that is the present state.
    An empty `agent_id` says that nothing is kept.
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
        "version": {"uid": version.uid, "version": version.version} if finished.HasField("version") else None,
        "durable": finished.durable,
        "replayed": finished.replayed,
        "timings": {name: _seconds(getattr(finished.timings, name)) for name in _TIMINGS},
    }


def tier_name(tier: "types_pb2.Tier.ValueType") -> str:
    """ "hot", "warm", "remote" or "none"."""
    return short_name(types_pb2.Tier.DESCRIPTOR, tier)


def cached_tokens(usage: types_pb2.Usage) -> int:
    """Prompt tokens that came from memory, of all tiers."""
    return sum(part.tokens for part in usage.cached)


def _seconds(duration: Duration) -> float:
    return round(duration.ToTimedelta().total_seconds(), 6)

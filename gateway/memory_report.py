"""What a turn tells of the agent's memory, as JSON: the same for every dialect and for the command line."""

from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2, types_pb2
from gateway.exchange import Json

_TIMINGS = ("queue", "load", "prefill", "decode", "time_to_first_token")


def memory_report(started: inference_pb2.Started, finished: inference_pb2.Finished, agent_id: str) -> Json:
    """The agent, how the prompt matched, tokens reused per tier, version, durability, and timings in seconds.

    An empty `agent_id` says that nothing is kept.
    """
    cache = started.cache
    version = finished.version
    return {
        "agent_id": agent_id or None,
        "match": types_pb2.Match.Name(cache.match).removeprefix("MATCH_").lower(),
        "cached": {tier_name(part.tier): part.tokens for part in finished.usage.cached},
        "miss_reason": _miss_reason(cache.miss_reason),
        "context_remaining": started.context_remaining,
        "version": {"uid": version.uid, "version": version.version} if finished.HasField("version") else None,
        "durable": finished.durable,
        "replayed": finished.replayed,
        "timings": {name: _seconds(getattr(finished.timings, name)) for name in _TIMINGS},
    }


def tier_name(tier: "types_pb2.Tier.ValueType") -> str:
    """ "hot", "warm", "remote" or "none"."""
    return types_pb2.Tier.Name(tier).removeprefix("TIER_").lower()


def _miss_reason(reason: "types_pb2.MissReason.ValueType") -> str | None:
    if reason == types_pb2.MISS_REASON_UNSPECIFIED:
        return None
    return types_pb2.MissReason.Name(reason).removeprefix("MISS_REASON_").lower()


def _seconds(duration: Duration) -> float:
    return round(duration.ToTimedelta().total_seconds(), 6)

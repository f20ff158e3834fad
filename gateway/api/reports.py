"""Reports for every dialect and the command line."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2, model_pb2, types_pb2
from agentmem.words import short_name, tier_name, warning

if TYPE_CHECKING:  # pydantic, which commands do without, takes long to import
    from gateway.api.validation import Json


_TIMINGS = ("queue", "load", "prefill", "decode", "time_to_first_token")


def memory_report(started: inference_pb2.Started, finished: inference_pb2.Finished, agent_id: str) -> Json:
    """Timings are in seconds. `snapshot_version` is None where the prompt goes on from the present state."""
    cache = started.cache
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
        "version": _version(finished.version) if finished.HasField("version") else None,
        "durable": finished.durable,
        "replayed": finished.replayed,
        "timings": {name: _seconds(getattr(finished.timings, name)) for name in _TIMINGS},
    }


def _version(version: types_pb2.AgentVersion) -> Json:
    revision = b64encode(version.revision).decode() or None
    return {"uid": version.uid, "version": version.version, "revision": revision}


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


def _seconds(duration: Duration) -> float:
    return round(duration.ToTimedelta().total_seconds(), 6)


def state_name(model: model_pb2.Model) -> str:
    """Return "registered", "loading", "loaded", "draining" or "failed"."""
    return short_name(model_pb2.ModelState.DESCRIPTOR, model.state)

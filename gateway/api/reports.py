"""What is said of turns, memory and models in the same words by every dialect and by the command line."""

from __future__ import annotations

import math
from base64 import b64encode
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2, model_pb2, types_pb2
from agentmem.words import short_name, tier_name, warning

if TYPE_CHECKING:  # pydantic, which commands do without, takes long to import
    from gateway.api.validation import Json


_TIMINGS = ("queue", "load", "prefill", "decode", "time_to_first_token")


def memory_report(started: inference_pb2.Started, finished: inference_pb2.Finished, agent_id: str) -> Json:
    """Return agent, match, what the prompt left behind, tokens reused per tier, version, durability and timings.

    `snapshot_version` is that of the snapshot which the prompt goes on from, None where that is the present state.
    The version's revision is Base64, as REST writes it and takes it in `if_revision`; None where the worker gave none.
    Timings are in seconds. An empty `agent_id` says that nothing is kept.
    """
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


def model_report(model: model_pb2.Model) -> Json:
    """Return state, context, KV, memory and quality, and why it cannot be served, if so. Bytes, tokens, seconds, nats.

    What is not known is null: much of a model that was never looked at, and `memory` until its files are here.
    """
    return {
        "state": state_name(model),
        "default": model.is_default,
        "pinned": model.pinned,
        "ttl": model.ttl.ToTimedelta().total_seconds() if model.HasField("ttl") else None,
        "source": model.source or None,
        "adapter": model.adapter or None,
        "context_length": model.context_length,
        "architecture": model.architecture,
        "dtype": model.dtype,
        "kv_bits": model.kv_bits or None,
        "kv_bits_measured": [_measurement(each) for each in model.kv_bits_measured],
        "recommended_kv_bits": model.recommended_kv_bits or None,
        "kv_bits_reason": model.kv_bits_reason or None,
        "kv_scheme": model.kv_scheme or None,
        "calibration": model.calibration.digest or None,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "state_bytes": model.state_bytes,
        "weight_bytes": model.weight_bytes,
        "memory": memory_figures(model.memory) if model.HasField("memory") else None,
        "tool_parser": model.tool_parser or None,
        "sampling": sampling_report(model.sampling) if model.HasField("sampling") else None,
        "fingerprint": model.fingerprint,
        "error": model.error or None,
    }


def sampling_report(defaults: types_pb2.Sampling) -> Json:
    """Return how tokens are chosen where a request does not say; what is given as 7 digits is told as such."""
    return {
        field.name: round(value, 7) if isinstance(value, float) else value for field, value in defaults.ListFields()
    }


def memory_figures(memory: model_pb2.ModelMemory) -> Json:
    """Return the arithmetic of a model's memory, by the contract's names."""
    return {field.name: getattr(memory, field.name) for field in model_pb2.ModelMemory.DESCRIPTOR.fields}


def state_name(model: model_pb2.Model) -> str:
    """Return "registered", "loading", "loaded", "draining" or "failed"."""
    return short_name(model_pb2.ModelState.DESCRIPTOR, model.state)


def _measurement(found: model_pb2.KVBitsMeasurement) -> Json:
    return {
        "kv_bits": found.kv_bits,
        "kl_divergence": _number(found.kl_divergence),
        "kl_divergence_p99": _number(found.kl_divergence_p99),
        "bytes_per_token": found.bytes_per_token,
        "good": found.good,
    }


def _number(value: float) -> float | str:
    """Return a number; one that JSON has no number for is spelled as protobuf's JSON does."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

"""What is said of turns, memory and models in the same words by every dialect and by the command line."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from functools import cache
from typing import TYPE_CHECKING

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2, model_pb2, types_pb2

if TYPE_CHECKING:  # pydantic, which commands do without, takes long to import
    from gateway.api.validation import Json


@cache
def short_names(enum: EnumDescriptor) -> dict[int, str]:
    """Return the short names of an enum's values ("hot"), by number; 0 has none."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values if value.number}


def short_name(enum: EnumDescriptor, number: int) -> str:
    """Return the short name of a value; empty where nothing is said, or what only a newer worker knows."""
    return short_names(enum).get(number, "")


_CONVERSATION_ID = re.compile(r"conv-[0-9a-f]{32}")


def is_anonymous(agent_id: str) -> bool:
    """Return whether an agent has an id of the form that agents get which are found by their conversation."""
    return _CONVERSATION_ID.fullmatch(agent_id) is not None


_LENGTH = frozenset({types_pb2.FINISH_REASON_LENGTH, types_pb2.FINISH_REASON_CONTEXT})


def cut_short(reason: types_pb2.FinishReason.ValueType) -> bool:
    """Return whether the limit of tokens, or the context, ended the turn."""
    return reason in _LENGTH


def finish_reason(reason: types_pb2.FinishReason.ValueType) -> str:
    """Return "length" where max_tokens or the context ended it, "tool_calls" after calls, else "stop"."""
    if reason == types_pb2.FINISH_REASON_TOOL_CALLS:
        return "tool_calls"
    return "length" if cut_short(reason) else "stop"


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


def warning(started: inference_pb2.Started) -> str:
    """Return what the caller may not have meant, as a sentence in ASCII; empty if there is nothing."""
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
    text = f"the memory outgrew the model's context, so its oldest {turns} ({trim.dropped_tokens} tokens) "
    text += "became a note" if trim.policy == types_pb2.CONTEXT_POLICY_SUMMARIZE else "were dropped"
    if trim.summary_failure:
        text += f" without a note, since {trim.summary_failure}"
    kept = "it" if trim.dropped_turns == 1 else "them"
    return f"{text}; its snapshot {trim.snapshot} keeps {kept}" if trim.snapshot else text


def tier_name(tier: types_pb2.Tier.ValueType) -> str:
    """Return "hot", "warm", "remote" or "none"."""
    return short_name(types_pb2.Tier.DESCRIPTOR, tier)


def cached_tokens(usage: types_pb2.Usage) -> int:
    """Return the prompt tokens that came from memory, of all tiers."""
    return sum(part.tokens for part in usage.cached)


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
        "fingerprint": model.fingerprint,
        "error": model.error or None,
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
        "bytes_per_token": found.bytes_per_token,
        "good": found.good,
    }


def _number(value: float) -> float | str:
    """Return a number; one that JSON has no number for is spelled as protobuf's JSON does."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

"""Reports for every dialect and the command line."""

from google.protobuf.duration_pb2 import Duration

from agentmem.load_stages import LoadStage
from agentmem.v1 import inference_pb2, model_pb2, types_pb2
from agentmem.words import printable, short_name, tier_name, warning
from gateway.api.contract_json import Json, to_json

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
        "context_trim": _shown(started.context_trim) if started.HasField("context_trim") else None,
        "warning": warning(started) or None,
        "version": _shown(finished.version) if finished.HasField("version") else None,
        "durable": finished.durable,
        "replayed": finished.replayed,
        "timings": {name: _seconds(getattr(finished.timings, name)) for name in _TIMINGS},
    }


def _shown(message: types_pb2.AgentVersion | types_pb2.ContextTrim) -> Json:
    """Empty texts are None."""
    return {name: None if value == "" else value for name, value in to_json(message).items()}


def _seconds(duration: Duration) -> float:
    return round(duration.ToTimedelta().total_seconds(), 6)


def load_line(model: model_pb2.Model) -> str:
    """Return "loading smol: reading the weights, 40 %, about 12 s left"."""
    return f"loading {printable(model.model_id)}: {load_words(model.progress)}"


def load_words(progress: model_pb2.LoadProgress) -> str:
    if progress.stage == LoadStage.FETCH and progress.share >= 1:  # or it was here
        return "opening its files"
    known = progress.stage in list(LoadStage)
    parts = [LoadStage(progress.stage).words if known else printable(progress.stage)]  # a newer worker may have others
    if progress.share:
        parts.append(f"{100 * progress.share:.0f} %")
    if progress.once:
        parts.append("once per model")
    if progress.HasField("remaining"):
        parts.append(f"about {max(1, round(progress.remaining.ToTimedelta().total_seconds()))} s left")
    return ", ".join(parts)


def load_dict(model: model_pb2.Model) -> Json:
    progress = model.progress
    return {
        "model": model.model_id,
        "stage": progress.stage,
        "share": progress.share,
        "once": progress.once,
        "remaining_seconds": _seconds(progress.remaining) if progress.HasField("remaining") else None,
    }


def state_name(model: model_pb2.Model) -> str:
    """Return "registered", "loading", "loaded", "draining" or "failed"."""
    return short_name(model_pb2.ModelState.DESCRIPTOR, model.state)

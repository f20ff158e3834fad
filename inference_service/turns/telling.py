"""The one line that each turn has in the log: whose, what was reused, how many tokens, how long, and how it ended.

It has no text of prompt or answer. Why a turn was refused or failed is its status; the error's own words are only there
where nothing that the caller sent can be in them.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from agentmem import logs, spans
from agentmem.errors import Aborted, AgentmemError, ResourceExhausted, Unavailable
from agentmem.v1 import types_pb2
from inference_service.metrics import TIERS, finish_reason
from inference_service.turns.planned import Prepared
from inference_service.turns.running import RunningTurn

log = logging.getLogger(__name__)

_OF_OUR_WORDS: Final = (Aborted, ResourceExhausted, Unavailable)
_OURS_TO_MEND: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS"})


def finished(turn: RunningTurn, prepared: Prepared, queue_seconds: float, load_seconds: float) -> None:
    """The turn went well."""
    _tell("turn finished", turn, prepared, queue_seconds, load_seconds)


def replayed(turn: RunningTurn) -> None:
    """It was committed before, and answered again."""
    _tell("turn replayed", turn)


def failed(
    turn: RunningTurn, prepared: Prepared | None = None, queue_seconds: float = 0.0, load_seconds: float = 0.0
) -> None:
    """Its error ended it; `prepared` and the times are there if the engine had taken it up."""
    assert turn.error is not None
    status = spans.failure_of(turn.error)
    message = "turn cancelled" if status == spans.CANCELLED else "turn failed"
    _tell(message, turn, prepared, queue_seconds, load_seconds, **_why(turn.error))


@contextmanager
def refused(key: types_pb2.AgentKey) -> Iterator[None]:
    """Tell of a request that raises what is wrong with it before it is a turn. Nothing of `key` is checked yet."""
    try:
        yield
    except AgentmemError as error:
        logs.event(log, "turn refused", logging.INFO, **{**_ids(key), **_why(error)})
        raise


def found(prepared: Prepared) -> dict[str, str | int]:
    """What memory gave a turn, in the words of the metrics."""
    reason = prepared.miss_reason
    told: dict[str, str | int] = {
        "match": types_pb2.Match.Name(prepared.plan.kind).removeprefix("MATCH_").lower(),
        "tier": TIERS[prepared.reuse.tier],
        "reused_tokens": prepared.reuse.tokens,
    }
    if reason:
        told["miss_reason"] = types_pb2.MissReason.Name(reason).removeprefix("MISS_REASON_").lower()
    return told


def _tell(
    message: str,
    turn: RunningTurn,
    prepared: Prepared | None = None,
    queue_seconds: float = 0.0,
    load_seconds: float = 0.0,
    **why: str,
) -> None:
    now, request, generated = time.monotonic(), turn.request, turn.generated
    told: dict[str, Any] = {**_ids(request.key.to_proto()), **why}
    if request.request_id:
        told["turn"] = request.request_id
    if prepared is not None and generated is not None:
        told |= {"prompt_tokens": len(prepared.plan.sequence), **found(prepared)}
        told["generated_tokens"] = generated.sampled or len(turn.tokens)
        if not why:
            told["finish"] = finish_reason(generated.reason)
        told |= {"queue_ms": _ms(queue_seconds), "load_ms": _ms(load_seconds)}
        told |= {"prefill_ms": _ms(generated.prefill_seconds), "decode_ms": _ms(generated.decode_seconds)}
        if generated.first_token_at is not None:
            told["first_token_ms"] = _ms(generated.first_token_at - turn.arrived)
    told["total_ms"] = _ms(now - turn.arrived)
    level = logging.WARNING if why.get("status") in _OURS_TO_MEND else logging.INFO
    logs.event(log, message, level, **told)


def _ids(key: types_pb2.AgentKey) -> dict[str, str]:
    ids = {"agent": key.agent_id, "model": key.model_id, "namespace": key.namespace}
    return {name: spans.identifier(value) for name, value in ids.items()}


def _why(error: Exception) -> dict[str, str]:
    why = {"status": spans.failure_of(error)}
    if isinstance(error, _OF_OUR_WORDS):
        why["reason"] = error.message
    return why


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 1)

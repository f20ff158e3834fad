"""A turn says why it missed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.v1.types_pb2 import (
    MATCH_EXTEND,
    MATCH_PARTIAL,
    MISS_REASON_DIVERGED,
    MISS_REASON_EVICTED,
    MISS_REASON_TEMPLATE,
    MISS_REASON_UNSPECIFIED,
)
from agentmem.validation import AgentKey
from inference_service.domain import TokensInput, TurnRequest
from inference_service.memory.plan import Plan
from inference_service.turns.turn import Turn


@pytest.mark.parametrize(
    ("kind", "planned", "restored", "found", "told"),
    [
        (MATCH_EXTEND, MISS_REASON_UNSPECIFIED, 3, MISS_REASON_UNSPECIFIED, MISS_REASON_UNSPECIFIED),
        (MATCH_EXTEND, MISS_REASON_UNSPECIFIED, 2, MISS_REASON_EVICTED, MISS_REASON_EVICTED),
        (MATCH_PARTIAL, MISS_REASON_TEMPLATE, 3, MISS_REASON_UNSPECIFIED, MISS_REASON_TEMPLATE),
        (MATCH_PARTIAL, MISS_REASON_DIVERGED, 2, MISS_REASON_EVICTED, MISS_REASON_EVICTED),
        (MATCH_PARTIAL, MISS_REASON_DIVERGED, 2, MISS_REASON_UNSPECIFIED, MISS_REASON_DIVERGED),
    ],
)
async def test_why_not_more_was_reused(kind: Any, planned: Any, restored: int, found: Any, told: Any) -> None:
    """Reasons of missing KV count before those of memory that does not serve."""
    turn = Turn(TurnRequest(AgentKey("n", "a", "m"), TokensInput((1,)), b""))
    turn.plan = Plan(kind, planned, 3, cast(Any, (1, 2, 3, 4)))
    turn.restored = cast(Any, SimpleNamespace(tokens=restored, reason=found))
    assert turn.miss_reason == told

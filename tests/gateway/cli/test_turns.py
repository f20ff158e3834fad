from __future__ import annotations

from typing import Any

import pytest

from agentmem.v1 import inference_pb2, types_pb2
from gateway.cli.turns import turn_line

CACHED = [types_pb2.TierTokens(tier=types_pb2.TIER_HOT, tokens=7), types_pb2.TierTokens(tier=types_pb2.TIER_WARM)]


@pytest.mark.parametrize(
    ("cache", "usage", "more", "line"),
    [
        (
            {"match": types_pb2.MATCH_EXTEND},
            {"prompt_tokens": 2000, "cached": CACHED[:1], "completion_tokens": 4},
            {},
            "EXTEND · reused 7 of 2,000 tokens (hot 7) · first token 0.12 s · 8.0 tokens/s",
        ),
        (
            {"match": types_pb2.MATCH_NEW, "miss_reason": types_pb2.MISS_REASON_ABSENT},
            {"prompt_tokens": 20},
            {"replayed": True, "reason": types_pb2.FINISH_REASON_CONTEXT},
            "NEW · reused 0 of 20 tokens · prefilled in 0.25 s · cut at the length limit · replayed",
        ),
        ({}, {"prompt_tokens": 20}, {}, "reused 0 of 20 tokens · prefilled in 0.25 s"),
    ],
)
def test_lines(cache: dict[str, Any], usage: dict[str, Any], more: dict[str, Any], line: str) -> None:
    timings = types_pb2.Timings()
    timings.prefill.FromMilliseconds(250)
    timings.time_to_first_token.FromMilliseconds(120)
    timings.decode.FromMilliseconds(500)
    ended = inference_pb2.Finished(usage=types_pb2.Usage(**usage), timings=timings, **more)
    assert turn_line(types_pb2.CacheReport(**cache), ended) == line

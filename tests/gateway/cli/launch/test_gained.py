from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import agent_pb2, types_pb2
from gateway.cli.launch.gained import Gained, seconds_per_token, summed


def report(prompt: int, reused: int, prefill: float, load: float = 0.0) -> agent_pb2.TurnReport:
    def lasting(seconds: float) -> Duration:
        return Duration(nanos=round(seconds * 1e9) % 10**9, seconds=int(seconds))

    cached = [types_pb2.TierTokens(tier=types_pb2.TIER_HOT, tokens=reused)] if reused else []
    return agent_pb2.TurnReport(
        usage=types_pb2.Usage(prompt_tokens=prompt, cached=cached),
        timings=types_pb2.Timings(prefill=lasting(prefill), load=lasting(load)),
    )


def test_seconds_saved_are_those_of_computing_less_those_of_reading() -> None:
    first, second = report(20_000, 0, 10.0), report(20_100, 20_000, 0.5, load=1.5)
    per_token = seconds_per_token([first, second])
    assert summed([first, second], per_token) == Gained(2, 40_100, 20_000, pytest.approx(8.5))
    resumed = summed([second], per_token)
    assert resumed.text() == "1 turn: cache hit 20,000/20,100 (100 %), 100 tokens computed, about 8.5 s saved"


def test_short_prompts_do_not_show_how_fast_prompts_are_computed() -> None:
    short = report(20_100, 20_000, 0.5)
    given = summed([short], seconds_per_token([short]))
    assert given.seconds_saved is None
    assert given.text() == "1 turn: cache hit 20,000/20,100 (100 %), 100 tokens computed"


def test_reading_may_take_longer_than_computing() -> None:
    assert summed([report(4096, 4000, 0.1, load=5.0)], 0.001).seconds_saved == 0


def test_no_turns() -> None:
    assert summed([], None).text() == "no turns"

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from agentmem import AgentInfo, Version
from agentmem.client.answers import Memory
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2


def test_fields_have_the_types_of_python() -> None:
    raw = agent_pb2.Agent(
        key=types_pb2.AgentKey(agent_id="marco", model_id="demo"),
        version=types_pb2.AgentVersion(uid="u", version=3, revision=b"r"),
        tokens=9,
        tier=types_pb2.TIER_WARM,
        ttl=Duration(seconds=60),
        create_time=Timestamp(seconds=1),
    )
    info = AgentInfo.of(raw)
    assert (info.name, info.model, info.version, info.tokens) == ("marco", "demo", Version("u", 3, b"r"), 9)
    assert (info.tier, info.context_policy, info.ttl) == ("warm", "", timedelta(minutes=1))
    assert (info.delete_after, info.context_remaining, info.updated) == (None, None, None)
    assert info.created == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert info.raw is raw


def test_memory_has_the_report_and_what_the_turn_begins_with() -> None:
    tiers = [
        types_pb2.TierTokens(tier=types_pb2.TIER_HOT, tokens=3),
        types_pb2.TierTokens(tier=types_pb2.TIER_WARM, tokens=4),
    ]
    report = types_pb2.CacheReport(match=types_pb2.MATCH_EXTEND, prompt_tokens=9, cached=tiers)
    memory = Memory.of(inference_pb2.Started(cache=report, context_remaining=5, dropped_tokens=1))
    assert (memory.match, memory.reused, memory.prompt_tokens, memory.snapshot_version) == ("extend", 7, 9, None)
    assert (memory.context_remaining, memory.dropped_tokens, memory.trim) == (5, 1, None)

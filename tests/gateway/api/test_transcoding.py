"""Every message of the routes survives proto → JSON → proto, and JSON that is no message is refused by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from gateway.api.contract_json import DURATION, TIER_TOKENS, TIMESTAMP, is_map, map_fields, oneof_of, to_json
from gateway.api.rest import ENDPOINTS
from gateway.api.transcoding import message_model, read_json
from gateway.api.validation import parse_body

MESSAGES = {
    message.full_name: message
    for endpoint in ENDPOINTS
    for message in (endpoint.rpc.input_type, endpoint.rpc.output_type)
}

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False, allow_infinity=False),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}


def duration(microseconds: int) -> Duration:
    made = Duration()
    made.FromMicroseconds(microseconds)
    return made


def timestamp(moment: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(moment)
    return made


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.message_type is DURATION:
        return st.integers(0, 2**33 * 10**6).map(duration)
    if field.message_type is TIMESTAMP:
        return st.datetimes().map(timestamp)
    return messages(field.message_type) if field.message_type is not None else SCALARS[field.type]


def whole(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is TIER_TOKENS:
        tiers = st.dictionaries(st.integers(1, 4), SCALARS[FieldDescriptor.TYPE_UINT32])
        return tiers.map(lambda found: [types_pb2.TierTokens(tier=tier, tokens=n) for tier, n in found.items()])
    if is_map(field):
        keys, inner = map_fields(field)
        return st.dictionaries(values(keys), values(inner), max_size=3)
    return st.lists(values(field), max_size=2) if field.is_repeated else values(field)


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor) -> Any:
    """Any message of a kind; of a oneof exactly one arm is set."""
    chosen = {
        oneof.name: draw(st.sampled_from([field.name for field in oneof.fields]))
        for oneof in descriptor.oneofs
        if not oneof.name.startswith("_")
    }
    given = {}
    for field in descriptor.fields:
        oneof = oneof_of(field)
        if field.name == "namespace":
            continue
        if chosen[oneof.name] == field.name if oneof is not None else not field.has_presence or draw(st.booleans()):
            given[field.name] = draw(whole(field))
    return GetMessageClass(descriptor)(**given)


@pytest.mark.parametrize("name", sorted(MESSAGES))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_there_and_back(name: str, data: st.DataObject) -> None:
    message = data.draw(messages(MESSAGES[name]))
    written = json.dumps(to_json(message)).encode()
    again = type(message)()
    read_json(written, message_model(MESSAGES[name]), again)
    assert again == message


def test_conventions() -> None:
    agent = agent_pb2.Agent(key=types_pb2.AgentKey(namespace="n", agent_id="a", model_id="m"), tier=types_pb2.TIER_HOT)
    agent.create_time.FromJsonString("2026-01-31T12:00:00.5Z")
    agent.ttl.FromMilliseconds(1500)
    written = to_json(agent)
    assert written["key"] == {"agent_id": "a", "model_id": "m"}
    assert (written["tier"], written["ttl"], written["delete_after"]) == ("hot", 1.5, None)
    assert written["create_time"] == "2026-01-31T12:00:00.500Z"
    assert (written["warm_bytes"], written["pinned"], written["context_remaining"]) == (0, False, None)
    cached = [types_pb2.TierTokens(tier=types_pb2.TIER_WARM, tokens=3), types_pb2.TierTokens(tokens=1)]
    report = to_json(types_pb2.CacheReport(match=types_pb2.MATCH_NEW, cached=cached))
    assert (report["match"], report["cached"], report["miss_reason"]) == ("new", {"warm": 3}, None)
    token = to_json(inference_pb2.TokenLogprob(token_bytes=b"\xff"))
    assert token["token_bytes"] == "/w=="


def test_the_largest_float_survives() -> None:
    largest = types_pb2.Sampling(temperature=3.4028234663852886e38)
    again = types_pb2.Sampling()
    read_json(json.dumps(to_json(largest)).encode(), message_model(largest.DESCRIPTOR), again)
    assert again == largest


def test_a_newer_peers_enum_is_nothing_that_we_know() -> None:
    assert to_json(inference_pb2.Finished(reason=99))["reason"] is None  # type: ignore[arg-type]


def refused() -> Iterator[tuple[dict[str, Any], str]]:
    """Bodies of Generate, and the field that is wrong."""
    prompt = {"prompt": "x"}
    yield {}, "body"
    yield {"prompt": "x", "append": {"text": "y"}}, "body"
    yield {"prompt": None}, "prompt"
    yield {"append": {}}, "append"
    yield {"append": {"text": "x", "messages": {"messages": []}}}, "append"
    yield (
        {"append": {"messages": {"messages": [{"role": "user", "contents": "x"}]}}},
        "append.messages.messages[0].contents",
    )
    yield {"token_ids": {"ids": [1, 2**32]}}, "token_ids.ids[1]"
    yield {"token_ids": {"ids": [1.0]}}, "token_ids.ids[0]"
    yield {**prompt, "namespace": "theirs"}, "namespace"
    yield {**prompt, "key": {"namespace": "theirs"}}, "key.namespace"
    yield {**prompt, "if_version": -1}, "if_version"
    yield {**prompt, "if_version": 2**64}, "if_version"
    yield {**prompt, "max_tokens": True}, "max_tokens"
    yield {**prompt, "cache_policy": "CACHE_POLICY_KEEP"}, "cache_policy"
    yield {**prompt, "cache_policy": 1}, "cache_policy"
    yield {**prompt, "cache_policy": "unspecified"}, "cache_policy"
    yield {**prompt, "sampling": {"temperature": "1"}}, "sampling.temperature"
    yield {**prompt, "sampling": {"temperature": 1e39}}, "sampling.temperature"
    yield {**prompt, "sampling": {"temperature": 10**400}}, "sampling.temperature"
    yield {**prompt, "sampling": {"logit_bias": {"x": 1}}}, "sampling.logit_bias"
    yield {**prompt, "sampling": {"logit_bias": {str(2**32): 1}}}, "sampling.logit_bias"
    yield {**prompt, "sampling": {"logit_bias": {"1": None}}}, "sampling.logit_bias.1"
    yield {**prompt, "expiry": {"ttl": -1}}, "expiry.ttl"
    yield {**prompt, "expiry": {"ttl": "3s"}}, "expiry.ttl"
    yield {**prompt, "stop": "x"}, "stop"
    yield {**prompt, "stop": [None]}, "stop[0]"


@pytest.mark.parametrize(("body", "field"), list(refused()))
def test_refused_by_field(body: dict[str, Any], field: str) -> None:
    request = inference_pb2.GenerateRequest()
    with pytest.raises(InvalidArgument) as caught:
        read_json(json.dumps(body).encode(), message_model(request.DESCRIPTOR), request)
    assert caught.value.field == field
    assert caught.value.message.encode()


def test_a_null_is_nothing() -> None:
    body = {"prompt": "x", "sampling": None, "max_tokens": None, "cache_policy": None}
    request = inference_pb2.GenerateRequest()
    read_json(json.dumps(body).encode(), message_model(request.DESCRIPTOR), request)
    assert request == inference_pb2.GenerateRequest(prompt="x")


@pytest.mark.parametrize("text", ["?", "YQ", "YQ==\n", "ä"])
def test_base64_is_checked(text: str) -> None:
    body = json.dumps({"chunk": text}).encode()
    with pytest.raises(InvalidArgument, match=r"^chunk: must be base64$"):
        parse_body(body, message_model(agent_pb2.ImportAgentRequest.DESCRIPTOR))

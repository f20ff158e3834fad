"""Every message of the routes survives proto → JSON → proto, and JSON that is no message is refused by field."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
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


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.message_type is DURATION:
        return st.timedeltas(timedelta(0), timedelta(seconds=2**33))
    if field.message_type is TIMESTAMP:
        return st.datetimes()
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


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "body"),
    ({"prompt": "x", "append": {"text": "y"}}, "body"),
    ({"prompt": None}, "prompt"),
    ({"append": {}}, "append"),
    ({"append": {"text": "x", "messages": {"messages": []}}}, "append"),
    (
        {"append": {"messages": {"messages": [{"role": "user", "contents": "x"}]}}},
        "append.messages.messages[0].contents",
    ),
    ({"token_ids": {"ids": [1, 2**32]}}, "token_ids.ids[1]"),
    ({"token_ids": {"ids": [1.0]}}, "token_ids.ids[0]"),
    ({"prompt": "x", "namespace": "theirs"}, "namespace"),
    ({"prompt": "x", "key": {"namespace": "theirs"}}, "key.namespace"),
    ({"prompt": "x", "if_version": -1}, "if_version"),
    ({"prompt": "x", "if_version": 2**64}, "if_version"),
    ({"prompt": "x", "max_tokens": True}, "max_tokens"),
    ({"prompt": "x", "cache_policy": "CACHE_POLICY_KEEP"}, "cache_policy"),
    ({"prompt": "x", "cache_policy": 1}, "cache_policy"),
    ({"prompt": "x", "cache_policy": "unspecified"}, "cache_policy"),
    ({"prompt": "x", "sampling": {"temperature": "1"}}, "sampling.temperature"),
    ({"prompt": "x", "sampling": {"temperature": 1e39}}, "sampling.temperature"),
    ({"prompt": "x", "sampling": {"temperature": 10**400}}, "sampling.temperature"),
    ({"prompt": "x", "sampling": {"logit_bias": {"x": 1}}}, "sampling.logit_bias"),
    ({"prompt": "x", "sampling": {"logit_bias": {str(2**32): 1}}}, "sampling.logit_bias"),
    ({"prompt": "x", "sampling": {"logit_bias": {"1": None}}}, "sampling.logit_bias.1"),
    ({"prompt": "x", "expiry": {"ttl": -1}}, "expiry.ttl"),
    ({"prompt": "x", "expiry": {"ttl": "3s"}}, "expiry.ttl"),
    ({"prompt": "x", "stop": "x"}, "stop"),
    ({"prompt": "x", "stop": [None]}, "stop[0]"),
]
"""Bodies of Generate, and the field that is wrong."""


@pytest.mark.parametrize(("body", "field"), REFUSED)
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

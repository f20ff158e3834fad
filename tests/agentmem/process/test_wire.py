import time
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from agentmem.process.wire import ill_formed_text
from agentmem.v1 import agent_pb2, cache_store_pb2, inference_pb2, model_pb2, types_pb2, workflow_pb2
from tests.wire import tagged

GENERATE = inference_pb2.GenerateRequest.DESCRIPTOR
BAD = [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"ok\x80"]
"""Stray, cut off, a surrogate, overlong, too large, a stray continuation."""


def string_paths(descriptor: Descriptor) -> list[tuple[str, list[int]]]:
    """Every string field of a message, however deep, as a path and the field numbers that lead to it."""
    found = []
    for field in descriptor.fields:
        name = f"{field.name}[0]" if field.is_repeated else field.name
        if field.type == FieldDescriptor.TYPE_STRING:
            found.append((name, [field.number]))
        elif field.message_type is not None and field.message_type is not descriptor:
            found += [(f"{name}.{path}", [field.number, *way]) for path, way in string_paths(field.message_type)]
    return found


def requests() -> list[type[Message]]:
    modules = (agent_pb2, cache_store_pb2, inference_pb2, model_pb2, workflow_pb2)
    kinds = [kind for module in modules for name, kind in vars(module).items() if name.endswith("Request")]
    assert len(kinds) > 30
    return kinds


PATHS = [(kind, path, way) for kind in requests() for path, way in string_paths(kind.DESCRIPTOR)]


@pytest.mark.parametrize("bad", BAD)
def test_every_string_field_of_every_request_is_named(bad: bytes) -> None:
    for kind, path, way in PATHS:
        data = bad
        for number in reversed(way):
            data = tagged(number, data)
        with pytest.raises(DecodeError):
            kind.FromString(data)
        assert ill_formed_text(kind.DESCRIPTOR, data) == path


messages = st.builds(
    types_pb2.ChatMessage, role=st.text(max_size=3), content=st.text(max_size=3), name=st.none() | st.text(max_size=3)
)
generate_requests = st.builds(
    inference_pb2.GenerateRequest,
    key=st.builds(types_pb2.AgentKey, namespace=st.text(max_size=3), agent_id=st.text(max_size=3)),
    request_id=st.text(max_size=3),
    messages=st.builds(types_pb2.Messages, messages=st.lists(messages, max_size=3)),
    sampling=st.builds(types_pb2.Sampling, temperature=st.floats(width=32), logit_bias=st.just({1: 2.0})),
    stop=st.lists(st.text(max_size=3), max_size=3),
    if_version=st.none() | st.integers(0, 2**64 - 1),
)


@given(request=generate_requests)
def test_nothing_is_wrong_with_what_parses(request: inference_pb2.GenerateRequest) -> None:
    assert ill_formed_text(GENERATE, request.SerializeToString()) is None


def test_elements_are_counted() -> None:
    good = inference_pb2.GenerateRequest(stop=["a", "b"], if_version=2**63).SerializeToString()
    assert ill_formed_text(GENERATE, good + tagged(9, b"\xff") + tagged(9, b"\xff")) == "stop[2]"
    chat = types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user")] * 2).SerializeToString()
    bad = tagged(1, tagged(2, b"\xff"))
    assert ill_formed_text(GENERATE, tagged(3, chat + bad)) == "messages.messages[2].content"


def test_bytes_fields_and_unknown_fields_may_hold_anything() -> None:
    assert ill_formed_text(cache_store_pb2.QuarantineBlockRequest.DESCRIPTOR, tagged(2, tagged(2, b"\xff"))) is None
    assert ill_formed_text(GENERATE, tagged(500, b"\xff")) is None


@given(request=generate_requests, data=st.data())
def test_agrees_with_protobuf_about_any_damage(request: inference_pb2.GenerateRequest, data: st.DataObject) -> None:
    """Never raises; and what it names is really there: with the whole fields before it, the message parses."""
    good = request.SerializeToString()
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    found = ill_formed_text(GENERATE, bytes(damaged))
    parses = _parses(inference_pb2.GenerateRequest, bytes(damaged))
    assert found is None or not parses


@given(data=st.binary(max_size=64))
def test_never_raises(data: bytes) -> None:
    found = ill_formed_text(GENERATE, data)
    assert found is None or not _parses(inference_pb2.GenerateRequest, data)


@pytest.mark.parametrize("data", [b"\xff" * (4 << 20), tagged(3, tagged(1, b"\x0a\x00" * (4 << 20))) + b"\xff"])
def test_takes_no_longer_than_its_bytes(data: bytes) -> None:
    """A number that never ends was read into one of as many digits; a message that is all small fields, one by one."""
    began = time.process_time()
    assert ill_formed_text(GENERATE, data) is None
    assert time.process_time() - began < 5


def _parses(kind: Any, data: bytes) -> bool:
    try:
        kind.FromString(data)
    except DecodeError:
        return False
    return True


def test_nesting_deeper_than_any_message_does_not_matter() -> None:
    data = b"\xff"
    for _ in range(5000):
        data = tagged(1, data)
    assert ill_formed_text(GENERATE, data) in (None, "key.namespace")

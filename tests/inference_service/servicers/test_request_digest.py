"""The digest: two requests with one request_id are the same turn if, and only if, all else is the same."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.v1 import inference_pb2, types_pb2
from inference_service.servicers.requests import generate_request, prefill_request
from tests.inference_service.servicers.test_requests import KEY, Request, request

short = st.text("ab", max_size=2)
chat_messages = st.builds(
    types_pb2.ChatMessage,
    role=st.sampled_from(["user", "assistant"]),
    content=short,
    name=st.none() | short,
    reasoning_content=st.none() | short,
    tool_call_id=st.none() | short,
    tool_calls_json=st.none() | st.just("[]"),
)
chats = st.builds(
    types_pb2.Messages,
    messages=st.lists(chat_messages, min_size=1, max_size=2),
    tools_json=st.none() | st.just("[]"),
    template_arguments_json=st.none() | st.sampled_from(["{}", '{"a": 1}']),
)
numbers = st.none() | st.sampled_from([0.5, 1.0])
samplings = st.builds(
    types_pb2.Sampling,
    temperature=numbers,
    top_p=numbers,
    min_p=numbers,
    repetition_penalty=numbers,
    presence_penalty=numbers,
    frequency_penalty=numbers,
    top_k=st.none() | st.integers(0, 2),
    seed=st.none() | st.integers(0, 2),
    logit_bias=st.dictionaries(st.integers(0, 3), st.sampled_from([0.0, 1.0]), max_size=3),
    ignore_eos=st.booleans(),
)
arms = st.one_of(
    st.fixed_dictionaries({"prompt": short.filter(bool)}),
    st.fixed_dictionaries({"messages": chats}),
    st.fixed_dictionaries({"token_ids": st.builds(types_pb2.TokenIds, ids=st.lists(st.integers(0, 3), min_size=1))}),
    st.fixed_dictionaries({"append": st.builds(types_pb2.Append, text=short.filter(bool))}),
    st.fixed_dictionaries({"append": st.builds(types_pb2.Append, messages=chats)}),
)
fields = st.fixed_dictionaries(
    {
        "key": st.builds(
            types_pb2.AgentKey,
            namespace=st.sampled_from("ab"),
            agent_id=st.sampled_from("ab"),
            model_id=st.sampled_from("ab"),
        )
    },
    optional={
        "if_version": st.integers(0, 2),
        "if_revision": st.sampled_from([bytes(16), b"revision of 16 b"]),
        "sampling": samplings,
        "stop": st.lists(st.sampled_from("ab"), max_size=2),
        "max_tokens": st.integers(1, 2),
        "cache_policy": st.integers(0, 3),
        "memory_mode": st.sampled_from([0, 1, 2, 4]),
        "top_logprobs": st.integers(0, 2),
        "parse_special": st.booleans(),
        "label": st.sampled_from("ab"),
        "expiry": st.sampled_from([types_pb2.Expiry(ttl={"seconds": 1}), types_pb2.Expiry(ttl={"seconds": 2})]),
    },
)
requests = st.builds(lambda some, arm: Request(**some, **arm), fields, arms)


def digest(of: Request, request_id: str = "") -> bytes:
    named = Request()
    named.CopyFrom(of)
    named.request_id = request_id
    return generate_request(named).digest


def lasting(request: Request) -> Request:
    """Return the fields that a retry must repeat: its turn is committed already, and its agent exists."""
    rest = Request()
    rest.CopyFrom(request)
    rest.ClearField("if_version")
    rest.ClearField("if_revision")
    rest.ClearField("memory_mode")
    rest.ClearField("expiry")
    return rest


@given(one=requests, other=fields, arm=arms, data=st.data())
def test_digest_sees_every_single_field(
    one: Request, other: dict[str, Any], arm: dict[str, Any], data: st.DataObject
) -> None:
    changed = Request()
    changed.CopyFrom(one)
    changed.MergeFrom(Request(**data.draw(st.sampled_from([{k: v} for k, v in {**other, **arm}.items()]))))
    assert (digest(changed) == digest(one)) == (lasting(changed) == lasting(one))


@given(one=requests, request_id=short)
def test_digest_ignores_the_request_id_and_how_the_message_was_made(one: Request, request_id: str) -> None:
    assert digest(one, request_id) == digest(one)
    assert digest(Request.FromString(one.SerializeToString())) == digest(one)
    assert len(digest(one)) == 32


@given(bias=st.dictionaries(st.integers(0, 10**6), st.floats(-10, 10, width=32), min_size=2, max_size=20))
def test_digest_ignores_the_order_of_a_map(bias: dict[int, float]) -> None:
    forwards, backwards = request(), request()
    for token_id, value in bias.items():
        forwards.sampling.logit_bias[token_id] = value
    for token_id, value in reversed(bias.items()):
        backwards.sampling.logit_bias[token_id] = value
    assert digest(forwards) == digest(backwards)


def test_digest_of_another_rpc_is_another() -> None:
    """Their fields have the same numbers, so that the same bytes can be either."""
    prefill = inference_pb2.PrefillRequest(key=KEY, prompt="hello")
    assert prefill.SerializeToString() == request().SerializeToString()
    assert prefill_request(prefill).digest != digest(request())


@pytest.mark.parametrize("make", [generate_request, prefill_request])
def test_the_request_is_left_as_it_was(make: Callable[[Any], Any]) -> None:
    kind: type[Any] = Request if make is generate_request else inference_pb2.PrefillRequest
    given_request = kind(key=KEY, prompt="x", request_id="r")
    make(given_request)
    assert given_request == kind(key=KEY, prompt="x", request_id="r")

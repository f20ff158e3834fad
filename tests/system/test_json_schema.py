"""Turns held to JSON Schemas by a real worker, and through the official SDK: the demo model babbles, its JSON fits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import openai
import pytest
import pytest_asyncio

from agentmem.errors import InvalidArgument, from_rpc
from agentmem.v1 import inference_pb2, types_pb2
from tests.json_schemas import HOSTILE, Schema, fits
from tests.system.client import Client, Turn, refused
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

FACT: Schema = {
    "type": "object",
    "properties": {
        "subject": {"type": "string", "maxLength": 12},
        "colour": {"enum": ["green", "red", "blau"]},
        "sure": {"type": "boolean"},
        "seen": {"type": "array", "items": {"type": "integer", "minimum": 1900, "maximum": 2100}, "maxItems": 3},
        "place": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["subject", "colour", "sure"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number", "minimum": -1, "maximum": 1}, "code": {"pattern": "^[A-C]{2}$"}},
            "required": ["code"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS: dict[str, Schema] = {
    "fact": FACT,
    "list": {"type": "array", "items": {"const": "list"}, "minItems": 2, "maxItems": 5},
    "date": {"type": "string", "format": "date"},
    "choice": {"enum": ["the first choice", 2, None, {"third": [True]}]},
}
LONG = 2000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(demo: Stack) -> Stack:
    return demo


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> Client:
    return await stack.client()


def warm(seed: int) -> types_pb2.Sampling:
    return types_pb2.Sampling(temperature=1.0, seed=seed)


async def held(client: Client, agent: str, schema: Schema, seed: int = 1, **fields: Any) -> Turn:
    asked = {"sampling": warm(seed), "max_tokens": LONG, "json_schema": json.dumps(schema), **fields}
    return await client.say(agent, "What is the colour of the boat?", **asked)


def whole(turn: Turn, schema: Schema) -> bool:
    return turn.finished.reason == types_pb2.FINISH_REASON_STOP and fits(turn.text, schema)


@pytest.mark.slow
async def test_held_and_free_turns_run_together_and_each_keeps_to_its_own(client: Client) -> None:
    free = {"sampling": types_pb2.Sampling(temperature=1.0, seed=5, ignore_eos=True), "max_tokens": 60}
    alone = await client.say("free-alone", "What is the colour of the boat?", **free)
    turns = await asyncio.gather(
        *(held(client, name, schema) for name, schema in SCHEMAS.items()),
        *(client.say(f"free-{number}", "What is the colour of the boat?", **free) for number in range(2)),
    )
    for turn, schema in zip(turns, SCHEMAS.values(), strict=False):
        assert whole(turn, schema), turn.text
    assert [turn.text for turn in turns[-2:]] == [alone.text] * 2
    assert len({turn.text for turn in turns}) == 5


async def test_bad_schemas_are_refused_before_any_effect(client: Client) -> None:
    hostile = [json.dumps(HOSTILE[name]) for name in ("counted in a count", "many optional properties")]
    for schema in ("{", "[]", '{"uniqueItems": true}', '{"type": "string", "pattern": "(?=s3cr3t)"}', *hostile):
        bad = client.say("nobody", "hello", json_schema=schema)
        told = from_rpc(await refused(bad, grpc.StatusCode.INVALID_ARGUMENT))
        assert isinstance(told, InvalidArgument) and told.field == "json_schema"
        assert "s3cr3t" not in str(told)
    await refused(client.agent("nobody"), grpc.StatusCode.NOT_FOUND)


@pytest.mark.slow
async def test_streams_go_on_while_a_hostile_schema_compiles(client: Client) -> None:
    """Not by the clock: a stream gets tokens between the schema's sending and its refusal."""
    hostile = json.dumps(HOSTILE["patterns on patterns"])
    call = client.inference.Generate(
        inference_pb2.GenerateRequest(
            key=client.key(""), prompt="a", max_tokens=LONG, sampling=types_pb2.Sampling(ignore_eos=True)
        )
    )
    tokens = 0

    async def count() -> None:
        nonlocal tokens
        async for event in call:
            tokens += len(event.delta.token_ids)

    counting = asyncio.create_task(count())
    while not tokens:
        await asyncio.sleep(0.01)
    before = tokens
    with pytest.raises(grpc.aio.AioRpcError):
        await client.say("nobody", "hello", json_schema=hostile)
    assert tokens > before + 5
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await counting


@pytest.mark.slow
async def test_response_format_through_the_sdk(sdk: openai.AsyncOpenAI) -> None:
    named: Any = {"type": "json_schema", "json_schema": {"name": "fact", "schema": FACT, "strict": True}}
    asked: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": "The boat is green."}],
        "response_format": named,
        "seed": 3,
    }
    answer = await sdk.chat.completions.create(**asked)
    assert answer.choices[0].finish_reason == "stop"
    assert fits(answer.choices[0].message.content or "", FACT)

    stream = await sdk.chat.completions.create(**asked, stream=True)
    said = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert len([part for part in said if part]) > 3, "it comes bit by bit"
    assert "".join(said) == answer.choices[0].message.content

    named["json_schema"]["schema"] = SCHEMAS["date"]
    choices = await sdk.chat.completions.create(**asked, n=2)
    assert all(fits(choice.message.content or "", SCHEMAS["date"]) for choice in choices.choices)
    cut = await sdk.chat.completions.create(**{**asked, "response_format": {"type": "json_object"}, "max_tokens": 4})
    assert (cut.choices[0].message.content or "").startswith("{")

"""Responses that are kept, through OpenAI's SDK: referred to by their items, read, and deleted."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.scripted_model import write_scripted
from tests.system.shared import of_module

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
ASKED = {"role": "user", "content": "How is the weather in Paris?"}


stack = of_module("scripted", write_scripted)


async def ask(sdk: openai.AsyncOpenAI, *items: Any, **fields: Any) -> Any:
    return await sdk.responses.create(model="scripted", input=list(items), tools=[TOOL], **fields)


async def agents(sdk: openai.AsyncOpenAI) -> set[str]:
    listed: Any = (await sdk.get("/agents", cast_to=httpx.Response)).json()
    return {agent["key"]["agent_id"] for agent in listed["agents"]}


def references(response: Any) -> list[Any]:
    return [{"type": "item_reference", "id": item.id} for item in response.output]


def output_of(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in response.output
        if item.type == "function_call"
    ]


async def test_items_that_are_referred_to_are_those_of_the_response(sdk: openai.AsyncOpenAI) -> None:
    """As the AI SDK sends a conversation from its second turn on; memory holds all of it."""
    first = await ask(sdk, ASKED)
    assert [item.type for item in first.output] == ["message", "function_call"]
    referred = await ask(sdk, ASKED, *references(first), *output_of(first))
    assert referred.output_text == "It rains in Paris!"
    assert referred.usage.input_tokens_details.cached_tokens > first.usage.input_tokens
    whole = [item.model_dump(exclude_none=True) for item in first.output]
    sent = await ask(sdk, ASKED, *whole, *output_of(first))
    assert sent.usage.input_tokens == referred.usage.input_tokens, "the same prompt as with the items themselves"
    third = await ask(
        sdk, ASKED, *references(first), *output_of(first), *references(referred), {"role": "user", "content": "both"}
    )
    assert [item.name for item in third.output if item.type == "function_call"] == ["get_time", "get_weather"]


async def test_a_response_can_be_read(sdk: openai.AsyncOpenAI) -> None:
    made = await ask(sdk, {"role": "user", "content": "Tell me of the weather, please."})
    read = await sdk.responses.retrieve(made.id)
    assert (read.id, read.status, read.model) == (made.id, "completed", "scripted")
    assert [item.model_dump() for item in read.output] == [item.model_dump() for item in made.output]
    assert read.usage is not None and made.usage is not None
    assert read.usage.output_tokens == made.usage.output_tokens
    items = await sdk.responses.input_items.list(made.id)
    (item,) = items.data
    assert item.type == "message"
    assert "Tell me of the weather" in str(item)


async def test_instructions_that_the_memory_begins_with_are_in_it_once(sdk: openai.AsyncOpenAI) -> None:
    asked = {"role": "user", "content": "And what else is there to tell?"}
    first = await ask(sdk, asked, instructions="Be brief.")
    follow: Any = {"previous_response_id": first.id}
    second = await ask(sdk, *output_of(first), asked, instructions="Be brief.", **follow)
    told = await sdk.responses.input_items.list(second.id)
    assert [item.role for item in told.data if item.type == "message"] == ["user"]
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens
    for instructions in ("Be long.", None):
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(sdk, *output_of(first), asked, instructions=instructions, **follow)
        assert refused.value.param == "instructions"


async def test_the_last_response_of_a_conversation_can_be_deleted(sdk: openai.AsyncOpenAI) -> None:
    before = await agents(sdk)
    first = await ask(sdk, {"role": "user", "content": "To be deleted, as a whole."})
    second = await ask(sdk, *output_of(first), previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="later turns go on from this response"):
        await sdk.responses.delete(first.id)
    for response in (second, first):
        await sdk.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await sdk.responses.retrieve(response.id)
    assert await agents(sdk) == before, "an agent that has no name is deleted with its only response"


async def test_items_that_are_not_kept_say_what_to_do(sdk: openai.AsyncOpenAI) -> None:
    first = await ask(sdk, {"role": "user", "content": "Only one call."})
    beyond = first.output[-1].id.rpartition("_")[0] + "_7"
    for item in (beyond, "msg_1", "msg_" + "0" * 48 + "_0", "fc_x", "rs_" + "0" * 48 + "_x"):
        with pytest.raises(openai.NotFoundError, match="send the items themselves"):
            await ask(sdk, ASKED, {"type": "item_reference", "id": item})
    with pytest.raises(openai.BadRequestError, match="refers to an item twice"):
        await ask(sdk, ASKED, *references(first), *references(first))
    # All of the text is in the first message, wherever a stream had it.
    later = {"type": "item_reference", "id": references(first)[0]["id"].removesuffix("_0") + "_1"}
    whole = await ask(sdk, ASKED, *references(first), later, *output_of(first))
    assert whole.output_text == "It rains in Paris!"

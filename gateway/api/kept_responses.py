"""Responses as turns of an agent's memory."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from agentmem.errors import InvalidArgument
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from gateway.api.openai_tools import Called
from gateway.api.responses import RESPONSE_PREFIX, beginning_of, head_of, not_kept
from gateway.api.responses_output import ResponseAnswer, call_item
from gateway.api.responses_schema import Item, ItemReference, ResponseRequest
from gateway.api.validation import Json

_ITEM: Final = re.compile(r"(msg|rs|fc|ctc)_([0-9a-f]{48,64})_([0-9a-f]{1,8})")
"""Kind, number of the response, and which one of the kind."""
_AS_ITEM: Final[TypeAdapter[Item]] = TypeAdapter(Item)


def response_of(item_id: str) -> str:
    """Raises NotFound for what is no item's id."""
    found = _ITEM.fullmatch(item_id)
    if found is None or beginning_of(f"{RESPONSE_PREFIX}{found[2]}") is None:
        raise not_kept("item", item_id)
    return f"{RESPONSE_PREFIX}{found[2]}"


def references(request: ResponseRequest) -> list[str]:
    items = () if isinstance(request.input, str) else request.input
    return [item.id for item in items if isinstance(item, ItemReference)]


def resolved(request: ResponseRequest, turns: Mapping[str, agent_pb2.Turn]) -> ResponseRequest:
    """Raises NotFound for an item that its response does not have."""
    if isinstance(request.input, str):
        return request
    by_response = {identifier: _items(turn) for identifier, turn in turns.items()}
    items: list[Item] = []
    seen: set[str] = set()
    for item in request.input:
        if not isinstance(item, ItemReference):
            items.append(item)
            continue
        if item.id in seen:  # Each may be long.
            raise InvalidArgument("input", "refers to an item twice")
        seen.add(item.id)
        kind, which = item.id.partition("_")[0], item.id.rpartition("_")[2]
        kept = by_response[response_of(item.id)]
        place = ("fc" if kind == "ctc" else kind, which)
        if place in kept:
            items.append(kept[place])
        elif (kind, "0") not in kept:  # All of the text, and all thoughts, are in the first of them.
            raise not_kept("item", item.id)
    return request.model_copy(update={"input": items})


def _answer(turn: agent_pb2.Turn) -> types_pb2.ChatMessage:
    """Return nothing where the turn only took context in."""
    said = turn.messages[-1] if turn.messages and turn.generated_tokens else types_pb2.ChatMessage()
    return said if said.role == "assistant" else types_pb2.ChatMessage()


def _calls(message: types_pb2.ChatMessage) -> list[Any]:
    return json.loads(message.tool_calls_json) if message.tool_calls_json else []


def _items(turn: agent_pb2.Turn) -> dict[tuple[str, str], Item]:
    """Return items by kind and number, or hash. Text between calls is all in the first message."""
    parts = {item["id"]: _AS_ITEM.validate_python(item) for item in kept_body("", types_pb2.AgentKey(), turn)["output"]}
    return {(key.partition("_")[0], key.rpartition("_")[2]): item for key, item in parts.items()}


def kept_body(identifier: str, key: types_pb2.AgentKey, turn: agent_pb2.Turn) -> Json:
    """Return a response whose request, but for the messages, is null or empty."""
    head = head_of(ResponseRequest(model=key.model_id or None, input=""), identifier, turn.create_time.seconds)
    answer, said = ResponseAnswer(head, identifier.removeprefix(RESPONSE_PREFIX), logprobs=False), _answer(turn)
    answer.agent_id = key.agent_id
    calls = [
        inference_pb2.ToolCall(
            id=call["id"], name=call["function"]["name"], arguments_json=call["function"]["arguments"]
        )
        for call in _calls(said)
    ]
    delta = inference_pb2.Delta(reasoning=said.reasoning_content, text=said.content, tool_calls=calls)
    finished = inference_pb2.Finished(reason=turn.report.reason, usage=turn.report.usage, durable=True)
    answer.add(0, inference_pb2.GenerateResponse(delta=delta))
    answer.add(0, inference_pb2.GenerateResponse(finished=finished))
    body = answer.body()
    del body["agentmem"]
    return body


def kept_input(identifier: str, turn: agent_pb2.Turn) -> Json:
    """Newest last."""
    number = identifier.removeprefix(RESPONSE_PREFIX)
    said = turn.messages[:-1] if turn.generated_tokens else turn.messages
    data = [item for place, message in enumerate(said) for item in _input_items(f"{number}_{place}", message)]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"object": "list", "data": data, **ends, "has_more": False}


def _input_items(number: str, message: types_pb2.ChatMessage) -> Iterable[Json]:
    if message.role == "tool":
        output = {"call_id": message.tool_call_id, "output": message.content, "status": "completed"}
        yield {"id": f"in_{number}", "type": "function_call_output", **output}
        return
    if message.content or not message.tool_calls_json:
        kind = "output_text" if message.role == "assistant" else "input_text"
        content = [{"type": kind, "text": message.content}]
        head = {"id": f"in_{number}", "type": "message", "role": message.role or "user"}
        yield {**head, "content": content, "status": "completed"}
    for count, call in enumerate(_calls(message)):
        function = call["function"]
        yield call_item(f"in_{number}_{count}", call["id"], Called(function["name"]), function["arguments"])

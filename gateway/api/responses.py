"""A response's id is the request_id of its turn. It ends with hashes of the instructions, tools and template arguments
that the ledger begins with: a request with previous_response_id must have the same, and appends its input to the memory
that this turn made. store=false keeps a response from being followed by its id; memory is kept all the same.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from pydantic import BaseModel

from agentmem.errors import InvalidArgument, NotFound
from agentmem.v1 import types_pb2
from gateway.api.content import counted, others
from gateway.api.exchange import Exchange, Incoming, call_arguments, function_call, joined, to_json_text, turn_of
from gateway.api.openai import schema_of
from gateway.api.openai_tools import CUSTOM_INPUT, chosen, flat_name, functions_of
from gateway.api.responses_output import ResponseAnswer
from gateway.api.responses_schema import (
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
    ResponseRequest,
)
from gateway.api.validation import Json, limit

RESPONSE_PREFIX = "resp_"
_FORM = re.compile(
    RESPONSE_PREFIX + r"[0-9a-f]{32}(?P<instructions>[0-9a-f]{8})(?P<tools>[0-9a-f]{8})(?P<reasoning>[0-9a-f]{8})?"
)
_NUMBER_BYTES = 16
_HASH_BYTES = 4


class Beginning(NamedTuple):
    """Hashes of eight hexadecimal digits; `reasoning` is of the template's arguments, empty without any."""

    instructions: str
    tools: str
    reasoning: str = ""

    @classmethod
    def of(cls, instructions: str, tools: str, arguments: str = "") -> Self:
        """`tools` and `arguments` are canonical JSON, empty where there are none."""
        reasoning = _hash(arguments, b"reasoning") if arguments else ""
        return cls(_hash(instructions, b"instructions"), _hash(tools, b"tools"), reasoning)


def response_id(number: str, beginning: Beginning) -> str:
    """`number` has 32 hexadecimal digits."""
    return f"{RESPONSE_PREFIX}{number}{''.join(beginning)}"


def beginning_of(identifier: str) -> Beginning | None:
    """Return None where no response has such an id."""
    form = _FORM.fullmatch(identifier)
    return Beginning(**form.groupdict("")) if form else None


def number_of_key(key: str) -> str:
    """Each attempt makes the same id."""
    return hashlib.blake2b(key.encode(), digest_size=_NUMBER_BYTES, person=b"idempotency-key").hexdigest()


def _hash(text: str, person: bytes) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES, person=person).hexdigest()


def not_kept(kind: str, identifier: str) -> NotFound:
    advice = "it is of another server, was asked for with store=false, or its agent is deleted"
    then = "send the items themselves" if kind == "item" else "send the whole conversation"
    return NotFound(kind, identifier[:64], f"{advice}; {then}")


def response_exchange(request: ResponseRequest, incoming: Incoming) -> Exchange:
    """Raises InvalidArgument for parameters that say nothing, or contradict each other or what the previous response
    began with, and NotFound for a previous response that cannot be.
    """
    if request.top_logprobs and not request.wants_logprobs:
        raise InvalidArgument("top_logprobs", 'needs include to have "message.output_text.logprobs"')
    functions, called = functions_of([] if request.tool_choice == "none" else request.tools or ())
    tools = [tool.to_tool() for tool in functions]
    arguments = request.template_arguments()
    beginning = Beginning.of(
        request.instructions or "", json.dumps(tools, sort_keys=True) if tools else "", arguments or ""
    )
    follows = request.previous_response_id is not None
    if request.previous_response_id is not None:
        _refuse_other_beginning(request.previous_response_id, beginning, request)
    number = number_of_key(incoming.turn) if incoming.turn else incoming.unique
    identifier = response_id(number, beginning)
    stored = identifier if request.store is not False else f"unstored_{number}" if incoming.turn else ""
    system = [types_pb2.ChatMessage(role="system", content=request.instructions)] if request.instructions else []
    chat = types_pb2.Messages(
        messages=[*([] if follows else system), *to_messages(request.input)],
        tools_json=to_json_text("tools", tools),
        template_arguments_json=arguments,
    )
    if not chat.messages:
        raise InvalidArgument("input", "must say something")
    made = turn_of(
        incoming,
        request,
        **({"append": types_pb2.Append(messages=chat)} if follows else {"messages": chat}),
        request_id=stored,
        max_tokens=limit(request.max_output_tokens),
        top_logprobs=(request.top_logprobs or 0) if request.wants_logprobs else None,
        json_schema=schema_of(request.text.format if request.text else None),
        tool_choice=chosen(request.tool_choice, functions, parallel=request.parallel_tool_calls),
    )
    head = head_of(request, identifier, incoming.created)
    return Exchange(
        (made,),
        ResponseAnswer(head, identifier.removeprefix(RESPONSE_PREFIX), called, logprobs=request.wants_logprobs),
        bool(request.stream),
        label=request.prompt_cache_key or "",
        previous=request.previous_response_id or "",
        left_out=_media(request.input),
        others=[*others(request.tools or (), () if isinstance(request.input, str) else request.input), *request.unread],
    )


def _media(given: str | Iterable[Item]) -> list[str]:
    said = [] if isinstance(given, str) else [i for i in given if isinstance(i, MessageItem) and i.role == "user"]
    return counted(item.content for item in said)


def _refuse_other_beginning(previous: str, beginning: Beginning, request: ResponseRequest) -> None:
    before = beginning_of(previous)
    if before is None:
        raise not_kept("response", previous)
    for name, then, now in zip(Beginning._fields, before, beginning, strict=True):
        if then != now:
            raise InvalidArgument(
                "chat_template_kwargs" if name == "reasoning" and request.chat_template_kwargs else name,
                "must be those that previous_response_id ran under, since its memory begins with them; send the same "
                "ones, or leave previous_response_id out and send the whole conversation as input",
            )


def to_messages(given: str | Iterable[Item]) -> list[types_pb2.ChatMessage]:
    """Return input, in which nothing is referred to, as messages of a chat.

    What the model thought, said and called between two messages of others is one message: calls belong to the text
    before them, and so does text that follows reasoning, or a call without an answer yet.
    """
    if isinstance(given, str):
        return [types_pb2.ChatMessage(role="user", content=given)]
    messages: list[_Message] = []

    def speaker() -> _Message:
        if not messages or messages[-1].role != "assistant":
            messages.append(_Message("assistant"))
        return messages[-1]

    for item in given:
        match item:
            case MessageItem():
                text = joined(item.content)
                if item.role == "assistant" and messages and messages[-1].goes_on:
                    messages[-1].texts.append(text)
                    messages[-1].thought = False
                else:
                    messages.append(_Message("system" if item.role == "developer" else item.role, [text]))
            case FunctionCallItem() | CustomCallItem():
                message, name = speaker(), flat_name(item.name, item.namespace)
                given_arguments = {CUSTOM_INPUT: item.input} if isinstance(item, CustomCallItem) else item.arguments
                message.calls.append(function_call(item.call_id, name, call_arguments(given_arguments)))
                message.thought = False
            case CallOutputItem():
                messages.append(_Message("tool", [joined(item.output)], answers=item.call_id))
            case ReasoningItem() if text := joined(item.content):
                message = speaker()
                message.reasoning.append(text)
                message.thought = True
            case ItemReference():
                raise AssertionError("a reference was not resolved")
    return [message.to_proto() for message in messages]


@dataclass
class _Message:
    role: str
    texts: list[str] = field(default_factory=list)
    calls: list[Json] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    thought: bool = False
    """Reasoning was the last."""
    answers: str | None = None

    @property
    def goes_on(self) -> bool:
        return bool(self.calls) or self.thought

    def to_proto(self) -> types_pb2.ChatMessage:
        return types_pb2.ChatMessage(
            role=self.role,
            content="".join(self.texts),
            reasoning_content="".join(self.reasoning) if self.reasoning else None,
            tool_calls_json=to_json_text("input", self.calls),
            tool_call_id=self.answers,
        )


def head_of(request: ResponseRequest, identifier: str, created: int) -> Json:
    text_format, choice = request.text.format if request.text else None, request.tool_choice
    same = ("instructions", "max_output_tokens", "previous_response_id", "prompt_cache_key", "safety_identifier")
    return {
        **request.model_dump(include={*same, "temperature", "top_p", "user"}),
        "id": identifier,
        "object": "response",
        "created_at": created,
        "model": request.model or "",
        "background": False,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "reasoning": {"effort": request.effort, "summary": None},
        "service_tier": "default",
        "store": request.store is not False,
        "text": {"format": text_format.model_dump(by_alias=True) if text_format else {"type": "text"}},
        "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
        "tools": [tool.model_dump() for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "truncation": "disabled",
    }

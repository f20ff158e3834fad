"""A request for a response as one turn of the contract, and the ids of responses.

`instructions` are the system message in front. A request with previous_response_id appends its input to the memory
that the turn of that response made, which was begun with the instructions, tools and reasoning effort of then: with
others it is refused. store=false keeps a response from being followed by its id; memory is kept all the same, as that
of chat completions is.

A response's id is the request_id of its turn, so that a later request finds the turn by it. It ends with hashes of the
instructions, the tools and the reasoning effort that the turn ran under: the ledger begins with them, and a turn that
appends to it cannot give it another beginning.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from pydantic import BaseModel

from agentmem.errors import InvalidArgument, NotFound
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.exchange import Exchange, Incoming, function_call, joined, template_arguments, to_json_text
from gateway.api.openai import DEFAULT_TEMPERATURE, held_calls, refuse_idle_stream_options, schema_of
from gateway.api.responses_output import ResponseAnswer
from gateway.api.responses_schema import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    ResponseRequest,
)
from gateway.api.validation import Json

_FORM = re.compile(r"resp_[0-9a-f]{32}(?P<instructions>[0-9a-f]{8})(?P<tools>[0-9a-f]{8})(?P<reasoning>[0-9a-f]{8})?")
_NUMBER_BYTES = 16
_HASH_BYTES = 4


class Beginning(NamedTuple):
    """What a ledger begins with, as hashes of eight hexadecimal digits.

    `reasoning` is of all arguments of the template, the effort among them; without any it is empty.
    """

    instructions: str
    tools: str
    reasoning: str = ""

    @classmethod
    def of(cls, instructions: str, tools: str, arguments: str = "") -> Self:
        """Return the hashes. `tools` is canonical JSON, and so are `arguments`; each is empty where there is none."""
        reasoning = _hash(arguments, b"reasoning") if arguments else ""
        return cls(_hash(instructions, b"instructions"), _hash(tools, b"tools"), reasoning)


def response_id(number: str, beginning: Beginning) -> str:
    """Return the id of a response; `number` has 32 hexadecimal digits."""
    return f"resp_{number}{''.join(beginning)}"


def beginning_of(identifier: str) -> Beginning | None:
    """Return what the turn of that response began with; None where no response has such an id."""
    form = _FORM.fullmatch(identifier)
    return Beginning(**form.groupdict("")) if form else None


def number_of_key(key: str) -> str:
    """Return 32 hexadecimal digits that stand for an Idempotency-Key, so that each attempt makes the same id."""
    return hashlib.blake2b(key.encode(), digest_size=_NUMBER_BYTES, person=b"idempotency-key").hexdigest()


def _hash(text: str, person: bytes) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES, person=person).hexdigest()


DEFAULT_TOP_P = 1.0
_LONGEST_SHOWN = 64


def response_exchange(request: ResponseRequest, incoming: Incoming) -> Exchange:
    """Return a request as an exchange.

    Raises InvalidArgument where parameters contradict each other or what the previous response began with, and NotFound
    for a previous response that cannot be.
    """
    refuse_idle_stream_options(request.stream_options, request.stream)
    if request.top_logprobs and not request.wants_logprobs:
        raise InvalidArgument("top_logprobs", 'needs include to have "message.output_text.logprobs"')
    functions = [] if request.tool_choice == "none" else request.tools or []
    tools = [tool.to_tool() for tool in functions]
    tools_json = to_json_text("tools", tools)
    beginning = Beginning.of(
        request.instructions or "", json.dumps(tools, sort_keys=True) if tools else "", _arguments(request)
    )
    if request.previous_response_id is not None:
        _refuse_other_beginning(request.previous_response_id, beginning, request)
    number = number_of_key(incoming.turn) if incoming.turn else incoming.unique
    identifier = response_id(number, beginning)
    stored = identifier if request.store is not False else f"unstored_{number}" if incoming.turn else ""
    turn = inference_pb2.GenerateRequest(
        key=types_pb2.AgentKey(namespace=incoming.namespace, model_id=request.model),
        request_id=stored,
        sampling=types_pb2.Sampling(
            temperature=DEFAULT_TEMPERATURE if request.temperature is None else request.temperature, top_p=request.top_p
        ),
        max_tokens=request.max_output_tokens,
        top_logprobs=(request.top_logprobs or 0) if request.wants_logprobs else None,
        json_schema=schema_of(request.text.format if request.text else None),
        tool_calls=bool(tools),
        tool_choice=held_calls(request.tool_choice, functions, parallel=request.parallel_tool_calls),
    )
    chat = types_pb2.Messages(
        messages=to_messages(request.input),
        tools_json=tools_json,
        template_arguments_json=template_arguments(request.effort, request.chat_template_kwargs),
    )
    if request.previous_response_id is not None:
        turn.append.messages.CopyFrom(chat)
    else:
        if request.instructions:
            turn.messages.messages.add(role="system", content=request.instructions)
        turn.messages.MergeFrom(chat)
    answer = ResponseAnswer(_head(request, identifier, incoming.created), number, logprobs=request.wants_logprobs)
    return Exchange(
        (turn,),
        answer,
        bool(request.stream),
        label=request.prompt_cache_key or "",
        previous=request.previous_response_id or "",
    )


def _arguments(request: ResponseRequest) -> str:
    """Return the arguments of the template in one spelling. An effort alone is its word, as in ids of 0.1."""
    if not request.chat_template_kwargs:
        return request.effort or ""
    return json.dumps([request.effort, request.chat_template_kwargs], sort_keys=True)


def _refuse_other_beginning(previous: str, beginning: Beginning, request: ResponseRequest) -> None:
    before = beginning_of(previous)
    if before is None:
        shown = previous if len(previous) <= _LONGEST_SHOWN else f"{previous[:_LONGEST_SHOWN]}…"
        raise NotFound("response", shown, "no response of this server has such an id; send the whole conversation")
    for name, then, now in zip(Beginning._fields, before, beginning, strict=True):
        if then != now:
            raise InvalidArgument(
                "chat_template_kwargs" if name == "reasoning" and request.chat_template_kwargs else name,
                "must be those that previous_response_id ran under, since its memory begins with them; send the same "
                "ones, or leave previous_response_id out and send the whole conversation as input",
            )


def to_messages(given: str | Iterable[Item]) -> list[types_pb2.ChatMessage]:
    """Return input as messages of a chat. Raises InvalidArgument where it says nothing.

    What the model thought, said and called between two messages of others is one message: calls belong to the text
    before them, and so does text that follows reasoning, or a call without an answer yet.
    """
    if isinstance(given, str):
        return [types_pb2.ChatMessage(role="user", content=given)]
    messages: list[_Message] = []
    for item in given:
        match item:
            case MessageItem():
                text = joined(item.content)
                if item.role == "assistant" and messages and messages[-1].goes_on:
                    messages[-1].texts.append(text)
                    messages[-1].thought = False
                else:
                    messages.append(_Message("system" if item.role == "developer" else item.role, [text]))
            case FunctionCallItem():
                if not messages or messages[-1].role != "assistant":
                    messages.append(_Message("assistant"))
                messages[-1].calls.append(function_call(item.call_id, item.name, item.arguments))
                messages[-1].thought = False
            case FunctionCallOutputItem():
                messages.append(_Message("tool", [joined(item.output)], answers=item.call_id))
            case ReasoningItem() if text := joined(item.content):
                if not messages or messages[-1].role != "assistant":
                    messages.append(_Message("assistant"))
                messages[-1].reasoning.append(text)
                messages[-1].thought = True
    if not messages:
        raise InvalidArgument("input", "must say something")
    return [message.to_proto() for message in messages]


@dataclass
class _Message:
    """One message of a chat, as its items come."""

    role: str
    texts: list[str] = field(default_factory=list)
    calls: list[Json] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    thought: bool = False
    """Reasoning was the last."""
    answers: str | None = None

    @property
    def goes_on(self) -> bool:
        """What the model says next belongs to this message."""
        return bool(self.calls) or self.thought

    def to_proto(self) -> types_pb2.ChatMessage:
        """Return the contract's message."""
        return types_pb2.ChatMessage(
            role=self.role,
            content="".join(self.texts),
            reasoning_content="".join(self.reasoning) if self.reasoning else None,
            tool_calls_json=to_json_text("input", self.calls),
            tool_call_id=self.answers,
        )


def _head(request: ResponseRequest, identifier: str, created: int) -> Json:
    """Return what the response says of the request."""
    text_format, choice = request.text.format if request.text else None, request.tool_choice
    return {
        "id": identifier,
        "object": "response",
        "created_at": created,
        "model": request.model,
        "background": False,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": request.effort, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        "text": {"format": text_format.model_dump(by_alias=True) if text_format else {"type": "text"}},
        "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
        "tools": [tool.model_dump() for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": DEFAULT_TOP_P if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }

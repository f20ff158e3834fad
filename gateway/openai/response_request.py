"""A request for a response as one turn of the contract.

`instructions` are the system message in front. A request with previous_response_id appends its input to the memory
that the turn of that response made, which was begun with the instructions, tools and reasoning effort of then: with
others it is refused.
store=false keeps a response from being followed by its id; memory is kept all the same, as that of chat completions is.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import BaseModel

from agentmem.errors import InvalidArgument, NotFound
from agentmem.v1 import inference_pb2, types_pb2
from gateway.exchange import Exchange, Incoming, Json
from gateway.openai.response_answer import ResponseAnswer
from gateway.openai.response_format import schema_of
from gateway.openai.response_ids import Beginning, beginning_of, number_of_key, response_id
from gateway.openai.response_schema import (
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionTool,
    Item,
    MessageItem,
    ReasoningItem,
    ResponseRequest,
    text_of,
)
from gateway.openai.sampling import DEFAULT_TEMPERATURE, refuse_idle_stream_options
from gateway.openai.tool_choice import held_calls
from gateway.template_arguments import Effort, template_arguments

DEFAULT_TOP_P = 1.0
_LONGEST_TOLD = 64


def response_exchange(request: ResponseRequest, incoming: Incoming) -> Exchange:
    """A request as an exchange.

    Raises InvalidArgument where parameters contradict each other or what the previous response began with, and NotFound
    for a previous response that cannot be.
    """
    _refuse_contradictions(request)
    tools = _tools(request)
    beginning = Beginning.of(
        request.instructions or "", json.dumps(tools, sort_keys=True) if tools else "", _effort(request) or ""
    )
    if request.previous_response_id is not None:
        _refuse_other_beginning(request.previous_response_id, beginning)
    number = number_of_key(incoming.turn) if incoming.turn else incoming.unique
    identifier = response_id(number, beginning)
    turn = _turn(request, incoming, tools)
    if request.store is not False:
        turn.request_id = identifier
    elif incoming.turn:
        turn.request_id = f"unstored_{number}"
    answer = ResponseAnswer(_head(request, identifier, incoming.created), number, logprobs=_wants_logprobs(request))
    return Exchange(
        (turn,),
        answer,
        bool(request.stream),
        label=request.prompt_cache_key or "",
        previous=request.previous_response_id or "",
    )


def _refuse_contradictions(request: ResponseRequest) -> None:
    refuse_idle_stream_options(request)
    if request.top_logprobs and not _wants_logprobs(request):
        raise InvalidArgument("top_logprobs", 'needs include to have "message.output_text.logprobs"')


def _refuse_other_beginning(previous: str, beginning: Beginning) -> None:
    before = beginning_of(previous)
    if before is None:
        told = previous if len(previous) <= _LONGEST_TOLD else f"{previous[:_LONGEST_TOLD]}…"
        raise NotFound("response", told, "no response of this server has such an id; send the whole conversation")
    for name, then, now in zip(Beginning._fields, before, beginning, strict=True):
        if then != now:
            raise InvalidArgument(
                name,
                "must be those that previous_response_id ran under, since its memory begins with them; send the same "
                "ones, or leave previous_response_id out and send the whole conversation as input",
            )


def _turn(request: ResponseRequest, incoming: Incoming, tools: list[Json]) -> inference_pb2.GenerateRequest:
    turn = inference_pb2.GenerateRequest(
        key=types_pb2.AgentKey(namespace=incoming.namespace, model_id=request.model),
        sampling=types_pb2.Sampling(
            temperature=DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
            top_p=request.top_p,
        ),
        max_tokens=request.max_output_tokens,
        top_logprobs=(request.top_logprobs or 0) if _wants_logprobs(request) else None,
        json_schema=_json_schema(request),
        tool_calls=bool(tools),
        tool_choice=_held_calls(request, tools),
    )
    messages = to_messages(request.input)
    if request.previous_response_id is None:
        if request.instructions:
            messages.insert(0, types_pb2.ChatMessage(role="system", content=request.instructions))
        told = turn.messages
    else:
        told = turn.append.messages
    told.messages.extend(messages)
    if tools:
        told.tools_json = json.dumps(tools, ensure_ascii=False)
    if arguments := template_arguments(_effort(request)):
        told.template_arguments_json = arguments
    return turn


def to_messages(given: str | Iterable[Item]) -> list[types_pb2.ChatMessage]:
    """Input as messages of a chat.

    What the model thought, said and called between two messages of others is one message: calls belong to the text
    before them, and so does text that follows reasoning, or a call which nobody has answered yet.
    """
    if isinstance(given, str):
        return [types_pb2.ChatMessage(role="user", content=given)]
    messages: list[_Message] = []
    for item in given:
        match item:
            case MessageItem():
                text = text_of(item.content)
                if item.role == "assistant" and messages and messages[-1].goes_on:
                    messages[-1].texts.append(text)
                    messages[-1].thought = False
                else:
                    messages.append(_Message("system" if item.role == "developer" else item.role, [text]))
            case FunctionCallItem():
                if not messages or messages[-1].role != "assistant":
                    messages.append(_Message("assistant"))
                function = {"name": item.name, "arguments": item.arguments}
                messages[-1].calls.append({"id": item.call_id, "type": "function", "function": function})
                messages[-1].thought = False
            case FunctionCallOutputItem():
                messages.append(_Message("tool", [text_of(item.output)], answers=item.call_id))
            case ReasoningItem(text=text) if text:
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
        return types_pb2.ChatMessage(
            role=self.role,
            content="".join(self.texts),
            reasoning_content="".join(self.reasoning) if self.reasoning else None,
            tool_calls_json=json.dumps(self.calls, ensure_ascii=False) if self.calls else None,
            tool_call_id=self.answers,
        )


def _tools(request: ResponseRequest) -> list[Json]:
    """The tools that the model is told of, in the shape of chat completions."""
    if request.tool_choice == "none":
        return []
    return [{"type": "function", "function": _definition(tool)} for tool in request.tools or ()]


def _definition(tool: FunctionTool) -> Json:
    return tool.model_dump(include={"name", "description", "parameters"}, exclude_none=True)


def _held_calls(request: ResponseRequest, tools: list[Json]) -> inference_pb2.ToolChoice | None:
    names = [tool["function"]["name"] for tool in tools]
    strict = [tool.name for tool in request.tools or () if tool.strict and tool.name in names]
    return held_calls(request.tool_choice, names, strict, parallel=request.parallel_tool_calls)


def _effort(request: ResponseRequest) -> Effort | None:
    return request.reasoning.effort if request.reasoning else None


def _wants_logprobs(request: ResponseRequest) -> bool:
    return "message.output_text.logprobs" in (request.include or ())


def _json_schema(request: ResponseRequest) -> str | None:
    return schema_of(request.text.format if request.text else None)


def _told_choice(request: ResponseRequest) -> Json | str:
    choice = request.tool_choice
    return choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto"


def _head(request: ResponseRequest, identifier: str, created: int) -> Json:
    """What the response says of the request."""
    text_format = request.text.format if request.text else None
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
        "reasoning": {"effort": _effort(request), "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        "text": {"format": text_format.model_dump(by_alias=True) if text_format else {"type": "text"}},
        "tool_choice": _told_choice(request),
        "tools": [tool.model_dump() for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": DEFAULT_TOP_P if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }

"""/v1/chat/completions: requests, their turns, and the events as an answer, whole or in chunks.

prompt_cache_key only narrows the search for the conversation. Strict tools, a tool_choice that names or requires
functions, and parallel_tool_calls=false are held by a grammar. With "none" the model does not get the tools: one that
sees them may call them.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import MAX_TOP_LOGPROBS
from agentmem.words import finish_reason
from gateway.api.content import Media, Refusal, counted
from gateway.api.errors import OPENAI
from gateway.api.exchange import (
    Exchange,
    Heard,
    Incoming,
    SseEvent,
    call_arguments,
    calls_in_order,
    function_call,
    joined,
    to_json_text,
    turn_of,
)
from gateway.api.openai import ResponseFormat, SampledRequest, choices, schema_of
from gateway.api.openai_answers import CompletionsAnswer, logprobs_of
from gateway.api.openai_tools import ChatToolChoice, FunctionDefinition, chosen
from gateway.api.thinking import Thinks
from gateway.api.validation import Advised, Forgiving, Json, JsonObject, KeyPart, Limit, Many, limit


class TextPart(Forgiving):
    type: Literal["text"]
    text: str


Part = Annotated[TextPart | Refusal | Media, Field(discriminator="type")]


class FunctionCall(Forgiving):
    name: str
    arguments: str | JsonObject | None = None


class ToolCall(Forgiving):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall

    def to_json(self) -> Json:
        return function_call(self.id, self.function.name, call_arguments(self.function.arguments))


class Tool(Forgiving):
    type: Literal["function"]
    function: FunctionDefinition


class Message(Advised):
    """`reasoning_content`, or `reasoning`, is an extension: the assistant's thoughts before the message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Many[Part] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Many[ToolCall] | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_reasoning(cls, data: Any) -> Any:
        # vLLM and mlx-lm call it `reasoning`.
        reasoning = data.get("reasoning") if isinstance(data, dict) else None
        if reasoning in (None, []) or data.get("reasoning_content") not in (None, reasoning):
            return data
        return {**data, "reasoning_content": reasoning}

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.content is None and self.role not in ("assistant", "tool"):
            raise ValueError("needs content")
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content is not None):
            raise ValueError("only messages of the assistant have tool_calls or reasoning_content")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("tool_call_id belongs to messages of role tool, and they need it")
        return self

    def to_proto(self) -> types_pb2.ChatMessage:
        return types_pb2.ChatMessage(
            role="system" if self.role == "developer" else self.role,
            content=joined(self.content) or self.refusal or "",
            name=self.name,
            reasoning_content=self.reasoning_content,
            tool_calls_json=to_json_text("messages", [call.to_json() for call in self.tool_calls or ()]),
            tool_call_id=self.tool_call_id,
        )


class ChatRequest(SampledRequest, Thinks):
    messages: Annotated[Many[Message], Field(min_length=1)]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    prompt_cache_key: KeyPart | None = None
    tools: Many[Tool] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: Many[Literal["text"]] | None = None


def chat_exchange(chat: ChatRequest, incoming: Incoming) -> Exchange:
    """Raises InvalidArgument for contradictions."""
    if chat.top_logprobs is not None and not chat.logprobs:
        raise InvalidArgument("top_logprobs", "needs logprobs to be true")
    tools = [] if chat.tool_choice == "none" else [tool.function for tool in chat.tools or ()]
    turn = turn_of(
        incoming,
        chat,
        messages=types_pb2.Messages(
            messages=[message.to_proto() for message in chat.messages],
            tools_json=to_json_text("tools", [tool.to_tool() for tool in tools]),
            template_arguments_json=chat.template_arguments(),
        ),
        stop=chat.stops,
        max_tokens=_max_tokens(chat),
        top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        json_schema=schema_of(chat.response_format),
        tool_choice=chosen(chat.tool_choice, tools, parallel=chat.parallel_tool_calls),
    )
    answer = ChatAnswer(
        f"chatcmpl-{incoming.unique}",
        incoming.created,
        chat.model or "",
        per_prompt=chat.n or 1,
        logprobs=bool(chat.logprobs),
        include_usage=chat.include_usage,
    )
    return Exchange(
        choices([turn], chat.n or 1),
        answer,
        bool(chat.stream),
        label=chat.prompt_cache_key or "",
        left_out=counted(message.content for message in chat.messages if message.role == "user"),
        others=chat.unread,
    )


def _max_tokens(chat: ChatRequest) -> int | None:
    old, new = chat.max_tokens, chat.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidArgument("max_completion_tokens", "contradicts max_tokens; give one of them")
    return limit(old if new is None else new)


class ChatAnswer(CompletionsAnswer):
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    dialect = OPENAI

    def choice(self, index: int, heard: Heard) -> Json:
        text, reasoning = "".join(heard.texts), "".join(heard.reasoning)
        message: Json = {"role": "assistant", "content": text if text or not heard.calls else None, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if heard.calls:
            message["tool_calls"] = [function_call(call.id, call.name, call.arguments_json) for call in heard.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": _content(logprobs_of(heard.logprobs)) if self._wants_logprobs else None,
            "finish_reason": finish_reason(heard.finished.reason),
        }

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:
        self.heard[choice].note(event)
        match event.WhichOneof("event"):
            case "started":
                yield self._delta(choice, role="assistant", content="", refusal=None)
            case "delta":
                delta = event.delta
                logprobs = logprobs_of(delta.logprobs) if self._wants_logprobs else []
                if delta.reasoning:
                    yield self._delta(choice, reasoning_content=delta.reasoning)
                if delta.text or logprobs:
                    yield self._delta(choice, logprobs, content=delta.text)
                begun = self.heard[choice].begun
                for call in calls_in_order(delta):
                    if isinstance(call, inference_pb2.ToolCall) and call.id in begun:
                        continue  # its parts were all of it
                    if call.id not in begun:  # as OpenAI orders them: the call, and then its arguments
                        begun.append(call.id)
                        head = function_call(call.id, call.name, "")
                        yield self._delta(choice, tool_calls=[{"index": len(begun) - 1, **head}])
                    arguments = {"arguments": call.arguments_json}
                    yield self._delta(choice, tool_calls=[{"index": begun.index(call.id), "function": arguments}])
            case "finished":
                reason = finish_reason(event.finished.reason)
                ending = {"index": choice, "delta": {}, "logprobs": None, "finish_reason": reason}
                yield self.chunk(ending, ends=True)

    def nothing(self, index: int) -> Json:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": None}

    def _delta(self, choice: int, logprobs: list[Json] | None = None, /, **delta: Any) -> SseEvent:
        content = _content(logprobs) if logprobs else None
        return self.chunk({"index": choice, "delta": delta, "logprobs": content, "finish_reason": None})


def _content(logprobs: list[Json]) -> Json:
    return {"content": logprobs, "refusal": None}

"""A chat request as turns of the contract, one for each choice."""

import json
from typing import Any

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.exchange import Exchange, Incoming
from gateway.openai.chat_response import ChatAnswer
from gateway.openai.chat_schema import ChatRequest, Message, Tool
from gateway.openai.response_format import schema_of
from gateway.openai.sampling import choices, refuse_idle_stream_options, sampling, stops
from gateway.openai.tool_choice import held_calls
from gateway.template_arguments import template_arguments


def chat_exchange(chat: ChatRequest, incoming: Incoming) -> Exchange:
    """A chat request as an exchange. Raises InvalidArgument where parameters contradict each other."""
    turns = choices(to_generate(chat, incoming), chat.n or 1)
    answer = ChatAnswer(
        f"chatcmpl-{incoming.unique}",
        incoming.created,
        chat.model,
        len(turns),
        logprobs=bool(chat.logprobs),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
    )
    return Exchange(turns, answer, bool(chat.stream), label=chat.prompt_cache_key or "")


def to_generate(chat: ChatRequest, incoming: Incoming) -> inference_pb2.GenerateRequest:
    """The turn that `chat` asks for, without an agent. Raises InvalidArgument for contradictions."""
    refuse_idle_stream_options(chat)
    if chat.top_logprobs is not None and not chat.logprobs:
        raise InvalidArgument("top_logprobs", "needs logprobs to be true")
    key = types_pb2.AgentKey(namespace=incoming.namespace, model_id=chat.model)
    tools = [] if chat.tool_choice == "none" else chat.tools or []
    strict = [tool.function.name for tool in tools if tool.function.strict]
    return inference_pb2.GenerateRequest(
        key=key,
        request_id=incoming.turn,
        messages=types_pb2.Messages(
            messages=[_message(message) for message in chat.messages],
            tools_json=json.dumps([_tool(tool) for tool in tools], ensure_ascii=False) if tools else None,
            template_arguments_json=template_arguments(chat.reasoning_effort, chat.chat_template_kwargs),
        ),
        sampling=sampling(chat),
        stop=stops(chat),
        max_tokens=_max_tokens(chat),
        top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        json_schema=schema_of(chat.response_format),
        tool_calls=bool(tools),
        tool_choice=held_calls(
            chat.tool_choice, [tool.function.name for tool in tools], strict, parallel=chat.parallel_tool_calls
        ),
    )


def _message(message: Message) -> types_pb2.ChatMessage:
    calls = [call.model_dump() for call in message.tool_calls or ()]
    return types_pb2.ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content=message.text,
        name=message.name,
        reasoning_content=message.reasoning_content,
        tool_calls_json=json.dumps(calls, ensure_ascii=False) if calls else None,
        tool_call_id=message.tool_call_id,
    )


def _tool(tool: Tool) -> dict[str, Any]:
    """The definition as templates take it, without what it leaves open, and without `strict`, which is not for them."""
    function = {"name": tool.function.name}
    optional = {"description": tool.function.description, "parameters": tool.function.parameters}
    return {"type": tool.type, "function": function | {k: v for k, v in optional.items() if v is not None}}


def _max_tokens(chat: ChatRequest) -> int | None:
    old, new = chat.max_tokens, chat.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidArgument("max_completion_tokens", "contradicts max_tokens; give one of them")
    return old if new is None else new

"""A chat request as turns of the contract, one for each choice."""

import json
from typing import Any

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.exchange import Exchange, Incoming
from gateway.openai.chat_response import ChatAnswer
from gateway.openai.chat_schema import ChatRequest, Message, Tool

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's; the contract's is 0."""

_SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def chat_exchange(chat: ChatRequest, incoming: Incoming) -> Exchange:
    """A chat request as an exchange. Raises InvalidArgument where parameters contradict each other."""
    turn = to_generate(chat, incoming)
    turns = tuple(_choice(turn, number) for number in range(chat.n or 1))
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
    if chat.stream_options is not None and not chat.stream:
        raise InvalidArgument("stream_options", "is only allowed with stream")
    if chat.top_logprobs is not None and not chat.logprobs:
        raise InvalidArgument("top_logprobs", "needs logprobs to be true")
    key = types_pb2.AgentKey(namespace=incoming.namespace, model_id=chat.model)
    tools = [] if chat.tool_choice == "none" else chat.tools or []
    return inference_pb2.GenerateRequest(
        key=key,
        request_id=incoming.turn,
        messages=types_pb2.Messages(
            messages=[_message(message) for message in chat.messages],
            tools_json=json.dumps([_tool(tool) for tool in tools], ensure_ascii=False) if tools else None,
        ),
        sampling=_sampling(chat),
        stop=[chat.stop] if isinstance(chat.stop, str) else chat.stop or [],
        max_tokens=_max_tokens(chat),
        top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        tool_calls=bool(tools),
    )


def _choice(turn: inference_pb2.GenerateRequest, number: int) -> inference_pb2.GenerateRequest:
    """The turn of one choice: under a seed each choice has its own, so that they differ and can be had again."""
    if number == 0:
        return turn
    choice = inference_pb2.GenerateRequest()
    choice.CopyFrom(turn)
    if choice.sampling.HasField("seed"):
        choice.sampling.seed = (choice.sampling.seed + number) % 2**64
    return choice


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
    """The definition as templates take it, without what it leaves open."""
    function = {"name": tool.function.name}
    optional = {"description": tool.function.description, "parameters": tool.function.parameters}
    return {"type": tool.type, "function": function | {k: v for k, v in optional.items() if v is not None}}


def _sampling(chat: ChatRequest) -> types_pb2.Sampling:
    given = {name: value for name in _SAMPLING if (value := getattr(chat, name)) is not None}
    return types_pb2.Sampling(
        temperature=DEFAULT_TEMPERATURE if chat.temperature is None else chat.temperature,
        # Negative seeds are allowed in the dialect and not in the contract.
        seed=None if chat.seed is None else chat.seed % 2**64,
        logit_bias={_token_id(key): bias for key, bias in (chat.logit_bias or {}).items()},
        **given,
    )


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 2**32):
        raise InvalidArgument("logit_bias", "its keys must be token ids")
    return int(key)


def _max_tokens(chat: ChatRequest) -> int | None:
    old, new = chat.max_tokens, chat.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidArgument("max_completion_tokens", "contradicts max_tokens; give one of them")
    return old if new is None else new

"""A chat request as a turn of the contract."""

import json

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.openai.chat_schema import ChatRequest, Message

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's; the contract's is 0."""

_SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def to_generate(chat: ChatRequest, agent_id: str, request_id: str, namespace: str) -> inference_pb2.GenerateRequest:
    """The turn that `chat` asks for. An empty `agent_id` keeps nothing.

    Raises InvalidArgument where parameters contradict each other.
    """
    if chat.stream_options is not None and not chat.stream:
        raise InvalidArgument("stream_options", "is only allowed with stream")
    if chat.top_logprobs is not None and not chat.logprobs:
        raise InvalidArgument("top_logprobs", "needs logprobs to be true")
    key = types_pb2.AgentKey(namespace=namespace, agent_id=agent_id, model_id=chat.model)
    return inference_pb2.GenerateRequest(
        key=key,
        request_id=request_id,
        messages=types_pb2.Messages(messages=[_message(message) for message in chat.messages]),
        sampling=_sampling(chat),
        stop=[chat.stop] if isinstance(chat.stop, str) else chat.stop or [],
        max_tokens=_max_tokens(chat),
        top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
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

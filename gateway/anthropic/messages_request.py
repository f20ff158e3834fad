"""A request as a turn of the contract, or as a question for the number of its tokens."""

import json

from agentmem.v1 import inference_pb2, types_pb2
from gateway.anthropic.conversation import chat_messages
from gateway.anthropic.messages_response import MessageAnswer
from gateway.anthropic.messages_schema import CountTokensRequest, MessagesRequest
from gateway.exchange import Exchange, Incoming

DEFAULT_TEMPERATURE = 1.0
"""Anthropic's; the contract's is 0."""


def messages_exchange(asked: MessagesRequest, incoming: Incoming) -> Exchange:
    """A request as an exchange. Raises InvalidArgument for messages that do not belong where they stand."""
    thinks = asked.thinking is None or asked.thinking.type != "disabled"
    answer = MessageAnswer(f"msg_{incoming.unique}", asked.model, thinking=thinks)
    label = asked.metadata.user_id if asked.metadata else None
    return Exchange((to_generate(asked, incoming),), answer, bool(asked.stream), label=label or "")


def to_generate(asked: MessagesRequest, incoming: Incoming) -> inference_pb2.GenerateRequest:
    """The turn that is asked for, without an agent. Raises InvalidArgument as `messages_exchange` does."""
    messages = chat_messages(asked)
    output = asked.output_config.format if asked.output_config else None
    return inference_pb2.GenerateRequest(
        key=types_pb2.AgentKey(namespace=incoming.namespace, model_id=asked.model),
        request_id=incoming.turn,
        messages=messages,
        sampling=types_pb2.Sampling(
            temperature=DEFAULT_TEMPERATURE if asked.temperature is None else asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
        ),
        stop=asked.stop_sequences or (),
        max_tokens=asked.max_tokens,
        json_schema=json.dumps(output.json_schema, ensure_ascii=False) if output else None,
        tool_calls=messages.HasField("tools_json"),
    )


def to_count(asked: CountTokensRequest, namespace: str) -> inference_pb2.CountTokensRequest:
    """The question how many tokens the conversation has. Raises InvalidArgument as `messages_exchange` does."""
    key = types_pb2.AgentKey(namespace=namespace, model_id=asked.model)
    return inference_pb2.CountTokensRequest(key=key, messages=chat_messages(asked))

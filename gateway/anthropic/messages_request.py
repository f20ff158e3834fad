"""A request as a turn of the contract, or as a question for the number of its tokens."""

import json

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.anthropic.conversation import chat_messages
from gateway.anthropic.messages_response import MessageAnswer
from gateway.anthropic.messages_schema import CountTokensRequest, MessagesRequest, NoTool, OneTool
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
        tool_choice=_held_calls(asked),
    )


def _held_calls(asked: MessagesRequest) -> inference_pb2.ToolChoice | None:
    """What calls are held to; None where they are the model's own. Raises InvalidArgument for a choice of no tool."""
    choice, tools = asked.tool_choice, asked.tools or ()
    if isinstance(choice, NoTool):
        return None
    strict = [tool.name for tool in tools if tool.strict]
    single = isinstance(choice, OneTool) or bool(choice and choice.disable_parallel_tool_use)
    required = choice is not None and choice.type != "auto"
    if required and not tools:
        raise InvalidArgument("tool_choice", "needs tools")
    names = [choice.name] if isinstance(choice, OneTool) else []
    if not {tool.name for tool in tools} >= set(names):
        raise InvalidArgument("tool_choice.name", "names a tool that is not among the tools")
    if not tools or not (required or single or strict):
        return None
    return inference_pb2.ToolChoice(required=required, names=names, single=single, strict=strict)


def to_count(asked: CountTokensRequest, namespace: str) -> inference_pb2.CountTokensRequest:
    """The question how many tokens the conversation has. Raises InvalidArgument as `messages_exchange` does."""
    key = types_pb2.AgentKey(namespace=namespace, model_id=asked.model)
    return inference_pb2.CountTokensRequest(key=key, messages=chat_messages(asked))
